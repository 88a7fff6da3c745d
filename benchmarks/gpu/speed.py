"""Training and generation, ours and stock fairseq's in turns."""

import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from fairseq.sequence_generator import SequenceGenerator

from gpu.checks import Outcome
from gpu.setups import FAIRSEQS, LIGER, OURS, TINY, Device, has_liger, on
from macaron_fairseq.fast.beam_search import CandidateGenerator

# (sizes, types, tokens of a batch): fairseq's architectures iwslt_de_en, base and big.
IWSLT = [
    *("--encoder-embed-dim", "512", "--encoder-ffn-embed-dim", "1024"),
    *("--encoder-attention-heads", "4", "--decoder-embed-dim", "512"),
    *("--decoder-ffn-embed-dim", "1024", "--decoder-attention-heads", "4"),
]
BIG = [
    *("--encoder-embed-dim", "1024", "--encoder-ffn-embed-dim", "4096"),
    *("--encoder-attention-heads", "16", "--decoder-embed-dim", "1024"),
    *("--decoder-ffn-embed-dim", "4096", "--decoder-attention-heads", "16"),
]
SHAPES = {
    "cuda": {
        "iwslt": (IWSLT, 10_000, 4096),
        "base": ([], 37_000, 8192),
        "big": (BIG, 37_000, 8192),
    },
    "cpu": {"tiny": (TINY, 1000, 512)},
    "fake": {"tiny": (TINY, 1000, 512)},
}
TURNS = {"cuda": 15, "cpu": 3, "fake": 1}
WORDS = 24  # of a sentence, about
HALF = {
    "fp16": {"stock": ["--fp16"], "ours": ["--memory-efficient-fp16"]},
    "bf16": {"stock": ["--bf16"], "ours": ["--memory-efficient-bf16"]},
    "fp32": {"stock": ["--cpu"], "ours": ["--cpu"]},
}
SCALE = ["--fp16-init-scale", "128"]


def look(device: Device, spoil: bool) -> Outcome:
    """Time of stock's over ours in each turn, with range; on a GPU below 1.0 fails.

    Ours is `lie-trotter`, the same network; "liger" is ours with Liger-Kernel's loss, where it is
    installed, and is not judged. Spoiled: the sides change places, with the same times.
    Elsewhere time is not judged.
    """
    file = device.folder / "speed.json"
    if not (spoil and file.is_file()):
        file.write_text(json.dumps(measure(device)), "utf-8")
    figures = json.loads(file.read_text("utf-8"))
    passes, said = True, []
    for name, found in figures.items():
        ratios = [1 / x if spoil else x for x in found["stock over ours"]]
        passes &= median(ratios) >= 1.0
        said.append(f"{name} {median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")
        if ligers := found.get("stock over liger"):
            said[-1] += f", with Liger's loss {median(ligers):.2f}"
    says = "times as fast as stock: " + ", ".join(said)
    is_judged = device.kind == "cuda"
    return Outcome(passes or not is_judged, says, {} if spoil else figures, is_judged)


def measure(device: Device) -> dict[str, dict[str, list[float]]]:
    """Times, ratios and on a GPU peak memory, by work, shape and precision."""
    figures = {}
    for shape, (flags, types, tokens) in SHAPES[device.kind].items():
        own = Device(device.kind, device.folder, types, device.seed)
        works = [("generation", "fp16" if device.kind == "cuda" else "fp32")]
        halves = [x for x in device.precisions if x != "fp32"]
        works += [("training", x) for x in (halves if device.is_gpu else ["fp32"])]
        for work, precision in works:
            make = trained if work == "training" else translated
            sides = ["stock", "ours"]
            sides += ["liger"] * (work == "training" and has_liger(device))
            steps = {side: make(own, side, flags, tokens, precision) for side in sides}
            found = in_turns(steps, TURNS[device.kind], device.kind == "cuda")
            figures[f"{work} {shape} {precision}"] = found
    return figures


def in_turns(
    steps: dict[str, Callable[[], Any]], turns: int, is_cuda: bool
) -> dict[str, list[float]]:
    """Seconds of each side's turns, their ratios, and the peak memory in MiB on a GPU."""
    found: dict[str, list[float]] = {f"{side} seconds": [] for side in steps}
    found |= {f"{side} peak MiB": [] for side in steps} if is_cuda else {}
    for turn in range(-3 if is_cuda else -1, turns):  # the first ones warm up
        for side in sorted(steps, reverse=bool(turn % 2)):
            if is_cuda:
                torch.cuda.reset_peak_memory_stats()
                torch.cuda.synchronize()
            start = time.perf_counter()
            steps[side]()
            if is_cuda:
                torch.cuda.synchronize()
            if turn >= 0:
                found[f"{side} seconds"].append(time.perf_counter() - start)
                if is_cuda:
                    found[f"{side} peak MiB"].append(torch.cuda.max_memory_allocated() / 2**20)
    for side in {*steps} - {"stock"}:
        pairs = zip(found["stock seconds"], found[f"{side} seconds"], strict=True)
        found[f"stock over {side}"] = [x / y for x, y in pairs]
    return found


def trained(
    device: Device, side: str, flags: list[str], tokens: int, precision: str
) -> Callable[[], Any]:
    """One update."""
    is_stock = side == "stock"
    base = FAIRSEQS if is_stock else [*OURS, "--macaron-scheme", "lie-trotter"]
    own = ["--optimizer", "fused_adam"] if device.is_gpu and not is_stock else []
    own += LIGER * (side == "liger")
    half = HALF[precision]["stock" if is_stock else "ours"]
    trainer = device.trainer([*base, *flags, *own, *SCALE, *half])
    batch = device.batch(sentences=tokens // WORDS, longest=WORDS + 8)
    return lambda: trainer.train_step([batch])


def translated(
    device: Device, side: str, flags: list[str], tokens: int, precision: str
) -> Callable[[], Any]:
    """Beam search of a batch; the weights are random, so translations are as long as allowed."""
    base = FAIRSEQS if side == "stock" else [*OURS, "--macaron-scheme", "lie-trotter"]
    trainer = device.trainer([*base, *flags])
    model = trainer.get_model().eval()
    if precision == "fp16":
        model.half()
    model.prepare_for_inference_(trainer.cfg)
    search = SequenceGenerator if side == "stock" else CandidateGenerator
    generator = search([model], device.dictionary, beam_size=5, max_len_b=12)
    batch = on(device.name, device.batch(sentences=tokens // WORDS // 4, longest=WORDS + 8))
    return lambda: generator.generate([model], batch)
