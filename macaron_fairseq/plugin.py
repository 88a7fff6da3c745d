"""What fairseq gets to know: importing this registers it.

It also lets `compat` mend faults of fairseq's that no subclass reaches. These are checkpoints that
PyTorch refuses, that run something or that a kill cuts, a name that numpy lost, and `--bf16`
without a TPU. The others are `--patience` after a kill, and what it prints at import.

`--user-dir macaron_fairseq` imports it; so does a Python program that builds or loads models.
Whether a model is that of `fast/` or of `model/` is chosen here alone: see `is_fused`.
"""

from argparse import Namespace
from typing import Any

from macaron_fairseq.compat import quiet

quiet.import_fairseq()  # before anything else does

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.criterions.label_smoothed_cross_entropy_with_rdrop import (
    RdropLabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.criterions.masked_lm import MaskedLmConfig
from fairseq.models import MODEL_REGISTRY, BaseFairseqModel, register_model
from fairseq.optim import register_optimizer
from fairseq.tasks import FairseqTask, register_task

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat import (
    amp,
    early_stopping,
    every_checkpoint,
    numpy_names,
    tpu,
    whole_copies,
)
from macaron_fairseq.compat.checkpoints import allow_safe_globals
from macaron_fairseq.distillation import criterion as distillation
from macaron_fairseq.distillation.cross_vocabulary import criterion as cross_criterion
from macaron_fairseq.fast import criterion, masked_lm_criterion, optimizer, rdrop_criterion, task
from macaron_fairseq.fast.transformer import (
    FusedLanguageModel,
    FusedRobertaModel,
    FusedTransformerModel,
)
from macaron_fairseq.model import (
    architectures,
    language_model,
    masked_language_model,
    released_bert,
    transformer,
)
from macaron_fairseq.model.arguments import FAIRSEQ
from macaron_fairseq.preflight import start


def is_fused(args: Namespace) -> bool:
    """Whether it is to be the model of `fast/`, rather than that of `model/`.

    Where weights are to be quantised, fairseq replaces linear maps by their class; then it is the
    model of `model/`.
    """
    is_quantised = getattr(args, "quant_noise_pq", 0) or getattr(args, "quant_noise_scalar", 0)
    return not is_quantised and getattr(args, "macaron_kernels", None) != FAIRSEQ


class Checked(BaseFairseqModel):
    """A model that is built after the checks that had to wait until all was registered."""

    @classmethod
    def build_model(cls, args: Namespace, task: FairseqTask) -> Any:
        """Check, and build it."""
        start.before_build(args)
        return super().build_model(args, task)


class FusedOrPlain(BaseFairseqModel):
    """A model of `fast/`; where `is_fused` says no, that of `model/` is built in its place."""

    plain: type[BaseFairseqModel]

    @classmethod
    def build_model(cls, args: Namespace, task: FairseqTask) -> Any:
        """Build this model, or the plain one."""
        start.before_build(args)
        if is_fused(args):
            return super().build_model(args, task)
        if cls not in MODELS.values():
            raise UserError(
                f"{cls.__name__} is a subclass of a model that needs --macaron-kernels fused and "
                f"no quantisation noise: derive it from {cls.plain.__module__}.{cls.plain.__name__}"
            )
        return cls.plain.build_model(args, task)


class MacaronTransformerModel(FusedOrPlain, FusedTransformerModel):
    """`macaron_transformer` as fairseq knows it."""

    plain = transformer.MacaronTransformerModel


class MacaronRobertaModel(FusedOrPlain, FusedRobertaModel):
    """`macaron_roberta` as fairseq knows it."""

    plain = masked_language_model.MacaronRobertaModel


class MacaronLanguageModel(FusedOrPlain, FusedLanguageModel):
    """`macaron_transformer_lm` as fairseq knows it."""

    plain = language_model.MacaronLanguageModel


class BaselineTransformerModel(Checked, transformer.BaselineTransformerModel):
    """What fairseq knows the baselines of `macaron_transformer` by."""


class BaselineRobertaModel(Checked, masked_language_model.BaselineRobertaModel):
    """What fairseq knows the baselines of `macaron_roberta` by."""


class BaselineLanguageModel(Checked, language_model.BaselineLanguageModel):
    """What fairseq knows the baselines of `macaron_transformer_lm` by."""


class ReleasedBertModel(Checked, released_bert.ReleasedBertModel):
    """The authors' BERT as fairseq knows it."""


MODELS = {  # one for each of `architectures.MODELS`
    architectures.MODEL: MacaronTransformerModel,
    architectures.BASELINE: BaselineTransformerModel,
    architectures.ROBERTA: MacaronRobertaModel,
    architectures.ROBERTA_BASELINE: BaselineRobertaModel,
    architectures.BERT: ReleasedBertModel,
    architectures.LM: MacaronLanguageModel,
    architectures.LM_BASELINE: BaselineLanguageModel,
}

CRITERIA = {  # with what reads their flags
    criterion.NAME: (
        criterion.ChunkedLabelSmoothedCrossEntropyCriterion,
        LabelSmoothedCrossEntropyCriterionConfig,
    ),
    masked_lm_criterion.NAME: (masked_lm_criterion.ChunkedMaskedLmLoss, MaskedLmConfig),
    rdrop_criterion.NAME: (
        rdrop_criterion.ChunkedRdropLabelSmoothedCrossEntropyCriterion,
        RdropLabelSmoothedCrossEntropyCriterionConfig,
    ),
    distillation.NAME: (
        distillation.DistilledLabelSmoothedCrossEntropyCriterion,
        distillation.DistilledLabelSmoothedCrossEntropyCriterionConfig,
    ),
    cross_criterion.NAME: (
        cross_criterion.CrossVocabularyLabelSmoothedCrossEntropyCriterion,
        cross_criterion.CrossVocabularyLabelSmoothedCrossEntropyCriterionConfig,
    ),
}

allow_safe_globals()
every_checkpoint.mend()
numpy_names.mend()
whole_copies.mend()
amp.mend()
early_stopping.remember()
if architectures.MODEL not in MODEL_REGISTRY:  # else another copy of the plugin has done so
    for name, model in MODELS.items():
        register_model(name)(model)
    for name, (criterion_class, config) in CRITERIA.items():
        register_criterion(name, dataclass=config)(criterion_class)
    register_optimizer(optimizer.NAME, dataclass=optimizer.FusedAdamConfig)(optimizer.FairseqAdam)
    register_task(task.NAME, dataclass=task.MacaronTranslationConfig)(task.MacaronTranslationTask)
architectures.register_all()
tpu.leave_bf16_to_gpus()
