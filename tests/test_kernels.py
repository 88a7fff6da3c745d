"""Attention, dropout and decoding against fairseq's own (`--macaron-kernels fairseq`)."""

import platform
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import NO_DROPOUT, SMALL, batch, build, dictionary
from fairseq import models
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.modules.fairseq_dropout import FairseqDropout
from fairseq.search import (
    BeamSearch,
    DiverseBeamSearch,
    LexicallyConstrainedBeamSearch,
    PrefixConstrainedBeamSearch,
    Sampling,
)
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from fairseq.token_generation_constraints import pack_constraints
from torch import nn
from torch.nn import functional

from macaron_fairseq import acceleration, environment
from macaron_fairseq.acceleration import (
    activation,
    bf16,
    caches,
    dropout,
    products,
    residual,
    softmax,
)
from macaron_fairseq.acceleration.attention import Attention
from macaron_fairseq.acceleration.dropout import Dropout, RememberedDropout, draws_are_known
from macaron_fairseq.errors import UserError
from macaron_fairseq.host import preflight

STOCK = ["--macaron-kernels", "fairseq"]
DROPOUT = ["--dropout", "0.3", "--attention-dropout", "0.1", "--activation-dropout", "0.1"]
OPTIONS = [
    [],
    ["--attention-dropout", "0"],
    ["--macaron-scheme", "lie-trotter"],
    ["--macaron-post-norm"],
    ["--no-cross-attention", "--cross-self-attention"],
    ["--encoder-embed-dim", "24", "--decoder-embed-dim", "16"],
]
# Two matrix products attend within the short ones, on a CPU PyTorch's kernel within the long ones.
SHORT = (9, 8), (5, 3), (7, 8), (3, 4)
LONG = (70, 81), (80, 66), (5, 4)
LENGTHS = [SHORT, LONG]

dropout_of_relu = activation.RectifiedDropout._backward_cls
coarse_dropout_of_relu = activation.CoarseRectifiedDropout._backward_cls
step_with_dropout = residual.ResidualDropout._backward_cls


def both(*flags, arch="macaron_transformer"):
    """The same model with fairseq's kernels and with this package's."""
    stock, fused = (build(arch, *SMALL, *DROPOUT, *flags, *kernels) for kernels in (STOCK, []))
    assert not any(isinstance(m, Attention | Dropout) for m in stock.modules())
    assert any(isinstance(m, Attention) for m in fused.modules())
    assert stock.state_dict().keys() == fused.state_dict().keys()
    return stock, fused


# How dropout computes: with Numba; without; and where PyTorch draws otherwise than is known.
WAYS = ["in compiled loops", "in blocks", "by PyTorch"]


def choose(way, monkeypatch):
    if way != WAYS[0]:
        monkeypatch.setattr(dropout, "loops", lambda: None)
        monkeypatch.setattr(dropout, "loops_draw_alike", lambda: False)
    elif not dropout.loops_draw_alike():
        pytest.skip("this PyTorch, or this processor's, draws otherwise")
    if way == WAYS[2]:
        monkeypatch.setattr(dropout, "draws_are_known", lambda: False)


# --- dropout -------------------------------------------------------------------------------------


def test_dropout_of_all_leaves_zeros():
    x = torch.randn(5, 7)
    assert torch.equal(Dropout(1.0).train()(x), torch.zeros(5, 7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.99])
@pytest.mark.parametrize("way", WAYS)
def test_dropout_is_pytorchs_number_by_number(way, p, dtype, monkeypatch):
    choose(way, monkeypatch)
    x = torch.randn(7, 30011, dtype=dtype)  # more than a block
    results = []
    for kind in (FairseqDropout, Dropout):
        torch.manual_seed(5)
        leaf = x.clone().requires_grad_()
        y = kind(p).train()(leaf)
        y.sum().backward()
        results.append((y, leaf.grad, torch.rand(3)))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    assert (results[0][0] == 0).float().mean().item() == pytest.approx(p, abs=0.01)


@pytest.mark.parametrize("way", WAYS)
def test_dropout_is_pytorchs_in_any_layout(way, monkeypatch):
    choose(way, monkeypatch)
    x = torch.randn(6, 5, 41)
    for view in (
        x.transpose(0, 2),
        x[:, 1:],
        x[::2, :, ::3].transpose(0, 1),
        x[0, 0].expand(9, 41),
    ):
        results = []
        for kind in (FairseqDropout, Dropout):
            torch.manual_seed(5)
            leaf = view.detach().requires_grad_()
            y = kind(0.3).train()(leaf)
            (y * torch.arange(y.numel()).view(y.shape)).sum().backward()
            results.append((y, leaf.grad))
        for one, other in zip(*results, strict=True):
            assert torch.equal(one, other)


def test_dropout_has_second_derivatives():
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def left(x):
        torch.manual_seed(5)
        return RememberedDropout.apply(x, 0.3) ** 3

    assert torch.autograd.gradcheck(left, x) and torch.autograd.gradgradcheck(left, x)


def test_dropout_remembers_a_byte_for_an_element():
    saved = []
    x = torch.randn(100_000, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda y: saved.append(y) or y, lambda y: y):
        RememberedDropout.apply(x, 0.3)
    assert sum(y.nbytes for y in saved) == 100_000


@pytest.mark.parametrize("skip", [0, 1, 622, 623, 624])
def test_the_compiled_twister_is_numpys(skip):
    theirs = np.random.MT19937(5)
    key = theirs.state["state"]
    state, skipped, words = key["key"].copy(), np.empty(skip, np.uint32), np.empty(2000, np.uint32)
    left = compiled().draw(state, 624 - key["pos"], skipped)
    left = compiled().draw(state, left, words)
    assert np.array_equal(np.concatenate((skipped, words)), theirs.random_raw(skip + 2000))
    assert np.array_equal(state, theirs.state["state"]["key"])
    assert left == 624 - theirs.state["state"]["pos"]


@pytest.mark.parametrize("loop", ["draw_kept", "rectify"])
def test_a_draw_is_below_the_next_number_and_not_below_itself(loop):
    """In the lower half of the comparison, which decides once in two million times."""
    first, second = (int(x) for x in np.random.MT19937(5).random_raw(2))
    drawn = (first % 2**21) << 32 | second
    for threshold, expected in ((drawn, 0), (drawn + 1, 2), (drawn + 2**32, 2), (drawn - 2**32, 0)):
        key = np.random.MT19937(5).state["state"]
        state, left = key["key"], 624 - key["pos"]
        x, kept = np.ones((1, 1), np.float32), np.empty(1, bool)
        if loop == "draw_kept":
            compiled().draw_kept(state, left, kept, threshold)
            x[0] = 2 * kept
        else:
            compiled().rectify(state, left, x, np.zeros(1, np.float32), threshold, np.float32(2))
        assert x[0] == expected


