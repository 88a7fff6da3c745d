"""Macaron Net for fairseq (`--user-dir macaron_fairseq`).

fairseq's commands and their workers import this package when they come to `--user-dir`. Where
fairseq is imported already, as it is there, the import registers the models (`plugin`) and checks
the command line and its files (`preflight`). Elsewhere it imports neither
fairseq nor PyTorch; a program that needs the registrations imports `macaron_fairseq.plugin`.

What the commands do is here for programs, too: `load`, `score`, `report`, `dynamics`, `describe`
and `list_schemes`, see `macaron_fairseq.api`.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat.arguments import PassUserDir
from macaron_fairseq.version import __version__

if TYPE_CHECKING:
    from macaron_fairseq.api import describe, dynamics, list_schemes, load, report, score
    from macaron_fairseq.plugin import MacaronTransformerModel

__all__ = [
    "MacaronTransformerModel",
    "PassUserDir",
    "UserError",
    "__version__",
    "describe",
    "dynamics",
    "list_schemes",
    "load",
    "report",
    "score",
]

if sys.modules.get("fairseq"):
    from macaron_fairseq import plugin as plugin
    from macaron_fairseq.preflight.start import start

    start(sys.argv)
    del start


def __getattr__(name: str) -> Any:
    """Import the API, and fairseq with the model's class, only where somebody asks for them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "plugin" if name == "MacaronTransformerModel" else "api"
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    """What `dir` and a tab in a notebook show."""
    return sorted({*globals(), *__all__})
