"""`macaron-fairseq dynamics --jacobian`: what it writes, and what it refuses."""

import csv
import hashlib
import io
import json
import re
import shutil
import statistics
import sys
from argparse import ArgumentParser, Namespace
from itertools import pairwise
from types import SimpleNamespace
from typing import get_args
from unittest import mock

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.models import build_model
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask
from helpers.html_tables import numbers, tables
from helpers.small import SMALL, SMALL_DECODER, arguments, dictionary, language_task, task
from helpers.stored import CHECKPOINT, binarise, noisy, write_test_set
from scipy.stats import spearmanr

from macaron_fairseq import UserError, cli
from macaron_fairseq.analysis import figures, likelihood, models, sentences
from macaron_fairseq.analysis.residual import (
    communities,
    coupling,
    depth,
    initial,
    interventions,
    measurement,
    page,
    pictures,
    rows,
    subjects,
    topology,
)
from macaron_fairseq.analysis.residual.glossary import MEASURES
from macaron_fairseq.commands import residual_stream


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_test_set(tmp_path_factory.mktemp("data") / "data")


def command(data, *args, paths=(CHECKPOINT,), out):
    """Run the command in this process; what it wrote as JSON."""
    words = ["dynamics", "--jacobian", "--jacobian-sentences", "2", *args, "--path", *paths]
    cli.main([str(word) for word in [*words, "--data", data, "--cpu", "-o", out]])
    return json.loads((out / "residual.json").read_text("utf-8"))


def refused(data, *args, paths=(CHECKPOINT,), out):
    """The sentence that the command ends with; it writes nothing."""
    with pytest.raises(UserError) as error:
        command(data, *args, paths=paths, out=out)
    assert not out.exists()
    return str(error.value)


@pytest.fixture(scope="module")
def report(data, tmp_path_factory):
    """Two seeds of one model, and the model untrained, by the command itself."""
    folder = tmp_path_factory.mktemp("report")
    paths = [CHECKPOINT, noisy(CHECKPOINT, folder)]
    flags = ["--initial", "1", "2", "--remove", "non-normal", "antisymmetric"]
    flags += ["--graph-sensitivity", "--graph-edges", "3", "--graph-permutations", "99"]
    with pytest.MonkeyPatch.context() as patch:
        # Of the page only the words on each picture: drawing them takes most of the time.
        patch.setattr(figures, "svg", lambda draw, alt: f"<svg>{alt}</svg>")
        patch.setattr(figures, "png", lambda figure, dpi=100: b"")
        printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        patch.setattr(sys, "stdout", printed)
        content = command(data, *flags, paths=paths, out=folder / "out")
    return SimpleNamespace(
        content=content,
        printed=printed.buffer.getvalue().decode("utf-8"),
        written=sorted(x.name for x in (folder / "out").iterdir()),
        csv=(folder / "out" / "residual.csv").read_text("utf-8"),
        page=(folder / "out" / "residual.html").read_text("utf-8"),
        paths=paths,
    )


def test_files(report):
    assert report.written == [
        *("residual-interventions.png", "residual-singular-values.png"),
        *("residual-spectra-decoder.png", "residual-spectra-encoder.png"),
        *("residual-topology.png", "residual.csv", "residual.html", "residual.json"),
        "residual.png",
    ]


def test_checkpoints_of_one_architecture_are_seeds_of_a_model(report):
    trained, untrained = report.content["models"]
    assert trained["label"] == untrained["label"] == "macaron_transformer_tiny"
    assert [run["name"] for run in trained["runs"]] == [str(x) for x in report.paths]
    assert [run["name"] for run in untrained["runs"]] == ["seed 1", "seed 2"]
    hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in report.paths]
    assert [run["sha256"] for run in trained["runs"]] == hashes
    assert [run["sha256"] for run in untrained["runs"]] == [None, None]
    assert (trained["is_trained"], untrained["is_trained"]) == (True, False)


def test_bits_are_those_of_dynamics(report, data):
    """Which runs in fp32, and reads the same test set; chance is 4 bits."""
    loaded, opened = models.load(report.paths, data, names=["a", "b"])
    found = sentences.read(opened)
    trained, untrained = report.content["models"]
    for model, run in zip(loaded, trained["runs"], strict=True):
        expected = likelihood.bits_per_token(model.runnable(), found.sentences, found.data)
        assert run["bits_per_token"] == pytest.approx(expected, rel=1e-4)
    assert untrained["bits_per_token"]["mean"] > 3.5
    one, other = (run["bits_per_token"] for run in trained["runs"])
    assert trained["bits_per_token"]["mean"] == pytest.approx((one + other) / 2, rel=1e-5)
    # Student's t of one degree of freedom.
    margin = 12.706 * statistics.stdev([one, other]) / 2**0.5
    assert trained["bits_per_token"]["margin"] == pytest.approx(margin, rel=1e-4)


