"""`macaron-fairseq score`: BLEU and chrF of what fairseq decoded."""

import argparse
import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.files import as_json, read_lines, write, write_lines
from macaron_fairseq.evaluation import metrics
from macaron_fairseq.evaluation.hypotheses import best, detokenize, in_order, remove_bpe

STDIO = Path("-")
METRICS = ("bleu", "chrf", "tokenised-bleu", "compound-split-bleu")

EXAMPLES = """\
metrics:
  bleu                 sacreBLEU of detokenised text against the raw reference
  chrf                 chrF of the same
  tokenised-bleu       multi-bleu.perl of the model's tokens against --tokenized-reference; with
                       --lowercase, what papers report for IWSLT'14
  compound-split-bleu  multi-bleu.perl of Moses tokens with hyphened words split; what papers report
                       for WMT'14

examples:
  fairseq-generate data-bin --user-dir macaron_fairseq --path averaged.pt \\
    --post-process subword_nmt --required-batch-size-multiple 1 > generated.txt
  macaron-fairseq score generated.txt --reference test.de --target-lang de
  macaron-fairseq score generated.txt --reference test.en --target-lang en --lowercase \\
    --metric bleu tokenised-bleu --tokenized-reference tokenized/test.en
  macaron-fairseq score generated.txt --reference newstest2014.de --target-lang de \\
    --metric bleu chrf compound-split-bleu --hypotheses hypotheses.txt --json scores.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments and what its --help says."""
    parser.description = (
        "Score what fairseq-generate or fairseq-interactive printed: put the "
        "hypotheses in order, join BPE, detokenise, and compare with the reference."
    )
    parser.epilog = EXAMPLES
    parser.add_argument(
        "generated", type=Path, metavar="GENERATED", help="what was printed; - is stdin"
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
        help="language of the target, such as de, for Moses' rules",
    )
    parser.add_argument(
        "--metric",
        nargs="+",
        action="extend",
        choices=METRICS,
        metavar="NAME",
        help="what to compute, see below (default: bleu chrf)",
    )
    parser.add_argument(
        "--tokenized-reference",
        type=Path,
        metavar="FILE",
        help="the target as the model was trained on it, before BPE; only tokenised-bleu reads it",
    )
    parser.add_argument("--lowercase", action="store_true", help="ignore case, in all metrics")
    parser.add_argument(
        "--plain",
        action="store_true",
        help="GENERATED is plain text: a detokenised hypothesis a line, in order",
    )
    parser.add_argument(
        "--test", metavar="NAME", help="name of the test set (default: the reference's file name)"
    )
    parser.add_argument(
        "--hypotheses",
        type=Path,
        metavar="FILE",
        help="write the detokenised hypotheses here, in order; - is stdout",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the scores and what was scored here"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Score what the command line names, write what it asks for, and print a table."""
    wanted = list(dict.fromkeys(args.metric or ("bleu", "chrf")))
    refuse_contradictions(args, wanted)

    references = complete(list(read_lines(args.reference)), args.reference)
    generated = list(read_lines(args.generated))
    name = "standard input" if args.generated == STDIO else str(args.generated)
    if args.plain:
        same_length(generated, name, references, args.reference)
        tokens, hypotheses = [], generated
    else:
        tokens = in_order(best(generated, name), len(references), name, str(args.reference))
        tokens = without_bpe(tokens, name)
        hypotheses = detokenize(tokens, args.target_lang)

    scores = []
    for metric in wanted:
        if metric == "bleu":
            score = metrics.bleu(hypotheses, references, args.target_lang, args.lowercase)
        elif metric == "chrf":
            score = metrics.chrf(hypotheses, references, args.lowercase)
        elif metric == "tokenised-bleu":
            tokenized = read_tokenized(args.tokenized_reference, references, args.reference)
            score = metrics.tokenised_bleu(tokens, tokenized, args.lowercase)
        else:
            score = metrics.compound_split_bleu(
                hypotheses, references, args.target_lang, args.lowercase
            )
        scores.append(score)

    if args.hypotheses:
        write_lines(args.hypotheses, hypotheses)
    if args.json:
        reference = args.reference.resolve()
        if args.json != STDIO:  # the two may be moved together
            reference = Path(os.path.relpath(reference, args.json.resolve().parent))
        record = {
            "test": args.test or args.reference.stem,
            "sentences": len(references),
            "reference": str(reference),
            "reference_sha256": sha256(args.reference, references),
            "generated_sha256": sha256(args.generated, generated),
            "scores": [asdict(score) for score in scores],
        }
        write(args.json, as_json(record))
    # Where stdout takes a file, the table does not belong into it.
    print(table(scores), file=sys.stderr if STDIO in (args.hypotheses, args.json) else sys.stdout)


def refuse_contradictions(args: argparse.Namespace, wanted: Sequence[str]) -> None:
    """Raise a `UserError` for flags that do not go together."""
    if args.plain and "tokenised-bleu" in wanted:
        raise UserError(
            "tokenised-bleu needs the model's tokens, which plain text has no more: give what "
            "fairseq-generate printed, without --plain"
        )
    if "tokenised-bleu" in wanted and not args.tokenized_reference:
        raise UserError(
            "tokenised-bleu compares with a tokenised reference: name it with --tokenized-reference"
        )
    if STDIO in (args.reference, args.tokenized_reference):
        raise UserError("a reference cannot be stdin, only GENERATED can: give a file")
    inputs = [args.generated, args.reference, args.tokenized_reference]
    taken = [path.resolve() for path in inputs if path]
    if args.json and args.hypotheses and args.json.resolve() == args.hypotheses.resolve():
        raise UserError(f"{args.json} would hold both hypotheses and scores: name two files")
    for output in (args.hypotheses, args.json):
        if output and output != STDIO and output.resolve() in taken:
            raise UserError(f"{output} is one of the files to read: choose another name")


def complete(references: list[str], name: Path) -> list[str]:
    """The reference itself; raises a `UserError` if it or one of its lines is empty."""
    if not references:
        raise UserError(f"{name} is empty: give the text of the test set's target")
    for number, line in enumerate(references, 1):
        if not line.strip():
            raise UserError(
                f"{name}, line {number} is empty: give a reference with a translation of each "
                "sentence"
            )
    return references


def same_length(
    lines: Sequence[str], name: Path | str, references: Sequence[str], reference: Path
) -> None:
    """Raise a `UserError` unless there are as many lines as references."""
    if len(lines) != len(references):
        raise UserError(
            f"{name} has {len(lines)} lines and {reference} has {len(references)}: "
            "give files of the same test set, a sentence a line"
        )


def without_bpe(lines: list[str], name: Path | str) -> list[str]:
    """The lines without BPE marks, with a word on stderr if there were any."""
    if not any("@@ " in line + " " for line in lines):
        return lines
    print(f"{name}: removed BPE marks (@@)", file=sys.stderr)
    return remove_bpe(lines)


def read_tokenized(path: Path, references: Sequence[str], reference: Path) -> list[str]:
    """The tokenised reference, with as many lines as the raw one and no BPE marks."""
    tokenized = complete(list(read_lines(path)), path)
    same_length(tokenized, path, references, reference)
    return without_bpe(tokenized, path)


def sha256(path: Path, lines: Sequence[str]) -> str:
    """The SHA-256 of a file, in hexadecimal; of its lines if it is a pipe, which is empty now."""
    if path != STDIO and path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return hashlib.sha256("".join(line + "\n" for line in lines).encode()).hexdigest()


def table(scores: Sequence[metrics.Score]) -> str:
    """A line for each score, then a line for each signature."""
    width = max(len(score.metric) for score in scores)
    rows = [f"{score.metric:{width}}  {score.score:6.2f}  {score.detail}" for score in scores]
    rows += ["", *(f"{score.metric:{width}}  {score.signature}" for score in scores)]
    return "\n".join(row.rstrip() for row in rows)
