"""Sequence-level distillation: a new training set whose targets are a teacher's translations.

Kim & Rush 2016 (arXiv 1606.07947), section 3.2: the student learns from the mode of the teacher's
distribution, which beam search approximates. Section 3.3, `Choice.best_of`: of the beam the
translation that is most similar to the reference, by sentence BLEU.

The teacher translates the binarised training set of a data folder (`text.data_folder`), part by
part (`translation.parts`). Then a new data folder is written, which fairseq-train and the recipes
take like any other.

Import `macaron_fairseq.plugin` first, which makes fairseq know the models.
"""

import html
import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary, data_utils, indexed_dataset
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from sacrebleu.metrics import BLEU
from torch import Tensor

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.wording import counted
from macaron_fairseq.distillation import teachers
from macaron_fairseq.evaluation import metrics
from macaron_fairseq.text import data_folder
from macaron_fairseq.text.data_folder import CODES, DataFolder, Tokens
from macaron_fairseq.text.tokenization import remove_bpe
from macaron_fairseq.translation import parts, translator
from macaron_fairseq.translation.fairseq_engine import FairseqEngine, load_dictionary
from macaron_fairseq.translation.parts import Parts, Shard
from macaron_fairseq.translation.translator import Search
from macaron_fairseq.version import __version__

# Why a translation is dropped, in the order in which it is asked.
TOO_LONG, CUT, EMPTY, RATIO, COPIED = REASONS = (
    "source too long for the teacher",
    "cut at the maximum length",
    "empty",
    "lengths too different",
    "copied",
)
TEXTS = ("raw", "tokenized", "bpe")  # folders of the training text, in its three forms


