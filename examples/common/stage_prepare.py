"""The stage prepare: from the archives to what fairseq trains on.

downloads   the archives and their checksums
prepare     a folder for each step
data        data-bin, BPE code, references, preprocessing.json
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from importlib.metadata import version
from itertools import pairwise, product
from pathlib import Path

from common import downloads, extract, parallel_text
from common.benchmark import Part
from common.recipe import PLUGIN, Recipe
from common.steps import (
    Logged,
    call,
    code,
    ending_with_this,
    hold,
    logged,
    made,
    refuse_foreign,
    say,
    step,
)
from macaron_fairseq.common import text_lines
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.wording import counted
from macaron_fairseq.evaluation.training import manifest
from macaron_fairseq.text import data_folder
from macaron_fairseq.text.data_folder import DataFolder
from macaron_fairseq.text.languages import has_spaces
from macaron_fairseq.text.tokenization import Pipeline, join_characters

COMMON = Path(__file__).resolve().parent
# In a data folder: what its training text was made from. The report asks it.
CLEAN_FROM = "clean-from"
POSITIONS = 1023  # the most tokens of a sentence that the models take
LEAST_BLEU = 90  # of a reference that was tokenised and detokenised


def prepare(recipe: Recipe, runs: Path | None = None) -> None:
    """All steps that are not done.

    Args:
        recipe: whose data it is.
        runs: where models are trained on it (default: in its work folder).
    """
    work = recipe.work / "prepare"
    with hold(recipe.work / "prepare.lock", waits=True):  # as tasks of an array do for the first
        refuse_unscorable(recipe.target)
        refuse_foreign(recipe.data)
        refuse_other_pair(recipe)
        given = downloads.inputs(recipe)
        lines_py, parallel_text_py = PLUGIN / "common/text_lines.py", COMMON / "parallel_text.py"
        cleans = code(lines_py, parallel_text_py)
        extracts = code(lines_py, parallel_text_py, COMMON / "extract.py")
        clean = recipe.benchmark.preprocessing.clean, [*recipe.sets.values()]

        def one(name: str, made_from: Sequence[str], fill: Callable[[Recipe, Path], None]) -> None:
            step(work / name, made_from, lambda out: fill(recipe, out))

        one("raw", [*recipe.languages, *given, extracts], raw)
        steps = ",".join(recipe.benchmark.preprocessing.steps)
        one("tokenized", [made(work / "raw"), steps, text_code(), version("sacremoses")], tokenized)
        settings = [repr(clean), str(recipe.is_usual)]
        one("clean", [made(work / "tokenized"), cleans, *settings], cleaned)
        merges = [str(recipe.merges), version("subword-nmt")]
        one("code", [made(work / "clean"), *merges], learned)
        one("bpe", [made(work / "code")], segmented)
        separate = ["separate dictionaries"] * (not recipe.benchmark.preprocessing.joined)
        inputs_of_data = [made(work / "bpe"), "sha256", *separate]

        def fill(out: Path) -> None:
            binarised(recipe, out)
            refuse_other_data(recipe.data, out, runs or recipe.work)

        step(recipe.data, inputs_of_data, fill)
    dictionary = recipe.data / "data-bin" / f"dict.{recipe.source}.txt"
    say(recipe.name, f"{recipe.data} is ready: {count_lines(dictionary)} types")


def refuse_other_pair(recipe: Recipe) -> None:
    """End the program where data of other languages would be replaced."""
    with suppress(OSError, ValueError, KeyError, TypeError):  # what is damaged is made again
        found = json.loads((recipe.data / data_folder.NAME).read_text("utf-8"))
        here, asked = f"{found['source']}-{found['target']}", f"{recipe.source}-{recipe.target}"
        if here != asked:
            sys.exit(f"{recipe.data} is of {here}, and not of {asked}: give another --work")


def refuse_other_data(data: Path, new: Path, runs: Path) -> None:
    """End the program where new data would take the place of what a model was trained on.

    Args:
        data: the folder of the data; there may be none yet.
        new: a folder with what it is to be.
        runs: where to look for training runs.
    """
    try:
        before = json.loads((data / data_folder.NAME).read_text("utf-8"))["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # there is none, or it is damaged
    if before == fingerprint(new):
        return
    for path in sorted(runs.rglob(manifest.NAME)):
        with suppress(UserError):
            if manifest.read(path.parent, "")["data"].get("fingerprint") == before:
                for log in new.rglob("*.log"):  # of what went well, so that nothing is left
                    log.unlink()
                sys.exit(
                    f"{path.parent} was trained on what {data} holds, which would be replaced by "
                    "other data: give the text and options of before, or another --work, or remove "
                    "that folder"
                )


def refuse_unscorable(language: str) -> None:
    """End the program where sacreBLEU cannot split the language into words."""
    from macaron_fairseq.evaluation.scores import metrics

    code = metrics.language_code(language)
    if code in ("ja", "ko"):
        try:
            metrics.detokenised_bleu(language)
        except UserError:
            sys.exit(
                f"sacreBLEU cannot split {language} into words: pip install 'sacrebleu[{code}]'"
            )


# --- The steps; each gets the folder to fill -----------------------------------------------------


def raw(recipe: Recipe, out: Path) -> None:
    """Train, valid and the test sets as NAME.LANGUAGE."""
    if recipe.benchmark.program:
        call([sys.executable, recipe.folder / recipe.benchmark.program, out])
        return
    if recipe.benchmark.own_text:
        assert recipe.given
        parallel_text.hold_out(recipe.given, recipe.languages, out)
        for text in texts(out, recipe):
            warn_of_unseen(recipe, text)
        return
    for name, content in recipe.sets.items():
        paths = pair(out, name, recipe.languages)
        number, part_out = 0, pair(out, "part", recipe.languages)
        for part in content.parts:
            part = downloads.chosen(recipe, part)
            say(
                recipe.name,
                f"extracting {name} from {' and '.join(downloads.names_of(recipe, part))}",
            )
            number += extracted(recipe, part, part_out)
            for path, whole in zip(part_out, paths, strict=True):
                with path.open("rb") as file, whole.open("ab") as all_parts:
                    shutil.copyfileobj(file, all_parts, 1 << 20)
                path.unlink()
    if language := recipe.benchmark.held_out_by:
        train = pair(out, "train", recipe.languages)
        parallel_text.draw(train, out, recipe.languages, language)


def warn_of_unseen(recipe: Recipe, text: Path) -> None:
    """Warn of characters that nobody sees and of separate accents, which Moses' rules cut words at.

    Joiners are not among them: detokenising puts them back.
    """
    language = text.suffix.removeprefix(".")
    wanted = [x for x in ("visible", "nfc") if x not in recipe.benchmark.preprocessing.steps]
    clean = Pipeline(wanted, language)
    # Of some letters of India the composed form is the longer one, and no word is cut there.
    number = sum(len(clean(line)) < len(line) for line in text_lines.read_lines(text) if wanted)
    if number:
        say(
            recipe.name,
            f"warning: {counted(number, 'line')} of {text.name} hold invisible characters or "
            "separate accents, at which words are cut: `macaron-fairseq tokenize --steps "
            f"visible,nfc --file {language} OLD NEW` makes text without them",
        )


def pair(folder: Path, name: str, languages: tuple[str, str]) -> tuple[Path, Path]:
    """The two files of a set."""
    source, target = (folder / f"{name}.{language}" for language in languages)
    return source, target


def extracted(recipe: Recipe, part: Part, out: tuple[Path, Path]) -> int:
    """Write one part to two files; returns the number of pairs."""
    paths = [recipe.work / "downloads" / name for name in downloads.names_of(recipe, part)]
    if part.testset:
        name = extract.has_pair(part.testset, recipe.languages) or "-".join(recipe.languages)
        order = out if name == "-".join(recipe.languages) else out[::-1]
        return extract.testset(part.testset, name, paths[0], order, recipe.is_usual)
    if part.format in extract.TABLES:
        first, second = (out[recipe.languages.index(x)] for x in part.columns or recipe.languages)
        return extract.from_table(paths[0], part.members, part.format, (first, second))
    if not part.members:
        return extract.from_files((paths[0], paths[-1]), part.format, out)
    source, target = (
        part.members.format(language=language, side=side)
        for language, side in zip(recipe.languages, ("src", "ref"), strict=True)
    )
    return extract.from_archive(paths[0], (source, target), part.format, out)


def texts(folder: Path, recipe: Recipe) -> Iterator[Path]:
    """The files of a step, in all languages."""
    for language in dict.fromkeys(recipe.languages):
        yield from sorted(folder.glob(f"*.{language}"))


def tokenize(recipe: Recipe, steps: str, step_before: str, out: Path, *flags: str | Path) -> None:
    """Put the text of a step through steps of `macaron-fairseq tokenize`."""
    words = ["macaron-fairseq", "tokenize", "--steps", steps, *flags, "--workers", recipe.workers]
    for text in texts(out.parent / step_before, recipe):
        words += ["--file", text.suffix[1:], text, out / text.name]
    call([str(word) for word in words])


def tokenized(recipe: Recipe, out: Path) -> None:
    """Normalised and tokenised."""
    steps = ",".join(recipe.benchmark.preprocessing.steps)
    if not steps:
        for text in texts(out.parent / "raw", recipe):
            shutil.copy(text, out)
        return
    say(recipe.name, f"tokenising: {steps}")
    tokenize(recipe, steps, "raw", out)


def cleaned(recipe: Recipe, out: Path) -> None:
    """Without what is not worth training on; valid is drawn from train where that is asked."""
    for text in texts(out.parent / "tokenized", recipe):
        shutil.copy(text, out)
    train, clean = pair(out, "train", recipe.languages), recipe.benchmark.preprocessing.clean
    if clean:
        parallel_text.clean(train, train, clean.min, clean.max, clean.ratio)
    if every := recipe.sets["valid"].every:
        parallel_text.split(train, pair(out, "valid", recipe.languages), every)
    counts = {name: count_lines(out / f"{name}.{recipe.source}") for name in recipe.sets}
    said = " ".join(map(str, counts.values()))
    say(recipe.name, f"sentence pairs: {', '.join(counts)}: {said}")
    if recipe.is_usual:
        check_sizes(recipe, counts)


def count_lines(path: Path) -> int:
    """The lines of a file."""
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def check_sizes(recipe: Recipe, counts: dict[str, int]) -> None:
    """End the program where there are not as many pairs as there should be.

    sacremoses splits some lines otherwise than Moses' script does, so that pairs at the limits of
    cleaning are kept or dropped: one in a thousand is let pass there, but none of a set that is
    given.
    """
    clean = recipe.benchmark.preprocessing.clean
    for name, content in recipe.sets.items():
        usual, found = content.pairs, counts[name]
        if not usual or found == usual:
            continue
        is_cleaned = clean and (name == "train" or content.every)
        if is_cleaned and abs(found - usual) * 1000 <= usual:
            say(
                recipe.name,
                f"notice: usually there are {usual} pairs and not {found}, which is within what "
                "tokenisers differ",
            )
            continue
        usual_sizes = " ".join(str(x.pairs or "any") for x in recipe.sets.values())
        sys.exit(
            f"these should be {usual_sizes}: the archives are not the usual ones; if that is meant,"
            " give --sizes any"
        )


def learned(recipe: Recipe, out: Path) -> None:
    """The BPE merges of all languages: both, or the one of a language model.

    learn-bpe would count the words of one language after the other. They are apart by single
    spaces, as tokenising leaves them.
    """
    if not recipe.merges:
        return
    languages = list(dict.fromkeys(recipe.languages))
    refuse_without_merges([out.parent / "clean" / f"train.{x}" for x in languages])
    both = " from both languages" * (len(languages) > 1)
    say(recipe.name, f"learning {recipe.merges} BPE merges{both}")
    words = out / "words"
    counting: list[Logged] = []
    with ExitStack() as together:
        for text in (out.parent / "clean" / f"train.{language}" for language in languages):
            language = text.suffix[1:]
            with text.open("rb") as given, (out / f"words.{language}").open("wb") as found:
                log = out / f"count-{language}.log"
                one = Logged(log, ["subword-nmt", "get-vocab"], stdin=given, stdout=found)
            together.enter_context(ending_with_this(one.process))
            counting.append(one)
            if recipe.workers == 1:
                counting.pop().wait()
        for one in counting:
            one.wait()
    with words.open("wb") as all_words:
        for language in languages:
            path = out / f"words.{language}"
            with path.open("rb") as file:
                shutil.copyfileobj(file, all_words, 1 << 20)
            path.unlink()
    learn = ["subword-nmt", "learn-bpe", "--dict-input", "-s", str(recipe.merges)]
    with words.open("rb") as file, (out / "code").open("wb") as merges:
        logged(out / "learn-bpe.log", learn, stdin=file, stdout=merges)
    words.unlink()


def refuse_without_merges(paths: Iterable[Path]) -> None:
    """End the program where no pair of characters is in words twice.

    learn-bpe would end in a traceback, or write a file without merges, which is none to apply.
    """
    seen = set()
    words = (
        word for path in paths for line in text_lines.read_lines(path) for word in line.split(" ")
    )
    for word in words:
        for pair in pairwise([*word[:-1], f"{word[-1:]} "]):  # a word's end is part of its last one
            if pair in seen:
                return
            seen.add(pair)
    sys.exit(
        "no pair of characters is twice in the words to train on, so BPE has nothing to merge: "
        "give more text"
    )


def segmented(recipe: Recipe, out: Path) -> None:
    """In the units of BPE."""
    if recipe.merges:
        say(recipe.name, "applying BPE")
        tokenize(recipe, "bpe", "clean", out, "--codes", out.parent / "code" / "code")
    else:
        for text in texts(out.parent / "clean", recipe):
            shutil.copy(text, out)
    others = any("-positions" in word for word in recipe.extra)  # other models than usual
    for name, language in product(["valid", *recipe.tests], recipe.languages):
        check_lines(out / f"{name}.{language}", name != "valid", not others)


def check_lines(path: Path, is_test: bool, is_limited: bool) -> None:
    """End the program at a line that cannot be scored or that the models do not take.

    fairseq stops at a sentence to validate or test with that is longer than the models' positions.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            tokens = len(line.split())
            if is_test and not tokens:
                sys.exit(
                    f"{path.name}, line {number} is empty, and cannot be scored: mend or remove "
                    "the pair"
                )
            if is_limited and tokens > POSITIONS:
                sys.exit(
                    f"{path.name}, line {number} is longer than {POSITIONS} tokens, which no model "
                    "here takes: split or remove it"
                )


