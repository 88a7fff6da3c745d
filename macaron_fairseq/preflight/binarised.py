"""Files of fairseq-preprocess that were cut short, by a full disk or an interrupted copy.

fairseq does not check their sizes. It ends in a traceback; of a `.bin`, at the first sentence that
is missing. This can go when `test_fairseq_does_not_notice_a_truncated_file_before_it_needs_it`
fails.
"""

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from fairseq.data.indexed_dataset import MMapIndexedDataset, _code_to_dtype

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.preflight import command_line

# An index: magic, version, the tokens' type, how many sentences, their sizes, where each begins.
MAGIC = MMapIndexedDataset.Index._HDR_MAGIC
HEAD = np.dtype([("magic", "V9"), ("version", "<u8"), ("type", "u1"), ("sentences", "<u8")])
SIZE, PLACE = np.dtype("<i4"), np.dtype("<i8")


def refuse_truncated_folders(words: Sequence[str], *subsets: str) -> None:
    """Check the data folders, which are among the words that are no flags."""
    names = {name for subset in subsets for name in subset.split(",")}
    for word in words:
        for folder in word.split(os.pathsep):
            if not files.is_remote(word) and command_line.is_folder(folder):
                refuse_truncated(Path(folder), names)


def refuse_truncated(folder: Path, subsets: Collection[str]) -> None:
    """Check the files of subsets such as "train", and of "train1", which fairseq may add to it.

    Sentences with labels lie in separate folders, such as input0 and label.

    Raises:
        UserError: naming a file that is too short, or cannot be read.
    """
    names = re.compile(rf"({'|'.join(map(re.escape, subsets))})\d*\..*")
    indices = (index for x in ("*.idx", "input*/*.idx", "label/*.idx") for index in folder.glob(x))
    for index in sorted(indices):
        if names.fullmatch(index.name):
            tokens = index.with_suffix(".bin")
            for file, expected in zip((index, tokens), expected_sizes(index), strict=False):
                if file.is_file() and file.stat().st_size < expected:
                    raise UserError(
                        f"{file} is truncated: it has {file.stat().st_size} bytes instead of "
                        f"{expected}, so copy it again or run fairseq-preprocess again"
                    )


def is_binarised(path: Path) -> bool:
    """Whether a set is binarised, in the format that fairseq-preprocess writes today.

    Args:
        path: of its files, without .bin and .idx.
    """
    if not MMapIndexedDataset.exists(str(path)):
        return False
    with Path(f"{path}.idx").open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def expected_sizes(index: Path) -> list[int]:
    """How many bytes an index and its tokens must have, as far as that is known."""
    try:
        content = np.memmap(index, mode="r") if index.stat().st_size else np.zeros(0, np.uint8)
    except OSError as error:
        raise UserError(f"cannot read {index}: {error.strerror}") from error
    if len(content) < HEAD.itemsize:
        return [HEAD.itemsize]
    head = content[: HEAD.itemsize].view(HEAD)[0]
    if head["magic"].tobytes() != MAGIC:  # another format
        return []
    n = int(head["sentences"])
    end_of_sizes = HEAD.itemsize + n * SIZE.itemsize
    end = end_of_sizes + n * PLACE.itemsize
    token_type = _code_to_dtype.get(int(head["type"]))
    if len(content) < end or not n or token_type is None:
        return [end]
    size = content[end_of_sizes - SIZE.itemsize : end_of_sizes].view(SIZE)[0]
    place = content[end - PLACE.itemsize : end].view(PLACE)[0]
    return [end, int(place) + int(size) * np.dtype(token_type).itemsize]
