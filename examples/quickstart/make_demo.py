"""The models that come with the package: a longer quickstart, packed (see make_demo.sh)."""

import sys
from collections.abc import Sequence
from pathlib import Path

import recipe
from common import entry
from common.options import STAGES, own_and_flags

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# What is packed is one pair of trained models, from one folder.
SET_HERE = ("--work", "--setting", "--archs", "--seeds", *STAGES)


def main(words: Sequence[str]) -> None:
    """Train and pack; every mistake is one sentence and a status of 1."""
    with entry.refusals("make_demo"):
        run(words)


def run(words: Sequence[str]) -> None:
    """Do what the command line says."""
    folder, *options = words or [str(ROOT / "macaron_fairseq" / "demo")]
    if folder in ("-h", "--help"):
        print(entry.header(HERE / "make_demo.sh"))
        return
    if folder.startswith("-"):
        sys.exit(f"the folder comes before {folder}; see --help")
    own, _ = own_and_flags(options)
    for name in (word.partition("=")[0] for word in own):
        if name in SET_HERE:
            sys.exit(f"{name} is not among the options; see --help")
    work = ROOT / "runs" / "quickstart-demo"
    recipe.run(HERE / "run.sh", ["--setting", "demo", "--work", str(work), *options])
    import pack_demo  # with fairseq, which --help does not wait for

    pack_demo.pack(work, Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
