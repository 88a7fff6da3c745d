"""The residual stream: spectra, products and interventions, each against a formula."""

import math

import numpy as np
import pytest
import torch
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
    texts,
)

from macaron_fairseq.analysis import likelihood, models, trajectories
from macaron_fairseq.analysis.residual import depth, effects, interventions, rows, spectra
from macaron_fairseq.analysis.residual.depth import AtTokens
from macaron_fairseq.analysis.residual.interventions import Removal
from macaron_fairseq.analysis.sentences import Data, Sentence
from macaron_fairseq.common.errors import UserError


def random(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape)


def orthogonal(d, seed=2):
    return np.linalg.qr(random(d, d, seed=seed))[0]


def turn(degrees):
    t = math.radians(degrees)
    return np.array([[math.cos(t), -math.sin(t)], [math.sin(t), math.cos(t)]])


# --- one matrix ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "matrix",
    [np.eye(5), random(5, 5) + random(5, 5).T, orthogonal(5), random(5, 5) - random(5, 5).T],
    ids=["identity", "symmetric", "orthogonal", "antisymmetric"],
)
def test_a_normal_matrix_has_no_departure(matrix):
    figures = spectra.of_matrix(matrix).figures
    assert figures["henrici"] == pytest.approx(0, abs=1e-7)
    assert figures["condition"] == pytest.approx(0, abs=1e-6)
    assert figures["norm"] == pytest.approx(figures["spectral_radius"])


@pytest.mark.parametrize("a", [0.1, 1, 7])
def test_a_shear(a):
    matrix = np.array([[1, a], [0, 1]])
    figures = spectra.of_matrix(matrix, np.array([0.0, 3.0])).figures
    # |A|^2 is 2 + a^2, and both eigenvalues are 1. A - I is nilpotent.
    assert figures["henrici"] == pytest.approx(a / math.sqrt(2 + a**2))
    assert figures["asymmetry"] == pytest.approx(math.sqrt(2) * a / math.sqrt(8 + 2 * a**2))
    assert figures["added"] == pytest.approx(a / math.sqrt(2))
    assert figures["added_henrici"] == figures["added_asymmetry"] == pytest.approx(1)
    assert figures["numerical_abscissa"] == pytest.approx(1 + a / 2)
    assert figures["spectral_radius"] == pytest.approx(1)
    assert figures["complex"] == figures["rotation"] == 0
    assert figures["growth"] == pytest.approx(math.sqrt(1 + a**2))