def compiled():
    pytest.importorskip("numba")
    return dropout.loops()


def test_other_random_numbers_before_and_after_dropout_are_as_ever():
    """Numbers of 32 bits leave the generator between two of 64; `normal_` keeps one for later."""
    results = []
    for kind in (FairseqDropout, Dropout):
        torch.manual_seed(5)
        before = torch.rand(3), torch.randn(3), torch.randint(9, (1,))
        y = kind(0.3).train()(torch.ones(4999))
        results.append((*before, y, torch.randn(5), torch.rand(700), torch.randint(9, (2,))))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("way", WAYS)
def test_dropout_of_nan_and_infinity_is_pytorchs(way, monkeypatch):
    choose(way, monkeypatch)
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 1.0]).repeat(50)
    results = []
    for kind in (FairseqDropout, Dropout):
        torch.manual_seed(5)
        results.append(kind(0.3).train()(x).nan_to_num(7.0))
    assert torch.equal(*results)


@pytest.mark.parametrize("missing", ["numba", "cache"])
def test_without_numba_dropout_is_the_same(missing, monkeypatch):
    monkeypatch.delitem(sys.modules, "macaron_fairseq.acceleration.compiled", raising=False)
    monkeypatch.delattr(acceleration, "compiled", raising=False)
    if missing == "numba":
        monkeypatch.setitem(sys.modules, "numba", None)
    else:  # as Numba says where no folder can be written to
        numba = pytest.importorskip("numba")
        monkeypatch.setattr(numba, "njit", lambda **_: exec("raise RuntimeError('no locator')"))
    dropout.loops.cache_clear()
    dropout.loops_draw_alike.cache_clear()
    try:
        assert dropout.loops() is None
        torch.manual_seed(5)
        ours = Dropout(0.3).train()(torch.ones(999))
    finally:
        dropout.loops.cache_clear()
        dropout.loops_draw_alike.cache_clear()
    torch.manual_seed(5)
    assert torch.equal(ours, functional.dropout(torch.ones(999), 0.3))


def test_draws_that_differ_from_pytorchs_are_not_used():
    assert dropout.is_bernoulli(lambda x, p: x.copy_(torch.empty(len(x)).bernoulli_(p)))
    assert not dropout.is_bernoulli(lambda x, p: x.copy_(torch.empty(len(x)).bernoulli_(1 - p)))
    # The same, with one number more.
    assert not dropout.is_bernoulli(lambda x, p: x.copy_(torch.empty(701).bernoulli_(p)[:700]))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("size", [1, 4, 30_011])
def test_dropout_of_bf16_is_the_same_without_numba(size, p, monkeypatch):
    compiled()
    x = torch.randn(5, size).to(torch.bfloat16).T
    x[0, 0] = torch.inf
    results = []
    for way in WAYS[:2]:
        if way == WAYS[1]:
            choose(way, monkeypatch)
        torch.manual_seed(5)
        leaf = x.clone().requires_grad_()
        y = Dropout(p).train()(leaf)
        y.backward(x.contiguous())
        results.append((y, leaf.grad, torch.rand(3)))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.99, 0.999999])
def test_dropout_of_bf16(p):
    torch.manual_seed(5)
    x = torch.randn(1001, 333).to(torch.bfloat16).transpose(0, 1).requires_grad_()
    y = Dropout(p).train()(x)
    y.backward(torch.ones_like(y))
    kept = y != 0
    deviation = (p * (1 - p) / x.numel()) ** 0.5
    assert kept.float().mean().item() == pytest.approx(1 - p, abs=5 * deviation + 2**-15)
    assert torch.equal(x.grad != 0, kept)
    if p < 0.9:
        assert torch.allclose(y[kept].float(), x[kept].float() / (1 - p), rtol=2**-7)
        assert torch.allclose(x.grad[kept].float(), torch.tensor(1 / (1 - p)), rtol=2**-7)
        # No element's decision says anything of its neighbour's.
        pairs = (kept[:, 1:] & kept[:, :-1]).float().mean().item()
        assert pairs == pytest.approx((1 - p) ** 2, abs=0.01)


@pytest.mark.parametrize("width", [7, 5000])  # numbers of a row: within a renewal, and beyond
@pytest.mark.skipif(not dropout.loops_draw_alike(), reason="no Numba, or PyTorch draws otherwise")
def test_dropout_of_relu_is_pytorchs_to_the_second_derivative(width):
    x, linear = torch.randn(4, 9, 6).transpose(0, 1), nn.Linear(6, width)
    results = []
    for activated, module in (
        (by_steps, FairseqDropout(0.3)),
        (activation.activated, Dropout(0.3)),
    ):
        torch.manual_seed(5)
        leaves = [x.clone().requires_grad_(), linear.weight, linear.bias]
        y = activated(leaves[0], linear, functional.relu, module.train())
        first = torch.autograd.grad((y**3).sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), leaves)
        results.append([y, *first, *second, torch.rand(3)])
        assert isinstance(y.grad_fn, dropout_of_relu) == (module.__class__ is Dropout)
    for one, other in zip(*results, strict=True):
        assert (one - other).abs().max() <= 2e-6 * one.abs().max()


def test_dropout_of_relu_passes_nan_and_infinity_on_as_pytorch_does():
    x = torch.tensor([[torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1.0]] * 50)
    linear = nn.Linear(6, 6)
    nn.init.eye_(linear.weight)
    nn.init.zeros_(linear.bias)
    results = []
    for activated, module in (
        (by_steps, FairseqDropout(0.3)),
        (activation.activated, Dropout(0.3)),
    ):
        torch.manual_seed(5)
        # A product of infinity and the matrix would be no number: as if it had been multiplied.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(linear, "forward", lambda y: y + linear.bias)
            patch.setattr(activation.products, "linear", lambda y, _: y.clone())
            results.append(activated(x, linear, functional.relu, module.train()))
    assert torch.equal(results[0].isnan(), results[1].isnan())
    assert torch.equal(results[0].nan_to_num(), results[1].nan_to_num())


