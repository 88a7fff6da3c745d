"""A training set of a teacher's translations: which are kept, and the data folder of it.

`distilling` makes the translations.
"""

import html
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary, indexed_dataset
from torch import Tensor

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.progress import bar
from macaron_fairseq.common.wording import counted
from macaron_fairseq.distillation.sequence_level.training_set import TrainingSet
from macaron_fairseq.text import data_folder
from macaron_fairseq.text.data_folder import CODES, Tokens
from macaron_fairseq.translation.parts import Parts
from macaron_fairseq.version import __version__

# Why a translation is dropped, in the order in which it is asked.
TOO_LONG, CUT, EMPTY, UNKNOWN, RATIO, COPIED = REASONS = (
    "source too long for the teacher",
    "cut at the maximum length",
    "empty",
    "with an unknown token",
    "lengths too different",
    "copied",
)
TEXTS = ("raw", "tokenized", "bpe")  # folders of the training text, in its three forms


@dataclass(frozen=True)
class Choice:
    """Which translations become training data.

    Attributes:
        best_of: of so many hypotheses the one with the highest sentence BLEU, if it can be one that
            was not cut and has no unknown token; 1: the teacher's best.
        mix: whether the original pairs come first, all of them.
        max_ratio: a pair is dropped if one side has more than so many times the other's tokens.
        max_copied: a pair is dropped if a larger share of the translation's words is in the source.
    """

    best_of: int = 1
    mix: bool = False
    max_ratio: float = 4.0
    max_copied: float = 0.5


@dataclass(frozen=True)
class Result:
    """What a distilled data folder holds.

    Attributes:
        sentences: of the source.
        kept: translations.
        dropped: how many for which of `REASONS`.
        pairs: in the new training set.
    """

    sentences: int
    kept: int
    dropped: dict[str, int]
    pairs: int

    def __str__(self) -> str:
        return (
            f"kept {self.kept:,} of {counted(self.sentences, 'translation')} "
            f"({said(self.dropped)}); {counted(self.pairs, 'pair')} to train on"
        )


def said(dropped: Mapping[str, int]) -> str:
    """How many are dropped for which reason: "dropped: empty 3, copied 1", or "none dropped"."""
    found = ", ".join(f"{name} {number:,}" for name, number in dropped.items() if number)
    return f"dropped: {found}" if found else "none dropped"


# --- Filters -------------------------------------------------------------------------------------


def reason_to_drop(source: Tokens, target: Tokens, choice: Choice, training: TrainingSet) -> str:
    """Which of `REASONS` there is to drop a pair of the training set; "" for none."""
    if not (source and target):
        return EMPTY
    if training.dictionaries[1].unk_word in target:
        return UNKNOWN
    short, long = sorted((len(source), len(target)))
    if long > choice.max_ratio * short:
        return RATIO
    words = [training.join(i, [" ".join(x)])[0] for i, x in enumerate((source, target))]
    return COPIED if copied(*words) > choice.max_copied else ""


def copied(source: str, target: str) -> float:
    """The share of a translation's words that stand in the source, whatever their case.

    Only words with a letter count; 0 if there is none. Ott et al. 2018 (arXiv 1803.00047) call a
    pair a copy from a half on, without punctuation and numbers.
    """
    ours, theirs = (
        # Moses escapes some marks.
        [word for word in text.casefold().split() if any(map(str.isalpha, html.unescape(word)))]
        for text in (target, source)
    )
    known = set(theirs)
    return sum(word in known for word in ours) / len(ours) if ours else 0.0


# --- The new data folder -------------------------------------------------------------------------


def described(teacher: str) -> list[dict[str, str]]:
    """The teacher's files and their hashes."""
    paths = map(Path, teacher.split(os.pathsep))
    return [{"name": path.name, "sha256": files.sha256(path)} for path in paths]


def made_from(training: TrainingSet, choice: Choice, about: Mapping[str, Any]) -> dict[str, Any]:
    """What a data folder tells of its making, before anything is counted."""
    of = {path.name: files.sha256(path) for path in training.files}
    return {**about, **asdict(choice), "of": of}


def stored(
    out: Path, training: TrainingSet, choice: Choice, about: Mapping[str, Any]
) -> Result | None:
    """What a data folder holds that was made whole of just this; None of any other folder."""
    if not (out / data_folder.NAME).is_file():
        return None
    hint = "remove the folder, and distill again"
    found = files.load_json(out / data_folder.NAME, hint).get("distilled", {})
    if any(found.get(x) != wanted for x, wanted in made_from(training, choice, about).items()):
        return None
    return Result(**{x.name: found[x.name] for x in fields(Result)})