def test_rows(report):
    for model in report.content["models"]:
        for side in model["sides"]:
            layers = side["layers"]
            count = {"encoder": 3, "decoder": 4}[side["side"]]
            assert len(side["sublayers"]) == count * len(layers)
            assert [x["occurrence"] for x in side["sublayers"][:count]] == [1] * (count - 1) + [2]
            ends = [(i + 1) / count for i in range(count * len(layers))]
            assert [x["time"] for x in side["sublayers"]] == pytest.approx(ends)
            assert len(side["products"]) == len(layers)
            d = len(side["products"][0]["singular_values"])
            assert d == side["width"]
            assert len(layers[0]["eigenvalues"]) == 2 * d
            for row in [*layers, *side["products"]]:
                assert 0 < row["figures"]["henrici"]["mean"] < 1
                assert 1 <= row["figures"]["effective_rank"]["mean"] <= d
            first = {x: layers[0]["figures"][x]["mean"] for x in ("norm", "complex", "growth")}
            product = side["products"][0]["figures"]
            assert first == {x: product[x]["mean"] for x in first}


def test_interventions(report):
    effects = report.content["interventions"]
    layers = {x["side"]: len(x["layers"]) for x in report.content["models"][0]["sides"]}
    expected = [[f"{side}:{i}"] for side, n in layers.items() for i in range(1, n + 1)]
    expected += [[f"{side}:{i}" for i in range(1, n + 1)] for side, n in layers.items() if n > 1]
    assert [x["layers"] for x in effects] == expected * 2
    assert {x["label"] for x in effects} == {"macaron_transformer_tiny"}
    bits = report.content["models"][0]["bits_per_token"]["mean"]
    for x in effects:
        figures = {name: figure["mean"] for name, figure in x["figures"].items()}
        assert figures["bits"] - figures["bits_added"] == pytest.approx(bits, rel=1e-4)
        assert 0 < figures["size"] < 1
        # At each token less of the departure, or of the asymmetry, is left.
        name = {"non-normal": "layer_henrici", "antisymmetric": "layer_asymmetry"}[x["removed"]]
        assert figures[name] < figures[f"intact_{name}"]


def test_what_an_intervention_removes_and_its_control_adds(report, data):
    """Of the encoder's first layer: N of its mean Jacobian M, what N costs, and its controls."""
    loaded, opened = models.load(report.paths, data, names=["a", "b"])
    sample, sizes, costs = sentences.read(opened), [], []

    def moved(states, n):
        """The root mean square of how far it moves a token."""
        return np.trace(n @ np.cov(states.T, bias=True) @ n.T) ** 0.5

    for run, one in enumerate(loaded, 1):
        model = models.in_double(one.runnable())
        read = one.to_read(sample)
        layer = depth.along_depth(model, read, 2, 1)["encoder"][0].whole
        mean = layer.jacobians.mean(axis=0)
        part = (mean - mean.T) / 2
        sizes.append(np.linalg.norm(part) / np.linalg.norm(mean - np.eye(len(mean))))
        states = depth.states(model, read)["encoder"][0]
        centre = torch.from_numpy(states.mean(axis=0))
        before = likelihood.bits_per_token(model, read, opened)
        of_run = []
        turned = interventions.rotated(part, (1, run, 0, 1))
        rest = (mean + mean.T) / 2 - np.eye(len(mean))
        far, far_turned, far_rest = (moved(states, x) for x in (part, turned, rest))
        removals = [part, turned * far / far_turned]
        removals += [x * min(far, far_rest) / y for x, y in ((part, far), (rest, far_rest))]
        for removed in removals:
            n = torch.from_numpy(removed)
            handle = model.encoder.layers[0].register_forward_hook(
                lambda _, args, y, n=n, centre=centre: y - (args[0] - centre) @ n.T
            )
            of_run.append(likelihood.bits_per_token(model, read, opened) - before)
            handle.remove()
        costs.append(of_run)
    (found,) = (
        x["figures"]
        for x in report.content["interventions"]
        if (x["removed"], x["layers"]) == ("antisymmetric", ["encoder:1"])
    )
    assert found["size"]["mean"] == pytest.approx(np.mean(sizes), rel=1e-4)
    added, control, equal, rest = np.transpose(costs)
    assert found["bits_added"]["mean"] == pytest.approx(np.mean(added), rel=1e-3)
    assert found["control_bits_added"]["mean"] == pytest.approx(np.mean(control), rel=1e-3)
    assert found["equal_bits_added"]["mean"] == pytest.approx(np.mean(equal), rel=1e-3)
    assert found["rest_bits_added"]["mean"] == pytest.approx(np.mean(rest), rel=1e-3)
    assert found["bits_over_rest"]["mean"] == pytest.approx(np.mean(equal - rest), rel=1e-3)
    # Of pairs, and so with another interval than either: Student's t of one degree of freedom.
    over = found["bits_over_control"]
    assert over["mean"] == pytest.approx(np.mean(added - control), rel=1e-3)
    margin = 12.706 * statistics.stdev(added - control) / 2**0.5
    assert over["margin"] == pytest.approx(margin, rel=1e-3)


