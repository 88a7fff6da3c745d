"""Scores of what fairseq decoded (`macaron-fairseq score`)."""

import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import look_up
from macaron_fairseq.common.text_lines import read_lines
from macaron_fairseq.evaluation.scores.generated import best, in_order
from macaron_fairseq.evaluation.scores.metrics import METRICS, OF_TOKENS, Score
from macaron_fairseq.text.marks import SENTENCEPIECE, has_pieces, is_sentencepiece, remove_bpe
from macaron_fairseq.text.tokenization import detokenize

STDIO = Path("-")
DEFAULT = ("bleu", "chrf")


@dataclass(frozen=True)
class ScoredText:
    """A translation of a test set with its scores."""

    hypotheses: list[str]  # detokenised or, with `keep_tokens`, not; in the reference's order
    scores: list[Score]
    reference: Path
    reference_sha256: str
    generated_sha256: str
    of_tokens: bool = False  # whether the hypotheses are the model's tokens

    def text(self) -> str:
        """The hypotheses as a file has them."""
        return "".join(line + "\n" for line in self.hypotheses)

    def record(self, test: str | None, folder: Path | None) -> dict[str, Any]:
        """What scores.json says; in a folder it names the reference as seen from there."""
        reference = self.reference.resolve()
        return {
            "test": test or self.reference.stem,
            "sentences": len(self.hypotheses),
            "reference": os.path.relpath(reference, folder) if folder else str(reference),
            "reference_sha256": self.reference_sha256,
            "generated_sha256": self.generated_sha256,
            "hypotheses_sha256": hashlib.sha256(self.text().encode()).hexdigest(),
            "tokens": self.of_tokens,
            "scores": [asdict(score) for score in self.scores],
        }

    def table(self) -> str:
        """A line for each score, then a line for each signature."""
        width = max(len(score.metric) for score in self.scores)
        rows = [f"{x.metric:{width}}  {x.score:6.2f}  {x.detail}" for x in self.scores]
        rows += ["", *(f"{x.metric:{width}}  {x.signature}" for x in self.scores)]
        return "\n".join(row.rstrip() for row in rows)


def score(
    generated: Path,
    reference: Path,
    language: str,
    wanted: Sequence[str] = DEFAULT,
    *,
    tokenized_reference: Path | None = None,
    lowercase: bool = False,
    plain: bool = False,
    keep_tokens: bool = False,
    detokenized: bool = False,
    test: str | None = None,
    hypotheses_file: Path | None = None,
    json_file: Path | None = None,
) -> ScoredText:
    """Put hypotheses in order, join BPE, detokenise, and compare with the reference.

    Files are written both or, where one cannot be, neither.

    Args:
        generated: what fairseq-generate or fairseq-interactive printed; "-" is standard input.
        reference: the raw text of the test set's target.
        language: of the target, for Moses' rules.
        wanted: names out of `METRICS`.
        tokenized_reference: the target as the model was trained on it, before BPE; only
            the metrics in `OF_TOKENS` read it.
        lowercase: whether to ignore case.
        plain: whether `generated` is plain text: a detokenised hypothesis a line, in order.
        keep_tokens: whether a hypothesis is the model's tokens between spaces, such as phonemes,
            and not detokenised.
        detokenized: whether a hypothesis is text already, as of a model without Moses' tokens.
        test: the name of the test set; by default that of the reference.
        hypotheses_file: where to write the hypotheses, if anywhere; "-" is standard output.
        json_file: where to write the scores and what was scored, if anywhere.

    Raises:
        UserError: if a file is bad, they do not fit each other, a metric lacks what it needs, or
            an output is an input or cannot be written.
    """
    refuse_unfit(wanted, plain, keep_tokens, detokenized, bool(tokenized_reference))
    if STDIO in (reference, tokenized_reference):
        raise UserError("a reference cannot be stdin, only GENERATED can: give a file")
    inputs = [path for path in (generated, reference, tokenized_reference) if path]
    refuse_outputs(inputs, hypotheses_file, json_file)

    references = read_reference(reference)
    printed = list(read_lines(generated))
    name = "standard input" if generated == STDIO else str(generated)
    if plain:
        same_length(printed, name, references, reference)
        tokens, hypotheses = [], printed
    else:
        tokens = in_order(best(printed, name), len(references), name, str(reference))
        tokens = without_bpe(tokens, name, is_text=detokenized)
        is_kept = keep_tokens or detokenized
        hypotheses = tokens if is_kept else detokenize(tokens, language)

    tokenized: list[str] = []
    if {*wanted} & {*OF_TOKENS}:
        tokenized = read_tokenized(tokenized_reference, references, reference)
    scored = ScoredText(
        hypotheses,
        of_texts(hypotheses, references, language, wanted, lowercase, (tokens, tokenized)),
        reference,
        sha256(reference, references),
        sha256(generated, printed),
        keep_tokens,
    )
    contents: dict[Path, str | bytes] = {}
    if json_file:
        folder = None if json_file == STDIO else json_file.resolve().parent
        contents[json_file] = files.as_json(scored.record(test, folder))
    if hypotheses_file:
        contents[hypotheses_file] = scored.text()
    files.write_all(contents)
    return scored


