"""The stage train: one training for each architecture and seed, resumed after interruptions."""

import io
import logging
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from tqdm import tqdm

from common import ask_fairseq, train_command
from common.recipe import Recipe
from common.stage_prepare import fingerprint
from common.steps import call, ending_with_this, hold, say, shown, start
from common.train_command import Devices
from macaron_fairseq.common import files
from macaron_fairseq.common.environment import available_cores, hides_gpus
from macaron_fairseq.common.progress import Lines
from macaron_fairseq.evaluation.training import manifest

# Another file than the plugin's lock: on some network disks both kinds of locks are one, and the
# training that this starts would wait for it.
LOCK = "recipe.lock"


def plan(recipe: Recipe) -> Devices:
    """How an update is divided, and whether fairseq-train will take the flags; says so.

    Ends the program where nothing can be trained, before hours of work on text.
    """
    if not recipe.dry_run and recipe.stages[0] != "prepare":
        fingerprint(recipe.data)
    # A dry run prints the commands alone, for a shell to read.
    tell = partial(say, recipe.name, file=sys.stderr if recipe.dry_run else None)
    devices = train_command.plan(recipe, ask_fairseq.count_gpus(recipe), os.environ)
    if not devices.gpus:
        cores = os.environ.get("OMP_NUM_THREADS") or available_cores()
        processes = f"CPU cores: {cores}, processes: {recipe.processes}"
        tell(f"no GPU: training in fp32 on {processes}")
        if not find_spec("numba"):
            tell("it may be faster with Numba: pip install numba")
        if not recipe.cpu and not hides_gpus() and ask_fairseq.has_nvidia():
            tell("there is a GPU that this PyTorch cannot use")
    tell(str(devices))
    if train_command.FUSED_ADAM in devices.flags:
        tell("on GPUs fused_adam computes Adam's updates, and resuming is exact")
    if not has_tensorboard():
        print(f"{recipe.name}: no TensorBoard log: pip install tensorboard", file=sys.stderr)
    is_new = any(not (run / manifest.NAME).is_file() for run in recipe.runs())
    comes_later = recipe.stages[0] == "prepare" or len(recipe.archs) > 1
    if recipe.dry_run or (is_new and comes_later):
        ask_fairseq.refuse_unknown_flags([(recipe, devices)])
    return devices


def has_tensorboard() -> bool:
    """Whether there is one to log to."""
    return find_spec("tensorboard") is not None


def train(recipe: Recipe, devices: Devices) -> None:
    """Train what is not trained yet, seed by seed."""
    for seed in recipe.seeds:
        for arch in recipe.archs:
            if recipe.dry_run:
                for flags, _ in parts_left(recipe, devices, arch, seed, 0):
                    print(shown([*devices.launch, *flags]))
            else:
                train_one(recipe, devices, arch, seed)


def parts_left(
    recipe: Recipe, devices: Devices, arch: str, seed: int, had: int
) -> Iterator[tuple[list[str], int]]:
    """What is left of a training that has had so many updates.

    Yields:
        The flags of each part, and after how many updates it ends.
    """
    begin, has_board = 0, has_tensorboard()
    for part in recipe.parts():
        if had < part.max_update:  # else fairseq would make one update more
            flags = train_command.flags(part, devices, arch, seed, has_board)
            if begin and had <= begin:  # the position in an epoch means nothing among other batches
                flags.append("--reset-dataloader")
            yield flags, part.max_update
        begin = part.max_update


