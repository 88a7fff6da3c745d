"""What fairseq gets to know: importing this registers it.

It also lets `compat` mend faults of fairseq's that no subclass reaches: checkpoints that PyTorch
refuses, a name that numpy lost, `--bf16` without a TPU, `--patience` after a kill, and what it
prints at import.

`--user-dir macaron_fairseq` imports it; so does a Python program that builds or loads models.
Whether a model is that of `fast/` or of `model/` is chosen here alone: see `is_fused`.
"""

from argparse import Namespace
from typing import Any

from macaron_fairseq.compat import quiet

quiet.import_fairseq()  # before anything else does

from fairseq.models import MODEL_REGISTRY, register_model
from fairseq.tasks import FairseqTask

from macaron_fairseq.compat import early_stopping, numpy_names, tpu
from macaron_fairseq.compat.checkpoints import allow_safe_globals
from macaron_fairseq.distillation import criterion as distillation
from macaron_fairseq.distillation.cross_vocabulary import criterion as cross_criterion
from macaron_fairseq.fast import criterion, masked_lm_criterion, optimizer, rdrop, task
from macaron_fairseq.fast.language_model import FusedLanguageModel
from macaron_fairseq.fast.masked_language_model import FusedRobertaModel
from macaron_fairseq.fast.transformer import FusedTransformerModel
from macaron_fairseq.model import (
    architectures,
    language_model,
    masked_language_model,
    released_bert,
    transformer,
)
from macaron_fairseq.model.arguments import FAIRSEQ


def is_fused(args: Namespace) -> bool:
    """Whether it is to be the model of `fast/`, rather than that of `model/`.

    Where weights are to be quantised, fairseq replaces linear maps by their class; then it is the
    model of `model/`.
    """
    is_quantised = getattr(args, "quant_noise_pq", 0) or getattr(args, "quant_noise_scalar", 0)
    return not is_quantised and getattr(args, "macaron_kernels", None) != FAIRSEQ


class Chosen:
    """A model that is built by one of two classes, as `--macaron-kernels` asks for."""

    fused: Any
    plain: Any

    @classmethod
    def build_model(cls, args: Namespace, task: FairseqTask) -> Any:
        """Build the model of `fast/`, or that of `model/`."""
        return (cls.fused if is_fused(args) else cls.plain).build_model(args, task)


class MacaronTransformerModel(Chosen, FusedTransformerModel):
    """`macaron_transformer` as fairseq knows it."""

    fused, plain = FusedTransformerModel, transformer.MacaronTransformerModel


class MacaronRobertaModel(Chosen, FusedRobertaModel):
    """`macaron_roberta` as fairseq knows it."""

    fused, plain = FusedRobertaModel, masked_language_model.MacaronRobertaModel


class MacaronLanguageModel(Chosen, FusedLanguageModel):
    """`macaron_transformer_lm` as fairseq knows it."""

    fused, plain = FusedLanguageModel, language_model.MacaronLanguageModel


MODELS = {
    architectures.MODEL: MacaronTransformerModel,
    architectures.BASELINE: transformer.BaselineTransformerModel,
    architectures.ROBERTA: MacaronRobertaModel,
    architectures.ROBERTA_BASELINE: masked_language_model.BaselineRobertaModel,
    architectures.BERT: released_bert.ReleasedBertModel,
    architectures.LM: MacaronLanguageModel,
    architectures.LM_BASELINE: language_model.BaselineLanguageModel,
}

allow_safe_globals()
numpy_names.mend()
early_stopping.remember()
if architectures.MODEL not in MODEL_REGISTRY:  # else another copy of the plugin has done so
    for name, model in MODELS.items():
        register_model(name)(model)
architectures.register_all()
tpu.leave_bf16_to_gpus()
criterion.register()
masked_lm_criterion.register()
rdrop.register()
optimizer.register()
distillation.register()
cross_criterion.register()
task.register()
