"""fairseq-train starts in each precision, of Macaron and of fairseq's own architecture."""

from collections.abc import Iterable

import torch
from torch import Tensor

from gpu import commands
from gpu.checks import Outcome
from gpu.setups import ONE_GPU, Device

FLAGS = {
    "cuda": [
        *("--fp16", "--bf16", "--memory-efficient-fp16", "--memory-efficient-bf16", "--amp"),
        *("--fp16 --optimizer fused_adam", "--memory-efficient-fp16 --optimizer fused_adam"),
        *("--bf16 --arch transformer", "--memory-efficient-fp16 --macaron-compile"),
    ],
    "fake": ["--fp16", "--bf16 --arch transformer", "--memory-efficient-bf16", "--amp"],
    "cpu": ["--bf16 --arch transformer"],
}
PARAMETERS = {"--fp16": torch.half, "--bf16": torch.bfloat16, "--amp": torch.float}
# What is asked for and what is given instead: refused, in fp32, and in half precision.
SPOILED = [("--fp16", "--fp16 --cpu"), ("--bf16", ""), ("--amp", "--bf16")]


def look(device: Device, spoil: bool) -> Outcome:
    """Exit status, and that saved weights are of the precision; spoiled: all must be noticed."""
    figures = {}
    where = ONE_GPU if device.is_gpu else ["--cpu"]
    possible = [x for x in FLAGS[device.kind] if "bf16" not in x or "bf16" in device.precisions]
    pairs = SPOILED if spoil else [(x, x) for x in possible]
    for asked, given in pairs:
        save = device.folder / "starts" / (given.replace(" ", "") or "none")
        done = commands.run(commands.training(device, save, *where, *given.split()))
        file = save / "checkpoint_last.pt"
        says = "started" if done.returncode == 0 and file.is_file() else done.stdout.strip()[-200:]
        if says == "started":
            (flag,) = [x for x in PARAMETERS if asked.split()[0].endswith(x.strip("-"))]
            weights = [*torch.load(file)["model"].values()]  # which fairseq saves in fp32
            says = says if are_of(PARAMETERS[flag], weights) else f"weights not of {flag}"
        figures[given] = says
    failed = [flags for flags, says in figures.items() if says != "started"]
    return Outcome(
        len(failed) < len(figures) if spoil else not failed,
        f"{', '.join(failed)} failed" if failed else f"{len(figures)} command lines start",
        figures,
    )


def are_of(dtype: torch.dtype, weights: Iterable[Tensor]) -> bool:
    """Whether weights, saved in fp32, are of a precision: of fp32 if no lower one holds them."""
    lower = [torch.half, torch.bfloat16] if dtype == torch.float else [dtype]
    holds = [all(torch.equal(x, x.to(one).float()) for x in weights) for one in lower]
    return not any(holds) if dtype == torch.float else all(holds)