def parts(workers: int) -> int:
    """In how many parts fairseq-preprocess divides the text.

    It does the first part once all others are done: small parts, that it be a short wait.
    """
    return max(workers, min(8 * workers, 64)) if workers > 1 else 1


def text_code() -> str:
    """A hash of the code that makes tokens of text."""
    paths = [PLUGIN / "common" / "text_lines.py", PLUGIN / "common" / "workers.py"]
    paths += sorted((PLUGIN / "text").glob("*.py"))
    return code(*paths)


def binarised(recipe: Recipe, out: Path) -> None:
    """What fairseq trains on, and what translating and scoring need next to it."""
    work = recipe.work / "prepare"
    say(recipe.name, "binarising")
    tests = ",".join(str(work / "bpe" / name) for name in recipe.tests)
    words = ["fairseq-preprocess", "-s", recipe.source, "-t", recipe.target]
    words += ["--joined-dictionary"] * recipe.benchmark.preprocessing.joined
    words += ["--workers", str(parts(recipe.workers)), "--trainpref", str(work / "bpe" / "train")]
    words += ["--validpref", str(work / "bpe" / "valid"), "--testpref", tests]
    words += ["--destdir", str(out / "data-bin")]
    logged(out / "preprocess.log", words, stdout=subprocess.DEVNULL)
    (out / CLEAN_FROM).write_text(made(work / "clean") + "\n")
    for kind, folder in (("raw", "reference"), ("tokenized", "tokenized")):
        (out / folder).mkdir()
        for name, language in product(recipe.tests, recipe.languages):
            shutil.copy(work / kind / f"{name}.{language}", out / folder)
    # Whoever has split the words is not to be scored; published test sets stay as they are.
    if recipe.benchmark.own_text and not has_spaces(recipe.target):
        for name in recipe.tests:
            path = out / "reference" / f"{name}.{recipe.target}"
            lines = [*map(join_characters, text_lines.read_lines(path))]
            path.write_text("".join(line + "\n" for line in lines), "utf-8")
    if recipe.merges:
        shutil.copy(work / "code" / "code", out)
    for dictionary in sorted((out / "data-bin").glob("dict.*.txt")):
        shutil.copy(dictionary, out)  # where from_pretrained looks for them
    steps = recipe.benchmark.preprocessing.steps
    data_folder.write(out, recipe.source, recipe.target, steps, recipe.tests)
    if "BLEU" in recipe.benchmark.evaluation.metrics:
        warn_of_low_bleu(recipe, data_folder.read(out))