def write(
    training: TrainingSet, work: Parts, out: Path, choice: Choice, about: Mapping[str, Any]
) -> Result:
    """Write the data folder of all parts' translations.

    Raises:
        UserError: if a part is missing or damaged, nothing is kept, or it cannot be written.
    """
    data = training.data
    # Only what belongs to it: a data folder may have become a place for other things.
    copied_files = [data.path / CODES, *data.path.glob("dict.*.txt")]
    copied_files += [x for x in (data.path / "data-bin").iterdir() if is_kept(x)]
    copied_files += [x for name in ("reference", "tokenized") for x in data.path.glob(f"{name}/*")]
    # No training text of an earlier distillation.
    copied_files = [x for x in copied_files if x.is_file() and x.stem != "train"]
    names = {x.relative_to(data.path).parts[0] for x in copied_files}
    with files.written_folder(out, {*names, *TEXTS, data_folder.NAME}) as partial:
        for path in copied_files:
            place = partial / path.relative_to(data.path)
            place.parent.mkdir(exist_ok=True)
            shutil.copy(path, place)
        result = write_pairs(training, work, partial, choice)
        content = files.load_json(data.path / data_folder.NAME, "make the data again")
        content = {
            "tests": [],
            **content,
            "fingerprint": data_folder.fingerprint(partial / "data-bin"),
            "distilled": {
                **made_from(training, choice, about),
                **asdict(result),
                "of_fingerprint": content.get("fingerprint"),
                "macaron_fairseq": __version__,
            },
        }
        files.write(partial / data_folder.NAME, files.as_json(content))
    return result


def is_kept(path: Path) -> bool:
    """Whether a file of data-bin is the new folder's, too: no training set, no log."""
    return path.suffix != ".log" and not path.name.startswith("train")


def write_pairs(training: TrainingSet, work: Parts, folder: Path, choice: Choice) -> Result:
    """Write the pairs, binarised and as text of three kinds, and count them."""
    data = training.data
    dropped = Counter(dict.fromkeys(REASONS, 0))
    kept, total = 0, (1 + choice.mix) * len(training)
    with Pairs(training, folder) as pairs, bar("writing", " pairs", total) as shown:
        if choice.mix:
            for lines in work.ranges():
                pairs.add([(training.tokens(0, i), training.tokens(1, i)) for i in lines])
                shown.update(len(lines))
        for lines, found in work.read():
            some = []
            for i, entry in zip(lines, read(found, work.path(lines)), strict=True):
                source, target = training.words(0, i), entry["target"].split()
                if entry["source"] != " ".join(source):
                    raise UserError(
                        f"{work.path(lines)} is not of sentence {i + 1} of {data.path}: remove it, "
                        "and run its shard again"
                    )
                if reason := entry.get("dropped") or reason_to_drop(
                    source, target, choice, training
                ):
                    dropped[reason] += 1
                else:
                    some.append((training.tokens(0, i), numbers(target, training.dictionaries[1])))
            pairs.add(some)
            kept += len(some)
            shown.update(len(lines))
    if not kept:
        raise UserError(
            f"no translation is kept ({said(dropped)}): look at --max-ratio and --max-copied, and "
            "at what the teacher translates"
        )
    return Result(len(training), kept, dict(dropped), pairs.number)


def read(lines: Sequence[str], path: Path) -> Iterator[dict[str, Any]]:
    """The entries of a part."""
    try:
        for line in lines:
            entry = json.loads(line)
            yield {**entry, "source": str(entry["source"]), "target": str(entry["target"])}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: remove it, and run its shard again") from error


def numbers(tokens: Tokens, dictionary: Dictionary) -> Tensor:
    """Token numbers of a sentence, its end included."""
    return torch.tensor([*map(dictionary.index, tokens), dictionary.eos()])


class Pairs:
    """A training set that is being written, binarised and as text: `TEXTS`."""

    def __init__(self, training: TrainingSet, folder: Path) -> None:
        """Begin it in a new data folder."""
        self.training, self.folder, self.number = training, folder, 0
        self.languages = (training.data.source, training.data.target)
        prefix = folder / "data-bin" / f"train.{training.pair}"
        self.paths = [f"{prefix}.{language}" for language in self.languages]

    def __enter__(self) -> "Pairs":
        self.builders = [
            indexed_dataset.make_builder(f"{path}.bin", "mmap", len(dictionary))
            for path, dictionary in zip(self.paths, self.training.dictionaries, strict=True)
        ]
        self.texts = {}
        for kind in TEXTS:
            (self.folder / kind).mkdir(exist_ok=True)
            for language in self.languages:
                path = self.folder / kind / f"train.{language}"
                self.texts[kind, language] = path.open("w", encoding="utf-8", newline="\n")
        return self

    def add(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Add pairs of token numbers."""
        self.number += len(pairs)
        for side, language in enumerate(self.languages):
            dictionary = self.training.dictionaries[side]
            sentences = []
            for pair in pairs:
                self.builders[side].add_item(pair[side])
                ids = pair[side].tolist()
                sentences.append([dictionary[x] for x in ids if x != dictionary.eos()])
            bpe = [" ".join(tokens) for tokens in sentences]
            forms = self.training.text(side, sentences), self.training.join(side, bpe), bpe
            for kind, lines in zip(TEXTS, forms, strict=True):
                self.texts[kind, language].writelines(line + "\n" for line in lines)

    def __exit__(self, *_: object) -> None:
        for file in self.texts.values():
            file.close()
        for builder, path in zip(self.builders, self.paths, strict=True):
            builder.finalize(f"{path}.idx")
