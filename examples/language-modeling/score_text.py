"""fairseq-eval-lm, which also writes the loss with all its digits: its log has four decimals.

usage: score_text.py LOSS.json FLAG...
"""

import sys
from pathlib import Path


def main(path: Path, flags: list[str]) -> None:
    """Score a text by these flags of fairseq-eval-lm.

    Args:
        path: what to write: {"loss": bits per token}.
        flags: with --user-dir.
    """
    sys.argv = ["fairseq-eval-lm", *flags]  # as which --user-dir checks it
    from fairseq import options
    from fairseq_cli import eval_lm

    args = options.parse_args_and_arch(options.get_eval_lm_parser())
    found = eval_lm.main(args)

    from macaron_fairseq.common import files

    files.write(path, files.as_json({"loss": float(found["loss"])}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
