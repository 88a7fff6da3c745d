"""GLUE's files to what fairseq's task sentence_prediction reads.

data/glue/TASK   input0, input1, label: train, valid, valid1, test, test1, test2
                 examples.json: labels of the dev sets, indices of the test sets
"""

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import glue_metrics
import glue_tasks
from common import ask_fairseq, stage_prepare
from common.steps import code, hash_of, hold, made, say, step
from common.text_recipe import TextRecipe
from glue_tasks import DIAGNOSTIC, TASKS, Examples, Split, Task

from macaron_fairseq.common import files, text_lines

HERE = Path(__file__).resolve().parent
SPECIAL = 4  # symbols that fairseq puts in front of a dictionary


def present(folder: Path) -> list[str]:
    """The tasks whose folders are there; ends the program where there is none."""
    found = [name for name in TASKS if (folder / name).is_dir()]
    if not found:
        sys.exit(f"{folder} has none of the folders {', '.join(TASKS)}")
    return found


def subset(task: Task, split: Split) -> str:
    """What fairseq calls a split: train, valid, valid1, test, test1, test2."""
    if split == task.train:
        return "train"
    if split in task.dev:
        return f"valid{task.dev.index(split) or ''}"
    tests = [*task.test, DIAGNOSTIC]
    return f"test{tests.index(split) or ''}"


def prepare(recipe: TextRecipe, folder: Path, tasks: Sequence[str], is_usual: bool) -> None:
    """Make what is not made of each task.

    The text goes through the steps and merges of the text of pre-training, and has its dictionary.
    """
    reads = code(HERE / "glue_tasks.py", HERE / "glue_data.py", HERE / "glue_metrics.py")
    for name in tasks:
        paths = [*(folder / name).glob("*.ts*"), *(folder / name).glob("*.txt*")]
        if name == "MNLI":
            paths += (folder / "diagnostic").glob("*.tsv*")
        sums = [f"{path.name} {files.sha256(path)}" for path in sorted(paths)]
        inputs = [made(recipe.data), *sums, str(is_usual), str(recipe.block), reads]
        task = TASKS[name]

        def fill(out: Path, task: Task = task) -> None:
            found = glue_tasks.load(task, folder, is_usual, lambda text: say(recipe.name, text))
            say(recipe.name, f"binarising {task.name}")
            binarised(recipe, task, found, out)

        with hold(recipe.work / "prepare.lock", waits=True):
            step(where(recipe, name), inputs, fill)


def where(recipe: TextRecipe, task: str) -> Path:
    """The prepared data of a task."""
    return recipe.work / "glue" / task


def examples(recipe: TextRecipe, task: str) -> dict[str, Any]:
    """Labels, indices and counts of a task's splits; ends the program where it is not prepared."""
    path = where(recipe, task) / "examples.json"
    if not path.is_file():
        sys.exit(f"{path.parent} holds no data yet: run the stage prepare first")
    return json.loads(path.read_text("utf-8"))


def fingerprint(folder: Path) -> str:
    """What fairseq reads of a task's prepared data, wherever and from what it was made."""
    kinds = "*/*.bin", "*/dict.txt", "label/*.label", "examples.json"
    paths = sorted(path for kind in kinds for path in folder.glob(kind))
    return hash_of(*(f"{x.relative_to(folder)} {files.sha256(x)}" for x in paths))


def around(recipe: TextRecipe) -> list[str]:
    """The tokens before and between sentences: RoBERTa's, or those of the authors' BERT.

    RoBERTa has <s> A </s> </s> B </s>, and they have <cls> A </s> B </s>.
    """
    lines = text_lines.read_lines(recipe.data / "data-bin" / "dict.txt")
    words = [line.rpartition(" ")[0] for line in lines]
    if "<cls>" in words:
        return ["--init-token", str(SPECIAL + words.index("<cls>"))]
    return ["--init-token", "0", "--separator-token", "2"]


def room(recipe: TextRecipe, sentences: int) -> int:
    """How many tokens of so many sentences a sample has, without those that fairseq puts around.

    Ends the program where there is none for each.
    """
    before = len(around(recipe)) // 2 if sentences > 1 else 1  # a flag and its token each
    found = recipe.block - before - sentences  # each of which ends with </s>
    if found < sentences:
        sys.exit(f"--tokens-per-sample {recipe.block} leaves no room for a pair: give more")
    return found


