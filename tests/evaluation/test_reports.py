"""Manifests and reports of run folders that are written here by hand; nothing is trained."""

import hashlib
import io
import json
import logging
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu
from helpers.processes import run as run_command
from helpers.run_folders import (
    BASE,
    BLEU,
    CHRF,
    FLAGS,
    MACARON,
    SENTENCES,
    START,
    edit,
    epoch_end,
    inner,
    make_run,
    print_generated,
    sentences,
    valid,
    write_lines,
)

from macaron_fairseq import cli
from macaron_fairseq.common import environment
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.evaluation.report import comparison, curves
from macaron_fairseq.evaluation.report import report as reporting
from macaron_fairseq.evaluation.scores import intervals, metrics, significance
from macaron_fairseq.evaluation.training import manifest, training_flags, training_log

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "two models"


@pytest.fixture
def pair(out):
    """One seed of each of two architectures."""
    return [make_run(out, BASE, 1, errors=0.5), make_run(out, MACARON, 1, errors=0.4)]


def report(folders, out, **options):
    text = reporting.write(folders, out, **options)

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    return text, json.loads((out / "report.json").read_text("utf-8"), parse_constant=refuse)


def row(text, start):
    """The cells of the first row of a table that starts so."""
    line = next(line for line in text.split("\n") if line.startswith("| " + start))
    return [cell.strip() for cell in line.strip("|").split(" | ")]


# --- the report ----------------------------------------------------------------------------------


def test_scores_have_mean_and_sample_standard_deviation_over_seeds(out):
    # 50, 52, 57: mean 53, squared deviations 9 + 1 + 16, divided by 2: sqrt(13) = 3.606
    folders = [make_run(out, MACARON, i, chrf=x) for i, x in ((1, 50), (2, 52), (3, 57))]
    folders.append(make_run(out, BASE, 1, chrf=49.5))
    text, data = report(folders, out / "report")
    cells = row(text, f"`{MACARON}`")
    # Student's t for two degrees of freedom is 4.3027: 4.3027 sqrt(13 / 3) = 8.957
    assert cells[3:] == ["53.00 ± 3.61", "44.04 to 61.96", "3"]
    assert row(text, f"`{BASE}`")[3:] == ["49.50", "-", "1"]  # not what chrF gives here
    macaron, base = data["tests"][0]["architectures"]
    assert macaron["scores"]["chrF"]["mean"] == pytest.approx(53)
    assert macaron["scores"]["chrF"]["standard_deviation"] == pytest.approx(13**0.5)
    assert macaron["seeds"] == [1, 2, 3]
    assert base["scores"]["chrF"] == {
        "mean": 49.5,
        "standard_deviation": None,
        "interval": None,
        "interval_over": None,
    }
    assert (base["seeds"], base["scores"]["BLEU"]["interval_over"]) == ([1], "sentences")
    assert "Mean ± sample standard deviation" in text


def test_translations_of_different_searches_are_not_compared(pair, out):
    how = "the mean of the last 10 checkpoints, --beam {}"
    for run, beam in zip(pair, (5, 5), strict=True):
        (run / "test_a" / "decoding").write_text(how.format(beam) + "\n")
    text, data = report(pair, out / "report")
    assert "\n- translated with the mean of the last 10 checkpoints, --beam 5\n" in text
    assert data["tests"][0]["decoding"] == how.format(5)
    (pair[0] / "test_a" / "decoding").write_text(how.format(1) + "\n")
    with pytest.raises(UserError, match=r"checkpoints, --beam 1; and .* checkpoints, --beam 5"):
        report(pair, out / "other")


def test_scores_of_fewer_updates_are_refused(pair, out):
    last, scores = pair[1] / "checkpoint_last.pt", pair[1] / "test_a" / "scores.json"
    last.touch()
    os.utime(scores, (last.stat().st_mtime + 1,) * 2)
    report(pair, out / "report")
    os.utime(scores, (last.stat().st_mtime - 1,) * 2)
    with pytest.raises(UserError, match="was trained on after test_a was scored"):
        report(pair, out / "report")


def test_runs_and_architectures_show_what_the_logs_tell(pair, out):
    text, data = report(pair, out / "report", title="A title")
    assert text.startswith("# A title\n")
    # 48 updates, of which 30 are 1.25 passes; 2 epochs of half an hour in updates.
    cells = row(text[text.index("## Runs") :], f"`{MACARON}`")
    assert cells[1] == "1"
    assert cells[3:] == ["50.00", "48", "2.0", "4.250", "1,200", "1.000"]
    cells = row(text[text.index("## Architectures") :], f"`{BASE}`")
    assert cells[1:] == ["2,571,776", "1,200", "1.000"]
    assert data["runs"][0]["train_curve"] == [[10, 6], [20, 5], [30, 4]]
    assert data["runs"][0]["valid_curve"] == [[24, 5.5], [48, 4.25]]


def test_the_report_says_what_it_takes_to_repeat_it(pair, out):
    (pair[1] / "test_a" / "checkpoint.sha256").write_text("abcdef0123456789\n")
    edit(pair[0] / "manifest.json", lambda x: x["starts"][0]["code"].update(modified=True))
    text, data = report(pair, out / "report")
    assert "code: `0123456789abcdef` (modified), `0123456789abcdef`\n" in text
    assert "data: en-de, test sets test_a, fingerprint `f00d`" in text
    assert f"checkpoint of `{MACARON}`, seed 1: SHA-256 `abcdef012345`..." in text
    assert (
        "  --share-all-embeddings \\\n  --lr 0.005 \\\n  --adam-betas '(0.9,0.98)' \\\n"
        "  --patience -1\n```" in text
    )
    assert "in no other flag" in text
    assert data["flags"]["differing"] == {}
    assert (
        "- 2026-11-20: A CPU, 4 cores, 16 GiB, 2 x A GPU, Linux, python 3.11.7, torch 2.13.0\n"
        in text
    )
    assert f"- BLEU: `{BLEU.format('mixed')}`\n- chrF: `{CHRF}`\n" in text


def test_flags_that_differ_between_architectures_are_shown(pair, out):
    edit(pair[1] / "manifest.json", lambda x: x["flags"].extend(["--lr", "0.1", "--fp16"]))
    text, data = report(pair, out / "report")
    assert row(text, "`--lr`") == ["`--lr`", "`--lr 0.005`", "`--lr 0.1`"]
    assert row(text, "`--fp16`") == ["`--fp16`", "`no --fp16`", "`--fp16`"]
    assert "in no other flag" not in text
    assert list(data["flags"]["differing"]) == ["--lr", "--fp16"]
    assert "--lr" not in text[text.index("```sh") : text.index("```\n")]


def test_seeds_that_were_saved_otherwise_are_shown(pair, out):
    """fairseq validates whenever it saves, so that another checkpoint may be the best."""
    seeds = [*pair, make_run(out, BASE, 2, errors=0.5)]
    for flag in ("--save-interval-updates", "--log-interval"):
        edit(seeds[2] / "manifest.json", lambda x, flag=flag: x["flags"].extend([flag, "9"]))
    text, data = report(seeds, out / "report")
    assert list(data["flags"]["differing"]) == ["--save-interval-updates"]
    assert "in no other flag" not in text


def test_several_processes_are_mentioned(pair, out):
    started = "torchrun started it in as many processes"
    assert started not in report(pair, out / "report")[0]
    for size, is_mentioned in (("1", False), ("16", True)):
        for folder in pair:
            flags = ["--distributed-world-size", size]
            edit(folder / "manifest.json", lambda x, flags=flags: x["flags"].extend(flags))
        assert (started in report(pair, out / "report")[0]) == is_mentioned


def test_another_machine_or_day_is_told_apart(pair, out):
    def resume(content):
        later = json.loads(json.dumps(START)) | {"date": "2026-11-22T01:00:00+00:00", "code": None}
        other = json.loads(json.dumps(later))
        other["hardware"]["gpus"] = []
        content["starts"] += [later, other]

    edit(pair[1] / "manifest.json", resume)
    text, _ = report(pair, out / "report")
    assert "- 2026-11-20 to 2026-11-22: A CPU, 4 cores, 16 GiB, 2 x A GPU" in text
    assert "- 2026-11-22: A CPU, 4 cores, 16 GiB, no GPU" in text
    assert f"torch 2.13.0 (`{MACARON}` 1)" in text
    assert "code: `0123456789abcdef`, no git checkout\n" in text