def test_singular_values_are_geometric_means_over_tokens_and_runs():
    one, other = (rows.MatrixRow("", 1, "") for _ in range(2))
    one.singular_values = [np.array([8.0, 1.0]), np.array([2.0, 0.5])]
    other.singular_values = [np.array([4.0, 0.25])]
    assert measurement.singular_values([one, other]) == pytest.approx([4, 0.5])


def test_the_most_and_the_least_amplified_community():
    found = coupling.Placed(
        SimpleNamespace(count=3, modularity=0.25), np.array([1.0, 2, 3]), np.array([2.0, 0.5, 1])
    )
    figures = topology.figures(found, coupling.Choices())
    assert (figures["most_amplified"], figures["least_amplified"]) == (2, 0.5)
    assert (figures["communities"], figures["modularity"]) == (3, 0.25)


def test_printed_tables(report):
    """They hold what the file has: of the last layer, and of the last intervention."""
    model = report.content["models"][0]
    side = model["sides"][-1]
    layer, product = side["layers"][-1], side["products"][-1]
    figures = [layer["figures"][x] for x in ("rotation", "henrici", "asymmetry", "added")]
    figures += [layer["figures"][x] for x in ("added_scaled", "added_henrici")]
    figures += [product["figures"]["effective_rank"]]
    cells = " | ".join(f"{x['mean']:#.3g} ± {x['margin']:.2g}" for x in figures)
    (row,) = (
        x
        for x in report.printed.splitlines()
        if x.startswith(f"| decoder {len(side['layers'])} | `macaron_transformer_tiny` | ")
        and " ± " in x
    )
    assert cells.replace(". ", " ") in row.replace(". ", " ")
    effect = report.content["interventions"][-1]["figures"]
    before, after = effect["intact_product_henrici"], effect["product_henrici"]
    last = report.printed.splitlines()[-1]
    assert f"{before['mean']:#.3g} → {after['mean']:#.3g} ± {after['margin']:.2g}" in last


def test_csv(report):
    found = list(csv.DictReader(io.StringIO(report.csv)))
    side = report.content["models"][1]["sides"][1]
    (row,) = (
        x
        for x in found
        if (x["trained"], x["side"], x["of"], x["layer"]) == ("0", "decoder", "products", "1")
        and x["measure"] == "effective_rank"
    )
    expected = side["products"][0]["figures"]["effective_rank"]
    assert (float(row["mean"]), float(row["margin"]), int(row["n"])) == (
        *(expected["mean"], expected["margin"], expected["n"]),
    )
    removed = [x for x in found if x["of"] == "interventions" and x["measure"] == "bits_added"]
    assert len(removed) == len(report.content["interventions"])


def test_page(report):
    assert "macaron_transformer_tiny, untrained" in report.page
    side = report.content["models"][0]["sides"][0]
    assert "Bits per token that one layer's part is worth" in report.page
    first, last = (side["layers"][i]["figures"]["rotation"]["mean"] for i in (0, -1))
    words = (
        f"Rotation, Whole layers, by layer. macaron_transformer_tiny (trained): {first:.3g} at 1"
    )
    assert f"{words} to {last:.3g} at " in report.page


