"""`macaron-fairseq report`: trained and scored models side by side."""

import argparse
import sys
from pathlib import Path

from macaron_fairseq.commands.arguments import folder
from macaron_fairseq.common.files import show
from macaron_fairseq.evaluation.report import TITLE, report

EXAMPLES = """\
A RUN is a folder of the recipes, OUT/ARCH/seedN or OUT/ARCH/SCHEME/seedN, with
  manifest.json          by `macaron-fairseq manifest`, when training started
  train.log              what fairseq-train --log-format json printed
  TEST/hypotheses.txt    and TEST/scores.json, by `macaron-fairseq score`, for each test set
  TEST/generated.txt     what fairseq-generate printed, and
  TEST/decoding          its flags, such as "--beam 5 --max-len-a 1.5 --max-len-b 10": if both are
                         there, translations that reached the maximum length are counted; with
                         --max-len-a only if it was printed without --post-process
Sentence examples show the source where it is a file next to the reference: test.en by test.de.
The file of published scores is a list, shown next to one's own of the same name:
  [{"arch": "macaron_transformer_wmt_en_de", "test": "newstest2014-filtered",
    "metric": "compound-split BLEU", "score": 28.9, "source": "Lu et al. 2019, Table 1"}]

examples:
  macaron-fairseq report runs/transformer_tiny_pre_norm/seed1 runs/macaron_transformer_tiny/seed1 \\
    --baseline transformer_tiny_pre_norm --title "A first try"
  macaron-fairseq report runs/quickstart/macaron_transformer_tiny/{parallel,lie-trotter}/seed* \\
    --baseline macaron_transformer_tiny/lie-trotter
  macaron-fairseq report runs/wmt14/*/seed* -o runs/wmt14/report
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments and what its --help says."""
    parser.description = (
        "Compare runs in one page, report.html, and as report.md, report.json and curves.png. The "
        "page says in words whether a difference is shown, and warns of translations that loop. "
        "Scores follow with 95 % intervals, over seeds where there are several, and sacreBLEU's "
        "paired bootstrap. Then come learning curves, scores by sentence length and word "
        "frequency, n-grams, sentence examples, and what it takes to repeat the runs. report.md is "
        "also printed. Runs on other data, or scored with other references or metrics, are refused."
    )
    parser.epilog = EXAMPLES
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument(
        "--baseline",
        metavar="ARCH",
        help="the architecture to compare with, as ARCH/SCHEME or ARCH/SCHEME/SUBSTEP where those "
        'are not the default (default: the first without "macaron" in its name, or with the scheme '
        "lie-trotter)",
    )
    parser.add_argument(
        "--published", type=Path, metavar="FILE", help="a JSON file of published scores"
    )
    parser.add_argument(
        "--train-text",
        type=Path,
        metavar="FILE",
        help="the target side of the training data in words, as `macaron-fairseq tokenize --steps "
        "normalize,tokenize` leaves it: adds scores by the frequency of words",
    )
    parser.add_argument(
        "--title",
        default=TITLE,
        metavar="TEXT",
        help="the title of the report",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=folder,
        default=Path("report"),
        metavar="FOLDER",
        help="where to write the files (default: report)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Write the report and print it."""
    text = report.write(
        args.runs, args.output, args.baseline, args.published, args.title, args.train_text
    )
    show(text.removesuffix("\n"))
    print(f"wrote {args.output / 'report.html'} and report.md", file=sys.stderr)
