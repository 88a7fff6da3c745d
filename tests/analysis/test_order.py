"""The order of schemes and sub-steps: the toy systems, the slopes, trained layers, the command."""

import json
import math

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from helpers.commands import run_forked
from helpers.formulas import DECODERS, ENCODERS, layer_of, one_step
from helpers.paths import FIXTURES
from helpers.small import NO_DROPOUT, SMALL, arguments, batch, build, task
from helpers.stored import CHECKPOINT, TOKENS, altered, write_test_set
from matplotlib.backends.backend_agg import FigureCanvasAgg
from scipy.integrate import solve_ivp

from macaron_fairseq import UserError, cli
from macaron_fairseq.analysis import (
    figures,
    integrators,
    local_error,
    models,
    trajectories,
)
from macaron_fairseq.analysis.order import report as order_report
from macaron_fairseq.analysis.order import toy_systems, trained_models
from macaron_fairseq.analysis.order.results import Measured, Result
from macaron_fairseq.analysis.sentences import Sentence
from macaron_fairseq.common import progress
from macaron_fairseq.schemes import splitting, substeps
from macaron_fairseq.schemes.splitting import CROSS_ATTENTION, FFN, SELF_ATTENTION, step

pytestmark = pytest.mark.usefixtures("undrawn")

STEPS = [0.01, 0.005, 0.0025]


def fitted(steps, errors):
    return local_error.slope(steps, errors, local_error.RESOLVED_IN_FP64)


def slope(side, scheme, substep, steps=STEPS):
    return fitted(steps, toy_systems.errors(side, scheme, substep, steps, seed=1))


# --- the toy systems -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def system():
    return toy_systems.system(seed=1)


def test_the_fields_are_attention_and_a_perceptron(system):
    """Attention to oneself is of all tokens, to a source and of an FFN of one."""
    fields, x = system
    assert x.dtype == torch.float64
    changed = x.clone()
    changed[:, 0] += 1
    for kind, is_of_others in ((SELF_ATTENTION, True), (CROSS_ATTENTION, False), (FFN, False)):
        difference = (fields[kind](changed) - fields[kind](x)).abs()
        assert difference[:, 0].max() > 1e-3
        assert (difference[:, 1:].max() > 1e-3) == is_of_others


def test_fields_are_the_formulas_token_by_token(system):
    """Token by token, of the first system, with the matrices drawn again in their order."""
    fields, x = system
    generator = torch.Generator().manual_seed(1)
    shapes = {"x": (6, 8), "memory": (5, 8)}
    shapes |= dict.fromkeys(("self scores", "self values", "cross scores", "cross values"), (8, 8))
    drawn = {
        name: torch.randn(16, *shape, generator=generator, dtype=torch.float64)[0]
        for name, shape in shapes.items()
    }
    first, second = (
        torch.randn(16, *shape, generator=generator, dtype=torch.float64)[0]
        for shape in ((8, 16), (16, 8))
    )
    assert torch.equal(drawn["x"], x[0])
    for token, found in zip(drawn["x"], fields[FFN](x)[0], strict=True):
        inner = [math.tanh(token @ column / math.sqrt(8)) for column in first.T]
        outer = sum(a * row for a, row in zip(inner, second * 2 / math.sqrt(16), strict=True))
        torch.testing.assert_close(found, outer, rtol=1e-12, atol=1e-12)
    for kind, name, among in (
        (SELF_ATTENTION, "self", drawn["x"]),
        (CROSS_ATTENTION, "cross", drawn["memory"]),
    ):
        scores = drawn[f"{name} scores"] / math.sqrt(8)
        values = drawn[f"{name} values"] * 2 / math.sqrt(8)
        for token, found in zip(drawn["x"], fields[kind](x)[0], strict=True):
            weights = [math.exp((token @ scores @ other) / math.sqrt(8)) for other in among]
            mean = sum(w * (other @ values) for w, other in zip(weights, among, strict=True))
            torch.testing.assert_close(found, mean / sum(weights), rtol=1e-12, atol=1e-12)