@pytest.mark.parametrize("seed", range(4))
def test_eigenvalues_that_are_rounding_turn_nothing(seed):
    """The Jacobian of a LayerNorm is symmetric, of rank d - 2: the sign of its zeros is chance."""
    x = torch.randn(128, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    jacobian = torch.func.jacrev(lambda x: torch.nn.functional.layer_norm(x, (128,)))(x)
    found = spectra.of_matrix(jacobian.numpy()).figures
    assert found["rotation"] == pytest.approx(0, abs=1e-9) and found["complex"] == 0


@pytest.mark.parametrize("degrees", [10, 60, 120])
def test_a_rotation(degrees):
    figures = spectra.of_matrix(2 * turn(degrees)).figures
    assert figures["complex"] == 1
    assert figures["rotation"] == pytest.approx(degrees)
    assert figures["asymmetry"] == pytest.approx(abs(math.tan(math.radians(degrees))))
    assert figures["numerical_abscissa"] == pytest.approx(2 * math.cos(math.radians(degrees)))
    assert figures["mean_growth"] == pytest.approx(2)
    assert figures["norm"] == pytest.approx(2)


def test_figures_do_not_depend_on_the_basis():
    a, u, q = random(8, 8), random(8, seed=3), orthogonal(8)
    found, rotated = spectra.of_matrix(a, u).figures, spectra.of_matrix(q @ a @ q.T, q @ u).figures
    assert rotated == pytest.approx(found)
    assert "growth" in found


def test_rounding_to_fp32_is_refused():
    """A matrix of rank 1 has one eigenvalue; its rounded one may have more."""
    with pytest.raises(ValueError, match=r"is of float32: compute it in float64"):
        spectra.of_matrix(np.ones((3, 3), np.float32))
    found = spectra.of_matrix(np.eye(3))
    assert found.eigenvalues.dtype == np.complex128


def test_the_identity_adds_nothing():
    figures = spectra.of_matrix(np.eye(3)).figures
    assert figures["added"] == 0
    assert math.isnan(figures["added_henrici"]) and math.isnan(figures["added_asymmetry"])


def test_departure_does_not_see_the_identity():
    a = random(6, 6)
    figures = spectra.of_matrix(a + np.eye(6)).figures
    # The absolute departure is unchanged by a shift.
    departure = figures["henrici"] * np.linalg.norm(a + np.eye(6))
    assert figures["added_henrici"] * np.linalg.norm(a) == pytest.approx(departure)
    assert figures["added_asymmetry"] == pytest.approx(spectra.of_matrix(a).figures["asymmetry"])


@pytest.mark.parametrize(
    ("values", "effective", "stable"),
    [
        ([1, 1, 1, 1], 4, 4),
        ([5, 0, 0], 1, 1),
        ([2, 2, 0], 2, 2),
        # p = 3/4, 1/4.
        ([3, 1], 4 / 3**0.75, 10 / 9),
    ],
)
def test_ranks(values, effective, stable):
    d = len(values)
    matrix = orthogonal(d, 4) @ np.diag(np.array(values, dtype=float)) @ orthogonal(d, 5)
    figures = spectra.of_matrix(matrix).figures
    assert figures["effective_rank"] == pytest.approx(effective)
    assert figures["stable_rank"] == pytest.approx(stable)


def test_nothing_has_no_rank():
    assert math.isnan(spectra.effective_rank(np.zeros(3)))
    assert math.isnan(spectra.stable_rank(np.zeros(3)))


# --- along depth ---------------------------------------------------------------------------------


def test_exponents_of_a_linear_flow():
    # x' = A x with eigenvalues 1, -1/2 and -1/2 +- 3i, in layers of time 0.3: not normal.
    flow = np.array([[1, 4, 0, 2], [0, -0.5, 1, 0], [0, 0, -0.5, 3], [0, 0, -3, -0.5]])
    values, vectors = np.linalg.eig(flow)
    layer = (vectors @ np.diag(np.exp(0.3 * values)) @ np.linalg.inv(vectors)).real
    exponents = spectra.lyapunov(np.stack([layer] * 1500)).mean(axis=0)
    assert exponents[0] == pytest.approx(0.3 * 1, abs=5e-3)  # a factor of e^450
    assert exponents[1:] == pytest.approx([-0.15] * 3, abs=5e-3)
    found = spectra.lyapunov_figures(np.stack([layer] * 1500))
    assert found["growing"] == 1 / 4
    assert found["lyapunov_mean"] == pytest.approx(0.3 * np.trace(flow) / 4)  # Liouville


def test_exponents_are_the_singular_values():
    blocks = np.eye(6) + 0.5 * random(5, 6, 6)
    grown = spectra.lyapunov(blocks)
    product = blocks[4] @ blocks[3] @ blocks[2] @ blocks[1] @ blocks[0]
    expected = np.log(np.linalg.svd(product)[1])
    assert grown.shape == (5, 6)
    np.testing.assert_allclose(grown.sum(axis=0), expected, rtol=1e-9)


def test_a_lost_direction():
    found = spectra.lyapunov_figures(np.stack([np.diag([2.0, 0.0])] * 3))
    assert found["lyapunov_largest"] == pytest.approx(math.log(2))
    assert found["lyapunov_least"] == -math.inf


TANH = ["--activation-fn", "tanh"]  # no kinks within a step of finite differences
KINDS = {
    "macaron": lambda: build("macaron_transformer", *SMALL, *NO_DROPOUT, *TANH),
    "post-norm baseline": lambda: build("transformer", *SMALL, *NO_DROPOUT, *TANH),
    "causal": lambda: build(
        *("macaron_transformer_lm_tiny", *SMALL_DECODER, *NO_DROPOUT, *TANH),
        for_task=language_task(),
    ),
    "masked": lambda: build(
        *("macaron_roberta_tiny", *SMALL_ENCODER, *NO_DROPOUT, *TANH), for_task=masked_task()
    ),
}


def read(kind):
    """Two sentences for a model of that kind."""
    if kind in ("causal", "masked"):
        rows_of_tokens = texts((6, 4))
        return [Sentence(i, x[x != 1], None) for i, x in enumerate(rows_of_tokens, 1)]
    source, _, target = batch(sizes=((4, 5), (6, 3)))
    pairs = zip(source, target, strict=True)
    return [Sentence(i, x[x != 1], y[y != 1]) for i, (x, y) in enumerate(pairs, 1)]


@pytest.fixture(scope="module", params=KINDS)
def found(request):
    """A model in fp64, its sentences, and its layers at one token of each."""
    model = models.in_double(KINDS[request.param]())
    sentences = read(request.param)
    return model, sentences, depth.along_depth(model, sentences, 2, seed=3)


def by_differences(advance, x, token, e=1e-6):
    """The derivative of a token's state after by its state before."""
    columns = []
    for i in range(x.shape[-1]):
        d = torch.zeros_like(x)
        d[token, 0, i] = e
        columns.append((advance(x + d) - advance(x - d))[token, 0] / (2 * e))
    return torch.stack(columns, dim=-1).numpy()


def run(model, sentence):
    return trajectories.run(model, sentence.source, sentence.target)


def token_of(layer, one, i):
    """The token that row `i` of a layer is of."""
    (token,) = (layer.state[:, 0].numpy() == one.before[i]).all(axis=1).nonzero()[0]
    return token


def test_jacobians_are_finite_differences(found):
    model, sentences, sides = found
    for i, sentence in enumerate(sentences):
        for layer in run(model, sentence):
            of_layer = sides[layer.side][layer.number - 1]
            token, x = token_of(layer, of_layer.whole, i), layer.state
            for one, advance in [
                (of_layer.whole, layer.advance),
                *zip(of_layer.sublayers, (s.advance for s in layer.sublayers), strict=True),
            ]:
                np.testing.assert_allclose(one.before[i], x[token, 0])
                np.testing.assert_allclose(one.after[i], advance(x)[token, 0])
                expected = by_differences(advance, x, token)
                np.testing.assert_allclose(one.jacobians[i], expected, rtol=1e-6, atol=1e-7)
                if one is not of_layer.whole:
                    x = advance(x)


def test_products_are_composed_jacobians(found):
    """With the other tokens held where they are; in a causal decoder, without that, too."""
    model, sentences, sides = found
    for i, sentence in enumerate(sentences):
        layers = run(model, sentence)
        for side in sides:
            of_side = [layer for layer in layers if layer.side == side]
            wholes = [x.whole for x in sides[side]]
            product = depth.cumulative(np.stack([x.jacobians for x in wholes]))[-1, i]
            token = token_of(of_side[0], wholes[0], i)

            def held(x, of_side=of_side, token=token):
                for layer in of_side:
                    state = layer.state.clone()
                    state[token] = x[token]
                    x = layer.advance(state)
                return x

            def free(x, of_side=of_side):
                for layer in of_side:
                    x = layer.advance(x)
                return x

            for compose in [held] + [free] * (side == "decoder"):
                expected = by_differences(compose, of_side[0].state, token)
                np.testing.assert_allclose(product, expected, rtol=1e-5, atol=1e-7)


def test_layers_are_the_products_of_their_sublayers(found):
    _, _, sides = found
    for layers in sides.values():
        for layer in layers:
            blocks = np.stack([x.jacobians for x in layer.sublayers])
            np.testing.assert_allclose(depth.cumulative(blocks)[-1], layer.whole.jacobians)


def test_states_of_all_tokens(found):
    model, sentences, _ = found
    states = depth.states(model, sentences)
    layers = [run(model, sentence) for sentence in sentences]
    for side, of_side in states.items():
        for number, found_states in enumerate(of_side, 1):
            expected = [
                layer.state[:, 0] if layer.number == number else layer.advance(layer.state)[:, 0]
                for of_sentence in layers
                for layer in of_sentence
                if layer.side == side and layer.number == min(number, len(of_side) - 1)
            ]
            np.testing.assert_allclose(found_states, torch.cat(expected))


def test_a_pre_norm_layer_adds_as_much_by_the_size_of_a_state_that_grows():
    """x + W LN(x): its derivative less the identity shrinks as x grows, since LN divides by it."""
    weight = torch.tensor(random(6, 6))
    x = torch.tensor(random(1, 6))
    figures = []
    for state in (x, 4 * x):
        jacobian = torch.autograd.functional.jacobian(
            lambda y: y + torch.nn.functional.layer_norm(y, (6,), eps=0) @ weight.T, state
        )
        matrix = jacobian[0, :, 0].numpy()[None]
        one = AtTokens("encoder", 1, "ffn", "ffn", state.numpy(), 2 * state.numpy(), matrix)
        figures.append(rows.filled(rows.MatrixRow("", 1, ""), one).figures)
    assert figures[1]["added"][0] == pytest.approx(figures[0]["added"][0] / 4)
    assert figures[1]["added_scaled"] == pytest.approx(figures[0]["added_scaled"])
    # W without the directions that LN takes away, over the square root of the width.
    unit = (x - x.mean()) / (x - x.mean()).norm()
    kept = torch.eye(6) - torch.ones(6, 6) / 6 - unit.T @ unit
    expected = np.linalg.norm(weight.numpy() @ kept.numpy()) / 6**0.5
    assert figures[0]["added_scaled"][0] == pytest.approx(expected)


def test_rows(found):
    _, _, sides = found
    for side in rows.of_sides(sides):
        layers = sides[side.name]
        assert [row.layer for row in side.products] == [1, 2]
        product = layers[1].whole.jacobians @ layers[0].whole.jacobians
        move = layers[1].whole.after - layers[0].whole.before
        for i in range(2):
            u = move[i]
            growth = np.linalg.norm(product[i] @ u) / np.linalg.norm(u)
            assert side.products[1].figures["growth"][i] == pytest.approx(growth)
            largest = math.log(np.linalg.norm(product[i], 2)) / 2
            assert side.products[1].figures["lyapunov_largest"][i] == pytest.approx(largest)
        assert len(side.layers[0].eigenvalues) == 2 * 16


# --- removing parts ------------------------------------------------------------------------------


def test_without_its_non_normal_part_a_matrix_is_normal():
    m = np.eye(7) + random(7, 7)
    left = m - interventions.non_normal(m)
    np.testing.assert_allclose(left @ left.T, left.T @ left, atol=1e-12)
    before, after = (np.sort_complex(np.linalg.eigvals(x)) for x in (m, left))
    assert np.abs(before.imag).max() > 0
    np.testing.assert_allclose(after, before, atol=1e-9)


@pytest.mark.parametrize(
    "matrix", [turn(40), random(4, 4) + random(4, 4).T, orthogonal(4)], ids=["2", "sym", "4"]
)
def test_a_normal_matrix_has_no_non_normal_part(matrix):
    np.testing.assert_allclose(interventions.non_normal(matrix), 0, atol=1e-12)


def test_without_its_antisymmetric_part_a_matrix_is_symmetric():
    m = random(5, 5)
    left = m - interventions.antisymmetric(m)
    np.testing.assert_allclose(left, left.T, rtol=1e-12)


def test_a_part_that_is_turned_has_the_same_singular_values():
    part = interventions.non_normal(random(6, 6))
    turned = interventions.rotated(part, seed=1)
    sizes = (np.linalg.svd(x)[1] for x in (part, turned))
    np.testing.assert_allclose(*sizes)
    assert np.abs(part - turned).max() > 0.1


def test_controls_move_the_states_as_far():
    """Of states along two axes of different length, whose mean is not 0."""
    states = np.array([[5.0, 1], [1, 1], [3, 2], [3, 0]])  # around (3, 1) by 2 and by 1
    first, second = np.array([[0.0, 0], [3, 0]]), np.array([[0.0, 1], [0, 0]])
    assert interventions.reach(first, states) == pytest.approx(3 * 2 * 2**0.5)
    assert interventions.reach(second, states) == pytest.approx(2**0.5)
    shorter, same = interventions.equally_far(first, second, states)
    np.testing.assert_allclose(shorter, first / 6)
    np.testing.assert_allclose(same, second)
    turned = interventions.control(first, states, seed=1)
    assert interventions.reach(turned, states) == pytest.approx(3 * 2 * 2**0.5)
    kind = np.linalg.svd(turned)[1]
    np.testing.assert_allclose(kind[1:] / kind[0], [0], atol=1e-12)  # one direction, as in `first`
    nothing = np.zeros((2, 2))
    for found in interventions.equally_far(nothing, first, states):
        np.testing.assert_array_equal(found, nothing)


def test_the_share_of_chance_is_that_of_means_over_few_tokens():
    """Many means of two Jacobians, I + D + noise: their square is |D|^2 and the noise's half."""
    drawn = np.random.default_rng(1)
    signal = np.array([[1.0, 2], [0, 1]])
    shares, squares = [], []
    for _ in range(4000):
        jacobians = np.eye(2) + signal + drawn.normal(size=(2, 2, 2))
        square = np.linalg.norm(jacobians.mean(axis=0) - np.eye(2)) ** 2
        squares.append(square)
        shares.append(effects.noise_share([jacobians]) * square)
    assert np.mean(shares) == pytest.approx(4 / 2, rel=0.05)  # variance of four entries, over two
    assert np.mean(squares) == pytest.approx(6 + 4 / 2, rel=0.05)
    assert effects.noise_share([np.ones((1, 2, 2))]) is None


def outputs(model, sentence):
    with torch.no_grad():
        if sentence.target is None:
            return model(sentence.source[None])[0]
        return model(
            sentence.source[None], torch.tensor([len(sentence.source)]), sentence.target[None]
        )[0]


def test_removing_nothing_changes_nothing(found):
    model, sentences, sides = found
    before = outputs(model, sentences[0])
    nothing = Removal(np.zeros((16, 16)), random(16))
    for removals in ({}, {(side, 1): nothing for side in sides}):
        with interventions.removing(model, removals):
            assert torch.equal(outputs(model, sentences[0]), before)
            again = depth.along_depth(model, sentences, 2, seed=3, removed=removals)
        for side, layers in sides.items():
            for one, other in zip(layers, again[side], strict=True):
                np.testing.assert_array_equal(one.whole.jacobians, other.whole.jacobians)


def test_removing_a_part(found):
    """Only of its layer, whose output is f(x) - N (x - x0); what follows starts from there."""
    model, sentences, sides = found
    before = outputs(model, sentences[0])
    side = [*sides][-1]
    removal = Removal(0.1 * random(16, 16), random(16, seed=4))
    with interventions.removing(model, {(side, 1): removal}):
        removals = {(side, 1): removal}
        changed = depth.along_depth(model, sentences, 2, seed=3, removed=removals)
        assert not torch.allclose(outputs(model, sentences[0]), before, atol=1e-3)
    assert torch.equal(outputs(model, sentences[0]), before)
    first, second = (layer.whole for layer in changed[side])
    intact = sides[side][0].whole
    np.testing.assert_array_equal(first.before, intact.before)
    away = (intact.before - removal.centre) @ removal.part.T
    np.testing.assert_allclose(first.after, intact.after - away)
    # By the hook, and by the formula; fairseq's cross-attention takes its softmax in fp32.
    np.testing.assert_allclose(second.before, first.after, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(first.jacobians, intact.jacobians - removal.part)


LAYERS = {"encoder": 2, "decoder": 3}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("encoder", [("encoder", 1), ("encoder", 2)]),
        ("decoder:3", [("decoder", 3)]),
        ("decoder:1,encoder:2,decoder:1", [("decoder", 1), ("encoder", 2)]),
    ],
)
def test_places(text, expected):
    assert interventions.places(text, LAYERS) == tuple(expected)


