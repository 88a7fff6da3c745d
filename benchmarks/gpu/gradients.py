"""Gradients on the device against fp64 on the CPU: kernels, criteria and precisions."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from fairseq.trainer import Trainer
from torch import Tensor

from gpu.checks import Outcome
from gpu.setups import (
    CHUNKED,
    EXACT,
    MACARON,
    NO_DROPOUT,
    TINY,
    Batch,
    Device,
    on,
)
from macaron_fairseq.fast import chunked_loss

MOST = {"fp32": 5e-6, "fp16": 1e-2, "bf16": 3e-2}
MOST_OF_FAIRSEQS = 1.5
ROUNDING = 1e-6  # of fp32 sums, which chunks take in another order
KERNELS = "fairseq", "fused"
CRITERIA = {"exact": EXACT, "chunked": CHUNKED}
LOSS_SCALE = 128.0
SMALL_CHUNKS = 2**15  # tokens x types


def look(device: Device, spoil: bool) -> Outcome:
    """Relative errors of all gradients together; spoiled: one weight is doubled."""
    batch = device.batch(sentences=12)
    model = [*MACARON, *TINY, *NO_DROPOUT]
    exact = device_free(device).trainer([*model, "--macaron-kernels", "fairseq", *EXACT])
    exact.model.double()
    weights = {name: rounded(x) for name, x in exact.model.state_dict().items()}
    wanted = gradients(exact, weights, batch, "cpu")
    if spoil:
        name = next(name for name in weights if name.endswith("fc1.weight"))
        weights = {**weights, name: weights[name] * 2}
    errors: dict[str, dict[str, float]] = {}
    for precision in device.precisions:
        found = errors.setdefault(precision, {})
        for kernels in KERNELS:
            for name, flags in CRITERIA.items():
                words = [*model, "--macaron-kernels", kernels, *flags]
                with chunks_of(SMALL_CHUNKS):
                    trainer = device.trainer(words, precision)
                    gradient = gradients(trainer, weights, batch, device.name)
                error = torch.linalg.vector_norm(gradient - wanted)
                found[f"{kernels}, {name}"] = float(error / torch.linalg.vector_norm(wanted))
    passes, said = True, []
    for precision, found in errors.items():
        worst, fairseqs = max(found.values()), found["fairseq, exact"]
        passes &= worst < MOST[precision]
        passes &= found["fused, chunked"] <= max(MOST_OF_FAIRSEQS * fairseqs, ROUNDING)
        said.append(f"{precision} {found['fused, chunked']:.1e} (fairseq {fairseqs:.1e})")
    return Outcome(passes, "relative error " + ", ".join(said), {"errors": errors})


def device_free(device: Device) -> Device:
    """The same data on the CPU."""
    return Device("cpu", device.folder, device.types, device.seed)


def rounded(x: Tensor) -> Tensor:
    """What all precisions can hold."""
    return x.bfloat16().half().double() if x.is_floating_point() else x


def gradients(trainer: Trainer, weights: dict[str, Tensor], batch: Batch, device: str) -> Tensor:
    """The gradients of all parameters, in the order of their names, as one vector in fp64."""
    model = trainer.get_model()
    own = model.state_dict()
    model.load_state_dict({name: weights[name].to(x.dtype) for name, x in own.items()})
    model.train()
    loss, size, _ = trainer.get_criterion()(model, on(device, batch))
    is_scaled = loss.dtype == torch.float16 or next(model.parameters()).dtype == torch.float16
    scale = LOSS_SCALE if is_scaled else 1.0
    (loss.float() / size * scale if is_scaled else loss / size).backward()
    found = sorted(model.named_parameters())
    return torch.cat([x.grad.detach().cpu().double().flatten() / scale for _, x in found])


@contextmanager
def chunks_of(elements: int) -> Iterator[None]:
    """A block in which the chunked criterion takes several chunks of a small batch."""
    before = chunked_loss.CHUNK_ELEMENTS, chunked_loss.CHUNK_ELEMENTS_CPU
    chunked_loss.CHUNK_ELEMENTS = chunked_loss.CHUNK_ELEMENTS_CPU = elements
    try:
        yield
    finally:
        chunked_loss.CHUNK_ELEMENTS, chunked_loss.CHUNK_ELEMENTS_CPU = before
