"""Training and generation, ours and stock fairseq's in turns."""

import gc
import json
import time
from collections.abc import Callable
from shlex import split
from statistics import median
from typing import Any

import torch
from fairseq.sequence_generator import SequenceGenerator

from gpu.checks import Outcome
from gpu.setups import FAIRSEQS, OURS, TINY, Device, on
from macaron_fairseq.analysis import flops
from macaron_fairseq.fast.beam_search import CandidateGenerator

# (sizes, types, tokens of a batch): fairseq's architectures iwslt_de_en, base and big.
IWSLT = split(
    "--encoder-embed-dim 512 --encoder-ffn-embed-dim 1024 --encoder-attention-heads 4 "
    "--decoder-embed-dim 512 --decoder-ffn-embed-dim 1024 --decoder-attention-heads 4"
)
BIG = split(
    "--encoder-embed-dim 1024 --encoder-ffn-embed-dim 4096 --encoder-attention-heads 16 "
    "--decoder-embed-dim 1024 --decoder-ffn-embed-dim 4096 --decoder-attention-heads 16"
)
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
DTYPES = {"fp16": torch.half, "bf16": torch.bfloat16}
SCALE = ["--fp16-init-scale", "128"]


def look(device: Device, spoil: bool) -> Outcome:
    """Time of stock's over ours in each turn, with range; on a GPU below 1.0 fails.

    Ours is `lie-trotter`, the same network. An update's operations are compared with what the GPU
    can do. Spoiled: the sides change places, with the same times. Elsewhere time is not judged.
    """
    file = device.folder / "speed.json"
    if not (spoil and file.is_file()):
        file.write_text(json.dumps(measure(device)), "utf-8")
    figures = json.loads(file.read_text("utf-8"))
    passes, said = True, []
    for name, found in figures.items():
        ratios = [1 / x if spoil else x for x in found["stock over ours"]]
        passes &= median(ratios) >= 1.0
        said.append(f"{name} {line(found, ratios)}")
    says = "times as fast as stock: " + "; ".join(said)
    is_judged = device.kind == "cuda"
    return Outcome(passes or not is_judged, says, {} if spoil else figures, is_judged)


