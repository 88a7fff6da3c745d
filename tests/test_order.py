"""The order of schemes and sub-steps: the toy systems, the slopes, trained layers, the command."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from conftest import NO_DROPOUT, SMALL, batch, build
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from formulas import DECODERS, ENCODERS, one_step
from scipy.integrate import solve_ivp
from stored import CHECKPOINT, altered, write_data

from macaron_fairseq import UserError, cli, schemes, substeps
from macaron_fairseq.dynamics.sentences import Sentence
from macaron_fairseq.numerics import fitting, toy, trained
from macaron_fairseq.schemes import CROSS_ATTENTION, FFN, SELF_ATTENTION, step

STEPS = [0.01, 0.005, 0.0025]


def slope(side, scheme, substep, steps=STEPS):
    return fitting.slope(steps, toy.errors(side, scheme, substep, steps, seed=1))


# --- the toy systems -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def system():
    return toy.system(seed=1)


def test_the_fields_are_attention_and_a_perceptron(system):
    """Attention is a mean with positive weights, so a shift of all values shifts it as well."""
    fields, x = system
    assert x.dtype == torch.float64
    changed = x.clone()
    changed[:, 0] += 1
    for kind, is_of_others in ((SELF_ATTENTION, True), (CROSS_ATTENTION, False), (FFN, False)):
        difference = (fields[kind](changed) - fields[kind](x)).abs()
        assert difference[:, 0].max() > 1e-3
        assert (difference[:, 1:].max() > 1e-3) == is_of_others


def test_the_flow_is_scipys(system):
    fields, x = system
    whole = partial(toy.total, fields, [*fields])
    for h in STEPS:

        def derivative(t, y):
            return whole(torch.from_numpy(y).view_as(x)).flatten().numpy()

        exact = solve_ivp(derivative, (0, h), x.flatten(), "DOP853", rtol=1e-13, atol=1e-14)
        flow = x + h * toy.exact(whole, x, h)
        assert (flow.flatten() - torch.from_numpy(exact.y[:, -1])).abs().max() <= 1e-13


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
            f = partial(toy.total, fields, [kinds[name] for name in names])
            y = one_step(substep, f, y, h * size, None)
        method = toy.methods(side)[name]
        assert (method(fields, toy.SUBSTEPS[substep], x, h) - y).abs().max() <= 1e-12


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
    w1, w0 = schemes.W1, schemes.W0
    sizes = [w1 / 2, w1, (w1 + w0) / 2, w0, (w1 + w0) / 2, w1, w1 / 2]
    merged = tuple(step(h, schemes.SELF if i % 2 else schemes.WHOLE) for i, h in enumerate(sizes))
    monkeypatch.setitem(schemes.SCHEMES, "merged", schemes.Scheme(merged, merged))
    assert slope("encoder", "merged", "exact") == pytest.approx(5, abs=0.1)
    short = [h / 10 for h in STEPS]
    assert slope("encoder", "merged", "midpoint", short) == pytest.approx(3, abs=0.1)
    assert slope("encoder", "yoshida4", "midpoint", short) == pytest.approx(4, abs=0.1)


def test_a_fit_is_to_the_shortest_steps_above_rounding():
    steps = [1, 1 / 2, 1 / 4, 1 / 8]
    assert fitting.slope(steps, [9, 1 / 8, 1 / 64, 1 / 512]) == pytest.approx(3)
    assert fitting.slope(steps, [4e-14, 2e-14, 1.1e-14, 1e-15]) == pytest.approx(0.93, abs=0.01)
    assert fitting.slope(steps, [1e-12, 1e-14, 0, 0]) is None


# --- trained layers ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sentences():
    source, _, previous = batch(sizes=((7, 5), (4, 6)))
    return [
        Sentence(i, s[s != 1], t[t != 1])
        for i, (s, t) in enumerate(zip(source, previous, strict=True), 1)
    ]


def smooth(*flags):
    """A model whose layers are as smooth as the toy system."""
    smoothly = ["--activation-fn", "tanh", *flags]
    return build("macaron_transformer", *SMALL, *NO_DROPOUT, *smoothly).double()


@pytest.mark.parametrize(
    ("scheme", "slopes"),
    [
        ("lie-trotter", (2, 2, 2)),
        ("parallel", (2, 3, 5)),
        # Its two FFNs have weights of their own: not the same backwards, so of first order.
        ("strang-symmetric", (2, 2, 2)),
        ("strang-marchuk-attention", (2, 3, 3)),
    ],
)
def test_slopes_of_frozen_layers(scheme, slopes, sentences, monkeypatch):
    monkeypatch.setattr(trained, "STEPS", [2.0**-i for i in range(4, 8)])
    model = smooth("--macaron-scheme", scheme)
    names = trained.usable(model, ["midpoint", "gated-rk2", "rk4", "euler"])
    assert names == ["euler", "midpoint", "rk4"]
    found = trained.errors(model, sentences, names, lambda: None)
    assert [*found] == [("encoder", 1), ("encoder", 2), ("decoder", 1), ("decoder", 2)]
    for by_name in found.values():
        for name, expected in zip(names, slopes, strict=True):
            assert fitting.slope(trained.STEPS, by_name[name]) == pytest.approx(expected, abs=0.15)
    assert model.encoder.layers[0].substep is substeps.get("euler")  # as it was


def test_gates_are_those_that_were_trained():
    gated = smooth("--macaron-substep", "gated-rk2")
    assert trained.usable(gated, [*substeps.SUBSTEPS])[0] == "gated-rk2"
    with pytest.raises(UserError, match="the model was trained without"):
        trained.usable(smooth(), ["gated-rk2"])


def test_fairseqs_layers_are_measured_as_they_are(sentences):
    model = build("transformer_pre_norm", *SMALL).double()
    assert trained.usable(model, ["rk4"]) == ["euler"]
    found = trained.errors(model, sentences, ["euler"], lambda: None)
    assert all(fitting.slope(trained.STEPS, x["euler"]) > 1.7 for x in found.values())


# --- the command ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The stored model's data folder, with a binarised test set."""
    folder = write_data(tmp_path_factory.mktemp("order") / "data")
    words = Dictionary.load(str(folder / "data-bin" / "dict.en.txt"))
    for language in ("en", "de"):
        prefix = folder / "data-bin" / f"test.en-de.{language}"
        builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32)
        for tokens in ("er low@@ er , the", "the new"):
            builder.add_item(torch.tensor([*map(words.index, tokens.split()), words.eos()]))
        builder.finalize(f"{prefix}.idx")
    return folder


