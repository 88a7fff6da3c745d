"""The recipes' training: batches, processes, nodes, seeds, interruptions and failures."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import archives
import pytest
import torch
from conftest import ROOT, free_port
from recipes import ARCHS, EXAMPLES, FAST, FLAGS, recipe, start


def test_a_checkpoint_that_was_cut_short_is_replaced(tmp_path):
    for number in (1, 2):
        torch.save({"model": {"x": torch.ones(number)}}, tmp_path / f"checkpoint{number}.pt")
    whole = (tmp_path / "checkpoint2.pt").read_bytes()
    last = tmp_path / "checkpoint_last.pt"
    command = [sys.executable, EXAMPLES / "common" / "mend.py", tmp_path]
    last.write_bytes(whole)
    assert not subprocess.run(command, capture_output=True, check=True).stdout
    last.write_bytes(whole[:-100])
    os.utime(tmp_path / "checkpoint1.pt", (1, 1))
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert "going on from checkpoint2.pt" in done.stdout and last.read_bytes() == whole
    assert (tmp_path / "checkpoint_last.pt.cut").read_bytes() == whole[:-100]
    last.write_bytes(b"")
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert "going on from checkpoint2.pt" in done.stdout and last.read_bytes() == whole
    for path in tmp_path.glob("checkpoint*.pt"):
        path.write_bytes(whole[:-100])
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert "starting anew" in done.stdout and not last.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "arguments, environ, expected",
    [
        # The paper's: 4 GPUs x 8192 tokens.
        ([], {}, ["--update-freq 1 ", "--max-tokens 8192 ", "--fp16"]),
        (["--gpus", "2", "--bf16"], {}, ["--update-freq 2 ", "--bf16"]),
        # More GPUs than batches: smaller batches each.
        (["--gpus", "16"], {}, ["--update-freq 1 ", "--max-tokens 2048 "]),
        (["--gpus", "8", "--max-tokens", "4096"], {}, ["--update-freq 1 "]),
        (["--batch", "65536"], {}, ["--update-freq 2 ", "--max-tokens 8192 "]),
        (["--batch", "4096", "--gpus", "1"], {}, ["--update-freq 1 ", "--max-tokens 4096 "]),
        (["--average", "12"], {}, ["--keep-last-epochs 10 --keep-last-epochs 12 "]),
        # 4 GPUs x 16 x 4096.
        (["--setting", "big"], {}, ["--update-freq 16 ", "--lr 0.003", "wmt_en_de_big"]),
        (
            ["--setting", "big", "--gpus", "8"],
            {"NNODES": "4", "NODE_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
            [
                "torchrun --nproc_per_node 8 --nnodes 4 --node_rank 1 ",
                "--distributed-world-size 32 ",
                "--update-freq 2 ",
            ],
        ),
    ],
)
def test_wmt14_keeps_the_papers_batch(arguments, environ, expected, tmp_path):
    arguments = ["--gpus", "4", *arguments, "--work", tmp_path]
    output = recipe("wmt14/reproduce.sh", "train", "--dry-run", *arguments, **environ)
    commands = [line for line in output.split("\n") if "fairseq-train" in line]
    assert len(commands) == 2
    for command in commands:
        assert all(flag in command for flag in expected), command
    # Baseline and Macaron differ in --arch and where they are saved.
    words = [line.split() for line in commands]
    assert [i for i, pair in enumerate(zip(*words, strict=True)) if len({*pair}) > 1] == [
        i + 1
        for i, word in enumerate(words[0])
        if word in ("--save-dir", "--arch", "--tensorboard-logdir")
    ]


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


@pytest.mark.parametrize("is_there", [True, False])
def test_tensorboard_is_logged_to_where_it_is_installed(is_there, tmp_path):
    (tmp_path / "tensorboard.py").write_text("" if is_there else "raise ImportError")
    command = ["multi30k/reproduce.sh", "--dry-run", "--gpus", "1", "--work", tmp_path / "work"]
    output = recipe(*command, PYTHONPATH=str(tmp_path))
    assert output.count("pip install tensorboard") == (0 if is_there else 1)
    assert output.count("seed1/tensorboard") == (2 if is_there else 0)


MULTI30K = ("multi30k/reproduce.sh", "--pair", "cs-en", "--archs", ARCHS[1])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A work folder of Multi30k with data, to be copied."""
    folder = tmp_path_factory.mktemp("prepared")
    archives.multi30k(folder / "archives")
    folders = ("--from", folder / "archives", "--work", folder / "work")
    recipe(*MULTI30K, "prepare", *folders, *FAST, "--merges", "30")
    assert (folder / "work" / "data" / "code").read_text().count("\n") == 1 + 30
    return folder / "work"


