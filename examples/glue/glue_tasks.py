"""The tasks of GLUE, and how their files are read: as the official baselines' code reads them.

A line is split at tabs. Quotes are characters as others. A line of train or dev with too few
columns, no label or an empty sentence is left out, and the recipe says so. In a test file it is a
mistake, since the server wants an answer for each line. So it is where no line is whole. A label
that is none is one everywhere.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common import extract

# --- The tasks -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """A file of a task."""

    name: str
    examples: int  # that it should have
    columns: tuple[str, ...] = ()  # where the file does not name them


@dataclass(frozen=True)
class Task:
    """A task of GLUE."""

    name: str
    sentences: tuple[str, ...]  # columns
    label: str  # the column
    labels: tuple[str, ...]  # in the order of the classes; (): a number, from 0 to 5
    metrics: tuple[str, ...]
    train: Split
    dev: tuple[Split, ...]
    test: tuple[Split, ...]
    answers: tuple[str, ...]  # what the server calls the files of the test sets
    index: str = "index"  # the column of a test file

    @property
    def is_regression(self) -> bool:
        """Whether the label is a number."""
        return not self.labels

    @property
    def outputs(self) -> int:
        """Of the model's head."""
        return len(self.labels) or 1


def usual(
    name: str,
    sentences: tuple[str, ...],
    labels: tuple[str, ...],
    sizes: tuple[int, int, int],
    metrics: tuple[str, ...] = ("accuracy",),
    label: str = "label",
    index: str = "index",
) -> Task:
    """A task with train.tsv, dev.tsv and test.tsv."""
    train, dev, test = (
        Split(split, size) for split, size in zip(("train", "dev", "test"), sizes, strict=True)
    )
    return Task(name, sentences, label, labels, metrics, train, (dev,), (test,), (name,), index)


PAIR = ("sentence1", "sentence2")
ENTAILMENT = ("not_entailment", "entailment")
NO_YES = ("0", "1")
COLA = ("source", "label", "star", "sentence")

TASKS = {
    task.name: task
    for task in (
        Task(
            name="CoLA",
            sentences=("sentence",),
            label="label",
            labels=NO_YES,
            metrics=("Matthews",),
            train=Split("train", 8551, COLA),
            dev=(Split("dev", 1043, COLA),),
            test=(Split("test", 1063),),
            answers=("CoLA",),
        ),
        usual("SST-2", ("sentence",), NO_YES, (67349, 872, 1821)),
        usual(
            "MRPC",
            ("#1 String", "#2 String"),
            NO_YES,
            (3668, 408, 1725),
            ("F1", "accuracy"),
            label="Quality",
        ),
        usual("STS-B", PAIR, (), (5749, 1500, 1379), ("Pearson", "Spearman"), label="score"),
        usual(
            "QQP",
            ("question1", "question2"),
            NO_YES,
            (363846, 40430, 390965),
            ("F1", "accuracy"),
            label="is_duplicate",
            index="id",
        ),
        Task(
            name="MNLI",
            sentences=PAIR,
            label="gold_label",
            labels=("contradiction", "neutral", "entailment"),
            metrics=("matched", "mismatched"),
            train=Split("train", 392702),
            dev=(Split("dev_matched", 9815), Split("dev_mismatched", 9832)),
            test=(Split("test_matched", 9796), Split("test_mismatched", 9847)),
            answers=("MNLI-m", "MNLI-mm"),
        ),
        usual("QNLI", ("question", "sentence"), ENTAILMENT, (104743, 5463, 5463)),
        usual("RTE", PAIR, ENTAILMENT, (2490, 277, 3000)),
        usual("WNLI", PAIR, NO_YES, (635, 71, 146)),
    )
}
# The diagnostic set, which a model of MNLI answers.
DIAGNOSTIC = Split("diagnostic", 1104)
AX = "AX"

# --- Their files ---------------------------------------------------------------------------------


