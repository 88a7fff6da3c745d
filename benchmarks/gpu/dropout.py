"""Dropout: how many are left out, that the mean stays, and that masks differ."""

from math import sqrt

import torch
from torch import Tensor
from torch.nn import functional

from gpu.checks import Outcome
from gpu.setups import OURS, TINY, Device
from macaron_fairseq.fast.dropout import Dropout

ELEMENTS = 200_000
SIGMAS = 4


def look(device: Device, spoil: bool) -> Outcome:
    """Of our modules and of PyTorch's attention; spoiled: they leave out twice as many."""
    model = device.trainer([*OURS, *TINY, "--dropout", "0.1"]).get_model().train()
    modules = [x for x in model.modules() if isinstance(x, Dropout) and x.p == 0.1][:2]
    ones = torch.ones(ELEMENTS, device=device.name)
    torch.manual_seed(device.seed)
    p = 0.2 if spoil else 0.1
    for module in modules:
        module.p = p
    first, second = modules[0](ones), modules[1](ones)  # of two layers
    later = modules[0](ones)  # of the next update
    torch.manual_seed(device.seed)
    again = modules[0](ones)
    share, kept = share_and_mean(first)
    weights = attention_weights(device, p)
    attention_share, attention_mean = share_and_mean(weights)
    sigma = sqrt(0.1 * 0.9 / ELEMENTS)
    figures = {
        "share": share,
        "mean": kept,
        "share in attention": attention_share,
        "mean in attention": attention_mean,
        "sigma": sigma,
    }
    passes = (
        abs(share - 0.1) < SIGMAS * sigma
        and abs(kept - 1) < SIGMAS * sigma / 0.9
        and abs(attention_share - 0.1) < SIGMAS * sqrt(0.1 * 0.9 / weights.numel())
        and abs(attention_mean - 1) < SIGMAS * sqrt(0.1 / 0.9 / weights.numel())
        and not torch.equal(first, second)
        and not torch.equal(first, later)
        and torch.equal(first, again)
    )
    return Outcome(passes, f"share {share:.4f}, in attention {attention_share:.4f}", figures)


def share_and_mean(x: Tensor) -> tuple[float, float]:
    """How many are 0, and the mean; where nothing is left out all are 1."""
    return float(x.eq(0).float().mean()), float(x.mean())


def attention_weights(device: Device, p: float) -> Tensor:
    """PyTorch's attention weights times the number of keys, all 1 before dropout."""
    keys = 32
    q = torch.zeros(64, 4, keys, keys, device=device.name)
    v = torch.eye(keys, device=device.name).expand_as(q)
    return functional.scaled_dot_product_attention(q, q, v, dropout_p=p) * keys