@dataclass(frozen=True)
class Choice:
    """Which translations become training data.

    Attributes:
        best_of: of so many hypotheses the one with the highest sentence BLEU; 1: the teacher's
            best.
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
    """How many are dropped for which reason, in words."""
    found = ", ".join(f"{name} {number:,}" for name, number in dropped.items() if number)
    return f"dropped: {found}" if found else "none dropped"


# --- The training set ----------------------------------------------------------------------------


class TrainingSet:
    """The binarised training set of a data folder, and its dictionaries."""

    def __init__(self, data: DataFolder) -> None:
        """Open it.

        Args:
            data: a data folder with the output of fairseq-preprocess.

        Raises:
            UserError: if it has no training set, or the sides have different numbers of sentences.
        """
        self.data = data
        languages = (data.source, data.target)
        folder = data.path / "data-bin"
        self.dictionaries = [load_dictionary(data.dictionary(x)) for x in languages]
        self.pair = next(
            (
                pair
                for pair in ("-".join(languages), "-".join(languages[::-1]))
                if (folder / f"train.{pair}.{data.source}.idx").is_file()
            ),
            "",
        )
        if not self.pair:
            raise UserError(
                f"{folder} holds no training set from {data.source} to {data.target}: give a "
                "folder that the stage prepare of a recipe made"
            )
        self.files: list[Path] = []
        self.sides = [self.opened(folder, x) for x in languages]
        counts = [sum(map(len, side)) for side in self.sides]
        if counts[0] != counts[1]:
            raise UserError(
                f"{folder} has {counted(counts[0], 'sentence')} of {data.source} and {counts[1]} "
                f"of {data.target}: run fairseq-preprocess again"
            )
        self.starts = [*itertools.accumulate(map(len, self.sides[0]), initial=0)]

    def opened(self, folder: Path, language: str) -> list[Any]:
        """The data sets of a language: train, and as fairseq names more of them train1, train2."""
        found: list[Any] = []
        name = f"train.{self.pair}.{language}"
        while (folder / f"{name}.idx").is_file():
            found.append(data_utils.load_indexed_dataset(str(folder / name)))
            self.files += [folder / f"{name}.idx", folder / f"{name}.bin"]
            name = f"train{len(found)}.{self.pair}.{language}"
        return found

    def __len__(self) -> int:
        return self.starts[-1]

    def tokens(self, side: int, i: int) -> Tensor:
        """Token numbers of sentence i of the source (0) or the target (1), its end included."""
        k = next(k for k, start in enumerate(self.starts[1:]) if i < start)
        return self.sides[side][k][i - self.starts[k]]

    def words(self, side: int, i: int) -> Tokens:
        """The same as text, without the end."""
        dictionary = self.dictionaries[side]
        return [dictionary[x] for x in self.tokens(side, i).tolist() if x != dictionary.eos()]

    def hashes(self) -> str:
        """What stands for its content."""
        return " ".join(map(files.sha256, self.files))


def refuse_other_teacher(path: str, training: TrainingSet) -> None:
    """Raise a `UserError` if a teacher is missing, or is of another direction or dictionaries."""
    translator.refuse_missing(path, "checkpoint")
    data = training.data
    config = TranslationConfig(
        data=str(data.path / "data-bin"), source_lang=data.source, target_lang=data.target
    )
    task = TranslationTask(config, *training.dictionaries)
    for name in path.split(os.pathsep):
        teachers.refuse_other_training(Path(name), task)


# --- Translating ---------------------------------------------------------------------------------


def distill(
    teacher: str,
    data: DataFolder,
    out: Path,
    search: Search,
    choice: Choice,
    load: Callable[[], FairseqEngine],
    *,
    shard: Shard | None = None,
    join: bool = False,
    batch_lines: int = 2000,
    max_tokens: int = 4096,
    batch_size: int = 128,
    precision: str = "fp32",
) -> Result | str:
    """Translate a training set, or what is left of it, and write a data folder of the translations.

    Args:
        teacher: checkpoints with ":" between them.
        data: the data folder that they were trained with.
        out: the new folder. OUT.parts holds what is done until then.
        search: how to search.
        choice: which translations to keep.
        load: loads the teacher; it is called if there is something to translate.
        shard: translate this job's share alone, and write no folder.
        join: translate nothing; all parts must be there.
        batch_lines: sentences of a part, which are sorted by length.
        max_tokens: see `translator.batches`.
        batch_size: see `translator.batches`.
        precision: in which the teacher computes.

    Returns:
        what the folder holds; of a shard, how far it is.

    Raises:
        UserError: if the folder is there, something does not fit the teacher, parts were made with
            other settings, or with `join` one is missing.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"{out} is there already: choose another name, or remove it")
    if choice.best_of > search.beam:
        raise UserError(
            f"--best-of {choice.best_of} needs as many hypotheses: give --beam {choice.best_of}"
        )
    training = TrainingSet(data)
    refuse_other_teacher(teacher, training)
    settings = {
        **parts.settings_of(teacher, data, search),
        "training set": training.hashes(),
        "best of": choice.best_of,
        "precision": precision,
        "batches": f"{batch_lines} {max_tokens} {batch_size}",
    }
    work = Parts(parts.folder_of(out), settings, len(training), batch_lines)
    work.refuse_others()
    mine = shard or Shard()
    if not join and work.left(mine):
        translate(training, work, mine, load(), choice.best_of, max_tokens, batch_size)
    if shard:
        return work.said(shard)
    result = write(training, work, out, choice, {"teacher": described(teacher), **asdict(search)})
    work.remove()
    return result


def translate(
    training: TrainingSet,
    work: Parts,
    shard: Shard,
    engine: FairseqEngine,
    best_of: int,
    max_tokens: int,
    batch_size: int,
) -> None:
    """Translate the parts of a shard that are not done; a line of a part is a JSON object."""
    metric = metrics.sentence_bleu(training.data.target) if best_of > 1 else None

    def block(before: int, sources: Sequence[Tokens]) -> list[str]:
        entries: list[dict[str, Any]] = [{"source": " ".join(x), "target": ""} for x in sources]
        fits = [0 if len(x) > engine.max_length else len(x) for x in sources]
        for entry, length, source in zip(entries, fits, sources, strict=True):
            if length < len(source):
                entry["dropped"] = TOO_LONG
        todo = list(translator.batches(fits, max_tokens, batch_size))
        done = engine.translate_n_best([[sources[i] for i in some] for some in todo], best_of)
        for some, found in zip(todo, done, strict=True):
            longest = engine.longest([sources[i] for i in some])
            for i, hypotheses in zip(some, found, strict=True):
                best = hypotheses[0]
                if metric:
                    reference = training.words(1, before + i)
                    rank, bleu = most_similar(metric, hypotheses, reference, training.data)
                    best = hypotheses[rank]
                    entries[i] |= {"rank": rank + 1, "bleu": round(bleu, 2)}
                entries[i]["target"] = " ".join(best)
                if len(best) >= longest:
                    entries[i]["dropped"] = CUT
        return [json.dumps(entry, ensure_ascii=False) for entry in entries]

    title = f"shard {shard}" if shard.count > 1 else "translating"
    work.fill(lambda lines: [training.words(0, i) for i in lines], block, shard, title)


