"""Macaron Net for fairseq (`--user-dir macaron_fairseq`).

fairseq's commands and their workers import this package when they come to `--user-dir`. Where
fairseq is imported already, as it is there, the import registers the models (`plugin`) and checks
the command line (`compat.preflight`). Elsewhere it imports neither fairseq nor PyTorch; a program
that needs the registrations imports `macaron_fairseq.plugin`.
"""

import sys
from typing import TYPE_CHECKING, Any

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat.arguments import PassUserDir
from macaron_fairseq.version import __version__

if TYPE_CHECKING:
    from macaron_fairseq.plugin import MacaronTransformerModel

__all__ = ["MacaronTransformerModel", "PassUserDir", "UserError", "__version__"]

if sys.modules.get("fairseq"):
    from macaron_fairseq import plugin as plugin
    from macaron_fairseq.compat import preflight, save_folder

    preflight.check(sys.argv)
    save_folder.claim(sys.argv)


def __getattr__(name: str) -> Any:
    """Import the model's class, and with it fairseq, only where somebody asks for it."""
    if name == "MacaronTransformerModel":
        from macaron_fairseq import plugin

        return plugin.MacaronTransformerModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