def test_one_sentence_tells_nothing():
    """All samples of it are the same."""
    metric = metrics.detokenised_bleu("de")
    (_, found), _ = significance.paired_bootstrap(
        [["the cat sat on a mat"], ["the cat sat on the mat"]], ["the cat sat on the mat"], metric
    )
    assert found[1] == 1.0
    line = ["the cat sat on the mat"]
    assert intervals.over_sentences(metrics.detokenised_bleu("de"), line, line, 100.0) is None


@pytest.mark.parametrize("lowercase", [False, True])
def test_the_paired_bootstrap_is_that_of_sacrebleus_command(out, lowercase):
    options = {"lowercase": lowercase, "tests": ("test_a", "test_b")}
    folders = [make_run(out, MACARON, 2, errors=0.47, **options)]
    folders += [make_run(out, BASE, i, errors=0.5, **options) for i in (1, 2)]
    text, data = report(folders, out / "report")
    printed = run_command(
        "sacrebleu",
        *(out / "reference" / "test_b.de", "-m", "bleu", "-f", "json", *["-lc"][: int(lowercase)]),
        *("-i", *(out / arch / "seed2/test_b/hypotheses.txt" for arch in (BASE, MACARON))),
        *("--paired-bs", "--paired-bs-n", "1000"),
        PYTHONWARNINGS="ignore",
    ).stdout
    base, macaron = (system["BLEU"] for system in json.loads(printed[printed.index("[\n") :]))
    # Of both test sets the run with the seed that both have.
    assert [(x["test"], x["arch"], x["seed"]) for x in data["significance"]] == [
        ("test_a", MACARON, 2),
        ("test_b", MACARON, 2),
    ]
    found = data["significance"][1]
    assert found["baseline_score"] == pytest.approx(base["score"], abs=1e-9)
    assert found["score"] == pytest.approx(macaron["score"], abs=1e-9)
    assert found["p_value"] == pytest.approx(macaron["p_value"], abs=1e-9)
    assert 0.001 < found["p_value"] < 0.9
    (compared,) = data["tests"][1]["comparisons"]
    assert compared["seeds"] == [2]
    assert compared["difference"]["mean"] == pytest.approx(macaron["score"] - base["score"])
    cells = row(text, "test_b | ")
    assert cells[4:] == [
        f"{base['score']:.2f}",
        f"{macaron['score'] - base['score']:+.2f}",
        f"{macaron['p_value']:.3f}",
    ]


def test_the_verdict_is_of_the_first_metric(out):
    """Which published scores are of, though BLEU is there, too."""
    folders = []
    for arch, score in ((BASE, 34.4), (MACARON, 35.4)):
        folders.append(make_run(out, arch, 1))
        first = {"metric": "tokenised BLEU", "score": score, "signature": "tok", "detail": ""}
        edit(folders[-1] / "test_a/scores.json", lambda x, add=first: x["scores"].insert(0, add))
    text, data = report(folders, out / "report")
    (compared,) = data["tests"][0]["comparisons"]
    assert compared["metric"] == "tokenised BLEU"
    assert compared["difference"]["mean"] == pytest.approx(1)
    assert f"`{MACARON}` against `{BASE}`: +1.00 tokenised BLEU with seed 1." in text


def test_a_report_is_written_whole_or_not_at_all(pair, out):
    for name in ("report.md", "report.html", "report.json", "curves.png"):
        folder = out / name.replace(".", "-")
        (folder / name).mkdir(parents=True)
        with pytest.raises(UserError, match=f"^cannot write .*{name}: Is a directory$"):
            report(pair, folder)
        assert [path.name for path in folder.iterdir()] == [name]


def test_equal_translations_do_not_differ(out):
    folders = [make_run(out, arch, 1) for arch in (BASE, MACARON)]
    text, data = report(folders, out / "report")
    assert data["significance"][0]["difference"] == 0
    assert data["significance"][0]["p_value"] == 1
    assert row(text, "test_a | ")[5:] == ["0.00", "1.000"]


def test_the_baseline_is_the_first_without_macaron_in_its_name_or_the_one_asked_for(pair, out):
    tiny = make_run(out, "transformer_tiny", 1, errors=0.3)
    folders = [pair[1], pair[0], tiny]
    text, data = report(folders, out / "report")
    assert data["baseline"] == BASE
    assert [x["arch"] for x in data["significance"]] == [MACARON, "transformer_tiny"]
    _, data = report(folders, out / "report", baseline="transformer_tiny")
    assert [x["arch"] for x in data["significance"]] == [MACARON, BASE]
    with pytest.raises(UserError, match=f"no run is of the baseline what: .* {MACARON}, {BASE}"):
        report(folders, out / "report", baseline="what")
    text, data = report([pair[1]], out / "report")
    assert (data["baseline"], data["significance"]) == (MACARON, [])
    assert f"No run has a BLEU to compare with that of `{MACARON}`" in text


def test_published_scores_stand_next_to_those_of_the_runs(pair, out):
    known = {"arch": MACARON, "test": "test_a", "metric": "chrF", "score": 27.3, "source": "A | B"}
    unknown = known | {"test": "test_x", "score": 30.2}
    path = out / "published.json"
    path.write_text(json.dumps([known, unknown]))
    cli.main(["report", *map(str, pair), "--published", str(path), "-o", str(out / "report")])
    text = (out / "report" / "report.md").read_text("utf-8")
    assert row(text, f"`{MACARON}`")[-1] == "chrF 27.3 (A \\| B)"
    assert row(text, f"`{BASE}`")[-1] == "-"
    assert f"no run here to stand next to: `{MACARON}` on test_x, chrF 30.2 (A | B)." in text
    path.write_text(json.dumps([known, known | {"score": "27.3"}]))
    with pytest.raises(UserError, match=r"entry 2 of .*published.json has no number 'score': it"):
        cli.main(["report", *map(str, pair), "--published", str(path)])
    path.write_text("[")
    with pytest.raises(UserError, match=r"published.json is not a JSON file: "):
        cli.main(["report", *map(str, pair), "--published", str(path)])
    path.write_text(json.dumps(known))
    with pytest.raises(UserError, match="should hold a list of objects with arch, test"):
        cli.main(["report", *map(str, pair), "--published", str(path)])


def test_the_command_prints_the_report_alone_in_utf_8(out, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)  # as fairseq, once imported, leaves it
    folders = [make_run(out, arch, seed) for arch in (BASE, MACARON) for seed in (1, 2)]
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    cli.main(["report", *map(str, folders), "--title", "Übersetzung", "-o", str(out / "report")])
    printed = stdout.buffer.getvalue()
    assert printed == (out / "report" / "report.md").read_bytes()
    assert printed.decode("utf-8").startswith("# Übersetzung\n")
    assert "±" in printed.decode("utf-8")
    assert caplog.messages == []


# --- the picture ---------------------------------------------------------------------------------


def test_the_picture_has_one_colour_for_each_architecture(pair, out, drawn):
    image = pytest.importorskip("matplotlib.image")
    pair.append(make_run(out, MACARON, 2))
    text, _ = report(pair, out / "report")
    pixels = image.imread(out / "report" / "curves.png")[..., :3]
    # Blue, orange and green of a light page.
    blue, orange, green = (
        np.array([int(c[i : i + 2], 16) for i in (0, 2, 4)]) / 255
        for c in ("538aec", "c47a3a", "085023")
    )
    present = [(abs(pixels - colour).max(-1) < 0.01).any() for colour in (blue, orange, green)]
    assert present == [True, True, False]
    assert "](curves.png)" in text


