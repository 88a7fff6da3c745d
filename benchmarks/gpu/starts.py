"""fairseq-train starts in each precision, of Macaron and of fairseq's own architecture."""

import torch

from gpu import commands
from gpu.checks import Outcome
from gpu.setups import Device

FLAGS = {
    "cuda": [
        *("--fp16", "--bf16", "--memory-efficient-fp16", "--memory-efficient-bf16", "--amp"),
        *("--fp16 --optimizer fused_adam", "--memory-efficient-fp16 --optimizer fused_adam"),
        "--bf16 --arch transformer",
    ],
    "fake": ["--fp16", "--bf16 --arch transformer"],
    "cpu": ["--bf16 --arch transformer"],
}
PARAMETERS = {"--fp16": torch.half, "--bf16": torch.bfloat16, "--amp": torch.float}
# What is asked for and what is given instead: one is refused, and one trains in fp32.
SPOILED = [("--fp16", "--fp16 --cpu"), ("--bf16", "")]


def look(device: Device, spoil: bool) -> Outcome:
    """Exit status, and that saved weights are of the precision; spoiled: both must be noticed."""
    figures = {}
    where = [] if device.is_gpu else ["--cpu"]
    possible = [x for x in FLAGS[device.kind] if "bf16" not in x or "bf16" in device.precisions]
    pairs = SPOILED if spoil else [(x, x) for x in possible]
    for asked, given in pairs:
        save = device.folder / "starts" / (given.replace(" ", "") or "none")
        done = commands.run(commands.training(device, save, *where, *given.split()))
        file = save / "checkpoint_last.pt"
        says = "started" if done.returncode == 0 and file.is_file() else done.stdout.strip()[-200:]
        if says == "started":
            (flag,) = [x for x in PARAMETERS if asked.split()[0].endswith(x.strip("-"))]
            weights = torch.load(file)["model"].values()  # which fairseq saves in fp32
            exact = [torch.equal(x, x.to(PARAMETERS[flag]).float()) for x in weights]
            says = says if all(exact) else f"weights are not of {PARAMETERS[flag]}"
        figures[given] = says
    failed = [flags for flags, says in figures.items() if says != "started"]
    return Outcome(
        len(failed) < len(figures) if spoil else not failed,
        f"{', '.join(failed)} failed" if failed else f"{len(figures)} command lines start",
        figures,
    )
