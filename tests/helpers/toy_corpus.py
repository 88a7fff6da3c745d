"""A corpus of digits that a small model learns in seconds, and fairseq's commands with it."""

import json
import random

from helpers.paths import USER_DIR
from helpers.processes import run
from helpers.small import SMALL

TRAIN = [
    *("--arch", "macaron_transformer_tiny", *SMALL, "--share-all-embeddings", "--cpu"),
    *("--optimizer", "adam", "--lr", "0.01", "--max-tokens", "200", "--seed", "3"),
    *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"),
    *("--log-format", "json", "--log-interval", "1"),
]


def write_reversal(folder, seed=1, **sizes):
    """A corpus whose target is its source, a string of digits, reversed."""
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in sizes.items():
        lines = [[rng.choice("0123456789") for _ in range(rng.randint(3, 9))] for _ in range(size)]
        (folder / f"{name}.src").write_text("".join(" ".join(x) + "\n" for x in lines))
        (folder / f"{name}.tgt").write_text("".join(" ".join(x[::-1]) + "\n" for x in lines))


def preprocess(folder, *flags):
    """fairseq-preprocess what `write_reversal` wrote."""
    run(
        "fairseq-preprocess",
        *("--user-dir", USER_DIR, "-s", "src", "-t", "tgt", "--joined-dictionary"),
        *("--trainpref", folder / "train", "--validpref", folder / "valid"),
        *("--testpref", folder / "test", "--destdir", folder / "data-bin", *flags),
    )
    return folder / "data-bin"


def train(data, save_dir, *flags, **kwargs):
    """fairseq-train a small model; later flags win."""
    return run(
        "fairseq-train",
        data,
        "--user-dir",
        USER_DIR,
        "--save-dir",
        save_dir,
        *TRAIN,
        *flags,
        **kwargs,
    )


def logged(output):
    """What fairseq-train said of each update, in numbers and without the times."""
    lines = [line.split(" | ")[-1] for line in output.splitlines() if " | train_inner | " in line]
    names = ("loss", "nll_loss", "gnorm", "lr", "wpb", "bsz")
    updates = {int(x["num_updates"]): [float(x[n]) for n in names] for x in map(json.loads, lines)}
    assert updates, output
    return updates


def hypotheses(output):
    """What fairseq-generate and fairseq-interactive print after H-, by the number that follows."""
    lines = [line.split("\t") for line in output.splitlines() if line.startswith("H-")]
    assert lines, output
    assert len({line[0] for line in lines}) == len(lines)
    return {int(line[0][2:]): line[2] for line in lines}