def test_without_matplotlib_the_report_says_so(pair, out, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    text, data = report(pair, out / "report")
    page = (out / "report" / "report.html").read_text("utf-8")
    for shown in (text, page.replace("<code>", "`").replace("</code>", "`")):
        assert "matplotlib is not installed. `pip install matplotlib`, and write the" in shown
        assert "curves.png" not in shown
    written = sorted(path.name for path in (out / "report").iterdir())
    assert written == ["report.html", "report.json", "report.md"]
    assert len(data["runs"]) == 2


# --- what is refused -----------------------------------------------------------------------------


def set_data(name, value):
    return "manifest.json", lambda x: x["data"].update({name: value})


@pytest.mark.parametrize(
    ("file", "change", "sentence"),
    [
        (*set_data("tests", ["test_a", "test_a"]), "their test sets are test_a and test_a, test_a"),
        (*set_data("fingerprint", "beef"), r"different data \(its fingerprint differs\)"),
        (
            *set_data("sha256", {"train.en-de.en.bin": "2", "dict.en.txt": "2"}),
            r"different data \(data-bin/train.en-de.en.bin differs\)",
        ),
        (
            "test_a/scores.json",
            lambda x: x["scores"].pop(),
            "their metrics of test_a are BLEU, chrF and BLEU: make",
        ),
        (
            "test_a/scores.json",
            lambda x: x["scores"][0].update(signature=BLEU.format("lc")),
            r"their BLEU of test_a is nrefs:1\|case:mixed\S+ and nrefs:1\|case:lc\|",
        ),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(pair, out, file, change, sentence):
    edit(pair[1] / file, change)
    with pytest.raises(UserError, match=sentence) as refusal:
        report(pair, out / "report")
    assert str(refusal.value).startswith(f"{pair[0]} and {pair[1]} cannot be compared, ")
    assert not (out / "report").exists()


def test_each_pair_of_runs_is_compared(out):
    """The first one does not say how many tokens an update had."""
    folders = [make_run(out, BASE, seed) for seed in (1, 2, 3)]
    for folder, batch in zip(folders[1:], ("4096", "8192"), strict=True):
        (folder / "batch").write_text(batch)
    with pytest.raises(UserError, match="cannot be compared"):
        report(folders, out / "report")


def test_a_report_of_nothing_is_refused(pair, out):
    with pytest.raises(UserError, match="there are no runs to compare: name their folders"):
        report([], out / "report")
    (out / "file").touch()
    with pytest.raises(UserError, match="file is a file: name a folder"):
        report(pair, out / "file")
    edit(pair[1] / "manifest.json", set_data("tests", [])[1])
    with pytest.raises(UserError, match="was trained with data that has no test set"):
        report(pair, out / "report")


def test_metrics_in_another_order_are_the_same_metrics(pair, out):
    as_before = report(pair, out / "before")[1]["tests"]
    edit(pair[1] / "test_a" / "scores.json", lambda x: x["scores"].reverse())
    assert report(pair, out / "report")[1]["tests"] == as_before


def test_hypotheses_that_changed_since_they_were_scored_are_refused(out):
    folder = make_run(out, BASE, 1)
    path = folder / "test_a" / "hypotheses.txt"
    known = hashlib.sha256(path.read_bytes()).hexdigest()
    edit(folder / "test_a" / "scores.json", lambda x: x.update(hypotheses_sha256=known))
    report([folder], out / "report")
    path.write_text(path.read_text("utf-8").replace(" ", "  ", 1), "utf-8")
    with pytest.raises(UserError, match=r"hypotheses\.txt has changed since it was scored: score "):
        report([folder], out / "report")


def test_the_training_text_is_read_once_for_all_test_sets(out, monkeypatch):
    """It may be a pipe, of which a second reading would find nothing."""
    folders = [make_run(out, arch, 1, tests=("test_a", "test_b")) for arch in (BASE, MACARON)]
    text = "".join(f"{line}\n" for line in sentences()[:9])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    _, data = report(folders, out / "report", train_text=Path("-"))
    one, other = (test["by_frequency"] for test in data["tests"])
    assert one == other and len(one) > 1


def test_a_training_text_is_for_test_sets_of_one_case(out):
    """Words of a lowercased test set would never be found in the other's."""
    folder = make_run(out, BASE, 1, tests=("test_a",))
    make_run(out, BASE, 1, tests=("test_b",), lowercase=True)
    edit(folder / "manifest.json", lambda x: x["data"].update(tests=["test_a", "test_b"]))
    write_lines(out / "train.de", sentences())
    report([folder], out / "report")
    with pytest.raises(UserError, match=r"^test_a, test_b were scored partly with and partly"):
        report([folder], out / "report", train_text=out / "train.de")


def test_runs_of_phonemes_are_reported_by_their_error_rates(out):
    """Their target is no language, and BLEU is that of the phonemes as they are."""
    right = ["k a t s", "h u n t", "m a u s", "b o: t"]
    made = {BASE: ["k a t", "h u n d", *right[2:]], MACARON: ["k a t s", "h u n d", *right[2:]]}
    reference = write_lines(out / "reference/test_a.de", right)
    checksum = hashlib.sha256(reference.read_bytes()).hexdigest()
    folders = [make_run(out, arch, 1) for arch in made]
    write_lines(reference, right)
    for folder, lines, error in zip(folders, made.values(), (50.0, 25.0), strict=True):
        write_lines(folder / "test_a/hypotheses.txt", lines)
        edit(folder / "manifest.json", lambda x: x["data"].update(target="phonemes"))
        score = {"metric": "WER", "score": error, "signature": "w", "detail": ""}
        scored = {"scores": [score], "sentences": 4, "reference_sha256": checksum}
        edit(folder / "test_a/scores.json", lambda x, scored=scored: x.update(scored))
    text, _ = report(folders, out / "report")
    assert "BLEU of tokens by length of the reference" in text and "WER" in text


def test_a_training_text_may_be_cut_by_bpe_or_at_hyphens():
    words = ["well-known", "Wörter", "other"]
    text = ["well @-@ known Wör@@ t@@ er", "Wörter , well @-@ kno@@ wn"]
    assert comparison.count_in(text, words, False) == {"well-known": 2, "Wörter": 2}
    with pytest.raises(UserError, match=r"^the training text has SentencePiece's marks"):
        comparison.count_in(["\u2581Wör ter"], words, False)
    drawn = [
        "Name : \u2581 \u2581",
        "\u2581 Wörter",
        "Wörter",
        "other",
    ]  # as a crawled form has them
    assert comparison.count_in(drawn, words, False) == {"Wörter": 2, "other": 1}


def test_a_training_text_that_is_not_there_is_said_first(out, monkeypatch):
    folder = make_run(out, BASE, 1)
    monkeypatch.setattr(reporting.against_baseline, "compare", lambda *_: pytest.fail("it began"))
    with pytest.raises(UserError, match=r"none\.de: no such file$"):
        report([folder], out / "report", train_text=out / "none.de")


def test_a_recipes_notes_are_not_of_what_was_scored_since(pair, out):
    folder = pair[0] / "test_a"
    (folder / "decoding").write_text("the best checkpoint, --beam 5\n")
    (folder / "checkpoint.sha256").write_text("abc\n")
    (folder / "generated.sha256").write_text("0\n")
    checkpoint = pair[0] / "checkpoint_last.pt"
    checkpoint.write_bytes(b"trained on")
    (folder / "last.sha256").write_text("def\n")
    os.utime(checkpoint, (0, 0))
    with pytest.raises(UserError, match=r"trained on after test_a was scored: translate it, and"):
        report(pair, out / "report")
    edit(folder / "scores.json", lambda x: x.update(generated_sha256="1"))
    _, data = report(pair, out / "report")
    assert data["tests"][0]["decoding"] is None
    assert data["runs"][0]["checkpoint_sha256"] == {"test_a": None}


def test_a_difference_by_length_is_minus_the_baseline(pair, out):
    text, data = report(pair, out / "report")
    one = data["tests"][0]["by_length"][0]
    lengths = [len(x.split()) + 1 for x in sentences()]  # with the full stop
    lines = [i for i, x in enumerate(lengths) if one["from"] <= x <= one["to"]]
    assert len(lines) == one["sentences"]

    def bleu(folder):
        text = (folder / "test_a" / "hypotheses.txt").read_text().splitlines()
        references = [sentences()[i] for i in lines]
        return sacrebleu.corpus_bleu([text[i] for i in lines], [references]).score

    baseline, macaron = map(bleu, pair)
    assert baseline != macaron
    assert one["differences"] == {MACARON: pytest.approx(macaron - baseline)}
    part = text[text.index("by length of the reference") :]
    assert row(part, "words")[2:] == [f"`{BASE}`", f"`{MACARON}`", "difference"]
    shown = [f"{baseline:.2f}", f"{macaron:.2f}", f"{macaron - baseline:+.2f}"]
    assert row(part, f"{one['from']} to {one['to']}")[1:] == [str(len(lines)), *shown]


def test_ngrams_stand_under_the_name_of_the_one_that_has_them_right(out):
    folders = [make_run(out, BASE, 1, errors=0), make_run(out, MACARON, 1, errors=0.95)]
    text, data = report(folders, out / "report")
    found = data["tests"][0]["comparisons"][0]["ngrams"]
    assert found["better"] == [] and found["worse"]
    assert all(x["baseline"] == x["references"] > x["other"] for x in found["worse"])
    first = found["worse"][0]
    part = text[text.index(f"More often right with `{BASE}`") :]
    cells = row(part, f"`{first['text']}`")
    assert cells[1:] == [str(first[x]) for x in ("references", "baseline", "other")]
    assert row(part, "n-gram")[2:] == [f"`{BASE}`", f"`{MACARON}`"]


def test_differences_by_length_are_of_shared_seeds(out):
    """Seed 1 of the baseline has no partner, and the others have the same translations."""
    folders = [make_run(out, BASE, 1, errors=0.9)]
    folders += [make_run(out, arch, seed) for arch in (BASE, MACARON) for seed in (2, 3)]
    _, data = report(folders, out / "report")
    rows = data["tests"][0]["by_length"]
    assert [x["differences"] for x in rows] == [{MACARON: 0}] * len(rows)
    assert rows[0]["scores"][BASE]["mean"] < rows[0]["scores"][MACARON]["mean"]
    assert any(x.endswith(f": `{BASE}`, seed 1.") for x in data["warnings"])


def test_other_output_than_was_scored_tells_nothing_of_lengths(pair, out):
    """What stands in generated.txt reaches the maximum length, if it is what was scored."""
    for run in pair:
        (run / "test_a" / "decoding").write_text("the best checkpoint, --max-len-b 3\n")
        print_generated(run / "test_a/generated.txt", dict.fromkeys(range(40), ("a", "x " * 9)))
    generated = pair[0] / "test_a/generated.txt"
    known = hashlib.sha256(generated.read_bytes()).hexdigest()
    edit(pair[0] / "test_a/scores.json", lambda x: x.update(generated_sha256=known))
    _, data = report(pair, out / "report")
    assert [row["cut_off"] for row in data["tests"][0]["translations"]] == [40, None]


def test_different_schemes_of_encoder_and_decoder_are_not_one_architecture(out):
    folders = [make_run(out / name, MACARON, 1) for name in ("usual", "other", "same")]
    for folder, scheme in zip(folders[1:], ("parallel", "strang-marchuk"), strict=True):
        more = ["--macaron-encoder-scheme", scheme]
        edit(folder / "manifest.json", lambda x, more=more: x["flags"].extend(more))
    text, _ = report(folders[:2], out / "report", baseline=MACARON)
    assert f"`{MACARON}/parallel+strang-marchuk` against `{MACARON}`" in text
    assert "The runs differ in more" not in text
    with pytest.raises(UserError, match="are both macaron_transformer_tiny with seed 1"):
        report([folders[0], folders[2]], out / "report")


def test_the_transformer_among_schemes_is_the_baseline():
    archs = [MACARON, f"{MACARON}/lie-trotter"]
    assert reporting.choose_baseline(archs, None) == archs[1]
    assert reporting.choose_baseline([MACARON, BASE], None) == BASE
    assert reporting.choose_baseline([MACARON], None) == MACARON


def test_the_transformer_is_named_among_schemes_and_its_test_comes_before_dev(out):
    folders = [make_run(out / name, MACARON, 1, tests=("dev", "test")) for name in ("one", "two")]
    more = ["--macaron-scheme", "lie-trotter"]
    edit(folders[0] / "manifest.json", lambda x: x["flags"].extend(more))
    text, data = report(folders, out / "report", baseline=f"{MACARON}/lie-trotter")
    assert f"`{MACARON}` against `{MACARON}/lie-trotter` (the Transformer) on test: " in text
    assert [test["name"] for test in data["tests"]] == ["test", "dev"]


def test_where_lower_is_better_it_is_said(out):
    folders = [make_run(out, arch, seed) for arch in (BASE, MACARON) for seed in (1, 2)]
    for folder in folders:
        edit(folder / "test_a/scores.json", lambda x: x["scores"][0].update(metric="WER"))
    text, _ = report(folders, out / "report")
    assert " WER (lower is better) over 2 seeds" in text and "WER: lower is better." in text


def test_tokens_may_be_scored_by_bleu_too(out):
    """They are of no language that Moses knows."""
    folders = [make_run(out, arch, seed) for arch in (BASE, MACARON) for seed in (1, 2)]
    for folder in folders:
        edit(folder / "manifest.json", lambda x: x["data"].update(target="phonemes"))
        edit(folder / "test_a/scores.json", lambda x: x.update(tokens=True))
        edit(folder / "test_a/scores.json", lambda x: x["scores"][0].update(metric="WER"))
        path = folder / "test_a/scores.json"
        edit(path, lambda x: x["scores"][1].update(metric="tokenised BLEU"))
    text, _ = report(folders, out / "report")
    assert "BLEU of tokens by length of the reference" in text


def test_chrfs_interval_over_sentences_holds_its_score(out):
    folder = make_run(out, BASE, 1)
    hypotheses = (folder / "test_a/hypotheses.txt").read_text("utf-8").splitlines()
    chrf = sacrebleu.corpus_chrf(hypotheses, [sentences()]).score
    make_run(out, BASE, 1, chrf=chrf)
    _, data = report([folder], out / "report")
    found = data["tests"][0]["architectures"][0]["scores"]["chrF"]
    # A bootstrap with other draws.
    rng, pairs = random.Random(1), [*zip(hypotheses, sentences(), strict=True)]
    drawn = [[*zip(*rng.choices(pairs, k=len(pairs)), strict=True)] for _ in range(500)]
    scores = sorted(sacrebleu.corpus_chrf(ours, [theirs]).score for ours, theirs in drawn)
    expected = (scores[487] - scores[12]) / 2
    low, high = found["interval"]
    assert low < chrf < high and found["interval_over"] == "sentences"
    assert (high - low) / 2 == pytest.approx(expected, rel=0.2)


def test_a_flag_in_which_seeds_differ_is_shown(out):
    """Seeds may be divided among devices otherwise; the page should say so."""
    folders = [make_run(out, arch, seed) for arch in (BASE, MACARON) for seed in (1, 2)]
    for folder, tokens in zip(folders, (4096, 2048, 4096, 4096), strict=True):
        more = ["--max-tokens", str(tokens)]
        edit(folder / "manifest.json", lambda x, more=more: x["flags"].extend(more))
    text, data = report(folders, out / "report")
    assert data["flags"]["differing"] == {
        "--max-tokens": {
            BASE: "--max-tokens 4096 or --max-tokens 2048",
            MACARON: "--max-tokens 4096",
        }
    }
    assert "differ in more than the architecture: `--max-tokens`" in text
    assert "and in no other flag" not in text


def test_a_teacher_that_moved_is_no_difference(out):
    folders = [make_run(out, arch, seed) for arch in (BASE, MACARON) for seed in (1, 2)]
    for i, (folder, place) in enumerate(zip(folders, ("x", "y", "y", "x"), strict=True)):
        more = ["--teacher", f"/{place}/large.pt", *["--log-interval", "5"] * (i == 1)]
        edit(folder / "manifest.json", lambda x, more=more: x["flags"].extend(more))
        learnt = {"--teacher": "one content"}
        edit(folder / "manifest.json", lambda x, learnt=learnt: x.update(learnt_from=learnt))
    _, data = report(folders, out / "report")
    assert data["flags"]["differing"] == {}


def test_what_a_student_keeps_is_no_flag_of_the_others(out):
    folders = [make_run(out, arch, 1) for arch in (BASE, MACARON)]
    more = ["--teacher-memory", "4"]
    edit(folders[0] / "manifest.json", lambda x: x["flags"].extend(more))
    _, data = report(folders, out / "report")
    assert data["flags"]["differing"] == {
        "--teacher-memory": {BASE: "--teacher-memory 4", MACARON: "no --teacher-memory"}
    }


def test_values_are_the_same_if_they_are_the_same_numbers():
    same = training_flags.is_same
    assert same(["5e-4", "(0.9,0.98)"], ["0.0005", "(0.9, 0.98)"]) and same(["{{}}"], ["{{}}"])
    for one, other in ((["1"], ["True"]), (["1"], ["2"]), (["'a'"], ["a"]), ([], None)):
        assert not same(one, other)


def test_a_number_that_is_written_otherwise_is_no_difference(out):
    folders = [make_run(out, arch, seed) for arch in (BASE, MACARON) for seed in (1, 2)]
    for folder in folders[1:3]:
        same = ["--lr", "5e-3", "--adam-betas", "(0.9, 0.98)"]
        edit(folder / "manifest.json", lambda x, same=same: x["flags"].extend(same))
    text, data = report(folders, out / "report")
    assert data["flags"]["differing"] == {}
    assert "  --lr 0.005 \\\n  --adam-betas '(0.9,0.98)' \\\n" in text


def test_another_reference_is_refused(pair, out):
    other = write_lines(out / "other.de", sentences(0.1))

    def change(scores):
        scores["reference"] = str(other)
        scores["reference_sha256"] = hashlib.sha256(other.read_bytes()).hexdigest()

    edit(pair[1] / "test_a" / "scores.json", change)
    with pytest.raises(UserError, match="their references of test_a are different texts"):
        report(pair, out / "report")


def test_two_runs_of_one_architecture_must_differ_in_the_seed_alone(pair, out):
    again = make_run(out / "again", BASE, 1)
    with pytest.raises(
        UserError, match=f"again/{BASE}/seed1 are both {BASE} with seed 1: name one"
    ):
        report([*pair, again], out / "report")
    other = make_run(out, BASE, 2)
    edit(other / "manifest.json", lambda x: x["flags"].extend(["--lr", "0.1"]))
    with pytest.raises(
        UserError, match=r"two seeds, --lr 0.005 and --lr 0.1: make a report of each"
    ):
        report([*pair, other], out / "report")


def test_seeds_of_one_architecture_may_have_one_teacher_in_two_places(pair, out):
    other = make_run(out, BASE, 2)
    for run, place, sha256 in ((pair[0], "here.pt", "f00"), (other, "there.pt", "f00")):
        edit(run / "manifest.json", lambda x, place=place: x["flags"].extend(["--teacher", place]))
        learnt = {"--teacher": sha256}
        edit(run / "manifest.json", lambda x, learnt=learnt: x.update(learnt_from=learnt))
    report([*pair, other], out / "report")
    edit(other / "manifest.json", lambda x: x.update(learnt_from={"--teacher": "beef"}))
    with pytest.raises(UserError, match=r"two seeds, --teacher here.pt and --teacher there.pt"):
        report([*pair, other], out / "report")


def test_seeds_with_two_teachers_of_one_name_are_no_setting(out):
    folders = [make_run(out, MACARON, seed) for seed in (1, 2)]
    for folder, content in zip(folders, "ab", strict=True):
        edit(folder / "manifest.json", lambda x: x["flags"].extend(["--teacher", "large.pt"]))
        learnt = {"--teacher": content}
        edit(folder / "manifest.json", lambda x, learnt=learnt: x.update(learnt_from=learnt))
    with pytest.raises(UserError, match=r"--teacher large.pt and the same with another content:"):
        report(folders, out / "report")


def test_seeds_may_keep_more_or_less_of_a_teacher(out):
    folders = [make_run(out, MACARON, seed) for seed in (1, 2)]
    edit(folders[0] / "manifest.json", lambda x: x["flags"].extend(["--teacher-memory", "2"]))
    report(folders, out / "report")


@pytest.fixture
def schemes(out):
    """Two seeds of one architecture with each of two schemes, in folders as recipes name them."""

    def train(scheme, seed, errors):
        run = make_run(out / scheme, MACARON, seed, errors)
        folder = out / MACARON / scheme / f"seed{seed}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        run.rename(folder)
        edit(folder / "manifest.json", lambda x: x["flags"].extend(["--macaron-scheme", scheme]))
        return folder

    return [
        train(scheme, seed, errors)
        for scheme, errors in (("strang-marchuk", 0.4), ("lie-trotter", 0.5))
        for seed in (1, 2)
    ]


def test_schemes_of_one_architecture_are_named_where_they_are_not_its_default(schemes, pair, out):
    other = f"{MACARON}/lie-trotter"
    text, data = report([pair[0], *schemes], out / "report")
    assert [run["arch"] for run in data["runs"]] == [BASE, MACARON, MACARON, other, other]
    assert [x["seeds"] for x in data["tests"][0]["architectures"]] == [[1], [1, 2], [1, 2]]
    assert row(text, f"`{other}`")[0] == f"`{other}`"
    # The names say in what they differ.
    assert not [x for x in data["warnings"] if "differ in more than the architecture" in x]
    assert data["flags"]["differing"]["--macaron-scheme"] == {
        BASE: "no --macaron-scheme",
        MACARON: "--macaron-scheme strang-marchuk",
        other: "--macaron-scheme lie-trotter",
    }


def test_a_baseline_is_named_with_its_scheme():
    reversed_, midpoint = f"{MACARON}/lie-trotter-reversed", f"{MACARON}/strang-marchuk/midpoint"
    archs = [MACARON, reversed_, midpoint]
    for name in archs:
        assert reporting.choose_baseline(archs, name) == name
    for name in (f"{MACARON}/strang-marchuk", f"{MACARON}/strang-marchuk/euler"):
        assert reporting.choose_baseline(archs, name) == MACARON
    assert reporting.choose_baseline([BASE, reversed_], MACARON) == reversed_  # the only one
    with pytest.raises(UserError, match=f"no run is of the baseline {reversed_}/rk4: add its runs"):
        reporting.choose_baseline(archs, f"{reversed_}/rk4")
    with pytest.raises(UserError, match=f"several schemes: choose {reversed_} or {midpoint}"):
        reporting.choose_baseline(archs[1:], MACARON)


def test_a_default_scheme_that_is_named_is_the_same_setting(pair, schemes, out):
    _, data = report([*pair, schemes[1]], out / "report")
    assert [x["seeds"] for x in data["tests"][0]["architectures"]] == [[1], [1, 2]]


def remove(name):
    return lambda folder: (folder / name).unlink()


def overwrite(name, text):
    return lambda folder: (folder / name).write_text(text)


def set_manifest(name, value):
    return lambda folder: edit(folder / "manifest.json", lambda x: x.update({name: value}))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (remove("test_a/scores.json"), r"has no scores for test_a \(.*\): run the stage evaluate"),
        (remove("train.log"), "has no train.log: run the stage train first"),
        (
            remove("manifest.json"),
            r"cannot read .*manifest.json \(No such file.*\): is .* a folder",
        ),
        (overwrite("manifest.json", "{"), "manifest.json is not a JSON file: is"),
        (overwrite("manifest.json", "[]"), "manifest.json is not as expected: is"),
        (overwrite("manifest.json", "{}"), "manifest.json has no str 'arch': is"),
        (set_manifest("flags", [1, None]), "manifest.json is not as expected: is"),
        (set_manifest("data", {}), "manifest.json is not as expected: is"),
        (
            set_manifest("data", {"tests": [], "source": "en"}),
            "manifest.json is not as expected: is",
        ),
        (set_manifest("starts", [1]), "manifest.json is not as expected: is"),
        (set_manifest("starts", [{"date": "2026"}]), "manifest.json is not as expected: is"),
        *(
            (set_manifest("starts", [START | change]), "manifest.json is not as expected: is")
            for change in (
                {"hardware": None},
                {"hardware": {"cpu": "A CPU"}},
                {"date": 3},
                {"code": "abc"},
                {"versions": [1]},
            )
        ),
        (
            lambda folder: edit(
                folder / "test_a/scores.json", lambda x: x["scores"][0].update(score="nan")
            ),
            "scores.json holds no scores: score .* again",
        ),
        (
            lambda folder: (folder / "test_a/decoding").write_bytes(b"\xff"),
            "decoding, line 1 is not UTF-8",
        ),
        (overwrite("test_a/scores.json", "{"), "scores.json is not a JSON file: score .* again"),
        (
            lambda folder: edit(folder / "test_a/scores.json", lambda x: x.update(scores=[])),
            "scores.json holds no scores: score .* again",
        ),
        (
            lambda folder: edit(folder / "test_a/scores.json", lambda x: x["scores"][1].clear()),
            "scores.json names no metric, score or signature: score .* again",
        ),
        (remove("test_a/hypotheses.txt"), "cannot read .*hypotheses.txt: No such file"),
        (
            overwrite("test_a/hypotheses.txt", "one\ntwo\n"),
            "holds 2 hypotheses for 40 references: translate all .*required-batch-size-multiple 1",
        ),
        (
            overwrite("test_a/hypotheses.txt", "x\n" * SENTENCES),
            r"hypotheses.txt has BLEU 0.\d\d but its scores.json says [1-9]\d.\d\d: run the stage",
        ),
        (
            remove("../../reference/test_a.de"),
            r"the reference .*test_a.de is gone: put it back, or",
        ),
        (overwrite("../../reference/test_a.de", "x\n"), "test_a.de has changed since it was used"),
    ],
)
def test_an_incomplete_run_is_refused(pair, out, damage, sentence):
    damage(pair[1])
    with pytest.raises(UserError, match=sentence):
        report(pair, out / "report")


# --- training logs -------------------------------------------------------------------------------


def read_log(tmp_path, *lines):
    path = tmp_path / "train.log"
    path.write_bytes("\n".join(lines).encode() if isinstance(lines[0], str) else b"".join(lines))
    return training_log.read(path)


def test_lines_that_fairseq_wrote_are_understood(tmp_path):
    found = read_log(
        tmp_path,
        *FAIRSEQ.split("\n"),
    )
    assert found == training_log.Training(
        parameters=2571776,
        updates=124,
        epochs=pytest.approx(0.968 * 124 / 120),
        best_valid_loss=9.623,
        words_per_second=pytest.approx((937.7 + 999.7) / 2),
        hours=371 / 3600,
        train_curve=[(110, 10.258), (120, 9.921)],
        valid_curve=[(124, 9.623)],
    )


FAIRSEQ = """\
2026-11-21 11:25:32 | INFO | fairseq_cli.train | {'_name': None, 'common': {'_name': None}}
2026-11-21 11:25:32 | INFO | fairseq_cli.train | num. shared model params: 2,571,776 (num. trained: 2,571,776)
2026-11-21 11:25:32 | INFO | fairseq_cli.train | num. expert model params: 0 (num. trained: 0)
2026-11-21 11:30:55 | INFO | train_inner | {"epoch": 1, "update": 0.887, "loss": "10.258", "nll_loss": "9.841", "ppl": "917.2", "wps": "937.7", "ups": "0.28", "wpb": "3371", "bsz": "238.4", "num_updates": "110", "lr": "0.000275094", "gnorm": "0.833", "train_wall": "36", "wall": "323"}
2026-11-21 11:31:31 | INFO | train_inner | {"epoch": 1, "update": 0.968, "loss": "9.921", "nll_loss": "9.458", "ppl": "703.28", "wps": "999.7", "ups": "0.28", "wpb": "3563.2", "bsz": "249.6", "num_updates": "120", "lr": "0.000300094", "gnorm": "0.858", "train_wall": "35", "wall": "358"}
2026-11-21 11:31:47 | INFO | fairseq_cli.train | begin validation on "valid" subset
2026-11-21 11:31:54 | INFO | valid | {"epoch": 1, "valid_loss": "9.623", "valid_nll_loss": "9.099", "valid_ppl": "548.35", "valid_wps": "2457", "valid_wpb": "2547.8", "valid_bsz": "168", "valid_num_updates": "124"}
2026-11-21 11:31:54 | INFO | fairseq_cli.train | end of epoch 1 (average epoch stats below)
2026-11-21 11:31:54 | INFO | train | {"epoch": 1, "train_loss": "11.803", "train_nll_loss": "11.561", "train_ppl": "3022.05", "train_wps": "1137.1", "train_ups": "0.33", "train_wpb": "3463.8", "train_bsz": "233.9", "train_num_updates": "124", "train_lr": "0.000310094", "train_gnorm": "1.236", "train_train_wall": "371", "train_wall": "382"}"""  # noqa: E501


def test_the_speed_is_the_median(tmp_path):
    """fairseq's first is 0, and a machine that is busy for a while changes it little."""
    speeds = (0, 1100, 200, 1300)
    found = read_log(tmp_path, *[inner(i, wps=wps) for i, wps in enumerate(speeds)])
    assert found.words_per_second == 1100


def test_updates_done_again_after_a_kill_count_once(tmp_path):
    first = [inner(10), inner(20), valid(20, 5), epoch_end(1, 20, 100)]
    lost = [inner(30, train_wall=77), inner(40, loss=1, train_wall=77), valid(40, 1)]
    again = [inner(30, train_wall=40, loss=4.5), valid(35, 4.75)]
    found = read_log(tmp_path, *first, *lost, *again)
    assert found.updates == 30
    assert found.hours == (100 + 40) / 3600
    assert found.train_curve == [(10, 5), (20, 5), (30, 4.5)]
    assert found.valid_curve == [(20, 5), (35, 4.75)]
    assert found.best_valid_loss == 4.75


def test_an_epoch_resumed_after_its_end_was_logged_counts_once(tmp_path):
    # As with a larger --max-update: fairseq restores the time of the epoch's first part.
    stopped = [inner(10, train_wall=30), epoch_end(1, 10, 30)]
    found = read_log(tmp_path, *stopped, inner(20, train_wall=50), epoch_end(1, 20, 80))
    assert found.hours == 80 / 3600


def test_what_was_logged_at_the_update_from_which_a_start_goes_on_stays(tmp_path):
    first = [inner(20, loss=4), valid(20, 3), inner(30, loss=1)]
    found = read_log(tmp_path, *first, epoch_end(1, 20, 100), inner(30, loss=2))
    assert found.train_curve == [(20, 4), (30, 2)]
    assert found.valid_curve == [(20, 3)]


def test_noise_and_what_a_kill_left_are_passed_over(tmp_path):
    found = read_log(
        tmp_path,
        b"\xff\xfe no text | train_inner | {\n",
        b"\r 10%|#  | 1/10 [00:01]\r" + inner(10, loss=7).encode() + b"\n",
        inner(20).encode()[:-30] + b"\n",
        inner(20).encode()[:-30] + inner(20, loss=6).encode() + b"\r\n",
        inner(30, loss="nan", wps="inf").encode() + b"\n",
        valid(30, "nan").encode() + b"\n" + valid(30, 3.5).encode() + b"\n",
        b'x | valid | {"epoch": 1, "valid_loss": "1"}\n',
        inner(40).encode()[:-1],
    )
    assert found.train_curve == [(10, 7), (20, 6)]
    assert found.best_valid_loss == 3.5
    assert found.updates == 30
    assert found.words_per_second == 1000


def test_a_log_with_the_ends_of_epochs_alone(tmp_path):
    found = read_log(tmp_path, epoch_end(1, 20, 60), epoch_end(2, 40, 30))
    assert (found.updates, found.epochs, found.hours) == (40, 2, 90 / 3600)
    assert (found.best_valid_loss, found.words_per_second) == (None, None)


def test_a_log_that_names_no_epochs_tells_none(tmp_path):
    lines = [inner(10).replace('"update"', '"other"'), epoch_end(1, 10, 9)]
    assert read_log(tmp_path, *lines).epochs == 1
    assert read_log(tmp_path, lines[0]).epochs is None
    assert read_log(tmp_path, lines[1].replace('"epoch"', '"other"')).epochs is None
    assert read_log(tmp_path, inner(0)).epochs is None


def test_a_log_without_figures_leaves_dashes(pair, out):
    (pair[0] / "train.log").write_text("")
    text, data = report(pair, out / "report")
    assert row(text[text.index("## Runs") :], f"`{BASE}`")[4:] == ["-"] * 5
    assert data["runs"][0]["hours"] is None


def test_without_figures_there_are_no_curves_and_it_is_said_why(pair, out):
    for folder in pair:
        (folder / "train.log").write_text("2026-11-20 11:26:04 | INFO | train_inner | loss=5\n")
    text, _ = report(pair, out / "report")
    page = (out / "report" / "report.html").read_text("utf-8")
    for shown in (text, page):
        assert "No learning curves: no train.log holds figures. Train with " in shown
    assert not (out / "report" / "curves.png").exists()


def test_a_validation_set_of_another_name_is_read(pair, out):
    log = (pair[0] / "train.log").read_text()
    log = log.replace("| valid |", "| dev |").replace("valid_", "dev_")
    (pair[0] / "train.log").write_text(log)
    edit(pair[0] / "manifest.json", lambda x: x["flags"].extend(["--valid-subset", "dev,valid"]))
    _, data = report(pair, out / "report")
    assert data["runs"][0]["best_valid_loss"] == 4.25
    assert data["runs"][0]["valid_curve"] == data["runs"][1]["valid_curve"]


def test_a_short_run_is_in_the_picture_too():
    long = SimpleNamespace(train_curve=[(1, 9.0), (6000, 3.0)], valid_curve=[(5000, 3.5)])
    short = SimpleNamespace(train_curve=[(1, 9.0), (1000, 8.0)], valid_curve=[])
    runs = [SimpleNamespace(training=x) for x in (long, short)]
    assert curves.late_losses(runs) == [3.0, 3.5, 8.0]


# --- manifests -----------------------------------------------------------------------------------


@pytest.fixture
def prepared(tmp_path):
    """A folder of the stage prepare, whose files hold anything."""
    folder = tmp_path / "some data"
    (folder / "data-bin").mkdir(parents=True)
    for name in ("dict.src.txt", "dict.tgt.txt", "valid.src-tgt.tgt.bin", "valid.src-tgt.tgt.idx"):
        (folder / "data-bin" / name).write_text(name)
    write_preprocessing(folder)
    return folder


def write_preprocessing(folder, **changed):
    made = {"source": "src", "target": "tgt", "tests": ["test"], "fingerprint": "f00d"} | changed
    (folder / "preprocessing.json").write_text(json.dumps(made))


COMMAND = ["data-bin", "--save-dir", "a", "--arch", MACARON, "--seed", "3", *FLAGS]


def write_manifest(folder, data, *command):
    cli.main(["manifest", str(folder), "--data", str(data), "--", *(command or COMMAND)])
    return json.loads((folder / "manifest.json").read_text("utf-8"))


def test_a_manifest_holds_flags_and_hashes_and_gains_a_start_each_time(
    prepared, data_bin, tmp_path, capsys
):
    shutil.rmtree(prepared / "data-bin")
    shutil.copytree(data_bin, prepared / "data-bin")  # what fairseq-preprocess wrote
    folder = tmp_path / "a run" / "seed3"
    first = write_manifest(folder, prepared)
    assert capsys.readouterr().out == f"wrote {folder}/manifest.json\n"
    assert (first["arch"], first["seed"], first["flags"]) == (MACARON, 3, COMMAND)
    assert {k: v for k, v in first["data"].items() if k != "sha256"} == {
        "source": "src",
        "target": "tgt",
        "tests": ["test"],
        "fingerprint": "f00d",
    }
    names = {path.name for path in (prepared / "data-bin").iterdir()} - {"preprocess.log"}
    assert "dict.src.txt" in names
    assert "train.src-tgt.src.bin" in names
    assert first["data"]["sha256"] == {
        name: hashlib.sha256((prepared / "data-bin" / name).read_bytes()).hexdigest()
        for name in names
    }
    (folder / "checkpoint_last.pt").touch()
    second = write_manifest(folder, prepared)
    assert [len(x["starts"]) for x in (first, second)] == [1, 2]
    assert second | {"starts": None} == first | {"starts": None}
    start = second["starts"][1]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", start["date"])
    assert start["versions"]["sacrebleu"] == sacrebleu.__version__
    assert {"python", "torch", "macaron_fairseq", "sacremoses", "subword-nmt"} < set(
        start["versions"]
    )
    assert start["hardware"]["cores"] >= 1
    assert start["hardware"]["memory_gib"] > 0
    assert start["hardware"]["cpu"]


def test_a_report_reads_what_the_command_wrote(pair, out, prepared):
    for folder in pair:
        (folder / "manifest.json").unlink()
        (folder / "test_a").rename(folder / "test")
        write_manifest(folder, prepared, "--arch", folder.parent.name, *FLAGS)
    text, data = report(pair, out / "report")
    assert [run["arch"] for run in data["runs"]] == [BASE, MACARON]
    assert "data: src-tgt, test sets test, fingerprint `f00d`" in text


def test_where_things_lie_may_change_between_starts(prepared, tmp_path):
    write_manifest(tmp_path / "run", prepared)
    (tmp_path / "run" / "checkpoint_last.pt").touch()
    moved = ["--arch", MACARON, *FLAGS, "--save-dir=b", "--seed", "3", "--user-dir", "c"]
    moved += ["--save-interval-updates", "500", "--num-workers", "4", "--log-file", "d"]
    moved += ["--save-interval", "2", "--no-epoch-checkpoints", "--wandb-project", "e"]
    moved += ["--restore-file", str(tmp_path / "run" / "checkpoint3.pt")]
    assert len(write_manifest(tmp_path / "run", prepared, *moved)["starts"]) == 2


def test_a_teacher_may_move_between_starts_and_not_change(prepared, tmp_path):
    """Its file or files, its data folder, and the files of phrases."""
    for name in ("here", "there"):
        (tmp_path / name / "data-bin").mkdir(parents=True)
        for file in ("code", "data-bin/dict.en.txt", "one.pt", "two.pt", "words"):
            (tmp_path / name / file).write_text(file)

    def flags(name):
        folder = tmp_path / name
        teachers = f"{folder / 'one.pt'}{os.pathsep}{folder / 'two.pt'}"
        words = ["--teacher", teachers, "--teacher-data", folder]
        for side in ("source", "target"):
            words += [f"--trajectory-{side}-phrases", folder / "words"]
        return [*COMMAND, *map(str, words)]

    folder = tmp_path / "run"
    first = write_manifest(folder, prepared, *flags("here"))
    known = [hashlib.sha256(x).hexdigest() for x in (b"one.pt", b"two.pt", b"words")]
    assert first["learnt_from"]["--teacher"] == " ".join(known[:2])
    assert first["learnt_from"]["--trajectory-target-phrases"] == known[2]
    (folder / "checkpoint_last.pt").touch()
    assert len(write_manifest(folder, prepared, *flags("there"))["starts"]) == 2
    for flag, file in (
        ("--teacher", "two.pt"),
        ("--teacher-data", "data-bin/dict.en.txt"),
        ("--trajectory-source-phrases", "words"),
    ):
        path = tmp_path / "there" / file
        path.write_text("other")
        with pytest.raises(UserError, match=f"was trained with {flag} .*, whose content is other"):
            write_manifest(folder, prepared, *flags("there"))
        path.write_text(file)
    # Of what an earlier version wrote the paths alone are known.
    del first["learnt_from"]
    (folder / "manifest.json").write_text(json.dumps(first))
    with pytest.raises(UserError, match=r"was trained with --teacher .*, and the flags now say"):
        write_manifest(folder, prepared, *flags("there"))
    with pytest.raises(UserError, match="and the flags now say no --teacher"):
        write_manifest(folder, prepared)


@pytest.mark.parametrize(
    ("more", "difference"),
    [
        (["--lr", "0.1"], "--lr 0.005, and the flags now say --lr 0.1"),
        (["--fp16"], "no --fp16, and the flags now say --fp16"),
        (["--restore-file", "other.pt"], "no --restore-file, and the flags now say --restore-file"),
        (["--seed", "4"], "--seed 3, and the flags now say --seed 4"),
        (
            ["--adam-betas=(0.9, 0.9)"],
            "--adam-betas '(0.9,0.98)', and the flags now say --adam-betas",
        ),
    ],
)
def test_other_flags_than_the_runs_are_refused(prepared, tmp_path, more, difference):
    folder = tmp_path / "run"
    write_manifest(folder, prepared)
    (folder / "checkpoint_last.pt").touch()
    with pytest.raises(UserError) as refusal:
        write_manifest(folder, prepared, *COMMAND, *more)
    assert str(refusal.value).startswith(f"{folder} was trained with {difference}")
    assert str(refusal.value).endswith(": choose another folder, or remove this one")


def test_the_end_may_be_moved_and_a_failed_start_corrected(prepared, tmp_path):
    folder = tmp_path / "run"
    write_manifest(folder, prepared, *COMMAND, "--no-such-flag")
    assert len(write_manifest(folder, prepared)["starts"]) == 1
    (folder / "checkpoint_last.pt").touch()
    same = ["--lr", "5e-3", "--adam-betas", "(0.9, 0.98)"]
    assert len(write_manifest(folder, prepared, *COMMAND, *same)["starts"]) == 2
    longer = write_manifest(folder, prepared, *COMMAND, "--max-update", "9000")
    assert len(longer["starts"]) == 3 and longer["flags"][-2:] == ["--max-update", "9000"]


def test_data_after_a_switch_may_have_moved_too(prepared, tmp_path):
    folder, moved = tmp_path / "run", tmp_path / "moved"
    shutil.copytree(prepared, moved)
    for data in (prepared, moved):
        manifest.write(
            folder, data, ["--arch", BASE, "--fp16", str(data / "data-bin"), "--lr", "1"]
        )
        (folder / "checkpoint_last.pt").touch()
    assert len(json.loads((folder / "manifest.json").read_text())["starts"]) == 2


@pytest.mark.parametrize(
    ("flags", "depends"),
    [
        ("--lr-scheduler cosine", True),
        ("--lr-scheduler cosine --lr-period-updates 500", False),
        ("--lr-scheduler cosine --lr-period-updates -1", True),
        ("--lr-scheduler polynomial_decay", True),
        ("--lr-scheduler polynomial_decay --total-num-update 500", False),
        ("--lr-scheduler tri_stage --phase-ratio (0.1,0.4,0.5)", True),
        ("--lr-scheduler inverse_sqrt", False),
    ],
)
def test_the_end_stays_where_the_learning_rate_depends_on_it(flags, depends, prepared, tmp_path):
    folder = tmp_path / "run"
    words = [*COMMAND, *flags.split(), "--max-update"]
    write_manifest(folder, prepared, *words, "4000")
    (folder / "checkpoint_last.pt").touch()
    if not depends:
        write_manifest(folder, prepared, *words, "9000")
        return
    with pytest.raises(UserError, match="was trained with --max-update 4000, and the flags now"):
        write_manifest(folder, prepared, *words, "9000")


def test_other_data_than_the_runs_are_refused(prepared, tmp_path):
    folder = tmp_path / "run"
    write_manifest(folder, prepared)
    (folder / "checkpoint_last.pt").touch()
    before = (folder / "manifest.json").read_bytes()
    write_preprocessing(prepared, fingerprint="beef")
    with pytest.raises(UserError, match="was trained with other data, its fingerprint differs: ch"):
        write_manifest(folder, prepared)
    with (prepared / "data-bin" / "valid.src-tgt.tgt.bin").open("ab") as file:
        file.write(b"x")
    with pytest.raises(UserError, match=r"other data, data-bin/valid.src-tgt.tgt.bin differs: ch"):
        write_manifest(folder, prepared)
    assert (folder / "manifest.json").read_bytes() == before


def test_other_merges_than_the_runs_are_refused_where_its_manifest_knows_them(prepared, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint_last.pt").touch()
    write_manifest(tmp_path / "run", prepared)  # as of an earlier version
    (prepared / "code").write_text("merges")
    assert "code" in write_manifest(tmp_path / "run", prepared)["data"]["sha256"]
    (prepared / "code").write_text("merge")
    with pytest.raises(UserError, match="was trained with other data, code differs: choose"):
        write_manifest(tmp_path / "run", prepared)


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"data": {}}', '{"data": {"sha256": {"code": 1}}}']
)
def test_of_another_programs_manifest_nothing_is_known(content, tmp_path):
    (tmp_path / "manifest.json").write_text(content)
    assert manifest.data_hashes(tmp_path / "checkpoint.pt") == {}