def test_richardson_is_two_halves_and_a_whole(system):
    fields, x = system
    fields = {kind: f for kind, f in fields.items() if kind != CROSS_ATTENTION}
    strang = toy_systems.methods("encoder")["strang-marchuk"]  # in an encoder the symmetric one
    euler = toy_systems.SUBSTEPS["euler"]
    halves = strang(fields, euler, strang(fields, euler, x, 0.1), 0.1)
    expected = 4 / 3 * halves - strang(fields, euler, x, 0.2) / 3
    found = toy_systems.methods("encoder")["richardson-strang"](fields, euler, x, 0.2)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_the_flow_is_scipys(system):
    fields, x = system
    whole = toy_systems.whole(fields)
    for h in STEPS:

        def derivative(t, y):
            return whole(torch.from_numpy(y).view_as(x)).flatten().numpy()

        exact = solve_ivp(derivative, (0, h), x.flatten(), "DOP853", rtol=1e-13, atol=1e-14)
        flow = x + h * toy_systems.exact(whole, x, h)
        assert (flow.flatten() - torch.from_numpy(exact.y[:, -1])).abs().max() <= 1e-13


def test_the_flow_of_a_long_step_is_scipys(system):
    fields, x = system
    whole = toy_systems.whole(fields)

    def derivative(t, y):
        return whole(torch.from_numpy(y).view_as(x)).flatten().numpy()

    exact = solve_ivp(derivative, (0, 1), x.flatten(), "DOP853", rtol=1e-12, atol=1e-12)
    flow = x + toy_systems.exact(whole, x, 1)
    assert (flow.flatten() - torch.from_numpy(exact.y[:, -1])).norm() <= 1e-8 * x.norm()


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("substep", ["euler", "midpoint", "rk4"])
def test_errors_are_those_of_the_formulas(side, substep, system):
    """Schemes and sub-steps as the tests write them down; the flow is SciPy's, see above."""
    fields, x = system
    kinds = {"self": SELF_ATTENTION, "cross": CROSS_ATTENTION, "ffn": FFN, "first": FFN}
    h = 0.3
    for name, steps in (ENCODERS if side == "encoder" else DECODERS).items():
        y = x
        for size, *names in steps:
            applied = [fields[kinds[name]] for name in names]
            y = one_step(substep, lambda x, fs=applied: sum(f(x) for f in fs), y, h * size, None)
        method = toy_systems.methods(side)[name]
        assert (method(fields, toy_systems.SUBSTEPS[substep], x, h) - y).abs().max() <= 1e-12


# --- slopes --------------------------------------------------------------------------------------

# The table of the documentation's first version, taken on another system.
NOTED = {
    ("lie-trotter", "exact"): 2.00,
    ("strang-marchuk", "exact"): 2.96,
    ("lie-trotter", "euler"): 1.99,
    ("strang-marchuk", "euler"): 2.00,
    ("strang-marchuk", "midpoint"): 2.99,
    ("parallel", "euler"): 1.99,
    ("parallel", "midpoint"): 3.01,
    ("yoshida4", "euler"): 2.01,
    ("yoshida4", "midpoint"): 4.06,
    ("yoshida4", "rk4"): 5.08,
    ("richardson-strang", "midpoint"): 4.01,
}


@pytest.mark.parametrize(("scheme", "substep"), NOTED)
def test_slopes_in_the_encoder(scheme, substep):
    assert slope("encoder", scheme, substep) == pytest.approx(NOTED[scheme, substep], abs=0.1)


@pytest.mark.parametrize(
    ("scheme", "substep", "order"),
    [
        # The paper's decoder does not read the same backwards: of first order, whatever the flows.
        ("strang-marchuk", "exact", 1),
        ("strang-marchuk", "midpoint", 1),
        ("strang-symmetric", "exact", 2),
        ("strang-symmetric", "midpoint", 2),
        ("strang-symmetric", "gated-rk2", 2),
        ("strang-marchuk-attention", "midpoint", 2),
        ("lie-trotter-reversed", "rk4", 1),
        ("parallel", "rk4", 4),
        ("yoshida4", "rk4", 4),
    ],
)
def test_slopes_in_the_decoder(scheme, substep, order):
    assert slope("decoder", scheme, substep) == pytest.approx(order + 1, abs=0.1)


def test_jumps_must_not_share_their_steps(monkeypatch):
    """With one FFN step where two jumps meet, errors of midpoint no longer cancel."""
    w1, w0 = splitting.W1, splitting.W0
    sizes = [w1 / 2, w1, (w1 + w0) / 2, w0, (w1 + w0) / 2, w1, w1 / 2]
    merged = tuple(
        step(h, splitting.SELF if i % 2 else splitting.WHOLE) for i, h in enumerate(sizes)
    )
    monkeypatch.setitem(splitting.SCHEMES, "merged", splitting.Scheme(merged, merged))
    assert slope("encoder", "merged", "exact") == pytest.approx(5, abs=0.1)
    short = [h / 10 for h in STEPS]
    assert slope("encoder", "merged", "midpoint", short) == pytest.approx(3, abs=0.1)
    assert slope("encoder", "yoshida4", "midpoint", short) == pytest.approx(4, abs=0.1)


