"""Importing this makes fairseq know the package: architectures, criterion, checkpoints."""

import sys

from macaron_fairseq import architectures, criterion, preflight
from macaron_fairseq.checkpoints import allow_safe_globals
from macaron_fairseq.model import MacaronTransformerModel as MacaronTransformerModel

allow_safe_globals()
architectures.register_all()
criterion.register()
preflight.check(sys.argv)
