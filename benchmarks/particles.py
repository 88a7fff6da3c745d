"""Time and memory of one velocity of n ideal particles: by the whole matrix, and in blocks of rows.

  python benchmarks/particles.py --particles 1000 10000 --dim 3

Each case has its own process, whose memory is what came on top of the particles. The fastest of
all repetitions counts, on the clock and on the processor: where others use the machine, the latter
tells more of one thread and the former of several.
"""

import os
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from harness import program

from macaron_fairseq.commands.arguments import positive
from macaron_fairseq.common.markdown import table

SIDES = {"the whole matrix": 1, "blocks, 1 thread": 1, "blocks, 2 threads": 2}
MATRIX = next(iter(SIDES))
LARGEST_MATRIX = 20_000  # particles: 3 GiB


def measure(side: str, n: int, dim: int, repetitions: int) -> list[str]:
    """The cells of one case: seconds on the clock and on the processor, MiB."""
    os.environ["OMP_NUM_THREADS"] = str(SIDES[side])
    # After the variable, which BLAS reads when it is loaded.
    from macaron_fairseq.analysis import blocks
    from macaron_fairseq.analysis.particles import simulation
    from macaron_fairseq.analysis.particles.systems import System

    if side == MATRIX:
        blocks.ENTRIES = n * n
    system, x = System("sa", 9.0), simulation.random_start(n, dim, seed=1)
    system.velocity(x[:10])
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    clock, processor = [], []
    for _ in range(repetitions):
        begin, busy = time.perf_counter(), time.process_time()
        system.velocity(x)
        clock.append(time.perf_counter() - begin)
        processor.append(time.process_time() - busy)
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    return [f"{min(clock):.3g}", f"{min(processor):.3g}", f"{more / 1024:,.0f}"]


def main() -> None:
    """Measure and print."""
    parser = program.parser(__doc__)
    numbers = [1000, 2000, 5000, 10_000]
    add = parser.add_argument
    usual = " ".join(map(str, numbers))
    add(
        "--particles",
        nargs="+",
        type=positive,
        default=numbers,
        metavar="N",
        help=f"how many, one case each (default: {usual}); the whole matrix is left out above "
        f"{LARGEST_MATRIX}",
    )
    add("--dim", type=positive, default=3, metavar="D", help="of their space (default: 3)")
    add(
        "--repetitions",
        type=positive,
        default=5,
        metavar="N",
        help="velocities of each side, of which the fastest counts (default: 5)",
    )
    args = parser.parse_args()
    rows = []
    for n in args.particles:
        for side in SIDES:
            if side == MATRIX and n > LARGEST_MATRIX:
                continue
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                cells = process.submit(measure, side, n, args.dim, args.repetitions).result()
            rows.append([f"{n:,}", side, *cells])
    heads = ["particles", "side", "s on the clock", "s on the processor", "MiB"]
    print(table(heads, rows))
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    print(f"d = {args.dim}; load of the machine: {load}\n{program.here()}")


if __name__ == "__main__":
    program.start(main)
