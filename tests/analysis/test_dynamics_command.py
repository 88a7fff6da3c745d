"""`macaron-fairseq dynamics`: what it reads, what it writes, what it refuses."""

import base64
import csv
import hashlib
import io
import json
import re
import shutil
import sys
from argparse import Namespace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import build_model
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask
from helpers.html_tables import numbers, tables
from helpers.small import SMALL, arguments, dictionary
from helpers.stored import CHECKPOINT, altered, binarise, noisy, write_test_set
from PIL import Image

from macaron_fairseq import UserError, cli
from macaron_fairseq.analysis import figures, models, sentences
from macaron_fairseq.analysis.by_layer import Measure
from macaron_fairseq.analysis.dynamics import cosines, lines
from macaron_fairseq.analysis.dynamics import page as dynamics_page
from macaron_fairseq.analysis.dynamics import report as dynamics_report
from macaron_fairseq.analysis.dynamics.glossary import ERRORS, JACOBIANS, STATES, STEPS
from macaron_fairseq.common import files
from macaron_fairseq.translation.fairseq_engine import FairseqEngine

LINES = ["er lower, the", "the new", "a is the est", "öl, er"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The stored model's data folder, with a binarised test set of LINES, reversed as target."""
    return write_test_set(tmp_path_factory.mktemp("a data folder") / "data")


def save(path, args, model):
    """A checkpoint of another model, for the rest like the stored one."""
    state = torch.load(CHECKPOINT, weights_only=True)
    state["cfg"]["model"] = Namespace(_name=args.arch, **vars(args))
    torch.save({**state, "model": model.state_dict()}, path)
    return path


def translation_model(path, *flags, types=60):
    args = arguments("transformer", *SMALL, *flags)
    words = dictionary(types)
    task = SimpleNamespace(source_dictionary=words, target_dictionary=words)
    return save(path, args, build_model(args, task))


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory):
    """A data folder of fairseq-preprocess --only-source and a RoBERTa."""
    return masked_language_model(tmp_path_factory, "roberta")


def masked_language_model(tmp_path_factory, arch, **others):
    folder = tmp_path_factory.mktemp("masked_lm")
    words = dictionary()
    words.save(str(folder / "dict.txt"))
    binarise(folder / "test", words, [["w3", "w4", "w5"], ["w6", "w7"]])
    args = Namespace(
        arch=arch,
        encoder_layers=2,
        encoder_embed_dim=16,
        encoder_ffn_embed_dim=24,
        encoder_attention_heads=4,
        tokens_per_sample=12,
        max_positions=12,
        task="masked_lm",
        data=str(folder),
        **others,
    )
    task = MaskedLMTask(MaskedLMConfig(), Dictionary.load(str(folder / "dict.txt")))
    torch.manual_seed(1)
    return SimpleNamespace(
        data=folder, path=save(folder / "roberta.pt", args, task.build_model(args))
    )


def command(data, *args, path=CHECKPOINT, out):
    """Run the command in this process; what it wrote as JSON."""
    paths = path if isinstance(path, list) else [path]
    words = ["dynamics", "--jacobian-sentences", "1", *args, "--path", *paths]
    words += ["--data", data, "--cpu", "-o", out]
    cli.main([str(word) for word in words])
    return json.loads((out / "dynamics.json").read_text("utf-8"))


def refused(data, *args, path=CHECKPOINT, out):
    """The sentence that the command ends with; it writes nothing."""
    with pytest.raises(UserError) as error:
        command(data, *args, path=path, out=out)
    assert not out.exists()
    return str(error.value)


@pytest.fixture(scope="module")
def report(data, tmp_path_factory):
    """Two models on the test set, by the command itself, without a UTF-8 locale."""
    folder = tmp_path_factory.mktemp("report")
    paths = [CHECKPOINT, noisy(CHECKPOINT, folder)]
    flags = ["--label", "Ämterer", "<b>&", "--title", "Two of a kind"]
    with pytest.MonkeyPatch.context() as patch:
        printed = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        patch.setattr(sys, "stdout", printed)
        patch.setattr(sys, "argv", ["macaron-fairseq", "dynamics", "--path", "<path>"])
        content = command(data, *flags, "--jacobian-sentences", "2", path=paths, out=folder / "out")
    return SimpleNamespace(
        printed=printed.buffer.getvalue().decode(),
        written=sorted(path.name for path in (folder / "out").iterdir()),
        page=(folder / "out" / "dynamics.html").read_bytes().decode(),
        content=content,
        csv=(folder / "out" / "dynamics.csv").read_text("utf-8"),
        picture=(folder / "out" / "dynamics.png").read_bytes(),
    )


# --- what it writes ------------------------------------------------------------------------------


