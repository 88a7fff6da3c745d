"""What fairseq gets to know: importing this registers it, and does nothing else.

`--user-dir macaron_fairseq` imports it; so does a Python program that builds or loads models. It is
the one door to `fast/`, too: the model that is registered computes with the modules of `fast/`, or
with `--macaron-kernels fairseq` without them.
"""

from fairseq.models import MODEL_REGISTRY, register_model

from macaron_fairseq.compat.checkpoints import allow_safe_globals
from macaron_fairseq.fast import criterion, task
from macaron_fairseq.fast.transformer import FusedTransformerModel as MacaronTransformerModel
from macaron_fairseq.model import architectures

allow_safe_globals()
if architectures.MODEL not in MODEL_REGISTRY:  # else another copy of the plugin has done so
    register_model(architectures.MODEL)(MacaronTransformerModel)
architectures.register_all()
criterion.register()
task.register()
