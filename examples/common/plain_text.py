"""Text of one language: documents, and which of them are held back from training.

Files are UTF-8, a sentence or a paragraph a line; empty lines are dropped. Text is read once and
never held in memory. Mistakes end the program with a sentence.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from common import extract
from common.parallel_text import written
from macaron_fairseq.common.progress import bar

EVERY = 200  # lines, of which one is for validation where no document is


def lines(paths: Sequence[Path], split_at: str) -> Iterator[tuple[str, str]]:
    """Each line that is not empty, with the name of its document.

    Args:
        paths: the files, which may be compressed.
        split_at: how a line begins that begins a document, whose name is the rest of the line. With
            "", and before the first such line, a file is one document, named as the file.
    """
    for path in paths:
        name = path.name
        for line in extract.lines_of(path):
            if split_at and line.startswith(split_at):
                name = line.removeprefix(split_at).strip()
            if line.strip():
                yield name, line.strip()


def divide(
    paths: Sequence[Path], split_at: str, held_out: Mapping[str, Sequence[str]], out: Path, end: str
) -> dict[str, Counter[str]]:
    """Write train and the sets that are held out as OUT/SET.END.

    A set without names of documents gets every 200th line of what is left for train.

    Args:
        paths: see `lines`.
        split_at: see `lines`.
        held_out: the names of the documents of each set.
        out: a folder.
        end: of the files' names.

    Returns:
        of each set how many lines it has of each document.
    """
    sets = ["train", *held_out]
    where = {name: key for key, names in held_out.items() for name in names}
    if twice := [name for name in where if sum(name in x for x in held_out.values()) > 1]:
        sys.exit(f"{twice[0]} is to be held out twice: name it once")
    drawn = [key for key, names in held_out.items() if not names]
    found: dict[str, Counter[str]] = {key: Counter() for key in sets}
    titles: dict[str, None] = {}
    number = 0
    with written(*(out / f"{key}.{end}" for key in sets)) as opened:
        files = dict(zip(sets, opened, strict=True))
        content = lines(paths, split_at)
        for name, line in bar("reading", " lines", items=content, leave=False):
            titles[name] = None
            key = where.get(name, "train")
            if key == "train" and drawn:
                number += 1
                if 0 < number % EVERY <= len(drawn) and number > EVERY:
                    key = drawn[number % EVERY - 1]
            found[key][name] += 1
            files[key].write(line + "\n")
        refuse_unknown(where, titles, split_at)
        for key, counts in found.items():
            if not counts:
                sys.exit(f"no text is left for {key}: give more text, or name other documents")
    return found


def refuse_unknown(names: Iterable[str], titles: Iterable[str], split_at: str) -> None:
    """End the program at a name that no document has; `split_at`: see `lines`."""
    known = list(titles)
    for name in names:
        if name not in known:
            if split_at and len(known) == 1:
                sys.exit(f"there is no document {name}, since no line begins with '{split_at}'")
            near = get_close_matches(name, known, 3, 0.4) or known[:3]
            sys.exit(
                f"there is no document {name}: {len(known)} are there, such as " + ", ".join(near)
            )
