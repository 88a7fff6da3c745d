"""The modules of `fast/` and decoding with them against fairseq's own."""

import os
import platform
import weakref
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.modules import MultiheadAttention
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
from helpers.kernel_pairs import LENGTHS, OPTIONS, SHORT, STOCK, both
from helpers.small import (
    NO_DROPOUT,
    SMALL,
    SMALL_DECODER,
    SMALL_ENCODER,
    batch,
    build,
    dictionary,
    language_task,
    masked_task,
    task,
)
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from macaron_fairseq.common import environment
from macaron_fairseq.fast import caches, linear, replaceable
from macaron_fairseq.fast.attention import Attention
from macaron_fairseq.model import bf16

# --- attention -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["self_attention", "encoder_decoder_attention"])
def test_attention_to_other_values_than_keys_is_fairseqs(kind):
    ours = Attention(16, 4, **{kind: True}).eval()
    theirs = MultiheadAttention(16, 4, **{kind: True}).eval()
    theirs.load_state_dict(ours.state_dict())
    x, keys, values = (torch.randn(5, 2, 16) for _ in range(3))
    found, expected = (attend(x, keys, values)[0] for attend in (ours, theirs))
    torch.testing.assert_close(found, expected)


# --- products ------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("shape", [(7, 5, 24), (9, 24), (24,)])
def test_linear_maps_are_pytorchs_to_the_second_derivative(shape, has_bias, onednn):
    x, weight, bias = torch.randn(shape), torch.randn(16, 24), torch.randn(16)
    leaves = [t.requires_grad_() for t in ((x, weight, bias) if has_bias else (x, weight))]
    results = []
    for multiply in (functional.linear, linear.linear):
        y = multiply(*leaves)
        first = torch.autograd.grad((y**3).sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), leaves)
        with torch.no_grad():
            results.append([y, *first, *second, multiply(*leaves)])
    for one, other in zip(*results, strict=True):
        assert (one - other).abs().max() <= 2e-6 * one.abs().max()
    assert onednn


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("length", [5, 70])
def test_a_mask_of_bools_hides_as_in_fairseq(length, need_weights):
    stock, fused = (model.encoder.layers[0].self_attn.eval() for model in both())
    x = torch.randn(length, 2, 16)
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    of_heads = hidden.repeat(2 * stock.num_heads, 1, 1)
    of_heads[0, :, 1:] = True
    for mask in (hidden, of_heads):
        options = {"attn_mask": mask, "need_weights": need_weights}
        with torch.no_grad():
            expected, found = (attention(x, x, x, **options)[0] for attention in (stock, fused))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(24,), (1, 24), (7, 5, 24), (64, 24), (67, 24)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_constant_linear_maps_are_pytorchs(shape, has_bias, onednn):
    x, weight, bias = torch.randn(shape), torch.randn(16, 24), torch.randn(16)
    bias = bias if has_bias else None
    with torch.no_grad():
        y = linear.ConstantLinear(weight, bias, rows=16)(x)
    assert y.shape == (*shape[:-1], 16)
    assert torch.allclose(y, functional.linear(x, weight, bias), atol=1e-5)
    ((rows, blocks, _),) = onednn
    assert blocks.is_mkldnn and len(rows) in (8, 40, 64, 96)


@pytest.mark.parametrize(("rows", "blocks"), [(15, False), (16, True)])
def test_blocks_of_constant_weights_are_made_for_enough_rows(rows, blocks, onednn, monkeypatch):
    monkeypatch.setattr(linear, "LEAST_ROWS", 16)
    assert linear.ConstantLinear(torch.randn(16, 24), None, rows).has_blocks == blocks


def test_modules_keep_what_they_make_of_weights_for_a_time_alone(onednn):
    model = build("macaron_transformer", *SMALL)
    kept = [x for x in model.modules() if isinstance(x, Attention | linear.Linear)]
    x = torch.randn(3, 16)
    with torch.no_grad(), linear.constant_weights([model], rows=16):
        assert all(module.constant for module in kept)
        fc1 = model.decoder.layers[0].fc1
        before = fc1(x)
        with linear.constant_weights([model], rows=16):
            pass  # the outer one's time goes on
        fc1.weight.data.mul_(2)
        assert torch.equal(fc1(x), before)
    assert not any(module.constant for module in kept)
    assert torch.allclose(fc1(x), 2 * before - fc1.bias, atol=1e-5)


