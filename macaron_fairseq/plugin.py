"""What fairseq gets to know: importing this registers it, and does nothing else.

`--user-dir macaron_fairseq` imports it; so does a Python program that builds or loads models. It is
the one door to `fast/`, too: see `MacaronTransformerModel`.
"""

from argparse import Namespace
from typing import Any

from macaron_fairseq.compat import quiet

quiet.import_fairseq()  # before anything else does

from fairseq.models import MODEL_REGISTRY, register_model
from fairseq.tasks import FairseqTask

from macaron_fairseq.compat.checkpoints import allow_safe_globals
from macaron_fairseq.distillation import criterion as distillation
from macaron_fairseq.fast import criterion, rdrop, task
from macaron_fairseq.fast.transformer import FusedTransformerModel
from macaron_fairseq.model import architectures, transformer
from macaron_fairseq.model.arguments import FAIRSEQ


class MacaronTransformerModel(FusedTransformerModel):
    """`macaron_transformer` as fairseq knows it: the model of `fast/`, or that of `model/`."""

    @classmethod
    def build_model(cls, args: Namespace, task: FairseqTask) -> Any:
        """Build the model that `--macaron-kernels` asks for.

        Where weights are to be quantised, fairseq replaces linear maps by their class; then it is
        the model of `model/`.
        """
        is_quantised = getattr(args, "quant_noise_pq", 0) or getattr(args, "quant_noise_scalar", 0)
        if is_quantised or getattr(args, "macaron_kernels", None) == FAIRSEQ:
            return transformer.MacaronTransformerModel.build_model(args, task)
        return FusedTransformerModel.build_model(args, task)


allow_safe_globals()
if architectures.MODEL not in MODEL_REGISTRY:  # else another copy of the plugin has done so
    register_model(architectures.MODEL)(MacaronTransformerModel)
    register_model(architectures.BASELINE)(transformer.BaselineTransformerModel)
architectures.register_all()
criterion.register()
rdrop.register()
distillation.register()
task.register()
