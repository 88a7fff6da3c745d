"""`fast/activation.py` against fairseq's GELU and PyTorch's linear map."""

import pytest
import torch
from fairseq.modules import gelu
from helpers.small import NO_DROPOUT, SMALL_ENCODER, build, masked_task, texts
from torch.nn import functional

from macaron_fairseq.fast import activation
from macaron_fairseq.fast.activation import gelu_linear


def plain(x, weight, bias):
    return functional.linear(gelu(x), weight, bias)


def leaves(bias=True):
    torch.manual_seed(1)
    shapes = [(3, 2, 8), (5, 8), *[(5,)] * bias]
    found = [torch.randn(shape, requires_grad=True) for shape in shapes]
    return found if bias else [*found, None]


def gradients(function, inputs):
    """Of first and second order, of a sum whose terms have their own factors."""
    wanted = [x for x in inputs if x is not None]
    y = function(*inputs)
    first = torch.autograd.grad((y * y.detach().cos()).sum(), wanted, create_graph=True)
    second = torch.autograd.grad(sum((x**2).sum() for x in first), wanted, allow_unused=True)
    return y, *first, *second


@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_the_two_operations(bias):
    torch.testing.assert_close(gradients(gelu_linear, leaves(bias)), gradients(plain, leaves(bias)))


def test_dropout_of_all_leaves_nothing():
    """`--activation-dropout 1`, with which fairseq's FFN gives its last bias alone."""
    stock, fused = (
        build("macaron_roberta_tiny", *SMALL_ENCODER, *flags, for_task=masked_task()).train()
        for flags in (
            ["--macaron-kernels", "fairseq", *NO_DROPOUT, "--activation-dropout", "1"],
            [*NO_DROPOUT, "--activation-dropout", "1"],
        )
    )
    found, expected = (model(texts())[0] for model in (fused, stock))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_gradients_that_nobody_needs_are_none():
    x, weight, bias = leaves()
    y = gelu_linear(x.detach(), weight, bias.detach())
    y.sum().backward()
    expected = torch.autograd.grad(plain(x, weight, bias).sum(), weight)[0]
    torch.testing.assert_close(weight.grad, expected)


def test_products_in_bf16_are_those_of_autocast():
    results = []
    for function in (gelu_linear, plain):
        inputs = leaves()
        with torch.autocast("cpu", torch.bfloat16):
            y = function(inputs[0].bfloat16(), *inputs[1:])
        assert y.dtype == torch.bfloat16
        y.sum().backward()
        results.append([y, *(x.grad for x in inputs)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def remembered(function, *inputs):
    """How many tensors the way back needs, without leaves."""
    leaves = {x.untyped_storage().data_ptr() for x in inputs if x.is_leaf}
    found = {}

    def keep(x):
        found[x.untyped_storage().data_ptr()] = x  # alive, so that its memory is no other's
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        function(*inputs)
    return len(found.keys() - leaves)


def test_it_remembers_one_tensor_instead_of_two():
    x, *others = leaves()
    assert remembered(gelu_linear, x * 2, *others) == 1
    assert remembered(plain, x * 2, *others) == 2


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_ffns_use_it_where_nothing_comes_between(share, monkeypatch):
    calls = []

    def used(*inputs):
        calls.append(inputs)
        return plain(*inputs)

    monkeypatch.setattr(activation, "gelu_linear", used)
    flags = [*SMALL_ENCODER, *NO_DROPOUT, "--activation-dropout", str(share)]
    model = build("macaron_roberta_tiny", *flags, for_task=masked_task()).train()
    tokens = texts((6, 4))
    with torch.no_grad():
        model(tokens)
    assert not calls  # nothing is to be remembered
    model(tokens)
    ffns = sum(name.endswith("fc2") for name, _ in model.named_modules())
    assert ffns == 4 and len(calls) == (0 if share else ffns)
