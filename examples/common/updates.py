"""Print how many updates the training in a folder has had; 0 before its first checkpoint.

usage: updates.py RUN
"""

import logging
import sys
from pathlib import Path


def main() -> None:
    """Read checkpoint_last.pt."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    # Or fairseq, once imported, asks for a package of another task.
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    from macaron_fairseq.common.errors import UserError
    from macaron_fairseq.compat import checkpoints
    from macaron_fairseq.model import averaging

    path = Path(sys.argv[1], "checkpoint_last.pt")
    try:
        print(averaging.updates(checkpoints.load(path)) if path.exists() else 0)
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
