"""The recipes' training: batches, processes, nodes, seeds, interruptions and failures."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from helpers import archives
from helpers.paths import ROOT
from helpers.processes import free_port
from helpers.recipes import ARCHS, FAST, FLAGS, recipe, start

pytestmark = pytest.mark.recipe


def test_a_slurm_job_starts_the_recipe_on_each_node(tmp_path):
    stubs = {
        "scontrol": 'printf "node7\\nnode8\\n"',  # as for SLURM_JOB_NODELIST=node[7-8]
        "srun": 'echo "$1 on $SRUN_CPUS_PER_TASK cores"; shift; SLURM_NODEID=1 exec "$@"',
    }
    for name, line in stubs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    folders = str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]
    slurm = {"JOB_NODELIST": "node[7-8]", "NNODES": "2", "JOB_ID": "42", "CPUS_PER_TASK": "32"}
    done = subprocess.run(
        ["bash", "examples/wmt14/train.sbatch", "--setting", "big", "--dry-run", "--gpus", "8"],
        cwd=ROOT,
        env={
            **os.environ,
            "PATH": os.pathsep.join(folders),
            **{f"SLURM_{name}": value for name, value in slurm.items()},
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("--kill-on-bad-exit=1 on 32 cores\n")
    commands = [line for line in done.stdout.split("\n") if "fairseq-train" in line]
    launch = "torchrun --nproc_per_node 8 --nnodes 2 --node_rank 1 --master_addr node7 "
    assert len(commands) == 2 and all(x.startswith(launch) for x in commands)
    # 4 GPUs x 16 x 4096 tokens.
    assert all("--distributed-world-size 16 " in x and "--update-freq 4 " in x for x in commands)


@pytest.mark.parametrize("fails", [False, True])
def test_a_short_slurm_job_does_the_stages_in_turn(fails, tmp_path):
    recipe_stub = tmp_path / "examples/iwslt14/reproduce.sh"
    recipe_stub.parent.mkdir(parents=True)
    ends = 'case "$*" in *" macaron"*) exit 3 ;; esac\n' * fails
    recipe_stub.write_text(f'#!/bin/sh\necho "$*" >> said\n{ends}')
    recipe_stub.chmod(0o755)
    words = ["bash", ROOT / "examples/iwslt14/job.sbatch", "--from", "my folder"]
    status = subprocess.run(words, cwd=tmp_path).returncode
    first, *trainings, last = (tmp_path / "said").read_text().splitlines()
    if fails:
        assert status == 3 and last.startswith("train ")
        return
    assert status == 0 and first == "prepare --from my folder"
    assert sorted(trainings) == [
        f"train --archs {arch} --from my folder"
        for arch in ("macaron_transformer_iwslt_de_en", "transformer_iwslt_de_en_pre_norm")
    ]
    assert last == "evaluate report --from my folder"


@pytest.mark.parametrize("is_there", [True, False])
def test_tensorboard_is_logged_to_where_it_is_installed(is_there, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", sys if is_there else None)
    command = ["multi30k/reproduce.sh", "--dry-run", "--gpus", "1", "--work", tmp_path / "work"]
    output = recipe(*command, is_bare=True)
    assert output.count("pip install tensorboard") == (0 if is_there else 1)
    assert output.count("seed1/tensorboard") == (2 if is_there else 0)


SHORT = [*FAST, "--batch", "16384", "--max-tokens", "4096"]  # an update is an epoch
MULTI30K = ("multi30k/reproduce.sh", "--pair", "cs-en", "--archs", ARCHS[1])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A work folder of Multi30k with data, to be copied."""
    folder = tmp_path_factory.mktemp("prepared")
    archives.multi30k(folder / "archives")
    folders = ("--from", folder / "archives", "--work", folder / "work")
    recipe(*MULTI30K, "prepare", *folders, *FAST)
    return folder / "work"


def test_each_seed_is_trained(prepared, tmp_path):
    work, arch, seeds = tmp_path / "work", ARCHS[1], ("1", "7")
    shutil.copytree(prepared, work)
    command = [*MULTI30K, "train", "--work", work, "--seeds", " ".join(seeds)]
    recipe(*command, *SHORT, "--max-update", "1", *FLAGS, "--disable-validation")
    weights = [
        torch.load(work / arch / f"seed{seed}" / "checkpoint_last.pt", weights_only=False)
        for seed in seeds
    ]
    one, other = (x["model"]["decoder.embed_tokens.weight"] for x in weights)
    assert one.shape == other.shape and not torch.equal(one, other)
    if find_spec("tensorboard"):
        folder = work / arch / "seed1" / "tensorboard"
        assert any(b"loss" in x.read_bytes() for x in folder.rglob("events.out.tfevents.*"))


def test_nodes_and_processes_train_the_model_of_one(prepared, tmp_path):
    """By torchrun, on a CPU; without dropout, whose draws are each process's own."""
    for name in ("one", "nodes"):
        shutil.copytree(prepared, tmp_path / name)

    def command(name, *options):
        folders = ("--work", tmp_path / name)
        return (
            *MULTI30K,
            "train",
            *folders,
            *SHORT,
            "--max-update",
            "2",
            *options,
            *FLAGS,
            "--dropout",
            "0",
        )

    def last_valid_loss(name):
        log = (tmp_path / name / ARCHS[1] / "seed1" / "train.log").read_text()
        line = [line for line in log.split("\n") if "valid_loss" in line][-1]
        figures = json.loads(line[line.index("{") :])
        return figures["valid_num_updates"], float(figures["valid_loss"])

    assert "1 x 4096 tokens x update-freq 4 " in recipe(*command("one"))
    node = {"NNODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    second = start(*command("nodes"), NODE_RANK="1", **node)
    assert "2 x 4096 tokens x update-freq 2 " in recipe(*command("nodes"), NODE_RANK="0", **node)
    output, _ = second.communicate(timeout=600)
    assert second.returncode == 0, output
    alone = (*MULTI30K, "--cpu", "--work", tmp_path / "one")
    assert "several nodes are for the stage train" in recipe(
        *alone, status=1, NODE_RANK="0", **node
    )

    updates, loss = last_valid_loss("one")
    assert updates == "2"
    assert last_valid_loss("nodes") == (updates, pytest.approx(loss, abs=2e-3))
    # What one process has begun goes on in two.
    output = recipe(*command("one", "--processes", "2", "--max-update", "3"))
    assert "2 x 4096 tokens x update-freq 2 " in output
    assert last_valid_loss("one")[0] == "3"
    log = (tmp_path / "one" / ARCHS[1] / "seed1" / "train.log").read_text()
    assert re.search(r"Loaded checkpoint .* @ 2 updates\)", log)


def test_a_failed_training_shows_its_end(prepared, tmp_path):
    shutil.copytree(prepared, tmp_path / "work")
    command = [*MULTI30K, "train", "--work", tmp_path / "work", *SHORT]
    output = recipe(*command, "--", "--no-such-flag", status=1)
    assert "training ended early" in output and "--no-such-flag" in output
