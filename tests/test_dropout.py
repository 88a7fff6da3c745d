"""Dropout, what it is one pass with, and the end of a step, against PyTorch's."""

import sys
from collections import Counter

import numpy as np
import pytest
import torch
from conftest import SMALL, batch, build
from fairseq.modules.fairseq_dropout import FairseqDropout
from kernel_pairs import DROPOUT
from torch import nn
from torch.nn import functional

from macaron_fairseq import fast
from macaron_fairseq.fast import activation, dropout, residual
from macaron_fairseq.fast.dropout import Dropout, RememberedDropout, draws_are_known

dropout_of_relu = activation.RectifiedDropout._backward_cls
coarse_dropout_of_relu = activation.CoarseRectifiedDropout._backward_cls
step_with_dropout = residual.ResidualDropout._backward_cls


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
    monkeypatch.delitem(sys.modules, "macaron_fairseq.fast.compiled", raising=False)
    monkeypatch.delattr(fast, "compiled", raising=False)
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