def command(*words):
    cli.main([str(word) for word in ("order", *words)])


def test_the_command_on_toy_systems(tmp_path, capsys):
    wanted = ["--scheme", "strang-symmetric", "parallel", "--substep", "midpoint", "exact"]
    command(*wanted, "-o", tmp_path / "out")
    printed = capsys.readouterr().out
    assert (tmp_path / "out" / "order.txt").read_text() == printed
    lines = printed.splitlines()
    assert [line.split()[:2] for line in lines[1:5]] == [
        [scheme, substep]
        for scheme in ("strang-symmetric", "parallel")
        for substep in ("midpoint", "exact")
    ]
    assert lines[1].split()[3::2] == ["3.00", "3.00"]
    assert lines[4].split()[2:] == ["0.0e+00", "-", "0.0e+00", "-"]  # the flow itself
    content = json.loads((tmp_path / "out" / "order.json").read_text())
    assert content["steps"] == STEPS
    assert len(content["results"]) == 8
    assert all(len(x["errors"]) == 3 for x in content["results"])
    assert (tmp_path / "out" / "order.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_on_a_trained_model(data, tmp_path, capsys):
    command("--path", CHECKPOINT, "--data", data, "--substep", "euler", "-o", tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [["layer", n, "euler"] for n in "12"]
    content = json.loads((tmp_path / "order.json").read_text())
    assert {(x["side"], x["name"]) for x in content["results"]} == {
        (side, f"layer {n}") for side in ("encoder", "decoder") for n in (1, 2)
    }
    assert all(x["slope"] == pytest.approx(2, abs=0.3) for x in content["results"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--scheme", "strang"], "unknown splitting scheme 'strang': --scheme takes "),
        (["--substep", "exakt"], "unknown sub-step 'exakt': --substep takes exact"),
        (["--path", CHECKPOINT], "--path and --data belong together"),
        (["--path", "x.pt", "--data", "x", "--scheme", "parallel"], "its own: drop --scheme"),
        (["--path", "none.pt", "--data", "none"], "none.pt: no such checkpoint"),
        (["--path", CHECKPOINT, "--data", "x", "--substep", "exact"], "takes euler, midpoint"),
    ],
)
def test_mistakes(words, sentence, tmp_path):
    with pytest.raises(UserError) as error:
        command(*words, "-o", tmp_path / "out")
    assert sentence in str(error.value)
    assert not (tmp_path / "out").exists()


def test_post_norm_follows_no_flow(data, tmp_path):
    norms = {"encoder_normalize_before": False, "decoder_normalize_before": False}
    post = altered(CHECKPOINT, tmp_path, **norms)
    state = torch.load(post, weights_only=True)
    for name in [x for x in state["model"] if x.split(".")[1] == "layer_norm"]:
        del state["model"][name]
    torch.save(state, post)
    with pytest.raises(UserError, match="the model is post-norm: its layers normalise"):
        command("--path", post, "--data", data, "-o", tmp_path / "out")