def test_no_module_keeps_anything_where_one_cannot(onednn, monkeypatch):
    """As where memory runs out: what is kept would be of old weights in the next validation."""
    model = build("macaron_transformer", *SMALL)
    kept = [x for x in model.modules() if isinstance(x, Attention | linear.Linear)]

    def refuse(rows):
        raise MemoryError

    monkeypatch.setattr(kept[-1], "hold_weights", refuse)
    with pytest.raises(MemoryError), linear.constant_weights([model], rows=16):
        pass
    assert not any(module.constant for module in kept)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_only_constant_weights_in_fp32_are_for_onednn(dtype, onednn):
    weight = torch.eye(24, dtype=dtype)[:16]
    x = torch.randn(9, 24, dtype=dtype)
    assert torch.equal(linear.ConstantLinear(weight, None, rows=16)(x), x[:, :16])
    assert not onednn


@pytest.mark.parametrize(
    "bias", [torch.arange(32.0)[::2], torch.ones(1).expand(16)], ids=["strided", "expanded"]
)
def test_a_bias_may_lie_anyhow(bias, onednn):
    x, weight = torch.randn(9, 24), torch.randn(16, 24)
    torch.testing.assert_close(linear.linear(x, weight, bias), x @ weight.T + bias)


def test_frozen_weights_get_no_gradients(onednn):
    fc = linear.Linear(24, 16).requires_grad_(False)
    x = torch.randn(9, 24, requires_grad=True)
    fc(x).sum().backward()
    assert torch.allclose(x.grad, fc.weight.sum(0).expand(9, 24), atol=1e-6)
    assert fc.weight.grad is None and fc.bias.grad is None
    assert not fc(x.detach()).requires_grad


class Operators(TorchDispatchMode):
    """The names of the operators that are called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.add(operator.overloadpacket.__name__)
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize("rows", [1, 9, 640])
def test_a_weights_gradient_is_the_product(rows, onednn):
    """As a convolution's as well, also where the rows are not side by side in memory."""
    grad, x = torch.randn(2 * rows, 16)[::2], torch.randn(rows, 24)
    with Operators() as called:
        found = linear.weight_gradient(grad, x)
    expected = grad.double().t() @ x.double()
    assert (found - expected).abs().max() <= 1e-6 * rows**0.5 * expected.abs().max()
    assert found.is_contiguous() and "convolution_backward" in called.names


@pytest.mark.parametrize("lack", ["512 bits", "an AMD", "rows", "fp32"])
def test_weights_gradients_are_pytorchs_products_elsewhere(lack, onednn, monkeypatch):
    """With 256 bits a convolution takes longer, and a few rows are not worth a kernel."""
    grad, x = torch.randn(9, 16), torch.randn(9, 24)
    if lack == "512 bits":
        monkeypatch.setattr(linear, "computes_512_bits", lambda: False)
    elif lack == "an AMD":
        monkeypatch.setattr(linear, "is_faster", lambda: False)
    elif lack == "rows":
        monkeypatch.setattr(linear, "LARGE_PRODUCT", 9 * 16 * 24 + 1)
    else:
        grad, x = grad.double(), x.double()
    with Operators() as called:
        found = linear.weight_gradient(grad, x)
    assert torch.equal(found, torch.mm(grad.t(), x)) and "mm" in called.names


@pytest.mark.parametrize(
    ("family", "capability", "expected"),
    [
        ("25", "AVX512", False),  # Zen 4
        ("26", "AVX512", True),  # Zen 5
        ("26", "AVX2", False),  # where a virtual machine hides it
        ("", "AVX512", False),  # not on Linux
    ],
)
def test_which_processors_compute_512_bits(family, capability, expected, monkeypatch):
    monkeypatch.setattr(environment, "of_first_cpu", {"cpu family": family}.get)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert linear.computes_512_bits.__wrapped__() is expected


@pytest.mark.parametrize(("is_wide", "expected"), [(True, True), (False, False)])
def test_many_multiplications_are_onednns_with_512_bits(is_wide, expected, onednn, monkeypatch):
    """Also by a small weight, for which a kernel would cost more than it gains elsewhere."""
    monkeypatch.setattr(linear, "computes_512_bits", lambda: is_wide)
    monkeypatch.setattr(linear, "LEAST_WEIGHTS", 2**18)
    monkeypatch.setattr(linear, "LARGE_PRODUCT", 9 * 16 * 24)
    weight = torch.randn(16, 24)
    linear.linear(torch.randn(8, 24), weight)
    assert not onednn
    linear.linear(torch.randn(9, 24), weight)
    assert bool(onednn) is expected
    monkeypatch.setattr(linear, "LARGE_KEPT_PRODUCT", 5 * 16 * 24)
    assert not linear.ConstantLinear(weight, None, rows=4).has_blocks
    assert linear.ConstantLinear(weight, None, rows=5).has_blocks is expected


