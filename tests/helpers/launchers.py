"""The environment that launchers give to the processes of a training."""

TORCHRUN = {"MASTER_ADDR": "a", "MASTER_PORT": "1", "WORLD_SIZE": "2", "RANK": "0"}
SRUN = {"SLURM_STEP_NUM_TASKS": "4"}
