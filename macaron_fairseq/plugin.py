"""Importing this makes fairseq know the package: architectures, criterion, task, checkpoints."""

import sys

from macaron_fairseq import architectures, criterion, preflight, task
from macaron_fairseq.checkpoints import allow_safe_globals
from macaron_fairseq.model import MacaronTransformerModel as MacaronTransformerModel

allow_safe_globals()
architectures.register_all()
criterion.register()
task.register()
preflight.check(sys.argv)
