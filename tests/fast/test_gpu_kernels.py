"""`fast/gpu_kernels.py`: what a GPU computes in fewer kernels, computed on a CPU."""

import copy
from types import SimpleNamespace

import pytest
import torch
from fairseq.models.transformer import TransformerDecoderBase
from fairseq.modules.fairseq_dropout import FairseqDropout
from helpers.kernel_pairs import OPTIONS, SHORT, STOCK
from helpers.small import NO_DROPOUT, SMALL, batch, build
from torch import nn
from torch.nn import functional

from macaron_fairseq.fast import attention, gpu_kernels
from macaron_fairseq.fast.dropout import Dropout
from macaron_fairseq.fast.layers import FusedDecoderLayer, FusedEncoderLayer
from macaron_fairseq.fast.transformer import FusedTransformerDecoder, pads_before_words
from macaron_fairseq.schemes.substeps import SUBSTEPS, SubStep

EXACT = {"dtype": torch.float64, "requires_grad": True}


def has_its_gradients(function, leaves):
    """Whether first and second derivatives are those of the values."""
    return all(
        check(function, leaves, fast_mode=True)
        for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck)
    )


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_relu_and_dropout_are_pytorchs_to_the_second_derivative(p):
    leaves = torch.randn(4, 3, 5, **EXACT), torch.randn(6, 5, **EXACT), torch.randn(6, **EXACT)

    def drawn_once(*leaves):
        torch.manual_seed(1)
        return gpu_kernels.dropped_relu(*leaves, p)

    assert has_its_gradients(drawn_once, leaves)
    y, plain = drawn_once(*leaves), functional.linear(*leaves).relu()
    kept = y != 0
    torch.testing.assert_close(y, plain * kept / (1 - p))
    if p:
        assert not kept[plain > 0].all() and kept[plain > 0].any()
    else:
        assert torch.equal(kept, plain > 0)


def test_dropout_within_the_sum_is_the_formula_to_the_second_derivative():
    x, y = torch.randn(4, 3, **EXACT), torch.randn(4, 3, **EXACT)
    torch.manual_seed(1)
    kept = gpu_kernels.draw_kept(2, x, 0.3)
    assert kept.shape == (2, 4, 3) and not torch.equal(kept[0], kept[1])
    found = gpu_kernels.add_dropped(x, y, kept[0], 0.3, 0.5)
    torch.testing.assert_close(found, x + 0.5 * y * kept[0] / 0.7)

    def add(x, y):
        return gpu_kernels.add_dropped(x, y, kept[0], 0.3, 0.5)

    assert has_its_gradients(add, (x, y))


def test_dropout_keeps_the_share_that_it_should():
    kept = gpu_kernels.draw_kept(3, torch.empty(100, 100), 0.3).double()
    assert kept.mean().item() == pytest.approx(0.7, abs=4 * (0.21 / 30000) ** 0.5)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_joined_maps_are_the_single_ones_to_the_second_derivative(has_bias, together):
    maps = [nn.Linear(5, 6, bias=has_bias).double() for _ in range(3)]
    x = torch.randn(4, 2, 5, **EXACT)
    before = copy.deepcopy(maps)
    if together:
        gpu_kernels.lay_together(maps)
    leaves = [x, *(p for m in maps for p in m.parameters())]
    one = torch.cat([m(x) for m in before], -1)
    torch.testing.assert_close(gpu_kernels.joined_linear(x, maps), one)

    def joined(*_):
        return gpu_kernels.joined_linear(x, maps)

    assert has_its_gradients(joined, leaves)


def test_weights_that_lie_together_are_not_copied_and_neither_are_gradients():
    maps = [nn.Linear(5, 6) for _ in range(3)]
    parts = [m.weight for m in maps]
    assert gpu_kernels.whole(parts).data_ptr() != parts[0].data_ptr()
    gpu_kernels.lay_together(maps)
    assert all(isinstance(x, nn.Parameter) for x in parts)
    assert gpu_kernels.whole(parts).data_ptr() == parts[0].data_ptr()
    assert torch.equal(gpu_kernels.whole(parts), torch.cat(parts))
    gpu_kernels.joined_linear(torch.randn(4, 5), maps).sum().backward()
    assert len({x.grad.untyped_storage().data_ptr() for x in parts}) == 1
    # Someone moves one: the values count, not the place.
    parts[1].data = parts[1].data.clone()
    assert torch.equal(gpu_kernels.whole(parts), torch.cat(parts))
    # The end of one block of memory is not the beginning of the next.
    halves = torch.arange(6.0).chunk(2)
    assert torch.equal(gpu_kernels.whole(halves[::-1]), torch.cat(halves[::-1]))


def gradients(model):
    """The logits of words, and what the mean of their squares gives all parameters."""
    source, lengths, previous = batch(sizes=SHORT)
    y, _ = model.train()(source, lengths, previous)
    y = y[previous != 1]
    return y, torch.autograd.grad(y.square().mean(), list(model.parameters()))


SCHEMES = [["--macaron-scheme", "parallel"], ["--macaron-substep", "midpoint"]]


