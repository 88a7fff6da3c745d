"""Steps that know whether they are done, locks, and the commands that a recipe runs."""

import fcntl
import hashlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from macaron_fairseq.common import signals

LOCK_SECONDS = 10
INTERRUPTED_SECONDS = 3  # in which a command may end by itself
TERMINATED_SECONDS = 10  # in which it is to end
TOLD_MINUTES = 5  # between two words on a long command
# Of all commands, unless the user has set it.
ENVIRONMENT = {
    # cuDNN's attention, PyTorch's first choice on some GPUs, plans anew for each shape of a batch.
    "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1",
}
Words = list[str | Path]


def say(recipe: str, text: str, file: TextIO | None = None) -> None:
    """Tell the user, at once though it goes to a pipe: on standard output, or in a file."""
    print(f"{recipe}: {text}", flush=True, file=file)


def hash_of(*texts: str) -> str:
    """Of texts, each ended by NUL."""
    return hashlib.sha256("".join(f"{text}\0" for text in texts).encode()).hexdigest()


def code(*paths: Path) -> str:
    """A hash of source files; where it changes, a step that depends on it is done again."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def step(folder: Path, made_from: Iterable[str], fill: Callable[[Path], None]) -> None:
    """Let `fill` fill the folder that it is given, unless FOLDER was made from the same already.

    `made_from` are texts that stand for all inputs, code and settings. A kill at any moment leaves
    FOLDER.part or FOLDER.replaced, which are not taken for done; what is whole of them gets its
    name back. A refusal leaves nothing. A folder that no step made is never replaced.
    """
    mark = hash_of(*made_from)
    part, old = (folder.with_name(folder.name + end) for end in (".part", ".replaced"))
    if not folder.exists():  # killed between two names
        if made(part) == mark:
            part.rename(folder)
        elif made(old):
            old.rename(folder)
    discard(old)
    if made(folder) == mark:
        return
    refuse_foreign(folder)
    discard(part)
    part.mkdir(parents=True)
    try:
        fill(part)
    except SystemExit:
        if not any(part.rglob("*.log")):  # which the user may be told to look into
            discard(part)
        raise
    (part / "made-from").write_text(mark + "\n")
    if folder.exists():
        folder.rename(old)
    part.rename(folder)
    discard(old)


def refuse_foreign(folder: Path) -> None:
    """End the program where a step would replace what the user has put there."""
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not is_empty and not (folder / "made-from").exists():
        sys.exit(f"{folder} holds what no recipe made: move it, or give another --work")


def discard(folder: Path) -> None:
    """Remove a step's folder, or a link to one."""
    if folder.is_symlink():
        folder.unlink()
        return
    (folder / "made-from").unlink(missing_ok=True)  # half removed it would still pass for done
    shutil.rmtree(folder, ignore_errors=True)


def made(folder: Path) -> str:
    """The hash of a finished step's inputs, from its folder; "" where it is not done."""
    try:
        return (folder / "made-from").read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def open_lock(path: Path) -> TextIO:
    """The file of a lock, made if it is not there; ends the program where that cannot be.

    It is no link, by which others could have this write elsewhere in a folder that all may use.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        sys.exit(f"{path} cannot be used as a lock: {error.strerror}")
    return os.fdopen(descriptor, "a+")


@contextmanager
def hold(lock: Path, waits: bool = False, elsewhere: int | None = None) -> Iterator[None]:
    """Keep others from working on the same, until the block or all of this run's processes end.

    Args:
        lock: the file that stands for it.
        waits: whether to wait until another run is done.
        elsewhere: the status with which the program ends where another run is at it; None: it ends
            with a sentence.
    """
    with open_lock(lock) as file:
        os.set_inheritable(file.fileno(), True)
        end = time.monotonic() + LOCK_SECONDS  # a killed run lets go once its last process is gone
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if waits:
                    print(f"waiting for another run, which holds {lock}", file=sys.stderr)
                    fcntl.flock(file, fcntl.LOCK_EX)
                    break
                if time.monotonic() > end:
                    file.seek(0)
                    who = file.read().strip() or "it"
                    sys.exit(elsewhere or f"another run is at work there: {who} holds {lock}")
                time.sleep(0.2)
                continue
            except OSError as error:  # some network disks have no locks
                said = f"{lock} cannot be locked ({error.strerror}): start no second run there"
                print(said, file=sys.stderr)
            break
        with suppress(OSError):  # it is for the message alone
            file.truncate(0)
            file.write(f"process {os.getpid()} of {socket.gethostname()}\n")
            file.flush()
        try:
            yield
        finally:
            with suppress(OSError):  # the same disks
                file.truncate(0)  # a folder that is passed on does not name this machine
                fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process writes into a folder, and keep others out.

    The folder is made, and with it the lock, a file in it: on network disks a folder's own lock
    would be this machine's alone. Both are removed again where nothing came into the folder.
    """
    lock = folder / ".lock"
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            file = lock.open("a")
        except FileNotFoundError:  # whoever was in it has removed it meanwhile
            continue
        with suppress(OSError):  # some network disks have no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            break
        file.close()
    with file:
        try:
            yield
        finally:
            if [*folder.iterdir()] == [lock]:
                lock.unlink()
                with suppress(OSError):  # "." cannot be removed, nor what someone else now locks
                    folder.rmdir()


