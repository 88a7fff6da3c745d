"""What the benchmarks share: child processes, taking turns, the machine and its ceiling, output."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from shlex import split
from typing import Any

import torch
from tqdm import tqdm

import macaron_fairseq
from harness import memory
from macaron_fairseq.commands.arguments import new_file, positive
from macaron_fairseq.common import environment, files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.fast import linear
from macaron_fairseq.model.architectures import SIZES

CHILD = Path(__file__).with_name("child.py")
USER_DIR = ["--user-dir", str(Path(macaron_fairseq.__file__).parent)]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Prefixes of environment variables that change speed; the report lists those that are set.
VARIABLES = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "MALLOC_", "GLIBC_", "LD_PRELOAD"),
    *("CUDA_", "CUBLAS_", "NVIDIA_", "PYTORCH_", "TORCH"),
)
# cuDNN's attention plans anew for each shape of a batch, and batches of text have many.
NO_PLANS = {"TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"}
# For --quick: 2+2 layers, 16 wide.
SMALL = split(
    "--encoder-embed-dim 16 --encoder-layers 2 --encoder-attention-heads 2 "
    "--decoder-embed-dim 16 --decoder-layers 2 --decoder-attention-heads 2"
)

Figures = dict[str, Any]

# --- command line --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """Where all sides compute."""

    gpu: bool
    precision: str
    threads: int

    @property
    def flags(self) -> list[str]:
        """It as fairseq's flags."""
        if not self.gpu:
            return ["--cpu"]
        if self.precision == "fp16":
            return ["--fp16", "--fp16-init-scale", "1"]  # an overflow would cost an update
        return [] if self.precision == "fp32" else [f"--{self.precision}"]


def add_arguments(
    parser: argparse.ArgumentParser,
    sides: Iterable[str],
    default: Sequence[str],
    sizes: Iterable[str] = SIZES,
    may_be_gpu: bool = True,
) -> None:
    """Add what every benchmark takes; those of one device do not ask for it."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add(
        "--sides",
        nargs="+",
        default=list(default),
        metavar="SIDE",
        help=f"what to compare, the first being what the others are divided by: "
        f"{', '.join(sides)} (default: {' '.join(default)})",
    )
    of = [name.removeprefix("_") for name in sizes if name]
    add("--size", choices=of, default="tiny", help="of the architectures (default: tiny)")
    add("--repetitions", type=positive, default=3, metavar="N", help="(default: %(default)s)")
    add("--threads", type=positive, metavar="N", help="of each process (default: all cores)")
    if may_be_gpu:
        add("--cpu", action="store_true", help="compute on the CPU even if there is a GPU")
        help = "fp16 and bf16 need a GPU (default: fp32)"
        add("--precision", choices=DTYPES, default="fp32", help=help)
    else:
        parser.set_defaults(cpu=True, precision="fp32")
    add("--json", type=new_file, metavar="FILE", help="write all figures there")
    add("--quick", action="store_true", help="see in less than a minute whether it runs")


def chosen(names: Sequence[str], sides: dict[str, Any]) -> dict[str, Any]:
    """The sides of these names, in this order; a `UserError` lists what there is."""
    for name in names:
        if name not in sides:
            raise UserError(f"there is no side '{name}': choose from {', '.join(sides)}")
    return {name: sides[name] for name in names}


def device(args: argparse.Namespace) -> Device:
    """Where to compute; sets this process's threads.

    Raises:
        UserError: if half precision is asked for without a GPU.
    """
    gpu = torch.cuda.is_available() and not args.cpu
    if args.precision != "fp32" and not gpu:
        raise UserError(f"--precision {args.precision} needs a GPU: leave it out on a CPU")
    threads = args.threads or environment.available_cores()
    torch.set_num_threads(threads)
    return Device(gpu, args.precision, threads)


# --- child processes -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What a command printed, how long it ran, and its memory at most; None without a GPU."""

    output: str
    seconds: float
    peak_memory_mib: float  # of the command's own process
    peak_memory_of_all_mib: float  # with those that it started, as far as it was seen
    peak_gpu_memory_mib: float | None

    @property
    def costs(self) -> Figures:
        """Its memory and time, as figures of a repetition."""
        return {
            "peak_memory_mib": self.peak_memory_mib,
            "peak_memory_of_all_mib": self.peak_memory_of_all_mib,
            "peak_gpu_memory_mib": self.peak_gpu_memory_mib,
            "process_seconds": self.seconds,
        }


