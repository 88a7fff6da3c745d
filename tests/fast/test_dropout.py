"""Dropout of `fast/` against PyTorch's."""

import logging
import sys

import numpy as np
import pytest
import torch
from fairseq.modules.fairseq_dropout import FairseqDropout
from helpers.kernel_pairs import DROPOUT
from helpers.small import SMALL, batch, build

from macaron_fairseq import fast
from macaron_fairseq.fast import dropout
from macaron_fairseq.fast.dropout import Dropout, RememberedDropout
from macaron_fairseq.schemes.substeps import SubStep


@pytest.fixture(autouse=True)
def loops():
    """The compiled loops."""
    found = dropout.loops()
    if found is None:
        pytest.skip("no Numba, or this PyTorch, or this processor's, draws otherwise")
    return found


def test_dropout_of_all_leaves_zeros():
    x = torch.randn(5, 7)
    assert torch.equal(Dropout(1.0).train()(x), torch.zeros(5, 7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.99])
def test_dropout_is_pytorchs_number_by_number(p, dtype):
    x = torch.randn(7, 30011).to(dtype)  # more than a block
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


def test_dropout_is_pytorchs_in_any_layout():
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


def test_dropout_has_pytorchs_second_derivatives():
    """And the first, which are computed otherwise where the second are asked for."""
    results = []
    for kind in (FairseqDropout, Dropout):
        torch.manual_seed(5)
        x = torch.randn(30, 40, requires_grad=True)
        y = kind(0.3).train()(x) ** 3
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        results.append((first, *torch.autograd.grad((first**2).sum(), x)))
    torch.testing.assert_close(*results)


def test_dropout_remembers_a_byte_for_an_element():
    saved = []
    x = torch.randn(100_000, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda y: saved.append(y) or y, lambda y: y):
        RememberedDropout.apply(x, 0.3)
    assert sum(y.nbytes for y in saved) == 100_000


@pytest.mark.parametrize("skip", [0, 1, 622, 623, 624])
def test_the_compiled_twister_is_numpys(skip, loops):
    theirs = np.random.MT19937(5)
    key = theirs.state["state"]
    state, skipped, words = key["key"].copy(), np.empty(skip, np.uint32), np.empty(2000, np.uint32)
    left = loops.draw(state, 624 - key["pos"], skipped)
    left = loops.draw(state, left, words)
    assert np.array_equal(np.concatenate((skipped, words)), theirs.random_raw(skip + 2000))
    assert np.array_equal(state, theirs.state["state"]["key"])
    assert left == 624 - theirs.state["state"]["pos"]


def test_a_draw_is_below_the_next_number_and_not_below_itself(loops):
    """In the lower half of the comparison, which decides once in two million times."""
    first, second = (int(x) for x in np.random.MT19937(5).random_raw(2))
    drawn = (first % 2**21) << 32 | second
    for threshold, expected in ((drawn, 0), (drawn + 1, 1), (drawn + 2**32, 1), (drawn - 2**32, 0)):
        key = np.random.MT19937(5).state["state"]
        kept = np.empty(1, bool)
        loops.draw_kept(key["key"], 624 - key["pos"], kept, threshold)
        assert kept[0] == expected


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


def test_dropout_of_nan_and_infinity_is_pytorchs():
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 1.0]).repeat(50)
    results = []
    for kind in (FairseqDropout, Dropout):
        torch.manual_seed(5)
        results.append(kind(0.3).train()(x).nan_to_num(7.0))
    assert torch.equal(*results)


@pytest.fixture
def fresh():
    """As in a process that has not asked for the loops yet."""
    dropout.loops.cache_clear()
    yield
    dropout.loops.cache_clear()


@pytest.mark.parametrize("missing", ["numba", "folder", "numbers"])
def test_without_loops_dropout_is_pytorchs_and_the_log_says_why(
    missing, fresh, monkeypatch, caplog
):
    monkeypatch.delitem(sys.modules, "macaron_fairseq.fast.dropout_loops", raising=False)
    monkeypatch.delattr(fast, "dropout_loops", raising=False)
    if missing == "numba":
        monkeypatch.setitem(sys.modules, "numba", None)
    elif missing == "folder":  # as Numba says where none can be written to
        monkeypatch.setattr("numba.njit", lambda **_: exec("raise RuntimeError('no locator')"))
    else:
        monkeypatch.setattr(dropout, "draws_as_pytorch", lambda loops: False)
    caplog.set_level(logging.INFO)
    results = []
    for kind in (FairseqDropout, Dropout, Dropout):
        torch.manual_seed(5)
        results.append(kind(0.3).train()(torch.ones(999)))
    assert all(torch.equal(results[0], other) for other in results)
    (record,) = caplog.records
    assert {"numba": "pip install numba", "folder": "no locator", "numbers": "draws other numbers"}[
        missing
    ] in record.getMessage()