def test_a_manifest_of_nothing_is_refused(prepared, tmp_path):
    with pytest.raises(UserError, match="name no architecture: add --arch ARCH"):
        write_manifest(tmp_path / "run", prepared, "data-bin", "--seed", "1")
    with pytest.raises(UserError, match="the seed 'one' is not a whole number: give --seed N"):
        write_manifest(tmp_path / "run", prepared, "--arch", "x", "--seed", "one")
    described = json.loads((prepared / "preprocessing.json").read_text())
    (prepared / "preprocessing.json").write_text(json.dumps(described | {"tests": "valid"}))
    with pytest.raises(UserError, match="has no list of names as 'tests': run the stage prepare"):
        write_manifest(tmp_path / "run", prepared)
    shutil.rmtree(prepared / "data-bin")
    with pytest.raises(UserError, match="data-bin holds no data of fairseq-preprocess: run the st"):
        write_manifest(tmp_path / "run", prepared)
    (prepared / "preprocessing.json").unlink()
    with pytest.raises(UserError, match=r"cannot read .*preprocessing.json .*: run the stage prep"):
        write_manifest(tmp_path / "run", prepared)
    assert not (tmp_path / "run").exists()


def test_a_folder_made_by_hand_names_no_test_sets_and_no_fingerprint(prepared, tmp_path):
    """Those of `reference/` are its test sets."""
    languages = {"source": "en", "target": "de", "source_steps": ["tokenize"]}
    (prepared / "preprocessing.json").write_text(json.dumps(languages))
    shutil.rmtree(prepared / "reference", ignore_errors=True)
    (prepared / "reference").mkdir()
    for name in ("news.de", "test.de", "test.en"):
        (prepared / "reference" / name).touch()
    found = write_manifest(tmp_path / "run", prepared)["data"]
    assert found["tests"] == ["news", "test"]
    digest = hashlib.sha256()
    for path in sorted((prepared / "data-bin").iterdir()):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    assert found["fingerprint"] == digest.hexdigest()