def line(found: dict[str, Any], ratios: list[float]) -> str:
    """What is told of a work: the ratios of stock's times to ours, and what else was found."""
    said = [f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"]
    if "share of products" in found:
        said.append(f"{found['share of products']:.0%} of the products' ceiling")
    if "ours peak MiB" in found:
        said.append(f"{found['ours peak MiB']:.0f} MiB of {found['stock peak MiB']:.0f}")
    return ", ".join(said)


def measure(device: Device) -> dict[str, dict[str, Any]]:
    """What `measure_work` finds, by work, shape and precision.

    Tells each as it is found, since all of them take minutes.
    """
    figures: dict[str, dict[str, Any]] = {}
    for shape, (flags, types, tokens) in SHAPES[device.kind].items():
        own = Device(device.kind, device.folder, types, device.seed)
        works = [("generation", "fp16" if device.kind == "cuda" else "fp32")]
        halves = [x for x in device.precisions if x != "fp32"]
        works += [("training", x) for x in (halves if device.is_gpu else ["fp32"])]
        for work, precision in works:
            found = measure_work(own, work, flags, tokens, precision)
            figures[name := f"{work} {shape} {precision}"] = found
            print(name, line(found, found["stock over ours"]), flush=True)
    return figures


def measure_work(
    device: Device, work: str, flags: list[str], tokens: int, precision: str
) -> dict[str, Any]:
    """Times of stock and ours; on a GPU memory and operations too."""
    sides = ["stock", "ours"]
    make = trained if work == "training" else translated

    def step(side: str) -> Callable[[], Any]:
        return make(device, side, flags, tokens, precision)

    is_cuda = device.kind == "cuda"
    peaks = {f"{side} peak MiB": peak(step(side)) for side in sides} if is_cuda else {}
    found = in_turns({side: step(side) for side in sides}, TURNS[device.kind], is_cuda)
    if is_cuda and work == "training":
        found |= share_of_products(device, flags, tokens, precision, found["ours seconds"])
    return {**found, **peaks}


def peak(step: Callable[[], Any]) -> float:
    """The most MiB of a GPU's memory that three calls reserve, with the model, and nobody else's.

    Not of what they allocate: fairseq's `train_step` begins to count that anew at its end.
    """
    gc.collect()  # the side before this one
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        step()
    return torch.cuda.max_memory_reserved() / 2**20


def in_turns(
    steps: dict[str, Callable[[], Any]], turns: int, is_cuda: bool, base: str | None = "stock"
) -> dict[str, Any]:
    """Seconds of each side's turns, and ratios of the base's to the others', if there is one."""
    found: dict[str, Any] = {f"{side} seconds": [] for side in steps}
    for turn in range(-3 if is_cuda else -1, turns):  # the first ones warm up
        for side in sorted(steps, reverse=bool(turn % 2)):
            if is_cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
            steps[side]()
            if is_cuda:
                torch.cuda.synchronize()
            if turn >= 0:
                found[f"{side} seconds"].append(time.perf_counter() - start)
    for side in sorted({*steps} - {base}) if base else []:
        pairs = zip(found[f"{base} seconds"], found[f"{side} seconds"], strict=True)
        found[f"{base} over {side}"] = [x / y for x, y in pairs]
    return found


def share_of_products(
    device: Device, flags: list[str], tokens: int, precision: str, seconds: list[float]
) -> dict[str, float]:
    """Operations of an update's matrix products a second, and their share of what a GPU can."""
    model = device.trainer([*OURS, "--macaron-scheme", "lie-trotter", *flags]).get_model()
    batch = device.batch(sentences=tokens // WORDS, longest=WORDS + 8)
    lengths = batch["net_input"]["src_lengths"].tolist()
    operations = flops.of_model(model).training((x, x) for x in lengths)
    reached = operations / median(seconds)
    most = products_ceiling(DTYPES[precision])
    return {"operations": operations, "TFLOPS": reached / 1e12, "share of products": reached / most}


def products_ceiling(dtype: torch.dtype) -> float:
    """Operations a second of products of large square matrices."""
    size, turns = 8192, 20
    x = torch.randn(size, size, device="cuda", dtype=dtype)
    y = torch.empty_like(x)
    for turn in range(-3, turns):
        if turn == 0:
            torch.cuda.synchronize()
            start = time.perf_counter()
        torch.mm(x, x, out=y)
    torch.cuda.synchronize()
    return turns * 2 * size**3 / (time.perf_counter() - start)


def trained(
    device: Device, side: str, flags: list[str], tokens: int, precision: str
) -> Callable[[], Any]:
    """One update."""
    is_stock = side == "stock"
    base = FAIRSEQS if is_stock else [*OURS, "--macaron-scheme", "lie-trotter"]
    own = ["--optimizer", "fused_adam"] if device.is_gpu and not is_stock else []
    half = HALF[precision]["stock" if is_stock else "ours"]
    trainer = device.trainer([*base, *own, *flags, *SCALE, *half])
    batch = device.batch(sentences=tokens // WORDS, longest=WORDS + 8)
    return lambda: trainer.train_step([batch])


def translated(
    device: Device, side: str, flags: list[str], tokens: int, precision: str
) -> Callable[[], Any]:
    """Beam search of a batch; the weights are random, so translations are as long as allowed."""
    base = FAIRSEQS if side == "stock" else [*OURS, "--macaron-scheme", "lie-trotter"]
    trainer = device.trainer([*base, *flags])
    model = trainer.get_model().eval()
    if precision in DTYPES:
        model.to(DTYPES[precision])
    model.prepare_for_inference_(trainer.cfg)
    search = SequenceGenerator if side == "stock" else CandidateGenerator
    generator = search([model], device.dictionary, beam_size=5, max_len_b=12)
    batch = on(device.name, device.batch(sentences=tokens // WORDS // 4, longest=WORDS + 8))
    return lambda: generator.generate([model], batch)
