"""The package in Python, against fairseq's hub, sacreBLEU, arithmetic and the commands' output."""

import argparse
import doctest
import inspect
import json
import math
import re
import shutil
import statistics
import sys
import time
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import sacrebleu
import torch
from helpers.paths import FIXTURES
from helpers.run_folders import BASE, MACARON, make_run, sentences, write_lines
from helpers.stored import CHECKPOINT, noisy, random_words, write_test_set

import macaron_fairseq
from macaron_fairseq import UserError, api, cli
from macaron_fairseq.analysis import anatomy, trajectories
from macaron_fairseq.analysis import models as trained
from macaron_fairseq.analysis import sentences as reading
from macaron_fairseq.analysis.residual import depth
from macaron_fairseq.commands import searching
from macaron_fairseq.model import transformer
from macaron_fairseq.schemes import splitting
from macaron_fairseq.translation.ctranslate2_export import export

# In lower case, which the data folder's steps make anyway, and fairseq's hub does not.
LINES = ["er lower, the", 'lower "er" the', "öl, est lowest, is a"]
LINES += [" ".join(words) for words in random_words(20, longest=16)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_test_set(tmp_path_factory.mktemp("a data folder") / "data")


@pytest.fixture(scope="module")
def models(data):
    """Two checkpoints of the stored model, of which one errs often."""
    (data.parent / "checkpoint.pt").write_bytes(CHECKPOINT.read_bytes())
    return [data.parent / "checkpoint.pt", noisy(CHECKPOINT, data.parent)]


# --- translation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["checkpoint.pt", "noisy.pt", "checkpoint.pt:noisy.pt"])
def test_translations_are_those_of_fairseqs_hub(data, models, which):
    """One model and two, with the search that each call asks for."""
    hub = transformer.MacaronTransformerModel.from_pretrained(  # with fairseq's search and kernels
        *(str(data.parent), which, str(data / "data-bin")),
        **{"source_lang": "en", "target_lang": "de", "tokenizer": "moses"},
        **{"bpe": "subword_nmt", "bpe_codes": str(data / "code"), "moses_no_dash_splits": True},
        macaron_kernels="fairseq",
    )
    paths = [data.parent / name for name in which.split(":")]
    model = macaron_fairseq.load(paths if len(paths) > 1 else str(paths[0]), data=data, cpu=True)
    found = []
    for search in ({"beam": 4, "lenpen": 0.3}, {"beam": 1, "max_len_b": 5}, {}):
        found.append(model.translate(LINES, **search))
        assert found[-1] == hub.translate(LINES, **{"beam": 5} | search)
    assert found[0] != found[1]
    assert model.translate(LINES[0]) == found[2][0]


def test_no_sentences_and_empty_ones(data, models):
    model = macaron_fairseq.load(models[0], data, cpu=True)
    assert model.translate([]) == []
    assert model.translate(["", "the new", " "]) == ["", "new the", ""]
    assert model.translate("") == ""


def test_an_export_translates_as_its_checkpoint(data, models, tmp_path):
    pytest.importorskip("ctranslate2")
    export(str(models[0]), data, tmp_path / "ct2", "float32")
    exported = macaron_fairseq.load(tmp_path / "ct2", data, cpu=True)
    model = macaron_fairseq.load(models[0], data, cpu=True)
    for search in ({"beam": 4}, {"beam": 1}):
        assert exported.translate(LINES, **search) == model.translate(LINES, **search)


def test_what_cannot_be_loaded(data, models, tmp_path):
    for path, sentence in (
        (tmp_path, "is a folder and no export: name a checkpoint in it"),
        ([tmp_path, tmp_path], "an ensemble is of checkpoints"),
        (tmp_path / "none.pt", "none.pt: no such checkpoint"),
    ):
        with pytest.raises(UserError, match=sentence):
            macaron_fairseq.load(path, data)
    with pytest.raises(UserError, match=r"preprocessing\.json is missing"):
        macaron_fairseq.load(models[0], tmp_path)
    model = macaron_fairseq.load(models[0], data, cpu=True)
    for search, sentence in (
        ({"beam": 2000}, "--beam is 2000: give a whole number from 1 to 1000"),
        ({"beam": "5"}, "--beam is '5': give"),
        ({"max_len_b": 0}, "--max-len-a 0.0 and --max-len-b 0 leave the translation of a word no"),
        ({"max_len_b": 10.0}, "--max-len-b is 10.0: give a whole number from 0"),
        ({"batch_size": 0}, "a batch of 0 sentences and 4096 tokens holds none"),
        ({"max_tokens": 0}, "a batch of 128 sentences and 0 tokens holds none"),
        ({"max_tokens": "9"}, "max_tokens is '9': give a whole number above 0"),
        ({"batch_size": 2.5}, "batch_size is 2.5: give a whole number above 0"),
        ({"beam": True}, "--beam is True: give a whole number"),
        ({"lenpen": 20}, "--lenpen is 20: give a number from -10 to 10"),
    ):
        with pytest.raises(UserError, match=sentence):
            model.translate("the", **search)
    for text in (["a", None], b"abc", ["a", b"b"]):
        with pytest.raises(UserError, match=r"^the sentences are to be str, and line [12] is "):
            model.translate(text)
    shutil.copytree(data, tmp_path / "without merges")
    (tmp_path / "without merges" / "code").unlink()
    with pytest.raises(UserError, match="code"):
        macaron_fairseq.load(models[0], tmp_path / "without merges", cpu=True)
    for words in (("x" * 5000, data), (models[0], "x" * 5000)):
        with pytest.raises(UserError, match="looks like text: give the name of a file or folder"):
            macaron_fairseq.load(*words)


def test_the_limits_of_the_length_penalty_give_numbers(data, models):
    model = macaron_fairseq.load(models[0], data, cpu=True)
    for lenpen in (-10, 10):
        assert model.translate("er " * 60, lenpen=lenpen)


def test_threads_that_share_a_model_take_turns():
    """Each with its own search."""

    class Slow:
        max_length, busy, search = 10, 0, None

        def set_search(self, search):
            self.search = search

        def longest(self, batch):
            return 100

        def translate(self, batches):
            self.busy += 1
            time.sleep(0.05)
            assert self.busy == 1
            yield from ([[str(self.search.beam)] for _ in batch] for batch in batches)
            self.busy -= 1

    data = types.SimpleNamespace(
        source="en", encoder=lambda _: str.split, decode=lambda lines: [" ".join(x) for x in lines]
    )
    model = api.Translator(Slow(), data)
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda beam: model.translate("a line", beam=beam), range(1, 9))]
    assert found == [str(beam) for beam in range(1, 9)]


