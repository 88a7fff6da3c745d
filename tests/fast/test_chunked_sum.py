"""Any loss over rows of logits, some rows at a time, and its gradients."""

import pytest
import torch

from macaron_fairseq.fast import chunked_loss
from macaron_fairseq.fast.chunked_sum import chunked_sum


@pytest.mark.parametrize("rows", [0, 7])
def test_a_sum_in_chunks_and_its_gradients_are_those_of_the_whole(rows, monkeypatch):
    monkeypatch.setattr(chunked_loss, "CHUNK_ELEMENTS_CPU", 3 * 5)  # three rows at a time
    torch.manual_seed(1)
    states = torch.randn(rows, 4, dtype=torch.double, requires_grad=True)
    parameters = [torch.randn(5, n, dtype=torch.double, requires_grad=True) for n in (4, 1)]
    constant, seen = torch.randn(rows, 5).double(), []

    def loss(some, other):
        seen.append(len(some))
        weight, bias = parameters
        return ((some @ weight.t() + bias.t()).log_softmax(1) * other).square().sum()

    expected = loss(states, constant)
    wanted = torch.autograd.grad(3 * expected, (states, *parameters), allow_unused=True)
    seen.clear()
    found = chunked_sum(loss, parameters[0], parameters, states, constant)
    torch.testing.assert_close(found, expected)
    gradients = torch.autograd.grad(3 * found, (states, *parameters))
    torch.testing.assert_close(gradients, wanted)
    assert seen == ([3, 3, 1] if rows else [])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_chunks_in_half_precision_are_added_up_in_full(dtype, monkeypatch):
    """A sum of ones in half precision would end at 2,048 or at 256."""
    monkeypatch.setattr(chunked_loss, "CHUNK_ELEMENTS_CPU", 5)
    states = torch.ones(3000, 4, dtype=dtype, requires_grad=True)
    weight = torch.zeros(5, 4, dtype=dtype, requires_grad=True)

    def loss(some):
        return (some @ weight.t())[:, 0].float().sum()

    (found,) = torch.autograd.grad(chunked_sum(loss, weight, [weight], states), [weight])
    assert found.dtype == dtype
    torch.testing.assert_close(found[0].float(), torch.full((4,), 3000.0), rtol=4e-3, atol=0)


@pytest.mark.parametrize("temperature", [1, 0.125])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_large_features_in_fp16_do_not_overflow(dtype, temperature):
    """A chunk of 2,000 rows of 16, whose gradients are all of one type.

    Means of states are fp32 also where the weight is fp16, and so is their product with it.
    """
    states = torch.full((2000, 4), 16.0, dtype=dtype, requires_grad=True)
    weight = torch.zeros(5, 4, dtype=torch.float16, requires_grad=True)

    def loss(some):
        logits = (some.half() @ weight.t()).float()
        return -(logits / temperature).log_softmax(1)[:, 0].sum()

    total = chunked_sum(loss, weight, [weight], states, steepest=1 / temperature)
    (found,) = torch.autograd.grad(total, [weight], torch.tensor(temperature))
    torch.testing.assert_close(found[0].float(), torch.full((4,), -25_600.0), rtol=2e-3, atol=0)
