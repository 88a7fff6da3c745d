"""Each checkpoint that fairseq reads is examined first.

fairseq reads more than the files that a command names: `model-shard0.pt` next to `model.pt`, and
what a checkpoint itself names, such as a pre-trained encoder. It runs some arguments of each. This
can go when `test_fairseq_runs_an_argument_of_a_checkpoint` fails.
"""

from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from macaron_fairseq.compat import checkpoints

read = checkpoint_utils.load_checkpoint_to_cpu  # as fairseq has it


def load_checkpoint_to_cpu(path: str, *args: Any, **options: Any) -> dict[str, Any]:
    """Read a checkpoint, once `checkpoints.examine` has found nothing in it that would run."""
    checkpoints.examine(Path(PathManager.get_local_path(path)))
    return read(path, *args, **options)


def mend() -> None:
    """Let fairseq read checkpoints so."""
    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu
