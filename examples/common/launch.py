"""Jobs, several at a time: as processes of this machine, or as jobs of a Slurm cluster."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from common.steps import ENVIRONMENT, hold, say
from macaron_fairseq.commands.arguments import positive
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.wording import counted

POLL_SECONDS = 5
LATE_SECONDS = 60  # that a network disk may take to show a file
LONGEST_LINE = 300
ELSEWHERE = os.EX_TEMPFAIL  # the exit status of a run that another process is doing


@dataclass(frozen=True)
class Job:
    """A command, and where it says how it went."""

    label: str
    words: Sequence[str]
    log: Path
    result: Path  # this file is there exactly when the run is done

    def __call__(self) -> int:
        """Run it here; on a cluster submitit calls this. Returns its exit status."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as file:
            return subprocess.run(self.words, stdout=file, stderr=file).returncode

    def checkpoint(self) -> Any:
        """What submitit submits where the time is over: the same, which goes on."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def local(jobs: Sequence[Job], at_a_time: int) -> Iterator[tuple[Job, int]]:
    """Each job with its exit status as it ends; one thread of PyTorch each, and one GPU."""
    processes = Processes(at_a_time)

    def end(number: int, _: Any) -> None:
        processes.end()
        os._exit(128 + number)  # the threads would wait for jobs that have not begun

    # A closed terminal sends SIGHUP, unless nohup had it ignored.
    before = {
        number: signal.signal(number, end)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    pool = ThreadPoolExecutor(at_a_time)
    try:
        futures = {pool.submit(processes.run, job): job for job in jobs}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        processes.end()
        for number, handler in before.items():
            signal.signal(number, handler)


class Processes:
    """Jobs as processes of this machine, which share its GPUs, and end together."""

    def __init__(self, at_a_time: int) -> None:
        self.running: set[subprocess.Popen] = set()
        self.starting = threading.RLock()  # none begins while all are ended, nor after that
        self.has_ended = False
        self.free_gpus: SimpleQueue[str] | None = None
        if gpus := visible_gpus():
            self.free_gpus = SimpleQueue()
            for slot in range(at_a_time):
                self.free_gpus.put(gpus[slot % len(gpus)])

    def run(self, job: Job) -> int:
        """Do a job, on a GPU that is free; returns its exit status."""
        if self.free_gpus is None:
            return self.start_and_wait(job)
        gpu = self.free_gpus.get()
        try:
            return self.start_and_wait(job, CUDA_VISIBLE_DEVICES=gpu)
        finally:
            self.free_gpus.put(gpu)

    def start_and_wait(self, job: Job, **variables: str) -> int:
        """Start a process and wait for it; its output goes to the job's log."""
        environ = {**ENVIRONMENT, "OMP_NUM_THREADS": "1", **os.environ, **variables}
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with job.log.open("ab") as log:
            with self.starting:
                if self.has_ended:
                    return 128 + signal.SIGTERM
                process = subprocess.Popen(
                    job.words, env=environ, stdout=log, stderr=log, start_new_session=True
                )
                self.running.add(process)
            status = process.wait()
            self.running.discard(process)
        return status

    def end(self) -> None:
        """End all, with what they started."""
        with self.starting:
            self.has_ended = True
            for process in [*self.running]:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)


def visible_gpus() -> list[str]:
    """The GPUs of this machine that jobs may use, as CUDA_VISIBLE_DEVICES names them."""
    if (named := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    try:
        said = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [str(i) for i, _ in enumerate(re.findall("^GPU ", said.stdout, re.MULTILINE))]


def slurm(
    name: str, jobs: Sequence[Job], at_a_time: int, folder: Path, parameters: Mapping[str, Any]
) -> Iterator[tuple[Job, int]]:
    """Each job with its exit status as it ends; submitit submits them."""
    try:
        import cloudpickle
        import submitit
    except ImportError:
        sys.exit("--launcher slurm needs submitit: pip install submitit")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a job does not find this file
    shared = {"name": name, "slurm_array_parallelism": at_a_time, **parameters}
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=os.environ.get("SUBMITIT_CLUSTER"))
        executor.update_parameters(**shared)
        with executor.batch():  # one array of jobs
            submitted = [(executor.submit(job), job) for job in jobs]
    except (NameError, TypeError, AssertionError, RuntimeError, ValueError) as error:
        sys.exit(f"--launcher slurm: {' '.join(str(error).split()) or f'bad values in {shared}'}")
    while submitted:
        for pair in [pair for pair in submitted if pair[0].done()]:
            submitted.remove(pair)
            handle, job = pair
            try:
                yield job, handle.result()
            except Exception as error:  # the cluster ended it
                reason = str(error).strip().split("\n")[0]
                print(f"{job.label}: {reason} (see {folder})", file=sys.stderr)
                yield job, 1
        time.sleep(POLL_SECONDS if submitted else 0)


def add_options(add: Callable[..., Any]) -> None:
    """Add the options that say where jobs run, with a parser's `add_argument`."""
    add("--jobs", type=positive, default=1, metavar="N", help="runs at a time (default: 1)")
    add(
        "--launcher",
        choices=("local", "slurm"),
        default="local",
        help="local: processes of this machine (default); slurm: a cluster job for each run",
    )
    add(
        "--slurm",
        nargs="*",
        default=[],
        metavar="NAME=VALUE",
        help="what each job asks the cluster for, in submitit's words: timeout_min=600 "
        "slurm_partition=long gpus_per_node=1",
    )


