"""What each part of macaron_fairseq/fast gains on a GPU, and where the host's time goes.

examples:
  python benchmarks/gpu_parts.py --json parts.json
  python benchmarks/gpu_parts.py --device fake --turns 1   # whether it runs

A row leaves out one part: at 1.10 the same update, or search, takes 1.10 times as long without it.
All rows take each turn one after the other in one process; the figure is the median, with
quartiles. Data and sizes are those of gpu_check.py's check `speed`. Then PyTorch's profiler tells,
of stock and of everything, how long the GPU is busy and which operators take the host's time. The
rest is Python, and waiting. A fake GPU has no profile, and counts kernels. The models
of all rows are there at once: some 30 GiB at size big.
"""

import argparse
import contextlib
import gc
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import gpu_check
from harness import program
from harness.leaving_out import EVERYTHING, STOCK, Row, at_no_time, never

from macaron_fairseq.commands.arguments import new_file, positive

PROFILED = 5  # updates or searches
OPERATORS = 25
TIMES = "all", "operators", "GPU busy"


def main() -> None:
    """Measure, print the tables and write the JSON."""
    args = parse()
    gpu_check.begin(args.device)
    from gpu import speed
    from gpu.setups import Device

    from macaron_fairseq.common import files
    from macaron_fairseq.common.markdown import table

    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    shapes = speed.SHAPES[args.device]
    args.shapes = args.shapes or [*shapes]
    if unknown := {*args.shapes} - {*shapes}:
        sys.exit(f"--shapes {min(unknown)}: on this device there are {', '.join(shapes)}")
    found: dict[str, Any] = {"machine": gpu_check.machine(args.device), "parts": {}, "profiles": {}}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        for shape in args.shapes:
            flags, types, tokens = shapes[shape]
            device = Device(args.device, Path(folder), types)
            for work, rows in rows_of_works().items():
                name = f"{work} {shape} {args.precision}"
                print(f"{name} ...", flush=True)
                case = device, work, flags, tokens, args.precision
                found["parts"][name] = parts = compare(rows, case, args.turns)
                cells = [
                    [row, rows[row].about, says(parts, row), str(x["kernels"] or "-")]
                    for row, x in parts.items()
                ]
                show(table(["left out", "how", name, "kernels"], cells))
                if args.device == "cuda":
                    profiles = found["profiles"][name] = {}
                    for side in ("stock fairseq", EVERYTHING):
                        profiles[side] = x = profile(rows[side], case)
                        times = ", ".join(f"{part} {x[part]:.1f} ms" for part in TIMES)
                        lines = [[op, f"{n:.1f}", f"{ms:.2f}"] for op, (n, ms) in x["ops"].items()]
                        show(f"{name}, {side}: {times}")
                        show(table(["operator", "calls", "host, ms without inner ones"], lines))
                if args.json:  # after each: a job may be cut
                    files.write(args.json, files.as_json(found))


def show(text: str) -> None:
    """Print a result at once; other words go to standard error."""
    print(text, end="\n\n", file=sys.__stdout__, flush=True)


def rows_of_works() -> dict[str, dict[str, Row]]:
    """The rows of each work; PyTorch is imported only once there is a device."""
    import torch
    from fairseq.sequence_generator import SequenceGenerator
    from gpu import speed
    from gpu.setups import EXACT
    from torch.nn import functional

    from macaron_fairseq.fast import gpu_kernels
    from macaron_fairseq.fast.attention import Attention
    from macaron_fairseq.fast.beam_search import CandidateModel
    from macaron_fairseq.fast.layers import FusedLayer

    def dropped_relu(x: Any, weight: Any, bias: Any, p: float) -> Any:
        return functional.dropout(functional.linear(x, weight, bias).relu(), p)

    def joined_linear(x: Any, maps: Any) -> Any:
        return torch.cat([functional.linear(x, m.weight, m.bias) for m in maps], -1)

    attention = Row("fairseq's instead, caches too", instead=((Attention, "is_standard", never),))
    ours = Row("all is there")
    steps = FusedLayer, "takes_plain_steps", never
    relu = gpu_kernels, "dropped_relu", dropped_relu
    joined = gpu_kernels, "joined_linear", joined_linear
    weights = CandidateModel, "constant_weights", at_no_time
    return {
        "training": {
            EVERYTHING: ours,
            "criterion": Row("fairseq's instead", tuple(EXACT)),
            "attention": attention,
            "optimizer": Row("fairseq's adam instead", ("--optimizer", "adam")),
            "dropout in the steps' sums": Row("dropout, then the sum", instead=(steps,)),
            "ReLU in its product": Row("product, ReLU, dropout", instead=(relu,)),
            "joined projections": Row("one product each", instead=(joined,)),
            "the last three": Row("all of that", instead=(steps, relu, joined)),
            "stock fairseq": STOCK,
        },
        "generation": {
            EVERYTHING: ours,
            "candidate search": Row(
                "fairseq's instead; constant weights go with it",
                instead=((speed, "CandidateGenerator", SequenceGenerator),),
            ),
            "attention": attention,
            "constant weights": Row("fused for each token", instead=(weights,)),
            "ReLU in its product": Row("product, then ReLU", instead=(relu,)),
            "plain steps": Row("each by way of its sub-step", instead=(steps,)),
            "stock fairseq": STOCK,
        },
    }