def test_the_tables_have_the_means_and_margins_of_every_row(report):
    """Of one model's encoder."""
    side, found = report.content["models"][0]["sides"][0], tables(report.page)
    for of, caption in {
        "layers": "whole layers",
        "products": "from the first layer to this one",
        "sublayers": "sub-layers",
    }.items():
        table = found["macaron_transformer_tiny", f"Encoder: {caption}"]
        assert [row for row, _ in table] == [row["name"] for row in side[of]]
        for (_, cells), row in zip(table, side[of], strict=True):
            assert {*cells} == {MEASURES[name].title for name in row["figures"]}
            for name, figure in row["figures"].items():
                expected = [x for x in (figure["mean"], figure["margin"]) if x is not None]
                assert numbers(cells[MEASURES[name].title]) == pytest.approx(expected, rel=5e-3)


def test_pictures(report):
    """Of the page they have its colours, and the eigenvalues are images."""
    assert pictures.singular_values_png(report.content["models"]).startswith(b"\x89PNG")
    side = report.content["models"][0]["sides"][0]
    limits = pictures.window(report.content["models"], "encoder", "layers")
    spectrum = pictures.spectrum_svg(side["layers"][0], 1, limits, "Eigenvalues.")
    assert 'aria-label="Eigenvalues."' in spectrum and "data:image/png" in spectrum
    values = pictures.singular_values_svg(side, 1, (0.1, 10), "Singular values.")
    assert "var(--series-1)" in values
    found = pictures.lines(report.content["models"], "encoder", "layers", "henrici")
    assert [(x.series, x.dash) for x in found] == [(0, 0), (0, 1)]
    assert list(found[0].sds) == [x["figures"]["henrici"]["margin"] for x in side["layers"]]


def test_numbers_on_axes_keep_their_digits():
    assert figures.shortened('<text x="1.234">0.25</text>') == '<text x="1.2">0.25</text>'
    faint = '<path d="M 1.25 2" style="opacity: 0.3125; stroke-width: 1.75" fill-opacity="0.375"/>'
    assert figures.shortened(faint) == (
        '<path d="M 1.2 2" style="opacity: 0.31; stroke-width: 1.7" fill-opacity="0.37"/>'
    )


def test_an_untrained_model_is_that_of_fairseqs_builder(data):
    """And neither another seed's nor the trained one."""
    (trained,), opened = models.load([CHECKPOINT], data)
    one, again, other = (initial.like(trained, opened, seed).model for seed in (1, 1, 2))
    saved = torch.load(CHECKPOINT, weights_only=True)["cfg"]["model"]
    torch.manual_seed(1)
    built = trained.engine.task.build_model(saved)
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name))
        assert torch.equal(parameter, built.get_parameter(name))
    name = "encoder.layers.0.fc1.weight"
    assert not torch.equal(one.get_parameter(name), other.get_parameter(name))
    assert not torch.equal(one.get_parameter(name), trained.model.get_parameter(name))


def test_embeddings_of_a_file_that_is_gone_are_named(data):
    (trained,), opened = models.load([CHECKPOINT], data)
    saved = checkpoint_utils.load_checkpoint_to_cpu(str(CHECKPOINT))
    saved["cfg"].model.encoder_embed_path = "/gone/vectors"
    with (
        mock.patch.object(checkpoint_utils, "load_checkpoint_to_cpu", lambda path: saved),
        pytest.raises(UserError, match="began with the embeddings in /gone/vectors, which is no"),
    ):
        initial.like(trained, opened, 1)


# --- language models -----------------------------------------------------------------------------


@pytest.fixture
def no_pictures(monkeypatch):
    """Drawing takes most of the time with models of this size."""
    for name in ("overview", "spectra_png", "singular_values_png"):
        monkeypatch.setattr(pictures, name, lambda *args: b"")
    monkeypatch.setattr(page, "page", lambda content, downloads: "")