def test_half_a_character_is_none():
    """As of a JSON string that was cut within an emoji."""
    assert api.whole_characters("12 \ud800 kg") == "12 \ufffd kg"
    assert api.whole_characters("\ud83d\ude00 ö") == "\U0001f600 ö"


# --- scores and reports --------------------------------------------------------------------------


@pytest.mark.parametrize("lowercase", [False, True])
def test_scores_are_sacrebleus_own_and_those_of_the_command(lowercase, tmp_path):
    references, hypotheses = sentences(), [line.lower() for line in sentences(0.3)]
    bleu, chrf = macaron_fairseq.score(hypotheses, references, "de", lowercase=lowercase)
    own = sacrebleu.corpus_bleu(hypotheses, [references], lowercase=lowercase)
    assert (bleu.metric, bleu.score) == ("BLEU", own.score)
    assert (
        chrf.score
        == sacrebleu.CHRF(lowercase=lowercase).corpus_score(hypotheses, [references]).score
    )
    assert f"BLEU {own.score:.2f} (nrefs:1|case:{'lc' if lowercase else 'mixed'}|" in str(bleu)

    for name, lines in (("hypotheses", hypotheses), ("references", references)):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    names = ["bleu", "chrf", "compound-split-bleu"]
    words = ["score", tmp_path / "hypotheses", "--plain", "--reference", tmp_path / "references"]
    words += ["--target-lang", "de", "--metric", *names, "--json", tmp_path / "scores.json"]
    cli.main([str(word) for word in words] + ["--lowercase"] * lowercase)
    recorded = json.loads((tmp_path / "scores.json").read_text())["scores"]
    files = tmp_path / "hypotheses", tmp_path / "references"
    found = macaron_fairseq.score(*files, "de", names, lowercase=lowercase)
    assert [vars(score) for score in found] == recorded


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("a b", ["a b"], "de"), "the hypotheses are one str: give a list of them"),
        (
            (["a"], ["a", "b"], "de"),
            "lines in the hypotheses as in the references, but there are 1 and 2",
        ),
        ((["a"], [" "], "de"), "the references, line 1 is empty"),
        (
            (["a", math.nan], ["a", "b"], "de"),
            "the hypotheses are to be str, and line 2 is nan",
        ),
        ((["a"], ["a"], "de", ["blue"]), "unknown metric 'blue': .* Did you mean bleu"),
        ((["a"], ["a"], "de", ["tokenised-bleu"]), "compares the model's tokens"),
    ],
)
def test_what_cannot_be_scored(arguments, sentence):
    with pytest.raises(UserError, match=sentence):
        macaron_fairseq.score(*arguments)


