"""Going on from a checkpoint, against training that was not interrupted."""

import torch
from fairseq.trainer import Trainer

from gpu.checks import Outcome
from gpu.setups import OURS, TINY, Device

FUSED = ["--optimizer", "fused_adam"]
EXTRA = {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0, "version": 2}, "val_loss": None}


def look(device: Device, spoil: bool) -> Outcome:
    """The largest difference of two updates after a restart; spoiled: the moments are dropped.

    fp32 and `fused_adam` in any precision are exact. fairseq's Adam in half precision goes on from
    rounded weights, as the documentation says.
    """
    figures: dict[str, float] = {}
    for precision in device.precisions:
        for name, flags in (("fused_adam", FUSED), ("adam", [])):
            figures[f"{precision} {name}"] = difference(device, precision, flags, spoil)
    exact = [x for name, x in figures.items() if "fp32" in name or "fused" in name]
    said = ", ".join(f"{name} {x:.0e}" if x else f"{name} exact" for name, x in figures.items())
    return Outcome(not any(exact), said, figures)


def difference(device: Device, precision: str, flags: list[str], spoil: bool) -> float:
    """Of all weights, between two updates with and without a restart before them."""
    words = [*OURS, *TINY, "--no-epoch-checkpoints", *flags]
    batches = [device.batch(seed=seed) for seed in range(4)]
    whole = device.trainer(words, precision)
    update(whole, batches[:2])
    path = str(device.folder / "resumed.pt")
    whole.consolidate_optimizer()
    whole.save_checkpoint(path, EXTRA)
    update(whole, batches[2:])
    resumed = device.trainer(words, precision)
    resumed.load_checkpoint(path, reset_optimizer=spoil)
    if spoil:
        resumed.set_num_updates(2)
    update(resumed, batches[2:])
    pairs = zip(weights(whole), weights(resumed), strict=True)
    return max(float((x - y).abs().max()) for x, y in pairs)


def update(trainer: Trainer, batches: list) -> None:
    """One update with each batch."""
    for batch in batches:
        trainer.train_step([batch])


def weights(trainer: Trainer) -> list[torch.Tensor]:
    """All, in fp32 on the CPU."""
    return [x.detach().float().cpu() for x in trainer.get_model().parameters()]