@pytest.mark.parametrize(("is_wide", "expected"), [(True, True), (False, False)])
def test_512_bits_are_worth_the_memory_of_a_result(is_wide, expected, onednn, monkeypatch):
    monkeypatch.setattr(linear, "computes_512_bits", lambda: is_wide)
    monkeypatch.setattr(linear, "LEAST_WIDTH", 256)
    x, weight, out = torch.randn(9, 24), torch.randn(16, 24), torch.empty(9, 16)
    found = linear.multiply_transposed(x, weight, out)
    assert torch.allclose(found, x @ weight.t(), atol=1e-5)
    assert bool(onednn) is expected and (found is out) is not expected


def test_a_linear_map_of_this_room_has_the_parameters_of_the_other():
    other = torch.nn.Linear(24, 16, bias=False)
    state = torch.get_rng_state()
    fc = linear.Linear.of(other)
    assert torch.equal(torch.get_rng_state(), state)
    assert fc.weight is other.weight and fc.bias is None and type(fc) is linear.Linear
    assert repr(fc) == repr(other)
    assert linear.Linear.of(fc) is fc and replaceable.is_linear(fc)


@pytest.mark.parametrize(("cpu", "expected"), [("AMD EPYC", True), ("Intel(R) Xeon(R)", False)])
def test_onednn_is_for_amds_processors(cpu, expected, monkeypatch):
    monkeypatch.setattr(environment, "cpu_model", lambda: cpu)
    monkeypatch.setattr("torch.backends.mkl.is_available", lambda: True)
    monkeypatch.setattr(linear, "is_known_here", lambda: True)
    for name in linear.CACHES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    assert linear.is_faster.__wrapped__() == expected
    assert [os.environ.get(name) == "64" for name in linear.CACHES] == [expected] * 2


@pytest.mark.parametrize("noise", ["scalar", "pq"])
def test_what_is_to_be_quantised_is_fairseqs(noise):
    model = build("macaron_transformer", *SMALL, f"--quant-noise-{noise}", "0.1")
    assert not any(type(m).__module__.startswith("macaron_fairseq.fast") for m in model.modules())


def test_jacobians_by_functorch_are_pytorchs(onednn):
    fc, x = linear.Linear(24, 16), torch.randn(24)
    assert torch.allclose(torch.func.jacrev(fc)(x), fc.weight, atol=1e-6)
    assert not onednn  # it has no rules there


@pytest.mark.parametrize("operator", ["multiply", "in_blocks"])
def test_a_pytorch_without_an_operator_keeps_its_own(operator, monkeypatch):
    def missing(*args):
        raise AttributeError("no such operator")

    monkeypatch.setattr(linear, operator, missing)
    assert not linear.is_known_here()


def test_only_fp32_is_for_onednn(onednn):
    fc = linear.Linear(24, 16)
    x = torch.randn(9, 24)
    assert fc.double()(x.double()).dtype == torch.float64
    fc.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert fc(x).dtype == torch.bfloat16
    assert fc(x[:0]).shape == (0, 16)
    assert not onednn


@pytest.mark.parametrize("flags", OPTIONS, ids=" ".join)
def test_training_and_evaluation_with_onednn_are_fairseqs(flags, onednn):
    test_training_with_dropout_is_fairseqs(flags, SHORT)
    test_evaluation_is_fairseqs_with_padding_on_any_side(flags, SHORT)
    assert any(isinstance(m, linear.Linear) for m in both(*flags)[1].modules())
    assert onednn


def test_hypotheses_with_onednn_are_fairseqs(onednn):
    test_hypotheses_of_other_models_are_fairseqs(OPTIONS[2])
    assert onednn


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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    "flags",
    [
        ["macaron_transformer", *SMALL],
        ["macaron_roberta_tiny", *SMALL_ENCODER],
        ["macaron_transformer_lm_tiny", *SMALL_DECODER],
    ],
    ids=lambda flags: flags[0],
)
def test_dropout_has_the_names_by_which_some_of_it_is_retained(flags):
    """fairseq's names, with which `--retain-dropout-modules MultiheadAttention` keeps the same."""
    arch, *sizes = flags
    baseline = arch.removeprefix("macaron_") + "_pre_norm"
    of = {"macaron_roberta_tiny": masked_task, "macaron_transformer_lm_tiny": language_task}

    def names(arch, *more):
        model = build(arch, *sizes, *more, for_task=of.get(flags[0], task)())
        modules = (x for x in model.named_modules() if isinstance(x[1], FairseqDropout))
        return {name: module.module_name for name, module in modules}

    stock, fused, fairseqs = names(arch, *STOCK), names(arch), names(baseline)
    assert fused == stock and "MultiheadAttention" in fairseqs.values()
    assert {name: stock[name] for name in fairseqs} == fairseqs
    assert set(stock.values()) == set(fairseqs.values())


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


