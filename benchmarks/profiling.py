"""Where a fairseq command spends its time, the GPU's if it uses one: by PyTorch's operators.

  python benchmarks/profiling.py fairseq-train DATA-BIN --user-dir macaron_fairseq --cpu ...
  python benchmarks/profiling.py --rows 20 fairseq-generate DATA-BIN --path CHECKPOINT ...

All that follows the command's name is the command's; what it prints goes to standard error. Loading
and starting are in the profile as well: let a training run some 20 updates (--max-update 20). What
other processes do is not: with --task macaron_translation give --decoding-processes 1.
"""

import argparse
import sys
from collections import Counter
from contextlib import redirect_stdout
from importlib.metadata import entry_points

import torch
from harness import program
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from macaron_fairseq import plugin as plugin  # or --user-dir would find the package imported
from macaron_fairseq.commands.arguments import positive
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.markdown import table

ON_GPU = torch.cuda.is_available() and "--cpu" not in sys.argv
ACTIVITIES = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if ON_GPU else [])]


def main() -> None:
    """Run a command and print its profile."""
    parser = program.parser(__doc__)
    parser.add_argument("--rows", type=positive, default=12, metavar="N", help="(default: 12)")
    parser.add_argument("command", choices=["fairseq-train", "fairseq-generate"])
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="...")
    args = parser.parse_args()
    (script,) = entry_points(group="console_scripts", name=args.command)
    sys.argv = [args.command, *args.words]
    with (
        profile(activities=ACTIVITIES) as profiler,
        redirect_stdout(sys.stderr),
    ):
        script.load()()
    seconds: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in profiler.key_averages():
        if event.device_type != DeviceType.CPU:
            continue  # a kernel, whose time its operator has as well
        own = event.self_device_time_total if ON_GPU else event.self_cpu_time_total
        seconds[event.key] += own / 1e6
        calls[event.key] += event.count
    if not seconds:
        raise UserError(f"{args.command} did nothing that PyTorch could profile")
    total = sum(seconds.values())
    rows = [
        [f"`{name}`", f"{calls[name]:,}", f"{own:.2f}", f"{100 * own / total:.1f} %"]
        for name, own in seconds.most_common(args.rows)
    ]
    print(table(["operator", "calls", "seconds", "share"], rows))
    print(f"\n{total:.1f} seconds in all operators")


if __name__ == "__main__":
    program.start(main)