def test_numbers(report):
    content = report.content
    assert report.written == [
        *("dynamics-cosines.png", "dynamics.csv", "dynamics.html", "dynamics.json"),
        "dynamics.png",
    ]
    assert content["data"]["sentences"] == 4
    # Each sentence with </s>.
    assert content["data"]["tokens"] == {
        "source": {"tokens": 6 + 3 + 5 + 4, "unknown": 0},
        "target": {"tokens": 6 + 3 + 5 + 4, "unknown": 0},
    }
    assert content["settings"] == {
        **{"threshold": 0.9, "beta": 1.0, "jacobian_sentences": 2, "seed": 1},
        "shown_sentences": 4,
    }
    assert [model["label"] for model in content["models"]] == ["Ämterer", "<b>&"]
    assert {"torch", "numpy", "scipy", "matplotlib"} < content["versions"].keys()
    expected = hashlib.sha256(CHECKPOINT.read_bytes()).hexdigest()
    assert [model["sha256"] == expected for model in content["models"]] == [True, False]
    good, worse = (model["bits_per_token"] for model in content["models"])
    assert 0 < good < worse < 4  # 4 are chance
    one, other = (model["sides"] for model in content["models"])
    assert [side["side"] for side in one] == ["encoder", "decoder"]
    assert one != other
    for side in one:
        for row in side["states"]:
            assert sum(row["cosine_histogram"]) == row["figures"]["cosine"]["n"] == 15 + 3 + 10 + 6


def test_printed_table(report):
    rows = [line for line in report.printed.split("\n") if line.startswith("| ")]
    layers = len(report.content["models"][0]["sides"][0]["layers"])
    assert len(rows) == 2 + 2 * 2 * layers
    cells = rows[3].strip("| ").split(" | ")
    assert cells[:2] == ["encoder 1", "`<b>&`"]
    side = report.content["models"][1]["sides"][0]
    assert cells[2] == f"{side['states'][3]['figures']['cosine']['mean']:#.3g}"
    assert cells[3] == f"{side['states'][3]['cosine_across']:#.3g}"
    assert cells[5] == f"{side['layers'][0]['figures']['step']['mean']:#.3g}"
    assert cells[8] == f"{side['layers'][0]['figures']['local_error_1']['mean']:#.3g}"
    assert cells[9] == f"{side['layers'][0]['local_error_slope']:#.3g}"


def test_picture(report):
    assert report.picture.startswith(b"\x89PNG\r\n\x1a\n")