def language_model(folder, arch):
    """A data folder of fairseq-preprocess --only-source, and an untrained model's checkpoint."""
    words = dictionary()
    words.save(str(folder / "dict.txt"))
    binarise(folder / "test", words, [["w3", "w4", "w5"], ["w6", "w7"]])
    state = torch.load(CHECKPOINT, weights_only=True)
    args = arguments(arch, *SMALL_DECODER, "--task", "language_modeling")
    torch.manual_seed(1)
    state["model"] = language_task().build_model(args).state_dict()
    state["cfg"]["model"] = Namespace(_name=args.arch, **vars(args))
    torch.save(state, folder / "lm.pt")
    return folder / "lm.pt"


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("arch", ["macaron_transformer_lm_tiny", "transformer_lm_tiny_pre_norm"])
def test_a_causal_language_model(arch, tmp_path):
    path = language_model(tmp_path, arch)
    flags = ["--initial", "1", "--remove", "non-normal", "--layers", "decoder:2"]
    content = command(tmp_path, *flags, paths=[path], out=tmp_path / "out")
    trained, untrained = content["models"]
    assert [side["side"] for side in trained["sides"]] == ["decoder"]
    # This checkpoint is what seed 1 draws.
    assert trained["sides"] == untrained["sides"]
    assert np.log2(64) < trained["bits_per_token"]["mean"] < 8
    assert [x["layers"] for x in content["interventions"]] == [["decoder:2"]]


@pytest.mark.usefixtures("no_pictures")
def test_a_masked_pair_on_raw_text(data, tmp_path, capsys):
    """Text as the data folder says, without what is too long; as many seeds as there are files."""
    folder = tmp_path / "masked"
    folder.mkdir()
    words = shutil.copy(data / "data-bin" / "dict.en.txt", folder / "dict.txt")
    task = MaskedLMTask(MaskedLMConfig(), Dictionary.load(str(words)))
    shutil.copy(data / "code", folder)
    shutil.copy(data / "preprocessing.json", folder)
    state = torch.load(CHECKPOINT, weights_only=True)
    flags = ["--encoder-layers", "2", "--encoder-embed-dim", "16", "--max-positions", "12"]
    flags += ["--encoder-attention-heads", "4", "--encoder-ffn-embed-dim", "24"]
    flags += ["--tokens-per-sample", "12"]
    paths = []
    for scheme, seed in [("lie-trotter", 1), ("strang-marchuk", 1), ("strang-marchuk", 2)]:
        args = arguments(
            "macaron_roberta_tiny", "--task", "masked_lm", *flags, "--macaron-scheme", scheme
        )
        torch.manual_seed(seed)
        state["model"] = task.build_model(args).state_dict()
        state["cfg"]["model"] = Namespace(_name=args.arch, **vars(args))
        paths.append(tmp_path / f"{scheme}{seed}.pt")
        torch.save(state, paths[-1])
    (tmp_path / "text").write_text("A new, lower öl.\n" + "the " * 20 + "\nThe lowest\n", "utf-8")
    flags = [tmp_path / "text", "--longest", "12", "--initial", "1", "--remove", "non-normal"]
    flags += ["--graph-edges", "3", "--graph-permutations", "99", "--layers", "encoder"]
    content = command(folder, *flags, paths=paths, out=tmp_path / "out")
    # <s> a new , low@@ er öl . </s> and <s> the low@@ est </s>, of which the dot is unknown.
    assert content["data"]["tokens"] == {"source": {"tokens": 9 + 5, "unknown": 1}}
    assert content["data"]["sentences"] == 2
    titles = [(x["label"], x["is_trained"], len(x["runs"])) for x in content["models"]]
    assert titles == [
        *[("lie-trotter", True, 1), ("lie-trotter", False, 1)],
        *[("strang-marchuk", True, 2), ("strang-marchuk", False, 1)],
    ]
    for model in content["models"]:
        assert [side["side"] for side in model["sides"]] == ["encoder"]
        assert 3 < model["bits_per_token"]["mean"] < 5  # 14 types: chance is 3.9
        assert [len(x["runs"]) for x in model["sides"][0]["topology"]] == [len(model["runs"])] * 2
    one, other = content["interventions"]
    assert [x["figures"]["bits_added"]["n"] for x in (one, other)] == [1, 2]
    # Of one run there is no interval, of two there is.
    printed = [x for x in capsys.readouterr().out.splitlines() if "| non-normal |" in x]
    assert [x.count("±") for x in printed] == [0, 10]
    added = other["figures"]["bits_added"]
    assert f"| {added['mean']:#.3g} ± {added['margin']:.2g} |" in printed[1]


def test_no_sentence_is_short_enough(data, tmp_path):
    where = f"the set test of {data / 'data-bin'}"
    assert refused(data, "--longest", "2", out=tmp_path / "out") == (
        f"{where} holds no sentence of up to 2 tokens"
    )


# --- what it refuses -----------------------------------------------------------------------------


