"""The runner of many tasks from data to report, on miniature data, here and as jobs."""

import json
import random
import re
import signal
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import many_tasks
import pytest
from common import launch
from helpers.recipes import EXAMPLES, environment
from helpers.small import SMALL

pytestmark = pytest.mark.recipe

TASKS_FILE = """\
families:
  mini:
    folder: mini
    metric: WER
    test: dev
    ffn: 32
    layers: 2
    benchmark:
      sets:
        train: {{pairs: 40, parts: [{{archive: "{{source}}_train.tsv", format: g2p}}]}}
        valid: {{pairs: 6, parts: [{{archive: "{{source}}_dev.tsv", format: g2p}}]}}
        dev: {{pairs: 6, parts: [{{archive: "{{source}}_dev.tsv", format: g2p}}]}}
      preprocessing: {{steps: [], merges: 0, joined: false}}
      training:
        archs: [macaron_transformer_tiny]
        tokens: 100
        batches: 1
        max_update: 2
        flags: >
          {small} --optimizer adam --lr 0.01 --criterion label_smoothed_cross_entropy
          --keep-last-epochs 1 --required-batch-size-multiple 1 --macaron-kernels fairseq
      evaluation:
        average: 1
        decode: --beam 2 --max-len-b 12
        score: --metric wer per --keep-tokens
    tuning:
      tasks: [mini-aaa]
      schemes: [lie-trotter]
      seed: 100
      dev: dev
      start: {{tokens: 100, dropout: 0.1}}
      rounds: [{{tokens: [100, 200]}}]
      tokens: 800
tasks:
  mini-aaa: {{family: mini, pair: aaa-ipa}}
  mini-bbb: {{family: mini, pair: bbb-ipa}}
"""


@pytest.fixture
def mini(tmp_path, monkeypatch, capfd):
    """A file of two tasks, their data, and `call`, which runs the command in this process."""
    (tmp_path / "tasks.yaml").write_text(TASKS_FILE.format(small=" ".join(SMALL)))
    (tmp_path / "data" / "mini").mkdir(parents=True)
    for seed, language in enumerate(("aaa", "bbb")):
        rng = random.Random(seed)
        for name, size in (("train", 40), ("dev", 6)):
            words = ["".join(rng.choices("abcde", k=rng.randint(2, 5))) for _ in range(size)]
            lines = "".join(f"{word}\t{' '.join(word.upper())}\n" for word in words)
            (tmp_path / "data" / "mini" / f"{language}_{name}.tsv").write_text(lines)
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    options = ["--from", tmp_path / "data", "--tasks-file", tmp_path / "tasks.yaml"]
    on_cpu = [*map(str, options), "--cpu", "--work"]
    options = [*map(str, options), "--work"]

    def call(work, *words, status=0, cpu=True):
        code = 0
        try:
            many_tasks.main([*words, *(on_cpu if cpu else options), str(work)])
        except SystemExit as end:
            code = end.code or 0
        out, err = capfd.readouterr()
        assert code == status, out + err
        return out + err

    def start(work, *words):
        script = EXAMPLES / "many-tasks" / "reproduce.sh"
        return subprocess.Popen(
            ["bash", script, *words, *on_cpu, str(work)], stdout=subprocess.PIPE, text=True
        )

    return SimpleNamespace(folder=tmp_path, call=call, start=start)


def wait_for(process, pattern):
    """Read what it prints up to that; ten minutes at most."""
    said, clock = "", threading.Timer(600, process.kill)
    clock.start()
    try:
        for line in process.stdout:
            said += line
            if re.search(pattern, line):
                return said
    finally:
        clock.cancel()
    raise AssertionError(f"ended before '{pattern}':\n{said}")


ALL = ("--tasks", "mini", "--seeds", "1 2")