def test_a_fit_is_to_the_shortest_steps_above_rounding():
    steps = [1, 1 / 2, 1 / 4, 1 / 8]
    assert fitted(steps, [9, 1 / 8, 1 / 64, 1 / 512]) == pytest.approx(3)
    assert fitted(steps, [4e-14, 2e-14, 1.1e-14, 1e-15]) == pytest.approx(0.93, abs=0.01)
    assert fitted(steps, [1e-12, 1e-14, 0, 0]) is None


# --- trained layers ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sentences():
    source, _, previous = batch(sizes=((7, 5), (4, 6)))
    return [
        Sentence(i, s[s != 1], t[t != 1])
        for i, (s, t) in enumerate(zip(source, previous, strict=True), 1)
    ]


def smooth(*flags, arch="macaron_transformer"):
    """A model whose layers are as smooth as the toy system."""
    return build(arch, *SMALL, *NO_DROPOUT, "--activation-fn", "tanh", *flags).double()


def with_equal_halves(model):
    """The model with the weights of the last FFN of each layer in the first one, too."""
    for layer in [*model.encoder.layers, *model.decoder.layers]:
        first = layer.earlier["0"]
        first.network.fc1, first.network.fc2 = layer.fc1, layer.fc2
        first.layer_norm = layer.final_layer_norm
    return model


ONE_FFN = ["lie-trotter", "lie-trotter-reversed", "strang-marchuk-attention", "parallel"]
ONE_FFN += ["yoshida4"]
TWO_FFNS = ["strang-marchuk", "strang-symmetric"]
METHODS = ["euler", "midpoint", "rk4"]
FIRST_ORDER, SECOND_ORDER = (2, 2, 2), (2, 3, 3)
SLOPES = dict(
    zip(ONE_FFN, [FIRST_ORDER, FIRST_ORDER, SECOND_ORDER, (2, 3, 5), (2, 4, 5)], strict=True)
)


def slopes(model, sentences, *names):
    """Those of each layer and of all together, by side and scheme, a list for each sub-step."""
    pairs = trained_models.choose(model, *names or (None, None))
    found = {}
    for x in trained_models.measure(model, sentences, pairs, [2.0**-i for i in range(4, 8)]):
        found.setdefault((x.side, x.scheme, x.substep), []).append(x.slope)
    assert all(len(x) == 3 for x in found.values())  # two layers, and both together
    return found


def check_slopes(found, side, scheme, expected):
    for substep, slope in zip(METHODS, expected, strict=True):
        assert found.pop((side, scheme, substep)) == pytest.approx([slope] * 3, abs=0.25)


@pytest.mark.parametrize(
    ("arch", "flags"),
    [
        ("macaron_transformer", ["--macaron-scheme", "yoshida4"]),
        ("transformer_pre_norm", []),
    ],
)
def test_slopes_of_layers_with_one_ffn(arch, flags, sentences):
    model = smooth(*flags, arch=arch)
    found = slopes(model, sentences[:1])
    for side in ("encoder", "decoder"):
        for scheme, expected in SLOPES.items():
            check_slopes(found, side, scheme, expected)
    assert not found  # all that fit, and no more


def test_slopes_of_layers_with_two_ffns(sentences):
    """They read the same backwards only where both have the same weights."""
    model = smooth("--macaron-scheme", "strang-marchuk")
    found = slopes(model, sentences[:1])
    for side in ("encoder", "decoder"):
        for scheme in TWO_FFNS:
            check_slopes(found, side, scheme, FIRST_ORDER)
    assert not found
    found = slopes(with_equal_halves(model), sentences[:1])
    check_slopes(found, "encoder", "strang-marchuk", SECOND_ORDER)
    check_slopes(found, "decoder", "strang-marchuk", FIRST_ORDER)
    for side in ("encoder", "decoder"):
        check_slopes(found, side, "strang-symmetric", SECOND_ORDER)


