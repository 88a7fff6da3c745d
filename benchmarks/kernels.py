"""What this package's choices between two kernels on a CPU rest on.

  python benchmarks/kernels.py attention --size tiny --json attention.json
  python benchmarks/kernels.py linear --size iwslt_de_en

attention: self-attention of one layer, its projections included, by two matrix products and by
PyTorch's fused kernel. Batches have up to a quarter of padding. linear: the linear maps of a model
by MKL and by oneDNN. Training has the gradients as they are computed since Zen 5, decoding the
weight in oneDNN's blocks.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from unittest.mock import patch

import torch
from harness import measuring, program
from harness.measuring import Figures
from torch import Tensor
from torch.nn import functional

from macaron_fairseq.commands.arguments import new_file, positive
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.markdown import table
from macaron_fairseq.fast import attention, linear
from macaron_fairseq.fast.chunked_loss import CHUNK_ELEMENTS_CPU
from macaron_fairseq.model.architectures import SIZES

Run = Callable[[], object]
Case = tuple[str, str]  # a row and a column of the table

BEAMS = 5 * 64, 5  # hypotheses of which decoding projects one token each


def main() -> None:
    """Measure and report."""
    args = parse()
    device = measuring.device(args)
    cases = KINDS[args.kind](args)
    found = {}
    for case, prepare in cases.items():
        sides = prepare()
        for run in sides.values():
            run()  # the first one is slower
        title = f"{', '.join(case)}: repetition"
        measure = partial(timed, sides)
        found[case] = measuring.interleave(list(sides), args.repetitions, measure, title)
    rows, columns = (list(dict.fromkeys(x)) for x in zip(*cases, strict=True))
    base, other = sides
    header = [args.kind, *(f"{column}: {base}, {other}, ms" for column in columns)]
    cells = [[row, *(cell(found.get((row, x), []), base, other) for x in columns)] for row in rows]
    note = (
        f"{args.repetitions} repetitions in turn; medians, and the time of {other} over that of "
        f"{base} (and its range)"
    )
    repetitions = [{"row": row, "column": x} | y for row, x in cases for y in found[row, x]]
    measuring.report(args, device, table(header, cells), [note], repetitions=repetitions)


def timed(sides: Mapping[str, Run], side: str, _: int) -> Figures:
    """How long a side takes."""
    begin = time.perf_counter()
    sides[side]()
    return {"seconds": time.perf_counter() - begin}


def cell(figures: list[Figures], base: str, other: str) -> str:
    """Medians of the sides, and their ratio with its range."""
    if not figures:
        return "-"
    times = [statistics.median(measuring.values(figures, x, "seconds")) for x in (base, other)]
    ratio = measuring.with_range(measuring.ratios(figures, other, base, "seconds"))
    return f"{', '.join(f'{1000 * x:.2f}' for x in times)}: {ratio}"


# --- attention -----------------------------------------------------------------------------------


def attend_cases(args: argparse.Namespace) -> dict[Case, Callable[[], dict[str, Run]]]:
    """Cases by tokens of a sentence and kind of work."""
    work = "fp32 training", "fp32 evaluation", "bf16 training"
    return {
        (f"{length:,} tokens", name): partial(attend_either_way, name, args, length)
        for length in args.lengths
        for name in work
    }


def attend_either_way(work: str, args: argparse.Namespace, length: int) -> dict[str, Run]:
    """The sides of a case."""
    kinds = {"products": False, "kernel": True}
    return {side: attend(is_kernel, work, args, length) for side, is_kernel in kinds.items()}


def attend(is_kernel: bool, work: str, args: argparse.Namespace, length: int) -> Run:
    """What attends once, by the kernel or not, and computes the gradients in training."""
    torch.manual_seed(1)
    size = SIZES[f"_{args.size}"]
    layer = attention.Attention(size.embed_dim, size.heads, self_attention=True)
    trains = work.endswith("training")
    layer.train(trains)
    batch = max(1, args.tokens // length)
    x = torch.randn(length, batch, size.embed_dim)
    padding = torch.arange(length) >= torch.randint(length - length // 4, length + 1, (batch, 1))

    def run() -> None:
        autocast = torch.autocast("cpu", torch.bfloat16, enabled="bf16" in work)
        with patch.object(attention, "is_for_kernel", lambda *_: is_kernel), autocast:
            y, _ = layer(x, x, x, key_padding_mask=padding, need_weights=False)
        if trains:
            y.sum().backward()

    return run if trains else torch.no_grad()(run)


# --- linear maps ----------------------------------------------------------------------------------


def linear_maps(args: argparse.Namespace) -> dict[Case, Callable[[], dict[str, Run]]]:
    """Cases by the linear maps of a model and kind of work.

    Raises:
        UserError: if this PyTorch lacks oneDNN's operator.
    """
    if not linear.is_known_here():
        raise UserError("this PyTorch has not the operator of oneDNN that is measured here")
    size = SIZES[f"_{args.size}"]
    width, inner = size.embed_dim, size.ffn_embed_dim
    maps = {
        "queries, keys and values": (width, 3 * width),
        "attention's output": (width, width),
        "FFN, first": (width, inner),
        "FFN, second": (inner, width),
    }
    found: dict[Case, Callable[[], dict[str, Run]]] = {}
    for name, (inputs, outputs) in maps.items():
        case = f"{name}, {inputs} to {outputs}"
        found[case, f"training, {args.tokens:,} rows"] = partial(
            train, args.tokens, inputs, outputs
        )
        found[case, f"weight's gradient, {args.tokens:,} rows"] = partial(
            gradient, args.tokens, inputs, outputs
        )
        for beams in BEAMS:
            found[case, f"decoding, {beams} rows"] = partial(decode, beams, inputs, outputs)
    rows = min(args.tokens, CHUNK_ELEMENTS_CPU // args.types)
    case = f"vocabulary, {width} to {args.types:,}"
    for beams in BEAMS:
        found[case, f"decoding, {beams} rows"] = partial(decode, beams, width, args.types)
    found[case, f"criterion's scores, {rows} rows"] = partial(evaluate, rows, width, args.types)
    return found


def evaluate(rows: int, inputs: int, outputs: int, in_blocks: bool = False) -> dict[str, Run]:
    """The sides without gradients; the weight may be in oneDNN's blocks before."""
    x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs)
    given = linear.in_blocks(weight) if in_blocks else weight
    return {
        "MKL": partial(functional.linear, x, weight),
        "oneDNN": partial(linear.multiply, x, given, None),
    }