@pytest.mark.parametrize("flags", [*OPTIONS, *SCHEMES], ids=" ".join)
def test_a_model_in_fewer_kernels_is_fairseqs(flags, monkeypatch):
    """With a dropout that keeps all, and doubles it since half should go."""

    def keep(self, x, inplace=False):
        return x / (1 - self.p)

    for kind in (FairseqDropout, Dropout):
        monkeypatch.setattr(kind, "forward", keep)
    flags = [*flags, *NO_DROPOUT, "--dropout", "0.5"]
    stock, mine = (build("macaron_transformer", *SMALL, *flags, *x) for x in (STOCK, []))
    y, expected = gradients(stock)
    asked, drawn = [], []

    def draw_all(count, x, p):
        drawn.append(count)
        return torch.ones(count, *x.shape, dtype=torch.bool)

    monkeypatch.setattr(gpu_kernels, "suit", lambda x: asked.append(x) or True)
    monkeypatch.setattr(gpu_kernels, "draw_kept", draw_all)
    my_y, found = gradients(mine)
    assert asked and bool(drawn) == (flags[:2] not in SCHEMES)
    torch.testing.assert_close(my_y, y, rtol=1e-5, atol=1e-6)
    largest = max(x.abs().max() for x in expected)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= 2e-6 * largest


@pytest.mark.parametrize("flags", OPTIONS, ids=" ".join)
@pytest.mark.parametrize("dropout", ["0.5", "1"])
def test_without_dropout_a_model_in_fewer_kernels_is_fairseqs(dropout, flags, monkeypatch):
    """As in translating; a dropout of all elements counts in training alone."""
    flags = [*SMALL, *flags, *NO_DROPOUT, "--dropout", dropout]
    stock, mine = (build("macaron_transformer", *flags, *x) for x in (STOCK, []))
    monkeypatch.setattr(gpu_kernels, "suit", lambda x: True)
    source, lengths, previous = batch(sizes=SHORT)
    for mode in ["eval"] if dropout != "1" else ["eval", "train"]:
        with torch.no_grad():
            y, found = (getattr(x, mode)()(source, lengths, previous)[0] for x in (stock, mine))
        words = previous != 1
        torch.testing.assert_close(found[words], y[words], rtol=1e-5, atol=1e-6)


def test_a_sub_step_of_a_users_own_is_computed_on_a_gpu_too(monkeypatch):
    """Also one that evaluates once, as euler does."""
    flags = [*SMALL, *NO_DROPOUT, "--macaron-substep", "damped"]
    monkeypatch.setitem(SUBSTEPS, "damped", SubStep(lambda f, x, h, gate: f(x) / 2, 1, "f(x) / 2"))
    stock, mine = (build("macaron_transformer", *flags, *x).eval() for x in (STOCK, []))
    monkeypatch.setattr(gpu_kernels, "suit", lambda x: True)
    torch.testing.assert_close(mine(*batch())[0], stock(*batch())[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [FusedEncoderLayer, FusedDecoderLayer])
def test_so_is_a_layer_of_a_users_own(kind, monkeypatch):
    model = build("macaron_transformer", *SMALL).eval()
    plain = model(*batch())[0]
    monkeypatch.setattr(kind, "move", lambda self, x, slope, size: x + size / 2 * slope)
    expected = model(*batch())[0]
    assert not torch.allclose(expected, plain, atol=1e-2)
    monkeypatch.setattr(gpu_kernels, "suit", lambda x: True)
    torch.testing.assert_close(model(*batch())[0], expected, rtol=1e-5, atol=1e-5)


def test_a_decoder_of_a_users_own_is_asked_for_features(monkeypatch):
    model = build("macaron_transformer", *SMALL).eval()
    source, lengths, previous = batch()
    previous.pads_at_end_alone = True  # as the model says of a batch on a GPU

    def sevens(self, *args, **kwargs):
        x, extra = TransformerDecoderBase.extract_features_scriptable(self, *args, **kwargs)
        return torch.full_like(x, 7), extra

    monkeypatch.setattr(FusedTransformerDecoder, "extract_features_scriptable", sevens)
    assert model(source, lengths, previous, features_only=True)[0].eq(7).all()


def test_sentences_that_are_padded_at_their_ends_are_read_as_others_are():
    """A batch on a GPU needs no mask then: the future hides the padding."""
    model = build("macaron_transformer", *SMALL).eval()
    source, lengths = torch.tensor([[5, 6, 7, 2], [8, 9, 2, 1]]), torch.tensor([4, 3])
    previous = torch.tensor([[2, 5, 6, 7], [2, 8, 9, 1]])
    expected, words = model(source, lengths, previous)[0], previous.ne(1)
    previous.pads_at_end_alone = True
    torch.testing.assert_close(model(source, lengths, previous)[0][words], expected[words])


def test_what_a_gpu_adds_to_scores_hides_padding():
    class Elsewhere(torch.Tensor):
        device = property(lambda self: SimpleNamespace(type="cuda"))

    query = torch.zeros(1, 1, 1, 4).as_subclass(Elsewhere)
    word, padding = attention.visible(torch.tensor([[False, True]]), query).flatten()
    assert word == 0 and padding < -1e30


@pytest.mark.parametrize(
    ("row", "is_before"),
    [
        ([2, 5, 6, 7], False),
        ([2, 5, 1, 1], False),
        ([1, 2, 5, 6], True),
        ([2, 1, 5, 6], True),  # within, which the future does not hide from later words
        ([1, 1, 1, 1], False),  # of which no feature counts
    ],
)
def test_padding_before_words_is_seen(row, is_before):
    tokens = torch.tensor([[2, 8, 9, 1], row])
    assert bool(pads_before_words(tokens, 1).any()) == is_before
