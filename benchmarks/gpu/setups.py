"""Models, batches and trainers on the device that is checked; all data are drawn here."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import split
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.data.language_pair_dataset import collate
from fairseq.trainer import Trainer
from harness import in_process

from macaron_fairseq.model import bf16

Batch = dict[str, Any]

TINY = split(
    "--encoder-embed-dim 64 --encoder-ffn-embed-dim 128 --encoder-layers 2 "
    "--encoder-attention-heads 4 --decoder-embed-dim 64 --decoder-ffn-embed-dim 128 "
    "--decoder-layers 2 --decoder-attention-heads 4"
)
SIX_LAYERS = ["--encoder-layers", "6", "--decoder-layers", "6"]
NO_DROPOUT = ["--dropout", "0", "--attention-dropout", "0", "--activation-dropout", "0"]
STOCK = ["--arch", "transformer", "--encoder-normalize-before", "--decoder-normalize-before"]
MACARON = ["--arch", "macaron_transformer"]
CHUNKED = ["--criterion", "chunked_label_smoothed_cross_entropy", "--label-smoothing", "0.1"]
EXACT = ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"]
# As the recipes train.
OURS = [*MACARON, *CHUNKED, "--task", "macaron_translation"]
# fairseq alone: its layers, its criterion, its optimizer.
FAIRSEQS = [*STOCK, *EXACT, "--task", "translation"]
# fairseq-train takes all that it finds, and starts as many processes on a CPU.
ONE_GPU = ["--distributed-world-size", "1"]
PRECISIONS = {
    "fp32": [],
    "fp16": ["--fp16", "--fp16-init-scale", "128"],
    "bf16": ["--bf16"],
}


@dataclass
class Device:
    """Where to check.

    Args:
        kind: "cuda", "cpu" or "fake".
        folder: for temporary files.
        types: of the dictionary that is drawn, the four special symbols included.
        multi30k: what the recipe prepared of Multi30k, if there is any.
    """

    kind: str
    folder: Path
    types: int = 1000
    seed: int = 1
    multi30k: Path | None = None

    @property
    def is_gpu(self) -> bool:
        """Whether fairseq finds a GPU; the fake one is one."""
        return self.kind != "cpu"

    @property
    def name(self) -> str:
        """As PyTorch calls it."""
        return "cuda" if self.is_gpu else "cpu"

    @property
    def precisions(self) -> list[str]:
        """In which fairseq trains there."""
        if not self.is_gpu:  # some CPUs have no instructions for bf16
            return ["fp32", *["bf16"] * bf16.is_fast_here()]
        return [x for x in PRECISIONS if x != "bf16" or torch.cuda.is_bf16_supported(False)]

    @cached_property
    def dictionary(self) -> Dictionary:
        """Types without a meaning."""
        found = Dictionary()
        for number in range(self.types - found.nspecial):
            found.add_symbol(f"w{number}")
        return found

    def data(self) -> Path:
        """A folder in which fairseq's task finds the dictionary of both languages."""
        folder = self.folder / f"dictionary-{self.types}"
        if not folder.is_dir():
            folder.mkdir(parents=True)
            for language in ("src", "tgt"):
                self.dictionary.save(str(folder / f"dict.{language}.txt"))
        return folder

    def trainer(self, flags: Sequence[str], precision: str = "fp32") -> Trainer:
        """fairseq's trainer; later flags win."""
        words = [
            *(str(self.data()), "-s", "src", "-t", "tgt", "--share-all-embeddings"),
            *("--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", "1e-3"),
            *("--max-tokens", "4096", "--seed", str(self.seed), *flags),
        ]
        where = PRECISIONS[precision] if self.is_gpu else ["--cpu", *PRECISIONS[precision]]
        return in_process.build_trainer(words, where)

    def batch(
        self, sentences: int = 8, longest: int = 20, seed: int = 1, left_pad_target: bool = False
    ) -> Batch:
        """Sentences of 1/2 to 1 times that many words, whose target is their source backwards.

        Returns:
            A batch of fairseq's on the CPU, source left-padded and target right-padded.
        """
        generator = torch.Generator().manual_seed(seed)
        first, eos = self.dictionary.nspecial, self.dictionary.eos()
        samples = []
        for number in range(sentences):
            length = int(torch.randint(max(1, longest // 2), longest + 1, (), generator=generator))
            words = torch.randint(first, self.types, (length,), generator=generator)
            end = torch.tensor([eos])
            samples.append(
                {
                    "id": number,
                    "source": torch.cat((words, end)),
                    "target": torch.cat((words.flip(0), end)),
                }
            )
        pad = self.dictionary.pad()
        return collate(samples, pad, eos, left_pad_source=True, left_pad_target=left_pad_target)


def on(device: str, batch: Batch) -> Batch:
    """A batch on another device."""

    def move(x: Any) -> Any:
        if isinstance(x, dict):
            return {key: move(value) for key, value in x.items()}
        return x.to(device) if torch.is_tensor(x) else x

    return move(batch)