decode = partial(evaluate, in_blocks=True)


def train(rows: int, inputs: int, outputs: int) -> dict[str, Run]:
    """The sides with the gradients of both factors."""
    x, weight = (torch.randn(n, inputs, requires_grad=True) for n in (rows, outputs))
    grad = torch.randn(rows, outputs)

    def run(multiply: Callable[..., Tensor]) -> None:
        torch.autograd.grad(multiply(x, weight, None), (x, weight), grad)

    return {
        "MKL": partial(run, functional.linear),
        "oneDNN": everywhere(partial(run, linear.LinearMap.apply)),
    }


def gradient(rows: int, inputs: int, outputs: int) -> dict[str, Run]:
    """The sides of the weight's gradient alone."""
    grad, x = torch.randn(rows, outputs), torch.randn(rows, inputs)
    return {
        "MKL": partial(torch.mm, grad.t(), x),
        "oneDNN": everywhere(partial(linear.weight_gradient, grad, x)),
    }


def everywhere(run: Run) -> Run:
    """The same by oneDNN also on processors where gradients would be MKL's."""

    def run_by_onednn() -> object:
        with (
            patch.object(linear, "is_faster", lambda: True),
            patch.object(linear, "computes_512_bits", lambda: True),
        ):
            return run()

    return run_by_onednn


KINDS = {"attention": attend_cases, "linear": linear_maps}


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = program.parser(__doc__)
    add = parser.add_argument
    add("kind", choices=KINDS, help="what is to be measured")
    sizes = [name.removeprefix("_") for name in SIZES if name]
    add("--size", choices=sizes, default="tiny", help="of the architectures (default: tiny)")
    add(
        "--lengths",
        type=positive,
        nargs="+",
        default=[16, 32, 64, 128, 256, 512],
        metavar="N",
        help="tokens of a sentence, for attention (default: 16 to 512)",
    )
    add("--tokens", type=positive, default=4096, metavar="N", help="of a batch (default: 4096)")
    add("--types", type=positive, default=10000, metavar="N", help="vocabulary (default: 10000)")
    add("--repetitions", type=positive, default=9, metavar="N", help="(default: 9)")
    add("--threads", type=positive, metavar="N", help="(default: all cores)")
    add("--json", type=new_file, metavar="FILE", help="write all figures there")
    add("--quick", action="store_true", help="see in less than a minute whether it runs")
    parser.set_defaults(cpu=True, precision="fp32")
    args = parser.parse_args()
    if args.quick:
        args.lengths, args.tokens, args.types, args.repetitions = [8], 64, 100, 1
    return args


if __name__ == "__main__":
    program.start(main)
