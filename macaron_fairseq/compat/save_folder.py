"""One training run at a time in a save folder.

fairseq does not look for another run there. Both would replace each other's checkpoint_last.pt, and
one of them ends in a traceback. This can go once fairseq itself refuses the second run.
"""

import logging
import multiprocessing
import os
from argparse import ArgumentError
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from macaron_fairseq.common import locks
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat import preflight, ranks

logger = logging.getLogger(__name__)

NAME = "training.lock"
held: list[IO[bytes]] = []  # until this process ends


def claim(argv: Sequence[str]) -> None:
    """If argv is fairseq-train's, keep other runs out of its --save-dir until this process ends.

    Only the first of the processes that train a model together does so. However it ends, the
    system then drops the lock, so that a killed run can be resumed.

    Raises:
        UserError: if another run holds the folder.
    """
    if not argv or preflight.command_name(argv[0]) != "train" or multiprocessing.parent_process():
        return
    try:
        args, others = preflight.parse(argv[1:])
    except ArgumentError:  # fairseq will say it
        return
    has_data = any(Path(name).is_dir() for word in others for name in word.split(os.pathsep))
    if not has_data or args.no_save or not ranks.is_first(args, os.environ):
        return
    folder = Path(args.save_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held.append((folder / NAME).open("ab"))
    except OSError:  # fairseq will say it
        return
    try:
        if locks.claim(held[-1]):
            return
    except OSError as error:  # as on some network disks
        logger.warning("%s cannot be locked (%s): start no second run there", folder, error)
        return
    raise UserError(
        f"another training run is at work in {folder}: wait until it ends, or give another "
        "--save-dir"
    )