def baseline(folder, data, *flags):
    """A checkpoint of fairseq's transformer with the data's dictionaries."""
    opened = sentences.open_translation(data, None, None)
    args = arguments("transformer", *SMALL, *flags)
    state = torch.load(CHECKPOINT, weights_only=True)
    model = build_model(args, task(opened.source, opened.target))
    with torch.no_grad():  # as likely as chance, whatever the seed: far worse is refused
        model.decoder.output_projection.weight.zero_()
    state["model"] = model.state_dict()
    state["cfg"]["model"] = Namespace(_name=args.arch, **vars(args))
    torch.save(state, folder / "baseline.pt")
    return folder / "baseline.pt"


def test_models_of_different_widths(data, tmp_path):
    path = baseline(tmp_path, data, "--decoder-embed-dim", "32", "--decoder-output-dim", "32")
    one = refused(data, paths=[CHECKPOINT, path], out=tmp_path / "out")
    assert one.startswith(f"the encoder of {CHECKPOINT} is ")
    assert one.endswith(f"wide and that of {path} 16: compare models of one width")


@pytest.mark.usefixtures("no_pictures")
def test_one_model_may_have_two_widths(data, tmp_path):
    path = baseline(tmp_path, data, "--decoder-embed-dim", "32", "--decoder-output-dim", "32")
    where = ["--remove", "non-normal", "--layers", "encoder:1,decoder:1"]
    content = command(data, *where, paths=[path], out=tmp_path / "out")
    (found,) = content["interventions"]
    assert 0 < found["figures"]["size"]["mean"] < 2


@pytest.mark.parametrize("flags", [[], ["--jacobian"]])
def test_models_with_layers_on_other_sides(flags, data, tmp_path):
    path = baseline(tmp_path, data, "--decoder-layers", "0")
    with pytest.raises(UserError, match=r"has layers in its encoder and decoder, and .*baseline"):
        words = ["dynamics", "--path", CHECKPOINT, path, "--data", data, "--cpu", *flags]
        cli.main([*map(str, words), "-o", str(tmp_path / "out")])


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--encoder-layers", "1"], "differ in layers, width or norms, and are taken for seeds"),
        (["--decoder-embed-dim", "32", "--decoder-output-dim", "32"], "compare models of one wid"),
        (["--decoder-ffn-embed-dim", "16"], "differ in the sizes of their parameters, and are tak"),
        (["--encoder-attention-heads", "1"], "differ in encoder_attention_heads, "),
        (["--activation-fn", "gelu"], "differ in activation_fn, "),
    ],
)
def test_seeds_of_different_shapes(flags, sentence, data, tmp_path):
    paths = []
    for name, more in (("a", []), ("b", flags)):
        (tmp_path / name).mkdir()
        paths.append(baseline(tmp_path / name, data, *more))
    assert sentence in refused(data, paths=paths, out=tmp_path / "out")


def test_a_label_is_of_one_model(data, tmp_path):
    path = baseline(tmp_path, data)
    flags = ["--label", "same", "same"]
    assert refused(data, *flags, paths=[CHECKPOINT, path], out=tmp_path / "out") == (
        f"{CHECKPOINT} and {path} are different models with the label 'same', which stands for the "
        "seeds of one: give each model its label"
    )


def test_checkpoints_of_one_run_are_told(capsys):
    def of(name, seed):
        return SimpleNamespace(path=name, arguments={} if seed is None else {"seed": seed})

    subjects.warn_of_one_run("x", [of("a", 1), of("b", 2), of("c", None), of("d", None)])
    assert not capsys.readouterr().err
    subjects.warn_of_one_run("x", [of("a", 1), of("b", 2), of("c", 1)])
    assert "warning: a and c count as two seeds of 'x', and both have --seed 1" in (
        capsys.readouterr().err
    )


def test_a_checkpoint_or_seed_that_is_there_twice(data, tmp_path):
    """It would count as another seed, and make differences of nothing certain."""
    again = CHECKPOINT.parent / "." / CHECKPOINT.name
    assert refused(data, paths=[CHECKPOINT, again], out=tmp_path / "out").startswith(
        "a checkpoint of 'macaron_transformer_tiny' is named twice, and would count as two seeds"
    )
    assert refused(data, "--initial", "1", "1", out=tmp_path / "out").startswith(
        "--initial 1 1 names a seed twice"
    )