def refuse_unfit(
    wanted: Sequence[str], plain: bool, keep_tokens: bool, detokenized: bool, has_tokenized: bool
) -> None:
    """Raise a `UserError` if arguments of `score` do not go together."""
    if detokenized and (plain or keep_tokens):
        other = "--plain" if plain else "--keep-tokens"
        raise UserError(f"--detokenized and {other} say what hypotheses are: give one of them")
    for metric in wanted:
        if plain and metric in OF_TOKENS:
            refuse_plain(metric)
        if keep_tokens and metric not in OF_TOKENS:
            raise UserError(
                f"{metric} compares detokenised text, which --keep-tokens does not make: drop it, "
                f"or give --metric {' '.join(OF_TOKENS)} or some of these"
            )
    if plain and (keep_tokens or has_tokenized):
        flag = "--keep-tokens" if keep_tokens else "--tokenized-reference"
        raise UserError(
            f"{flag} is for the model's tokens, which plain text does not have: drop it"
        )


def of_texts(
    hypotheses: Sequence[str],
    references: Sequence[str],
    language: str,
    wanted: Sequence[str] = DEFAULT,
    lowercase: bool = False,
    tokens: tuple[Sequence[str], Sequence[str]] | None = None,
) -> list[Score]:
    """The scores of detokenised sentences.

    Args:
        hypotheses: one for each reference.
        references: raw text.
        language: of both, for Moses' rules.
        wanted: names out of `METRICS`.
        lowercase: whether to ignore case.
        tokens: the model's, and those of the references, where they are known.

    Raises:
        UserError: if there is no such metric, or one lacks what it needs.
    """
    found = []
    for name in dict.fromkeys(wanted):
        metric = look_up(METRICS, name, "metric", "--metric")
        texts = tokens if metric.of_tokens else (hypotheses, references)
        if texts is None:
            refuse_plain(name)
        found.append(metric.compute(*texts, language, lowercase))
    return found


def refuse_plain(metric: str) -> NoReturn:
    """Raise a `UserError`: plain text lacks the tokens that the metric compares."""
    raise UserError(
        f"{metric} compares the model's tokens, which plain text no longer has: give what "
        "fairseq-generate printed, without --plain"
    )


def refuse_outputs(inputs: Sequence[Path], *outputs: Path | None) -> None:
    """Raise a `UserError` if an output is an input, or the two outputs are one file."""
    given = [path for path in outputs if path]
    taken = [STDIO if files.is_stdout(path) else path.resolve() for path in given]
    while_written = [files.partial_of(path) for path in taken if path is not STDIO]
    if len({*taken, *while_written}) < len(taken) + len(while_written):
        raise UserError(f"{given[0]} would hold both hypotheses and scores: name two files")
    for path in given:
        files.refuse_output(inputs, path)


# --- the hypotheses ------------------------------------------------------------------------------


def read_reference(path: Path) -> list[str]:
    """The lines of a reference.

    Raises:
        UserError: if it cannot be read, or it or one of its lines is empty.
    """
    references = list(read_lines(path))
    refuse_gaps(references, path)
    return references


def refuse_gaps(references: Sequence[str], name: Path | str) -> None:
    """Raise a `UserError` if a reference or one of its lines is empty."""
    if not references:
        raise UserError(f"{name} is empty: give the text of the test set's target")
    for number, line in enumerate(references, 1):
        if not line.strip():
            raise UserError(
                f"{name}, line {number} is empty: give a reference with a translation of each "
                "sentence"
            )


def same_length(
    lines: Sequence[str], name: Path | str, references: Sequence[str], reference: Path | str
) -> None:
    """Raise a `UserError` unless there are as many lines as references."""
    if len(lines) != len(references):
        raise UserError(
            f"there must be as many lines in {name} as in {reference}, but there are "
            f"{len(lines):,} and {len(references):,}: give texts of the same test set, with one "
            "sentence on each line"
        )


def without_bpe(lines: list[str], name: Path | str, is_text: bool = False) -> list[str]:
    """The lines without BPE marks, with a word on stderr if there were any; text has none.

    Raises:
        UserError: if they have the marks of SentencePiece.
    """
    marked = sum(map(has_pieces, lines))
    if is_sentencepiece(marked, sum(map(bool, lines))):
        raise UserError(
            f"{name} has SentencePiece's marks ({SENTENCEPIECE}): remove them, in fairseq-generate "
            "with --post-process sentencepiece, and give --detokenized to `score`"
        )
    if is_text or not any("@@ " in line + " " for line in lines):
        return lines
    print(f"{name}: removed BPE marks (@@)", file=sys.stderr)
    return remove_bpe(lines)


def read_tokenized(path: Path | None, references: Sequence[str], reference: Path) -> list[str]:
    """The tokenised reference, with as many lines as the raw one and no BPE marks."""
    if path is None:
        raise UserError(
            "metrics of the model's tokens compare with a tokenised reference: name it with "
            "--tokenized-reference"
        )
    tokenized = read_reference(path)
    same_length(tokenized, path, references, reference)
    return without_bpe(tokenized, path)


def sha256(path: Path, lines: Sequence[str]) -> str:
    """The SHA-256 of a file, in hexadecimal; of its lines if it is a pipe, which is empty now."""
    if path != STDIO and path.is_file():
        return files.sha256(path)
    return hashlib.sha256("".join(line + "\n" for line in lines).encode()).hexdigest()
