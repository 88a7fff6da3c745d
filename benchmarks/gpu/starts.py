"""fairseq-train starts in each precision, of Macaron and of fairseq's own architecture."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from gpu import commands
from gpu.checks import Outcome
from gpu.setups import ONE_GPU, Device
from macaron_fairseq.common import environment

FLAGS = {
    "cuda": [
        *("--fp16", "--bf16", "--memory-efficient-fp16", "--memory-efficient-bf16", "--amp"),
        *("--fp16 --optimizer fused_adam", "--memory-efficient-fp16 --optimizer fused_adam"),
        "--bf16 --arch transformer",
    ],
    "fake": ["--fp16", "--bf16 --arch transformer", "--memory-efficient-bf16", "--amp"],
    "cpu": ["--bf16 --arch transformer"],
}
AT_A_TIME = 4  # commands, whose starts take most of the time
PARAMETERS = {"--fp16": torch.half, "--bf16": torch.bfloat16, "--amp": torch.float}
# What is asked for and what is given instead: refused, in fp32, and in half precision.
SPOILED = [("--fp16", "--fp16 --cpu"), ("--bf16", ""), ("--amp", "--bf16")]


def look(device: Device, spoil: bool) -> Outcome:
    """Exit status, and that saved weights are of the precision; spoiled: all must be noticed."""
    possible = [x for x in FLAGS[device.kind] if "bf16" not in x or "bf16" in device.precisions]
    pairs = SPOILED if spoil else [(x, x) for x in possible]
    commands.corpus(device)  # which all of them read
    with ThreadPoolExecutor(min(AT_A_TIME, environment.available_cores())) as pool:
        found = pool.map(lambda pair: start(device, *pair), pairs)
        figures = {given: says for (_, given), says in zip(pairs, found, strict=True)}
    failed = [flags for flags, says in figures.items() if says != "started"]
    return Outcome(
        len(failed) < len(figures) if spoil else not failed,
        f"{', '.join(failed)} failed" if failed else f"{len(figures)} command lines start",
        figures,
    )


def start(device: Device, asked: str, given: str) -> str:
    """Train with some flags, and say whether that started, and saved weights as was asked."""
    save = device.folder / "starts" / (given.replace(" ", "") or "none")
    where = [*ONE_GPU, *["--cpu"] * (not device.is_gpu)]
    done = commands.run(commands.training(device, save, *where, *given.split()))
    file = save / "checkpoint_last.pt"
    if done.returncode or not file.is_file():
        return done.stdout.strip()[-200:]
    (flag,) = [x for x in PARAMETERS if asked.split()[0].endswith(x.strip("-"))]
    weights = [*torch.load(file)["model"].values()]  # which fairseq saves in fp32
    return "started" if are_of(PARAMETERS[flag], weights) else f"weights not of {flag}"


def are_of(dtype: torch.dtype, weights: Iterable[Tensor]) -> bool:
    """Whether weights, saved in fp32, are of a precision: of fp32 if no lower one holds them."""
    lower = [torch.half, torch.bfloat16] if dtype == torch.float else [dtype]
    holds = [all(torch.equal(x, x.to(one).float()) for x in weights) for one in lower]
    return not any(holds) if dtype == torch.float else all(holds)
