"""Start a recipe's program with the package next to it, or say that Python has none installed.

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


def take_own_package() -> None:
    """Let this program, and all that it starts, import the package of the checkout it is in.

    The installed one may be another checkout's, and a record names the code that made it.
    """
    own = str(Path(__file__).resolve().parents[2])
    sys.path.insert(0, own)
    paths = own, os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)


def main(words: list[str]) -> None:
    """Become `python FILE.py WORD...` with the same Python, in UTF-8 mode."""
    try:
        refuse_missing_package()
        take_own_package()
    except SystemExit as end:
        sys.exit(f"{Path(words[0]).parent.name}: {end.code}")
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *words])


if __name__ == "__main__":
    main(sys.argv[1:])
