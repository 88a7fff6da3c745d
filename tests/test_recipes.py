"""The shell recipes: what they refuse, and prepare and compare from raw text to the table."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT, SMALL

EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*/*.sh")) + sorted(ROOT.glob("*.sh")) + [ROOT / ".ci" / "run"]


def recipe(script, *args, **env):
    """Run a recipe with this environment's commands first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", EXAMPLES / script, *map(str, args)],
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )


def test_shellcheck():
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([shellcheck, *SCRIPTS], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_wmt14_asks_for_gpus(tmp_path):
    (tmp_path / "preprocess.log").touch()
    for arch, sentence in [
        ("macaron_transformer_wmt_en_de", "0 GPUs are visible, but 4 batches of 8192 tokens"),
        ("macaron_transformer_wmt_en_de_big", "0 GPUs are visible, but 64 batches of 4096 tokens"),
        ("macaron_transformer_tiny", "no architecture for WMT14"),
    ]:
        done = recipe("wmt14/train.sh", tmp_path, tmp_path / "save", arch)
        assert done.returncode != 0 and sentence in done.stdout
    done = recipe("wmt14/train.sh", "nowhere", tmp_path, "macaron_transformer_wmt_en_de")
    assert done.returncode == 1 and "was not made by fairseq-preprocess" in done.stdout


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """Raw text in two 'languages', in a folder whose name has a space."""
    folder = tmp_path_factory.mktemp("raw text")
    for name, size in (("train", 60), ("valid", 10), ("test", 11)):
        pairs = [(f"The {i}th cat, isn't it?", f"Die {i}. Katze, nicht wahr?") for i in range(size)]
        for k, language in enumerate(("en", "de")):
            (folder / f"{name}.{language}").write_text("".join(p[k] + "\n" for p in pairs))
    return folder


def test_prepare_refuses_what_does_not_fit(raw, tmp_path):
    broken = tmp_path / "raw"
    shutil.copytree(raw, broken)
    (broken / "valid.de").write_text("one line\n")
    done = recipe("common/prepare.sh", broken, tmp_path / "out", "en", "de", 50)
    assert done.returncode == 1 and "different numbers of lines" in done.stdout
    done = recipe("common/prepare.sh", raw, broken, "en", "de", 50)
    assert done.returncode == 1 and "holds other things" in done.stdout
    (broken / "valid.de").unlink()
    done = recipe("common/prepare.sh", broken, tmp_path / "out", "en", "de", 50)
    assert done.returncode == 1 and "valid.de is missing or empty" in done.stdout
    assert not (tmp_path / "out").exists()


def test_from_raw_text_to_the_table(raw, tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    done = recipe("common/prepare.sh", raw, data, "en", "de", 50)
    assert done.returncode == 0, done.stdout
    tokens = (data / "tokenized" / "test.en").read_text().splitlines()
    assert tokens[2] == "The 2th cat , isn &apos;t it ?"  # as Moses escapes
    again = recipe("common/prepare.sh", raw, data, "en", "de", 50)
    assert "is up to date" in again.stdout

    archs = ["transformer_tiny_pre_norm", "macaron_transformer_tiny"]
    flags = [*SMALL, "--optimizer", "adam", "--lr", "0.01", "--max-tokens", "300"]
    flags += ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"]
    flags += ["--required-batch-size-multiple", "1", "--log-interval", "1"]
    command = ["common/compare.sh", data, out, " ".join(archs), *flags, "--max-update", "12"]
    done = recipe(*command, AVERAGE="1", DECODE="--beam 2 --max-len-b 9")
    assert done.returncode == 0, done.stdout
    table = (out / "table.md").read_text()
    assert all(f"| `{arch}` |" in table for arch in archs) and "nrefs:1|case:mixed" in table
    results = json.loads((out / "results.json").read_text())
    assert [r["arch"] for r in results] == archs
    # 2+2 layers of width 16: 3d parameters more in each.
    assert results[1]["parameters"] - results[0]["parameters"] == 4 * 3 * 16
    assert [r["updates"] for r in results] == [12, 12]
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    hypotheses = out / archs[1] / "hypotheses.txt"
    assert len(hypotheses.read_text().splitlines()) == 11

    # sacreBLEU's command line agrees with the table.
    sacrebleu = Path(sys.executable).with_name("sacrebleu")
    score = subprocess.run(
        [sacrebleu, data / "test.de", "-i", hypotheses, "-m", "bleu", "chrf", "-w", "4"],
        capture_output=True,
        text=True,
    )
    bleu, chrf = json.loads(score.stdout)
    assert results[1]["bleu"] == pytest.approx(bleu["score"], abs=1e-4)
    assert results[1]["chrf"] == pytest.approx(chrf["score"], abs=1e-4)

    # Finished work is kept; other flags are not mixed in; a lost hypothesis is noticed.
    before = hypotheses.stat().st_mtime_ns
    lines = (out / archs[1] / "hypotheses").read_text().splitlines(keepends=True)
    done = recipe(*command[:-1], "13", AVERAGE="1")
    assert done.returncode == 1 and "other flags or data" in done.stdout
    assert hypotheses.stat().st_mtime_ns == before
    (out / archs[1] / "hypotheses").write_text(
        "".join(line for line in lines if not line.startswith("H-3\t"))
    )
    done = recipe(*command, AVERAGE="1", DECODE="--beam 2 --max-len-b 9")
    assert done.returncode == 1 and "10 hypotheses for 11 references" in done.stdout


def test_a_failed_training_shows_its_end(raw, tmp_path):
    data = tmp_path / "data"
    assert recipe("common/prepare.sh", raw, data, "en", "de", 50).returncode == 0
    done = recipe(
        "common/compare.sh", data, tmp_path / "out", "macaron_transformer_tiny", "--no-such-flag"
    )
    assert done.returncode != 0
    assert "training ended early" in done.stdout and "--no-such-flag" in done.stdout
    assert not (tmp_path / "out" / "table.md").exists()