def most_similar(
    metric: BLEU, hypotheses: Sequence[Tokens], reference: Tokens, data: DataFolder
) -> tuple[int, float]:
    """Which hypothesis has the highest sentence BLEU, the first of equal ones, and that BLEU.

    Both are compared as detokenised text.
    """
    *texts, of_reference = data.decode([*hypotheses, reference])
    scores = [metric.sentence_score(text, [of_reference]).score for text in texts]
    best = max(range(len(scores)), key=scores.__getitem__)
    return best, scores[best]


# --- Filters -------------------------------------------------------------------------------------


def reason_to_drop(source: Tokens, target: Tokens, choice: Choice) -> str:
    """Which of `REASONS` there is to drop a pair; "" for none."""
    if not (source and target):
        return EMPTY
    short, long = sorted((len(source), len(target)))
    if long > choice.max_ratio * short:
        return RATIO
    return COPIED if copied(source, target) > choice.max_copied else ""


def copied(source: Tokens, target: Tokens) -> float:
    """The share of a translation's words that stand in the source, whatever their case.

    Only words with a letter count; 0 if there is none. Ott et al. 2018 (arXiv 1803.00047) call a
    pair a copy from a half on, without punctuation and numbers.
    """
    ours, theirs = (
        [word for word in line.casefold().split() if any(map(str.isalpha, html.unescape(word)))]
        for line in remove_bpe([" ".join(target), " ".join(source)])  # Moses escapes some marks
    )
    known = set(theirs)
    return sum(word in known for word in ours) / len(ours) if ours else 0.0


# --- The new data folder -------------------------------------------------------------------------


def described(teacher: str) -> list[dict[str, str]]:
    """The teacher's files and their hashes."""
    paths = map(Path, teacher.split(os.pathsep))
    return [{"name": path.name, "sha256": files.sha256(path)} for path in paths]


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
        content = files.load_json(data.path / data_folder.NAME, "")
        content = {
            "tests": [],
            **content,
            "fingerprint": data_folder.fingerprint(partial / "data-bin"),
            "distilled": {
                **about,
                **asdict(choice),
                **asdict(result),
                "of": {path.name: files.sha256(path) for path in training.files},
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
    kept = 0
    with Pairs(training, folder) as pairs:
        if choice.mix:
            for lines in work.ranges():
                pairs.add([(training.tokens(0, i), training.tokens(1, i)) for i in lines])
        for lines, found in work.read():
            some = []
            for i, entry in zip(lines, read(found, work.path(lines)), strict=True):
                source, target = training.words(0, i), entry["target"].split()
                if entry["source"] != " ".join(source):
                    raise UserError(
                        f"{work.path(lines)} is not of sentence {i + 1} of {data.path}: remove it, "
                        "and run its shard again"
                    )
                if reason := entry.get("dropped") or reason_to_drop(source, target, choice):
                    dropped[reason] += 1
                else:
                    some.append((training.tokens(0, i), numbers(target, training.dictionaries[1])))
            pairs.add(some)
            kept += len(some)
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
            decoded = self.training.data.decode(sentences, language)
            for kind, lines in zip(TEXTS, (decoded, remove_bpe(bpe), bpe), strict=True):
                self.texts[kind, language].writelines(line + "\n" for line in lines)

    def __exit__(self, *_: object) -> None:
        for file in self.texts.values():
            file.close()
        for builder, path in zip(self.builders, self.paths, strict=True):
            builder.finalize(f"{path}.idx")
