"""Speed and memory of translation: fairseq-generate and CTranslate2, with the same sentences.

  python benchmarks/generation.py --data DATA --stock BASELINE.pt --ours MACARON.pt \\
    --sides stock ours ours-int8 --beams 5 --batch-sizes 64 --json generation.json
  python benchmarks/generation.py --data DATA --size iwslt_de_en --sentences 200
  python benchmarks/generation.py --synthetic --beams 1 5 --batch-sizes 1 64 256

Without --stock and --ours the models have random weights and translate every sentence into --length
tokens and the end, on all sides. Sides without a quantisation in their name are fairseq-generate.
The others are `macaron-fairseq translate` with what `macaron-fairseq export` wrote. These take
--lines lines of raw text, so that tokenisation and BPE count. The time is that of the command less
that of the same command for one sentence, so that starting and loading do not count. fairseq's
stopwatch, shown next to it, counts the search alone, and nothing that other processes search while
this one prints. Memory is the most that all processes of a command were seen to hold. Ratios are
those of each repetition, their median and range.
"""

import argparse
import itertools
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness import corpora, in_process, measuring, program
from harness.measuring import Device, Figures, Run

from macaron_fairseq.commands.arguments import positive
from macaron_fairseq.common import files, text_lines
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.markdown import number, table
from macaron_fairseq.fast import task


@dataclass(frozen=True)
class Side:
    """A checkpoint, and what translates with it."""

    checkpoint: str
    quantization: str = ""  # of CTranslate2; without one it is fairseq-generate
    flags: tuple[str, ...] = ()  # of fairseq-generate or macaron-fairseq translate


OUR_SEARCH = ("--task", task.NAME)

SIDES = {
    "stock": Side("stock"),
    "ours": Side("ours", flags=OUR_SEARCH),
    "ours-in-turn": Side("ours", flags=(*OUR_SEARCH, "--decoding-processes", "1")),
    "stock-our-search": Side("stock", flags=OUR_SEARCH),
    "ours-stock-search": Side("ours"),
    "ours-stock-path": Side("ours", flags=("--model-overrides", "{'macaron_kernels': 'fairseq'}")),
    "stock-float32": Side("stock", "float32"),
    "ours-float32": Side("ours", "float32"),
    "stock-int8": Side("stock", "int8"),
    "ours-int8": Side("ours", "int8"),
}

# Models with random weights; "{size}" stands for --size with "_" before it.
ARCHITECTURES = {
    "stock": ["--arch", "transformer{size}_pre_norm"],
    "ours": ["--arch", "macaron_transformer{size}"],
}

CASE = ("beam", "batch")
SUMMARY = re.compile(
    r"Translated ([\d,]+) sentences \(([\d,]+) tokens\) in [\d.]+s \(([\d.]+) sentences/s"
)


def main() -> None:
    """Measure and report."""
    args = parse()
    device = measuring.device(args)
    sides = measuring.chosen(args.sides, SIDES)
    cases = list(itertools.product(args.beams, args.batch_sizes))
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder, source = Path(name), args.data
        if source is None:
            source = folder / "synthetic"
            # A GPU's first batch, which takes long, should be one of many.
            count = args.sentences or (10000 if device.gpu else 500)
            corpora.write_synthetic(source, args.types, corpora.SYNTHETIC_LENGTHS, 1, count)
        about = corpora.about(source)
        args.sentences = corpora.sample(source, args.subset, args.sentences, folder / "data")
        corpora.sample(source, args.subset, 1, folder / "one")  # what starting takes
        models = prepare_models(folder, sides, args, device)
        parameters = {
            name: in_process.count_parameters(path, corpora.data_bin(folder / "data"))
            for (name, quantization), path in models.items()
            if not quantization
        }
        repetitions: list[Figures] = []
        rows: list[list[str]] = []
        for case in cases:
            found = compare(folder, models, sides, *case, args, device)
            header, of_sides = rows_of(found, list(sides))
            rows += [[*map(str, case), *row] for row in of_sides]
            repetitions += [dict(zip(CASE, case, strict=True)) | x for x in found]
    measuring.report(
        args,
        device,
        table([*CASE, *header], rows),
        notes(args, parameters),
        data=about,
        parameters=parameters,
        sides={name: asdict(side) for name, side in sides.items()},
        repetitions=repetitions,
    )