def train_one(recipe: Recipe, devices: Devices, arch: str, seed: int) -> None:
    """One training to its end, from where it stands."""
    run = recipe.run(arch, seed)
    asked = train_command.identity(recipe, fingerprint(recipe.data), arch, seed)
    if train_command.trained_as(run) == asked:
        return
    run.mkdir(parents=True, exist_ok=True)
    environ = {name: value for name, value in os.environ.items() if name not in devices.dropped}
    if devices.nodes > 1 and devices.node:  # the first node keeps the log; fairseq is silent here
        had, log = updates_had(recipe, run), run / f"train-{devices.node}.log"
        for flags, _ in parts_left(recipe, devices, arch, seed, had):
            words = [*devices.launch, *flags]
            with log.open("ab") as file:
                training = start(words, environ, stdout=file, stderr=subprocess.STDOUT)
                with ending_with_this(training):
                    if training.wait():
                        sys.exit(f"training failed on this node; see {log}")
        return
    with hold(run / LOCK):
        had = updates_had(recipe, run)
        check_batch(recipe, run, had)
        check_parts(recipe, run, had)
        if had > recipe.max_update:
            sys.exit(
                f"{run} has had {had} updates already: give its own --max-update, or another --work"
            )
        whole = train_command.flags(recipe, devices, arch, seed, has_tensorboard())
        call(["macaron-fairseq", "manifest", run, "--data", recipe.data, "--", *whole])
        for flags, most in parts_left(recipe, devices, arch, seed, had):
            (run / train_command.TRAINED).unlink(missing_ok=True)
            words, title = [*devices.launch, *flags], f"{arch}, seed {seed}"
            follow_training(words, environ, run / "train.log", title, had, most)
            had = most
        if (run / "checkpoint_last.pt").is_file():  # not with --no-save
            train_command.note_trained(run, asked)


def check_batch(recipe: Recipe, run: Path, had: int) -> None:
    """End the program where a training would go on with another batch.

    The manifest's flags say how the batch is divided, which may change, and not what it is.
    """
    path = run / "batch"
    before = int(path.read_text()) if path.is_file() else recipe.usual_batch
    if had and before != recipe.batch:
        sys.exit(
            f"{run} was trained with {before} tokens an update: give --batch {before} (where the "
            "recipe has none, the `tokens` and `batches` of its file as before), or another --work"
        )
    files.write(path, f"{recipe.batch}\n")


def check_parts(recipe: Recipe, run: Path, had: int) -> None:
    """End the program where a training would go on in other parts, which no manifest tells."""
    path = run / "parts"
    before = path.read_text() if path.is_file() else ""
    parts = "".join(
        f"to {x.max_update} updates: {shown(x.benchmark.training.words())}\n"
        for x in recipe.parts()[:-1]
    )
    if had and before != parts:
        sys.exit(
            f"{run} was trained with other --short-samples, or without: give those of before, or "
            "another --work"
        )
    if parts:
        files.write(path, parts)
    else:
        path.unlink(missing_ok=True)


# --- Checkpoints ---------------------------------------------------------------------------------


def updates_had(recipe: Recipe, run: Path) -> int:
    """How many updates the run goes on from."""
    path = run / "checkpoint_last.pt"
    others = sorted(run.glob("checkpoint[0-9]*.pt"), key=lambda x: x.stat().st_mtime)
    if not path.is_file():
        # A kill within the first epoch's save leaves one, and costs no more than that epoch.
        if len(others) > 1 and "--no-last-checkpoints" not in recipe.extra:
            # fairseq would begin anew, and mix new epochs with these.
            sys.exit(
                f"{run} holds {others[-1].name} and no {path.name}: copy it to that name to go on "
                "from there, or remove the checkpoints to begin anew"
            )
        return 0
    found = ask_fairseq.apart(updates_of, path)
    if isinstance(found, str):
        copied = f". The recipe goes on from {others[-1].name} if you copy it there" * bool(others)
        sys.exit(found + copied)
    return found


def updates_of(path: Path) -> int | str:
    """The updates that a checkpoint's model has had, or what is wrong with the file."""
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    from macaron_fairseq.common.errors import UserError
    from macaron_fairseq.compat import checkpoints
    from macaron_fairseq.model import averaging

    try:
        return averaging.updates(checkpoints.load(path))
    except UserError as error:
        return str(error)


# --- The log -------------------------------------------------------------------------------------


# A rate below 1 stays one in updates a second.
BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"
EARLY_STOP = re.compile(r"early stop since valid performance hasn't improved for last (\d+) runs")
OUT_OF_TIME = "Stopping training due to cumulative_training_time"
LEFT_OUT = re.compile(r"([\d,]+) samples have invalid sizes and will be skipped")
# What fairseq-train does before its first update, by what it logs when it begins with it.
LOADING = {
    "| fairseq_cli.train | {": "making the model",
    "num. shared model params": "reading the data",
    "begin training epoch": "first updates: they compile some code",
}


