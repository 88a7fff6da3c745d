"""The layers against the paper's formulas, written out in `formulas`."""

from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from fairseq import utils
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from helpers.formulas import DECODERS, ENCODERS, goes_with_post_norm, layer_of
from helpers.small import NO_DROPOUT, SMALL, arguments, batch, build

from macaron_fairseq import UserError
from macaron_fairseq.fast.layers import FusedDecoderLayer, FusedEncoderLayer
from macaron_fairseq.model.layers import MacaronDecoderLayer, MacaronEncoderLayer
from macaron_fairseq.schemes import splitting
from macaron_fairseq.schemes.splitting import (
    CROSS_ATTENTION,
    FFN,
    SCHEMES,
    SELF,
    SELF_ATTENTION,
    Operator,
    Scheme,
    Step,
    step,
)
from macaron_fairseq.schemes.substeps import SUBSTEPS

BATCH, TARGET, SOURCE, WIDTH, HEADS = 3, 5, 7, 16, 4
PADDING = torch.arange(SOURCE)[None] < torch.tensor([[0], [2], [4]])  # on the left
FUTURE = torch.ones(TARGET, TARGET).triu(1).bool()
ENCODER_LAYERS = MacaronEncoderLayer, FusedEncoderLayer
DECODER_LAYERS = MacaronDecoderLayer, FusedDecoderLayer
NORM = {"pre": [], "post": ["--macaron-post-norm"]}


def config(*flags):
    args = arguments("macaron_transformer", *SMALL, *NO_DROPOUT, *flags)
    return TransformerConfig.from_namespace(args)


def layer(kind, *flags):
    torch.manual_seed(0)
    built = kind(config(*flags)).double()
    for parameter in built.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return built


def state(length, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, length, WIDTH, generator=generator, dtype=torch.float64)


def close(actual, expected):
    assert (actual - expected).abs().max() <= 1e-12 * max(1, expected.abs().max())


def compare(built, inputs, actual, expected):
    """Values and gradients of both computations, for each input and parameter."""
    close(actual, expected)
    weights = state(actual.shape[1], seed=9)
    leaves = [*inputs, *built.parameters()]
    gradients = [torch.autograd.grad((y * weights).sum(), leaves) for y in (actual, expected)]
    for one, other in zip(*gradients, strict=True):
        close(one, other)
    assert all(gradient.abs().max() > 0 for gradient in gradients[0][len(inputs) :])


@pytest.fixture(autouse=True)
def exact_softmax(monkeypatch):
    """fairseq computes attention's softmax in fp32 whatever the input: here in fp64."""
    monkeypatch.setattr(utils, "softmax", lambda x, dim, onnx_trace=False: x.softmax(dim))


@pytest.mark.parametrize("kind", [MacaronEncoderLayer, MacaronDecoderLayer])
def test_halves_are_distinct_and_scaled_by_one_half(kind):
    built = layer(kind)
    halves = [
        (built.earlier["0"].network, built.earlier["0"].layer_norm),
        (built, built.final_layer_norm),
    ]
    tensors = [
        p.data_ptr()
        for half, norm in halves
        for p in (half.fc1.weight, half.fc2.weight, norm.weight)
    ]
    assert len(set(tensors)) == 6
    x = state(4, seed=3).transpose(0, 1)
    for silent in (built.self_attn, getattr(built, "encoder_attn", None)):
        if silent is not None:
            torch.nn.init.zeros_(silent.out_proj.weight)
            torch.nn.init.zeros_(silent.out_proj.bias)
    # One half gives a constant, the other nothing: the state moves by half of the constant.
    for half, _ in halves:
        for other, _ in halves:
            torch.nn.init.zeros_(other.fc2.weight)
            torch.nn.init.zeros_(other.fc2.bias)
        torch.nn.init.constant_(half.fc2.bias, 3.0)
        moved = built(x, None)
        moved = moved[0] if isinstance(moved, tuple) else moved
        close(moved - x, torch.full_like(x, 1.5))


def test_each_side_and_each_half_has_its_own_width():
    flags = ["--encoder-ffn-embed-dim", "20", "--decoder-ffn-embed-dim", "24"]
    flags += ["--decoder-first-ffn-embed-dim", "28"]
    encoder, decoder = layer(MacaronEncoderLayer, *flags), layer(MacaronDecoderLayer, *flags)
    assert encoder.earlier["0"].network.fc1.out_features == encoder.fc1.out_features == 20
    assert decoder.earlier["0"].network.fc1.out_features == 28
    assert decoder.fc1.out_features == 24


