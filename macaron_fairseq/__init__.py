"""Macaron Net for fairseq: `--user-dir macaron_fairseq` registers it."""

import sys
from typing import Any

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat.saved_args import PassUserDir
from macaron_fairseq.version import __version__

__all__ = ["MacaronTransformerModel", "PassUserDir", "UserError", "__version__"]

if sys.modules.get("fairseq"):
    from macaron_fairseq import plugin


def __getattr__(name: str) -> Any:
    if name == "MacaronTransformerModel":
        from macaron_fairseq import plugin

        return plugin.MacaronTransformerModel
    raise AttributeError(name)
