"""Data folders to measure with: a synthetic one, or some sentences of a test set.

Both look as the recipes' prepare stage leaves them, with data-bin/, preprocessing.json, code and
reference/.
"""

import argparse
import json
import random
import shutil
import string
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary, data_utils
from fairseq.data.indexed_dataset import MMapIndexedDataset, make_builder

from macaron_fairseq.common import files, text_lines
from macaron_fairseq.common.errors import UserError

LETTERS = string.ascii_lowercase + string.digits  # a word is three of them
LANGUAGES = ("en", "de")
SYNTHETIC_LENGTHS = 6, 24  # tokens; 15 on average, as in Multi30k


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what data to measure with."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--data", type=Path, help="what a recipe's prepare stage or fairseq-preprocess wrote"
    )
    where.add_argument(
        "--synthetic",
        action="store_true",
        help="random sentences of {} to {} tokens instead".format(*SYNTHETIC_LENGTHS),
    )


def data_bin(data: Path) -> Path:
    """The folder of fairseq-preprocess: `data` itself, or data-bin in what a recipe prepared.

    Raises:
        UserError: if it is neither.
    """
    for folder in (data / "data-bin", data):
        if any(folder.glob("dict*.txt")):
            return folder
    raise UserError(
        f"{data} holds no dictionary: give the folder that a recipe's prepare stage or "
        "fairseq-preprocess wrote, or --synthetic"
    )


def shares_dictionary(folder: Path) -> bool:
    """Whether both languages of a data-bin have one dictionary."""
    return len({path.read_bytes() for path in folder.glob("dict.*.txt")}) == 1


def about(data: Path) -> dict[str, Any]:
    """What tells the data of a benchmark from other data."""
    types = {
        path.name.removesuffix(".txt").partition(".")[2]: len(Dictionary.load(str(path)))
        for path in sorted(data_bin(data).glob("dict*.txt"))
    }
    path = data_bin(data).parent / "preprocessing.json"
    fingerprint = json.loads(path.read_text("utf-8")).get("fingerprint") if path.is_file() else None
    return {"types": types, "fingerprint": fingerprint}


def write_synthetic(
    data: Path, types: int, lengths: tuple[int, int], train: int, test: int, seed: int = 1
) -> None:
    """Write a data folder whose sentences are random words, all equally frequent.

    Args:
        data: the folder to make.
        types: of the one dictionary, fairseq's four symbols included: at most 46,660.
        lengths: the least and the most tokens of a sentence, its end included; all in between
            are equally frequent, and a target is as long as its source.
        train: sentences of the set train.
        test: sentences of the set test.
        seed: of the random numbers.

    Raises:
        UserError: if that many types cannot be made.
    """
    dictionary = synthetic_dictionary(types)
    folder = data / "data-bin"
    folder.mkdir(parents=True)
    for language in LANGUAGES:
        dictionary.save(str(folder / f"dict.{language}.txt"))
    rng = random.Random(seed)
    for name, sentences in (("train", train), ("test", test)):
        sizes = [rng.randint(*lengths) for _ in range(sentences)]
        for language in LANGUAGES:
            numbers = [[*rng.choices(range(4, types), k=size - 1), 2] for size in sizes]
            write_items(
                folder / f"{name}.{'-'.join(LANGUAGES)}.{language}",
                types,
                map(torch.tensor, numbers),
            )
            if (name, language) == ("test", LANGUAGES[0]):
                text = (" ".join(word(n - 4) for n in line[:-1]) for line in numbers)
                files.write_lines(data / "reference" / f"test.{language}", text)
    steps = {"source_steps": [], "target_steps": [], "tests": ["test"]}
    languages = dict(zip(("source", "target"), LANGUAGES, strict=True))
    files.write(data / "preprocessing.json", json.dumps({**languages, **steps}) + "\n")
    # Every word is one merge of its first two letters, and one of these with the third.
    words = [word(i) for i in range(types - 4)]
    pairs = dict.fromkeys(f"{w[0]} {w[1]}" for w in words)
    merges = ["#version: 0.2", *pairs, *(f"{w[:2]} {w[2]}</w>" for w in words)]
    files.write_lines(data / "code", merges)