def test_a_side_is_measured_with_what_fits_it(sentences):
    schemes = ["--macaron-encoder-scheme", "strang-symmetric", "--macaron-scheme", "lie-trotter"]
    found = slopes(smooth(*schemes), sentences, None, ["euler"])
    assert {key[:2] for key in found} == {
        *(("encoder", scheme) for scheme in TWO_FFNS),
        *(("decoder", scheme) for scheme in ONE_FFN),
    }


@pytest.mark.parametrize("substep", METHODS)
@pytest.mark.parametrize(
    ("arch", "flags", "names"),
    [
        ("macaron_transformer", ["--macaron-scheme", "lie-trotter"], ONE_FFN),
        ("macaron_transformer", ["--macaron-scheme", "strang-marchuk"], TWO_FFNS),
        ("transformer_pre_norm", [], ONE_FFN),
    ],
)
def test_layers_in_other_steps_are_the_formulas(arch, flags, names, substep, sentences):
    model = build(arch, *SMALL, *flags).double()
    for call in trajectories.run(model, sentences[0].source, sentences[0].target):
        layer, apply = call.module, call.apply
        x, memory = call.state.transpose(0, 1), call.given.get("encoder_out")
        hidden, others = torch.zeros(1, x.shape[1], x.shape[1], dtype=torch.bool), ()
        if memory is not None:
            hidden = hidden.logical_not().triu(1)
            others = memory.transpose(0, 1), torch.zeros(1, 1, len(memory), dtype=torch.bool)
        formulas = ENCODERS if memory is None else DECODERS
        for name in names:
            steps = trained_models.steps_of(layer, name)
            y = integrators.advance(steps, apply, substeps.get(substep), {}, call.state, 1)
            p = layer.state_dict()
            expected = layer_of(p, formulas[name], substep, x, 4, hidden, *others)
            assert (y.transpose(0, 1) - expected).abs().max() <= 1e-9 * expected.abs().max()


def test_errors_of_a_models_own_steps(sentences):
    """The layers as `dynamics` runs them, steps, sub-step and gates included."""
    model = smooth("--macaron-scheme", "strang-symmetric", "--macaron-substep", "gated-rk2")
    for name, parameter in model.named_parameters():
        if ".gates." in name:
            torch.nn.init.normal_(parameter)
    steps = [1, 1 / 2, 1 / 4]
    layers = [trajectories.run(model, x.source, x.target) for x in sentences]
    expected = {}
    for of_one in zip(*layers, strict=True):
        errors = [local_error.by_halving(x.advance, x.state, steps) for x in of_one]
        by_step = [torch.cat(x).median().item() for x in zip(*errors, strict=True)]
        expected[of_one[0].side, of_one[0].number] = by_step
    pair = ("strang-symmetric", "gated-rk2")
    results = trained_models.measure(model, sentences, [pair], steps)
    assert {(x.side, x.layer): x.errors for x in results if x.layer} == {
        key: pytest.approx(errors) for key, errors in expected.items()
    }


def test_gates_are_those_that_were_trained():
    gated = smooth("--macaron-substep", "gated-rk2", "--macaron-scheme", "lie-trotter")
    pairs = trained_models.choose(gated, None, ["gated-rk2"])
    assert [scheme for scheme, _ in pairs] == [x for x in ONE_FFN if x != "parallel"]


@pytest.mark.parametrize(
    ("flags", "names", "sentence"),
    [
        ([], (None, ["midpoint", "gated-rk2"]), "needs gates, and the model was trained without"),
        ([], (["parallel"], None), "weights are for strang-marchuk or strang-symmetric"),
        (
            ["--macaron-substep", "gated-rk2", "--macaron-scheme", "parallel"],
            (["parallel", "lie-trotter"], ["gated-rk2"]),
            "gates of 'gated-rk2' were not trained for the steps of 'lie-trotter'",
        ),
    ],
)
def test_what_the_weights_do_not_allow(flags, names, sentence):
    with pytest.raises(UserError, match=sentence):
        trained_models.choose(smooth(*flags), *names)


# --- the command ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The stored model's data folder, with a binarised test set."""
    return write_test_set(tmp_path_factory.mktemp("order") / "data", TOKENS[:2])


def command(*words):
    cli.main([str(word) for word in ("order", *words)])