@pytest.mark.parametrize("change", ["other numbers", "one number more", "another state"])
def test_draws_that_differ_from_pytorchs_are_not_used(change, loops, monkeypatch):
    class Other:
        drop = staticmethod(loops.drop)

        @staticmethod
        def draw_kept(words, left, kept, threshold):
            if change == "other numbers":
                threshold = 2**53 - threshold
            left = loops.draw_kept(words, left, kept, threshold)
            return left - 2 if change == "one number more" else left

    before = torch.get_rng_state()
    assert dropout.draws_as_pytorch(loops)
    if change == "another state":
        monkeypatch.setattr(dropout, "SIZE", 16)
    assert not dropout.draws_as_pytorch(Other)
    assert torch.equal(before, torch.get_rng_state())


def test_hooks_of_dropout_are_called():
    model, seen = build("macaron_transformer", *SMALL, *DROPOUT).train(), []
    model.encoder.layers[0].dropout_module.register_forward_hook(lambda *_: seen.append(1))
    model(*batch())
    assert len(seen) == 3


@pytest.mark.parametrize("watched", [False, True])
def test_a_step_ends_in_the_place_of_dropouts_result_unless_it_is_watched(watched):
    layer = build("macaron_transformer", *SMALL, *DROPOUT).encoder.layers[0].train()
    if watched:
        layer.dropout_module.register_forward_hook(lambda *_: None)
    x, slope = torch.randn(3, 2, 16), torch.randn(3, 2, 16)
    expected = x + 0.5 * slope
    moved = layer.move(x, slope, 0.5)
    assert torch.equal(moved, expected)
    assert (moved is slope) == (not watched)
    assert layer.eval().move(x, slope, 1) is not slope


def test_a_subclass_of_dropout_is_called_where_it_stands():
    """Before the activation, ReLU would take away what it adds."""

    class Adding(dropout.Dropout):
        def forward(self, x, inplace=False):
            return x + 1

    layer = build("macaron_transformer", *SMALL, *DROPOUT).encoder.layers[0].train()
    layer.activation_dropout_module = Adding(0.1)
    x = torch.randn(3, 2, 16)
    expected = layer.fc2(layer.fc1(x).relu() + 1)
    assert torch.allclose(layer.feed_forward(layer, x), expected, atol=1e-6)
    assert not dropout.is_plain(layer.activation_dropout_module)
    assert dropout.is_plain(layer.dropout_module)


def test_a_slope_that_its_own_gradient_needs_is_left_as_it_is():
    layer = build("macaron_transformer", *SMALL, *DROPOUT).encoder.layers[0].train()
    layer.substep = SubStep(lambda f, x, h, gate: f(x).tanh(), 1, "tanh f(x)")
    layer(torch.randn(3, 2, 16), None).sum().backward()
    assert layer.fc1.weight.grad.abs().max() > 0


def test_derivatives_by_functorch_are_pytorchs():
    """The one of dropout is what it keeps, scaled: torch.func has rules for PyTorch's alone."""
    layer, x = dropout.Dropout(0.5).train(), torch.ones(64)
    layer(x)  # by loops, where there are some
    torch.manual_seed(3)
    value, slope = torch.func.jvp(layer, (x,), (x,))
    assert torch.equal(value, slope) and {*value.tolist()} == {0.0, 2.0}


def test_what_others_compile_drops_too():
    """Dynamo, which a user's torch.compile starts, cannot look into the loops."""
    layer, x = dropout.Dropout(0.5).train(), torch.ones(64, requires_grad=True)
    layer(x)  # by loops, where there are some
    y = torch.compile(layer, backend="eager")(x)
    y.sum().backward()
    assert torch.equal(y, x.grad) and {*y.tolist()} == {0.0, 2.0}
