"""The stage prepare of language models: from text files to what fairseq trains on.

prepare     a folder for each step
data        data-bin, BPE code, preprocessing.json, held-out/ with text and counts of each set
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from common import plain_text, stage_prepare
from common.recipe import PLUGIN
from common.steps import Words, code, hold, logged, made, refuse_foreign, say, step
from common.text_recipe import TextRecipe
from macaron_fairseq.common import files, text_lines
from macaron_fairseq.evaluation.training import training_flags
from macaron_fairseq.text import data_folder

COMMON = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Counts:
    """How much text a set holds. Each line ends with one more token and word."""

    documents: list[str]
    lines: int
    characters: int  # with a line end for each line
    words: int
    tokens: int
    unknown: int  # of the tokens: not in the dictionary


def prepare(recipe: TextRecipe, runs: Path | None = None) -> None:
    """All steps that are not done; `runs` as in `stage_prepare.prepare`."""
    work = recipe.work / "prepare"
    with hold(recipe.work / "prepare.lock", waits=True):
        if not recipe.texts:
            sys.exit("say where your text is: --text FILE...")
        refuse_foreign(recipe.data)
        sums = [files.sha256(path) for path in recipe.texts]
        lines_py = PLUGIN / "common/text_lines.py"
        divides = code(COMMON / "plain_text.py", COMMON / "extract.py", lines_py)
        settings = [recipe.split_at, json.dumps(recipe.held_out), recipe.source]
        steps = ",".join(recipe.benchmark.preprocessing.steps)
        tokenizes = [steps, stage_prepare.text_code(), version("sacremoses")]

        def one(
            name: str, made_from: Sequence[str], fill: Callable[[TextRecipe, Path], None]
        ) -> None:
            step(work / name, made_from, lambda out: fill(recipe, out))

        one("raw", [*sums, *(x.name for x in recipe.texts), *settings, divides], raw)
        one("tokenized", [made(work / "raw"), *tokenizes], stage_prepare.tokenized)
        one("clean", [made(work / "tokenized")], without_empty_lines)
        merges = [str(recipe.merges), version("subword-nmt")]
        one("code", [made(work / "clean"), *merges], learned)
        one("bpe", [made(work / "code")], segmented)
        inputs = [made(work / "bpe"), code(Path(__file__))]

        def fill(out: Path) -> None:
            binarised(recipe, out)
            stage_prepare.refuse_other_data(recipe.data, out, runs or recipe.work)

        step(recipe.data, inputs, fill)
    found = counts(recipe)
    # Of other samples than the data was made with, too.
    refuse_short(recipe, {name: one.tokens for name, one in found.items()})
    say(recipe.name, f"{recipe.data} is ready: {found['train'].tokens:,} tokens to train on")


def refuse_short(recipe: TextRecipe, tokens: Mapping[str, int], at_most: str = "") -> None:
    """End the program where a set is too short; `at_most` goes before its tokens."""
    for name, count in tokens.items():
        samples = least_samples(recipe, name)
        lack = f"less than one sample of {recipe.block}"
        if samples > 1:
            lack = f"less than {samples} samples of {recipe.block}, which is fairseq's least batch"
        if count < recipe.block or count <= (samples - 1) * recipe.block:
            sys.exit(
                f"{name} has {at_most}{count} tokens, {lack}: give more text, or a smaller "
                "--tokens-per-sample"
            )


def least_samples(recipe: TextRecipe, name: str) -> int:
    """How many samples a set has at least: one to score, and one batch to train or validate.

    fairseq leaves out what is beyond the last multiple of eight.
    """
    given = training_flags.parse(recipe.extra).get("--required-batch-size-multiple", ())
    multiple = int(given[0]) if given and given[0].isdecimal() else 8  # else fairseq refuses it
    return 1 if name in recipe.tests else multiple


def take(recipe: TextRecipe, codes: Path, dictionary: Path) -> None:
    """Take merges and dictionary of a model that is there; text is prepared with them alone."""

    def fill(out: Path) -> None:
        (out / "data-bin").mkdir()
        shutil.copy(codes, out / "code")
        shutil.copy(dictionary, out / "data-bin" / "dict.txt")
        steps = recipe.benchmark.preprocessing.steps
        data_folder.write(out, recipe.source, recipe.target, steps)
        stage_prepare.refuse_other_data(recipe.data, out, recipe.work)

    with hold(recipe.work / "prepare.lock", waits=True):
        sums = [files.sha256(path) for path in (codes, dictionary)]
        tokens = [recipe.source, *recipe.benchmark.preprocessing.steps, stage_prepare.text_code()]
        tokens += [version("sacremoses"), version("subword-nmt")]
        step(recipe.data, ["taken", *sums, *tokens], fill)


def counts(recipe: TextRecipe) -> dict[str, Counts]:
    """How much text each set holds; ends the program where there is none yet."""
    stage_prepare.fingerprint(recipe.data)
    content = json.loads((recipe.data / "held-out" / "counts.json").read_text("utf-8"))
    return {name: Counts(**found) for name, found in content.items()}


# --- The steps; each gets the folder to fill -----------------------------------------------------


def raw(recipe: TextRecipe, out: Path) -> None:
    """Train and what is held out."""
    say(recipe.name, f"reading {', '.join(path.name for path in recipe.texts)}")
    found = plain_text.divide(recipe.texts, recipe.split_at, recipe.held_out, out, recipe.source)
    for name, documents in found.items():
        of = f"{len(documents)} documents" if len(documents) > 3 else ", ".join(documents)
        say(recipe.name, f"{name}: {documents.total():,} lines of {of}")
    content = {name: sorted(documents) for name, documents in found.items()}
    files.write(out / "documents.json", files.as_json(content))


def without_empty_lines(recipe: TextRecipe, out: Path) -> None:
    """What tokenising left of each line."""
    for text in stage_prepare.texts(out.parent / "tokenized", recipe):
        kept = (line for line in text_lines.read_lines(text) if line.strip())
        files.write_lines(out / text.name, kept)


def learned(recipe: TextRecipe, out: Path) -> None:
    """The BPE merges; text that is too short with any of them is refused before."""
    clean = out.parent / "clean"
    most = {
        x: most_tokens(clean / f"{x}.{recipe.source}", least_samples(recipe, x) * recipe.block)
        for x in recipe.sets
    }
    refuse_short(recipe, most, "at most ")
    stage_prepare.learned(recipe, out)


def segmented(recipe: TextRecipe, out: Path) -> None:
    """In the units of BPE."""
    say(recipe.name, "applying BPE")
    codes = out.parent / "code" / "code"
    stage_prepare.tokenize(recipe, "bpe", "clean", out, "--codes", codes)


def binarised(recipe: TextRecipe, out: Path) -> None:
    """What fairseq trains on, and what a report of perplexities needs with it."""
    work, end = recipe.work / "prepare", recipe.source
    units = {name: work / "bpe" / f"{name}.{end}" for name in recipe.sets}
    refuse_short(recipe, {name: tokens(path) for name, path in units.items()})
    say(recipe.name, "binarising")
    words: Words = ["fairseq-preprocess", "--only-source", "--destdir", out / "data-bin"]
    words += ["--workers", str(stage_prepare.parts(recipe.workers))]
    for name, path in units.items():
        words += [f"--{name}pref", path]
    logged(out / "preprocess.log", words, stdout=subprocess.DEVNULL)
    shutil.copy(work / "code" / "code", out)
    dictionary = out / "data-bin" / "dict.txt"
    known = {line.rpartition(" ")[0] for line in text_lines.read_lines(dictionary)}
    documents = json.loads((work / "raw" / "documents.json").read_text("utf-8"))
    (out / "held-out").mkdir()
    found = {}
    for name in recipe.sets:
        text, plain = (work / kind / f"{name}.{end}" for kind in ("raw", "clean"))
        found[name] = count(documents[name], text, plain, units[name], known)
        if name != "train":
            shutil.copy(work / "raw" / f"{name}.{end}", out / "held-out")
    content = {name: asdict(one) for name, one in found.items()}
    files.write(out / "held-out" / "counts.json", files.as_json(content))
    steps = recipe.benchmark.preprocessing.steps
    data_folder.write(out, end, end, steps, recipe.tests)


def tokens(units: Path) -> int:
    """How many tokens fairseq reads of a text in units of BPE, with one for each line's end."""
    return sum(len(line.split()) + 1 for line in text_lines.read_lines(units))


def most_tokens(words: Path, enough: int) -> int:
    """How many tokens a text can have: a token is a character at least, or a line's end.

    Reading stops where there are ENOUGH.
    """
    found = 0
    for line in text_lines.read_lines(words):
        found += sum(map(len, line.split())) + 1
        if found >= enough:
            break
    return found


def count(documents: list[str], text: Path, words: Path, units: Path, known: set[str]) -> Counts:
    """How much there is of a set, as text, as words and as tokens."""
    characters = sum(len(line) + 1 for line in text_lines.read_lines(text))
    of_words = sum(len(line.split()) + 1 for line in text_lines.read_lines(words))
    lines = unknown = 0
    for line in text_lines.read_lines(units):
        lines += 1
        unknown += sum(token not in known for token in line.split())
    return Counts(documents, lines, characters, of_words, tokens(units), unknown)