class Page(HTMLParser):
    """All tags of a page, in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, text):
        self.words.append(text)


def test_page_needs_nothing_else(report):
    page = Page(report.page)
    assert {"link", "iframe", "object"}.isdisjoint(tag for tag, _ in page.tags)
    own = "#|data:image/png;base64,|data:application/json;base64,|data:text/csv;charset=utf-8,"
    for tag, attributes in page.tags:
        assert tag != "script" or "src" not in attributes
        for name in ("src", "href", "xlink:href"):
            assert re.match(own, attributes.get(name, "#")), attributes
    assert not re.findall(r"url\((?!#)|@import", report.page)


def test_the_page_is_marked_up(report):
    tags = [tag for tag, _ in Page(report.page).tags]
    assert tags.count("main") == tags.count("h1") == 1
    assert tags.count("nav") == 1  # the contents; legends are lists
    assert tags.count("caption") == tags.count("table") > 0
    labels = [x.get("aria-label") for tag, x in Page(report.page).tags if tag == "ul"]
    assert "Legend" in labels


def test_histograms_are_of_the_states_between_layers(report):
    """Of many layers eight, with the first and the last."""
    side = report.content["models"][0]["sides"][1]
    layers = len(side["layers"])
    assert [x["time"] for x in cosines.shown(side)] == [*range(layers + 1)]
    many = [{"time": i / 2, "cosine_histogram": [1]} for i in range(49)]
    assert [x["time"] for x in cosines.shown({"states": many})] == [0, 3, 7, 10, 14, 17, 21, 24]


def test_histograms_have_the_colours_of_their_models(report):
    """Their areas are raster images, one for each model and side."""
    images = re.findall(r'href="data:image/png;base64,\s*([^"]+)"', report.page)
    assert len(images) == 2 * 2
    strongest = []
    for image in images:
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(image))).convert("RGBA"))
        strongest.append(pixels[pixels[..., 3] == pixels[..., 3].max()][0, :3].tolist())
    for (red, _, blue), is_blue in zip(strongest, (True, False) * 2, strict=True):
        assert (blue > red) == is_blue


def test_csv_has_the_means_of_the_json_file(report):
    rows = list(csv.DictReader(io.StringIO(report.csv)))
    content = report.content
    for label, model in zip(("Ämterer", "<b>&"), content["models"], strict=True):
        for side in model["sides"]:
            for of in ("states", "layers"):
                for row in side[of]:
                    found = {
                        x["measure"]: x
                        for x in rows
                        if (x["model"], x["side"], x["of"]) == (label, side["side"], of)
                        and (x["name"], x["time"]) == (row["name"], str(row["time"]))
                    }
                    for name, figure in row["figures"].items():
                        if figure["mean"] is not None:
                            assert float(found[name]["mean"]) == figure["mean"]
                            assert int(found[name]["n"]) == figure["n"]
                    for name in ("cosine_across", "local_error_slope"):
                        value = row.get(name)
                        assert value is None or float(found[name]["mean"]) == value


def test_names_in_the_page_are_unique_and_known(report):
    page = Page(report.page)
    names = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(names)) == len(names)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', report.page))
    assert used
    assert used <= set(names)


def test_pictures_are_described_and_follow_the_theme(report):
    pictures = [attributes for tag, attributes in Page(report.page).tags if tag == "svg"]
    # Each side: two histograms; 8 of states; 11 of moves, for each operator and whole layers.
    assert len(pictures) == 2 * (2 + 8) + 11 * (3 + 4)
    assert all(p["role"] == "img" and len(p["aria-label"]) > 30 for p in pictures)
    first = report.content["models"][0]["sides"][0]["states"][0]["figures"]["norm"]["mean"]
    assert any(
        p["aria-label"].startswith(f"Length by layer. Ämterer: {first:.3g} at 0") for p in pictures
    )
    assert "1st in the layer" in report.page  # in a legend
    assert "var(--series-0)" in report.page
    assert "var(--series-1)" in report.page
    assert "#010203" not in report.page  # the colour that stands for the text's
    assert "prefers-color-scheme: dark" in report.page


def test_page_shows_the_figures_and_what_made_them(report):
    words = " ".join(Page(report.page).words)
    assert "Two of a kind" in words
    assert "<b>&" in words  # as text
    assert "macaron-fairseq dynamics --path '<path>'" in words
    assert f"{report.content['models'][0]['bits_per_token']:.3g} bits per token of the ref" in words


@pytest.mark.parametrize("place", [0, 1])
def test_the_tables_have_the_means_and_deviations_of_every_row(place, report):
    side = report.content["models"][1]["sides"][place]
    name, found = side["side"].capitalize(), tables(report.page)
    moves = [*STEPS.measures, *JACOBIANS.measures, *ERRORS.measures]
    for caption, rows, measures in (
        ("states", side["states"], STATES.measures),
        ("sub-layers and layers", [*side["states"][1:], *side["layers"]], moves),
    ):
        table = found["<b>&", f"{name}, {caption}"]
        assert [row for row, _ in table] == [row["name"] for row in rows]
        for (_, cells), row in zip(table, rows, strict=True):
            assert [*cells] == [measure.title for measure in measures]
            for measure in measures:
                figure = row["figures"].get(measure.name) or {"mean": row.get(measure.name)}
                expected = [x for x in (figure["mean"], figure.get("sd")) if x is not None]
                assert numbers(cells[measure.title]) == pytest.approx(expected, rel=5e-3)


@pytest.mark.usefixtures("no_translation", "undrawn")
def test_page_of_single_tokens(data, tmp_path):
    (tmp_path / "text").write_text("the new\n")
    content = command(data, tmp_path / "text", out=tmp_path / "out")
    encoder, decoder = content["models"][0]["sides"]
    assert encoder["states"][0]["figures"]["cosine"]["n"] == 3
    assert "cosine" not in decoder["states"][0]["figures"]
    titles = re.findall(
        "<h[24].*?>(.+?)</h", (tmp_path / "out" / "dynamics.html").read_text("utf-8")
    )
    assert "Mean cosine" in titles[: titles.index("Decoder")]
    assert "Mean cosine" not in titles[titles.index("Decoder") :]
    assert "Length" in titles[titles.index("Decoder") :]


@pytest.fixture
def no_translation(monkeypatch):
    """A model that ends each translation at once."""
    monkeypatch.setattr(FairseqEngine, "search", lambda self, batch: [[] for _ in batch])


# --- what it reads -------------------------------------------------------------------------------


@pytest.fixture
def no_pictures(monkeypatch):
    """Drawing takes most of the time with models of this size."""
    monkeypatch.setattr(dynamics_page, "page", lambda content, downloads: "")
    monkeypatch.setattr(dynamics_report, "overview", lambda models: b"")
    monkeypatch.setattr(cosines, "histograms_png", lambda models: b"")


@pytest.mark.usefixtures("no_pictures")
def test_raw_text_and_data_set_give_the_same(data, report, tmp_path):
    (tmp_path / "in.en").write_text("\n".join([*LINES[:3], "", LINES[3]]) + "\n", "utf-8")
    # The target side of the data set, as text: its tokens are those of the merges too.
    (tmp_path / "in.de").write_text("the, er lower\nnew the\nest the is a\n\ner, öl\n", "utf-8")
    binarised = command(data, out=tmp_path / "a")
    raw = command(data, tmp_path / "in.en", out=tmp_path / "b")
    assert raw["data"]["source"] == str(tmp_path / "in.en")
    assert raw["data"]["sentences"] == 4
    assert raw["models"][0]["sides"][0] == binarised["models"][0]["sides"][0]
    # The stored model reverses: without TARGET its decoder reads what is in the data set.
    assert raw["data"]["decoder"].startswith("reads the model's own translation")
    assert raw["models"][0]["bits_per_token"] is None
    assert raw["models"][0]["sides"][1] == binarised["models"][0]["sides"][1]
    given = command(data, tmp_path / "in.en", "--target", tmp_path / "in.de", out=tmp_path / "c")
    assert given["data"]["decoder"] == "reads the reference, as in training"
    assert given["data"]["tokens"]["target"] == {"tokens": 18, "unknown": 0}
    assert given["models"][0]["sides"][0] == binarised["models"][0]["sides"][0]


def test_standard_input_is_one_text(data, tmp_path):
    with pytest.raises(UserError, match="INPUT and --target cannot both be standard input"):
        command(data, "-", "--target", "-", out=tmp_path / "out")


def test_a_file_is_no_folder_to_write_to(data, tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(UserError, match=f"^{tmp_path}/out is a file: name a folder"):
        command(data, out=tmp_path / "out")


@pytest.mark.usefixtures("no_pictures")
def test_standard_input(data, tmp_path, monkeypatch):
    (tmp_path / "in").write_text("the new\n")
    with (tmp_path / "in").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        content = command(data, "-", out=tmp_path / "out")
    assert content["data"]["source"] == "standard input"
    assert content["data"]["tokens"] == {"source": {"tokens": 3, "unknown": 0}}


@pytest.mark.usefixtures("no_pictures")
def test_folder_of_fairseq_preprocess_alone(data, tmp_path):
    folder = shutil.copytree(data / "data-bin", tmp_path / "bin")
    (tmp_path / "tokens").write_text("er low@@ er , the\nthe nothing\n", "utf-8")
    few = ["--sentences", "2"]
    expected = command(data, *few, out=tmp_path / "a", path=CHECKPOINT)
    content = command(folder, *few, out=tmp_path / "b")
    assert content["models"][0]["sides"] == expected["models"][0]["sides"]
    raw = command(folder, tmp_path / "tokens", out=tmp_path / "c")
    assert raw["data"]["tokens"]["source"] == {"tokens": 6 + 3, "unknown": 1}
    # A set of the other direction's name.
    for path in [*folder.glob("test.en-de.*")]:
        path.rename(folder / path.name.replace("en-de", "de-en"))
    languages = ["--source-lang", "en", "--target-lang", "de"]
    found = command(folder, *languages, *few, out=tmp_path / "d")
    assert found["models"][0]["sides"] == expected["models"][0]["sides"]


@pytest.mark.usefixtures("no_pictures")
def test_number_of_sentences(data, tmp_path):
    content = command(data, "--sentences", "2", out=tmp_path / "out")
    assert content["data"]["tokens"]["source"]["tokens"] == 6 + 3


@pytest.mark.usefixtures("undrawn")
def test_baseline_beside_macaron(data, tmp_path):
    words = Dictionary.load(str(data / "data-bin" / "dict.en.txt"))
    args = arguments("transformer", *SMALL)
    task = SimpleNamespace(source_dictionary=words, target_dictionary=words)
    torch.manual_seed(1)
    path = save(tmp_path / "transformer.pt", args, build_model(args, task))
    content = command(data, path=[path, CHECKPOINT], out=tmp_path / "out")
    assert [model["label"] for model in content["models"]] == [
        *("transformer", "macaron_transformer_tiny")
    ]
    assert [side["norm"] for model in content["models"] for side in model["sides"]] == [
        *("post", "post", "pre", "pre")
    ]
    page = (tmp_path / "out" / "dynamics.html").read_text("utf-8")
    assert "states after the LayerNorm" in page
    assert re.search(r"transformer: \S+ at 1 to .*tiny \(2nd in the layer\): \S+ at 1 to", page)


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("arch", ["roberta", "masked_lm"])
def test_masked_language_model(arch, tmp_path_factory, tmp_path):
    masked_lm = masked_language_model(tmp_path_factory, arch)
    content = command(masked_lm.data, path=masked_lm.path, out=tmp_path / "a")
    assert content["data"]["tokens"] == {"source": {"tokens": 5 + 4, "unknown": 0}}  # <s>, </s>
    assert content["data"]["decoder"] == "none, the models are encoders; no token is masked"
    assert content["models"][0]["bits_per_token"] is None
    sides = content["models"][0]["sides"]
    assert [(side["side"], side["norm"]) for side in sides] == [("encoder", "post")]
    (tmp_path / "text").write_text("w3 w4 w5\nw6 w7\n")
    raw = command(masked_lm.data, tmp_path / "text", path=masked_lm.path, out=tmp_path / "b")
    assert raw["models"][0]["sides"] == sides


def test_the_order_of_a_masked_language_model(tmp_path_factory, tmp_path):
    """By the other command that measures trained models, which wants pre-norm and no GELU."""
    settings = {"encoder_normalize_before": True, "activation_fn": "tanh"}
    model = masked_language_model(tmp_path_factory, "roberta", **settings)
    names = ["--scheme", "parallel", "--substep", "euler", "midpoint"]
    words = ["order", "--path", model.path, "--data", model.data, *names, "-o", tmp_path / "out"]
    cli.main([str(word) for word in words])
    found = json.loads((tmp_path / "out" / "order.json").read_text("utf-8"))["results"]
    assert {x["side"] for x in found} == {"encoder"}
    for x in found:
        expected = {"euler": 2, "midpoint": 3}[x["substep"]]
        assert x["slope"] == pytest.approx(expected, abs=0.2)


# --- what it refuses -----------------------------------------------------------------------------


def test_unsupported_model(data, tmp_path):
    path = tmp_path / "model.pt"
    torch.save({"args": Namespace(arch="lightconv_iwslt_de_en"), "model": {}}, path)
    assert refused(data, path=path, out=tmp_path / "out") == (
        f"{path} holds a model of the architecture lightconv_iwslt_de_en, which is not supported: "
        "supported are the Macaron models with their baselines, and fairseq's transformer, "
        "transformer_lm, roberta and masked_lm"
    )


def test_model_without_a_name(data, tmp_path):
    torch.save({"model": {}}, tmp_path / "model.pt")
    message = refused(data, path=tmp_path / "model.pt", out=tmp_path / "out")
    assert message.endswith("does not say which model it holds: use one of fairseq-train")


def test_missing_checkpoint(data, tmp_path):
    assert refused(data, path=tmp_path / "no.pt", out=tmp_path / "out") == (
        f"{tmp_path / 'no.pt'}: no such checkpoint"
    )


def test_models_of_two_kinds(data, masked_lm, tmp_path):
    assert "compare models of one kind" in refused(
        data, path=[CHECKPOINT, masked_lm.path], out=tmp_path / "out"
    )


def test_different_dictionaries(data, tmp_path):
    path = translation_model(tmp_path / "other.pt")
    assert refused(data, path=[CHECKPOINT, path], out=tmp_path / "out") == (
        f"{CHECKPOINT} and {path} were trained with different dictionaries, of 16 and 64 types: "
        "compare models of the same data"
    )


def test_other_dictionary_than_the_data(data, masked_lm, tmp_path):
    path = translation_model(tmp_path / "other.pt")
    assert "embeds 64 source types, but the source dictionary has 16" in refused(
        data, path=path, out=tmp_path / "out"
    )
    folder = tmp_path / "bin"
    folder.mkdir()
    dictionary(20).save(str(folder / "dict.txt"))
    assert "embeds 65 types, but the dictionary in" in refused(
        folder, path=masked_lm.path, out=tmp_path / "out"
    )


@pytest.mark.usefixtures("no_pictures")
def test_dictionary_of_the_same_size_by_the_manifest(data, tmp_path):
    run_folder = tmp_path / "seed1" / "averaged"
    run_folder.mkdir(parents=True)
    path = shutil.copy(CHECKPOINT, run_folder / "checkpoint.pt")
    used = data / "data-bin" / "dict.de.txt"
    manifest = {"data": {"sha256": {"dict.de.txt": files.sha256(used)}}}
    (tmp_path / "seed1" / "manifest.json").write_text(json.dumps(manifest))
    command(data, "--sentences", "1", path=path, out=tmp_path / "out")
    manifest["data"]["sha256"]["dict.de.txt"] = "0"
    (tmp_path / "seed1" / "manifest.json").write_text(json.dumps(manifest))
    assert f"was trained with another dictionary than {used}" in refused(
        data, path=path, out=tmp_path / "other"
    )


@pytest.mark.usefixtures("no_pictures")
def test_dictionary_of_the_same_size_by_the_training_folder(data, tmp_path):
    own = shutil.copytree(data / "data-bin", tmp_path / "own")
    path = trained_in(f"{own}:{tmp_path / 'shard2'}", tmp_path / "absolute.pt")
    command(data, "--sentences", "1", path=path, out=tmp_path / "a")
    (own / "dict.de.txt").write_text("other 1\n")
    assert refused(data, path=path, out=tmp_path / "out") == (
        f"{path} was trained with the dictionary {own / 'dict.de.txt'}, and "
        f"{data / 'data-bin' / 'dict.de.txt'} is another: compare models of the same data, and "
        "give its folder"
    )
    shutil.rmtree(own)
    command(data, "--sentences", "1", path=path, out=tmp_path / "b")


def test_a_training_folder_that_may_be_another_is_not_read(data, tmp_path, monkeypatch):
    (tmp_path / "data-bin").mkdir()
    (tmp_path / "data-bin" / "dict.de.txt").write_text("other 1\n")
    monkeypatch.chdir(tmp_path)
    assert models.read(trained_in("data-bin", tmp_path / "relative.pt")).data is None
    assert models.read(CHECKPOINT).data is None


def trained_in(folder, path):
    """The stored checkpoint, as if it had been trained with another data folder."""
    state = torch.load(CHECKPOINT, weights_only=True)
    state["cfg"]["task"]["data"] = folder
    torch.save(state, path)
    return path


def test_references_less_likely_than_chance(data, tmp_path):
    (tmp_path / "in.en").write_text("the new est the er\nis a new a is\n")
    (tmp_path / "in.de").write_text("öl , öl , öl\n" * 2, "utf-8")
    message = refused(
        data, tmp_path / "in.en", "--target", tmp_path / "in.de", out=tmp_path / "out"
    )
    assert re.fullmatch(
        rf"{CHECKPOINT} needs (\d+\.\d) bits for a token of these sentences, worse than chance, "
        r"which needs 4\.0: was it trained with another dictionary, or in the other direction\?",
        message,
    )


def test_labels_tell_the_checkpoints_apart(tmp_path):
    def stored(name, **model_arguments):
        (tmp_path / name).mkdir()
        return altered(CHECKPOINT, tmp_path / name, **model_arguments)

    def labels(paths):
        return models.labels([models.read(path) for path in paths])

    lie = stored("a", macaron_scheme="lie-trotter")
    midpoint = stored("b", macaron_substep="midpoint")
    mixed = stored("m", macaron_encoder_scheme="parallel")
    baseline = stored("c", _name="transformer", arch="transformer", macaron_scheme=None)
    assert labels([CHECKPOINT]) == ["macaron_transformer_tiny"]
    assert labels([baseline, CHECKPOINT]) == ["transformer", "macaron_transformer_tiny"]
    assert labels([baseline, CHECKPOINT, lie, midpoint, mixed]) == [
        *("transformer", "strang-marchuk", "lie-trotter", "strang-marchuk, midpoint"),
        "encoder parallel, strang-marchuk",
    ]
    same = stored("d")
    found = labels([CHECKPOINT, same])
    assert [str(path).endswith(x) for path, x in zip((CHECKPOINT, same), found, strict=True)]
    assert len({*found}) == 2 and not any(Path(x).is_absolute() for x in found)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["runs/a/seed1/x.pt", "runs/b/seed1/x.pt"], ["a", "b"]),
        (
            ["runs/a/seed1/x.pt", "runs/a/seed2/x.pt", "c/x.pt"],
            ["runs/a/seed1", "runs/a/seed2", "c"],
        ),
        (["x.pt", "a/x.pt"], ["x.pt", "a/x.pt"]),
        (["/x.pt", "/y.pt"], ["x.pt", "y.pt"]),
        (["a/x.pt", "a/x.pt"], ["x.pt", "x.pt"]),
    ],
)
def test_paths_are_named_by_what_differs(paths, names):
    assert models.what_differs([Path(x) for x in paths]) == names


def test_sentence_longer_than_the_positions(data, masked_lm, tmp_path):
    short = altered(CHECKPOINT, tmp_path, max_source_positions=5)
    assert refused(data, path=short, out=tmp_path / "out") == (
        "sentence 1 has 6 source tokens, its end included, more than the 5 positions of "
        f"{short}: leave it out, as --longest 5 does"
    )
    short = altered(CHECKPOINT, tmp_path, max_target_positions=5)
    assert "sentence 1 has 6 target tokens" in refused(data, path=short, out=tmp_path / "out")
    (tmp_path / "text").write_text("w1\n" + "w3 " * 11 + "\n")
    assert "sentence 2 has 13 source tokens, its end included, more than the 12" in refused(
        masked_lm.data, tmp_path / "text", path=masked_lm.path, out=tmp_path / "out"
    )


@pytest.mark.parametrize("text", ["", "\n  \n"])
def test_empty_file(data, tmp_path, text):
    (tmp_path / "text").write_text(text)
    assert refused(data, tmp_path / "text", out=tmp_path / "out") == (
        f"{tmp_path / 'text'} holds no sentence: give text that is not empty"
    )


def test_empty_data_set(data, tmp_path):
    folder = shutil.copytree(data / "data-bin", tmp_path / "bin")
    words = Dictionary.load(str(folder / "dict.en.txt"))
    for language in ("en", "de"):
        binarise(folder / f"test.en-de.{language}", words, [[]])
    assert "the set test of" in refused(folder, out=tmp_path / "out")
    assert "holds no sentence" in refused(folder, out=tmp_path / "out")


@pytest.mark.parametrize("content", [b"TNTIDX\x00\x00" + bytes(30), b"something else" + bytes(30)])
def test_damaged_data_set(data, tmp_path, content):
    folder = shutil.copytree(data / "data-bin", tmp_path / "bin")
    (folder / "test.en-de.en.idx").write_bytes(content)
    assert f"cannot read the set test of {folder}: " in refused(folder, out=tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "size"), [("de.idx", 0), ("de.idx", 12), ("en.idx", 40), ("en.bin", 10)]
)
def test_truncated_data_set(data, tmp_path, name, size):
    folder = shutil.copytree(data / "data-bin", tmp_path / "bin")
    path = folder / f"test.en-de.{name}"
    path.write_bytes(path.read_bytes()[:size])
    expected = f"{path} is truncated"
    assert expected in refused(folder, out=tmp_path / "out")


def test_data_set_of_another_dictionary(data, tmp_path):
    folder = shutil.copytree(data / "data-bin", tmp_path / "bin")
    words = dictionary()
    binarise(folder / "test.en-de.en", words, [["w50"]])
    binarise(folder / "test.en-de.de", words, [["w1"]])
    assert refused(folder, out=tmp_path / "out") == (
        f"the set test of {folder} was made with another dictionary than is there"
    )


def test_missing_data(data, tmp_path):
    assert refused(tmp_path / "no", out=tmp_path / "out") == f"{tmp_path / 'no'}: no such folder"
    assert "has no file valid.en-de.en.idx: choose a set with --gen-subset" in refused(
        data, "--gen-subset", "valid", out=tmp_path / "out"
    )
    (tmp_path / "empty").mkdir()
    assert "does not tell its languages: name them with --source-lang" in refused(
        tmp_path / "empty", out=tmp_path / "out"
    )
    for pair in (("de", "de"), ("en", "en")):
        words = ["--source-lang", pair[0], "--target-lang", pair[1]]
        assert f"are both {pair[0]}: name two" in refused(data, *words, out=tmp_path / "out")
    languages = ["--source-lang", "en", "--target-lang", "de"]
    assert f"{tmp_path / 'empty' / 'dict.en.txt'} is missing" in refused(
        tmp_path / "empty", *languages, out=tmp_path / "out"
    )


@pytest.mark.parametrize(
    "named, pair",
    [
        ((None, None), ("en", "de")),
        (("en", None), ("en", "de")),
        ((None, "en"), ("de", "en")),
        (("de", None), ("de", "en")),
        (("de", "en"), ("de", "en")),
    ],
)
def test_one_language_tells_the_other(named, pair, data):
    for folder in (data, data / "data-bin"):
        assert sentences.open_translation(folder, *named).pair == pair


@pytest.mark.parametrize("shorter", ["source", "target"])
def test_files_of_different_lengths(data, tmp_path, shorter):
    source, target = tmp_path / "source", tmp_path / "target"
    for path in (source, target):
        path.write_text("the new\n" * (2 if path.name == shorter else 3))
    long = target if shorter == "source" else source
    assert refused(data, source, "--target", target, out=tmp_path / "out") == (
        f"{tmp_path / shorter} ends after 2 lines, and {long} has more: line N of one must be the "
        "translation of line N of the other"
    )


def test_flags_that_do_not_go_together(data, masked_lm, tmp_path):
    (tmp_path / "text").write_text("w1\n")
    text = tmp_path / "text"
    assert "--target is for translation models" in refused(
        masked_lm.data, text, "--target", text, path=masked_lm.path, out=tmp_path / "out"
    )
    assert "--target is the translation of INPUT" in refused(
        data, "--target", tmp_path / "x", out=tmp_path / "out"
    )
    assert "needs a label: there are 2 for 1 checkpoints" in refused(
        data, "--label", "a", "b", out=tmp_path / "out"
    )


def side_of(times):
    """A side of one layer in which an operator occurs so many times, as its rows stand."""
    figures = {"size": {"mean": 2.0, "sd": 0.1}}
    rows = [
        {"operator": "ffn", "occurrence": n, "time": n / times, "layer": 1, "figures": figures}
        for n in range(1, times + 1)
    ]
    return {"side": "encoder", "states": rows, "layers": [], "sublayers": rows}


def test_an_operator_that_occurs_many_times_has_a_dash_of_its_own():
    """It stands for all of them, next to a model that has the operator once."""
    found = lines.move_lines([side_of(1), side_of(4)], Measure("size", "Size", "How large."), "ffn")
    assert [(x.dash, x.label) for x in found] == [(0, "1st in the layer"), (3, "all in the layer")]
    assert found[1].x == [0.25, 0.5, 0.75, 1]
    three = lines.move_lines([side_of(3)], Measure("size", "Size", "How large."), "ffn")
    assert [x.dash for x in three] == [0, 1, 2] and len({*figures.DASHES}) == 4


def test_models_of_one_name_are_refused(data, tmp_path):
    for flags in ([], ["--label", "a", "a"]):
        said = refused(data, *flags, path=[CHECKPOINT, CHECKPOINT], out=tmp_path / "out")
        assert said == "two models have the same name: give each another label"


def test_a_sentence_with_padding_is_refused(data, tmp_path):
    folder = data / "data-bin"  # whose text is tokens, where no preprocessing.json says otherwise
    (tmp_path / "text").write_text("the new\nthe <pad> new\n")
    languages = ["--source-lang", "en", "--target-lang", "de"]
    said = refused(folder, tmp_path / "text", *languages, out=tmp_path / "out")
    assert said.endswith(
        "sentence 2 holds <pad>, the symbol of padding, which models leave out: remove it"
    )


def test_test_sets_have_the_names_that_a_recipe_gave_them(tmp_path):
    """Of several, fairseq calls the first test and the second test1; without merges, too."""
    folder = write_test_set(tmp_path / "data", ["the new"])
    for path in (folder / "data-bin").glob("test.*"):
        shutil.copy(path, path.with_name(path.name.replace("test.", "test1.")))
    words = sentences.read_dictionary(folder / "data-bin" / "dict.en.txt")
    binarise(folder / "data-bin" / "test1.en-de.en", words, [["öl", "er"]])
    (folder / "code").unlink()
    description = json.loads((folder / "preprocessing.json").read_text())
    (folder / "preprocessing.json").write_text(
        json.dumps({**description, "tests": ["dev", "test"]})
    )

    opened = sentences.open_translation(folder, None, None)
    for name, first, where in (
        ("dev", "the", "set dev, which is test"),
        ("test", "öl", "set test, which is test1"),
        ("test1", "öl", "set test1"),
    ):
        sample = sentences.read(opened, subset=name)
        assert words[sample.sentences[0].source[0]] == first
        assert sample.where == f"{folder / 'data-bin'}, {where}"
    with pytest.raises(UserError, match=r"choose a set with --gen-subset \(dev, test\), or"):
        sentences.read(opened, subset="valid")


def test_words_that_nothing_has_split_are_told(data, capsys):
    folder = data / "data-bin"
    opened = sentences.open_translation(folder, "en", "de")
    for text, unknown in ((["the new"], 0), (["the new conference."], 1)):
        sentences.read(opened, text)
        said = capsys.readouterr().err
        expected = (
            f"read as tokens with spaces between: {unknown} of {len(text[0].split()) + 1} are "
        )
        assert said == "" if not unknown else expected in said and str(folder) in said
    sentences.read(sentences.open_translation(data, None, None), ["the new conference."])
    assert not capsys.readouterr().err


@pytest.mark.parametrize("name", ["news.en", "empty.en", "-"])
def test_input_after_the_checkpoints(data, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "news.en").write_text("the new\n")
    (tmp_path / "empty.en").touch()
    assert refused(data, path=[CHECKPOINT, CHECKPOINT, name], out=tmp_path / "out") == (
        f"{name} is not a checkpoint, but --path takes all after it: name INPUT before --path, "
        "or after another option"
    )


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--threshold", "2"], "2 is not a cosine"),
        (["--beta", "0"], "0 is not a finite number above 0"),
        (["--beta", "inf"], "inf is not a finite number above 0"),
        (["--sentences", "0"], "0 is not a whole number above 0"),
        (["--shown-sentences", "-1"], "-1 is not a whole number of 0 or more"),
    ],
)
def test_bad_numbers(data, tmp_path, capsys, flags, sentence):
    with pytest.raises(SystemExit):
        command(data, *flags, out=tmp_path / "out")
    assert sentence in capsys.readouterr().err
