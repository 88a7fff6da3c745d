"""A name that fairseq uses and numpy has had no more since its version 2: `np.compat.long`.

fairseq meets it where texts are split at sentences: language models with `--sample-break-mode eos`,
and `score` and `sample` of a loaded one. The module that does so gets numpy's names with that one.
This can go when `test_fairseq_uses_a_name_that_numpy_lost` fails.
"""

from types import SimpleNamespace

import numpy as np
from fairseq.data import token_block_dataset


def mend() -> None:
    """Let fairseq split texts at sentences, whichever numpy there is."""
    if not hasattr(np, "compat"):
        names = {**vars(np), "compat": SimpleNamespace(long=np.int64)}
        token_block_dataset.np = SimpleNamespace(**names)
