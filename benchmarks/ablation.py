"""What each part of macaron_fairseq/fast gains: time without it over time with everything.

  python benchmarks/ablation.py --data DATA --json ablation.json
  python benchmarks/ablation.py --data DATA --sizes tiny --work translation --repetitions 60

A row of the table leaves out one part. Its figure is a ratio: 1.20 says that without the part the
same work takes 1.20 times as long, 1.00 that the part gains nothing. It is the median, with
quartiles, over single updates (training), batches (translation) or runs of all batches (the rows
of processes). All rows take each of them in turn, in one process; the first ones are not counted.
Models have random weights and translate each sentence into --length tokens and the end. Memory is
not measured: training.py and generation.py do so. Parts overlap, so that their gains do not
multiply to that of all together.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import generation
import single_updates
from fairseq.modules.fairseq_dropout import FairseqDropout
from harness import corpora, in_process, measuring, program, sides
from harness.leaving_out import EVERYTHING, STOCK, Row, at_no_time, never
from harness.measuring import Figures
from harness.worker import Translator

from macaron_fairseq.commands.arguments import new_file, positive
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.markdown import table
from macaron_fairseq.fast import activation, beam_search, linear, task
from macaron_fairseq.fast.attention import Attention
from macaron_fairseq.fast.beam_search import CandidateModel
from macaron_fairseq.fast.dropout import Dropout
from macaron_fairseq.model.architectures import SIZES

PARALLEL, IN_TURN = "everything, in parallel", "parallel processes"
ATTENTION = Row(
    "fairseq's MultiheadAttention instead", instead=((Attention, "is_standard", never),)
)
ONEDNN = Row("PyTorch's linear maps instead, by MKL", instead=((linear, "is_faster", never),))
STOCK_CRITERION = ("--criterion", "label_smoothed_cross_entropy")

TRAINING = {
    EVERYTHING: Row("milliseconds of an update with all parts"),
    "criterion": Row("fairseq's label_smoothed_cross_entropy instead", STOCK_CRITERION),
    "attention": ATTENTION,
    "dropout": Row(
        "FairseqDropout instead", instead=((Dropout, "forward", FairseqDropout.forward),)
    ),
    "linear maps by oneDNN": ONEDNN,
    "all of them": Row(
        "--macaron-kernels fairseq and fairseq's criterion",
        (*STOCK_CRITERION, "--macaron-kernels", "fairseq"),
    ),
    "stock fairseq": STOCK,
}
AS_LANGUAGE_MODELS = ["--activation-fn", "gelu", "--activation-dropout", "0"]
GELU = {
    EVERYTHING: TRAINING[EVERYTHING],
    "GELU": Row("its result is stored", instead=((activation, "is_useful", never),)),
}
TRANSLATION = {
    EVERYTHING: Row("milliseconds of a batch with all parts, one batch after the other"),
    "candidate search": Row(
        "fairseq's SequenceGenerator instead; the parts of the search go with it",
        task="translation",
    ),
    "attention": ATTENTION,
    "linear maps by oneDNN": ONEDNN,
    "constant weights": Row(
        "weights are fused, and put into oneDNN's blocks, for each token",
        instead=((CandidateModel, "constant_weights", at_no_time),),
    ),
    "best types by group": Row(
        "torch.topk instead", instead=((beam_search, "top_k", lambda x, count: x.topk(count)),)
    ),
    "all of them": Row(
        "--macaron-kernels fairseq and fairseq's search",
        ("--model-overrides", "{'macaron_kernels': 'fairseq'}"),
        task="translation",
    ),
    "stock fairseq": replace(STOCK, task="translation"),
}
# Each measurement translates all batches, and starts the processes.
WHOLE = {
    PARALLEL: Row("milliseconds of all batches, some at a time"),
    IN_TURN: Row("all batches, one after the other", ("--decoding-processes", "1")),
}
ROWS = {"training": TRAINING, "gelu": GELU, "translation": {**TRANSLATION, **WHOLE}}
BASES = dict.fromkeys(WHOLE, PARALLEL)  # of all other rows it is EVERYTHING

REPETITIONS = {"tiny": 24, "iwslt_de_en": 8}
SKIP, SKIP_RUNS = 2, 1  # of updates, and of runs of all batches


def main() -> None:
    """Measure and report."""
    args = parse()
    device = measuring.device(args)
    found: list[Figures] = []
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder, data = Path(name), args.data
        if data is None:
            data = folder / "synthetic"
            corpora.write_synthetic(data, 1000, corpora.SYNTHETIC_LENGTHS, train=500, test=100)
        args.sentences = args.batches * args.batch_size
        if "translation" in args.work:
            args.sentences = corpora.sample(data, "test", args.sentences, folder / "data")
        about = corpora.about(data)
        for size in args.sizes:
            of_size = argparse.Namespace(**{**vars(args), "size": size})
            of_size.repetitions = args.repetitions or REPETITIONS.get(size, 8)
            for work in args.work:
                if work == "translation":
                    figures = measure_translation(data, folder, of_size)
                else:
                    figures = measure_training(data, work, of_size)
                found += [{"work": work, "size": size, **x} for x in figures]
    notes = [
        f"updates, or batches of {args.batch_size} of {args.sentences} sentences, beam "
        f"{args.beam}, {args.length} tokens and the end",
        "time without the part / time with everything: median and quartiles",
    ]
    text = table(*rows_of(found))
    measuring.report(args, device, text, notes, data=about, repetitions=found)


# --- measuring -----------------------------------------------------------------------------------


def measure_training(data: Path, work: str, args: argparse.Namespace) -> list[Figures]:
    """Updates of all rows of a kind of work."""
    common = sides.common_flags(data, args.flags)
    if work == "gelu":
        common += AS_LANGUAGE_MODELS
    trainers = {}
    for name, row in ROWS[work].items():
        flags = [*sides.SIDES[row.side], *row.flags]
        flags = [flag.replace("{size}", f"_{args.size}") for flag in flags]
        trainers[name] = in_process.build_trainer([*common, *flags])
    return single_updates.take_in_turn(
        trainers,
        SKIP,
        args.repetitions,
        lambda side: ROWS[work][side].left_out(),
        f"{work}, {args.size}: update",
    )


def measure_translation(data: Path, folder: Path, args: argparse.Namespace) -> list[Figures]:
    """Batches of all rows, then whole runs."""
    models = {}
    for name in generation.ARCHITECTURES:
        models[name] = folder / f"{name}-{args.size}.pt"
        flags = generation.flags_of_model(name, folder / "data", args)
        in_process.save_endless_model(flags, models[name])
    loaded: dict[tuple[str, ...], Translator] = {}  # what is left out in a call needs none more
    translators = {}
    for name, row in {**TRANSLATION, **WHOLE}.items():
        key = row.side, row.task, *row.flags
        loaded[key] = loaded.get(key) or load(row, models, folder / "data", args)
        translators[name] = loaded[key]
    count = len(translators[EVERYTHING].samples)

    turns = [*range(count), *spread(args.repetitions, count)]  # a shape's first time is slower

    def translate(side: str, repetition: int) -> Figures:
        with TRANSLATION[side].left_out():
            return timed(lambda: translators[side].translate(turns[repetition - 1]))

    def translate_all(side: str, _: int) -> Figures:
        return timed(lambda: run_whole(translators[side]))

    title = f"translation, {args.size}:"
    found = measuring.interleave(list(TRANSLATION), len(turns), translate, f"{title} batch")
    runs = SKIP_RUNS + args.runs
    whole = measuring.interleave(list(WHOLE), runs, translate_all, f"{title} run of all batches")
    return [x for x in found if x["repetition"] > count] + [
        x for x in whole if x["repetition"] > SKIP_RUNS
    ]


def spread(turns: int, count: int) -> list[int]:
    """Which of so many batches, sorted by length, each turn takes: some of all lengths."""
    return [(2 * i + 1) * count // (2 * turns) for i in range(turns)]


def load(row: Row, models: Mapping[str, Path], data: Path, args: argparse.Namespace) -> Translator:
    """What translates for a row."""
    flags = ("--max-len-b", str(args.length), *row.flags)
    path, name = str(models[row.side]), row.task or task.NAME
    return Translator(str(corpora.data_bin(data)), path, name, args.beam, args.batch_size, *flags)


def run_whole(translator: Translator) -> None:
    """Translate all batches as fairseq-generate does, with processes where the flags let it."""
    task, models = translator.task, translator.models
    batches = translator.batches()
    generator = task.build_generator(models, translator.cfg.generation)
    try:
        for sample in batches:
            task.inference_step(generator, models, sample)
    finally:
        if task.translated:
            task.translated.workers.close()


def timed(run: Any) -> Figures:
    """Seconds that it takes."""
    begin = time.perf_counter()
    run()
    return {"seconds": time.perf_counter() - begin}


# --- output --------------------------------------------------------------------------------------


def rows_of(found: Sequence[Figures]) -> tuple[list[str], list[list[str]]]:
    """The header, and a row for each part with a column for each kind of work and size."""
    cases: dict[tuple[str, str], list[Figures]] = {}
    for x in found:
        cases.setdefault((x["work"], x["size"]), []).append(x)
    all_sides = dict.fromkeys(side for rows in ROWS.values() for side in rows)
    measured = [side for side in all_sides if any(x["side"] == side for x in found)]
    header = ["left out", *(", ".join(case) for case in cases)]
    return header, [[side, *(cell(x, side) for x in cases.values())] for side in measured]


def cell(found: Sequence[Figures], side: str) -> str:
    """The gain of a part, or the time with everything."""
    seconds, base = measuring.values(found, side, "seconds"), BASES.get(side, EVERYTHING)
    if not seconds:
        return "-"
    if side == base:
        return f"{1000 * statistics.median(seconds):,.0f} ms"
    return measuring.with_quartiles(measuring.ratios(found, side, base, "seconds"))


def parse() -> argparse.Namespace:
    """Parse the command line.

    Raises:
        UserError: if there is nothing to measure with.
    """
    epilog = "\n".join(
        f"rows of {work}:\n" + "\n".join(f"  {name:24}{row.about}" for name, row in rows.items())
        for work, rows in ROWS.items()
    )
    parser = program.parser(__doc__, epilog)
    add = parser.add_argument
    add("--data", type=Path, help="what a recipe's prepare stage or fairseq-preprocess wrote")
    sizes = [name.removeprefix("_") for name in SIZES if name]
    defaults = " ".join(REPETITIONS)
    add(
        "--sizes",
        nargs="+",
        choices=sizes,
        default=list(REPETITIONS),
        metavar="SIZE",
        help=f"of the architectures: {', '.join(sizes)} (default: {defaults})",
    )
    add("--work", nargs="+", choices=ROWS, default=list(ROWS), help="(default: all)")
    add(
        "--repetitions",
        type=positive,
        metavar="N",
        help="updates and batches that count (default: 24 of tiny, else 8)",
    )
    add(
        "--runs",
        type=positive,
        default=5,
        metavar="N",
        help="of all batches that count (default: %(default)s)",
    )
    add("--beam", type=positive, default=5, metavar="N", help="(default: %(default)s)")
    add("--batch-size", type=positive, default=64, metavar="N", help="(default: %(default)s)")
    add(
        "--batches",
        type=positive,
        default=8,
        metavar="N",
        help="which are translated again and again (default: %(default)s)",
    )
    add("--length", type=positive, default=14, metavar="N", help="(default: %(default)s)")
    add("--threads", type=positive, metavar="N", help="(default: all cores)")
    add("--json", type=new_file, metavar="FILE", help="write all figures there")
    add("--quick", action="store_true", help="see in less than a minute whether it runs")
    parser.set_defaults(cpu=True, precision="fp32", flags="")
    args = parser.parse_args()
    if args.quick:
        args.sizes, args.repetitions, args.runs = args.sizes[:1], 2, 2
        args.beam, args.batch_size, args.batches, args.length = 2, 8, 2, 4
        args.flags = sides.QUICK
    elif args.data is None:
        raise UserError("what should be trained on and translated? Give --data DATA")
    for name in ("repetitions", "runs"):
        if getattr(args, name) == 1:
            raise UserError(f"--{name} 1 has no quartiles: give 2 or more")
    return args


if __name__ == "__main__":
    program.start(main)
