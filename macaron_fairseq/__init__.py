"""Macaron Net for fairseq: importing this package registers it (`--user-dir macaron_fairseq`)."""

import logging
import sys

# At every import fairseq would ask for a package of its text-to-speech task.
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)

# ruff: noqa: E402
from macaron_fairseq import architectures, preflight
from macaron_fairseq import criterion as criterion  # registers itself
from macaron_fairseq.checkpoints import PassUserDir, allow_safe_globals
from macaron_fairseq.errors import UserError
from macaron_fairseq.model import MacaronTransformerModel
from macaron_fairseq.version import __version__

__all__ = ["MacaronTransformerModel", "PassUserDir", "UserError", "__version__"]

allow_safe_globals()
architectures.register_all()
preflight.check(sys.argv)
