"""What fairseq gets to know: importing this registers it, and does nothing else.

`--user-dir macaron_fairseq` imports it; so does a Python program that builds or loads models.
"""

from macaron_fairseq.compat.checkpoints import allow_safe_globals
from macaron_fairseq.fast import criterion, task
from macaron_fairseq.model import architectures
from macaron_fairseq.model.transformer import MacaronTransformerModel as MacaronTransformerModel

allow_safe_globals()
architectures.register_all()
criterion.register()
task.register()