@pytest.mark.skipif(not dropout.loops_draw_alike(), reason="no Numba, or PyTorch draws otherwise")
@pytest.mark.parametrize("matmul", ["fp32", "bf16"])
@pytest.mark.parametrize("norm", [[], ["--macaron-post-norm"]])
def test_the_layers_ffns_are_computed_in_one_pass(norm, matmul):
    model = build("macaron_transformer", *SMALL, *DROPOUT, *norm, "--macaron-matmul", matmul)
    inputs = []
    for name, module in model.named_modules():
        if name.endswith("fc2"):
            module.register_forward_pre_hook(lambda _, x: inputs.append(x[0]))
    model.train()(*batch())
    assert len(inputs) >= 4
    function = coarse_dropout_of_relu if matmul == "bf16" else dropout_of_relu
    assert all(isinstance(x.grad_fn, function) for x in inputs)


@pytest.mark.skipif(dropout.loops() is None, reason="no Numba")
@pytest.mark.parametrize("has_bias", [True, False])
def test_an_ffn_in_bf16_is_the_same_in_one_pass(has_bias):
    linear, x = nn.Linear(6, 70, bias=has_bias), torch.randn(9, 5, 6)
    x[0, 0, 0], x[0, 1], x[8, 4, 5] = torch.nan, 0, torch.inf
    grad, results = torch.randn(9, 5, 70).bfloat16(), []
    for activated in (by_steps, activation.activated):
        torch.manual_seed(5)
        leaves = [x.clone().requires_grad_(), *linear.parameters()]
        with torch.autocast("cpu", torch.bfloat16):
            y = activated(leaves[0], linear, functional.relu, Dropout(0.3).train())
        results.append([y, *torch.autograd.grad(y, leaves, grad), torch.rand(3)])
        assert isinstance(y.grad_fn, coarse_dropout_of_relu) == (activated is not by_steps)
    for one, other in zip(*results, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one.isnan(), other.isnan())
        assert torch.equal(one.nan_to_num(), other.nan_to_num())
    assert results[0][0].isnan().any() and (results[0][0] == 0).float().mean() > 0.4


@pytest.mark.parametrize("change", ["gelu", "eval", "hook", "hook of dropout", "no loops"])
def test_other_ffns_in_bf16_are_computed_step_by_step(change, monkeypatch):
    module, linear, function = Dropout(0.3).train(), nn.Linear(6, 7), functional.relu
    x, results = torch.randn(9, 6), []
    if change == "gelu":
        function = functional.gelu
    elif change == "eval":
        module.eval()
    elif change == "hook":
        linear.register_forward_hook(lambda *_: None)
    elif change == "hook of dropout":
        module.register_full_backward_hook(lambda *_: None)
    else:
        monkeypatch.setattr(activation, "loops", lambda: None)
    for activated in (by_steps, activation.activated):
        torch.manual_seed(5)
        with torch.autocast("cpu", torch.bfloat16):
            results.append(activated(x, linear, function, module))
    assert results[0].dtype == torch.bfloat16
    assert torch.equal(*results)
    assert not isinstance(results[1].grad_fn, coarse_dropout_of_relu)


@pytest.mark.skipif(dropout.loops() is None, reason="no Numba")
def test_a_product_in_bf16_that_gradients_need_is_not_overwritten_silently():
    y = torch.randn(4, 6, requires_grad=True).bfloat16().exp()  # whose gradient is by the result
    activation.CoarseRectifiedDropout.apply(y, 0.3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("place", ["dropout", "everywhere"])
def test_hooks_of_an_ffns_dropout_are_called(place):
    module, seen = Dropout(0.3).train(), []
    if place == "dropout":
        handle = module.register_forward_pre_hook(lambda *_: seen.append(module))
    else:
        register = torch.nn.modules.module.register_module_forward_hook
        handle = register(lambda module, *_: seen.append(module))
    activation.activated(torch.randn(9, 6), nn.Linear(6, 7), functional.relu, module)
    handle.remove()
    assert module in seen


def by_steps(x, linear, activation, dropout):
    return dropout(activation(linear(x)))


@pytest.mark.parametrize(
    "change",
    ["gelu", "eval", "no bias", "hook", "hook of dropout", "fp64", "p 0", "p 1", "no loops"],
)
def test_other_ffns_are_computed_step_by_step(change, monkeypatch):
    module, linear, function = Dropout(0.3).train(), nn.Linear(6, 7), functional.relu
    x = torch.randn(9, 6)
    if change == "gelu":
        function = functional.gelu
    elif change == "eval":
        module.eval()
    elif change == "no bias":
        linear = nn.Linear(6, 7, bias=False)
    elif change == "hook":
        linear.register_forward_hook(lambda *_: None)
    elif change == "hook of dropout":
        module.register_forward_hook(lambda *_: None)
    elif change == "fp64":
        x, linear = x.double(), linear.double()
    elif change in ("p 0", "p 1"):
        module.p = float(change[2:])
    else:
        monkeypatch.setattr(activation, "loops_draw_alike", lambda: False)
    results = []
    for activated in (by_steps, activation.activated):
        torch.manual_seed(5)
        results.append(activated(x, linear, function, module))
    assert torch.equal(*results)
    assert not isinstance(results[1].grad_fn, dropout_of_relu)


@pytest.mark.parametrize("size", [1.0, 0.5, 1 / 3])
@pytest.mark.skipif(not dropout.loops_draw_alike(), reason="no Numba, or PyTorch draws otherwise")
def test_the_end_of_a_step_is_pytorchs_to_the_second_derivative(size):
    x, z, linear = torch.randn(5, 900, 7), torch.randn(5, 900, 6), nn.Linear(6, 7)
    results = []
    for module, is_owned in ((FairseqDropout(0.3), False), (Dropout(0.3), True)):
        torch.manual_seed(5)
        leaves = [x.clone().requires_grad_(), z.clone().requires_grad_(), linear.weight]
        y = residual.add(leaves[0], linear(leaves[1]), size, module.train(), is_owned)
        first = torch.autograd.grad((y**3).sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), leaves)
        results.append([y, *first, *second, torch.rand(3)])
        assert isinstance(y.grad_fn, step_with_dropout) == is_owned
    for one, other in zip(*results, strict=True):
        assert (one - other).abs().max() <= 2e-6 * one.abs().max()