@pytest.mark.parametrize("text", ["encoder:3", "decoder:0", "decoder:x", "encoder:", "encoder:²"])
def test_a_layer_that_does_not_exist(text):
    with pytest.raises(UserError) as error:
        interventions.places(text, LAYERS)
    assert str(error.value) == (
        f"there is no layer '{text}': the models have encoder:1 to encoder:2 or decoder:1 to "
        "decoder:3"
    )


def test_a_side_that_does_not_exist():
    with pytest.raises(UserError, match="'middle' names no layer: the models have encoder:1 to"):
        interventions.places("middle", LAYERS)


# --- likelihood ----------------------------------------------------------------------------------


def monolingual(words, is_causal, tmp_path):
    return Data(tmp_path, None, words, None, (str.split, str.split), is_causal)


def test_bits_of_a_causal_model(tmp_path):
    model = KINDS["causal"]().double()
    sentence = Sentence(1, torch.tensor([2, 5, 6, 7]), None)
    data = monolingual(dictionary(), True, tmp_path)
    nats = 0.0
    with torch.no_grad():
        for i, following in enumerate([5, 6, 7, 2], 1):  # each from those before it alone
            nats -= model(sentence.source[None, :i])[0][0, -1].log_softmax(-1)[following].item()
    bits = likelihood.bits_per_token(model, [sentence], data)
    assert bits == pytest.approx(nats / 4 / math.log(2))


