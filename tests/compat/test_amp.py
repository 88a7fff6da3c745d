"""fairseq's `--amp`, with PyTorch's scaler of a CPU."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch
from fairseq.optim import amp_optimizer
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.optim.sgd import SGD

from macaron_fairseq.compat import amp

SCALE = 128.0


def updated(step):
    """A weight of 1 after one update with the gradient 1 and the learning rate 1."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = AMPOptimizer.__new__(AMPOptimizer)
    config = SimpleNamespace(lr=[1.0], momentum=0.0, weight_decay=0.0)
    optimizer.fp32_optimizer = SGD(config, [weight])
    optimizer._grad_scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    optimizer.min_loss_scale = 1e-4
    optimizer.backward(weight.sum())
    assert float(weight.grad) == SCALE
    assert float(optimizer.clip_grad_norm(0)) == 1
    step(optimizer)
    return float(weight)


def test_fairseq_divides_by_the_loss_scale_twice():
    """Once it does not, `compat/amp.py` can go."""
    spec = importlib.util.spec_from_file_location("unchanged", amp_optimizer.__file__)
    unchanged = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(unchanged)
    assert updated(unchanged.AMPOptimizer.step) == pytest.approx(1 - 1 / SCALE)


def test_gradients_are_divided_once():
    assert updated(amp.step) == pytest.approx(0)
    assert AMPOptimizer.step is amp.step  # since the package was imported