def step_of(row: Row, case: Any) -> Callable[[], Any]:
    """One update or search of a row."""
    from gpu import speed

    device, work, flags, tokens, precision = case
    make = speed.trained if work == "training" else speed.translated
    with row.left_out():
        step = make(device, row.side, [*flags, *row.flags], tokens, precision)

    def run() -> None:
        with row.left_out():
            step()

    return run


def compare(rows: dict[str, Row], case: Any, turns: int) -> dict[str, dict[str, Any]]:
    """The seconds of each row in each turn, and how many kernels a fake GPU counts."""
    import torch
    from gpu import speed

    gc.collect()  # the models before these
    torch.cuda.empty_cache()
    steps = {name: step_of(row, case) for name, row in rows.items()}
    found = speed.in_turns(steps, turns, case[0].kind == "cuda", base=None)
    fake = sys.modules.get("fakegpu")
    return {
        name: {
            "seconds": found[f"{name} seconds"],
            "kernels": count_kernels(fake, step) if fake else None,
        }
        for name, step in steps.items()
    }


def count_kernels(fake: Any, step: Callable[[], Any]) -> int:
    """The kernels of an update or a search."""
    fake.clear()
    step()
    return fake.counts()["kernels"]


def profile(row: Row, case: Any) -> dict[str, Any]:
    """Milliseconds of an update or search, of PyTorch's operators in it, and of the GPU."""
    import torch
    from torch.profiler import ProfilerActivity

    step = step_of(row, case)
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(PROFILED):
        step()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(PROFILED):
            step()
        torch.cuda.synchronize()
    on_host = torch.autograd.DeviceType.CPU
    events = [
        x
        for x in profiler.key_averages()
        # fairseq's names of phases span operators, and waiting is no work.
        if x.device_type == on_host
        and not getattr(x, "is_user_annotation", False)
        and "Synchronize" not in x.key
    ]
    events.sort(key=lambda x: -x.self_cpu_time_total)
    return {
        "all": 1e3 * seconds / PROFILED,
        "operators": sum(x.self_cpu_time_total for x in events) / 1e3 / PROFILED,
        "GPU busy": sum(x.self_device_time_total for x in events) / 1e3 / PROFILED,
        "ops": {
            x.key: (x.count / PROFILED, x.self_cpu_time_total / 1e3 / PROFILED)
            for x in events[:OPERATORS]
        },
    }


def says(parts: dict[str, dict[str, Any]], row: str) -> str:
    """The time with everything, or the ratio of a row's to it."""
    without_it, with_all = (parts[x]["seconds"] for x in (row, EVERYTHING))
    if row == EVERYTHING:
        return f"{1000 * median(with_all):.1f} ms"
    pairs = zip(without_it, with_all, strict=True)
    ratios = [without / within for without, within in pairs]
    if len(ratios) == 1:
        return f"{ratios[0]:.2f}"
    from harness import measuring  # PyTorch is loaded by now

    return measuring.with_quartiles(ratios)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = program.parser(__doc__)
    add = parser.add_argument
    add("--device", choices=["cuda", "fake"], default="cuda", help="(default: cuda)")
    add("--shapes", nargs="+", metavar="SHAPE", help="(default: all that the device has)")
    add("--precision", choices=["fp16", "bf16"], default="fp16", help="(default: fp16)")
    add("--turns", type=positive, default=15, metavar="N", help="(default: 15)")
    add("--json", type=new_file, metavar="FILE", help="write all figures there, after each work")
    return parser.parse_args()


if __name__ == "__main__":
    program.start(main)