@pytest.mark.longest
def test_tuned_killed_resumed_and_known_elsewhere(mini):
    work = mini.folder / "work"
    first = mini.start(work, *ALL)
    wait_for(first, r"1/2 tuning mini-aaa .* left, until")
    wait_for(first, "has the best mean WER")
    wait_for(first, "1/8 mini-aaa lie-trotter seed 1: WER")
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=30) == 128 + signal.SIGTERM
    first.stdout.close()
    done = {path: path.stat().st_mtime_ns for path in work.glob("records/*/*.json")}
    assert 1 <= len(done) <= 2

    said = mini.call(work, *ALL, "--jobs", "2")
    assert f"{len(done)} of 8 runs are done already" in said
    assert re.search(r"7/8 mini-.* WER .* left, until \w+ \d\d:\d\d", said)
    assert said.count("| mini-aaa | ") == 3 and "## Over the tasks of a family" in said
    assert all(path.stat().st_mtime_ns == time for path, time in done.items())
    assert len([*work.glob("records/*/*.json")]) == 8
    record = json.loads((work / "records" / "mini-bbb" / "strang-marchuk-seed2.json").read_text())
    assert 0 <= record["runs"][0]["looping"] <= record["runs"][0]["cut_off"] <= 6
    assert not [*work.glob("*/runs/*/*/checkpoint*")]
    assert (work / "report" / "report.json").is_file()
    known_elsewhere(mini, work)


def known_elsewhere(mini, work):
    """Kept in few files, the runs spare another machine theirs."""
    kept, other = mini.folder / "kept", mini.folder / "other"
    keep = (*ALL, "--records", str(kept))
    mini.call(work, *keep)
    files = sorted(str(path.relative_to(kept)) for path in kept.rglob("*.json"))
    assert files == ["mini-aaa.json", "mini-bbb.json", "tuning/mini.json"]
    # Nothing is trained: fairseq's commands are not there to be found.
    said = mini.call(other, *keep)
    assert "4 runs are taken from" in said and "8 of 8 runs are done already" in said
    assert said.count("| mini-aaa | ") == 3 and not [*other.glob("*/runs")]
    said = mini.call(other, *ALL[:2], "--records", str(kept), "--max-update", "5", status=1)
    assert "lie-trotter was made with other settings than these" in said
    assert "or give another --work" in said
    said = mini.call(other, "run", *ALL[:2], "--max-update", "5", status=1)
    assert "tuning mini-aaa lie-trotter was made with other settings than these" in said
    third = mini.folder / "third"
    said = mini.call(third, *ALL[:2], "--records", str(kept), "--max-update", "5", status=1)
    assert "tuning mini-aaa lie-trotter, 100 tokens, dropout 0.1 was made with other set" in said
    # What was kept before stays, though this machine has less.
    for path in other.glob("records/mini-aaa/*seed1.json"):
        path.unlink()
    # Nor does it change because this machine has another result of a run, which is named.
    path = other / "records" / "mini-bbb" / "lie-trotter-seed1.json"
    record = json.loads(path.read_text())
    record["runs"][0]["items"] = "999999"
    path.write_text(json.dumps(record))
    dev = next(other.glob("mini-aaa/tuning/*/*/*/dev.json"))
    dev.write_text(dev.read_text().replace('"score": ', '"score": 1'))
    before = {path: path.read_text() for path in kept.rglob("*.json")}
    said = mini.call(other, *keep, status=1)
    assert "these were not added: mini-bbb lie-trotter seed 1, tuning mini-aaa lie-tro" in said
    assert {path: path.read_text() for path in kept.rglob("*.json")} == before
    # Other data than the kept runs': the next run is refused before it is trained.
    table = mini.folder / "data" / "mini" / "aaa_train.tsv"
    table.write_text(table.read_text().replace("A", "Å"))
    said = mini.call(other, "run", "--tasks", "mini-aaa", "--seeds", "3", status=1)
    assert "the known runs of mini-aaa are of other data than" in said


def test_jobs_of_a_cluster(mini, monkeypatch):
    """submitit's executor for this machine stands in for Slurm's."""
    pytest.importorskip("submitit")
    monkeypatch.setenv("SUBMITIT_CLUSTER", "local")
    monkeypatch.setattr(launch, "POLL_SECONDS", 0.2)
    text = (mini.folder / "tasks.yaml").read_text()
    chosen = "    chosen: {tokens: 100, dropout: 0.1}\n    tuning:\n"
    (mini.folder / "tasks.yaml").write_text(text.replace("    tuning:\n", chosen))
    words = ("--tasks", "mini-aaa", "--launcher", "slurm", "--slurm", "timeout_min=5")
    said = mini.call(mini.folder / "work", *words)
    assert "2/2 mini-aaa strang-marchuk seed 1: WER" in said or "2/2 mini-aaa lie-trotter" in said
    assert said.count("| mini-aaa | ") == 3
    assert len([*Path(mini.folder, "work", "slurm").glob("*_submitted.pkl")]) == 2
