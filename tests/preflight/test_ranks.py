"""Processes that would train apart, and that the installed fairseq lets them.

A test named `test_fairseq_...` fails once fairseq has mended the fault: then its mend can go.
"""

import shutil
import subprocess
import sys
from argparse import Namespace

import pytest
import torch
from fairseq.dataclass.configs import (
    DistributedTrainingConfig,
    FairseqConfig,
)
from fairseq.distributed.utils import infer_init_method
from fairseq.models import DistributedFairseqModel, build_model
from helpers.commands import apply, refusal
from helpers.launchers import SRUN, TORCHRUN
from helpers.small import (
    NO_DROPOUT,
    arguments,
    task,
)
from helpers.toy_corpus import train
from omegaconf import OmegaConf
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

from macaron_fairseq import UserError
from macaron_fairseq.preflight import (
    checks,
    ranks,
)

TWO_NODES = {  # a task on each; this is the second
    **{"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "a,b", "SLURM_NNODES": "2"},
    **{"SLURM_NTASKS": "2", "SLURM_NODEID": "1", "SLURM_PROCID": "1"},
}


def check(environ, gpus, world_size=None, port=-1, init_method=None):
    flags = Namespace(
        distributed_world_size=world_size,
        distributed_port=port,
        distributed_init_method=init_method,
    )
    ranks.check(flags, environ, gpus)


def distributed(**options):
    """fairseq's options of distributed training."""
    options = DistributedTrainingConfig(**options)
    return OmegaConf.structured(FairseqConfig(distributed_training=options)).distributed_training


def inferred(monkeypatch, environ, world_size, **options):
    """What fairseq makes of an environment on a machine with that many GPUs."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: world_size)
    monkeypatch.setattr(subprocess, "check_output", lambda command: b"a\nb\n")  # scontrol
    config = distributed(distributed_world_size=world_size, **options)
    infer_init_method(config)
    return config


@pytest.mark.parametrize("environ", [TORCHRUN, TWO_NODES], ids=["torchrun", "srun"])
def test_fairseq_does_not_see_what_torchrun_or_srun_started(environ, monkeypatch):
    """Where there is one GPU or none: it then trains in one process."""
    config = inferred(monkeypatch, environ, world_size=1)
    assert (config.distributed_world_size, config.distributed_init_method) == (1, None)


def test_fairseq_connects_what_srun_started_by_a_port_alone(monkeypatch):
    with pytest.raises(AssertionError, match="world size is 16 but have 8 available devices"):
        inferred(monkeypatch, TWO_NODES, world_size=8)
    config = inferred(monkeypatch, TWO_NODES, world_size=8, distributed_port=9218)
    assert (config.distributed_world_size, config.distributed_rank) == (16, 8)
    assert config.distributed_init_method == "tcp://a:9218"


def test_fairseq_does_not_see_what_mpirun_started(monkeypatch):
    """Each process would take all GPUs, and believe to be the first."""
    second = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
    config = inferred(monkeypatch, second, world_size=8)
    assert (config.distributed_world_size, config.distributed_rank) == (8, 0)
    assert config.distributed_init_method.startswith("tcp://localhost:")


JOB = {"SLURM_JOB_NODELIST": "a", "SLURM_NNODES": "1", "SLURM_NODEID": "0"}  # in its script
FOUR_TASKS = JOB | {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


def test_fairseq_waits_for_tasks_that_nobody_has_started(monkeypatch):
    config = inferred(monkeypatch, FOUR_TASKS, world_size=4)
    assert (config.distributed_world_size, config.distributed_no_spawn) == (4, True)


def test_fairseq_needs_the_number_of_tasks_of_a_job(monkeypatch):
    with pytest.raises(TypeError, match="NoneType"):
        inferred(monkeypatch, JOB, world_size=4)


def test_fairseq_takes_all_gpus_of_a_job_of_one_task(monkeypatch):
    config = inferred(monkeypatch, JOB | {"SLURM_NTASKS": "1"}, world_size=4)
    assert (config.distributed_world_size, config.distributed_num_procs) == (4, 4)
    assert not config.distributed_no_spawn


@pytest.mark.parametrize(
    ("job", "advice"),
    [
        (FOUR_TASKS, "--ntasks=1 --ntasks-per-node=1"),
        (JOB, "--ntasks=1 --ntasks-per-node=1"),
        (JOB | {"SLURM_NTASKS_PER_NODE": "4"}, "--ntasks=1 --ntasks-per-node=1"),
        (
            JOB | {"SLURM_NNODES": "2", "SLURM_NTASKS": "2"},
            "--ntasks=2 --ntasks-per-node=1, with --distributed-port N",
        ),
    ],
)
def test_the_script_of_a_job(job, advice, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda program: f"/usr/bin/{program}")
    with pytest.raises(UserError, match=f"start it by srun {advice},"):
        check(job, gpus=4)
    check(job, gpus=1)  # where fairseq does not ask
    check(job, gpus=4, world_size=1)
    check(job, gpus=4, init_method="tcp://a:1")
    check(job | TORCHRUN, gpus=4)
    check(job | {"SLURM_STEP_NODELIST": "a"}, gpus=4)
    check(JOB | {"SLURM_NTASKS": "1"}, gpus=4)
    monkeypatch.setattr(shutil, "which", lambda program: None)  # as in a container
    check(job, gpus=4)


@pytest.mark.usefixtures("one_process")
def test_fairseq_has_no_distributed_data_parallel_on_a_cpu():
    """So `--ddp-backend legacy_ddp` is part of the advice."""
    model = build_model(arguments("transformer_tiny"), task())
    group = torch.distributed.group.WORLD
    with pytest.raises(ValueError, match="device_ids"):
        DistributedFairseqModel(
            distributed(ddp_backend="pytorch_ddp"), model, group, torch.device("cpu")
        )


@pytest.mark.parametrize(
    "flags, sentence",
    [
        # As fairseq decides: world size 1 on a single visible GPU, whatever was started.
        (dict(environ=TORCHRUN, gpus=1), "pass --distributed-world-size 2"),
        (dict(environ=TORCHRUN, gpus=0), "--distributed-init-method.*--ddp-backend legacy_ddp"),
        (dict(environ=TORCHRUN, gpus=0, world_size=2), "--distributed-init-method"),
        (dict(environ=SRUN, gpus=1), "pass --distributed-world-size 4"),
        (dict(environ=SRUN, gpus=8), "pass --distributed-port"),
        (dict(environ={"OMPI_COMM_WORLD_SIZE": "2"}, gpus=1), "mpirun started 2 processes"),
        (dict(environ={"PMI_SIZE": "4"}, gpus=8), "start them with torchrun"),
        (dict(environ=TORCHRUN, gpus=8, world_size=16), "2 processes, and .*-size is 16"),
    ],
)
def test_refused(flags, sentence):
    with pytest.raises(UserError, match=sentence):
        check(**flags)


@pytest.mark.parametrize(
    "flags",
    [
        dict(environ={}, gpus=1),
        dict(environ={**TORCHRUN, "WORLD_SIZE": "1"}, gpus=1),
        dict(environ=TORCHRUN, gpus=8),
        dict(environ=TORCHRUN, gpus=1, world_size=2),
        dict(environ=SRUN, gpus=1, world_size=1),  # a sweep, one training a task
        dict(environ=SRUN, gpus=8, port=9218),
        dict(environ=SRUN, gpus=1, port=9218, world_size=4),
        # salloc and sbatch set this for the shell, where one process is started by hand.
        dict(environ={"SLURM_NTASKS": "4"}, gpus=1),
        dict(environ={**SRUN, "PMI_SIZE": "4"}, gpus=8, port=9218),  # srun --mpi=pmi2
        dict(environ={**TORCHRUN, "OMPI_COMM_WORLD_SIZE": "2"}, gpus=8),
        dict(environ={"OMPI_COMM_WORLD_SIZE": "2"}, gpus=1, world_size=1),
        dict(environ={"OMPI_COMM_WORLD_SIZE": "1"}, gpus=8),
        dict(environ=TORCHRUN, gpus=0, init_method="tcp://127.0.0.1:1"),
        dict(environ=TORCHRUN, gpus=8, init_method="tcp://127.0.0.1:1", world_size=16),
    ],
)
def test_left_alone(flags):
    check(**flags)


def test_fairseq_counts_gpus_on_a_cpu_too(monkeypatch):
    """What starts processes is not told of --cpu."""
    config = inferred(monkeypatch, {}, world_size=2)
    assert (config.distributed_world_size, config.distributed_num_procs) == (2, 2)


def test_a_cpu_next_to_two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for flags in ([], ["--distributed-world-size", "2"]):
        sentence = refusal("fairseq-train", "data", "--cpu", *flags)
        assert sentence.endswith("for each of the 2 GPUs here: add --distributed-world-size 1")
    with monkeypatch.context() as by_torchrun:
        for name, value in TORCHRUN.items():
            by_torchrun.setenv(name, value)
        assert refusal("fairseq-train", "data", "--cpu").startswith("torchrun started 2 processes")
    for flags in (
        ["--distributed-world-size", "1"],
        ["--distributed-world-size", "2", "--distributed-init-method", "tcp://127.0.0.1:1"],
    ):
        apply(checks.check, ["fairseq-train", "data", "--cpu", *flags])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    apply(checks.check, ["fairseq-train", "data", "--cpu"])


@pytest.mark.slow
def test_fairseq_train_is_refused(data_bin, tmp_path, monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    done = train(data_bin, tmp_path / "save", *NO_DROPOUT, check=False)
    assert done.returncode == 1 and "torchrun started 2 processes" in done.stdout
    assert "Traceback" not in done.stdout and not (tmp_path / "save").exists()


# --- mistakes that one of several processes finds ------------------------------------------------


def of_each_gpu(number, kind):
    """What a process does that fairseq-train starts."""
    if kind == "mistake" and number:
        raise UserError("the first line\nthe second")
    if kind == "end" and number:
        raise SystemExit("a sentence")
    if kind == "fault":
        raise ValueError("no user's")
    if kind == "fault after a mistake":
        try:
            raise UserError("the first line")
        except UserError:
            raise ValueError("another")  # noqa: B904 - as fairseq does


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("mistake", "the first line\nthe second\n"),
        ("end", "process 1 ended the training, see above\n"),
        ("fault", ""),
        ("fault after a mistake", ""),
    ],
)
def test_a_mistake_in_a_process_of_a_gpu_ends_the_command_with_its_sentence(
    kind, said, monkeypatch, capfd
):
    others = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: others.append(error))
    ranks.explain()
    with pytest.raises((ProcessRaisedException, ProcessExitedException)) as failed:
        torch.multiprocessing.start_processes(of_each_gpu, (kind,), nprocs=2, start_method="fork")
    capfd.readouterr()
    sys.excepthook(type(failed.value), failed.value, None)
    assert capfd.readouterr().err == said
    assert len(others) == kind.startswith("fault")
