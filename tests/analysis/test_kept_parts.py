"""Phase diagrams that were ended go on where they were."""

import json
import subprocess
import sys

import pytest

from macaron_fairseq import cli
from macaron_fairseq.analysis.particles import simulation
from macaron_fairseq.common import locks
from macaron_fairseq.common.errors import UserError

pytestmark = pytest.mark.usefixtures("undrawn")

PHASE = ["particles", "phase", "--particles", "4", "--frames", "3", "--time", "2", "--trials", "3"]
PARTS = 5  # one for each beta


def phase(output, *flags):
    cli.main([*PHASE, "--betas", str(PARTS), *flags, "-o", str(output)])
    return (output / "phase.json").read_text("utf-8")


@pytest.fixture
def calls(monkeypatch):
    """The betas of all simulations; the fourth is interrupted."""
    found = []
    integrate = simulation.integrate

    def counted(system, *args):
        found.append(system.beta)
        if len(found) == 4:
            raise KeyboardInterrupt
        return integrate(system, *args)

    monkeypatch.setattr(simulation, "integrate", counted)
    return found


def test_an_ended_run_goes_on_and_gives_the_same(tmp_path, calls, capsys):
    with pytest.raises(SystemExit, match="130"):
        phase(tmp_path / "a")
    kept = tmp_path / "a" / "phase.parts"
    assert len([*kept.glob("beta-*.json")]) == 3
    assert not (tmp_path / "a" / "phase.json").exists()
    (kept / "beta-4-part-1-of-1.json.part").write_text("[[1")  # as a kill leaves it
    found = phase(tmp_path / "a")
    assert "goes on after 3 parts" in capsys.readouterr().err
    assert calls == [0, 2.25, 4.5, 6.75, 6.75, 9]
    assert not kept.exists()
    assert found == phase(tmp_path / "b")  # in one go


def test_other_settings_do_not_go_on(tmp_path, calls):
    with pytest.raises(SystemExit, match="130"):
        phase(tmp_path)
    sentence = r"whose seed was 1 and not 2: give the same to go on; to start anew, remove the fold"
    with pytest.raises(SystemExit, match=sentence):
        phase(tmp_path, "--seed", "2")
    (tmp_path / "phase.parts" / "beta-1-part-1-of-1.json").write_text("[[1")
    with pytest.raises(SystemExit, match=r"is not a JSON file: remove the folder"):
        phase(tmp_path)


HELD = """
import sys
from pathlib import Path
from macaron_fairseq.analysis.particles.kept_parts import KeptParts
kept = KeptParts(Path(sys.argv[1]))
kept.begin({})
print("held", flush=True)
sys.stdin.read()
"""


def test_two_processes_do_not_write_the_same_parts(tmp_path, monkeypatch):
    """Whatever the settings of the second; what the first had is there once it has ended."""
    folder = tmp_path / "phase.parts"
    monkeypatch.setattr(locks, "SECONDS", 0)
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HELD, folder], **streams) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(SystemExit, match=f"another process writes to {folder}: wait until"):
            phase(tmp_path)
    with pytest.raises(SystemExit, match="holds parts of a run that was ended"):
        phase(tmp_path)


def test_what_is_in_the_way_stays(tmp_path):
    (tmp_path / "phase.parts").mkdir()
    (tmp_path / "phase.parts" / "mine").write_text("")
    with pytest.raises(SystemExit, match="is in the way"):
        phase(tmp_path)
    assert (tmp_path / "phase.parts" / "mine").exists()
    (tmp_path / "phase.parts" / "mine").unlink()
    assert json.loads(phase(tmp_path))["experiment"] == "phase"


def test_random_matrices_go_on_too(tmp_path, monkeypatch, capsys):
    words = ["phase-random", *PHASE[2:], "--betas", "4", "--value-matrix", "gram"]
    flow, calls = simulation.flow, []

    def ending(*args):
        """The flow at one beta; the third and the fifth call are interrupted."""
        calls.append(args)
        if len(calls) in (3, 5):
            raise KeyboardInterrupt
        return flow(*args)

    def kept():
        folder = tmp_path / "a" / "phase-random.parts"
        return {path.name: path.stat().st_mtime_ns for path in folder.glob("beta-*.json")}

    monkeypatch.setattr(simulation, "flow", ending)
    with pytest.raises(SystemExit, match="130"):
        cli.main(["particles", *words, "-o", str(tmp_path / "a")])
    assert {*kept()} == {"beta-1.json", "beta-2.json"}
    part = tmp_path / "a" / "phase-random.parts" / "beta-1.json"
    whole = part.read_bytes()
    part.write_bytes(whole[:9])  # one that is damaged costs no others
    with pytest.raises(UserError, match="is not a JSON file: remove the folder"):
        cli.main(["particles", *words, "-o", str(tmp_path / "a")])
    part.write_bytes(whole)
    before = kept()
    with pytest.raises(SystemExit, match="130"):
        cli.main(["particles", *words, "-o", str(tmp_path / "a")])
    after = kept()
    assert after.keys() - before.keys() == {"beta-3.json"}
    assert all(after[name] == time for name, time in before.items())
    for folder in ("a", "b"):  # the rest of one, and all of the other
        cli.main(["particles", *words, "-o", str(tmp_path / folder)])
    assert not (tmp_path / "a" / "phase-random.parts").exists()
    a, b = ((tmp_path / x / "phase-random.json").read_text("utf-8") for x in "ab")
    assert a == b
    fast = ["--beta-max", "1e6", "-o", str(tmp_path / "c")]
    with pytest.raises(UserError, match="steps"):
        cli.main(["particles", *words, *fast])
    assert not (tmp_path / "c" / "phase-random.parts").exists()