def parse() -> argparse.Namespace:
    """Parse the command line.

    Raises:
        UserError: if it does not say what to translate, or what with.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    add = parser.add_argument
    corpora.add_arguments(parser)
    for name in ARCHITECTURES:
        add(f"--{name}", type=Path, metavar="FILE", help=f"checkpoint of the sides {name}...")
    add("--subset", default="test", help="test set: test (default), test1, ...")
    add("--sentences", type=positive, metavar="N", help="every n-th of it (default: all)")
    add("--beams", type=positive, nargs="+", default=[5, 1], metavar="N", help="(default: 5 1)")
    add(
        "--batch-sizes",
        type=positive,
        nargs="+",
        default=[1, 64, 256],
        metavar="N",
        help="sentences (default: 1 64 256)",
    )
    add("--length", type=positive, default=14, metavar="N", help="of random models' translations")
    add("--types", type=positive, default=10000, metavar="N", help="vocabulary of --synthetic")
    args = parser.parse_args()
    if not (args.data or args.synthetic or args.quick):
        raise UserError("what should be translated? Give --data DATA or --synthetic")
    if args.synthetic and (args.stock or args.ours):
        raise UserError("checkpoints need the data they were trained with: give --data DATA")
    refuse_bf16(args)
    if args.quick:
        args.repetitions, args.sentences, args.length, args.lines = 1, 16, 4, 200
        args.beams, args.batch_sizes = [2], [8]
    return args


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what does not depend on the data."""
    measuring.add_arguments(parser, SIDES, ["stock", "ours"])
    add = parser.add_argument
    add(
        "--lines",
        type=positive,
        default=4000,
        metavar="N",
        help="that CTranslate2 translates (default: %(default)s)",
    )
    add(
        "--flags",
        type=program.flags,
        default="",
        help="more flags of fairseq-generate for all its sides",
    )


def refuse_bf16(args: argparse.Namespace) -> None:
    """Raise a `UserError` at a precision that nothing translates in."""
    if args.precision == "bf16":
        raise UserError("fairseq-generate knows no bf16: choose --precision fp16 or fp32")


def prepare_models(
    folder: Path,
    sides: Mapping[str, Side],
    args: argparse.Namespace,
    device: Device,
) -> dict[tuple[str, str], Path]:
    """The file of each checkpoint that the sides use, and of what was exported from it.

    Raises:
        UserError: if a checkpoint is missing, of no use, or given for one architecture only.
    """
    used = dict.fromkeys(side.checkpoint for side in sides.values())
    for name in ARCHITECTURES:
        if getattr(args, name) and name not in used:
            raise UserError(f"--{name} {getattr(args, name)}: no side of --sides uses it")
    given = [name for name in used if getattr(args, name)]
    if given and len(given) < len(used):
        raise UserError("give a checkpoint to both --stock and --ours, or to neither")
    models = {}
    for name in used:
        measuring.say(f"the model of {name}")
        models[name, ""] = getattr(args, name) or folder / f"{name}.pt"
        if not given:
            in_process.save_endless_model(
                flags_of_model(name, folder / "data", args), models[name, ""]
            )
        elif not models[name, ""].is_file():
            raise UserError(f"{models[name, '']}: no such file")
    for name, quantization in {(x.checkpoint, x.quantization) for x in sides.values()}:
        if not quantization:
            continue
        if not (folder / "data" / "code").is_file():
            raise UserError(
                "CTranslate2 is measured on raw text: give --data the folder that a recipe's "
                "prepare stage wrote, with preprocessing.json, code and reference/"
            )
        measuring.say(f"exporting {name} in {quantization}")
        models[name, quantization] = folder / f"{name}-{quantization}"
        measuring.run(
            device,
            *("macaron-fairseq", "export", "--path", models[name, ""], "--data", folder / "data"),
            *("--quantization", quantization),
            *("--output", models[name, quantization]),
        )
    return models


def flags_of_model(name: str, data: Path, args: argparse.Namespace) -> list[str]:
    """What fairseq-train would be given for a model of that architecture."""
    folder = corpora.data_bin(data)
    shared = corpora.shares_dictionary(folder)
    return [
        str(folder),
        "--share-all-embeddings" if shared else "--share-decoder-input-output-embed",
        *(flag.replace("{size}", f"_{args.size}") for flag in ARCHITECTURES[name]),
        *("--optimizer", "adam", "--max-tokens", "4096"),
        *(measuring.SMALL if args.quick else []),
    ]


def compare(
    folder: Path,
    models: Mapping[tuple[str, str], Path],
    sides: Mapping[str, Side],
    beam: int,
    batch_size: int,
    args: argparse.Namespace,
    device: Device,
) -> list[Figures]:
    """Measure all sides with one beam and batch size, in turn."""
    search: list[object] = ["--beam", beam, "--batch-size", batch_size]
    if not (args.stock or args.ours):
        search += ["--max-len-b", args.length]

    def measure(name: str, _: int) -> Figures:
        side = sides[name]
        model = models[side.checkpoint, side.quantization]
        flags = [*search, *side.flags]
        if side.quantization:
            return measure_translate(model, folder / "data", flags, args, device)
        flags += shlex.split(args.flags)
        return measure_generate(model, folder, flags, args, device)

    title = f"beam {beam}, batches of {batch_size}: repetition"
    return measuring.interleave(list(sides), args.repetitions, measure, title)


