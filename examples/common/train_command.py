"""The command of one training: devices, batch, precision, launcher, all flags of fairseq-train."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.recipe import Recipe
from common.steps import hash_of
from macaron_fairseq.common import files
from macaron_fairseq.common.environment import available_cores, visible_cores
from macaron_fairseq.evaluation.training import manifest, training_flags

# Or fairseq would wait for other tasks of a Slurm job, or take a launcher's word for one GPU.
LAUNCHERS: tuple[str, ...] = (
    *("SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST", "MASTER_ADDR", "MASTER_PORT"),
    *("WORLD_SIZE", "RANK", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"),
    # From which fairseq would make the same port for all trainings of a job.
    *("SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID"),
)
# fairseq's Adam, and this package's for GPUs: the same updates up to rounding, in fewer kernels.
ADAM, FUSED_ADAM = "adam", "fused_adam"
OF_ADAM_ALONE = ("--fp16-adam-stats", "--use-old-adam")
ANOTHER_BATCH = "another --batch, or where the recipe has none, other `tokens` in its file"
TRAINED = "trained"  # in the folder of a finished training: its identity


@dataclass(frozen=True)
class Devices:
    """Where an update is computed, and how its batch is divided."""

    gpus: int  # on this node; 0: CPU cores
    processes: int  # on this node
    nodes: int
    node: int  # this one's number
    max_tokens: int  # of a device at once
    update_freq: int  # batches of a device in an update
    launch: list[str]  # what starts the training
    flags: list[str]  # precision, optimizer, and what fairseq needs to know of the devices
    dropped: tuple[str, ...]  # variables that must not be seen

    def __str__(self) -> str:
        devices = self.processes * self.nodes
        tokens = devices * self.max_tokens * self.update_freq
        return (
            f"{devices} x {self.max_tokens} tokens x update-freq {self.update_freq} = {tokens} "
            "tokens an update at most"
        )


def plan(recipe: Recipe, gpus: int, environ: Mapping[str, str]) -> Devices:
    """Divide the batch of an update among these GPUs of each node, or processes on a CPU.

    Ends the program with a sentence where it cannot be divided.
    """
    nodes, node = number_of(environ, "NNODES", 1), number_of(environ, "NODE_RANK", 0)
    if gpus == 0 and nodes > 1 and not recipe.cpu:
        sys.exit("several nodes, and no GPU on this one: give --cpu if you mean that")
    if gpus and recipe.processes > 1:
        sys.exit("--processes is for a CPU: each GPU has its own process")
    processes = gpus or recipe.processes
    max_tokens, update_freq = divide(recipe, processes * nodes)
    flags = of_gpus(recipe) if gpus else ["--cpu"]
    launch, dropped = ["fairseq-train"], LAUNCHERS[:0]
    if nodes > 1 or (gpus == 0 and processes > 1):
        launch = torchrun(recipe, gpus, processes, nodes, environ)
        # fairseq counts the GPUs of one node only, and would train a model on each.
        flags += ["--distributed-world-size", str(processes * nodes)]
        if not gpus:  # fairseq does not heed torchrun by itself
            flags += ["--distributed-init-method", "env://", "--distributed-no-spawn"]
            flags += ["--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
    elif gpus:
        dropped = LAUNCHERS
    else:
        flags += ["--distributed-world-size", "1"]  # else as many as there are GPUs, --cpu or not
        if not environ.get("OMP_NUM_THREADS") and available_cores() < visible_cores():
            launch = ["env", f"OMP_NUM_THREADS={available_cores()}", *launch]  # in a container
    found = gpus, processes, nodes, node, max_tokens, update_freq
    return Devices(*found, launch, flags, dropped)


def number_of(environ: Mapping[str, str], name: str, least: int) -> int:
    """A whole number that a variable holds; the least that it can be where there is none."""
    text = environ.get(name) or str(least)
    if not text.isdecimal() or int(text) < least:
        sys.exit(f"{name} is '{text}': it should be a whole number from {least} on")
    return int(text)


def of_gpus(recipe: Recipe) -> list[str]:
    """Precision and optimizer on GPUs.

    Where the recipe trains with fairseq's Adam, `fused_adam` takes its place, unless the flags
    after -- choose an optimizer. It sums up in fp32 in any precision, and saves these weights:
    resuming is exact. "Memory-efficient" is then fairseq's word for copying many tensors at a time.
    """
    own, chosen = map(training_flags.parse, (recipe.benchmark.training.words(), recipe.extra))
    is_fused = own.get("--optimizer") == [ADAM] and not {"--optimizer", *OF_ADAM_ALONE} & {*chosen}
    efficient = "memory-efficient-" * is_fused
    precision = [f"--{efficient}{recipe.precision}"] * (recipe.precision != "fp32")
    return [*["--optimizer", FUSED_ADAM] * is_fused, *precision]


def divide(recipe: Recipe, devices: int) -> tuple[int, int]:
    """Tokens of a device at once, and how many such batches of each device make an update."""
    batch, max_tokens, usual = recipe.batch, recipe.tokens_at_once, recipe.benchmark.training.tokens
    if not recipe.max_tokens:
        # More devices than batches: smaller ones, but not so small that fairseq would drop long
        # sentences.
        least = max(recipe.longest_sample, 250 if usual < 4096 else 1024)
        fewer = max_tokens
        while batch % (fewer * devices) and fewer >= 2 * least:
            fewer //= 2
        if batch % (fewer * devices) == 0:
            max_tokens = fewer
    fewer_devices = "fewer devices by CUDA_VISIBLE_DEVICES or --processes"
    if batch % devices:
        sys.exit(
            f"{devices} devices cannot share an update of {batch} tokens equally: choose "
            f"{ANOTHER_BATCH}, or {fewer_devices}"
        )
    if batch % (max_tokens * devices):
        sys.exit(
            f"an update of {batch} tokens cannot be made of {max_tokens} tokens on each of "
            f"{devices} devices: choose --max-tokens N such that N x {devices} divides {batch}, "
            f"{ANOTHER_BATCH}, or {fewer_devices}"
            if devices > 1
            else f"an update of {batch} tokens cannot be made of batches of {max_tokens}: choose "
            f"--max-tokens N such that N divides {batch}"
        )
    return max_tokens, batch // (max_tokens * devices)


def torchrun(
    recipe: Recipe, gpus: int, processes: int, nodes: int, environ: Mapping[str, str]
) -> list[str]:
    """What starts the processes of several nodes, or several on a CPU."""
    if not shutil.which("torchrun"):
        sys.exit("torchrun is not on the PATH: it comes with PyTorch")
    words = ["torchrun", "--nproc_per_node", str(processes)]
    if nodes == 1:
        words += ["--standalone", "--local_addr", "127.0.0.1"]
    else:
        if recipe.stages != ["train"]:
            sys.exit("several nodes are for the stage train: run the others once, on one")
        words += ["--nnodes", str(nodes)]
        for name in ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT"):
            if not environ.get(name):
                sys.exit(f"NNODES is {nodes} but {name} is not set")
            words += [f"--{name.lower()}", environ[name]]
    if gpus:
        return [*words, shutil.which("fairseq-train") or "fairseq-train"]
    threads = environ.get("OMP_NUM_THREADS") or -(-available_cores() // processes)
    rank = 'exec fairseq-train "$@" --distributed-rank "$RANK"'  # RANK is each process's own
    words += ["--no-python", "bash", "-c", rank, "fairseq-train"]
    return ["env", f"OMP_NUM_THREADS={threads}", *words]


def arch_flags(name: str) -> list[str]:
    """The flags of ARCH, ARCH/SCHEME or ARCH/SCHEME/SUBSTEP: an architecture and its scheme."""
    arch, *of_scheme = name.split("/")
    words = ["--arch", arch]
    for flag, value in zip(("--macaron-scheme", "--macaron-substep"), of_scheme, strict=False):
        words += [flag, value]
    return words


def flags(recipe: Recipe, devices: Devices, arch: str, seed: int, tensorboard: bool) -> list[str]:
    """All flags of the fairseq-train of one architecture and seed."""
    own, run = recipe.benchmark.training.words(), recipe.run(arch, seed)
    kept = training_flags.parse(own).get("--keep-last-epochs")
    words = [*recipe.data_flags, "--save-dir", str(run)]
    words += [*arch_flags(arch), "--seed", str(seed), *own]
    if kept and recipe.average > int(kept[0]):
        words += ["--keep-last-epochs", str(recipe.average)]
    words += ["--max-tokens", str(devices.max_tokens), "--update-freq", str(devices.update_freq)]
    words += ["--max-update", str(recipe.max_update), *devices.flags]
    words += ["--log-format", "json", "--log-interval", "10"]
    if tensorboard:
        words += ["--tensorboard-logdir", str(run / "tensorboard")]
    return [*words, *recipe.extra]


# What changes no update before the end.
PASSING = (*training_flags.CHECKPOINTS, *training_flags.SAVING, *training_flags.CACHES)


def lasting(flags: Sequence[str]) -> list[str]:
    """Flags without those that change no score, such as how much is kept in memory."""
    passing = {*PASSING}.difference(training_flags.WHEN_SAVED)
    found = training_flags.parse(flags).items()
    return [x for name, values in found if name not in passing for x in (name, *values) if x]


def identity(recipe: Recipe, fingerprint: str, arch: str, seed: int) -> str:
    """A hash that two command lines share exactly if they train the same model.

    Elsewhere, on other devices or saved more often it is the same training, and finished all the
    same. So it is with either Adam, and with a teacher that was moved.
    """
    own = recipe.benchmark.training.words()
    has_adam = training_flags.parse(own).get("--optimizer") == [ADAM]
    otherwise = []
    # Of a teacher that is gone its run tells.
    learnt_from = manifest.learnt_before(recipe.run(arch, seed))
    learnt_from |= manifest.learnt_from(recipe.extra)
    for flag, values in training_flags.parse(recipe.extra).items():
        is_adam = flag == "--optimizer" and values in ([ADAM], [FUSED_ADAM])
        if flag in PASSING or (has_adam and is_adam):
            continue
        otherwise += [flag, *([learnt_from[flag]] if flag in learnt_from else values)]
    for part in recipe.parts()[:-1]:
        otherwise += [*part.benchmark.training.words(), str(part.max_update)]
    if recipe.batch != recipe.usual_batch:
        otherwise.append(f"--batch {recipe.batch}")
    precision = "" if recipe.precision == "fp16" else recipe.precision
    return hash_of(
        fingerprint, arch, str(seed), *own, str(recipe.max_update), *otherwise, precision
    )


def trained_as(run: Path) -> str:
    """The identity of a finished training, by its folder; "" where it is not finished."""
    done = run / TRAINED
    return done.read_text("utf-8").strip() if done.is_file() else ""


def note_trained(run: Path, identity: str) -> None:
    """Let a training be known as finished."""
    files.write(run / TRAINED, f"{identity}\n")
