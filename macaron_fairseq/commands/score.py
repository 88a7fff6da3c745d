"""`macaron-fairseq score`: BLEU and chrF of what fairseq decoded."""

import argparse
import sys
import textwrap
from pathlib import Path

from macaron_fairseq.commands.arguments import new_file
from macaron_fairseq.common import files
from macaron_fairseq.common.files import show
from macaron_fairseq.evaluation.scores import scoring
from macaron_fairseq.evaluation.scores.metrics import METRICS, OF_TOKENS

EXAMPLES = """\
Decode all sentences of the test set:
  fairseq-generate data-bin --user-dir "$(macaron-fairseq user-dir)" --path averaged.pt \\
    --post-process subword_nmt --required-batch-size-multiple 1 > generated.txt

examples:
  macaron-fairseq score generated.txt --reference test.en --target-lang en --lowercase \\
    --metric bleu tokenised-bleu --tokenized-reference tokenized/test.en
  macaron-fairseq score generated.txt --reference newstest2014.de --target-lang de \\
    --metric bleu chrf compound-split-bleu --hypotheses hypotheses.txt --json scores.json
  macaron-fairseq score generated.txt --reference test.de --target-lang de
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments and what its --help says."""
    parser.description = (
        "Score what fairseq-generate or fairseq-interactive printed. The hypotheses are put in "
        "order, joined and detokenised, and compared with the reference."
    )
    parser.epilog = metrics_help() + EXAMPLES
    parser.add_argument(
        "generated", type=Path, metavar="GENERATED", help="the file of what was printed; - is stdin"
    )
    parser.add_argument(
        "--reference",
        required=True,
        type=Path,
        metavar="FILE",
        help="the raw text of the test set's target",
    )
    parser.add_argument(
        "--target-lang",
        required=True,
        metavar="LANG",
        help="the language of the target, such as de, for Moses' rules",
    )
    parser.add_argument(
        "--metric",
        nargs="+",
        action="extend",
        choices=METRICS,
        metavar="NAME",
        help=f"metrics to compute, see below (default: {' '.join(scoring.DEFAULT)})",
    )
    parser.add_argument(
        "--tokenized-reference",
        type=Path,
        metavar="FILE",
        help="the target as the model was trained on it, before BPE; for " + ", ".join(OF_TOKENS),
    )
    parser.add_argument("--lowercase", action="store_true", help="ignore case, in all metrics")
    parser.add_argument(
        "--plain",
        action="store_true",
        help="GENERATED is plain text: one detokenised hypothesis on each line, in order",
    )
    parser.add_argument(
        "--keep-tokens",
        action="store_true",
        help="write the model's tokens, such as phonemes, as hypotheses; do not detokenise them",
    )
    parser.add_argument(
        "--detokenized",
        action="store_true",
        help="the hypotheses are text already, as with --post-process sentencepiece: Moses' rules "
        "do not join them",
    )
    parser.add_argument(
        "--test",
        metavar="NAME",
        help="the name of the test set (default: the reference's file name)",
    )
    parser.add_argument(
        "--hypotheses",
        type=new_file,
        metavar="FILE",
        help="the file to write the detokenised hypotheses to, in order; - is stdout",
    )
    parser.add_argument(
        "--json",
        type=new_file,
        metavar="FILE",
        help="the file to write the scores to, and what was scored; - is stdout",
    )
    parser.set_defaults(run=run)


def metrics_help() -> str:
    """What --help says of each metric, below its list of options."""
    width = max(map(len, METRICS)) + 2
    indented = textwrap.TextWrapper(98, subsequent_indent=" " * width, break_on_hyphens=False)
    entries = "\n".join(
        indented.fill(f"{name:{width}}{metric.help}") for name, metric in METRICS.items()
    )
    return f"metrics:\n{textwrap.indent(entries, '  ')}\n\n"


def run(args: argparse.Namespace) -> None:
    """Score what the command line names, write what it asks for, and print a table."""
    wanted = args.metric or scoring.DEFAULT
    if args.tokenized_reference and not {*wanted} & {*OF_TOKENS}:
        metrics = ", ".join(OF_TOKENS)
        print(f"--tokenized-reference is not used: it is for --metric {metrics}", file=sys.stderr)
    if args.test and not args.json:
        print("--test is not used: it names the test set in the file of --json", file=sys.stderr)
    scored = scoring.score(
        args.generated,
        args.reference,
        args.target_lang,
        wanted,
        tokenized_reference=args.tokenized_reference,
        lowercase=args.lowercase,
        plain=args.plain,
        keep_tokens=args.keep_tokens,
        detokenized=args.detokenized,
        test=args.test,
        hypotheses_file=args.hypotheses,
        json_file=args.json,
    )
    if any(path and files.is_stdout(path) for path in (args.hypotheses, args.json)):
        # The table does not belong into it.
        print(scored.table(), file=sys.stderr)
    else:
        show(scored.table())
