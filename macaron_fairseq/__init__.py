"""Macaron Net for fairseq: importing this package registers it (`--user-dir macaron_fairseq`)."""

import logging
import sys
from pathlib import Path

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat.saved_args import PassUserDir
from macaron_fairseq.version import __version__

__all__ = ["MacaronTransformerModel", "PassUserDir", "UserError", "__version__"]

if Path(sys.argv[0]).name != "macaron-fairseq":
    from macaron_fairseq.plugin import MacaronTransformerModel
else:
    # Most of what our own command does needs no fairseq, whose import takes seconds. Where it does,
    # fairseq would ask for a package of its text-to-speech task at every start.
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
