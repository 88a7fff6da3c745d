"""Whether fairseq-train knows these architectures and flags, before hours of work on text.

usage: check_flags.py ARCH... -- FLAG...

FLAGs are those of fairseq-train without --arch. Ends with one sentence if they would be refused.
"""

import contextlib
import difflib
import io
import logging
import sys
from collections.abc import Sequence


def main() -> None:
    """Parse the command of each architecture as fairseq does."""
    if "--" not in sys.argv[2:]:
        sys.exit(__doc__)
    divide = sys.argv.index("--")
    archs, flags = sys.argv[1:divide], sys.argv[divide + 1 :]
    # Or fairseq, once imported, asks for a package of another task.
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            check(archs, flags)
    except SystemExit as refusal:
        if not isinstance(refusal.code, int):
            raise
        reason = said.getvalue().strip().split("\n")[-1].partition("error: ")[2]
        sys.exit(f"fairseq-train would refuse this: {reason}; see fairseq-train --help")


def check(archs: Sequence[str], flags: Sequence[str]) -> None:
    """End the program at the first architecture or flag that fairseq does not know."""
    from fairseq import options
    from fairseq.models import ARCH_MODEL_REGISTRY

    sys.argv = ["check_flags.py", *flags]  # where fairseq looks for --user-dir and --task
    options.get_training_parser()  # imports the user folder, whose architectures these may be
    for arch in archs:
        if arch not in ARCH_MODEL_REGISTRY:
            near = difflib.get_close_matches(arch, ARCH_MODEL_REGISTRY, n=1, cutoff=0)
            sys.exit(f"there is no architecture {arch}; did you mean {near[0]}?")
    for arch in archs:
        options.parse_args_and_arch(options.get_training_parser(), [*flags, "--arch", arch])


if __name__ == "__main__":
    main()
