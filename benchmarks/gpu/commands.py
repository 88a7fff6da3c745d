"""fairseq's commands in processes, on data that are made on the spot."""

import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import macaron_fairseq
from gpu.setups import CHUNKED, TINY, Device

TIMEOUT = 240
USER_DIR = str(Path(macaron_fairseq.__file__).parent)
FAKE = Path(__file__).parents[2] / "tests" / "fakegpu"


def start(device: Device, name: str, *words: object) -> list[str]:
    """The command line of a console script, with the fake GPU where that is the device."""
    own = str(Path(sys.executable).with_name(name))
    python = [sys.executable, str(FAKE), name] if device.kind == "fake" else [own]
    return [*python, *map(str, words)]


def run(command: Sequence[str], timeout: int = TIMEOUT) -> subprocess.CompletedProcess[str]:
    """Run it; stdout and stderr come together."""
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout
    )


def corpus(device: Device, sentences: int = 64) -> Path:
    """A data folder of fairseq-preprocess: targets are sources backwards."""

    def write(folder: Path) -> None:
        draw = random.Random(device.seed)
        for name, count in (("train", sentences), ("valid", 8)):
            lines = [
                [draw.choice("abcdefgh") for _ in range(draw.randint(4, 12))] for _ in range(count)
            ]
            for language, step in (("src", 1), ("tgt", -1)):
                text = "".join(" ".join(line[::step]) + "\n" for line in lines)
                (folder / f"{name}.{language}").write_text(text, "utf-8")

    return preprocessed(device.folder / "corpus", write)


def preprocessed(folder: Path, write: Callable[[Path], None]) -> Path:
    """A data folder of fairseq-preprocess, of {train,valid}.{src,tgt} that `write` writes once.

    Raises:
        RuntimeError: if fairseq-preprocess fails, with the end of what it said.
    """
    if (folder / "data").is_dir():
        return folder / "data"
    folder.mkdir(parents=True)
    write(folder)
    done = run(
        [
            str(Path(sys.executable).with_name("fairseq-preprocess")),
            *("-s", "src", "-t", "tgt", "--joined-dictionary", "--destdir", str(folder / "data")),
            *("--trainpref", str(folder / "train"), "--validpref", str(folder / "valid")),
        ]
    )
    if done.returncode:
        raise RuntimeError(f"fairseq-preprocess: {done.stdout[-300:]}")
    return folder / "data"


def training(device: Device, save: Path, *flags: str) -> list[str]:
    """fairseq-train of a small model, two updates; later flags win."""
    return start(
        device,
        "fairseq-train",
        *(corpus(device), "--user-dir", USER_DIR, "--save-dir", save),
        *("--arch", "macaron_transformer", *TINY, *CHUNKED, "--share-all-embeddings"),
        *("--optimizer", "adam", "--lr", "1e-3", "--batch-size", "8", "--max-update", "2"),
        *("--num-workers", "0", "--log-format", "json", "--log-interval", "1"),
        *("--no-epoch-checkpoints", "--disable-validation", *flags),
    )