def test_each_seed_is_trained(prepared, tmp_path):
    work, arch, seeds = tmp_path / "work", ARCHS[1], ("1", "7")
    shutil.copytree(prepared, work)
    command = [*MULTI30K, "train", "--work", work, "--seeds", " ".join(seeds)]
    recipe(*command, *FAST, "--max-update", "2", *FLAGS, "--disable-validation")
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
        return *MULTI30K, "train", *folders, *FAST, *options, *FLAGS, "--dropout", "0"

    def last_valid_loss(name):
        log = (tmp_path / name / ARCHS[1] / "seed1" / "train.log").read_text()
        line = [line for line in log.split("\n") if "valid_loss" in line][-1]
        figures = json.loads(line[line.index("{") :])
        return figures["valid_num_updates"], float(figures["valid_loss"])

    assert "1 x 512 tokens x update-freq 16 " in recipe(*command("one"))
    node = {"NNODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    second = start(*command("nodes"), NODE_RANK="1", **node)
    assert "2 x 512 tokens x update-freq 8 " in recipe(*command("nodes"), NODE_RANK="0", **node)
    output, _ = second.communicate(timeout=60)
    assert second.returncode == 0, output
    alone = (*MULTI30K, "--cpu", "--work", tmp_path / "one")
    assert "several nodes are for the stage train" in recipe(
        *alone, status=1, NODE_RANK="0", **node
    )

    updates, loss = last_valid_loss("one")
    assert updates == "8"
    assert last_valid_loss("nodes") == (updates, pytest.approx(loss, abs=2e-3))
    # What one process has begun goes on in two.
    output = recipe(*command("one", "--processes", "2", "--max-update", "12"))
    assert "2 x 512 tokens x update-freq 8 " in output
    assert last_valid_loss("one")[0] == "12"
    log = (tmp_path / "one" / ARCHS[1] / "seed1" / "train.log").read_text()
    assert re.search(r"Loaded checkpoint .* @ 8 updates\)", log)


def test_a_failed_training_shows_its_end(prepared, tmp_path):
    shutil.copytree(prepared, tmp_path / "work")
    command = [*MULTI30K, "train", "--work", tmp_path / "work", *FAST]
    output = recipe(*command, "--", "--no-such-flag", status=1)
    assert "training ended early" in output and "--no-such-flag" in output


def test_the_reason_of_a_failure_is_shown_and_not_what_torchrun_says_of_it(tmp_path):
    log = (
        "Traceback (most recent call last):\n"
        '  File "torch/distributed/elastic/rendezvous/api.py", line 1, in a_frame\n'
        "DistNetworkError: the port is taken\n"
        "E torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)\n"
        "=====\n"
    )
    command = [sys.executable, EXAMPLES / "common/progress.py", "tiny", tmp_path / "train.log"]
    done = subprocess.run(command, input=log, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("DistNetworkError: the port is taken\n\n")


def test_progress_goes_on_where_the_checkpoint_was(tmp_path):
    log = (
        "| INFO | fairseq_cli.train | {'optimization': {'max_update': 8000}}\n"
        "| INFO | fairseq.trainer | Loaded checkpoint x.pt (epoch 9 @ 2170 updates)\n"
        '| INFO | train_inner | {"num_updates": "21| INFO | train_inner | {"loss": "3"}\n'
        "| INFO | fairseq_cli.train | done training in 0.1 seconds\n"
    )
    done = subprocess.run(
        [sys.executable, EXAMPLES / "common/progress.py", "tiny", tmp_path / "train.log"],
        input=log,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert "2170/8000" in done.stderr.splitlines()[-1]
    assert (tmp_path / "train.log").read_text() == log