def write_synthetic_text(data: Path, types: int, tokens: int, seed: int = 1) -> None:
    """Write a data folder for language models: lines of 32 random words, all equally frequent.

    Args:
        data: the folder to make.
        types: of the dictionary, fairseq's four symbols included: at most 46,660.
        tokens: of the set train, at least.
        seed: of the random numbers.

    Raises:
        UserError: if that many types cannot be made.
    """
    folder = data / "data-bin"
    folder.mkdir(parents=True)
    synthetic_dictionary(types).save(str(folder / "dict.txt"))
    numbers = torch.Generator().manual_seed(seed)
    lines = torch.randint(4, types, (tokens // 32 + 1, 32), generator=numbers, dtype=torch.int)
    lines[:, -1] = 2
    write_items(folder / "train", types, lines)


def synthetic_dictionary(types: int) -> Dictionary:
    """A dictionary of that many types, fairseq's four symbols included.

    Raises:
        UserError: if that many types cannot be made.
    """
    if not 4 < types <= 4 + len(LETTERS) ** 3:
        raise UserError(f"a vocabulary of {types} types: choose 5 to {4 + len(LETTERS) ** 3}")
    dictionary = Dictionary()
    for i in range(types - len(dictionary)):
        dictionary.add_symbol(word(i))
    return dictionary


def word(number: int) -> str:
    """The word of that number."""
    base = len(LETTERS)
    digits = number // base**2, number // base % base, number % base
    return "".join(LETTERS[digit] for digit in digits)


def write_items(path: Path, types: int, sentences: Iterable[torch.Tensor]) -> None:
    """Write sentences to PATH.bin and PATH.idx as fairseq-preprocess does."""
    builder = make_builder(f"{path}.bin", "mmap", types)
    for sentence in sentences:
        builder.add_item(sentence)
    builder.finalize(f"{path}.idx")


def sample(source: Path, subset: str, sentences: int | None, data: Path) -> int:
    """Write a data folder whose test set is every n-th sentence of another's.

    Raw text, merges and preprocessing.json go along where `source` is what a recipe prepared.

    Args:
        source: the other data folder.
        subset: its set, as fairseq calls it: test, test1, ...
        sentences: how many; None, or more than there are: all.
        data: the folder to make.

    Returns:
        The number of sentences.

    Raises:
        UserError: if there is no such set.
    """
    old, new = data_bin(source), data / "data-bin"
    pair = data_utils.infer_language_pair(str(old))
    stems = {language: old / f"{subset}.{'-'.join(map(str, pair))}.{language}" for language in pair}
    if not all(Path(f"{stem}.idx").is_file() for stem in stems.values()):
        there = ", ".join(sorted({path.name.partition(".")[0] for path in old.glob("*.idx")}))
        raise UserError(f"{old} holds no set '{subset}'; there are: {there or 'none'}")
    new.mkdir(parents=True)
    indices: list[int] = []
    for language, stem in stems.items():
        dictionary = shutil.copy(old / f"dict.{language}.txt", new)
        whole = MMapIndexedDataset(str(stem))
        count = min(sentences or len(whole), len(whole))
        indices = [i * len(whole) // count for i in range(count)]
        types = len(Dictionary.load(dictionary))
        write_items(new / f"test.{'-'.join(pair)}.{language}", types, (whole[i] for i in indices))
    preprocessing = old.parent / "preprocessing.json"
    if subset.startswith("test") and preprocessing.is_file():
        shutil.copy(preprocessing, data)
        shutil.copy(old.parent / "code", data)
        tests = files.read_json(preprocessing, {"tests": list}, "prepare the data again")["tests"]
        name = tests[int(subset.removeprefix("test") or 0)]
        lines = list(text_lines.read_lines(old.parent / "reference" / f"{name}.{pair[0]}"))
        files.write_lines(data / "reference" / f"test.{pair[0]}", (lines[i] for i in indices))
    return len(indices)