def start(
    words: Sequence[str | Path], environ: Mapping[str, str] | None = None, **pipes: Any
) -> subprocess.Popen:
    """Start a command; it inherits the locks. Text is UTF-8 whatever the machine's language."""
    own = os.environ if environ is None else environ
    environ = {**ENVIRONMENT, **own, "PYTHONUTF8": "1"}
    return subprocess.Popen([*map(str, words)], env=environ, close_fds=False, **pipes)


@contextmanager
def ending_with_this(process: subprocess.Popen) -> Iterator[None]:
    """End a process if this one is to end within the block: it would hold the locks."""
    with signals.as_exits():
        try:
            yield
        except BaseException as error:
            with suppress(subprocess.TimeoutExpired):  # Ctrl-C reached it, too, and it may say so
                process.wait(INTERRUPTED_SECONDS if isinstance(error, KeyboardInterrupt) else 0)
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(TERMINATED_SECONDS)
            process.kill()  # if it heeds nothing else
            process.wait()
            raise


def call(words: Sequence[str | Path], **pipes: Any) -> None:
    """Run a command that tells its own mistakes; ends the program where it fails."""
    process = start(words, **pipes)
    with ending_with_this(process):
        status = process.wait()
    if -status in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        sys.exit(128 - status)
    if status < 0:  # as where memory is short: then it could say nothing
        sys.exit(f"{words[0]} {killed(status)}")
    if status:
        sys.exit(status)


def killed(status: int) -> str:
    """What a signal did to a command that ended with this status."""
    why = ": is there too little memory?" * (-status == signal.SIGKILL)
    return f"was ended by {signal.Signals(-status).name}{why}"


def waited(process: subprocess.Popen, name: str | Path, file: Path) -> int:
    """Its status, once it has ended; a line now and then, for where nobody sees what it does.

    Args:
        process: a running command.
        name: what the line calls it.
        file: what it writes, where the line sends whoever wants to know more.
    """
    minutes = 0
    while True:
        try:
            return process.wait(60 * TOLD_MINUTES)
        except subprocess.TimeoutExpired:
            minutes += TOLD_MINUTES
            print(f"{name}: {minutes} minutes so far; see {file}", file=sys.stderr)


def logged(log: Path, words: Sequence[str | Path], name: str = "", **pipes: Any) -> None:
    """Run a command and keep what it says on standard error, which is shown on a terminal.

    Where it fails, it is called by `name`, or else by its first word.
    """
    Logged(log, words, name, **pipes).wait()


class Logged:
    """A running command whose standard error goes to a log, and to the terminal if there is one."""

    def __init__(
        self, log: Path, words: Sequence[str | Path], name: str = "", **pipes: Any
    ) -> None:
        self.log, self.name = log, name or words[0]
        self.file = log.open("wb")
        self.is_shown = sys.stderr.isatty()
        errors = subprocess.PIPE if self.is_shown else self.file
        self.process = start(words, stderr=errors, **pipes)

    def wait(self) -> None:
        """Until it ends; ends the program, with the end of the log, if it failed."""
        with ending_with_this(self.process):
            if self.process.stderr:
                while block := self.process.stderr.read1():  # type: ignore[attr-defined]
                    self.file.write(block)
                    sys.stderr.buffer.write(block)
                    sys.stderr.flush()
            status = waited(self.process, self.name, self.log)
        self.file.close()
        if status:
            if not self.is_shown:
                lines = self.log.read_text("utf-8", errors="replace").splitlines()
                print("\n".join(lines[-20:]), file=sys.stderr)
            how = killed(status) if status < 0 else "failed"
            sys.exit(f"{self.name} {how}; see {self.log}")


def shown(words: Sequence[str | Path]) -> str:
    """A command as one types it."""
    return shlex.join(map(str, words))
