"""Whether training and translation are right and fast on a GPU: one command.

examples:
  python benchmarks/gpu_check.py                 # the GPU of this machine
  python benchmarks/gpu_check.py --device fake   # a GPU that is none: devices, types, syncs
  python benchmarks/gpu_check.py --device cpu --checks gradients resume --json found.json

Each check has a negative control: the same check, spoiled, which must fail. Data are drawn here,
and nothing is fetched. The exit status is 0 if nothing failed or was left out for lack of time.
"""

import argparse
import contextlib
import importlib
import logging
import os
import platform
import re
import sys
import tempfile
import time
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

from harness import program

from macaron_fairseq.commands.arguments import new_file

FAKE = Path(__file__).resolve().parents[1] / "tests" / "fakegpu"
# In this order: name and module.
CHECKS = {
    "gradients": "gradients",
    "masks": "masks",
    "dropout": "dropout",
    "syncs": "syncs",
    "search": "searching",
    "decoding": "decoding",
    "speed": "speed",
    "resume": "resuming",
    "learning": "learning",
    "multi30k": "multi30k",
    "starts": "starts",
    "processes": "processes",
}
OUT_OF_TIME = "out of time: see --minutes"


def main() -> None:
    """Check, print the table and write the JSON."""
    args = parse()
    begin(args.device)
    from gpu import checks
    from gpu.setups import Device

    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    rows = []
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        device = Device(args.device, Path(folder), multi30k=args.multi30k)
        for name in args.checks:
            print(f"{name} ...", file=sys.stderr, flush=True)
            if time.monotonic() - start > 60 * args.minutes:
                rows.append(checks.Row(name, checks.SKIPPED, OUT_OF_TIME))
            else:
                look = importlib.import_module(f"gpu.{CHECKS[name]}").look
                with contextlib.redirect_stdout(sys.stderr):
                    rows.append(checks.run(name, look, device))
            print(f"{name}: {rows[-1].result}: {rows[-1].says}", file=sys.stderr, flush=True)
            if args.json:  # after each check: a job may be cut
                write(args.json, args.device, start, rows)
    print(checks.table(rows))
    sys.exit(any(row.result == checks.FAILED or row.says == OUT_OF_TIME for row in rows))


def write(path: Path, device: str, start: float, rows: list[Any]) -> None:
    """Write what is known so far."""
    from macaron_fairseq.common import files

    content = {
        "machine": machine(device),
        "seconds": round(time.monotonic() - start, 1),
        "checks": [row.as_json() for row in rows],
    }
    files.write(path, files.as_json(content))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = program.parser(__doc__)
    add = parser.add_argument
    kinds = ["cuda", "cpu", "fake"]
    add("--device", choices=kinds, default="cuda", help="where to check (default: cuda)")
    add(
        "--checks",
        nargs="+",
        choices=CHECKS,
        default=list(CHECKS),
        metavar="CHECK",
        help=f"which ones (default: all): {', '.join(CHECKS)}",
    )
    add(
        "--minutes",
        type=float,
        default=10.0,
        metavar="N",
        help="begin no check after so many (default: 10)",
    )
    add(
        "--multi30k",
        type=Path,
        metavar="FOLDER",
        help="what examples/multi30k/reproduce.sh prepared (default: data of that size made here)",
    )
    add(
        "--json",
        type=new_file,
        metavar="FILE",
        help="write the machine and all figures there, after each check",
    )
    args = parser.parse_args()
    if args.multi30k and not (args.multi30k / "data-bin").is_dir():
        parser.error(f"--multi30k {args.multi30k} holds no data-bin: give the recipe's WORK/data")
    return args


def begin(device: str) -> None:
    """Get the device ready; ends the program with a sentence where there is none."""
    os.environ.setdefault("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")  # as the recipes do
    if device == "fake":
        sys.path.insert(0, str(FAKE))
        try:
            importlib.import_module("fakegpu")
        except RuntimeError as error:
            sys.exit(f"--device fake: {error}")
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        from macaron_fairseq.preflight import gpus

        reason = gpus.why_unusable() or gpus.why_none()
        sys.exit(f"--device cuda: {reason}; see --device cpu and --device fake")


def machine(device: str) -> dict[str, Any]:
    """What the figures belong to."""
    import torch

    from macaron_fairseq.common import environment
    from macaron_fairseq.version import __version__

    found: dict[str, Any] = {
        "device": device,
        "date": time.strftime("%Y-%m-%d"),
        "cpu": environment.cpu_model(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
    for name in ("ve-fairseq", "fairseq-fixed", "numpy", "triton"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    found |= {"macaron_fairseq": __version__, "code": environment.code()}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": properties.name,
            "gpus": torch.cuda.device_count(),
            "memory MiB": properties.total_memory // 2**20,
            "capability": f"{properties.major}.{properties.minor}",
            "cudnn": torch.backends.cudnn.version(),
            "driver": driver(),
        }
    return found


def driver() -> str | None:
    """The version of NVIDIA's driver, as the system tells it."""
    file = Path("/proc/driver/nvidia/version")
    found = re.search(r"\d+\.\d+(\.\d+)?", file.read_text("utf-8")) if file.is_file() else None
    return found and found[0]


if __name__ == "__main__":
    program.start(main)
