"""One training run at a time in a save folder.

fairseq does not look for another run there. Both would replace each other's checkpoint_last.pt, and
one of them ends in a traceback. This can go once fairseq itself refuses the second run.
"""

import atexit
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from macaron_fairseq.common import files, locks
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.preflight import ranks
from macaron_fairseq.preflight.command_line import CommandLine, is_folder

logger = logging.getLogger(__name__)

NAME = "training.lock"
held: list[IO[bytes]] = []  # until this process ends


def claim(line: CommandLine) -> None:
    """Keep other runs out of the --save-dir of fairseq-train until this process ends.

    Only the first of the processes that train a model together does so. However it ends, the
    system then drops the lock, so that a killed run can be resumed.

    Raises:
        UserError: if another run holds the folder, or it cannot be written.
    """
    if line.command != "train":
        return
    args = line.args
    has_data = any(is_folder(name) for word in line.others for name in word.split(os.pathsep))
    if not has_data or args.no_save or not ranks.is_first(args, os.environ):
        return
    folder = Path(args.save_dir)
    try:
        is_new = not folder.exists()
        lock = locks.hold(folder / NAME)
    except locks.NoLocksError as error:
        logger.warning("%s cannot be locked (%s): start no second run there", folder, error)
        return
    except OSError as error:
        is_shared = is_folder(args.save_dir) and os.access(folder, os.W_OK | os.X_OK)
        if isinstance(error, PermissionError) and is_shared:  # with the lock of another user
            logger.warning("%s cannot be locked (%s): start no second run there", folder, error)
            return
        raise UserError(
            f"cannot save to {folder}: {files.reason_for(error, folder / NAME)}"
        ) from error
    if not lock:
        raise UserError(
            f"another training run is at work in {folder}: wait until it ends, or give another "
            "--save-dir"
        )
    held.append(lock)
    atexit.register(leave, folder, is_new)


def leave(folder: Path, is_new: bool) -> None:
    """Remove the lock where nothing was saved, and with it the folder if this process made it."""
    with suppress(OSError):  # another run has saved there meanwhile, for example
        if {path.name for path in folder.iterdir()} <= {NAME}:
            (folder / NAME).unlink(missing_ok=True)
            if is_new:
                folder.rmdir()
