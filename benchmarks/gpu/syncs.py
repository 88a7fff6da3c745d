"""How often an update waits for the GPU, its kernels, and which attention the decoder gets."""

import sys
import warnings
from collections.abc import Iterable
from typing import Any

import torch

from gpu.checks import NotHere, Outcome
from gpu.setups import FAIRSEQS, OURS, SIX_LAYERS, TINY, Device

# As --memory-efficient-fp16 --optimizer fused_adam trains 6+6 layers. What grows is a fault; what
# shrinks belongs here. Kernels are the fake GPU's count, which is a model of a real one's.
MOST_SYNCS = 3
MOST_KERNELS = 921
DECODER_LAYERS = 6
SIDES = {
    "ours": [*OURS, "--optimizer", "fused_adam", "--memory-efficient-fp16"],
    "stock": [*FAIRSEQS, "--fp16"],
}


def look(device: Device, spoil: bool) -> Outcome:
    """Of an update of ours in fp16; spoiled: of stock fairseq.

    Raises:
        NotHere: on a CPU.
    """
    if not device.is_gpu:
        raise NotHere("a CPU has none")
    flags = [*SIDES["stock" if spoil else "ours"], *TINY, *SIX_LAYERS, "--clip-norm", "1"]
    trainer = device.trainer(flags)
    batch = device.batch()
    for _ in range(3):
        trainer.train_step([batch])
    counted = of_fake if device.kind == "fake" else of_cuda
    found = counted(lambda: trainer.train_step([batch]))
    passes = found["syncs"] <= MOST_SYNCS and found["flash"] >= DECODER_LAYERS
    passes &= device.kind != "fake" or found["kernels"] <= MOST_KERNELS
    said = f"{found['syncs']} syncs, {found['kernels']} kernels, {found['flash']} flash attentions"
    return Outcome(passes, said, found)


def of_fake(step: Any) -> dict[str, Any]:
    """What the fake GPU counts."""
    fake = sys.modules["fakegpu"]
    fake.clear()
    step()
    found = fake.counts()
    flash = sum(x for name, x in found["attention"].items() if "flash" in name)
    return {**found, "flash": flash}


def of_cuda(step: Any) -> dict[str, Any]:
    """What PyTorch's profiler and its warnings of syncs tell."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = waits_in(str(x.message) for x in warned)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        step()
    launched = [x for x in profile.events() if x.device_type == torch.autograd.DeviceType.CUDA]
    launched = [x for x in launched if not getattr(x, "is_user_annotation", False)]
    names = [x.name for x in launched if "Memcpy" not in x.name and "Memset" not in x.name]
    backward = "bwd", "bprop", "backward"
    flash = [x for x in names if "flash" in x.lower() and not any(y in x for y in backward)]
    return {"syncs": len(waits), "kernels": len(names), "flash": len(flash), "waits": waits}


def waits_in(messages: Iterable[str]) -> list[str]:
    """Those of PyTorch's warnings that tell a sync; another says that the mode is a prototype."""
    return [x for x in messages if "called a synchronizing" in x]