def shorten(paths: Sequence[Path], most: int) -> int:
    """Cut examples that have more tokens than fit; returns how many.

    The end of the longer sentence goes, token by token, as BERT's authors do: fairseq would cut the
    end of the pair, and with it a second sentence that may be a few words. Of two of the same
    length the second goes first.

    Args:
        paths: the first sentences and, of pairs, the second ones: a line each, in tokens.
        most: the tokens of an example that fit.
    """
    cut, kept = 0, []
    for lines in zip(*map(text_lines.read_lines, paths), strict=True):
        words = [line.split() for line in lines]
        excess = sum(map(len, words)) - most
        cut += excess > 0
        for _ in range(excess):
            max(reversed(words), key=len).pop()
        kept.append([" ".join(sentence) for sentence in words])
    if cut:
        for path, sentences in zip(paths, zip(*kept, strict=True), strict=True):
            files.write_lines(path, sentences)
    return cut


def binarised(recipe: TextRecipe, task: Task, found: dict[str, Examples], out: Path) -> None:
    """What fairseq reads, and next to it what scoring and answering need."""
    splits = [task.train, *task.dev, *task.test]
    splits += [DIAGNOSTIC] * (DIAGNOSTIC.name in found)
    places = range(len(task.sentences))
    names = {(x, i): f"{subset(task, x)}.input{i}.{recipe.source}" for x in splits for i in places}
    for (split, i), name in names.items():
        files.write_lines(out / "text" / name, [one[i] for one in found[split.name].sentences])
    tokens = out / "tokens"
    tokens.mkdir()
    steps = ",".join([*recipe.benchmark.preprocessing.steps, "bpe"])
    stage_prepare.tokenize(recipe, steps, "text", tokens, "--codes", recipe.data / "code")
    most = room(recipe, len(places))
    for split in splits:
        if number := shorten([tokens / names[split, i] for i in places], most):
            what = f"{task.name}, {split.name}: {number} of {len(found[split.name].sentences)}"
            longer = f"examples have more than {recipe.block} tokens"
            say(recipe.name, f"notice: {what} {longer}; the longer sentence is cut")
    dictionary = recipe.data / "data-bin" / "dict.txt"
    calls = [
        words(
            {subset(task, x): tokens / names[x, i] for x in splits}, dictionary, out / f"input{i}"
        )
        for i in places
    ]
    calls += write_labels(task, {x: found[x.name].labels for x in (task.train, *task.dev)}, out)
    ask_fairseq.apart(preprocess, calls)
    content = {
        split.name: {
            "subset": subset(task, split),
            "examples": len(found[split.name].sentences),
            "labels": found[split.name].labels if split in task.dev else [],
            "indices": found[split.name].indices,
        }
        for split in splits
    }
    files.write(out / "examples.json", files.as_json(content))


def write_labels(task: Task, labels: dict[Split, list[str]], out: Path) -> list[list[str]]:
    """Write the labels of these splits; returns what fairseq-preprocess is still to do with them.

    Numbers are read as they are. Classes get a dictionary.
    """
    if task.is_regression:
        for split, values in labels.items():
            targets = [f"{glue_metrics.target(value)}" for value in values]
            files.write_lines(out / "label" / f"{subset(task, split)}.label", targets)
        return []
    dictionary = out / "tokens" / "labels.txt"
    files.write_lines(dictionary, [f"{label} 1" for label in task.labels])
    prefixes = {subset(task, x): out / "tokens" / f"{subset(task, x)}.label" for x in labels}
    for split, values in labels.items():
        files.write_lines(prefixes[subset(task, split)], values)
    return [words(prefixes, dictionary, out / "label")]


def words(prefixes: dict[str, Path], dictionary: Path, out: Path) -> list[str]:
    """The flags of fairseq-preprocess."""
    found = ["--only-source", "--srcdict", str(dictionary), "--destdir", str(out)]
    for kind in ("train", "valid", "test"):
        paths = [str(path) for name, path in prefixes.items() if name.startswith(kind)]
        found += [f"--{kind}pref", ",".join(paths)] if paths else []
    return found


def preprocess(calls: Sequence[Sequence[str]]) -> None:
    """Run fairseq-preprocess for each of these, without starting it each time."""
    for name in ("fairseq", "fairseq_cli.preprocess"):
        logging.getLogger(name).setLevel(logging.WARNING)
    from fairseq import options
    from fairseq_cli import preprocess

    for flags in calls:
        preprocess.main(options.get_preprocessing_parser().parse_args(list(flags)))