def test_a_report_has_rows(tmp_path, monkeypatch):
    runs = [make_run(tmp_path, BASE, 1, errors=0.4), make_run(tmp_path, MACARON, 1, errors=0.2)]
    runs += [make_run(tmp_path, MACARON, 2, errors=0.3)]
    monkeypatch.chdir(tmp_path)
    train_text = str(write_lines(tmp_path / "train.de", ["Word1 Word2 ."] * 3))
    found = macaron_fairseq.report(
        [str(run) for run in runs], title="By hand", train_text=train_text
    )
    found_words = {
        x["from"]: x["words"] for x in found.content["tests"][0]["by_frequency"] if x["words"]
    }
    known = sum(len(re.findall(r"\bWord[12]\b|\.", line)) for line in sentences())
    assert found_words[2] == known and {*found_words} == {0, 2}  # trained on three times, or never
    assert str(found).startswith("# By hand\n") and (tmp_path / "report" / "report.json").is_file()
    scores = [
        sacrebleu.corpus_bleu(
            (run / "test_a" / "hypotheses.txt").read_text().splitlines(), [sentences()]
        ).score
        for run in runs
    ]
    rows = {(row["architecture"], row["metric"]): row for row in found.rows()}
    assert len(rows) == 4
    row = rows[MACARON, "BLEU"]
    assert (row["test"], row["seeds"]) == ("test_a", 2)
    assert row["mean"] == pytest.approx(statistics.mean(scores[1:]))
    assert row["standard deviation"] == pytest.approx(statistics.stdev(scores[1:]))
    assert rows[BASE, "BLEU"]["mean"] == pytest.approx(scores[0])
    assert rows[BASE, "BLEU"]["standard deviation"] is None


# --- models as dynamics --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_dynamics_are_those_of_the_command(data, models, tmp_path):
    """Of the test set; and its encoder's, of its sentences as a list."""
    flags = ["--jacobian-sentences", "1", "--threshold", "0.8", "--cpu", "--label", "one", "two"]
    words = ["dynamics", *flags, "--path", *models, "--data", data, "-o", tmp_path]
    cli.main([str(word) for word in words])
    expected = json.loads((tmp_path / "dynamics.json").read_text())
    options = {"jacobian_sentences": 1, "threshold": 0.8, "cpu": True, "labels": ["one", "two"]}
    raw = ["er lower, the", "the new", "a is the est", "öl, er"]  # of the test set
    found = macaron_fairseq.dynamics(models, data, **options)
    assert found.content["models"] == expected["models"]

    rows = found.rows()
    sides = [side for model in expected["models"] for side in model["sides"]]
    assert len(rows) == sum(len(side["states"]) + len(side["layers"]) for side in sides)
    (row,) = (
        x for x in rows if (x["model"], x["side"], x["name"]) == ("two", "decoder", "layer 2")
    )
    assert row["kind"] == "layers" and row["time"] == 2
    assert row["step"] == sides[3]["layers"][1]["figures"]["step"]["mean"]
    assert str(found).count("\n") == 2 + 2 * 4
    assert repr(found) == "<Dynamics of one, two>"
    layer = sides[3]["layers"][1]
    assert row["step_size"] == layer["step"]
    assert row["local_error_slope"] == layer["local_error_slope"]

    own = macaron_fairseq.dynamics(models[0], data, raw, jacobian_sentences=1, cpu=True)
    assert own.content["data"]["source"] == "the text"
    written = own.write(tmp_path / "own")
    assert sorted(path.name for path in written) == [
        *("dynamics-cosines.png", "dynamics.csv", "dynamics.html", "dynamics.json"),
        "dynamics.png",
    ]
    assert own.rows()[0]["norm"] == pytest.approx(rows[0]["norm"])  # the encoder reads the same