@pytest.mark.parametrize("size", [1.0, 0.5])
@pytest.mark.skipif(dropout.loops() is None, reason="no Numba")
def test_the_end_of_a_step_in_bf16_is_dropout_and_a_sum(size):
    x, y, ways = torch.randn(5, 900, 7), torch.randn(5, 900, 7).bfloat16(), []
    grad = torch.randn(5, 900, 7)
    for add in (
        lambda x, y, module: x + size * module(y).float(),
        lambda x, y, module: residual.add(x, y, size, module, is_owned=False),
    ):
        torch.manual_seed(5)
        leaves = [x.clone().requires_grad_(), y.clone().requires_grad_()]
        result = add(*leaves, Dropout(0.3).train())
        ways.append([result, *torch.autograd.grad(result, leaves, grad), torch.rand(3)])
    for one, other in zip(*ways, strict=True):
        assert one.dtype == other.dtype
        assert torch.allclose(one.double(), other.double(), rtol=2**-7, atol=2**-7)
    assert torch.equal(ways[0][0] == x, ways[1][0] == x)  # the same is left out
    scale = 2**15 / round(0.7 * 2**15) * size
    assert torch.equal(ways[1][2], (grad * scale * (ways[1][0] != x)).bfloat16())


@pytest.mark.parametrize("change", ["no dropout", "fp64", "strides", "another class", "not owned"])
def test_other_ends_of_a_step_leave_the_slope_as_it_is(change):
    x, y, module = torch.randn(4, 6), torch.randn(4, 6), Dropout(0.3).train()
    if change == "no dropout":
        module.eval()
    elif change == "fp64":
        y = y.double()
    elif change == "strides":
        y = torch.randn(6, 4).t()
    elif change == "another class":
        module = FairseqDropout(0.3).train()
    before = y.clone()
    torch.manual_seed(5)
    expected = x + 0.5 * module(y).to(x.dtype)
    torch.manual_seed(5)
    result = residual.add(x, y, 0.5, module, is_owned=change != "not owned")
    assert torch.equal(y, before)
    assert torch.allclose(result, expected, atol=1e-6)


@pytest.mark.parametrize("norm", [[], ["--macaron-post-norm"]])
@pytest.mark.skipif(not dropout.loops_draw_alike(), reason="no Numba, or PyTorch draws otherwise")
def test_the_layers_steps_end_in_one_pass(norm):
    model = build("macaron_transformer", *SMALL, *DROPOUT, *norm).train()
    functions, pending = Counter(), [model(*batch())[0].grad_fn]
    seen = set(pending)
    while pending:
        function = pending.pop()
        functions[type(function)] += 1
        following = {x for x, _ in function.next_functions if x is not None} - seen
        seen |= following
        pending += following
    layers = len(model.encoder.layers), len(model.decoder.layers)
    transposed = 2 if norm else 0  # the embeddings, which pre-norm layers copy
    assert functions[step_with_dropout] == 3 * layers[0] + 4 * layers[1] - transposed


def test_hooks_of_dropout_are_called():
    model, seen = build("macaron_transformer", *SMALL, *DROPOUT).train(), []
    model.encoder.layers[0].dropout_module.register_forward_hook(lambda *_: seen.append(1))
    model(*batch())
    assert len(seen) == 3


@pytest.mark.skipif(not dropout.loops_draw_alike(), reason="no Numba, or PyTorch draws otherwise")
def test_a_slope_that_gradients_need_is_not_overwritten_silently():
    y = torch.randn(4, 6, requires_grad=True).exp()  # whose gradient is by the result
    residual.add(torch.randn(4, 6), y, 0.5, Dropout(0.3).train(), is_owned=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("name", ["fc2", "self_attn", "earlier.0.network.fc2"])
@pytest.mark.skipif(not dropout.loops_draw_alike(), reason="no Numba, or PyTorch draws otherwise")
def test_what_hooks_are_shown_stays_as_it_is(name):
    model, seen = build("macaron_transformer", *SMALL, *DROPOUT).train(), []
    module = model.encoder.layers[0].get_submodule(name)

    def look(module, args, result):
        seen.append(result[0] if isinstance(result, tuple) else result)
        seen.append(seen[0].clone())

    module.register_forward_hook(look)
    source, lengths, previous = batch()
    model(source, lengths, previous)
    assert torch.equal(*seen)


@pytest.mark.skipif(not dropout.loops_draw_alike(), reason="no Numba, or PyTorch draws otherwise")
def test_the_ffns_result_that_a_layer_returns_stays_as_it_is():
    layer = build("macaron_transformer", *SMALL, *DROPOUT).train().encoder.layers[0]
    layer.return_fc = True
    x, result = layer(torch.randn(7, 3, layer.embed_dim), None)
    assert x.data_ptr() != result.data_ptr()


def test_the_fast_draws_are_used_where_they_are_pytorchs():
    state = torch.get_rng_state()
    torch.manual_seed(11)
    theirs = torch.empty(999).bernoulli_(0.25)
    torch.manual_seed(11)
    ours = torch.empty(999, dtype=torch.int64).random_(-(2**63), None) & (2**53 - 1)
    draws_are_known.cache_clear()
    before = torch.get_rng_state()
    assert draws_are_known() == torch.equal(theirs, (ours.double() < 0.25 * 2**53).float())
    assert torch.equal(before, torch.get_rng_state())
    torch.set_rng_state(state)


# --- products ------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("shape", [(7, 5, 24), (9, 24), (24,)])
def test_linear_maps_are_pytorchs_to_the_second_derivative(shape, has_bias, onednn):
    x, weight, bias = torch.randn(shape), torch.randn(16, 24), torch.randn(16)
    leaves = [t.requires_grad_() for t in ((x, weight, bias) if has_bias else (x, weight))]
    results = []
    for linear in (functional.linear, products.linear):
        y = linear(*leaves)
        first = torch.autograd.grad((y**3).sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), leaves)
        with torch.no_grad():
            results.append([y, *first, *second, linear(*leaves)])
    for one, other in zip(*results, strict=True):
        assert (one - other).abs().max() <= 2e-6 * one.abs().max()
    assert onednn


