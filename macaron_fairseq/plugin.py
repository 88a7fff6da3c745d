"""Importing this makes fairseq know the package: architectures, criterion, task, checkpoints."""

import sys

from macaron_fairseq.acceleration import task
from macaron_fairseq.host import preflight
from macaron_fairseq.host.checkpoints import allow_safe_globals
from macaron_fairseq.model import architectures, criterion
from macaron_fairseq.model.transformer import MacaronTransformerModel as MacaronTransformerModel

allow_safe_globals()
architectures.register_all()
criterion.register()
task.register()
preflight.check(sys.argv)