def run(device: Device, name: str, *words: object) -> Run:
    """Run a command of this environment in its own process.

    Raises:
        UserError: if it fails, with the end of what it printed.
    """
    threads = {name: str(device.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] if device.gpu else ""
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("w+b") as log:
        peaks = Path(folder, "peaks.json")
        process = subprocess.Popen(
            [sys.executable, CHILD, peaks, name, *map(str, words)],
            env={**NO_PLANS, **os.environ, **threads, "CUDA_VISIBLE_DEVICES": gpu},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        begin = time.perf_counter()
        try:
            peak = memory.wait(process)
        finally:
            process.kill()  # what an interruption left
            process.wait()
        seconds = time.perf_counter() - begin
        log.seek(0)
        output = log.read().decode(errors="replace")
        if status := process.returncode:
            reason = "was killed, perhaps for want of memory" if status == -9 else "failed"
            raise UserError(f"{output[-2000:]}\n{name} {reason}; the end of its output is above")
        own = json.loads(peaks.read_text("utf-8"))
        together = max(peak, own["peak_memory_mib"])
        return Run(output, seconds, **own, peak_memory_of_all_mib=together)


# --- taking turns --------------------------------------------------------------------------------


def interleave(
    sides: Sequence[str],
    repetitions: int,
    measure: Callable[[str, int], Figures],
    title: str = "repetition",
    first: int = 0,
) -> list[Figures]:
    """Measure A B C, B C A, ..., so that all sides meet the same moods of a machine.

    Each measurement also gets its side, its number, and the processes that were busy before it. So
    it does the seconds of this machine's cores that its host gave to others meanwhile.

    Args:
        sides: what is compared.
        repetitions: how often each is measured.
        measure: takes a side and the number of the repetition, from 1.
        title: what stderr calls a repetition.
        first: how far the sides are turned in the first repetition.
    """
    found = []
    with tqdm(total=repetitions * len(sides), leave=False, disable=None) as bar:
        for repetition in range(1, repetitions + 1):
            turn = (first + repetition - 1) % len(sides)
            for side in [*sides[turn:], *sides[:turn]]:
                bar.set_postfix_str(side)
                about = {"side": side, "repetition": repetition, "load": os.getloadavg()[0]}
                stolen, begin = stolen_seconds(), time.perf_counter()
                figures = measure(side, repetition)
                seconds = duration(time.perf_counter() - begin)
                say(f"{title} {repetition}/{repetitions}, side {side}: {seconds}")
                found.append({**about, "stolen_seconds": stolen_seconds() - stolen, **figures})
                bar.update()
    return found


def say(text: str) -> None:
    """Tell what is being done, on stderr; on a terminal above the bar."""
    tqdm.write(text, file=sys.stderr)


def duration(seconds: float) -> str:
    """Seconds as one reads them."""
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def stolen_seconds() -> float:
    """Since the start of a virtual machine, summed over its cores; 0 where nothing tells."""
    try:
        fields = Path("/proc/stat").read_text("utf-8").split("\n", 1)[0].split()
        return int(fields[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


# --- statistics ----------------------------------------------------------------------------------


def values(repetitions: Sequence[Figures], side: str, figure: str) -> list[float]:
    """A figure in all repetitions of a side, where it has one."""
    found = (x.get(figure) for x in repetitions if x["side"] == side)
    return [value for value in found if value is not None]


def median(repetitions: Sequence[Figures], side: str, figure: str) -> float | None:
    """The median over a side's repetitions."""
    found = values(repetitions, side, figure)
    return statistics.median(found) if found else None


def ratios(repetitions: Sequence[Figures], side: str, base: str, figure: str) -> list[float]:
    """A side's figure over the base's, repetition by repetition, in rising order."""
    of_both = [
        {x["repetition"]: x[figure] for x in repetitions if x["side"] == name and x.get(figure)}
        for name in (side, base)
    ]
    return sorted(one / of_both[1][i] for i, one in of_both[0].items() if i in of_both[1])


# --- the machine ---------------------------------------------------------------------------------


@dataclass
class Ceiling:
    """The fastest matrix products of this machine: large, square, nothing else done."""

    device: Device
    largest: int | None = None  # rows; None: what fits the device
    products: list[Figures] = field(default_factory=list)

    def measure(self) -> None:
        """Measure each precision once more."""
        for precision in DTYPES if self.device.gpu else ("fp32", "bf16"):
            size, seconds = fastest_product(self.device.gpu, precision, self.largest)
            gflops = 2 * size**3 / seconds / 1e9
            self.products.append({"precision": precision, "size": size, "gflops": gflops})

    def gflops(self, precision: str) -> float:
        """The best that was seen."""
        return max(x["gflops"] for x in self.products if x["precision"] == precision)


def fastest_product(gpu: bool, precision: str, largest: int | None) -> tuple[int, float]:
    """Rows of a product that keeps the device busy for a while, and its seconds at best."""
    largest = largest or (16384 if gpu else 4096)
    size, enough = 256, 0.02 if gpu else 0.2
    while size < largest and product_time(gpu, precision, size, 1) < enough:
        size *= 2
    return size, product_time(gpu, precision, size, best_of=5)


def product_time(gpu: bool, precision: str, size: int, best_of: int) -> float:
    """Seconds of a product of size x size matrices, at best and by the fastest library."""
    where = "cuda" if gpu else "cpu"
    a, b, product = torch.randn(3, size, size, device=where).to(DTYPES[precision])
    ways: list[Callable[[], Any]] = [lambda: torch.mm(a, b, out=product)]
    if not gpu and precision == "fp32" and linear.is_known_here():  # MKL is not the only one
        ways.append(lambda: linear.multiply(a, b, None))
    times = []
    for multiply in ways:
        for turn in range(best_of + 1):
            begin = time.perf_counter()
            multiply()
            if gpu:
                torch.cuda.synchronize()
            if turn:  # the first one is slower
                times.append(time.perf_counter() - begin)
    if gpu:
        del a, b, product
        torch.cuda.empty_cache()  # for the sides
    return min(times)


def machine(device: Device) -> Figures:
    """The machine, and what of the environment bears on speed."""
    variables = {
        # No folders of this machine, only what was preloaded.
        name: " ".join(Path(word).name for word in value.replace(":", " ").split())
        for name, value in sorted(os.environ.items())
        if name.startswith(VARIABLES) and not name.endswith("_DIR")
    }
    if device.gpu:
        variables = {**NO_PLANS, **variables}
    return {
        **environment.hardware(),
        "cpu_family": environment.of_first_cpu("cpu family"),  # models may share a name
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": device.threads,
        "device": "gpu" if device.gpu else "cpu",
        "precision": device.precision,
        "variables": variables,
    }


# --- output --------------------------------------------------------------------------------------


def report(
    args: argparse.Namespace,
    device: Device,
    table: str,
    notes: Sequence[str],
    **figures: Any,
) -> None:
    """Print the table and write --json, whole or not at all.

    Args:
        args: the command line; of files and folders only the names are kept.
        device: where it was measured.
        table: in Markdown.
        notes: what a reader of the table must know.
        figures: what was measured.
    """
    about = machine(device)
    gpu = about["gpus"][0] if device.gpu else f"threads: {device.threads}"
    lines = [f"{date.today()}, {about['cpu']}, {about['cores']} cores, {gpu}", *notes]
    print(table, "", *(f"- {line}" for line in lines), sep="\n")
    if args.json:
        settings = {
            name: value.name if isinstance(value, Path) else value
            for name, value in vars(args).items()
        }
        result = {
            "date": str(date.today()),
            "machine": about,
            "versions": environment.versions(),
            "code": environment.code(),
            "settings": settings,
            **figures,
        }
        files.write(args.json, json.dumps(result, indent=1) + "\n")


def with_quartiles(found: Sequence[float]) -> str:
    """The median of two ratios or more, and its quartiles."""
    first, middle, last = statistics.quantiles(found, n=4, method="inclusive")
    return f"{middle:.2f} ({first:.2f}-{last:.2f})"


def with_range(found: Sequence[float]) -> str:
    """The median of ratios and, of several, how far they spread."""
    if not found:
        return "-"
    middle = f"{statistics.median(found):.2f}"
    return middle if len(found) == 1 else f"{middle} ({min(found):.2f}-{max(found):.2f})"