def test_the_command_on_toy_systems(drawn, tmp_path, capsys):
    wanted = ["--scheme", "strang-symmetric", "--scheme", "parallel"]  # as --path of dynamics
    wanted += ["--substep", "midpoint", "exact"]
    command(*wanted, "-o", tmp_path / "out")
    printed = capsys.readouterr().out
    assert (tmp_path / "out" / "order.txt").read_text() == printed
    lines = printed.splitlines()
    assert [line.split()[:2] for line in lines[2:6]] == [
        [scheme, substep]
        for scheme in ("strang-symmetric", "parallel")
        for substep in ("midpoint", "exact")
    ]
    assert lines[2].split()[3::2] == ["3.00", "3.00"]
    assert lines[5].split()[2:] == ["0.0e+00", "-", "0.0e+00", "-"]  # the flow itself
    content = json.loads((tmp_path / "out" / "order.json").read_text())
    assert content["steps"] == STEPS
    assert len(content["results"]) == 8
    assert all(len(x["errors"]) == 3 for x in content["results"])
    assert content["versions"]["numpy"] == np.__version__
    assert (tmp_path / "out" / "order.png").read_bytes().startswith(b"\x89PNG")


def test_a_long_title_stays_in_the_picture_and_off_the_legend(drawn, monkeypatch):
    title = (
        "Step-halving differences of the layers of macaron_transformer_wmt_en_de_big, trained " * 2
    )
    results = [Result("encoder", x, "euler", [0.1, 0.05], 2.0) for x in TWO_FFNS]
    drawn = []
    png = figures.png
    monkeypatch.setattr(
        figures, "png", lambda figure, dpi: drawn.append(figure) or png(figure, dpi=dpi)
    )
    order_report.picture(Measured(title, {}, [1.0, 0.5], results))
    (figure,) = drawn
    renderer = FigureCanvasAgg(figure).get_renderer()
    heading = figure.texts[0].get_window_extent(renderer)
    others = [figure.legends[0].get_window_extent(renderer)]
    others += [axes.get_tightbbox(renderer) for axes in figure.axes]
    assert not any(heading.overlaps(x) for x in others)
    assert figure.bbox.x0 <= heading.x0 and heading.x1 <= figure.bbox.x1
    assert heading.y1 <= figure.bbox.y1