@pytest.mark.parametrize("has_gradients", [[True, False], [False, True]])
def test_decoding_may_begin_with_gradients_and_go_on_without_or_the_other_way(has_gradients):
    model = build("macaron_transformer", *SMALL, *NO_DROPOUT)
    source, lengths, previous = batch(sizes=((9, 4), (7, 4)))
    state, steps = {}, []
    with torch.no_grad():
        encoder_out = model.encoder(source, lengths)
        whole, _ = model(source, lengths, previous)
    for t in range(4):
        with torch.set_grad_enabled(has_gradients[t // 2]):
            read = previous[:, : t + 1]
            steps.append(model.decoder(read, encoder_out, incremental_state=state)[0].detach())
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["self_attention", "encoder_decoder_attention"])
def test_several_tokens_at_once_are_fairseqs(kind):
    """And one by one after them, from the same keys and values."""
    ours = Attention(16, 4, **{kind: True}).eval()
    theirs = MultiheadAttention(16, 4, **{kind: True}).eval()
    theirs.load_state_dict(ours.state_dict())
    source, found, states = torch.randn(5, 2, 16), [], ({}, {})
    tokens = torch.randn(3, 2, 16), torch.randn(1, 2, 16)
    with torch.no_grad():
        caches.begin(states[0], None, takes_all=True)
    for attention, state in zip((ours, theirs), states, strict=True):
        with torch.no_grad():
            for x in tokens:
                keys = x if kind == "self_attention" else source
                is_static = kind != "self_attention"
                y = attention(x, keys, keys, incremental_state=state, static_kv=is_static)[0]
                found.append(y)
    for one, other in zip(found[:2], found[2:], strict=True):
        torch.testing.assert_close(one, other)


def test_several_tokens_after_single_ones_are_refused():
    attention, state = Attention(16, 4, self_attention=True).eval(), {}
    with torch.no_grad():
        caches.begin(state, None, takes_all=True)
        x = torch.randn(1, 2, 16)
        attention(x, x, x, incremental_state=state)
        x = torch.randn(2, 2, 16)
        with pytest.raises(ValueError, match="after single tokens each call should have one"):
            attention(x, x, x, incremental_state=state)


def test_a_copy_of_a_state_goes_on_as_the_state_does():
    model = build("macaron_transformer", *SMALL, *NO_DROPOUT)
    source, lengths, previous = batch(sizes=((9, 4), (7, 4)))
    state = {}
    with torch.no_grad():
        encoder_out = model.encoder(source, lengths)
        whole, _ = model(source, lengths, previous)
        for t in range(3):
            model.decoder(previous[:, : t + 1], encoder_out, incremental_state=state)
        found = model.decoder(previous, encoder_out, incremental_state=deepcopy(state))[0]
    torch.testing.assert_close(found, whole[:, 3:], rtol=0, atol=1e-5)


def test_the_encoder_keeps_its_states_only_for_who_asks():
    model = build("macaron_transformer", *SMALL, "--encoder-layers", "5")
    source, lengths, _ = batch()
    alive, most = [], []
    for layer in model.encoder.layers:
        layer.register_forward_hook(lambda *x: alive.append(weakref.ref(x[2])))
        layer.register_forward_hook(lambda *_: most.append(sum(x() is not None for x in alive)))
    with torch.no_grad():
        model.encoder(source, lengths)
        assert max(most) == 2 and len(most) == 5  # what a layer reads and what it gives
        states = model.encoder(source, lengths, return_all_hiddens=True)["encoder_states"]
    assert len(states) == len(model.encoder.layers) + 1


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
    assert len(once) == 5 and sorted(calls) == sorted(once * 2)


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
        assert state[caches.BATCH].beam == 2
        for order in map(torch.tensor, orders):
            model.decoder.reorder_incremental_state_scripting(state, order)
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
            new = torch.randint(4, 64, (len(order), 1), generator=generator)
            tokens = torch.cat((tokens[order], new), 1)
            cached, _ = model.decoder(tokens, encoder_out, incremental_state=state)
            full, _ = model.decoder(tokens, encoder_out)
            assert (cached[:, 0] - full[:, -1]).abs().max() <= 1e-6
        assert state[caches.BATCH].beam == 1


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("flags", [*OPTIONS, *SEVERAL_CACHES], ids=" ".join)
def test_sentences_that_get_more_hypotheses_on_the_way(flags, padded):
    """As after a prefix that is decoded once for all of them."""
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
            assert (cached[:, 0] - full[:, -1]).abs().max() <= 1e-6


@pytest.mark.parametrize("name", ["fc1", "fc2"])
def test_hooks_of_linear_maps_are_called_while_decoding(name):
    model = build("macaron_transformer", *SMALL)
    called = []
    layer = model.decoder.layers[0]
    getattr(layer, name).register_forward_hook(lambda *args: called.append(name))
    generate([model])
    assert called


HOOKS = ("forward", "forward_pre", "full_backward", "full_backward_pre")


@pytest.mark.parametrize("kind", HOOKS)
def test_a_linear_map_with_a_hook_is_called(kind):
    fc = linear.Linear(24, 16)
    handle = getattr(fc, f"register_{kind}_hook")(lambda *_: None)
    assert replaceable.is_watched(fc) and not replaceable.is_linear(fc)
    handle.remove()
    assert not replaceable.is_watched(fc) and replaceable.is_linear(fc)


@pytest.mark.parametrize("kind", HOOKS)
def test_so_is_one_with_a_hook_of_all_modules(kind):
    register = getattr(nn.modules.module, f"register_module_{kind}_hook")
    handle = register(lambda *_: None)
    assert replaceable.is_watched(linear.Linear(24, 16))
    handle.remove()
    assert not replaceable.is_watched(linear.Linear(24, 16))


@pytest.mark.parametrize("kind", HOOKS)
@pytest.mark.parametrize("name", ["fc1", "fc2", "activation_dropout_module", "dropout_module"])
@pytest.mark.parametrize(("activation", "share"), [("relu", "0.1"), ("gelu", "0")])
def test_hooks_see_what_they_see_in_fairseqs_layers(kind, name, activation, share):
    seen = []
    for model in both("--activation-fn", activation, "--activation-dropout", share):
        own = []
        watched = getattr(model.encoder.layers[0], name)
        register = getattr(watched, f"register_{kind}_hook")
        register(lambda module, *found, own=own: own.extend(tensors(found)))
        torch.manual_seed(3)
        y = model.train()(*batch())[0]
        (y * torch.arange(y.numel()).view(y.shape).cos()).sum().backward()
        seen.append(own)
    theirs, ours = seen
    assert len(theirs) == len(ours) > 0
    for one, other in zip(theirs, ours, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)


def tensors(found):
    """What a hook is given, as it is at that moment."""
    for x in found:
        if isinstance(x, torch.Tensor):
            yield x.detach().clone()
        elif isinstance(x, tuple):
            yield from tensors(x)


def token_by_token_and_whole(model, source, lengths, previous):
    """What the decoder says after the last token, from its caches, and of all tokens at once."""
    with torch.no_grad():
        encoder_out = model.encoder(source, lengths)
        state = {}
        for t in range(previous.shape[1]):
            cached, _ = model.decoder(previous[:, : t + 1], encoder_out, incremental_state=state)
        full, _ = model.decoder(previous, encoder_out)
    return cached, full


def test_padding_in_a_prefix_is_not_seen():
    flags = "--no-token-positional-embeddings"  # fairseq counts padding when it decodes
    model = build("macaron_transformer", *SMALL, flags).double()
    source, lengths, previous = batch(sizes=((9, 6), (9, 3)))
    previous[1] = previous[1].roll(3)  # on the left
    cached, full = token_by_token_and_whole(model, source, lengths, previous)
    assert (cached[:, 0] - full[:, -1]).abs().max() <= 1e-6


def test_a_source_of_padding_alone_gives_numbers_token_by_token_too():
    model = build("macaron_transformer", *SMALL).double()
    source, lengths, previous = batch(sizes=((9, 6), (9, 6)))
    source[1] = 1
    cached, full = token_by_token_and_whole(model, source, lengths, previous)
    assert cached.isfinite().all()
    assert (cached[0, 0] - full[0, -1]).abs().max() <= 1e-6


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


def test_hooked_projections_are_fairseqs_way():
    attention = build("macaron_transformer", *SMALL).encoder.layers[0].self_attn
    assert attention.is_standard()
    attention.q_proj = nn.Sequential(attention.q_proj)
    assert not attention.is_standard()
