"""The measures of `macaron-fairseq dynamics`, each against an independent small computation."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.models.masked_lm import MaskedLMModel, base_architecture
from fairseq.models.roberta import RobertaModel
from fairseq.models.transformer import TransformerModel
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from helpers import formulas
from helpers.paths import USER_DIR
from helpers.small import NO_DROPOUT, SMALL, batch, build, dictionary

from macaron_fairseq.analysis import (
    anatomy,
    jacobians,
    likelihood,
    local_error,
    models,
    running_statistics,
    sampling,
    trajectories,
)
from macaron_fairseq.analysis.dynamics import measurement
from macaron_fairseq.analysis.models import TrainedModel
from macaron_fairseq.analysis.sentences import Data, Sample, Sentence, open_translation
from macaron_fairseq.common.errors import UserError

PAD = 1


def pre_norm():
    return build("macaron_transformer", *SMALL, *NO_DROPOUT)


def masked_lm(arch, **settings):
    """A masked language model of that class with random parameters."""
    task = SimpleNamespace(source_dictionary=dictionary(), dictionary=dictionary())
    args = SimpleNamespace(
        encoder_layers=2,
        encoder_embed_dim=16,
        encoder_ffn_embed_dim=24,
        encoder_attention_heads=4,
        max_positions=32,
        tokens_per_sample=32,
        **settings,
    )
    torch.manual_seed(4)
    if arch == "masked_lm":
        base_architecture(args)
        return MaskedLMModel.build_model(args, task).eval()
    return RobertaModel.build_model(args, task).eval()


def sentences(source, previous=None):
    """The rows of a batch without their padding."""
    targets = [None] * len(source) if previous is None else [x[x != PAD] for x in previous]
    return [
        Sentence(i, row[row != PAD], target)
        for i, (row, target) in enumerate(zip(source, targets, strict=True), 1)
    ]


# --- operators -----------------------------------------------------------------------------------

TRANSLATION = {
    "macaron, pre-norm": ("macaron_transformer",),
    "macaron, post-norm": ("macaron_transformer", "--macaron-post-norm"),
    "lie-trotter": ("macaron_transformer", "--macaron-scheme", "lie-trotter"),
    "parallel": ("macaron_transformer", "--macaron-scheme", "parallel"),
    "shared weights, midpoint": (
        *("macaron_transformer", "--macaron-scheme", "yoshida4", "--macaron-substep", "midpoint"),
    ),
    "gates": ("macaron_transformer", "--macaron-substep", "gated-rk2"),
    "source before target": ("macaron_transformer", "--cross-self-attention"),
    "no cross-attention": (
        *("macaron_transformer", "--cross-self-attention", "--no-cross-attention"),
    ),
    "fairseq, post-norm": ("transformer",),
    "fairseq, pre-norm": ("transformer_iwslt_de_en_pre_norm",),
    "fairseq, source before target": ("transformer", "--cross-self-attention"),
}


@pytest.mark.parametrize("flags", TRANSLATION.values(), ids=TRANSLATION)
def test_states_are_those_of_the_model_in_a_padded_batch(flags):
    model = build(*flags, *SMALL, *NO_DROPOUT)
    source, lengths, previous = batch()
    with torch.no_grad():
        encoded = model.encoder(source, lengths, return_all_hiddens=True)
        _, extra = model.decoder(previous, encoded)
    expected = {"encoder": encoded["encoder_states"], "decoder": extra["inner_states"]}
    masks = {"encoder": source != PAD, "decoder": previous != PAD}
    for i, sentence in enumerate(sentences(source, previous)):
        layers = trajectories.run(model, sentence.source, sentence.target)
        assert [(x.side, x.number) for x in layers] == [
            *(("encoder", 1), ("encoder", 2)),
            *(("decoder", 1), ("decoder", 2)),
        ]
        for layer in layers:
            for number, state in ((-1, layer.state), (0, layer.advance(layer.state))):
                whole = expected[layer.side][layer.number + number][:, i]
                torch.testing.assert_close(
                    state[:, 0], whole[masks[layer.side][i]], rtol=1e-4, atol=1e-5
                )


@pytest.mark.parametrize(
    "make",
    [
        lambda: masked_lm("roberta"),
        lambda: masked_lm("roberta", encoder_normalize_before=True),
        lambda: masked_lm("masked_lm", apply_bert_init=True),
    ],
)
def test_states_of_masked_language_models(make):
    model = make()
    source = batch()[0].flip(1)  # right-padded
    with torch.no_grad():
        expected = model(source, return_all_hiddens=True)[1]["inner_states"]
    for i, sentence in enumerate(sentences(source)):
        layers = trajectories.run(model, sentence.source)
        assert [(x.side, x.number) for x in layers] == [("encoder", 1), ("encoder", 2)]
        for layer in layers:
            torch.testing.assert_close(
                layer.advance(layer.state)[:, 0],
                expected[layer.number][source[i] != PAD, i],
                rtol=1e-4,
                atol=1e-5,
            )


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_sublayers_are_the_papers(norm):
    model = build(
        "macaron_transformer", *SMALL, *NO_DROPOUT, *["--macaron-post-norm"] * (norm == "post")
    )
    source, _, previous = batch(sizes=((7, 5),))
    layer = trajectories.run(model, source[0], previous[0])[2]
    p = model.decoder.layers[0].state_dict()
    memory = model.encoder(source, torch.tensor([7]))["encoder_out"][0].transpose(0, 1)
    future = torch.ones(1, 5, 5, dtype=torch.bool).triu(1)
    nothing = torch.zeros(1, 5, 7, dtype=torch.bool)
    applied = [
        ("ffn", 0.5, "earlier.0.layer_norm", lambda y: formulas.ffn(p, "earlier.0.network.", y)),
        (
            *("self-attention", 1, "self_attn_layer_norm"),
            lambda y: formulas.attention(p, "self_attn", y, y, 4, future),
        ),
        (
            *("cross-attention", 1, "encoder_attn_layer_norm"),
            lambda y: formulas.attention(p, "encoder_attn", y, memory, 4, nothing),
        ),
        ("ffn", 0.5, "final_layer_norm", lambda y: formulas.ffn(p, "", y)),
    ]
    x = layer.state.transpose(0, 1)
    found = list(trajectories.moves(layer))
    assert len(found) == len(applied)
    for (sublayer, move), (operator, step, name, apply) in zip(found, applied, strict=True):
        assert (sublayer.operator, sublayer.step) == (operator, step)
        torch.testing.assert_close(move.before, x[0], rtol=1e-4, atol=1e-5)
        seen = formulas.layer_norm(p, name, x) if norm == "pre" else x
        torch.testing.assert_close(move.added, step * apply(seen)[0], rtol=1e-4, atol=1e-5)
        x = formulas.step(p, name, norm == "pre", x, apply, step)
        torch.testing.assert_close(move.after, x[0], rtol=1e-4, atol=1e-5)


def test_layer_that_computes_more_is_refused():
    model = build("transformer", *SMALL)
    layer = model.decoder.layers[1]
    layer.w_resid = torch.nn.Parameter(torch.full((16,), 2.0))
    with pytest.raises(UserError, match="layer 2 of the decoder computes more than its operators"):
        trajectories.run(model, torch.tensor([5, 6, 2]), torch.tensor([2, 5]))


def test_unknown_layer_is_refused():
    class Other(TransformerEncoderLayerBase):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    model = build("transformer", *SMALL)
    model.encoder.layers[0] = Other(model.encoder.cfg)
    with pytest.raises(UserError, match="layers of the class Other, which is not supported"):
        trajectories.run(model, torch.tensor([5, 6, 2]))


def test_diverged_model_is_refused():
    model = pre_norm()
    with torch.no_grad():
        model.encoder.layers[1].fc2.bias[0] = torch.nan
    with pytest.raises(UserError, match=r"layer 2 of the encoder are not finite: .* diverged"):
        trajectories.run(model, torch.tensor([5, 6, 2]))


def test_which_models_are_known():
    class NotAutoregressive(TransformerModel):
        def forward(self):
            pass

    assert anatomy.is_translation(TransformerModel)
    assert not anatomy.is_translation(NotAutoregressive)
    assert not anatomy.is_translation(RobertaModel)
    assert anatomy.is_masked_lm(RobertaModel)
    assert not anatomy.is_masked_lm(TransformerModel)


# --- steps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "a", "expected"),
    [
        ((1, 0), (0, 1), (1, 0, 1, 45)),
        ((2, 0), (1, 0), (0.5, 1, 0, 0)),
        ((2, 0), (-1, 0), (0.5, -1, 0, 0)),
        ((0, 4), (3, -4), (1.25, -0.8, 0.75, 90)),
        ((0, 4), (0, -8), (2, -1, 0, 180)),
        ((1, 0), (0, 1e-7), (1e-7, 0, 1e-7, math.degrees(1e-7))),
        ((1, 0), (3e-10, 4e-10), (5e-10, 0.6, 4e-10, math.degrees(4e-10))),
    ],
)
def test_step_figures(x, a, expected):
    x, a = torch.tensor([x], dtype=torch.double), torch.tensor([a], dtype=torch.double)
    figures = trajectories.step_figures(trajectories.Move(x, a, x + a))
    names = ("step", "step_cosine", "velocity", "turn")
    assert [figures[name].item() for name in names] == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_what_adds_nothing_has_no_direction():
    x, nothing = torch.ones(1, 2), torch.zeros(1, 2)
    figures = trajectories.step_figures(trajectories.Move(x, nothing, x))
    assert figures["step_cosine"].isnan() and not figures["step"] and not figures["turn"]


def test_turn_is_to_the_state_after_the_layer_norm():
    x, a, after = (torch.tensor([v]) for v in ((1.0, 0.0), (1.0, 0.0), (0.0, 3.0)))
    figures = trajectories.step_figures(trajectories.Move(x, a, after))
    assert figures["turn"].item() == pytest.approx(90)
    assert figures["velocity"].item() == 0


# --- local error ---------------------------------------------------------------------------------


def fitted(errors):
    return local_error.slope(measurement.STEPS, errors, local_error.RESOLVED_IN_FP32)


def test_local_error_of_euler_on_a_linear_field():
    a = torch.randn(6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    x = torch.randn(5, 1, 6, generator=torch.Generator().manual_seed(2), dtype=torch.double)
    found = local_error.by_halving(lambda x, h: x + h * x @ a.T, x, measurement.STEPS)
    twice = (x @ a.T @ a.T).norm(dim=-1)[:, 0] / x.norm(dim=-1)[:, 0]
    for h, errors in zip((1, 1 / 2, 1 / 4), found, strict=True):
        torch.testing.assert_close(errors, h**2 / 4 * twice)  # (I + hA/2)^2 - (I + hA)
    assert fitted([e.mean().item() for e in found]) == pytest.approx(2)


def test_slope_tells_a_midpoint_step_from_an_euler_step():
    # x' = -x: exp(-h) up to h^2 by the midpoint rule.
    found = local_error.by_halving(
        lambda x, h: x * (1 - h + h**2 / 2), torch.ones(1, 1, 1), measurement.STEPS
    )
    by_hand = [abs((1 - h + h**2 / 2) - (1 - h / 2 + h**2 / 8) ** 2) for h in (1, 1 / 2, 1 / 4)]
    assert [e.item() for e in found] == pytest.approx(by_hand, rel=1e-4)
    assert 2.5 < fitted(by_hand) < 3.1


def test_no_slope_where_nothing_moves():
    found = local_error.by_halving(lambda x, h: x, torch.ones(2, 1, 3), measurement.STEPS)
    assert [e.tolist() for e in found] == [[0, 0]] * 3
    assert fitted([0, 0, 0]) is None


def test_no_slope_of_rounding():
    assert fitted([4e-6, 1e-6, 2.5e-7]) is None


def test_local_error_of_a_macaron_layer():
    model = pre_norm().double()
    source = batch(sizes=((7, 5),))[0]
    layer = trajectories.run(model, source[0])[0]
    p = model.encoder.layers[0].state_dict()
    nothing = torch.zeros(1, 7, 7, dtype=torch.bool)

    def advance(x, h):
        for name, size, apply in (
            ("earlier.0.layer_norm", h / 2, lambda y: formulas.ffn(p, "earlier.0.network.", y)),
            (
                *("self_attn_layer_norm", h),
                lambda y: formulas.attention(p, "self_attn", y, y, 4, nothing),
            ),
            ("final_layer_norm", h / 2, lambda y: formulas.ffn(p, "", y)),
        ):
            x = formulas.step(p, name, True, x, apply, size)
        return x

    found = local_error.by_halving(layer.advance, layer.state, measurement.STEPS)
    x = layer.state.transpose(0, 1)
    for h, errors in zip((1, 0.5, 0.25), found, strict=True):
        difference = advance(x, h) - advance(advance(x, h / 2), h / 2)
        torch.testing.assert_close(errors, (difference.norm(dim=-1) / x.norm(dim=-1))[0])


@pytest.mark.parametrize(
    ("scheme", "substep", "order"),
    [
        ("lie-trotter", "euler", 2),
        ("strang-marchuk", "euler", 2),
        ("lie-trotter", "rk4", 2),
        ("strang-marchuk", "rk4", 2),  # its two halves are different FFNs: not symmetric
        ("strang-marchuk-attention", "midpoint", 3),  # one attention twice
        ("parallel", "midpoint", 3),
        ("yoshida4", "rk4", 5),
    ],
)
def test_slope_is_the_methods_local_order(scheme, substep, order):
    flags = ["--macaron-scheme", scheme, "--macaron-substep", substep]
    # Smooth, which orders above 2 need.
    model = build("macaron_transformer", *SMALL, *flags, "--activation-fn", "tanh").double()
    layer = trajectories.run(model, batch()[0][0])[0]
    found = local_error.by_halving(
        lambda x, h: layer.advance(x, 0.1 * h), layer.state, measurement.STEPS
    )
    errors = [e.mean().item() for e in found]
    assert math.log2(errors[1] / errors[2]) == pytest.approx(order, abs=0.25)


# --- Jacobians -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("matrix", "nonzero", "is_complex", "henrici", "asymmetry"),
    [
        ([[2, 1], [1, -3]], 1, 0, 0, 0),
        ([[3, -4], [4, 3]], 1, 1, 0, 4 / 3),
        ([[0, 1], [0, 0]], 0, math.nan, 1, 1),
        ([[1, 0], [0, 0]], 0.5, 0, 0, 0),
        # Eigenvalues 1 and 2, |A|^2 = 14: 14 - 5 = 9 are lost.
        ([[1, 3], [0, 2]], 1, 0, 3 / math.sqrt(14), math.sqrt(18 / (4 + 16 + 18))),
        # A rotation by 90 degrees beside two real directions.
        (
            [[0, -2, 0, 0], [2, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 5]],
            *(1, 0.5, 0, math.sqrt(32 / 104)),
        ),
    ],
)
def test_block_figures(matrix, nonzero, is_complex, henrici, asymmetry):
    figures = jacobians.block_figures(torch.tensor(matrix, dtype=torch.float))
    expected = {
        "nonzero": nonzero,
        "complex": is_complex,
        "henrici": henrici,
        "asymmetry": asymmetry,
    }
    assert figures == pytest.approx(expected, nan_ok=True, abs=1e-7)


def test_eigenvalues_of_rounding_count_as_zero():
    # Of rank 1, with eigenvalues that are zero but for rounding.
    generator = torch.Generator().manual_seed(1)
    u, v = torch.randn(2, 30, generator=generator)
    noise = 1e-6 * torch.randn(30, 30, generator=generator)
    figures = jacobians.block_figures(torch.outer(u, v) + noise)
    assert figures["nonzero"] == pytest.approx(1 / 30)
    assert figures["complex"] == 0


# The step of the differences, and how near they come.
STEP, NEAR = 1e-6, dict(rtol=1e-6, atol=1e-7)
MODELS = ["macaron_transformer", "transformer_pre_norm", "transformer"]


@pytest.fixture(scope="module", params=MODELS)
def fields(request):
    """What sub-layers and layers of a model add to the states they meet, in fp64; the states."""
    smooth = ["--activation-fn", "tanh"]  # no kinks within a step
    model = build(request.param, *SMALL, *NO_DROPOUT, *smooth).double().requires_grad_(False)
    source, _, previous = batch(sizes=((4, 3),))
    found = {}
    for layer in trajectories.run(model, source[0], previous[0])[1:3]:
        x = layer.state
        for sublayer in layer.sublayers:
            found[f"{layer.side} {sublayer.operator}"] = sublayer.increment, x
            x = sublayer.advance(x)
        found[f"{layer.side} layer"] = layer.increment, layer.state
    return found


CAUSAL = ["decoder ffn", "decoder self-attention", "decoder cross-attention", "decoder layer"]
FIELDS = ["encoder ffn", "encoder self-attention", "encoder layer", *CAUSAL]


def whole_jacobian(field, x, e):
    """All of J by central differences, (time, channel, time, channel)."""
    columns = []
    for i in range(x.numel()):
        d = torch.zeros(x.numel(), dtype=x.dtype)
        d[i] = e
        d = d.view_as(x)
        columns.append((field(x + d) - field(x - d)) / (2 * e))
    return torch.stack(columns, dim=-1)[:, 0].unflatten(-1, (len(x), x.shape[2]))


@pytest.mark.parametrize("name", FIELDS)
def test_jacobian_by_differences(fields, name):
    field, x = fields[name]
    j = whole_jacobian(field, x, STEP)
    for token in (0, len(x) - 1):
        torch.testing.assert_close(jacobians.own_block(field, x, token), j[token, :, token], **NEAR)
    n = x.numel()
    found = jacobians.largest_singular_value(field, x, torch.Generator().manual_seed(1))
    assert found == pytest.approx(torch.linalg.matrix_norm(j.reshape(n, n), 2).item(), rel=1e-4)


def test_what_does_nothing_has_the_singular_value_0():
    x = torch.ones(3, 1, 4, dtype=torch.double, requires_grad=True)
    found = jacobians.largest_singular_value(lambda y: 0 * y, x, torch.Generator().manual_seed(1))
    assert found == 0


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_what_stretches_all_alike_has_its_factor(dtype):
    """It gives Lanczos no second vector."""
    x = torch.ones(6, 1, 4, dtype=dtype, requires_grad=True)
    found = jacobians.largest_singular_value(lambda y: 2 * y, x, torch.Generator().manual_seed(1))
    assert found == pytest.approx(2)


@pytest.mark.parametrize("name", ["encoder ffn", *CAUSAL])
def test_blocks_have_all_eigenvalues_of_a_causal_decoder(fields, name):
    field, x = fields[name]
    j = whole_jacobian(field, x, STEP)
    n = x.numel()
    whole = torch.linalg.eigvals(j.reshape(n, n))
    blocks = torch.cat(
        [torch.linalg.eigvals(jacobians.own_block(field, x, i)) for i in range(len(x))]
    )
    # The coefficients tr J^k of the characteristic polynomial, which rounding spares.
    for k in (1, 2, 3):
        near = {key: 10 * value for key, value in NEAR.items()}
        torch.testing.assert_close((whole**k).sum(), (blocks**k).sum(), **near)


# --- likelihood ----------------------------------------------------------------------------------


def test_bits_per_token_are_those_of_a_padded_batch():
    model = pre_norm().double()
    source, lengths, previous = batch()
    found = sentences(source, previous)
    with torch.no_grad():
        logits = model(source, lengths, previous)[0]
    expected = torch.full_like(previous, PAD)
    for row, sentence in zip(expected, found, strict=True):
        row[: len(sentence.target)] = torch.tensor([*sentence.target[1:], 2])
    nats = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), expected.flatten(), ignore_index=PAD
    )
    bits = likelihood.bits_per_token(model, found, SimpleNamespace(target=dictionary()))
    assert bits == pytest.approx(nats.item() / math.log(2), rel=1e-12)


class Successor(torch.nn.Module):
    """Translates each token to the next of the dictionary, with nine tenths of all probability."""

    def __init__(self, types):
        super().__init__()
        self.decoder = SimpleNamespace(set_beam_size=lambda size: None)
        self.table = torch.nn.Parameter(torch.full((types, types), 0.1 / (types - 1)))
        with torch.no_grad():
            for token in range(types):
                self.table[token, token + 1 if 4 <= token < types - 1 else token] = 0.9

    def forward(self, source, lengths, previous):
        assert source.shape == previous.shape
        assert lengths.tolist() == [source.shape[1]]
        return self.table[source].log(), None


def checked(source, target, positions=100):
    words = dictionary()
    checkpoint = (Path("it.pt"), "it", {}, {}, None, {}, {}, "")
    loaded = TrainedModel(
        *checkpoint, "it", Successor(len(words)), (positions, positions), engine=None
    )
    data = Data(Path("data"), ("en", "de"), words, words, (str.split, str.split))
    found = [Sentence(1, torch.tensor([*source, 2]), torch.tensor([2, *target]))]
    return loaded.checked_bits(Sample(data, "text", found))


def test_a_model_for_these_data_passes():
    assert checked([10, 20, 30], [11, 21, 31]) == pytest.approx(-math.log2(0.9))
    assert checked([10, 20, 30], [11, 21, 31], positions=3) == pytest.approx(-math.log2(0.9))


def test_text_is_preprocessed_as_the_language_that_it_has():
    """The point of "ca." belongs to the word in German, and is a token of its own in English."""
    folder = USER_DIR / "demo"
    german, english = open_translation(folder, "de", "en").encode
    texts = [" ".join(x("kostet ca. 3.500 Euro")).replace("@@ ", "") for x in (german, english)]
    assert texts == ["kostet ca. 3.500 Euro", "kostet ca . 3.500 Euro"]


def test_a_model_of_the_other_direction_is_refused():
    # The last type stays what it is, as does the end.
    right, wrong = -math.log2(0.9), -math.log2(0.1 / 63)
    mixed = (2 * right + 2 * wrong) / 4
    sentence = rf"it.pt needs {mixed:.1f} bits .* and {right:.1f} with source and target exchanged"
    with pytest.raises(UserError, match=sentence):
        checked([11, 21, 63], [10, 20, 63])


def test_a_model_worse_than_chance_is_refused():
    # log2(64) = 6 bits are chance.
    bits = (3 * -math.log2(0.1 / 63) - math.log2(0.9)) / 4
    sentence = rf"{bits:.1f} bits .* worse than chance, which needs 6.0: was it trained with anoth"
    with pytest.raises(UserError, match=sentence):
        checked([10, 20, 30], [50, 40, 50])


def test_untrained_models_pass():
    for arch in ("macaron_transformer", "transformer"):
        source, _, previous = batch(sizes=((20, 20),) * 8)
        bits = likelihood.bits_per_token(
            build(arch, *SMALL), sentences(source, previous), SimpleNamespace(target=dictionary())
        )
        assert 6 < bits < 6 + models.MARGIN


# --- statistics ----------------------------------------------------------------------------------


def test_running_figures_are_those_of_all_values():
    rng = np.random.default_rng(1)
    parts = [1e6 + rng.normal(size=n) for n in (1, 7, 0, 300)]
    figures = running_statistics.Running()
    for part in parts:
        figures.add(part)
    figures.add([math.nan, math.inf])
    values = np.concatenate(parts)
    found = figures.figures()
    assert found["mean"] == pytest.approx(values.mean(), rel=1e-5)
    assert found["sd"] == pytest.approx(values.std(ddof=1), rel=1e-5)
    assert found["n"] == 308


def test_means_can_be_subtracted():
    """Those of lengths after a LayerNorm differ by less than a millionth of their size."""
    means = []
    for x in ([1 + 1e-8, 1 + 3e-8], [1 + 2e-8, 1 + 6e-8]):
        figures = running_statistics.Running()
        figures.add(x)
        means.append(figures.figures()["mean"])
    assert means[1] - means[0] == pytest.approx(2e-8, rel=1e-3)


def test_running_figures_of_little():
    figures = running_statistics.Running()
    assert figures.figures() == {"mean": None, "sd": None, "n": 0}
    figures.add(2.5)
    assert figures.figures() == {"mean": 2.5, "sd": None, "n": 1}


def test_histogram():
    rng = np.random.default_rng(1)
    values = np.clip(rng.normal(0.3, 0.2, size=5000), -1, 1)
    histogram = running_statistics.Histogram(80)
    assert histogram.quantile(0.5) is None
    for part in np.split(values, 10):
        histogram.add(part)
    assert histogram.counts.sum() == 5000
    assert histogram.counts[40] == ((values >= 0) & (values < 0.025)).sum()
    for q in (0.05, 0.5, 0.95):
        assert histogram.quantile(q) == pytest.approx(np.quantile(values, q), abs=0.02)
    extremes = running_statistics.Histogram(4)
    extremes.add([-1, 1])
    assert extremes.counts.tolist() == [1, 0, 0, 1]


# --- all together --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured():
    model = pre_norm().requires_grad_(False)
    source, _, previous = batch()
    found = sentences(source, previous)
    ticks = []
    settings = measurement.Settings(threshold=0.5, beta=2.0, jacobian_sentences=2)
    sides = measurement.measure(model, found, settings, lambda: ticks.append(1))
    return SimpleNamespace(model=model, sentences=found, sides=sides, ticks=ticks)


def test_rows(measured):
    encoder, decoder = measured.sides
    assert (encoder["side"], encoder["norm"]) == ("encoder", "pre")
    assert [row["name"] for row in encoder["states"]] == [
        *("input", "1: ffn 1/2", "1: self-attention", "1: ffn 1/2"),
        *("2: ffn 1/2", "2: self-attention", "2: ffn 1/2"),
    ]
    assert [row["time"] for row in encoder["states"][:4]] == pytest.approx(
        [0, 1 / 3, 2 / 3, 1], abs=1e-5
    )
    assert [row["occurrence"] for row in encoder["states"][:4]] == [1, 1, 1, 2]
    assert [row["operator"] for row in decoder["states"][1:5]] == [
        *("ffn", "self-attention", "cross-attention", "ffn")
    ]
    assert [row["name"] for row in decoder["layers"]] == ["layer 1", "layer 2"]
    assert len(measured.ticks) == 4 + 2
    json.dumps(measured.sides, allow_nan=False)


@pytest.mark.parametrize("number", [1, 2])
def test_figures_of_whole_layers(measured, number):
    """From the states that fairseq itself returns, of each sentence alone."""
    row = measured.sides[0]["layers"][number - 1]
    steps, turns, speeds = [], [], []
    for sentence in measured.sentences:
        lengths = torch.tensor([len(sentence.source)])
        states = measured.model.encoder(sentence.source[None], lengths, return_all_hiddens=True)
        before, after = (states["encoder_states"][number - i][:, 0].numpy() for i in (1, 0))
        for x, y in zip(before.astype(float), after.astype(float), strict=True):
            added = y - x
            steps.append(np.linalg.norm(added) / np.linalg.norm(x))
            cosine = x @ y / np.linalg.norm(x) / np.linalg.norm(y)
            turns.append(math.degrees(math.acos(min(1, cosine))))
            unit = x / np.linalg.norm(x)
            speeds.append(np.linalg.norm(added - (unit @ added) * unit) / np.linalg.norm(x))
    for name, expected in (("step", steps), ("turn", turns), ("velocity", speeds)):
        assert row["figures"][name]["mean"] == pytest.approx(np.mean(expected), rel=1e-3)


def states_after(measured, place):
    """The tokens of each sentence after that sub-layer of the encoder; 0: before the first."""
    for sentence in measured.sentences:
        layers = trajectories.run(measured.model, sentence.source)
        states = [layers[0].state[:, 0]]
        states += [move.after for layer in layers for _, move in trajectories.moves(layer)]
        yield states[place].double().numpy()


@pytest.mark.parametrize("place", [0, 2, 6])
def test_state_figures(measured, place):
    row = measured.sides[0]["states"][place]
    pairs, clusters, ranks, energies, lengths = [], [], [], [], []
    sizes, almost, participation, every = [], [], [], []
    for x in states_after(measured, place):
        n = len(x)
        sizes.append(n)
        u = [v / math.sqrt(sum(v**2)) for v in x]
        every.append(u)
        lengths += [math.sqrt((v**2).mean()) for v in x]
        own = [u[i] @ u[j] for i in range(n) for j in range(i)]
        pairs += own
        almost.append(np.mean([cosine > 0.999 for cosine in own]))
        group = list(range(n))  # the least member of each token's cluster
        for _ in range(n):
            for i in range(n):
                for j in range(n):
                    if u[i] @ u[j] > 0.5:
                        group[i] = group[j] = min(group[i], group[j])
        clusters.append(len(set(group)))
        singular = np.linalg.svd(np.array(u), compute_uv=False) ** 2 / n
        participation.append(1 / sum(p**2 for p in singular))
        ranks.append(math.exp(-sum(p * math.log(p) for p in singular if p > 1e-15)))
        energies.append(sum(math.exp(2 * (a @ b - 1)) for a in u for b in u) / (2 * 2 * n**2))
    across = [a @ b for i, one in enumerate(every) for two in every[:i] for a in one for b in two]
    assert row["cosine_across"] == pytest.approx(np.mean(across), rel=1e-4)
    figures = row["figures"]
    assert figures["cosine"]["n"] == len(pairs) == 9 * 4 + 5 * 2 + 7 * 3 + 3
    for name, values in (
        *(("cosine", pairs), ("clusters", clusters), ("effective_rank", ranks)),
        *(("energy", energies), ("norm", lengths), ("almost_one", almost)),
        ("participation_ratio", participation),
        ("clusters_per_token", np.divide(clusters, sizes)),
        ("effective_rank_per_token", np.divide(ranks, sizes)),
    ):
        assert figures[name]["mean"] == pytest.approx(np.mean(values), rel=1e-4), name
        assert figures[name]["sd"] == pytest.approx(np.std(values, ddof=1), rel=1e-3, abs=1e-9)
    expected, _ = np.histogram(pairs, np.linspace(-1, 1, measurement.BINS + 1))
    assert np.abs(np.array(row["cosine_histogram"]) - expected).sum() <= 2  # at an edge


def test_figures_of_steps_count_tokens_and_sentences(measured):
    row = measured.sides[0]["states"][1]
    tokens = 9 + 5 + 7 + 3
    assert row["figures"]["step"]["n"] == row["figures"]["local_error_1/4"]["n"] == tokens
    assert row["figures"]["henrici"]["n"] == row["figures"]["singular_value"]["n"] == 2
    errors = [row["figures"][f"local_error_{h}"]["mean"] for h in ("1", "1/2", "1/4")]
    assert row["local_error_slope"] == pytest.approx(
        math.log(errors[0] / errors[2]) / math.log(4), rel=1e-4
    )
    assert "step" not in measured.sides[0]["states"][0]["figures"]


def test_post_norm_layers_have_no_local_error():
    model = build("transformer", *SMALL, *NO_DROPOUT).requires_grad_(False)
    sides = measurement.measure(
        model, [Sentence(1, torch.tensor([5, 6, 7, 2]), None)], measurement.Settings()
    )
    assert [(side["side"], side["norm"]) for side in sides] == [("encoder", "post")]
    assert "local_error_1" in sides[0]["states"][1]["figures"]
    assert "local_error_1" not in sides[0]["layers"][0]["figures"]
    assert sides[0]["layers"][0]["figures"]["singular_value"]["mean"] > 0


def test_sentence_of_one_token_has_no_pairs():
    model = pre_norm().requires_grad_(False)
    sides = measurement.measure(
        model, [Sentence(1, torch.tensor([2]), torch.tensor([2]))], measurement.Settings()
    )
    for side in sides:
        assert "cosine" not in side["states"][0]["figures"]
        assert side["states"][1]["figures"]["step"]["n"] == 1


def test_jacobians_of_models_of_other_depths_are_of_the_same_tokens():
    shallow = build("transformer", *SMALL, *NO_DROPOUT).requires_grad_(False)
    deep = build("transformer", *SMALL, *NO_DROPOUT, "--decoder-layers", "4").requires_grad_(False)
    deep.encoder.load_state_dict(shallow.encoder.state_dict())
    source, _, previous = batch()
    settings = measurement.Settings(jacobian_sentences=2)
    encoders = [
        measurement.measure(model, sentences(source, previous), settings)[0]
        for model in (shallow, deep)
    ]
    for one, other in zip(*(side["layers"] for side in encoders), strict=True):
        for name in ("complex", "nonzero", "henrici", "asymmetry"):
            assert one["figures"][name] == other["figures"][name]
            assert one["figures"][name]["n"] == 2


def test_jacobians_are_taken_all_over_the_sentences():
    places = sampling.drawn_places(400, seed=1)
    for side in ("encoder", "decoder"):
        counts = np.bincount([int(x[side] * 4) for x in places], minlength=4)
        assert len(counts) == 4
        assert counts.min() > 60  # 100 on average, with a deviation of 9


def test_same_seed_gives_the_same_figures(measured):
    settings = measurement.Settings(threshold=0.5, beta=2.0, jacobian_sentences=2)
    assert measurement.measure(measured.model, measured.sentences, settings) == measured.sides


@pytest.mark.parametrize(
    ("sentences", "wanted", "expected"),
    [(10, 3, [0, 3, 6]), (4, 4, [0, 1, 2, 3]), (2, 8, [0, 1]), (200, 1, [0])],
)
def test_chosen_sentences_are_spread(sentences, wanted, expected):
    assert sampling.evenly(sentences, wanted) == expected


@pytest.mark.parametrize(
    ("operator", "step", "expected"),
    [
        ("ffn", 0.5, "ffn 1/2"),
        ("self-attention", 1.0, "self-attention"),
        ("ffn", 1.3512, "ffn 1.351"),
        ("ffn", -1.7024, "ffn -1.702"),
        ("self-attention + ffn", 1.0, "self-attention + ffn"),
    ],
)
def test_titles(operator, step, expected):
    assert trajectories.Sublayer(operator, step, lambda x, h: x, None).title == expected