# Scheme, sub-step, norm; what post-norm allows is in arguments.refuse_senseless_steps.
STEPS = [
    *((scheme, substep, "pre") for scheme in SCHEMES for substep in SUBSTEPS),
    *((scheme, "euler", "post") for scheme in SCHEMES if goes_with_post_norm(scheme)),
]


@pytest.mark.parametrize("kind", ENCODER_LAYERS)
@pytest.mark.parametrize(("scheme", "substep", "norm"), STEPS)
def test_every_scheme_and_substep_is_the_formula_in_the_encoder(scheme, substep, norm, kind):
    flags = ["--macaron-encoder-scheme", scheme, "--macaron-substep", substep, *NORM[norm]]
    built = layer(kind, *flags)
    x = state(SOURCE, seed=1).requires_grad_()
    actual = built(x.transpose(0, 1), PADDING).transpose(0, 1)
    p = dict(built.named_parameters())
    hidden = PADDING[:, None].expand(-1, SOURCE, -1)
    steps = ENCODERS[scheme]
    expected = layer_of(p, steps, substep, x, HEADS, hidden, pre_norm=norm == "pre")
    compare(built, [x], actual, expected)


@pytest.mark.parametrize("kind", DECODER_LAYERS)
@pytest.mark.parametrize(("scheme", "substep", "norm"), STEPS)
def test_every_scheme_and_substep_is_the_formula_in_the_decoder(scheme, substep, norm, kind):
    flags = ["--macaron-decoder-scheme", scheme, "--macaron-substep", substep, *NORM[norm]]
    built = layer(kind, *flags)
    x, memory = state(TARGET, seed=1).requires_grad_(), state(SOURCE, seed=2).requires_grad_()
    mask = torch.zeros(TARGET, TARGET).masked_fill(FUTURE, -torch.inf).double()
    actual, _, _ = built(x.transpose(0, 1), memory.transpose(0, 1), PADDING, self_attn_mask=mask)
    p = dict(built.named_parameters())
    hidden = FUTURE.expand(BATCH, -1, -1)
    memory_hidden = PADDING[:, None].expand(-1, TARGET, -1)
    others = memory, memory_hidden, norm == "pre"
    expected = layer_of(p, DECODERS[scheme], substep, x, HEADS, hidden, *others)
    compare(built, [x, memory], actual.transpose(0, 1), expected)


def test_gates_start_half_open():
    gated = MacaronEncoderLayer(config("--macaron-substep", "gated-rk2"))
    assert [*gated.gates] == ["0", "1", "2"]
    assert not any(p.any() for p in gated.gates.parameters())
    # Steps of the same operators have one: FFN and self-attention.
    flags = ["--macaron-substep", "gated-rk2", "--macaron-scheme", "yoshida4"]
    assert [*MacaronEncoderLayer(config(*flags)).gates] == ["0", "1"]


def test_any_scheme_is_integrated(monkeypatch):
    """A scheme that is only data: attention in two parts, each with weights of its own."""
    first, second, ffn = Operator(SELF_ATTENTION), Operator(SELF_ATTENTION, 2), Operator(FFN)
    steps = step(0.5, first), step(0.75, ffn), step(0.25, second)
    crossing = Operator(CROSS_ATTENTION), Operator(CROSS_ATTENTION, 2)
    scheme = Scheme(steps, (step(0.5, crossing[0]), *steps, step(0.5, crossing[1])))
    monkeypatch.setitem(SCHEMES, "made-up", scheme)
    built = layer(MacaronEncoderLayer, "--macaron-scheme", "made-up")
    assert [*built.earlier] == ["0"]
    for attention in (built.self_attn, built.earlier["0"].network):
        torch.nn.init.zeros_(attention.out_proj.weight)
    torch.nn.init.zeros_(built.fc2.weight)
    torch.nn.init.constant_(built.earlier["0"].network.out_proj.bias, 1)
    torch.nn.init.constant_(built.fc2.bias, 10)
    torch.nn.init.constant_(built.self_attn.out_proj.bias, 100)
    x = state(4, seed=3).transpose(0, 1)
    close(built(x, None) - x, torch.full_like(x, 0.5 * 1 + 0.75 * 10 + 0.25 * 100))

    decoder = layer(MacaronDecoderLayer, "--macaron-scheme", "made-up")
    assert [*decoder.earlier] == ["0", "1"]
    assert torch.isfinite(decoder(x, x, None)[0]).all()