def test_without_a_seed_it_is_fairseqs(prepared, tmp_path):
    # fairseq/dataclass/configs.py: CommonConfig.seed
    assert write_manifest(tmp_path / "run", prepared, "-a", "x")["seed"] == 1
    assert manifest.arch_and_seed(["--arch=x", "--seed=-7"]) == {"arch": "x", "seed": -7}


def test_both_names_of_the_architecture_are_one_flag(prepared, tmp_path):
    write_manifest(tmp_path / "run", prepared, "-a", "x")
    (tmp_path / "run" / "checkpoint_last.pt").touch()
    assert len(write_manifest(tmp_path / "run", prepared, "--arch", "x")["starts"]) == 2


def test_checkpoints_that_lie_elsewhere_are_those_of_a_start(prepared, tmp_path):
    flags = ["--arch", "x", "--save-dir", str(tmp_path / "saved")]
    write_manifest(tmp_path / "run", prepared, *flags, "--lr", "1")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "checkpoint_last.pt").touch()
    with pytest.raises(UserError, match="was trained with --lr 1, and the flags now say --lr 2"):
        write_manifest(tmp_path / "run", prepared, *flags, "--lr", "2")


def test_without_a_folder_checkpoints_are_in_fairseqs(prepared, tmp_path, monkeypatch):
    """Of the current folder a checkpoint is not one of the run's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "checkpoint_last.pt").touch()
    write_manifest(tmp_path / "run", prepared, "--arch", "x", "--restore-file", "one.pt")
    with pytest.raises(
        UserError, match=r"--restore-file one\.pt, and the flags now say .* two\.pt"
    ):
        write_manifest(tmp_path / "run", prepared, "--arch", "x", "--restore-file", "two.pt")
    own = ["--arch", "x", "--restore-file", "checkpoints/checkpoint_last.pt", "--save-dir"]
    with pytest.raises(UserError, match="and the flags now say no --restore-file"):
        write_manifest(tmp_path / "run", prepared, *own)


def test_a_checkpoints_manifest_is_found_from_its_own_folder(tmp_path, monkeypatch):
    (tmp_path / "averaged").mkdir()
    content = {"data": {"sha256": {"dict.en.txt": "1"}}}
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    monkeypatch.chdir(tmp_path / "averaged")
    assert manifest.data_hashes(Path("checkpoint.pt")) == {"dict.en.txt": "1"}


def test_flags_are_read_as_argparse_reads_them():
    assert training_flags.parse(
        ["data", "--lr=0.1", "--lr", "1e-3", "--x", "-1", "2", "--fp16", "-s", "en"]
    ) == {
        "": ["data"],
        "--lr": ["1e-3"],
        "--x": ["-1", "2"],
        "--fp16": [],
        "-s": ["en"],
    }


# --- the checkout --------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path):
    """The package in a git repository with one commit."""
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    folder = tmp_path / "a checkout"
    for name in ("macaron_fairseq/__init__.py", "examples/run.sh", "docs/page.md"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("")
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "first"]):
        without = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
        subprocess.run(["git", *words], cwd=folder, check=True, env=without)
    return folder / "macaron_fairseq"


def test_the_revision_and_whether_it_was_modified(checkout):
    git = checkout.parent / ".git"
    head = (git / (git / "HEAD").read_text().split()[1]).read_text().strip()
    (checkout / "notes.txt").write_text("not tracked")
    (checkout.parent / "docs" / "page.md").write_text("no code")
    assert environment.code(checkout) == {"revision": head, "modified": False}
    for file in (checkout / "__init__.py", checkout.parent / "examples" / "run.sh"):
        file.write_text("changed")
        assert environment.code(checkout) == {"revision": head, "modified": True}
        file.write_text("")
    assert environment.code(checkout) == {"revision": head, "modified": False}


def test_a_package_that_no_checkout_tracks_has_no_revision(checkout, tmp_path, monkeypatch):
    installed = checkout / ".venv" / "macaron_fairseq"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert environment.code(installed) is None
    assert environment.code(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.code(checkout) is None