def test_the_command_on_a_trained_model(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS", 0)
    command("--path", CHECKPOINT, "--data", data, "--substep", "euler", "-o", tmp_path)
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    # Where stderr is no terminal: all sentences run with their references, and then in steps.
    said = [line.partition("|")[0] for line in printed.err.splitlines()]
    assert said[:6] == 2 * [f"likelihood: {share:3}%" for share in (0, 50, 100)]
    # Two sentences, each with two layers of both sides, and those in two schemes.
    assert said[6:23] == [f"sentences: {100 * share / 16:3.0f}%" for share in range(17)]
    assert lines[0] == (
        "Step-halving differences of the layers of macaron_transformer_tiny, trained as scheme "
        "strang-marchuk"
    )
    assert [line.split()[:2] for line in lines[2:4]] == [[x, "euler"] for x in TWO_FFNS]
    content = json.loads((tmp_path / "order.json").read_text())
    assert {(x["scheme"], x["side"], x["layer"]) for x in content["results"]} == {
        (scheme, side, n)
        for scheme in TWO_FFNS
        for side in ("encoder", "decoder")
        for n in (None, 1, 2)
    }
    assert all(x["slope"] == pytest.approx(2, abs=0.3) for x in content["results"])
    assert content["data"]["source"] == f"{data / 'data-bin'}, set test"
    assert content["data"]["sentences"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["order", "dynamics"])
def test_the_commands_register_the_models(name, tmp_path):
    """In a process where no test has; they get as far as the data."""
    words = [name, "--path", CHECKPOINT, "--data", tmp_path / "none", "-o", tmp_path / "out"]
    done = run_forked("macaron-fairseq", [*map(str, words)])
    assert done.returncode == 1
    assert done.stdout == f"{tmp_path / 'none'}: no such folder\n"


@pytest.fixture(scope="module")
def plain(data, tmp_path_factory):
    """A checkpoint of fairseq's own transformer with random weights, for the same data."""
    words = Dictionary.load(str(data / "data-bin" / "dict.en.txt"))
    flags = ["--activation-fn", "tanh", "--share-all-embeddings"]
    args = arguments("transformer_pre_norm", *SMALL, *flags)
    model = build("transformer_pre_norm", *SMALL, *flags, for_task=task(words))
    state = torch.load(CHECKPOINT, weights_only=True)
    state["cfg"]["model"], state["model"] = args, model.state_dict()
    path = tmp_path_factory.mktemp("plain") / "plain.pt"
    torch.save(state, path)
    return path


def test_the_command_on_fairseqs_transformer_and_raw_text(plain, data, tmp_path, capsys):
    """Of fifth order with these steps only where all is of fp64."""
    (tmp_path / "text").write_text("the new\n\nis a\n")
    (tmp_path / "translation").write_text("a\n\nnew, the\n")
    text = [tmp_path / "text", "--target", tmp_path / "translation"]
    names = ["--scheme", "parallel", "--substep", "rk4", "--step", "0.25"]
    command(*text, "--path", plain, "--data", data, *names, "-o", tmp_path / "out")
    _, _, line, _ = capsys.readouterr().out.splitlines()
    assert line.split()[:2] == ["parallel", "rk4"]
    content = json.loads((tmp_path / "out" / "order.json").read_text())
    assert all(x["slope"] == pytest.approx(5, abs=0.2) for x in content["results"])
    assert content["steps"] == [0.25 / 2**i for i in range(6)]
    assert content["data"]["sentences"] == 2
    assert content["data"]["tokens"]["target"]["tokens"] == 6


def test_text_without_a_translation_is_translated(data, tmp_path):
    (tmp_path / "text").write_text("the new\n")
    names = ["--scheme", "strang-marchuk", "--substep", "euler"]
    command(tmp_path / "text", "--path", CHECKPOINT, "--data", data, *names, "-o", tmp_path / "out")
    content = json.loads((tmp_path / "out" / "order.json").read_text())
    assert {x["side"] for x in content["results"]} == {"encoder", "decoder"}
    assert content["data"]["decoder"].startswith("reads the model's own translation")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--scheme", "strang-marchk"], ". Did you mean strang-marchuk, strang-marchuk-attention"),
        (
            ["--step", "1e300", "--scheme", "parallel", "--substep", "rk4"],
            "known for steps up to 4, and not for 1e+300: give a smaller --step",
        ),
        (["--substep", "exakt"], ". Did you mean exact?"),
        (["--path", CHECKPOINT], "--path and --data belong together"),
        (["--sentences", 3], "--sentences has no meaning without --path"),
        (["text"], "INPUT has no meaning without --path"),
        (["--path", "x.pt", "--data", "x", "--seed", 0], "--seed has no meaning with --path"),
        (["--path", "x", "--data", "x", "--target", "y"], "--target is the translation of INPUT"),
        (["x", "--path", "x", "--data", "x", "--gen-subset", "y"], "both say which sentences"),
        (["--path", "none.pt", "--data", "none"], "none.pt: no such checkpoint"),
        (["--path", CHECKPOINT, "--data", "DATA", "--substep", "exact"], "takes euler, midpoint"),
        (["--path", CHECKPOINT, "--data", "DATA", "--scheme", "richardson-strang"], "takes lie-"),
    ],
)
def test_mistakes(words, sentence, data, tmp_path):
    words = [data if word == "DATA" else word for word in words]
    with pytest.raises(UserError) as error:
        command(*words, "-o", tmp_path / "out")
    assert sentence in str(error.value)
    assert not (tmp_path / "out").exists()


def test_released_checkpoints_are_known_by_their_scheme():
    found = models.read(FIXTURES / "released" / "checkpoint.pt").settings
    assert trained_models.trained_as(found) == "scheme strang-marchuk"


def test_post_norm_follows_no_flow(data, tmp_path):
    norms = {"encoder_normalize_before": False, "decoder_normalize_before": False}
    post = altered(CHECKPOINT, tmp_path, **norms)
    state = torch.load(post, weights_only=True)
    for name in [x for x in state["model"] if x.split(".")[1] == "layer_norm"]:
        del state["model"][name]
    torch.save(state, post)
    with pytest.raises(UserError, match="the model is post-norm: its layers normalise"):
        command("--path", post, "--data", data, "-o", tmp_path / "out")


def test_data_that_it_was_not_trained_for(data, tmp_path):
    (tmp_path / "text").write_text("the new est the er\n")
    (tmp_path / "translation").write_text("öl , öl , öl\n", "utf-8")
    text = [tmp_path / "text", "--target", tmp_path / "translation"]
    with pytest.raises(UserError, match="worse than chance"):
        command(*text, "--path", CHECKPOINT, "--data", data, "-o", tmp_path / "out")
