"""Each checkpoint that fairseq reads is examined first.

fairseq reads more than the files that a command names: `model-shard0.pt` next to `model.pt`, and
what a checkpoint itself names, such as a pre-trained encoder. It runs some arguments of each. Files
that iopath fetches are not examined, nor is what the speech model `xm_transformer` reads by itself.
This can go when `test_all_arguments_that_fairseq_evaluates_are_looked_at` finds none.
"""

import functools
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from macaron_fairseq.compat import checkpoints

# As fairseq has it, also where another copy of this module has replaced it.
read = getattr(
    checkpoint_utils.load_checkpoint_to_cpu, "__wrapped__", checkpoint_utils.load_checkpoint_to_cpu
)


@functools.wraps(read)
def load_checkpoint_to_cpu(path: str, *args: Any, **options: Any) -> dict[str, Any]:
    """Read a checkpoint, once `checkpoints.examine` has found nothing in it that would run."""
    if not PathManager.path_requires_pathmanager(path):
        checkpoints.examine(Path(path))
    return read(path, *args, **options)


def mend() -> None:
    """Let fairseq read checkpoints so."""
    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu
