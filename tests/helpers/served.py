"""Commands and scripts by a server that has imported what they need: a fork is cheap.

`run` asks it for one. Recipes start theirs by `folder()`, which holds a stand-in for each command,
to come first on the PATH. It hands its arguments, environment and standard streams to the server,
which forks; killed, it takes its command with it. Each is the command's own console script, in a
process that has imported PyTorch and nothing of this project. There are two servers: commands that
need fairseq are forked from one that has it. All processes of pytest-xdist share them.
"""

import atexit
import contextlib
import faulthandler
import functools
import gc
import importlib
import json
import logging
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from importlib.metadata import entry_points
from pathlib import Path

COMMANDS = ["fairseq-preprocess", "fairseq-train", "fairseq-generate", "macaron-fairseq"]
COMMANDS += ["torchrun", "fairseq-eval-lm", "fairseq-hydra-train"]
# Those of this package that import fairseq. The others see that it is not there.
WITH_FAIRSEQ = ["average", "demo", "describe", "dynamics", "export", "order", "translate"]
# Of other projects, what text work and reports import, and what training, decoding and analysis do.
FOR_TEXT = ["torch._dynamo", "torch.distributed.run", "sacremoses", "sacrebleu", "scipy.stats"]
FOR_TEXT += ["subword_nmt.apply_bpe", "matplotlib.figure", "matplotlib.backends.backend_agg"]
FOR_FAIRSEQ = ["fairseq", "numba", "statsmodels.api", "networkx"]
LIMIT = 400  # seconds of a command, after which it says where it is and ends
TIMEOUT = 600  # and after which it is killed
VARIABLE = "MACARON_TESTS_SERVED"  # of the environment: the folder of a server that runs
STAND_IN = """#!{python} -IS
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
name = os.path.basename(sys.argv[0])
has_fairseq = name.startswith("fairseq-") or {{*sys.argv[1:2]}} & {{*{with_fairseq}}}
server.connect({address!r} + (".fairseq" if has_fairseq else ""))
asked = [name, *sys.argv[1:]], os.getcwd(), dict(os.environ)
socket.send_fds(server, [json.dumps(asked).encode() + b"\\n"], [0, 1, 2])
status = int(server.recv(9) or 1)
sys.exit(status if status >= 0 else 128 - status)
"""


def run(words, cwd, environ, streams):
    """The exit status of a command, or of a Python script, with these as its standard streams."""
    is_of_fairseq = words[0].startswith("fairseq-") or words[0].endswith(".py")
    suffix = ".fairseq" * (is_of_fairseq or bool({*words[1:2]} & {*WITH_FAIRSEQ}))
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(TIMEOUT)
        server.connect(str(folder() / "socket") + suffix)
        asked = json.dumps([words, str(cwd), dict(environ)]).encode() + b"\n"
        socket.send_fds(server, [asked], streams)
        return int(server.recv(9) or 1)


def folder():
    """The folder of stand-ins."""
    return Path(os.environ.get(VARIABLE) or start())


@functools.cache
def start():
    """Start the server, which ends with this process; returns the folder of stand-ins."""
    root = Path(tempfile.mkdtemp(prefix="served-"))
    address = str(root / "socket")
    command = [sys.executable, __file__, address]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    atexit.register(server.communicate)  # first
    assert server.stdout.readline() == b"ready\n"
    for name in COMMANDS:
        stand_in = root / name
        words = {"python": sys.executable, "address": address, "with_fairseq": WITH_FAIRSEQ}
        stand_in.write_text(STAND_IN.format(**words))
        stand_in.chmod(0o755)
    os.environ[VARIABLE] = str(root)
    return root


def serve(address):
    """Fork a command for each connection, until standard input ends."""
    listener, of_fairseq = (socket.socket(socket.AF_UNIX) for _ in range(2))
    for one, path in ((listener, address), (of_fairseq, address + ".fairseq")):
        one.bind(path)
        one.listen(64)
    print("ready", flush=True)
    ready, _, _ = select.select([listener, of_fairseq, sys.stdin], [], [])
    if sys.stdin in ready:  # nothing was asked for
        return
    preload(FOR_TEXT)
    if not os.fork():
        preload(FOR_FAIRSEQ)
        listener, of_fairseq = of_fairseq, listener
    of_fairseq.close()
    gc.collect()
    gc.freeze()  # or each command would look through half a million objects for garbage
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            with contextlib.suppress(ChildProcessError):
                while os.wait():
                    pass
            return
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        connection, _ = listener.accept()
        if not os.fork():
            listener.close()
            attend(connection)
        connection.close()


def preload(names):
    """Import what of these is installed."""
    logging.disable()  # fairseq asks for a package
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    logging.disable(logging.NOTSET)


def attend(connection):
    """Run one command in a process of its own, and tell how it ended."""
    received, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    while not received.endswith(b"\n"):
        if not (more := connection.recv(1 << 20)):  # the stand-in was killed
            os._exit(0)
        received += more
    child = os.fork()
    if not child:
        connection.close()
        become(*json.loads(received), streams)
    with contextlib.suppress(OSError):  # as it does itself: whichever comes first
        os.setpgid(child, child)
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([ended, connection], [], [])
    if ended not in ready:  # the stand-in was killed
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(BrokenPipeError):
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def become(words, cwd, environ, streams):
    """Be that command, as its console script would, or that script."""
    os.setpgid(0, 0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    sys.path[:0] = [path for path in environ.get("PYTHONPATH", "").split(":") if path]
    command, *rest = words
    is_script = command.endswith(".py")
    sys.argv = [command if is_script else str(Path(sys.executable).with_name(command)), *rest]
    logging.getLogger().handlers.clear()  # fairseq's commands set it up before they import fairseq
    faulthandler.dump_traceback_later(LIMIT, exit=True, file=2)
    status = 1
    try:
        if is_script:
            sys.path.insert(0, str(Path(command).parent))
            runpy.run_path(command, run_name="__main__")
            status = 0
        else:
            (script,) = entry_points(group="console_scripts", name=command)
            status = script.load()() or 0
    except SystemExit as end:
        status = end.code or 0
        if isinstance(status, str):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        # As a process ends: what multiprocessing and others registered is run.
        from multiprocessing import util

        util._exit_function()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve(sys.argv[1])