def test_bits_of_a_model_with_adaptive_softmax(tmp_path):
    """By the losses that it is trained with: of the head, and of the tail that a token is in."""
    cutoff = ["--adaptive-softmax-cutoff", "4,8", "--criterion", "adaptive_loss"]
    model = build(
        *("transformer_lm_tiny_pre_norm", *SMALL_DECODER, *NO_DROPOUT, *cutoff),
        for_task=language_task(),
    )
    sentence = Sentence(1, torch.tensor([2, 5, 6, 11]), None)
    with torch.no_grad():
        features = model(sentence.source[None])[0]
        outputs, targets = model.decoder.adaptive_softmax(features, sentence.source.roll(-1))
        nats = sum(
            torch.nn.functional.cross_entropy(x.double(), y, reduction="sum").item()
            for x, y in zip(outputs, targets, strict=True)
            if x is not None
        )
    data = monolingual(dictionary(), True, tmp_path)
    bits = likelihood.bits_per_token(model, [sentence], data)
    assert bits == pytest.approx(nats / 4 / math.log(2), rel=1e-5)


def test_in_double_gelu_has_all_digits():
    model = build("macaron_transformer", *SMALL, "--activation-fn", "gelu")
    copy, x = models.in_double(model), torch.linspace(-3, 3, 50, dtype=torch.double)
    expected = x * (1 + torch.erf(x / 2**0.5)) / 2
    for one, off in ((copy, False), (model, True)):  # fairseq's own rounds to fp32
        found = one.decoder.layers[0].activation_fn(x)
        assert ((found - expected).abs().max().item() > 1e-14) == off


def test_bits_of_a_masked_model(tmp_path):
    task = masked_task()
    model = KINDS["masked"]().double()
    data = monolingual(task.source_dictionary, False, tmp_path)
    source = [0, 5, 6, 7, 2]
    nats = 0.0
    with torch.no_grad():
        for i in (1, 2, 3):
            hidden = torch.tensor([*source[:i], task.mask_idx, *source[i + 1 :]])
            nats -= model(hidden[None])[0][0, i].log_softmax(-1)[source[i]].item()
    bits = likelihood.bits_per_token(model, [Sentence(1, torch.tensor(source), None)], data)
    assert bits == pytest.approx(nats / 3 / math.log(2))


def test_a_dictionary_without_a_mask(tmp_path):
    model, data = KINDS["masked"](), monolingual(dictionary(), False, tmp_path)
    with pytest.raises(UserError, match="has no <mask>"):
        likelihood.bits_per_token(model, [Sentence(1, torch.tensor([0, 5, 2]), None)], data)
