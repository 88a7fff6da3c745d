"""A small run on Multi30k, or on made data of its size, against the losses of a CPU in fp32.

`benchmarks/cpu_losses.py` made these losses.
"""

import hashlib
import json
import random
from collections.abc import Sequence
from math import isfinite, sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from gpu import commands
from gpu.checks import NotHere, Outcome
from gpu.setups import CHUNKED, ONE_GPU, Device
from macaron_fairseq.evaluation.training import training_log

LOSSES = Path(__file__).parents[1] / "results" / "cpu-losses.json"
SEEDS = 1, 2, 3, 4, 5
UPDATES = {"cuda": 500, "cpu": 20, "fake": 20}
# In which 99 of 100 further seeds would lie: the 0.995 quantile of Student's t for 4 degrees of
# freedom, and the deviation of one more value from the mean of five.
MARGIN = 4.604 * sqrt(1 + 1 / len(SEEDS))
# The recipe's model and rate, an update of 512 tokens, and a warm-up that 500 updates outlast.
RATE = 0.005
FLAGS = [
    *("--arch", "macaron_transformer_tiny", "--share-all-embeddings", *CHUNKED),
    *("--dropout", "0.3", "--task", "macaron_translation", "--max-tokens", "512"),
    *("--optimizer", "fused_adam", "--adam-betas", "(0.9, 0.98)", "--clip-norm", "0"),
    *("--lr-scheduler", "inverse_sqrt", "--warmup-updates", "200", "--warmup-init-lr", "1e-7"),
    *("--log-format", "json", "--log-interval", "100", "--num-workers", "0", "--no-save"),
]
# What else the loss depends on than the flags: precision is the device's, and one takes part.
HALF = ["--memory-efficient-fp16", *ONE_GPU]
WHERE = {"cuda": HALF, "fake": HALF, "cpu": ["--cpu", *ONE_GPU]}
MADE_PAIRS = {"train": 29_000, "valid": 1_014}
MADE_TYPES = 4000
TIMEOUT = 600


def look(device: Device, spoil: bool) -> Outcome:
    """The loss of the validation set after the updates; spoiled: with a hundredth of the rate.

    Raises:
        NotHere: if the CPU's losses are of other data or settings, or not known.
    """
    kind = "made" if device.multi30k is None else "Multi30k"
    data = data_folder(device)
    known = known_losses(kind, digest(data), UPDATES[device.kind])
    found = loss(device, data, 1, UPDATES[device.kind], RATE / 100 if spoil else RATE)
    passes, least, most = is_within(found, known)
    says = (
        f"{kind}, {UPDATES[device.kind]} updates: loss {found:.3f}, on a CPU {mean(known):.3f} "
        f"({least:.3f}-{most:.3f})"
    )
    return Outcome(passes, says, {"data": kind, "loss": found, "on a CPU": known})


def is_within(found: float, known: Sequence[float]) -> tuple[bool, float, float]:
    """Whether a loss lies in the range of a further seed's, and that range."""
    margin = MARGIN * stdev(known)
    least, most = mean(known) - margin, mean(known) + margin
    return isfinite(found) and least <= found <= most, least, most


def known_losses(kind: str, of_data: str, updates: int) -> list[float]:
    """The CPU's losses, a value for each of SEEDS.

    Raises:
        NotHere: if they are of other data or settings, or not known.
    """
    known: dict[str, Any] = json.loads(LOSSES.read_text("utf-8"))["losses"].get(kind, {})
    found = known.get("after updates", {}).get(str(updates), [])
    if len(found) < len(SEEDS):
        raise NotHere(f"no CPU's losses are known after {updates} updates: see {LOSSES.name}")
    for name, value in asked_of(of_data).items():
        if known[name] != value:
            raise NotHere(f"the CPU's losses are of other {name} than these: see {LOSSES.name}")
    return found


def asked_of(of_data: str) -> dict[str, Any]:
    """What losses must be of to be compared: the data's digest, flags, and learning rate."""
    return {"data": of_data, "flags": FLAGS, "rate": RATE}


def loss(
    device: Device, data: Path, seed: int, updates: int, rate: float, timeout: int = TIMEOUT
) -> float:
    """Train, and return the loss of the validation set in bits per token.

    Raises:
        RuntimeError: if training fails, with the end of what it said.
    """
    words = [*FLAGS, *WHERE[device.kind], "--seed", str(seed), "--lr", str(rate)]
    words += ["--max-update", str(updates), "--user-dir", commands.USER_DIR]
    done = commands.run(commands.start(device, "fairseq-train", data, *words), timeout)
    logged = [training_log.parse(line) for line in done.stdout.splitlines()]
    valid = [x.figures["valid_loss"] for x in logged if x and x.kind == "valid"]
    if done.returncode or not valid:
        raise RuntimeError(f"fairseq-train: {done.stdout.strip()[-300:]}")
    return float(valid[-1])


def data_folder(device: Device) -> Path:
    """A folder of fairseq-preprocess: the recipe's, or the made one."""
    if device.multi30k is None:
        return commands.preprocessed(device.folder / "made", made_text)
    return device.multi30k / "data-bin"


def made_text(folder: Path) -> None:
    """Sentences as long as Multi30k's; each word has its translation, and words keep their order.

    Words are as rare as in a language (Zipf's law), and the same with any Python.
    """
    draw = random.Random(1)
    types = range(MADE_TYPES)
    weights = [1 / (10 + x) for x in types]
    translation = draw.sample(types, MADE_TYPES)
    for split, pairs in MADE_PAIRS.items():
        sides = (folder / f"{split}.src", folder / f"{split}.tgt")
        with sides[0].open("w") as source, sides[1].open("w") as target:
            for _ in range(pairs):
                words = draw.choices(types, weights, k=draw.randint(6, 24))
                source.write(" ".join(f"s{x}" for x in words) + "\n")
                target.write(" ".join(f"t{translation[x]}" for x in words) + "\n")


def digest(data: Path) -> str:
    """The SHA-256 of what fairseq trains and validates on."""
    found = hashlib.sha256()
    paths = [*data.glob("dict.*.txt"), *data.glob("train.*.bin"), *data.glob("valid.*.bin")]
    for path in sorted(paths, key=lambda x: x.name):
        found.update(path.read_bytes())
    return found.hexdigest()