@pytest.mark.usefixtures("undrawn")
def test_without_a_coupling_there_is_none_in_the_file(data, tmp_path):
    """Too few communities for a coupling, after a part of a layer is gone, too."""
    flags = ["--remove", "non-normal", "--layers", "encoder:1", "--graph-resolution", "0.001"]
    command(data, *flags, "--jacobian-sentences", "1", out=tmp_path / "out")
    found = json.loads((tmp_path / "out" / "residual.json").read_text("utf-8"))
    figures = found["interventions"][0]["figures"]
    assert any(x["n"] == 0 and x["mean"] is None for x in figures.values())


@pytest.mark.usefixtures("undrawn")
def test_what_the_decoders_of_several_models_read(data, tmp_path):
    (tmp_path / "text").write_text("the new\n")
    other = baseline(tmp_path, data, "--encoder-embed-dim", "32", "--decoder-embed-dim", "32")
    flags = ["--jacobian-sentences", "1", "--label", "one", "two"]
    paths = [CHECKPOINT, other]
    command(data, tmp_path / "text", *flags, paths=paths, out=tmp_path / "out")
    found = json.loads((tmp_path / "out" / "residual.json").read_text("utf-8"))
    assert found["data"]["decoder"] == "of all models reads what one translates (beam 5)"


def test_a_layer_that_does_not_exist(data, tmp_path):
    flags = ["--remove", "non-normal", "--layers", "encoder:9"]
    assert refused(data, *flags, out=tmp_path / "out").startswith(
        "there is no layer 'encoder:9': the models have encoder:1 to "
    )


def test_no_translations_to_lose(data, tmp_path):
    (tmp_path / "text").write_text("the new\n")
    flags = [tmp_path / "text", "--remove", "non-normal"]
    assert refused(data, *flags, out=tmp_path / "out") == (
        "--remove measures the loss on translations, and there are none: give --target, or leave "
        "out INPUT"
    )


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ["--graph-threshold", "0"],
            "--graph-threshold is for the residual stream: add --jacobian",
        ),
        (
            ["--jacobian", "--beta", "2"],
            "--beta has no meaning with --jacobian: drop one of the two",
        ),
        (
            ["text", "--gen-subset", "valid"],
            "INPUT and --gen-subset both say which sentences: drop one",
        ),
        (["--initial", "1"], "--initial is for the residual stream: add --jacobian"),
        (["--remove", "non-normal"], "--remove is for the residual stream: add --jacobian"),
        (
            ["--jacobian", "--layers", "encoder"],
            "--layers says where --remove removes something: add --remove",
        ),
    ],
)
def test_options_that_nothing_would_use(flags, sentence, data):
    words = ["dynamics", *flags, "--path", CHECKPOINT, "--data", data]
    with pytest.raises(UserError) as error:
        cli.main([str(word) for word in words])
    assert str(error.value) == sentence


# --- communities ---------------------------------------------------------------------------------


def layers_of(report):
    """Of each model, side and layer: its row, and its communities."""
    for model in report.content["models"]:
        for side in model["sides"]:
            for row, layer in zip(side["layers"], side["topology"], strict=True):
                yield row, layer, side


def test_communities_are_parts_of_the_coordinates(report):
    for row, layer, side in layers_of(report):
        figures = {name: figure["mean"] for name, figure in row["figures"].items()}
        counts = [len(run["sizes"]) for run in layer["runs"]]
        assert figures["communities"] == pytest.approx(np.mean(counts), rel=1e-5)
        for run in layer["runs"]:
            assert sum(run["sizes"]) + run["constant"] + run["isolated"] == side["width"]
            assert run["sizes"] == [run["labels"].count(i) for i in range(len(run["sizes"]))]
            assert len(run["centralities"]) == len(run["amplifications"]) == len(run["sizes"])


def test_coupling_is_that_of_the_communities_of_all_runs(report):
    said = 0
    for _, layer, _ in layers_of(report):
        values, weights = [], []
        for run in layer["runs"]:
            if len(run["sizes"]) > 2:
                values.append(spearmanr(run["centralities"], run["amplifications"]).statistic)
                weights.append(len(run["sizes"]) - 1)
        if values:
            said += 1
            assert layer["coupling"] == pytest.approx(np.average(values, weights=weights), abs=1e-5)
            assert 1 / 100 <= layer["p"] <= 1
    assert said