def warn_of_low_bleu(recipe: Recipe, data: DataFolder) -> None:
    """Warn where Moses' rules do not put the words of a script together again that they cut.

    Detokenised text is scored. So the reference itself should come out of both as it went in.
    """
    from macaron_fairseq.evaluation.scores import metrics

    test, target = recipe.tests[0], recipe.target
    raw, tokenized = (
        [*text_lines.read_lines(data.path / kind / f"{test}.{target}")]
        for kind in ("reference", "tokenized")
    )
    others = Pipeline([x for x in data.target_steps if not x.startswith("tokenize")], target)
    joined = data.decode([line.split() for line in tokenized])
    bleu = metrics.bleu(joined, [*map(others, raw)], target, lowercase=True).score
    if bleu < LEAST_BLEU:
        say(
            recipe.name,
            f"warning: Moses' rules do not fit this text. {test}.{target} itself, tokenised and "
            f"detokenised, has a BLEU of {bleu:.0f}. So BLEU will be too low",
        )


def fingerprint(data: Path) -> str:
    """What prepared data is, wherever and from what it was made.

    Ends the program where there is none.
    """
    try:
        return json.loads((data / data_folder.NAME).read_text("utf-8"))["fingerprint"]
    except FileNotFoundError:
        sys.exit(f"{data} holds no data yet: run the stage prepare first")
    except (ValueError, KeyError, TypeError):
        sys.exit(f"{data}/{data_folder.NAME} is damaged: run the stage prepare again, without it")
