"""Processes started by torchrun or Slurm that would train separately are refused."""

from argparse import Namespace

import pytest
from conftest import train
from small import NO_DROPOUT

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat import ranks

TORCHRUN = {"MASTER_ADDR": "a", "MASTER_PORT": "1", "WORLD_SIZE": "2", "RANK": "0"}
SRUN = {"SLURM_STEP_NUM_TASKS": "4"}


def check(environ, gpus, world_size=None, port=-1, init_method=None):
    flags = Namespace(
        distributed_world_size=world_size,
        distributed_port=port,
        distributed_init_method=init_method,
    )
    ranks.check(flags, environ, gpus)


@pytest.mark.parametrize(
    "flags, sentence",
    [
        # As fairseq decides: world size 1 on a single visible GPU, whatever was started.
        (dict(environ=TORCHRUN, gpus=1), "pass --distributed-world-size 2"),
        (dict(environ=TORCHRUN, gpus=0), "--distributed-init-method"),
        (dict(environ=TORCHRUN, gpus=0, world_size=2), "--distributed-init-method"),
        (dict(environ=SRUN, gpus=1), "pass --distributed-world-size 4"),
        (dict(environ=SRUN, gpus=8), "pass --distributed-port"),
        (dict(environ={"OMPI_COMM_WORLD_SIZE": "2"}, gpus=1), "mpirun started 2 processes"),
        (dict(environ={"PMI_SIZE": "4"}, gpus=8), "start them with torchrun"),
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
    ],
)
def test_left_alone(flags):
    check(**flags)


def test_fairseq_train_is_refused(data_bin, tmp_path):
    done = train(data_bin, tmp_path / "save", *NO_DROPOUT, check=False, **TORCHRUN)
    assert done.returncode != 0 and "torchrun started 2 processes" in done.stdout
    assert "Traceback" not in done.stdout and not (tmp_path / "save").exists()