def test_p_values_are_corrected_for_a_models_layers(report):
    """Holm's: the k-th least of m times m - k + 1, and no less than the one before."""
    for model in report.content["models"]:
        layers = [layer for side in model["sides"] for layer in side["topology"]]
        tested = sorted((x for x in layers if x["p"] is not None), key=lambda x: x["p"])
        expected = [min(1, (len(tested) - k) * x["p"]) for k, x in enumerate(tested)]
        found = [x["corrected_p"] for x in tested]
        assert found == pytest.approx([max(expected[: k + 1]) for k in range(len(tested))])
        assert {x["corrected_p"] for x in layers if x["p"] is None} <= {None}
    assert len(tested) > 1


def test_choices_and_their_sensitivity_are_in_the_file(report):
    graph = report.content["settings"]["graph"]
    assert graph["graph"]["edges"] == 3
    assert (graph["permutations"], graph["gain"]) == (99, "column")
    trained, untrained = report.content["models"]
    assert untrained["sensitivity"] is None
    default, *others = trained["sensitivity"]
    assert (default["choice"], default["agreement"]) == ("default", 1)
    assert ("edges", 6) in [(x["choice"], x["value"]) for x in others]
    layers = [x["coupling"] for side in trained["sides"] for x in side["topology"]]
    assert [*default["coupling"].values()] == [
        None if x is None else pytest.approx(x, abs=1e-5) for x in layers
    ]


def test_communities_and_coupling_of_interventions_are_in_csv_and_page(report):
    found = list(csv.DictReader(io.StringIO(report.csv)))
    layer = report.content["models"][0]["sides"][0]["topology"][0]
    rows = [x for x in found if x["of"] == "communities" and x["trained"] == "1"]
    rows = [x for x in rows if x["side"] == "encoder" and x["name"].startswith("layer 1, run 2,")]
    expected = layer["runs"][1]["amplifications"]
    amplified = [float(x["mean"]) for x in rows if x["measure"] == "amplification"]
    assert amplified == expected
    _, section = report.page.split('<h2 id="choices">What the choices change</h2>')
    assert "<h3>macaron_transformer_tiny</h3>" in section


def test_no_level_of_headings_is_left_out(report):
    levels = [int(x) for x in re.findall(r"<h(\d)", report.page)]
    assert all(below <= above + 1 for above, below in pairwise(levels))
    assert "smallest p for all layers" in report.page
    (effect, *_) = report.content["interventions"]
    assert {"layer_coupling", "intact_layer_coupling"} <= effect["figures"].keys()


def test_choices_are_refused_without_jacobian(data, tmp_path):
    words = ["dynamics", "--path", CHECKPOINT, "--data", data, "-o", tmp_path / "out"]
    with pytest.raises(UserError, match="--graph-edges is for the residual stream: add --jacobian"):
        cli.main([str(word) for word in [*words, "--graph-edges", "3"]])


def test_each_choice_of_the_graph_is_passed_on():
    parser = ArgumentParser()
    residual_stream.add_graph_arguments(parser)
    words = "--graph-correlation spearman --graph-edges 5 --graph-threshold 0.25 "
    words += "--graph-signs positive --graph-resolution 2 --graph-method leiden "
    words += "--graph-centrality strength --graph-gain diagonal --graph-statistic pearson "
    words += "--graph-permutations 77"
    args = parser.parse_args(words.split())
    args.seed = 9
    graph = communities.GraphChoices("spearman", 5, 0.25, "positive", 2, "leiden", seed=9)
    assert residual_stream.graph_choices(args) == coupling.Choices(
        graph, centrality="strength", gain="diagonal", statistic="pearson", permutations=77, seed=9
    )
    args = parser.parse_args([])
    args.seed = 1
    assert residual_stream.graph_choices(args) == coupling.Choices()


def test_names_of_choices_are_those_of_the_command():
    parser = ArgumentParser()
    residual_stream.add_graph_arguments(parser)
    offered = {x.dest: x.choices for x in parser._actions if x.choices}
    expected = {
        "graph_correlation": communities.Correlation,
        "graph_signs": communities.Signs,
        "graph_method": communities.Method,
        "graph_centrality": coupling.Centrality,
        "graph_gain": coupling.Gain,
        "graph_statistic": coupling.Statistic,
    }
    assert offered == {name: get_args(names) for name, names in expected.items()}


def test_a_language_model_has_neither_source_nor_target(tmp_path):
    path = language_model(tmp_path, "transformer_lm")
    with pytest.raises(UserError, match="--source-lang and --target-lang are for translation"):
        models.load([path], tmp_path, source="en")
