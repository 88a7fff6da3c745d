"""The binarised training set of a data folder (`text.data_folder`), sentence by sentence."""

import itertools
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq.data import data_utils
from torch import Tensor

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.wording import counted
from macaron_fairseq.model.loading import load_dictionary
from macaron_fairseq.text.data_folder import DataFolder, Tokens
from macaron_fairseq.text.marks import join_tokens, mark_of


class TrainingSet:
    """The binarised training set of a data folder, and its dictionaries."""

    def __init__(self, data: DataFolder) -> None:
        """Open it.

        Args:
            data: a data folder with the output of fairseq-preprocess.

        Raises:
            UserError: if it is of one language, has no training set, or the sides have different
                numbers of sentences.
        """
        if data.source == data.target:
            raise UserError(
                f"{data.path} is of one language: translations are for students that translate"
            )
        self.data = data
        languages = (data.source, data.target)
        folder = data.path / "data-bin"
        self.dictionaries = [load_dictionary(data.dictionary(x)) for x in languages]
        self.marks = [
            mark_of(x.symbols[x.nspecial :], x.count[x.nspecial :]) for x in self.dictionaries
        ]
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
        """The data sets of a language: train, and as fairseq names more of them train1, train2.

        Raises:
            UserError: if one is not what fairseq-preprocess wrote.
        """
        found: list[Any] = []
        name = f"train.{self.pair}.{language}"
        while (folder / f"{name}.idx").is_file():
            found.append(load(folder / name))
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

    def join(self, side: int, lines: Sequence[str]) -> list[str]:
        """Words of a side's tokens, both with spaces between."""
        return join_tokens(lines, self.marks[side])

    def text(self, side: int, sentences: Sequence[Tokens]) -> list[str]:
        """Raw text of a side's tokens."""
        words = self.join(side, [" ".join(tokens) for tokens in sentences])
        language = (self.data.source, self.data.target)[side]
        return self.data.decode([line.split() for line in words], language)

    def hashes(self) -> str:
        """What stands for its content."""
        return " ".join(map(files.sha256, self.files))


def load(path: Path) -> Any:
    """A data set, by its name without `.idx` and `.bin`.

    Raises:
        UserError: if a file is missing or damaged, or there is no sentence.
    """
    try:
        found = data_utils.load_indexed_dataset(str(path))
        if found is not None and len(found):
            found[len(found) - 1]  # which is not there if the file ends too early
            return found
    except KeyError as error:  # of `--dataset-impl lazy` and `cached`
        raise UserError(f"{path} is to be read in any order: binarise it anew") from error
    except (ValueError, AssertionError, OSError, struct.error):
        pass
    raise UserError(
        f"{path}.idx or .bin is missing, damaged or empty: run fairseq-preprocess again"
    )
