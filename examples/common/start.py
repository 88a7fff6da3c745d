"""Start a recipe's program, or say in a sentence that the package is not there.

usage: start.py FILE.py [WORD...]
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path


def main(words: list[str]) -> None:
    """Become `python FILE.py WORD...` with the same Python, in UTF-8 mode."""
    if not find_spec("macaron_fairseq"):
        recipe = Path(words[0]).parent.name
        sys.exit(
            f"{recipe}: macaron_fairseq is not installed for {sys.executable}: install it, or "
            "activate its environment"
        )
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *words])


if __name__ == "__main__":
    main(sys.argv[1:])