@pytest.mark.parametrize("shape", [(24,), (1, 24), (7, 5, 24), (64, 24), (67, 24)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_constant_linear_maps_are_pytorchs(shape, has_bias, onednn):
    x, weight, bias = torch.randn(shape), torch.randn(16, 24), torch.randn(16)
    bias = bias if has_bias else None
    with torch.no_grad():
        y = products.ConstantLinear(weight, bias)(x)
    assert y.shape == (*shape[:-1], 16)
    assert torch.allclose(y, functional.linear(x, weight, bias), atol=1e-5)
    ((rows, blocks, _),) = onednn
    assert blocks.is_mkldnn and len(rows) in (8, 40, 64, 96)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_only_constant_weights_in_fp32_are_for_onednn(dtype, onednn):
    weight = torch.eye(24, dtype=dtype)[:16]
    x = torch.randn(9, 24, dtype=dtype)
    assert torch.equal(products.ConstantLinear(weight)(x), x[:, :16])
    assert not onednn


def test_frozen_weights_get_no_gradients(onednn):
    linear = products.Linear(24, 16).requires_grad_(False)
    x = torch.randn(9, 24, requires_grad=True)
    linear(x).sum().backward()
    assert torch.allclose(x.grad, linear.weight.sum(0).expand(9, 24), atol=1e-6)
    assert linear.weight.grad is None and linear.bias.grad is None
    assert not linear(x.detach()).requires_grad


@pytest.mark.parametrize(("cpu", "expected"), [("AMD EPYC", True), ("Intel(R) Xeon(R)", False)])
def test_onednn_is_for_amds_processors(cpu, expected, monkeypatch):
    monkeypatch.setattr(environment, "cpu_model", lambda: cpu)
    monkeypatch.setattr("torch.backends.mkl.is_available", lambda: True)
    monkeypatch.setattr(products, "is_known_here", lambda: True)
    assert products.is_faster.__wrapped__() == expected


def test_scalar_quantisation_finds_pytorchs_linear_maps(onednn):
    flags = [*SMALL, "--quant-noise-scalar", "0.1"]
    model = build("macaron_transformer", *flags)
    assert not any(isinstance(m, products.Linear) for m in model.modules())


def test_jacobians_by_functorch_are_pytorchs(onednn):
    linear, x = products.Linear(24, 16), torch.randn(24)
    assert torch.allclose(torch.func.jacrev(linear)(x), linear.weight, atol=1e-6)
    assert not onednn  # it has no rules there


@pytest.mark.parametrize("operator", ["multiply", "in_blocks"])
def test_a_pytorch_without_an_operator_keeps_its_own(operator, monkeypatch):
    def missing(*args):
        raise AttributeError("no such operator")

    monkeypatch.setattr(products, operator, missing)
    assert not products.is_known_here()


def test_only_fp32_is_for_onednn(onednn):
    linear = products.Linear(24, 16)
    x = torch.randn(9, 24)
    assert linear.double()(x.double()).dtype == torch.float64
    linear.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x).dtype == torch.bfloat16
    assert linear(x[:0]).shape == (0, 16)
    assert not onednn


@pytest.mark.parametrize("flags", OPTIONS, ids=" ".join)
def test_training_and_evaluation_with_onednn_are_fairseqs(flags, onednn):
    test_training_with_dropout_is_fairseqs(flags, SHORT)
    test_evaluation_is_fairseqs_with_padding_on_any_side(flags, SHORT)
    assert any(isinstance(m, products.Linear) for m in both(*flags)[1].modules())
    assert onednn


def test_hypotheses_with_onednn_are_fairseqs(onednn):
    test_hypotheses_of_other_models_are_fairseqs(OPTIONS[2])
    assert any(weight.is_mkldnn for _, weight, _ in onednn)  # in blocks, as in decoding alone


# --- softmax -------------------------------------------------------------------------------------


@pytest.fixture
def short_rows(monkeypatch):
    """Rows of less than 16 numbers are short, however few they are; which were seen."""
    seen = []

    def of_rows(x, compute=softmax.of_rows):
        seen.append(x.shape[-1])
        return compute(x)

    monkeypatch.setattr(softmax, "LEAST_ELEMENTS", 0)
    monkeypatch.setattr(softmax, "lanes", lambda: 16)
    monkeypatch.setattr(softmax, "of_rows", of_rows)
    return seen


@pytest.mark.parametrize("length", [1, 5, 15, 16])
def test_softmax_is_that_of_fp64_to_the_second_derivative(length, short_rows):
    x = 20 * torch.randn(4, 7, length, dtype=torch.float64)
    x[0, 0, 1:] = -torch.inf
    results = []
    for leaf, compute in ((x, lambda x: x.softmax(-1)), (x.float(), softmax.softmax)):
        y = compute(leaf.requires_grad_())
        (first,) = torch.autograd.grad((y**3).sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad((first**2).sum(), leaf)
        with torch.no_grad():
            results.append([y, first, second, compute(leaf)])
    for one, other in zip(*results, strict=True):
        assert (one - other).abs().max() <= 2e-6
    assert short_rows == ([length] * 2 if length < 16 else [])


@pytest.mark.parametrize("rows", [1000, 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_softmax_keeps_the_type(dtype, rows):
    x = torch.randn(rows, 6).to(dtype)
    y = softmax.softmax(x)
    assert y.dtype == dtype
    assert torch.allclose(y.double(), x.double().softmax(-1), atol=torch.finfo(dtype).eps)


def test_softmax_under_functorch_is_pytorchs(short_rows):
    x = torch.randn(6)
    expected = torch.func.jacrev(lambda x: x.softmax(-1))(x)
    assert torch.allclose(torch.func.jacrev(softmax.softmax)(x), expected, atol=1e-7)
    assert not short_rows  # there are no rules for it


@pytest.mark.parametrize("flags", OPTIONS, ids=" ".join)
def test_training_and_hypotheses_with_short_rows_are_fairseqs(flags, short_rows):
    test_training_with_dropout_is_fairseqs(flags, SHORT)
    test_training_with_padding_before_the_target_is_fairseqs(flags, SHORT)
    test_hypotheses_of_other_models_are_fairseqs(flags)
    assert short_rows


# --- training ------------------------------------------------------------------------------------


def losses_and_gradients(model, updates, lr=0.01, sizes=SHORT):
    """As fairseq trains, with dropout: the losses, and the first update's gradients."""
    source, lengths, previous = batch(sizes=sizes)
    target = previous.roll(-1, 1).masked_fill(previous == 1, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    losses, gradients = [], {}
    model.train()
    for update in range(updates):
        torch.manual_seed(update)
        lprobs = model(source, lengths, previous)[0].log_softmax(-1)
        loss, _ = label_smoothed_nll_loss(lprobs.flatten(0, 1), target.flatten(), 0.1, 1)
        optimizer.zero_grad()
        loss.backward()
        gradients = gradients or {n: p.grad.clone() for n, p in model.named_parameters()}
        optimizer.step()
        losses.append(loss.item())
    return losses, gradients


@pytest.mark.parametrize("sizes", LENGTHS, ids=["short", "long"])
@pytest.mark.parametrize("flags", OPTIONS, ids=" ".join)
def test_training_with_dropout_is_fairseqs(flags, sizes):
    (losses, gradients), (mine, my_gradients) = (
        losses_and_gradients(m, 3, sizes=sizes) for m in both(*flags)
    )
    assert mine == pytest.approx(losses, rel=1e-5)
    largest = max(g.abs().max() for g in gradients.values())
    for name, gradient in gradients.items():
        assert (my_gradients[name] - gradient).abs().max() <= 2e-6 * largest, name
    assert losses[0] != losses[1]


@pytest.mark.parametrize("sizes", LENGTHS, ids=["short", "long"])
@pytest.mark.parametrize("flags", OPTIONS[:2], ids=" ".join)
def test_training_with_padding_before_the_target_is_fairseqs(flags, sizes):
    """`--left-pad-target True`: the first rows see nothing but padding."""
    source, lengths, previous = batch(sizes=sizes)
    previous = torch.stack([row.roll(int((row == 1).sum())) for row in previous])
    gradients = []
    for model in both(*flags):
        torch.manual_seed(1)
        lprobs = model.train()(source, lengths, previous)[0].log_softmax(-1)
        label_smoothed_nll_loss(lprobs.flatten(0, 1), previous.flatten(), 0.1, 1)[0].backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    stock, mine = gradients
    assert stock.isfinite().all() and (mine - stock).abs().max() <= 2e-6 * stock.abs().max()


def test_fifty_updates_are_fairseqs_to_four_digits():
    (losses, _), (mine, _) = (losses_and_gradients(m, 50, lr=0.001) for m in both())
    assert mine == pytest.approx(losses, rel=1e-4)
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("sizes", LENGTHS, ids=["short", "long"])
@pytest.mark.parametrize("flags", OPTIONS, ids=" ".join)
def test_evaluation_is_fairseqs_with_padding_on_any_side(flags, sizes):
    source, lengths, previous = batch(sizes=sizes)
    right = torch.stack([row.roll(int((row == 1).sum())) for row in source.flip(0)])
    left = torch.stack([row.roll(int((row == 1).sum())) for row in previous])
    stock, fused = both(*flags)
    with torch.no_grad():
        for x, y in ((source, previous), (right, previous), (source, left)):
            (one, extra), (other, my_extra) = (m(x, lengths, y) for m in (stock, fused))
            real = y.ne(1)
            assert (one - other)[real].abs().max() <= 1e-5
            if extra["attn"][0] is not None:
                assert (extra["attn"][0] - my_extra["attn"][0])[real].abs().max() <= 1e-6


def test_bf16_products_train_close_by_and_evaluate_exactly():
    source, lengths, previous = batch()
    plain = build("macaron_transformer", *SMALL, *NO_DROPOUT)
    coarse = build("macaron_transformer", *SMALL, *NO_DROPOUT, "--macaron-matmul", "bf16")
    with torch.no_grad():
        one, other = (m(source, lengths, previous)[0] for m in (plain, coarse))
    assert torch.equal(one, other)
    losses, mine = (losses_and_gradients(m, 3)[0] for m in (plain, coarse))
    assert losses != mine
    assert mine == pytest.approx(losses, rel=0.01)
    assert all(p.dtype == torch.float32 for p in coarse.parameters())


def test_bf16_products_are_for_training_on_a_cpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr(bf16, "is_fast_here", lambda: True)
    train = ["fairseq-train", "data", "--macaron-matmul", "bf16"]
    with pytest.raises(UserError, match=r"--macaron-matmul bf16 is for training on a CPU.*drop it"):
        preflight.check(train)
    preflight.check([*train, "--cpu", "--distributed-world-size", "1"])
    # Such a model is loaded anywhere.
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert build("macaron_transformer", *SMALL, "--macaron-matmul", "bf16")


@pytest.mark.parametrize("flag", ["--checkpoint-activations", "--offload-activations"])
def test_bf16_products_are_not_computed_again_in_fp32(flag):
    with pytest.raises(UserError, match=f"{flag} do not go together"):
        preflight.check(["fairseq-train", "data", "--macaron-matmul", "bf16", "--cpu", flag])
    # Where no command line tells, as with fairseq-hydra-train.
    model = build("macaron_transformer", *SMALL, "--macaron-matmul", "bf16", flag)
    model(*batch())  # in evaluation all is fp32
    with pytest.raises(UserError, match=f"{flag} do not go together"):
        model.train()(*batch())


def test_bf16_products_are_refused_where_they_are_slow(monkeypatch):
    monkeypatch.setattr(bf16, "is_fast_here", lambda: False)
    with pytest.raises(UserError, match=r"not for this CPU.*drop it"):
        preflight.check(["fairseq-train", "data", "--macaron-matmul", "bf16", "--cpu"])
    preflight.check(["fairseq-train", "data", "--macaron-matmul", "fp32", "--cpu"])


@pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"),
    reason="reads x86's flags on Linux",
)
def test_x86_needs_avx512_for_fast_products_of_bf16():
    flags = Path("/proc/cpuinfo").read_text().split()
    assert bf16.is_fast_here() == ({"avx512bw", "avx512vl", "avx512dq"} <= set(flags))


# --- decoding ------------------------------------------------------------------------------------


def generate(ensemble, search=BeamSearch, with_alignment=False, beam=5, constrain=False, **options):
    """Beam search as fairseq-generate runs it; tokens, scores and alignments of all hypotheses."""
    words = dictionary()
    torch.manual_seed(3)
    kind = SequenceGeneratorWithAlignment if with_alignment else SequenceGenerator
    options = {"max_len_b": 12, "beam_size": beam, **options}
    generator = kind(ensemble, words, search_strategy=search(words), **options)
    source, lengths, previous = batch(sizes=((9, 3), (5, 3), (7, 3), (3, 3), (6, 3)))
    sample = {
        "id": torch.arange(len(source)),
        "net_input": {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": previous},
        "target": previous,
    }
    kwargs = {}
    if constrain:
        kwargs["constraints"] = pack_constraints(
            [[torch.tensor([7, 9])], [torch.tensor([5]), torch.tensor([8])], [], [], []]
        )
    return generator.generate(ensemble, sample, **kwargs)


def assert_same_hypotheses(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert len(one) == len(other) > 0
        for mine, its in zip(one, other, strict=True):
            assert mine["tokens"].tolist() == its["tokens"].tolist()
            assert abs(mine["score"] - its["score"]) <= 1e-4
            assert (mine["positional_scores"] - its["positional_scores"]).abs().max() <= 1e-4
            assert torch.allclose(mine["attention"], its["attention"], atol=1e-5)
            alignments = (torch.as_tensor(x["alignment"]) for x in (mine, its))
            assert torch.equal(*alignments)


def sharpen(model):
    """Random models have no preferences: give this one some, ends of sentences among them."""
    with torch.no_grad():
        model.decoder.output_projection.weight.mul_(3)
        model.decoder.output_projection.weight[2].mul_(1.5)
    return model


SEARCHES = {
    "beam": {},
    "greedy": {"beam": 1},
    "long": {"min_len": 40, "max_len_b": 45, "beam": 3},  # more than a cache has room for at first
    "lenpen": {"len_penalty": 0.6, "unk_penalty": 1.0, "temperature": 1.3},
    "alignment": {"with_alignment": True},
    "diverse": {"search": lambda d: DiverseBeamSearch(d, 2, 0.5), "beam": 4},
    "constrained": {"search": lambda d: LexicallyConstrainedBeamSearch(d, "unordered"),
                    "constrain": True, "max_len_b": 25},
    "prefix function": {"search": lambda d: PrefixConstrainedBeamSearch(
        d, lambda sentence, tokens: [2, *range(4 + sentence, 30)])},
    "sampling": {"search": lambda d: Sampling(d, sampling_topk=5), "beam": 3},
}  # fmt: skip


@pytest.mark.parametrize("options", SEARCHES.values(), ids=SEARCHES)
def test_hypotheses_are_fairseqs(options):
    stock, fused = (sharpen(model) for model in both())
    assert_same_hypotheses(generate([fused], **options), generate([stock], **options))


@pytest.mark.parametrize("flags", OPTIONS[1:], ids=" ".join)
def test_hypotheses_of_other_models_are_fairseqs(flags):
    stock, fused = (sharpen(model) for model in both(*flags))
    assert_same_hypotheses(generate([fused]), generate([stock]))


def test_hypotheses_after_a_prefix_are_fairseqs():
    stock, fused = (sharpen(model) for model in both())
    source, lengths, previous = batch(sizes=((9, 4), (5, 3), (7, 4)))
    sample = {
        "id": torch.arange(3),
        "net_input": {"src_tokens": source, "src_lengths": lengths},
        "target": None,
    }
    ours, theirs = (
        SequenceGenerator([m], dictionary(), beam_size=4, max_len_b=12).generate(
            [m], sample, prefix_tokens=previous[:, 1:]
        )
        for m in (fused, stock)
    )
    assert_same_hypotheses(ours, theirs)
    for i, hypotheses in enumerate(ours):
        prefix = previous[i, 1:][previous[i, 1:] != 1].tolist()
        assert all(h["tokens"].tolist()[: len(prefix)] == prefix for h in hypotheses)


def test_ensembles_mixed_with_fairseqs_transformer():
    stock, fused = (sharpen(model) for model in both())
    other = sharpen(build("transformer", *SMALL, seed=2))
    third_stock, third = (
        sharpen(build("macaron_transformer", *SMALL, *kernels, seed=4)) for kernels in (STOCK, [])
    )
    ours, theirs = generate([fused, other, third]), generate([stock, other, third_stock])
    assert_same_hypotheses(ours, theirs)


def test_dropout_while_decoding_is_fairseqs():
    """`--retain-dropout`: the same draws where there is one hypothesis for a sentence."""
    stock, fused = (sharpen(model) for model in both("--attention-dropout", "0"))
    for model in (stock, fused):
        for module in model.modules():
            if isinstance(module, FairseqDropout):
                module.apply_during_inference = True
    assert_same_hypotheses(generate([fused], beam=1), generate([stock], beam=1))


def test_gradients_of_cached_decoding_are_those_of_the_whole():
    """As a loss on sampled translations has them; caches are then fairseq's."""
    model = build("macaron_transformer", *SMALL, *NO_DROPOUT).double()
    source, lengths, previous = batch(sizes=((9, 5), (7, 5)))
    encoder_out = model.encoder(source, lengths)
    state = {}
    steps = [
        model.decoder(previous[:, : t + 1], encoder_out, incremental_state=state)[0]
        for t in range(5)
    ]
    whole, _ = model(source, lengths, previous)
    assert torch.allclose(torch.cat(steps, 1), whole, atol=1e-6)
    gradients = [
        torch.autograd.grad(x.square().sum(), list(model.parameters()), retain_graph=True)
        for x in (torch.cat(steps, 1), whole)
    ]
    for one, other in zip(*gradients, strict=True):
        # fairseq's softmax is fp32 in any model.
        assert (one - other).abs().max() <= 1e-6 * (1 + other.abs().max())


def test_activation_checkpoints_compute_twice_by_the_same_kernel(monkeypatch):
    """The kernel draws the dropout, and another one might draw otherwise."""
    kernel, calls = functional.scaled_dot_product_attention, []

    def recorded(*args, **kwargs):
        calls.append((kwargs["is_causal"], kwargs["attn_mask"] is None))
        return kernel(*args, **kwargs)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", recorded)
    flags = ["--attention-dropout", "0", "--checkpoint-activations"]
    model = build("macaron_transformer", *SMALL, *flags).train()
    source, lengths, previous = batch(sizes=((70, 80), (70, 80)))  # for the kernel; no padding
    y, _ = model(source, lengths, previous)
    once = calls.copy()
    y.sum().backward()
    assert len(once) == 6 and sorted(calls) == sorted(once * 2)


def test_criteria_that_read_alignments_get_them():
    source, lengths, previous = batch()
    for flags, expected in ((["--load-alignments"], True), ([], False), (STOCK, True)):
        model = build("macaron_transformer", *SMALL, *flags).train()
        _, extra = model(source, lengths, previous)
        assert (extra["attn"][0] is not None) == expected


# --- caches --------------------------------------------------------------------------------------

# Self-attention is evaluated several times in a layer: each needs a cache of its own.
SEVERAL_CACHES = [
    ["--macaron-scheme", scheme, "--macaron-substep", substep]
    for scheme, substep in [
        ("strang-symmetric", "euler"),
        ("strang-marchuk-attention", "euler"),
        ("yoshida4", "euler"),
        ("lie-trotter", "midpoint"),
        ("parallel", "midpoint"),
        ("strang-marchuk", "rk4"),
        ("strang-marchuk", "gated-rk2"),
    ]
]


class Uncached(torch.nn.Module):
    """A model whose decoder reads the whole prefix at each step, as far as beam search can see."""

    def __init__(self, model):
        super().__init__()
        self.encoder, self.decoder = model.encoder, WholePrefix(model.decoder)

    def max_decoder_positions(self):
        return 1024

    def get_normalized_probs(self, output, log_probs, sample=None):
        return self.decoder.inner.get_normalized_probs(output, log_probs, sample)


class WholePrefix(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, tokens, encoder_out):
        return self.inner(tokens, encoder_out)


@pytest.mark.parametrize("flags", SEVERAL_CACHES, ids=" ".join)
def test_beam_search_with_several_caches_finds_what_it_finds_with_none(flags):
    model = sharpen(build("macaron_transformer", *SMALL, *flags).eval())
    assert_same_hypotheses(generate([model]), generate([Uncached(model)]))


@pytest.mark.parametrize("flags", [*OPTIONS, *SEVERAL_CACHES], ids=" ".join)
def test_any_reordering_of_a_batch_with_beams(flags):
    """Hypotheses may also move to another sentence, be left out and be repeated."""
    model = build("macaron_transformer", *SMALL, *flags).double()
    source, lengths, _ = batch(sizes=((9, 2), (5, 2), (7, 2)))
    tokens = torch.full((6, 1), 2)
    orders = [[1, 0, 2, 2, 5, 4], [0, 1, 4, 4], [1, 0, 2, 3], [3, 0, 1, 1, 2], [0, 4, 2]]
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        encoder_out = model.encoder(source, lengths)
        encoder_out = model.encoder.reorder_encoder_out(
            encoder_out, torch.arange(3).repeat_interleave(2)
        )
        state = {}
        model.decoder(tokens, encoder_out, incremental_state=state)
        assert state[caches.KEY].beam == 2
        for order in map(torch.tensor, orders):
            model.decoder.reorder_incremental_state_scripting(state, order)
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
            new = torch.randint(4, 64, (len(order), 1), generator=generator)
            tokens = torch.cat((tokens[order], new), 1)
            cached, _ = model.decoder(tokens, encoder_out, incremental_state=state)
            full, _ = model.decoder(tokens, encoder_out)
            assert (cached[:, 0] - full[:, -1]).abs().max() <= 1e-6
        assert state[caches.KEY].beam == 1


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("flags", [*OPTIONS, *SEVERAL_CACHES], ids=" ".join)
def test_sentences_that_get_more_hypotheses_on_the_way(flags, padded):
    """As after the first token of a search, or of a prefix."""
    if padded:  # whose positions fairseq counts when it decodes
        flags = [*flags, "--no-token-positional-embeddings"]
    model = build("macaron_transformer", *SMALL, *flags).double()
    source, lengths, _ = batch(sizes=((9, 2), (5, 2), (7, 2)))
    tokens = torch.randint(4, 64, (3, 3), generator=torch.Generator().manual_seed(5))
    if padded:
        tokens[1, 0] = 1
    orders = [[0, 0, 1, 1, 2, 2], [1, 0, 2, 2, 5, 4], [0, 1, 4, 4]]
    with torch.no_grad():
        encoder_out = model.encoder(source, lengths)
        state = {}
        for t in range(1, 4):
            model.decoder(tokens[:, :t], encoder_out, incremental_state=state)
        for order in map(torch.tensor, orders):
            model.decoder.reorder_incremental_state_scripting(state, order)
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
            tokens = torch.cat((tokens[order], 4 + torch.arange(len(order))[:, None]), 1)
            cached, _ = model.decoder(tokens, encoder_out, incremental_state=state)
            full, _ = model.decoder(tokens, encoder_out)
            assert state[caches.KEY].beam == (2 if state[caches.KEY].caches else 1)
            assert (cached[:, 0] - full[:, -1]).abs().max() <= 1e-6


@pytest.mark.parametrize("name", ["fc1", "fc2"])
def test_hooks_of_linear_maps_are_called_while_decoding(name):
    model = build("macaron_transformer", *SMALL)
    called = []
    layer = model.decoder.layers[0]
    getattr(layer, name).register_forward_hook(lambda *args: called.append(name))
    generate([model])
    assert called


def test_padding_in_a_prefix_is_not_seen():
    flags = "--no-token-positional-embeddings"  # fairseq counts padding when it decodes
    model = build("macaron_transformer", *SMALL, flags).double()
    source, lengths, previous = batch(sizes=((9, 6), (9, 3)))
    previous[1] = previous[1].roll(3)  # on the left
    with torch.no_grad():
        encoder_out = model.encoder(source, lengths)
        state = {}
        for t in range(6):
            cached, _ = model.decoder(previous[:, : t + 1], encoder_out, incremental_state=state)
        full, _ = model.decoder(previous, encoder_out)
    assert (cached[:, 0] - full[:, -1]).abs().max() <= 1e-6


def test_encoder_output_stays_as_it_is_while_hypotheses_change_places():
    model = build("macaron_transformer", *SMALL)
    source, lengths, _ = batch(sizes=((9, 2), (5, 2)))
    with torch.no_grad():
        once = model.encoder(source, lengths)
    beams = model.encoder.reorder_encoder_out(once, torch.tensor([0, 0, 1, 1]))
    assert model.encoder.reorder_encoder_out(beams, torch.tensor([1, 0, 2, 2])) is beams
    finished = model.encoder.reorder_encoder_out(beams, torch.tensor([3, 2]))
    assert torch.equal(finished["encoder_out"][0], once["encoder_out"][0][:, [1, 1]])
    assert torch.equal(finished["encoder_padding_mask"][0], source.eq(1)[[1, 1]])


def test_quantised_and_hooked_projections_are_fairseqs_way():
    flags = [*SMALL, "--quant-noise-pq", "0.1", "--quant-noise-pq-block-size", "2"]
    attention = build("macaron_transformer", *flags).encoder.layers[0].self_attn
    assert isinstance(attention, Attention)
    assert not attention.is_plain()
    plain = build("macaron_transformer", *SMALL).encoder.layers[0].self_attn
    assert plain.is_plain()
    plain.q_proj = nn.Sequential(plain.q_proj)
    assert not plain.is_plain()


assert models  # its import registers fairseq's
