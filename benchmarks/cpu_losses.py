"""The losses that the check `multi30k` of gpu_check.py compares a GPU's with, on a CPU in fp32.

example:
  python benchmarks/cpu_losses.py --multi30k runs/multi30k/data

Trains each seed on made data and, if it is given, on what `examples/multi30k/reproduce.sh prepare`
made. Losses of the same data that are in the file already are kept.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu import multi30k
from gpu.setups import Device
from harness import program

from macaron_fairseq.common import environment, files


def main() -> None:
    """Train what is missing, and write the file after each training."""
    parser = program.parser(__doc__)
    parser.add_argument("--multi30k", type=Path, metavar="FOLDER", help="what the recipe prepared")
    args = parser.parse_args()
    if args.multi30k and not (args.multi30k / "data-bin").is_dir():
        parser.error(f"--multi30k {args.multi30k} holds no data-bin: give the recipe's WORK/data")
    with tempfile.TemporaryDirectory() as folder:
        add("made", Device("cpu", Path(folder)))
        if args.multi30k:
            add("Multi30k", Device("cpu", Path(folder), multi30k=args.multi30k))


def add(kind: str, device: Device) -> None:
    """Train each seed for each number of updates."""
    data = multi30k.data_folder(device)
    asked = multi30k.asked_of(multi30k.digest(data))
    found = read()["losses"].get(kind, {})
    if {name: found.get(name) for name in asked} != asked:
        found = {**asked, "after updates": {}}
    for updates in sorted({*multi30k.UPDATES.values()}):
        losses = found["after updates"].setdefault(str(updates), [])
        for seed in multi30k.SEEDS[len(losses) :]:
            losses.append(multi30k.loss(device, data, seed, updates, multi30k.RATE))
            print(f"{kind}, {updates} updates, seed {seed}: {losses[-1]}", file=sys.stderr)
            write(kind, found)


def read() -> dict[str, Any]:
    """What the file holds already."""
    if not multi30k.LOSSES.is_file():
        return {"losses": {}}
    return json.loads(multi30k.LOSSES.read_text("utf-8"))


def write(kind: str, found: dict[str, Any]) -> None:
    """Put what was found of one kind of data next to the others'."""
    content = read()
    machine = {
        "date": time.strftime("%Y-%m-%d"),
        "hardware": environment.hardware(),
        "versions": environment.versions(),
    }
    content["losses"][kind] = {**found, "machine": machine}
    files.write(multi30k.LOSSES, files.as_json(content))


if __name__ == "__main__":
    program.start(main)