def measure_generate(
    model: Path, folder: Path, flags: list[object], args: argparse.Namespace, device: Device
) -> Figures:
    """Run fairseq-generate on one sentence and on the set test."""
    start, run = (
        measuring.run(
            device,
            "fairseq-generate",
            *(folder / name / "data-bin", *measuring.USER_DIR, "--path", model, *flags),
            *(*device.flags, "--gen-subset", "test", "--required-batch-size-multiple", 1),
            *("--post-process", "subword_nmt"),
        )
        for name in ("one", "data")
    )
    summary = read_summary(run.output)
    return {**summary, **without_start(start, run, summary["sentences"], args)}


def without_start(start: Run, run: Run, sentences: int, args: argparse.Namespace) -> Figures:
    """Speed and costs of a run; `start` was one with a single sentence.

    Raises:
        UserError: if there is no time that they differ by.
    """
    # So little work as --quick has may be less than what two starts differ by.
    seconds = run.seconds if args.quick else run.seconds - start.seconds
    if seconds <= 0:
        raise UserError(
            f"{sentences} sentences take no longer than one: give more --lines or --sentences"
        )
    speed = (sentences - 1) / seconds
    return {"sentences_per_second": speed, "start_seconds": start.seconds, **run.costs}


def read_summary(output: str) -> Figures:
    """Sentences, tokens with the sentences' ends, and the search's speed that was printed.

    Raises:
        UserError: if it printed none.
    """
    if not (match := SUMMARY.search(output)):
        raise UserError("fairseq-generate did not say how fast it was")
    sentences, tokens = (int(text.replace(",", "")) for text in match.groups()[:2])
    return {
        "sentences": sentences,
        "tokens_per_sentence": tokens / sentences,
        "searched_per_second": float(match[3]),
    }


def measure_translate(
    model: Path, data: Path, flags: list[object], args: argparse.Namespace, device: Device
) -> Figures:
    """Run macaron-fairseq translate on one line and on many, the test set's again and again."""
    lines: int = args.lines
    (text,) = (data / "reference").iterdir()
    whole, one, output = (data / name for name in ("whole", "one", "output"))
    test = list(text_lines.read_lines(text))
    files.write_lines(whole, itertools.islice(itertools.cycle(test), lines))
    files.write_lines(one, test[:1])
    command = [
        *("translate", "--path", model),
        *("--data", data, *flags, "-o", output, *([] if device.gpu else ["--cpu"])),
    ]
    start = measuring.run(device, "macaron-fairseq", *command, one)
    run = measuring.run(device, "macaron-fairseq", *command, whole)
    found = {"sentences": lines, **without_start(start, run, lines, args)}
    return {**found, "peak_gpu_memory_mib": None}  # CTranslate2's allocator does not tell


def rows_of(
    repetitions: Sequence[Figures], sides: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """The header and a row for each side of one case, which is compared with the first one."""
    base = sides[0]
    header = ["side", "sentences/s", f"speed / {base}", "by fairseq's stopwatch"]
    header += ["tokens/sentence", "peak MiB", f"memory / {base}", "peak GPU MiB"]
    on_gpu = any(x.get("peak_gpu_memory_mib") is not None for x in repetitions)
    peak = "peak_gpu_memory_mib" if on_gpu else "peak_memory_of_all_mib"
    rows = [
        [
            side,
            number(measuring.median(repetitions, side, "sentences_per_second"), ",.1f"),
            measuring.with_range(measuring.ratios(repetitions, side, base, "sentences_per_second")),
            measuring.with_range(measuring.ratios(repetitions, side, base, "searched_per_second")),
            number(measuring.median(repetitions, side, "tokens_per_sentence"), ".1f"),
            number(measuring.median(repetitions, side, "peak_memory_of_all_mib"), ",.0f"),
            measuring.with_range(measuring.ratios(repetitions, side, base, peak)),
            number(measuring.median(repetitions, side, "peak_gpu_memory_mib"), ",.0f"),
        ]
        for side in sides
    ]
    return header, rows


def notes(args: argparse.Namespace, parameters: Mapping[str, int]) -> list[str]:
    """What a reader of the table must know."""
    models = f"random weights, {args.length} tokens and the end forced on every translation"
    if args.stock or args.ours:
        models = "trained checkpoints, which end their translations themselves"
    return [
        f"{args.repetitions} repetitions in turn, of {args.sentences:,} sentences; medians (and "
        "range); tokens/sentence counts the end",
        "parameters: " + ", ".join(f"{name} {n:,}" for name, n in parameters.items()),
        models,
        "whole commands without start-up; CTranslate2's with the text work of `translate`",
    ]


if __name__ == "__main__":
    program.start(main)
