"""Dropout: how many are left out, that the mean stays, and that masks differ."""

from collections.abc import Callable
from math import sqrt

import torch
from torch import Tensor
from torch.nn import functional

from gpu.checks import Outcome
from gpu.setups import OURS, TINY, Device
from macaron_fairseq.fast import gpu_kernels
from macaron_fairseq.fast.dropout import Dropout

ELEMENTS = 200_000
WIDTH = 100
SIGMAS = 4


def look(device: Device, spoil: bool) -> Outcome:
    """Of all that leaves out on a GPU; spoiled: twice as much is left out.

    A draw must differ from that of the next layer or update, and be the same with the same seed.
    """
    p = 0.2 if spoil else 0.1
    passes, figures = True, {}
    for name, draw in draws(device, p).items():
        torch.manual_seed(device.seed)
        first, later = draw(), draw()
        torch.manual_seed(device.seed)
        again = draw()
        share, mean = share_and_mean(first)
        figures[name] = {"share": share, "mean": mean, "elements": first.numel()}
        passes &= abs(share - 0.1) < SIGMAS * sqrt(0.1 * 0.9 / first.numel())
        passes &= abs(mean - 1) < SIGMAS * sqrt(0.1 / 0.9 / first.numel())
        passes &= not torch.equal(first, later) and torch.equal(first, again)
    said = ", ".join(f"{name} {x['share']:.4f}" for name, x in figures.items())
    return Outcome(passes, f"share {said}", figures)


def draws(device: Device, p: float) -> dict[str, Callable[[], Tensor]]:
    """What leaves out, as functions of ones: of embeddings, an FFN, two steps' sums, attention."""
    model = device.trainer([*OURS, *TINY, "--dropout", "0.1"]).get_model().train()
    module = next(x for x in model.modules() if isinstance(x, Dropout) and x.p == 0.1)
    module.p = p
    ones = torch.ones(ELEMENTS, device=device.name)
    square = torch.ones(ELEMENTS // WIDTH, WIDTH, device=device.name)
    weight = torch.eye(WIDTH, device=device.name)

    def of_ffn() -> Tensor:
        return gpu_kernels.dropped_relu(square, weight, torch.zeros_like(weight[0]), p)

    def of_steps() -> Tensor:
        kept = gpu_kernels.draw_kept(2, square, p)
        zero = torch.zeros_like(square)
        first, second = (gpu_kernels.add_dropped(zero, square, one, p, 1.0) for one in kept)
        if torch.equal(first, second):  # of two steps of a layer
            return zero
        return torch.cat((first, second))

    return {
        "embeddings": lambda: module(ones),
        "FFN": of_ffn,
        "steps": of_steps,
        "attention": lambda: attention_weights(device, p),
    }


def share_and_mean(x: Tensor) -> tuple[float, float]:
    """How many are 0, and the mean; where nothing is left out all are 1."""
    return float(x.eq(0).float().mean()), float(x.mean())


def attention_weights(device: Device, p: float) -> Tensor:
    """PyTorch's attention weights times the number of keys, all 1 before dropout."""
    keys = 32
    q = torch.zeros(64, 4, keys, keys, device=device.name)
    v = torch.eye(keys, device=device.name).expand_as(q)
    return functional.scaled_dot_product_attention(q, q, v, dropout_p=p) * keys