def test_what_has_no_dynamics(data, models):
    for arguments, options, sentence in (
        ((), {"target": ["a"]}, "target is the translation of text: give text, too, or drop it"),
        ((), {"labels": "ab"}, "the labels are one str: give a list of them"),
        ((), {"labels": ["one"]}, "needs a label: there are 1 for 2 checkpoints"),
        ((), {"labels": ["one", "one"]}, "two models have the same name"),
        ((), {"sentences": 0}, "sentences 0 should be above 0"),
        ((), {"threshold": 5}, "threshold 5 is not a cosine"),
        ((), {"beta": 0}, "beta 0 should be above 0"),
        ((), {"beta": math.inf}, "beta inf should be above 0 and finite"),
        ((), {"seed": -1}, "seed -1 should be from 0"),
        ((), {"jacobian_sentences": -1}, "jacobian_sentences -1 should be 0 or more"),
        (("the new",), {}, "the sentences are one str"),
        (([],), {}, "the text holds no sentence"),
        ((["the", "new"],), {"target": ["the"]}, "its translation ends after 1 line, and the t"),
    ):
        with pytest.raises(UserError, match=sentence):
            macaron_fairseq.dynamics(models, data, *arguments, cpu=True, **options)


def test_what_the_functions_behind_the_commands_refuse(data, models):
    """Each would otherwise give a traceback, or read the letters of a text as lines."""
    with pytest.raises(UserError, match="the checkpoints are one path: give a list of them"):
        trained.load(models[0], data)
    with pytest.raises(UserError, match="there are 1 for 2 checkpoints"):
        trained.load(models, data, names=["one"])
    (model, _), opened = trained.load([str(path) for path in models], str(data))
    with pytest.raises(UserError, match="the text is one str: give a list of lines"):
        reading.read(opened, text="A dog runs.")
    with pytest.raises(UserError, match="a Linear has no encoder or decoder of fairseq's"):
        trajectories.run(torch.nn.Linear(2, 2), torch.ones(3, dtype=torch.long))
    assert "of_mine, which fairseq does not know here" in anatomy.not_supported("a.pt", "of_mine")
    # A model that learns, as fairseq's `from_pretrained` gives it.
    model.model.requires_grad_(True)
    sample = reading.read(opened, text=["the new"])
    assert depth.states(model.model, model.to_read(sample))["encoder"][-1].dtype == "float64"


def test_a_description_of_a_checkpoint_is_what_the_command_prints():
    assert str(macaron_fairseq.describe(CHECKPOINT)) == (FIXTURES / "described.txt").read_text()


def test_a_description_has_rows():
    flags = {"encoder_ffn_embed_dim": 64, "decoder_layers": 3}
    found = macaron_fairseq.describe("macaron_transformer_tiny", scheme="strang-symmetric", **flags)
    encoder, decoder = found.rows()
    assert encoder["formulas"] == (
        "x <- x + 1/2 FFN1(LN x); x <- x + Self(LN x); x <- x + 1/2 FFN2(LN x)"
    )
    assert (encoder["layers"], decoder["layers"]) == (4, 3)
    d, inner = 128, 64
    attention, ffn, norm = 4 * (d * d + d), 2 * d * inner + inner + d, 2 * d
    assert encoder["parameters"] == attention + 2 * ffn + 3 * norm
    # One FFN as wide as both together.
    assert encoder["baseline parameters"] == attention + 2 * ffn - d + 2 * norm


@pytest.mark.parametrize(
    ("model", "flags", "sentence"),
    [
        ("macaron_transformer", {"scheme": "strang"}, "Did you mean strang-marchuk, "),
        ("macaron_transformer", {"layers": 3}, "^there is no flag layers of macaron_transformer"),
        ("macaron_transformer", {"shceme": "parallel"}, "no flag shceme .* Did you mean scheme"),
        ("macaron_transformer", {"encoder_layer": 3}, "Did you mean encoder_layers[, ]"),
        ("macaron_transformer", {"encoder_layers": "six"}, "--encoder-layers: invalid int value"),
        ("transformer", {"substep": "rk4"}, "which is fairseq's own, has no --macaron-substep"),
        ("roberta_tiny_pre_norm", {"scheme": "parallel"}, "which is fairseq's own, has no --mac"),
        ("nonsense", {"layers": 3}, "nonsense"),
        ("none.pt", {}, "none.pt: no such checkpoint"),
        (CHECKPOINT, {"scheme": "parallel"}, "a checkpoint says itself what it is"),
    ],
)
def test_what_cannot_be_described(model, flags, sentence):
    with pytest.raises(UserError, match=sentence):
        macaron_fairseq.describe(model, **flags)