def follow_training(
    words: Sequence[str],
    environ: dict[str, str],
    log: Path,
    title: str,
    had: int,
    max_update: int,
) -> None:
    """Run fairseq-train; ends the program with the end of its log where it fails."""
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = start(words, environ, **output)
    assert process.stdout
    lines = io.TextIOWrapper(process.stdout, "utf-8", errors="surrogateescape")
    try:
        with ending_with_this(process):
            watched = follow(lines, log, title, had, max_update)
    except OSError as error:
        sys.exit(f"cannot write {log}: {error.strerror}")
    if process.wait() or not watched.is_done:
        tail = "".join(watched.tail)
        sys.exit(f"{title}: training ended early; the end of {log}:\n{tail}")
    if watched.is_cut:
        sys.exit(
            f"{title}: stopped by --stop-time-hours, which counts the hours of all starts: give "
            "more to go on"
        )


def follow(lines: Iterable[str], log: Path, title: str, had: int, max_update: int) -> "Watched":
    """Keep the log, and show how far it is: a bar on a terminal, a line now and then elsewhere."""
    watched = Watched(title, had)
    on_terminal = sys.stderr.isatty()
    bar = tqdm(
        desc=title,
        file=sys.stderr if on_terminal else Lines(),
        unit=" updates",
        bar_format=BAR,
        initial=had,
        total=max_update,
        mininterval=0.5 if on_terminal else 20,
        smoothing=0.05,
    )
    # What is not UTF-8 is kept as it is.
    with bar, log.open("a", encoding="utf-8", errors="surrogateescape") as file:
        bar.set_postfix_str("loading PyTorch and fairseq")
        for line in lines:
            file.write(line)
            file.flush()
            watched.hear(line)
            watched.show(line, bar)
    if watched.stopped:
        print(
            f"{title}: ended at update {bar.n}: {watched.stopped[1]} validations in a row found no "
            "lower loss (--patience)",
            file=sys.stderr,
        )
    return watched


class Watched:
    """What the lines of a training's log have told so far.

    Attributes:
        tail: the last lines before torchrun tells that a process failed.
        is_done: whether it came to its end.
        is_cut: whether that was the end of the hours that it was given.
    """

    def __init__(self, title: str, had: int) -> None:
        self.title, self.had = title, had
        self.tail: deque[str] = deque(maxlen=20)
        self.is_done = self.is_torchruns = self.is_cut = False
        self.stopped: re.Match[str] | None = None
        self.left_out: re.Match[str] | None = None

    def hear(self, line: str) -> None:
        """Take in a line."""
        self.is_torchruns = self.is_torchruns or is_of_a_failed_process(line)
        if not self.is_torchruns:  # many lines that only repeat it
            self.tail.append(line)
        self.is_done = self.is_done or "done training" in line
        self.is_cut = self.is_cut or OUT_OF_TIME in line
        self.stopped = self.stopped or EARLY_STOP.search(line)

    def show(self, line: str, bar: tqdm) -> None:
        """Show what a line says of how far it is."""
        from macaron_fairseq.evaluation.training import training_log

        if bar.n == self.had and (begun := [x for text, x in LOADING.items() if text in line]):
            bar.unpause()  # loading does not count in updates a second
            bar.set_postfix_str(begun[0])
        if not self.left_out and (found := LEFT_OUT.search(line)):  # each epoch says so again
            self.left_out = found
            said = "samples are too long for --max-tokens or the model, and are left out"
            bar.write(f"{self.title}: {found[1]} {said}", file=sys.stderr)
        if logged := training_log.parse(line):
            if logged.kind == "train_inner":
                loss, speed = logged.figures.get("loss"), logged.figures.get("wps")
                bar.set_postfix_str(f"loss {loss}, {speed} words/s", False)
            bar.update(logged.update - bar.n)


def is_of_a_failed_process(line: str) -> bool:
    """Whether torchrun begins here to tell that a process failed."""
    return "torch/distributed/elastic/multiprocessing/api.py" in line and "failed (exit" in line
