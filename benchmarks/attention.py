"""From which sentence length on PyTorch's fused attention pays on a CPU.

  python benchmarks/attention.py --size tiny --json attention.json

Self-attention of one layer, its projections included, on a batch of sentences with up to a quarter
of padding: by two matrix products, and by the kernel. What this prints is why `Attention` of
`macaron_fairseq.acceleration` takes the one or the other.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import measuring
import torch
from measuring import Figures
from torch import Tensor
from tqdm import tqdm

from macaron_fairseq.acceleration.attention import Attention
from macaron_fairseq.commands.arguments import positive
from macaron_fairseq.model.architectures import SIZES
from macaron_fairseq.reports.tables import table


class Products(Attention):
    """Two matrix products at any length."""

    def is_for_kernel(self, q: Tensor, k: Tensor, dropout: float) -> bool:
        """Never."""
        return False


class Kernel(Attention):
    """PyTorch's fused kernel at any length."""

    def is_for_kernel(self, q: Tensor, k: Tensor, dropout: float) -> bool:
        """Always."""
        return True


SIDES = {"products": Products, "kernel": Kernel}
WORK = ("fp32 training", "fp32 evaluation", "bf16 training")


def main() -> None:
    """Measure and report."""
    args = parse()
    device = measuring.device(args)
    cases = list(itertools.product(args.lengths, WORK))
    found = {}
    with tqdm(total=len(cases) * args.repetitions * len(SIDES), disable=None) as bar:
        for length, work in cases:
            batch = max(1, args.tokens // length)
            run = {side: prepared(kind, work, args, batch, length) for side, kind in SIDES.items()}
            measure = partial(timed, run)
            found[length, work] = measuring.interleave(list(SIDES), args.repetitions, measure, bar)
    header = ["tokens", *(f"{work}: {', '.join(SIDES)}, ms" for work in WORK)]
    rows = [[str(length), *(cell(found[length, work]) for work in WORK)] for length in args.lengths]
    note = (
        f"{args.repetitions} repetitions in turn, of batches of {args.tokens} tokens; medians, and "
        "the kernel's time over the products' (and its range)"
    )
    repetitions = [{"length": n, "work": work} | x for n, work in cases for x in found[n, work]]
    measuring.report(args, device, table(header, rows), [note], repetitions=repetitions)


def prepared(
    kind: type[Attention], work: str, args: argparse.Namespace, batch: int, length: int
) -> Callable[[], None]:
    """What does the work once; it was done before, since the first time is slower."""
    torch.manual_seed(1)
    size = SIZES[f"_{args.size}"]
    attention = kind(size.embed_dim, size.heads, self_attention=True)
    trains = work.endswith("training")
    attention.train(trains)
    x = torch.randn(length, batch, size.embed_dim)
    padding = torch.arange(length) >= torch.randint(length - length // 4, length + 1, (batch, 1))

    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in work):
            y, _ = attention(x, x, x, key_padding_mask=padding, need_weights=False)
        if trains:
            y.sum().backward()

    run = run if trains else torch.no_grad()(run)
    run()
    return run


def timed(run: Mapping[str, Callable[[], None]], side: str) -> Figures:
    """How long a side takes."""
    begin = time.perf_counter()
    run[side]()
    return {"seconds": time.perf_counter() - begin}


def cell(figures: list[Figures]) -> str:
    """Medians of the sides, and the ratio with its range."""
    times = [statistics.median(measuring.values(figures, side, "seconds")) for side in SIDES]
    ratio = measuring.with_range(measuring.ratios(figures, "kernel", "products", "seconds"))
    return f"{', '.join(f'{1000 * x:.1f}' for x in times)}: {ratio}"


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    sizes = [name.removeprefix("_") for name in SIZES if name]
    add("--size", choices=sizes, default="tiny", help="of the architectures (default: tiny)")
    add(
        "--lengths",
        type=positive,
        nargs="+",
        default=[16, 32, 64, 128, 256, 512],
        metavar="N",
        help="tokens of a sentence (default: 16 to 512)",
    )
    add("--tokens", type=positive, default=4096, metavar="N", help="of a batch (default: 4096)")
    add("--repetitions", type=positive, default=9, metavar="N", help="(default: 9)")
    add("--threads", type=positive, metavar="N", help="(default: all cores)")
    add("--json", type=Path, metavar="FILE", help="write all figures there")
    add("--quick", action="store_true", help="see in less than a minute whether it runs")
    parser.set_defaults(cpu=True, precision="fp32")
    args = parser.parse_args()
    if args.quick:
        args.lengths, args.tokens, args.repetitions = [8], 64, 1
    return args


if __name__ == "__main__":
    measuring.start(main)
