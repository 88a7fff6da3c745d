"""Two processes that train together, against one with --update-freq 2."""

import json
import subprocess

import torch

from gpu import commands
from gpu.checks import NotHere, Outcome
from gpu.setups import NO_DROPOUT, Device

MOST = 1e-3  # of losses, which fairseq logs with three decimals


def look(device: Device, spoil: bool) -> Outcome:
    """The losses of two updates; spoiled: one process without --update-freq.

    Raises:
        NotHere: with one GPU.
    """
    if device.is_gpu and torch.cuda.device_count() < 2:
        raise NotHere("needs two GPUs")
    fixed = [*NO_DROPOUT, "--seed", "1"]
    alone = [] if device.is_gpu else ["--cpu"]
    frequency = "1" if spoil else "2"
    save = device.folder / "processes"
    one = commands.training(
        device, save / f"one-{frequency}", *fixed, *alone, "--update-freq", frequency,
        "--distributed-world-size", "1",
    )  # fmt: skip
    first = losses(commands.run(one).stdout)
    found = save / "two.json"  # which the control needs not have again
    if not found.is_file():
        output = two_on_gpus(device, fixed) if device.is_gpu else two_on_a_cpu(device, fixed)
        found.write_text(json.dumps(losses(output)), "utf-8")
    both = json.loads(found.read_text("utf-8"))
    pairs = list(zip(first, both, strict=False))
    difference = max((abs(x - y) for x, y in pairs), default=float("inf"))
    says = f"losses differ by {difference:.4f}"
    return Outcome(len(pairs) == 2 and difference <= MOST, says, {"one": first, "two": both})


def losses(output: str) -> list[float]:
    """What was logged of each update."""
    lines = [x.split(" | ")[-1] for x in output.splitlines() if " | train_inner | " in x]
    return [float(json.loads(x)["loss"]) for x in lines]


def two_on_gpus(device: Device, flags: list[str]) -> str:
    """fairseq starts a process for each of two GPUs."""
    save = device.folder / "processes" / "two"
    return commands.run(
        commands.training(device, save, *flags, "--distributed-world-size", "2")
    ).stdout


def two_on_a_cpu(device: Device, flags: list[str]) -> str:
    """Two processes that talk by gloo; what the first says."""
    together = [
        *("--cpu", "--distributed-init-method", f"file://{device.folder}/processes/store"),
        *("--distributed-world-size", "2", "--distributed-no-spawn"),
        *("--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"),
    ]
    started = []
    for rank in range(2):
        save = device.folder / "processes" / f"two-{rank}"
        words = commands.training(device, save, *flags, *together, "--distributed-rank", str(rank))
        started.append(
            subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    try:
        outputs = [x.communicate(timeout=commands.TIMEOUT)[0] for x in started]
    finally:
        for process in started:
            process.kill()
    return outputs[0]
