"""The table of examples/schemes, from run folders that are written by hand."""

import json
import re
import shutil

import pytest
import table as schemes_table
from helpers.run_folders import BASE, MACARON, edit, make_run
from helpers.stored import CHECKPOINT

from macaron_fairseq.common.errors import UserError


@pytest.fixture(params=[("test_a",)])
def made(tmp_path, request):
    """Two variants with two seeds each, and a function that makes their table."""
    variants = {"baseline": BASE, "parallel": MACARON}
    for variant, arch in variants.items():
        for seed in (1, 2):
            folder = make_run(tmp_path / variant, arch, seed, 0.1 * seed, tests=request.param)
            shutil.copy(CHECKPOINT, folder / "checkpoint_best.pt")

    def table():
        folders = {
            variant: [tmp_path / variant / arch / f"seed{seed}" for seed in (1, 2)]
            for variant, arch in variants.items()
        }
        schemes_table.write(folders, tmp_path)
        return json.loads((tmp_path / "table.json").read_text())["rows"]

    return tmp_path, table


def test_figures_are_those_of_the_runs(made):
    folder, table = made
    rows = table()
    assert [row["variant"] for row in rows] == ["baseline", "parallel"]
    bleus = rows[1]["scores"]["test_a"]["BLEU"]
    for seed, bleu, loss in zip((1, 2), bleus, rows[1]["loss"], strict=True):
        run = folder / "parallel" / MACARON / f"seed{seed}"
        scores = json.loads((run / "test_a" / "scores.json").read_text())["scores"]
        assert bleu == next(x["score"] for x in scores if x["metric"] == "BLEU")
        assert loss == 4.25
    line = (folder / "table.md").read_text().splitlines()[3]
    one, two = bleus
    # The standard deviation of two figures is their difference over the square root of 2.
    assert f"| {(one + two) / 2:.2f} ± {abs(one - two) / 2**0.5:.2f} |" in line
    assert "| 48 |" in line


def test_translations_that_loop_are_counted(made):
    folder, table = made
    path = folder / "parallel" / MACARON / "seed2" / "test_a" / "hypotheses.txt"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(["on and on and on and on and on and on", *lines[1:], ""]))
    assert [row["looping"] for row in table()] == [
        {"test_a": [0, 0]},
        {"test_a": [0, 1]},
    ]
    head, _, *rows = (folder / "table.md").read_text().splitlines()
    column = head.split(" | ").index("loop")
    assert [row.split(" | ")[column] for row in rows[:2]] == ["0 0", "0 1"]


@pytest.mark.parametrize("made", [("test_a", "test_b")], indirect=True)
def test_each_test_set_has_a_table(made):
    folder, table = made
    for seed, bleu in ((1, 31.0), (2, 33.0)):
        path = folder / "parallel" / MACARON / f"seed{seed}" / "test_b" / "scores.json"
        edit(path, lambda content, bleu=bleu: content["scores"][0].update(score=bleu))
    rows = table()
    assert rows[1]["scores"]["test_b"]["BLEU"] == [31, 33]
    titles, second = (folder / "table.md").read_text().split("test_b:\n\n")
    assert titles.startswith("test_a:\n\n") and "| parallel | 32.00 ± 1.41 |" in second
    assert second.count("| 4.250 ± 0.000 |") == 2 and "4.250" not in titles


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content["data"].update(fingerprint="beef"), "different data"),
        (lambda content: content["flags"].extend(["--max-update", "52"]), "--max-update 52"),
    ],
)
def test_what_cannot_be_compared(change, said, made):
    folder, table = made
    edit(folder / "parallel" / MACARON / "seed2" / "manifest.json", change)
    with pytest.raises(UserError, match=said):
        table()


def test_a_training_without_its_end_is_refused(made):
    folder, table = made
    log = folder / "parallel" / MACARON / "seed2" / "train.log"
    log.write_text(re.sub(".*valid_loss.*", "", log.read_text()))
    with pytest.raises(UserError, match="was not trained to its end"):
        table()


def test_trainings_may_end_before_their_limit(made):
    folder, table = made
    log = folder / "parallel" / MACARON / "seed2" / "train.log"
    log.write_text(log.read_text().replace('"48"', '"52"'))
    assert table()[1]["updates"] == [48, 52]
    assert "| 50 ± 3 |" in (folder / "table.md").read_text().splitlines()[3]
