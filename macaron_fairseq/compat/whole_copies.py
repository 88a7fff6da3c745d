"""A copy of a checkpoint under its name only once it is whole.

fairseq writes the epoch's checkpoint, then copies it to checkpoint_best.pt and checkpoint_last.pt.
A kill in that moment leaves half a file in place of a whole one. This can go when
`test_fairseq_copies_checkpoints_in_place` fails.
"""

import shutil
from pathlib import Path

from fairseq import file_io


def copy(src_path: str, dst_path: str, overwrite: bool = False) -> bool:
    """Copy a file, as fairseq's `PathManager.copy` without iopath does."""
    part = Path(f"{dst_path}.part")
    try:
        shutil.copyfile(src_path, part)
        part.replace(dst_path)
    finally:
        part.unlink(missing_ok=True)  # half a copy, where the disk is full
    return True


def mend() -> None:
    """Let fairseq copy so; iopath, where it is installed, copies for itself."""
    if not file_io.IOPathManager:
        file_io.PathManager.copy = staticmethod(copy)