@dataclass
class Examples:
    """What a file holds."""

    sentences: list[tuple[str, ...]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)  # none of a test file
    indices: list[int] = field(default_factory=list)  # of a test file
    broken: list[int] = field(default_factory=list)  # numbers of lines that were left out


Row = tuple[int, list[str]]


def find(folder: Path, name: str) -> Path | None:
    """A file, compressed or not."""
    return next((path for x in ("", ".gz") if (path := folder / f"{name}{x}").is_file()), None)


def need(folder: Path, name: str) -> Path:
    """The same; ends the program where it is missing."""
    path = find(folder, name)
    if not path:
        sys.exit(f"{folder} has no {name}: --glue names the folder of GLUE's own files")
    return path


def rows(path: Path) -> Iterator[Row]:
    """The columns of each line, with its number, from 1."""
    for number, line in enumerate(extract.lines_of(path), 1):
        yield number, line.strip().split("\t")


def positions(path: Path, found: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Where columns are; ends the program at one that is missing."""
    for name in wanted:
        if name not in found:
            sys.exit(f"{path}, line 1 names no column '{name}'; it names {', '.join(found)}")
    return [list(found).index(name) for name in wanted]


def read(task: Task, path: Path, columns: Sequence[str] = ()) -> Examples:
    """The examples of a file with labels.

    Args:
        task: whose file it is.
        path: the file.
        columns: what they are called; (): the first line says it.

    Ends the program at a column that is missing and at a label that is none.
    """
    content = rows(path)
    names = columns or next(content, (1, [""]))[1]
    return labelled(task, path, content, names)


def labelled(task: Task, path: Path, content: Iterator[Row], names: Sequence[str]) -> Examples:
    """The examples in rows with labels; ends the program at the first row where all are broken."""
    found, first = Examples(), list[str]()
    places = positions(path, names, [*task.sentences, task.label])
    for number, row in content:
        cells = [row[place] for place in places if place < len(row)]
        *sentences, label = cells or [""]
        if len(cells) < len(places) or not all(map(str.strip, cells)):
            first = first or row
            found.broken.append(number)
            continue
        check_label(task, path, number, label)
        found.sentences.append(tuple(sentences))
        found.labels.append(label)
    if found.broken and not found.sentences:
        lack = what_lacks(names, places, first)
        sys.exit(f"{path}, line {found.broken[0]} {lack}, and no other line is whole")
    return found


def what_lacks(names: Sequence[str], places: Sequence[int], row: Sequence[str]) -> str:
    """What a broken row lacks of the columns that are read, in words.

    Args:
        names: of all columns.
        places: of those that are read.
        row: what stands in the columns.
    """
    if len(row) <= max(places):
        return f"has {len(row)} of the {len(names)} columns {', '.join(names)}"
    return "has no " + next(names[place] for place in places if not row[place].strip())


def check_label(task: Task, path: Path, number: int, label: str) -> None:
    """End the program at a label that the task does not have."""
    if task.labels:
        if label not in task.labels:
            sys.exit(
                f"{path}, line {number} has the label '{label}': {task.name} has "
                f"{', '.join(task.labels)}"
            )
        return
    try:
        value = float(label)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 5:
        sys.exit(f"{path}, line {number} has the score '{label}': it should be from 0 to 5")


def read_test(task: Task, path: Path) -> Examples:
    """The examples of a file without labels; ends the program at a line that is broken."""
    found, content, lines = Examples(), rows(path), dict[str, int]()
    places = positions(path, next(content, (1, [""]))[1], [*task.sentences, task.index])
    for number, row in content:
        cells = [row[place] for place in places if place < len(row)]
        *sentences, index = cells or [""]
        if len(cells) < len(places) or not all(map(str.strip, cells)):
            sys.exit(f"{path}, line {number} lacks a column or a sentence, and must be answered")
        if not index.isdecimal():
            sys.exit(f"{path}, line {number} has the {task.index} '{index}', which is not a number")
        if before := lines.get(index):
            sys.exit(f"{path}, line {number} has the {task.index} '{index}' of line {before}")
        lines[index] = number
        found.sentences.append(tuple(sentences))
        found.indices.append(int(index))
    return found


def load(
    task: Task, folder: Path, is_usual: bool, say: Callable[[str], None]
) -> dict[str, Examples]:
    """All examples of a task, by the name of the split, and those of the diagnostic set.

    Args:
        task: the task.
        folder: of --glue.
        is_usual: whether there must be as many examples as GLUE has.
        say: is told of lines that are left out.

    Ends the program with a sentence that names the file, and the line, that is not right.
    """
    own = folder / task.name
    if not own.is_dir():
        sys.exit(f"{folder} has no folder {task.name}: leave it out with --tasks, or fetch it")
    is_original = task.name == "MRPC" and not find(own, "train.tsv")
    if is_original and find(own, "msr_paraphrase_train.txt"):
        found = of_microsoft(task, own)
    else:
        found = {
            split.name: read(task, need(own, f"{split.name}.tsv"), split.columns)
            for split in (task.train, *task.dev)
        }
        for split in task.test:
            found[split.name] = read_test(task, need(own, f"{split.name}.tsv"))
    splits = [task.train, *task.dev, *task.test]
    diagnostic = find(folder / "diagnostic", "diagnostic.tsv")
    if task.name == "MNLI" and diagnostic:
        found[DIAGNOSTIC.name] = read_test(task, diagnostic)
        splits.append(DIAGNOSTIC)
    for split in splits:
        check(task, split, found[split.name], is_usual, say)
    return found


def check(
    task: Task, split: Split, found: Examples, is_usual: bool, say: Callable[[str], None]
) -> None:
    """Tell what was left out; end the program where there are not as many examples as in GLUE.

    Copies of GLUE go round in which train lacks a line: one in a thousand is let pass there.
    """
    name, number = f"{task.name}, {split.name}", len(found.sentences)
    if found.broken:
        lines = ", ".join(map(str, found.broken[:10])) + ", ..." * (len(found.broken) > 10)
        say(
            f"notice: {name}: left out, as the official reader does: line {lines}, which lacks a "
            "column, a sentence or the label"
        )
    if not number:
        sys.exit(f"{name} holds no example")
    if not is_usual or number == split.examples:
        return
    if split == task.train and abs(number - split.examples) * 1000 <= split.examples:
        say(f"notice: {name} holds {number} examples, and GLUE has {split.examples}")
        return
    sys.exit(
        f"{name} holds {number} examples, and GLUE has {split.examples}: fetch it again, or, if "
        "this is meant, give --sizes any"
    )


def of_microsoft(task: Task, folder: Path) -> dict[str, Examples]:
    """MRPC as Microsoft gives it: dev is those pairs of train that dev_ids.tsv names."""
    path, ids = need(folder, "msr_paraphrase_train.txt"), need(folder, "dev_ids.tsv")
    dev_ids = {tuple(row) for _, row in rows(ids)}
    content = rows(path)
    names = next(content, (1, [""]))[1]
    places = positions(path, names, ["#1 ID", "#2 ID"])
    parts: dict[bool, list[Row]] = {True: [], False: []}
    for number, row in content:
        is_dev = len(row) > max(places) and tuple(row[place] for place in places) in dev_ids
        parts[is_dev].append((number, row))
    test_path = need(folder, "msr_paraphrase_test.txt")
    test = read(task, test_path)
    if test.broken:
        sys.exit(f"{test_path}, line {test.broken[0]} lacks a column, and must be answered")
    return {
        "train": labelled(task, path, iter(parts[False]), names),
        "dev": labelled(task, path, iter(parts[True]), names),
        "test": Examples(test.sentences, [], list(range(len(test.sentences)))),
    }
