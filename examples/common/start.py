"""Start a recipe's program, or say in a sentence that the package is not there.

usage: start.py FILE.py [WORD...]
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path


def refuse_missing_package() -> None:
    """End the program where this Python does not have the package."""
    if not find_spec("macaron_fairseq"):
        sys.exit(
            f"macaron_fairseq is not installed for {sys.executable}: install it, or activate its "
            "environment"
        )


def main(words: list[str]) -> None:
    """Become `python FILE.py WORD...` with the same Python, in UTF-8 mode."""
    try:
        refuse_missing_package()
    except SystemExit as end:
        sys.exit(f"{Path(words[0]).parent.name}: {end.code}")
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *words])


if __name__ == "__main__":
    main(sys.argv[1:])
