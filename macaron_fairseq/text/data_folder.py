"""The data folder: how a model's training data was made from raw text.

preprocessing.json  languages, steps, and SHA-256 of the files below, where it knows them
code                the BPE merges
data-bin/           dictionaries and data sets of fairseq-preprocess
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from macaron_fairseq.common import files, text_lines
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import look_up
from macaron_fairseq.text.languages import CODES as CODES_OF_LANGUAGES
from macaron_fairseq.text.languages import short_code
from macaron_fairseq.text.marks import remove_bpe
from macaron_fairseq.text.tokenization import STEPS, Pipeline, detokenize

NAME = "preprocessing.json"
CODES = "code"
EXAMPLE = '{"source": "en", "target": "de", "source_steps": ["normalize", "tokenize"]}'

Tokens = list[str]


@dataclass(frozen=True)
class DataFolder:
    """How a model's training data was made: languages, and the steps before BPE."""

    path: Path
    source: str
    target: str
    source_steps: list[str]
    target_steps: list[str]
    sha256: dict[str, str] = field(default_factory=dict)  # by name: `code`, dict.en.txt
    tests: list[str] = field(default_factory=list)  # the names of fairseq's test, test1 and so on

    def dictionary(self, language: str) -> Path:
        """The dictionary of a language that fairseq-preprocess wrote.

        Raises:
            UserError: if it is missing, or the folder is a language model's.
        """
        path = self.path / "data-bin" / f"dict.{language}.txt"
        if not path.is_file() and path.with_name("dict.txt").is_file():
            raise UserError(f"{self.path} is of a language model, and not of two languages")
        if not path.is_file():
            raise UserError(
                f"{path} is missing: it is written by fairseq-preprocess and belongs to the model"
            )
        return path

    def symbols(self, language: str) -> set[str]:
        """The tokens in the dictionary of a language."""
        return {
            line.rpartition(" ")[0] for line in text_lines.read_lines(self.dictionary(language))
        }

    def steps(self, language: str) -> list[str]:
        """The steps before BPE of text in that language."""
        return self.source_steps if language == self.source else self.target_steps

    def encoder(self, language: str) -> Callable[[str], Tokens]:
        """A function that makes the models' tokens of a line of raw text in that language.

        A recipe's folder names its merges; where it names other files alone, words are whole.

        Raises:
            UserError: if a step is not known or the BPE merges cannot be read.
        """
        has_merges = not self.sha256 or CODES in self.sha256 or (self.path / CODES).exists()
        steps = [*self.steps(language), *(["bpe"] if has_merges else [])]
        apply = Pipeline(steps, language, self.path / CODES)
        return lambda line: apply(line).split()

    def decode(self, sentences: Sequence[Tokens], language: str = "") -> list[str]:
        """Raw text of the models' tokens, in the target language or another one of the two.

        Lower case stays so.
        """
        lines = remove_bpe([" ".join(tokens) for tokens in sentences])
        is_tokenized = any(step.startswith("tokenize") for step in self.steps(language))
        return detokenize(lines, language or self.target) if is_tokenized else lines

    def refuse_other_direction(self, model: Path, direction: Sequence[str | None]) -> None:
        """Raise a `UserError` if a model is known to translate between other languages, or back.

        With a joined dictionary nothing else tells them apart. A language that `CODES` does not
        have may have several names.
        """
        known, own = [x for x in direction if x], [self.source, self.target]
        if len(known) != 2:
            return
        is_reversed = known == own[::-1] and self.source != self.target
        theirs, ours = ([*map(short_code, languages)] for languages in (known, own))
        if is_reversed or (theirs != ours and {*theirs, *ours} <= CODES_OF_LANGUAGES.keys()):
            raise UserError(
                f"{model} translates from {known[0]} to {known[1]}, and {self.path} is prepared "
                f"for {self.source} to {self.target}: give the data folder that it was trained with"
            )

    def refuse_changed(self, known: Mapping[str, str], origin: str) -> None:
        """Raise a `UserError` if merges or a dictionary are not what they were.

        Args:
            known: their SHA-256 by name; other files, and missing ones, are passed over.
            origin: who says so, as the end of a sentence.
        """
        for path in vocabulary_files(self.path, self.source, self.target):
            expected = known.get(path.name)
            if expected and files.sha256(path) != expected:
                raise UserError(
                    f"{path} is not the file that it was, as {origin}: use the data folder that "
                    "the model was trained with"
                )


def read(path: Path) -> DataFolder:
    """What preprocessing.json in a data folder says; target_steps are source_steps by default.

    Raises:
        UserError: if it is missing or lacks something, or a file is not the one that it names.
    """
    description = path / NAME
    hint = f"it should hold a JSON object like {EXAMPLE}"
    if not description.is_file():
        if (path.parent / NAME).is_file():
            raise UserError(f"{description} is missing: give {path.parent}, the folder above")
        if not path.exists():
            raise UserError(f"{path}: no such folder")
        if not description.exists():
            raise UserError(
                f"{description} is missing: give the folder that the prepare stage of a recipe "
                f"made; or write the file, like {EXAMPLE}, next to data-bin/ and {CODES}"
            )
    get: Any = files.read_json(description, {}, hint).get
    source, target, steps = get("source"), get("target"), get("source_steps")
    target_steps, sha256 = get("target_steps", steps), get("sha256", {})
    tests = get("tests", [])
    if not (
        are_texts([source, target])
        and are_texts(tests)
        and are_texts(steps)
        and are_texts(target_steps)
        and is_mapping(sha256)
    ):
        raise UserError(f"{description} is not as expected: {hint}")
    if "bpe" in [*steps, *target_steps]:
        raise UserError(f"{description} names the step bpe, which follows all others: leave it out")
    for step in [*steps, *target_steps]:
        look_up(STEPS, step, "step", str(description))
    found = DataFolder(path, source, target, steps, target_steps, sha256, tests)
    found.refuse_changed(sha256, f"{description} says")
    return found


def are_texts(value: Any) -> bool:
    """Whether it is a list of texts."""
    return isinstance(value, list) and all(isinstance(x, str) for x in value)


def is_mapping(value: Any) -> bool:
    """Whether it is an object whose values are texts."""
    return isinstance(value, dict) and are_texts([*value.values()])


def write(
    path: Path, source: str, target: str, steps: Sequence[str], tests: Sequence[str] = ()
) -> None:
    """Describe a data folder in its preprocessing.json, once all else in it is there.

    Args:
        path: the folder.
        source: the language of the text that is translated.
        target: the other one.
        steps: keys of `tokenization.STEPS`, of both languages.
        tests: names of the test sets.

    Raises:
        UserError: if it cannot be written.
    """
    described = vocabulary_files(path, source, target)
    content = {
        "source": source,
        "target": target,
        "source_steps": list(steps),
        "target_steps": list(steps),
        "tests": list(tests),
        "fingerprint": fingerprint(path / "data-bin"),
        "sha256": {x.name: files.sha256(x) for x in described},
    }
    files.write(path / NAME, files.as_json(content))


def vocabulary_files(path: Path, source: str, target: str) -> list[Path]:
    """The files that turn text into token numbers, those that exist: merges and dictionaries."""
    names = f"dict.{source}.txt", f"dict.{target}.txt", "dict.txt"  # the last: a language model's
    found = [path / CODES, *(path / "data-bin" / name for name in dict.fromkeys(names))]
    return [file for file in found if file.is_file()]


def fingerprint(folder: Path) -> str:
    """A checksum of all that fairseq-preprocess wrote but its logs, whatever made it."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.is_file() and p.suffix != ".log"):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
