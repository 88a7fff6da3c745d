"""fairseq thinks that `--bf16` means a TPU, and then trains on no GPU.

`parse_args_and_arch` in its options.py sets `tpu` where bf16 is asked for. Its trainer then looks
for PyTorch/XLA and not for a GPU. This can go when `test_fairseq_takes_bf16_for_a_tpus` fails.
"""

import sys
from argparse import Namespace
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from fairseq.models import ARCH_CONFIG_REGISTRY


class WithoutTPU:
    """Wraps an architecture's function: the last that fairseq calls with the parsed arguments."""

    def __init__(self, configure: Callable[[Any], Any]) -> None:
        self.configure = configure

    def __call__(self, args: Any) -> Any:
        """Configure the architecture."""
        take_back(args)
        return self.configure(args)


def take_back(args: Any) -> None:
    """Take back that there is a TPU, unless `--tpu` says it.

    Nothing is changed where PyTorch/XLA is installed, since there may be one.
    """
    by_bf16 = isinstance(args, Namespace) and getattr(args, "bf16", False)
    # The command line alone still tells the two flags apart.
    if by_bf16 and "--tpu" not in sys.argv and not find_spec("torch_xla"):
        args.tpu = False


def leave_bf16_to_gpus() -> None:
    """Make `--bf16` what it says, for every architecture that is registered by now."""
    for name, configure in ARCH_CONFIG_REGISTRY.items():
        if type(configure).__name__ != WithoutTPU.__name__:  # of another copy of the plugin, too
            ARCH_CONFIG_REGISTRY[name] = WithoutTPU(configure)
