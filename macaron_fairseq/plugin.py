"""Importing this makes fairseq know the package: architectures, criterion, checkpoints."""

import sys

from macaron_fairseq import architectures, preflight
from macaron_fairseq import criterion as criterion  # registers itself
from macaron_fairseq.checkpoints import allow_safe_globals
from macaron_fairseq.model import MacaronTransformerModel as MacaronTransformerModel

allow_safe_globals()
architectures.register_all()
preflight.check(sys.argv)
