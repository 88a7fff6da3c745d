"""What the commands of the analysis wing leave behind, and what they say meanwhile."""

import json
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from helpers.stored import CHECKPOINT

from macaron_fairseq import UserError, analysis, cli
from macaron_fairseq.analysis import output
from macaron_fairseq.analysis.particles import simulation
from macaron_fairseq.common import files, progress

pytestmark = pytest.mark.usefixtures("undrawn")

FEW = ["--particles", "3", "--frames", "2", "--time", "1"]
TOY = ["--scheme", "parallel", "--substep", "euler"]


def test_what_an_earlier_run_left_is_removed_and_named(tmp_path, capsys):
    output.write(tmp_path, {"a.json": "{}", "a.html": "x"})
    assert capsys.readouterr().err == "" and (tmp_path / "a.html").is_file()
    output.write(tmp_path, {"a.json": "{}", "a.html": None})
    assert capsys.readouterr().err == f"removed {tmp_path}/a.html, which was of an earlier run\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    "words",
    [
        ["describe", "--path", str(CHECKPOINT)],
        ["order", *TOY, "-o", "out"],
        ["particles", "trajectories", *FEW, "-o", "out"],
    ],
    ids=lambda words: words[0],
)
def test_a_full_disk_behind_stdout_is_one_sentence(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Path("/dev/full").open("w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        with pytest.raises(UserError, match=r"^cannot write to standard output: No space left"):
            cli.main(words)


def test_a_page_of_other_settings_does_not_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cli.main(["particles", "trajectories", *FEW, "-o", "out", "--page"])
    assert Path("out/trajectories.html").exists()
    Path("out/mine.html").touch()
    cli.main(["particles", "trajectories", *FEW, "-o", "out", "--seed", "5"])
    left = sorted(path.name for path in Path("out").iterdir())
    assert left == ["mine.html", "trajectories.json", "trajectories.png"]


def test_long_arrays_stand_on_a_line(monkeypatch):
    content = {"a": np.arange(6.0).reshape(2, 3), "b": {"c": np.array([np.nan, 1, 2])}, "d": [1]}
    indented = output.as_json(content)
    monkeypatch.setattr(output, "LONG", 3)
    found = output.as_json(content)
    assert json.loads(found) == json.loads(indented)
    assert json.loads(found)["b"]["c"] == [None, 1, 2]
    assert '"a": [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]],\n' in found


@pytest.mark.parametrize(
    ("words", "name"),
    [(["order", *TOY], "order.png"), (["particles", "trajectories", *FEW], "trajectories.json")],
    ids=lambda x: x[0] if isinstance(x, list) else "",
)
def test_a_full_disk_behind_a_file_is_one_sentence(words, name, tmp_path):
    (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(UserError, match=rf"^cannot write {tmp_path / name}: No space left"):
        cli.main([*words, "-o", str(tmp_path)])


def test_what_cannot_be_written_to_is_refused_at_once(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file is a file: name a folder"):
        files.refuse_unwritable(tmp_path / "file")
    with pytest.raises(UserError, match=f"^cannot write {tmp_path}/file/a: {tmp_path}/file is a"):
        files.refuse_unwritable(tmp_path / "file" / "a")
    files.refuse_unwritable(tmp_path / "a" / "b")
    asked = []
    monkeypatch.setattr(os, "access", lambda *args: asked.append(args))
    with pytest.raises(UserError, match=rf"^cannot write to {tmp_path}: name another"):
        files.refuse_unwritable(tmp_path / "a" / "b")
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]


def test_json_has_lists_for_arrays_and_null_for_their_nan(tmp_path):
    content = {"a": np.array([1, np.nan]), "b": np.eye(2), "c": tmp_path, "d": "ö"}
    content["e"] = np.array([[1, np.nan], [2, 3]])
    assert json.loads(output.as_json(content)) == {
        **{"a": [1, None], "b": [[1, 0], [0, 1]], "c": str(tmp_path), "d": "ö"},
        "e": [[1, None], [2, 3]],
    }
    with pytest.raises(ValueError, match="nan"):
        output.as_json({"a": float("nan")})


def test_without_a_terminal_progress_is_lines(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS", 0)
    assert list(progress.following("abcd", "letters")) == [*"abcd"]
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("|")[0] for line in lines] == [
        f"letters: {share:3}%" for share in (0, 25, 50, 75, 100)
    ]
    with progress.bar("a flow", total=0.5, leave=False) as shown:
        shown.update(0.1 + 0.2)
    assert re.match(r"a flow:  60%\|.{20}\| \[", capsys.readouterr().err.splitlines()[-1])
    monkeypatch.setattr(progress, "SECONDS", 1000)
    list(progress.following("abcd", "letters"))
    assert capsys.readouterr().err == ""


def test_a_bar_without_a_terminal_is_lines_and_nothing_where_work_is_short(monkeypatch, capsys):
    with progress.bar("reading", " lines") as shown:
        shown.update(3)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "SECONDS", 0)
    assert [*progress.bar("reading", " lines", items=["a", "b"])] == ["a", "b"]
    with progress.bar("reading", " lines") as shown:
        shown.update(3)
    lines = capsys.readouterr().err.splitlines()
    assert lines[2].startswith("reading: 100%|") and "| 2/2 lines [00:00<00:00" in lines[2]
    assert lines[-1].startswith("reading: 3 lines [00:00")
    assert not [line for line in lines if not line.startswith("reading: ")]


@pytest.mark.parametrize(
    ("words", "library"),
    [
        (["order", *TOY], "matplotlib"),
        (["particles", "equiangular"], "scipy"),
        (["particles", "equiangular"], "matplotlib"),
        (["dynamics", "--path", str(CHECKPOINT), "--data", "none"], "scipy"),
        (["dynamics", "--path", str(CHECKPOINT), "--data", "none"], "matplotlib"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_missing_extra_is_named(words, library, monkeypatch):
    # As if nothing of it had been imported yet.
    for name in list(sys.modules):
        if name.split(".")[0] == library or name.startswith("macaron_fairseq.analysis."):
            monkeypatch.delitem(sys.modules, name)
    for name in [x for x, value in vars(analysis).items() if isinstance(value, ModuleType)]:
        monkeypatch.delattr(analysis, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError, match=rf"{library}.* is missing, .* its extra \[dynamics\]"):
        cli.main(words)


def test_a_flow_that_cannot_be_followed_is_one_sentence():
    """x' = x^2 from 1 leaves all bounds at time 1."""
    with (
        np.errstate(over="ignore", invalid="ignore"),
        pytest.raises(UserError, match=r"^the integration stopped at time 1: "),
    ):
        simulation.flow(lambda x: x**2, np.array([1.0]), np.array([0.0, 0.5, 1.0, 2.0]))
