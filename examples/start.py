"""Run a recipe's program with the package next to it, or say that Python has none installed.

usage: python3 -X utf8 start.py FILE.py [WORD...]

The program finds the modules of its folder, and `common`, which the recipes share.
"""

import os
import runpy
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
    own = str(Path(__file__).resolve().parents[1])
    sys.path.insert(0, own)
    paths = own, os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)


def command(program: str, *words: str) -> "list[str]":  # which an old Python reads, too
    """The command that runs another program so."""
    return [sys.executable, "-X", "utf8", str(Path(__file__).resolve()), program, *words]


def main(words: "list[str]") -> None:
    """Run FILE.py with these words as its arguments."""
    folder = Path(words[0]).resolve().parent
    try:
        refuse_missing_package()
    except SystemExit as end:
        sys.exit(f"{folder.name}: {end.code}")
    take_own_package()
    sys.path.insert(0, str(folder))
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
