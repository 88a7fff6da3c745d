"""Importing this makes fairseq know the package: architectures, criterion, task, checkpoints."""

import sys

from macaron_fairseq.compat import preflight
from macaron_fairseq.compat.checkpoints import allow_safe_globals
from macaron_fairseq.fast import criterion, task
from macaron_fairseq.model import architectures
from macaron_fairseq.model.transformer import MacaronTransformerModel as MacaronTransformerModel

allow_safe_globals()
architectures.register_all()
criterion.register()
task.register()
preflight.check(sys.argv)