@dataclass(frozen=True)
class Runner:
    """Does jobs that are not done, several at a time, and keeps records of what is done at once.

    The machine may go at any time.
    """

    name: str  # of the recipe
    at_a_time: int
    keep: Callable[[], object]  # records of all that is done
    shown: Callable[[Path], str]  # what is said of a result
    logs: Path | None = None  # of a cluster that the jobs are for; None: they run here
    asked: Mapping[str, Any] = field(default_factory=dict)  # what each asks the cluster for

    @classmethod
    def of(
        cls,
        name: str,
        args: Any,
        logs: Path,
        keep: Callable[[], object],
        shown: Callable[[Path], str],
    ) -> "Runner":
        """What the options of `add_options` say; ends the program at a bad --slurm."""
        if args.launcher == "slurm":
            asked: dict[str, Any] = {"timeout_min": 600, "cpus_per_task": 1}
            for word in args.slurm:
                key, equals, value = word.partition("=")
                if not equals:
                    sys.exit(f"--slurm takes NAME=VALUE, not {word}")
                asked[key] = int(value) if value.isdecimal() else value
            return cls(name, args.jobs, keep, shown, logs, asked)
        if args.slurm:
            sys.exit("--slurm is for --launcher slurm: give that, too")
        return cls(name, args.jobs, keep, shown)

    def start(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, int]]:
        """Each job with its exit status as it ends.

        What `keep` refuses is said when all have ended: it does not end the others.
        """
        if self.logs:
            started = slurm(self.name, jobs, self.at_a_time, self.logs, self.asked)
        else:
            started = local(jobs, self.at_a_time)
        refused: UserError | None = None
        for job, status in started:
            refused = None  # it keeps all that is not kept yet
            try:
                self.keep()
            except UserError as error:
                refused = error
            except OSError as error:  # as of a full disk
                refused = UserError(f"cannot keep records: {error.strerror or error}")
            yield job, status
        if refused:
            raise refused

    def finish(self, jobs: Sequence[Job]) -> None:
        """Do the jobs; ends the program if one failed, once the others are done."""
        failed, elsewhere = self.attempt(jobs)
        if elsewhere:
            names = ", ".join(job.label for job in elsewhere)
            say(self.name, f"left to another process: {names}")
        if failed:
            sys.exit(f"{len(failed)} of {len(jobs)} runs failed; start it again to try them again")
        if elsewhere:
            sys.exit(f"{len(elsewhere)} runs are not done yet: start it again when they are")

    def attempt(self, jobs: Sequence[Job]) -> tuple[list[Job], list[Job]]:
        """Do the jobs; returns those that failed, and those that another process is at."""
        left = [job for job in jobs if not job.result.is_file()]
        done = len(jobs) - len(left)
        progress = Progress(len(jobs), done, self.at_a_time, lambda text: say(self.name, text))
        if done:
            say(self.name, f"{done} of {len(jobs)} runs are done already")
        if left:
            first = left[0].log
            say(self.name, f"{counted(len(left), 'run')} to do; the log of the first is {first}")
        failed, elsewhere = [], []
        for job, status in self.start(left):
            if job.result.is_file() or (status == 0 and appears(job.result)):
                progress.add(f"{job.label}: {self.shown(job.result)}")
            elif status == ELSEWHERE:
                elsewhere.append(job)
                progress.skip(f"{job.label}: another process is at it")
            else:
                failed.append(job)
                progress.add(f"{job.label} failed: {last_line(job.log)} (see {job.log})")
        return failed, elsewhere


def appears(path: Path) -> bool:
    """Whether a file that another machine has written is seen here within a minute.

    A network disk remembers for a while that it was not there.
    """
    end = time.monotonic() + LATE_SECONDS
    while not path.is_file() and time.monotonic() < end:
        time.sleep(1)
        with suppress(OSError):
            os.listdir(path.parent)  # noqa: PTH208  which asks the server anew
    return path.is_file()


def last_line(log: Path) -> str:
    """The last thing that a run said, or how that begins."""
    lines = log.read_text("utf-8", errors="replace").split("\n") if log.is_file() else []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
    return last if len(last) <= LONGEST_LINE else f"{last[:LONGEST_LINE]}..."


@contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """Hold a lock; where another process has it, end with `ELSEWHERE`."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with hold(lock, elsewhere=ELSEWHERE):
        yield


# --- What is shown -------------------------------------------------------------------------------


class Progress:
    """A line for each job that ended: how many are done, and when the rest will be."""

    def __init__(self, total: int, done: int, at_a_time: int, say: Callable[[str], None]) -> None:
        self.total, self.done, self.at_a_time, self.say = total, done, at_a_time, say
        self.begin, self.ended = time.monotonic(), 0

    def add(self, text: str) -> None:
        """One more that ended, and how long the rest will take, if the others are half done."""
        self.done += 1
        self.ended += 1
        left = self.total - self.done
        halves = min(self.at_a_time - 1, left) / 2
        seconds = (time.monotonic() - self.begin) / (self.ended + halves) * (left - halves)
        end = time.strftime("%a %H:%M", time.localtime(time.time() + seconds))
        eta = f"; {span(seconds)} left, until {end}" if left else ""
        self.say(f"{self.done}/{self.total} {text}{eta}")

    def skip(self, text: str) -> None:
        """One that is left to another process: it took no time."""
        self.done += 1
        self.say(f"{self.done}/{self.total} {text}")


def span(seconds: float) -> str:
    """A time as one says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