def test_a_model_that_is_not_there_is_told_before_fairseq_is_asked(data, tmp_path, monkeypatch):
    """On a machine that serves an export there is none."""
    monkeypatch.setitem(sys.modules, "macaron_fairseq.translation.fairseq_engine", None)
    with pytest.raises(UserError, match=r"^model\.ct2: no such checkpoint"):
        macaron_fairseq.load("model.ct2", data)
    (tmp_path / "a:b.pt").touch()
    with pytest.raises(UserError, match=r"a:b\.pt: ':' stands between checkpoints, so rename it"):
        macaron_fairseq.load(tmp_path / "a:b.pt", data)


def test_numbers_and_switches_of_a_description():
    shared = [
        macaron_fairseq.describe("macaron_transformer_tiny", share_all_embeddings=x, types=1000)
        for x in (True, False)
    ]
    assert shared[1].parameters - shared[0].parameters == 2 * 1000 * 128
    assert macaron_fairseq.describe("macaron_roberta_tiny", max_positions=64).parameters
    found = macaron_fairseq.describe("macaron_transformer_tiny", macaron_scheme="parallel")
    assert found.layers[0].formulas == ("x <- x + Self(LN x) + FFN(LN x)",)
    found = macaron_fairseq.describe("macaron_transformer_tiny", macaron_substep="rk4")
    assert found.integration.endswith("sub-step rk4")
    with pytest.raises(UserError, match="scheme and macaron_scheme are one flag: give one"):
        macaron_fairseq.describe(
            "macaron_transformer", scheme="yoshida4", macaron_scheme="parallel"
        )
    assert macaron_fairseq.describe("roberta_tiny_pre_norm", max_positions=64).parameters
    assert macaron_fairseq.describe("transformer", encoder_layers=0).layers[0].count == 0


def test_schemes_have_formulas():
    found = {scheme.name: scheme for scheme in macaron_fairseq.list_schemes()}
    assert list(found) == list(splitting.SCHEMES)
    assert [name for name, scheme in found.items() if scheme.is_default] == ["strang-marchuk"]
    assert found["strang-marchuk"].decoder == (
        *("x <- x + 1/2 FFN1(LN x)", "x <- x + Self(LN x)", "x <- x + Cross(LN x)"),
        "x <- x + 1/2 FFN2(LN x)",
    )
    assert (found["strang-marchuk"].ffns, found["parallel"].ffns) == (2, 1)
    midpoint = macaron_fairseq.list_schemes("midpoint")[0]
    assert midpoint.encoder[0] == "x <- x + k,  f(x) = Self(LN x),  h = 1"
    with pytest.raises(UserError, match=r"takes euler, .*Did you mean midpoint"):
        macaron_fairseq.list_schemes("mid")


# --- for pandas, and for readers -----------------------------------------------------------------


def test_pandas_takes_what_comes_back():
    pandas = pytest.importorskip("pandas")
    scores = macaron_fairseq.score(["a b c d"], ["a b c d"], "de")
    assert list(pandas.DataFrame(scores)["metric"]) == ["BLEU", "chrF"]
    schemes = pandas.DataFrame(macaron_fairseq.list_schemes())
    assert list(schemes.columns) == ["name", "encoder", "decoder", "ffns", "is_default"]
    described = pandas.DataFrame(macaron_fairseq.describe("macaron_transformer").rows())
    assert list(described["side"]) == ["encoder", "decoder"]


@pytest.mark.parametrize("name", ["score", "describe", "list_schemes"])
def test_examples_of_docstrings_hold(name):
    """Of the functions that need no trained model."""
    names = {"macaron_fairseq": macaron_fairseq, "pandas": pytest.importorskip("pandas")}
    (test,) = doctest.DocTestFinder().find(getattr(api, name), name, globs=names)
    result = doctest.DocTestRunner().run(test)
    assert result.attempted and not result.failed


def test_all_names_are_there_and_documented():
    for name in macaron_fairseq.__all__:
        assert name in dir(macaron_fairseq) and getattr(macaron_fairseq, name) is not None
    for name in ("load", "score", "report", "dynamics", "describe", "list_schemes"):
        text = getattr(macaron_fairseq, name).__doc__
        assert all(part in text for part in ("Args:", "Returns:", "Raises:", "Example:")), name
    with pytest.raises(AttributeError, match="has no attribute 'loads'"):
        macaron_fairseq.loads  # noqa: B018


def test_the_search_and_its_batches_begin_with_the_defaults_of_the_command():
    parameters = inspect.signature(api.Translator.translate).parameters
    given = {name: x.default for name, x in parameters.items() if name not in ("self", "text")}
    of_command = argparse.ArgumentParser()
    searching.add_search(of_command)
    expected = vars(of_command.parse_args([]))
    del expected["batch_lines"]  # which the API does not have
    assert given == expected
