"""How fast the text work of the recipes is, how it scales with cores, and how much memory it takes.

Repeats the pairs of a file until there are enough. Runs every step by itself, from the archive to
what fairseq trains on, on one core and on all. Prints a table; --json keeps the figures.

  python benchmarks/prepare.py pairs.tsv --lines 1000000 --json prepare.json

pairs.tsv holds `source<TAB>target` on each line. Peak memory is the proportional set size of all
processes of a step. It is looked at up to ten times a second, or less often where that takes long.
It is taken for half of the lines too, on all cores, to see what grows with a corpus. Dictionaries
do not show there if half of the lines have all words. The time for WMT14 is that of all
cores, scaled by the number of English words.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from harness import measuring, memory, program

from macaron_fairseq.commands.arguments import new_file, positive
from macaron_fairseq.common import environment, files, text_lines
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.markdown import table

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from common.stage_prepare import COMMON, parts

WMT14_WORDS = 116_000_000  # English words of its 4.5M pairs (Luong et al. 2015, section 4.1)
STEPS = (
    *("extract", "tokenise", "clean", "hold out"),
    *("count words", "learn BPE", "apply BPE", "binarise"),
)
PARALLEL = ("tokenise", "count words", "apply BPE", "binarise")
# What the recipes call of their own code.
CALL = """\
import sys
from pathlib import Path
examples, *words = sys.argv[1:]
sys.path.insert(0, examples)
from common import extract, parallel_text
paths = tuple(map(Path, words))
{}
"""
EXTRACT = 'extract.from_archive(paths[0], ("given.en", "given.de"), "lines", paths[1:])'
CLEAN = "parallel_text.clean(paths[:2], paths[2:], 1, 80, 9)"
HOLD_OUT = "parallel_text.split(paths[:2], paths[2:], 23)"
BASH = ("bash", "-euo", "pipefail", "-c")
# Commands are those of the Python that runs this, whatever environment is active.
OWN = {**os.environ, "PATH": os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"]))}
Command = list[str | Path]


def write_corpus(pairs: Path, lines: int, folder: Path) -> int:
    """Write given.tgz, the pairs repeated; returns the number of English words."""
    content = [line.split("\t")[:2] for line in text_lines.read_lines(pairs) if "\t" in line]
    if not content:
        raise UserError(f"{pairs} has no line with a tab: give source<TAB>target, one pair a line")
    for i, language in enumerate(("en", "de")):
        with (folder / f"given.{language}").open("w", encoding="utf-8") as file:
            repeated = itertools.islice(itertools.cycle(content), lines)
            file.writelines(pair[i] + "\n" for pair in repeated)
    with tarfile.open(folder / "given.tgz", "w:gz") as archive:
        for language in ("en", "de"):
            archive.add(folder / f"given.{language}", f"given.{language}")
    return len((folder / "given.en").read_text("utf-8").split())


def command(folder: Path, step: str, workers: int, merges: int) -> Command:
    """The command of a step, as the recipes call it."""

    def files(source: str, target: str) -> Command:
        return [
            word
            for language in ("en", "de")
            for word in (
                *("--file", language),
                *(folder / f"{source}.{language}", folder / f"{target}.{language}"),
            )
        ]

    def names(*stems: str) -> Command:
        return [folder / f"{stem}.{language}" for stem in stems for language in ("en", "de")]

    def call(text: str, *paths: str | Path) -> Command:
        return [sys.executable, "-c", CALL.format(text), COMMON.parent, *paths]

    tokenize: Command = ["macaron-fairseq", "tokenize", "--workers", str(workers)]
    if step == "extract":
        return call(EXTRACT, folder / "given.tgz", *names("raw"))
    if step == "tokenise":
        return [*tokenize, "--steps", "normalize,printable,tokenize-hyphens", *files("raw", "tok")]
    if step == "clean":
        return call(CLEAN, *names("tok", "clean"))
    if step == "hold out":  # of text that nothing needs any more: the rest stays in its files
        return call(HOLD_OUT, *names("raw", "valid"))
    if step == "count words":
        count = 'subword-nmt get-vocab < "$1/clean.{0}" > "$1/words.{0}"'.format
        both = " | " if workers > 1 else "; "
        return [*BASH, both.join((count("en"), count("de"))), "count", folder]
    if step == "learn BPE":
        learn = 'subword-nmt learn-bpe --dict-input -s "$2"'
        script = f'cat "$1/words.en" "$1/words.de" | {learn} > "$1/code"'
        return [*BASH, script, "learn", folder, str(merges)]
    if step == "apply BPE":
        return [*tokenize, "--steps", "bpe", "--codes", folder / "code", *files("clean", "bpe")]
    return [
        *("fairseq-preprocess", "-s", "en", "-t", "de", "--joined-dictionary"),
        *("--trainpref", folder / "bpe", "--destdir", folder / f"data-{workers}"),
        *("--workers", str(parts(workers))),
    ]


def measure(words: Command, what: str) -> tuple[float, float]:
    """Seconds and peak MiB of a command, called `what` on stderr; ends the program if it fails."""
    start = time.perf_counter()
    with tempfile.TemporaryFile() as errors:  # a pipe that nobody reads would fill up
        command = [str(word) for word in words]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, env=OWN, start_new_session=True
        )
        try:
            peak = memory.wait(process)
        finally:
            with suppress(ProcessLookupError):  # what an interruption left, a shell's commands too
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        seconds = time.perf_counter() - start
        if process.returncode:
            errors.seek(0)
            sys.exit(f"{words[0]} failed: {errors.read().decode()[-2000:]}")
    measuring.say(f"{what}: {measuring.duration(seconds)}")
    return seconds, peak


def steps(half: Path, whole: Path, lines: int, merges: int, cores: int) -> Iterator[dict]:
    """The figures of each step, and at last of all."""
    total, peaks = [0.0, 0.0], [0.0, 0.0, 0.0]
    for i, step in enumerate(STEPS, 1):
        what, of_all = f"step {i}/{len(STEPS)}, {step}", f"{cores} cores"
        _, half_peak = measure(command(half, step, cores, merges), f"{what}, half, {of_all}")
        one, one_peak = measure(command(whole, step, 1, merges), f"{what}, 1 core")
        every, peak = one, one_peak
        if step in PARALLEL:
            every, peak = measure(command(whole, step, cores, merges), f"{what}, {of_all}")
        found = one_peak, peak, half_peak
        yield figures(step, lines, one, every if step in PARALLEL else None, *found)
        total = [total[0] + one, total[1] + every]
        peaks = [max(pair) for pair in zip(peaks, found, strict=True)]
    yield figures("all", lines, *total, *peaks)


def figures(
    step: str, lines: int, one: float, every: float | None, *peaks: float
) -> dict[str, str | float | None]:
    """What is kept of a step: one core's seconds and all cores', and MiB."""
    one_peak, peak, half_peak = peaks
    return {
        "step": step,
        "pairs_per_second_1": lines / one,
        "pairs_per_second_all": lines / (every or one),
        "seconds_1": one,
        "seconds_all": every or one,
        "speed_up": one / every if every else None,
        "peak_mib_1": one_peak,
        "peak_mib_all": peak,
        "peak_mib_half": half_peak,
    }


def main() -> None:
    """Measure every step and print the table."""
    parser = program.parser(__doc__)
    parser.add_argument("pairs", type=Path, help="source<TAB>target, one pair a line")
    parser.add_argument(
        "--lines", type=positive, default=1_000_000, help="pairs (default: %(default)s)"
    )
    parser.add_argument(
        "--merges", type=positive, default=32764, help="of BPE (default: %(default)s)"
    )
    parser.add_argument("--json", type=new_file, metavar="FILE", help="write the figures there")
    args = parser.parse_args()
    if not args.pairs.is_file():
        raise UserError(f"{args.pairs}: no such file")
    cores = environment.available_cores()
    half, whole = (Path(tempfile.mkdtemp(prefix="prepare-")) for _ in range(2))
    try:
        write_corpus(args.pairs, args.lines // 2, half)
        words = write_corpus(args.pairs, args.lines, whole)
        rows = list(steps(half, whole, args.lines, args.merges, cores))
    finally:
        for folder in (half, whole):
            shutil.rmtree(folder)
    for row in rows:
        row["wmt14_minutes"] = row["seconds_all"] * WMT14_WORDS / words / 60
    about = program.here()
    if args.json:
        corpus = {"lines": args.lines, "words": words, "merges": args.merges}
        result = {"about": about, "code": environment.code(), **corpus, "steps": rows}
        files.write(args.json, json.dumps(result, indent=1) + "\n")
    print(
        table(*rows_of(rows, cores)),
        f"\n{about}; {args.lines:,} pairs, {words:,} English words",
        sep="\n",
    )


def rows_of(found: list[dict], cores: int) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the figures' table."""
    header = ["step", "pairs/s, 1 core", f"pairs/s, {cores} cores", "ratio", "peak MiB, 1 core"]
    header += [f"{cores} cores", f"{cores} cores, half of the pairs", "WMT14, minutes"]
    rows = [
        [
            row["step"],
            *(f"{row[f'pairs_per_second_{which}']:,.0f}" for which in ("1", "all")),
            f"{row['speed_up']:.2f}" if row["speed_up"] else "one process",
            *(f"{row[f'peak_mib_{which}']:,.0f}" for which in ("1", "all", "half")),
            f"{row['wmt14_minutes']:.0f}",
        ]
        for row in found
    ]
    return header, rows


if __name__ == "__main__":
    program.start(main)
