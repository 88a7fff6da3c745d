"""Beam search: ours against fairseq's, with the same weights."""

from typing import Any

import torch
from fairseq.sequence_generator import SequenceGenerator

from gpu.checks import Outcome
from gpu.setups import MACARON, TINY, Device, on
from macaron_fairseq.fast.beam_search import CandidateGenerator

SEARCH = {"beam_size": 5, "max_len_b": 12}
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# Rounding in bf16 chooses other words: of 24 translations by fairseq on a CPU, those in bf16 and in
# fp32 were 20 to 24 times the same (eight seeds of either model).
EQUAL = {"fp32": 1.0, "fp16": 0.95, "bf16": 0.75}
SCORES = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 1e-1}  # of translations that are the same


def look(device: Device, spoil: bool) -> Outcome:
    """How many translations are the same; spoiled: one side's embeddings are noised.

    The peaked model is sure of each word, and the unsure one is not.
    """
    batch = device.batch(sentences=24, longest=10)
    passes, said, figures = True, [], {}
    for precision in device.precisions:
        for name, peak in (("peaked", 6.0), ("unsure", 1.0)):
            sides = [
                translate(device, kernels, precision, peak, batch, spoil and kernels == "fused")
                for kernels in ("fairseq", "fused")
            ]
            pairs = list(zip(*sides, strict=True))
            same = [(x, y) for x, y in pairs if x["tokens"].tolist() == y["tokens"].tolist()]
            share = len(same) / len(pairs)
            score = max((abs(float(x["score"]) - float(y["score"])) for x, y in same), default=0)
            figures[f"{precision} {name}"] = {"equal": share, "scores differ by": score}
            passes &= share >= EQUAL[precision] and score < SCORES[precision]
            said.append(f"{precision} {name} {share:.0%}")
    return Outcome(passes, "the same: " + ", ".join(said), figures)


def translate(
    device: Device, kernels: str, precision: str, peak: float, batch: Any, noise: bool
) -> list[Any]:
    """The best hypothesis of each sentence, by fairseq's search or by ours."""
    trainer = device.trainer([*MACARON, *TINY, "--macaron-kernels", kernels])
    model = trainer.get_model().eval()
    with torch.no_grad():
        embedding = model.encoder.embed_tokens.weight  # of both sides and of the projection
        embedding.mul_(peak)
        if noise:
            embedding.add_(torch.randn_like(embedding) * embedding.std() / 2)
    model.to(DTYPES[precision]).prepare_for_inference_(trainer.cfg)
    search = SequenceGenerator if kernels == "fairseq" else CandidateGenerator
    generator = search([model], device.dictionary, **SEARCH)
    found = generator.generate([model], on(device.name, batch))
    return [beam[0] for beam in found]