@pytest.mark.parametrize("substep", SUBSTEPS)
def test_dropout_is_drawn_for_each_evaluation(substep, monkeypatch):
    built = layer(MacaronEncoderLayer, "--macaron-substep", substep, "--dropout", "0.5").train()
    drawn = []
    plain = built.dropout_module.forward
    monkeypatch.setattr(
        built.dropout_module, "forward", lambda x: drawn.append(plain(x)) or drawn[-1]
    )
    built(state(4, seed=3).transpose(0, 1), None)
    assert len(drawn) == 3 * {"euler": 1, "midpoint": 2, "gated-rk2": 2, "rk4": 4}[substep]
    left_out = [y == 0 for y in drawn]
    assert not any(torch.equal(one, other) for one, other in pairwise(left_out))


@pytest.mark.parametrize("is_asked", [True, False])
@pytest.mark.parametrize("mode", ["training", "evaluation", "generation"])
def test_attention_weights_are_computed_where_fairseqs_layer_does(mode, is_asked):
    """They take time and memory."""
    x, memory = state(TARGET, seed=1).transpose(0, 1), state(SOURCE, seed=2).transpose(0, 1)
    found = []
    for kind in (MacaronDecoderLayer, TransformerDecoderLayerBase):
        built = layer(kind).train(mode == "training")
        if mode == "generation":
            built.make_generation_fast_()
        _, weights, _ = built(x, memory, PADDING, need_attn=is_asked)
        found.append(weights is not None)
    assert found[0] == found[1]


@pytest.mark.parametrize("flags", [["--macaron-scheme", "parallel"], ["--macaron-substep", "rk4"]])
@pytest.mark.parametrize("kind", [*ENCODER_LAYERS, *DECODER_LAYERS])
def test_a_layer_refuses_what_post_norm_cannot_take(kind, flags):
    """Also in a model of a user's own, which checks no flags."""
    cfg = config(*flags)
    for side in (cfg.encoder, cfg.decoder):
        side.normalize_before = False
    with pytest.raises(UserError, match=r"needs pre-norm in the (encoder|decoder), since"):
        kind(cfg)


@pytest.mark.parametrize("kind", [FusedEncoderLayer, FusedDecoderLayer])
def test_a_fused_layer_refuses_quantisation_noise(kind):
    cfg = config()
    cfg.quant_noise.pq = 0.1
    with pytest.raises(
        ValueError, match=r"noise needs the layers of macaron_fairseq\.model\.layers"
    ):
        kind(cfg)


def test_an_operator_that_no_layer_has_is_refused():
    with pytest.raises(ValueError, match="there is no operator 'convolution': take one of ffn, "):
        Operator("convolution")


def test_a_step_of_a_fraction_is_one_that_pytorch_takes():
    assert repr(step(Fraction(1, 2), SELF).size) == "0.5"
    assert repr(step(1, SELF).size) == "1"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Step(1, SELF), "the operators of a step are to be a tuple of Operator"),
        (lambda: step(1), "a step needs an operator"),
        (lambda: step(SELF, 1), "the size of a step is a number, and not Operator"),
        (lambda: step(True, SELF), "the size of a step is a number, and not True"),
        (
            lambda: Scheme(step(1, SELF), ()),
            r"the steps of the encoder are to be a tuple of Step, as in \(x,\) with its comma",
        ),
        (
            lambda: Scheme((), step(1, SELF)),
            "the steps of the decoder are to be",
        ),
    ],
)
def test_what_is_no_scheme_is_said_where_it_is_written(wrong, said):
    with pytest.raises(ValueError, match=said):
        wrong()


def test_a_kind_that_no_layer_builds_is_not_taken_for_an_ffn(monkeypatch):
    monkeypatch.setattr(splitting, "KINDS", (*splitting.KINDS, "convolution"))
    steps = (step(1, Operator("convolution")), *SCHEMES["lie-trotter"].encoder)
    for encoder in (steps, steps * 2):
        scheme = Scheme(encoder, SCHEMES["lie-trotter"].decoder)
        monkeypatch.setitem(SCHEMES, "convolving", scheme)
        with pytest.raises(NotImplementedError, match="operator 'convolution'"):
            model = build(*("macaron_transformer_tiny", *SMALL, "--macaron-scheme", "convolving"))
            model(*batch())


def test_onnx_states_are_refused():
    with pytest.raises(NotImplementedError):
        layer(MacaronDecoderLayer)(state(2, 1), prev_attn_state=[state(2, 1)])
