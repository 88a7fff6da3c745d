"""Some updates of training, ours and stock fairseq's, against what another seed changes."""

from statistics import mean

from gpu.checks import Outcome
from gpu.setups import FAIRSEQS, OURS, TINY, Device

SEEDS = 1, 2, 3
UPDATES = {"cuda": 200, "cpu": 24, "fake": 8}
LAST = 4  # updates whose loss is taken
SIDES = {
    "stock": FAIRSEQS,
    "ours": [*OURS, "--macaron-scheme", "lie-trotter"],  # the same network
}


def look(device: Device, spoil: bool) -> Outcome:
    """Losses at the end; spoiled: ours hardly learns."""
    precisions = device.precisions if device.kind == "cuda" else ["fp32"]
    passes, said, figures = True, [], {}
    for precision in precisions:
        found = {
            side: [final_loss(device, precision, side, seed, spoil) for seed in SEEDS]
            for side in SIDES
        }
        difference = abs(mean(found["ours"]) - mean(found["stock"]))
        spread = max(max(x) - min(x) for x in found.values())
        passes &= difference < spread
        figures[precision] = {**found, "difference": difference, "spread of seeds": spread}
        said.append(f"{precision} differ by {difference:.3f}, seeds by {spread:.3f}")
    return Outcome(passes, f"after {UPDATES[device.kind]} updates " + ", ".join(said), figures)


def final_loss(device: Device, precision: str, side: str, seed: int, spoil: bool) -> float:
    """The mean loss of the last updates."""
    own = Device(device.kind, device.folder, device.types, seed)
    rate = "1e-7" if spoil and side == "ours" else "3e-3"
    trainer = own.trainer([*SIDES[side], *TINY, "--lr", rate], precision)
    losses = []
    for number in range(UPDATES[device.kind]):
        logged = trainer.train_step([own.batch(sentences=16, longest=8, seed=number)])
        losses.append(float(logged["loss"]) if logged else float("nan"))
    return mean(losses[-LAST:])
