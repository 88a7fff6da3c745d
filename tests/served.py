"""The commands that recipes start, by a server that has imported what they need: a fork is cheap.

`folder()` holds a stand-in for each command, to come first on the PATH. It hands its arguments,
environment and standard streams to a server, which forks; killed, it takes its command with it.
Each is the command's own console script, in a process that has imported PyTorch and nothing of this
project. There are two servers: commands that need fairseq are forked from one that has it.
"""

import atexit
import contextlib
import faulthandler
import functools
import importlib
import json
import logging
import os
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
WITH_FAIRSEQ = ["average", "describe", "dynamics", "export", "order", "translate"]
# Of other projects, what training and decoding import.
PRELOADED = ["fairseq", "torch._dynamo", "numba", "sacremoses", "subword_nmt.apply_bpe"]
LIMIT = 400  # seconds of a command, after which it says where it is and ends
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


@functools.cache
def folder():
    """The folder of stand-ins; the server ends with this process."""
    root = Path(tempfile.mkdtemp(prefix="served-"))
    address = str(root / "socket")
    command = [sys.executable, __file__, address]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    atexit.register(server.communicate)  # first
    assert [server.stdout.readline() for _ in range(2)] == 2 * [b"ready\n"]
    for name in COMMANDS:
        stand_in = root / name
        words = {"python": sys.executable, "address": address, "with_fairseq": WITH_FAIRSEQ}
        stand_in.write_text(STAND_IN.format(**words))
        stand_in.chmod(0o755)
    return root


def serve(address):
    """Fork a command for each connection, until standard input ends."""
    import torch._dynamo
    import torch.distributed.run  # noqa: F401

    if not os.fork():
        logging.disable()  # it asks for a package
        for name in PRELOADED:
            importlib.import_module(name)
        logging.disable(logging.NOTSET)
        address += ".fairseq"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    print("ready", flush=True)
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
    """Be that command, as its console script would."""
    os.setpgid(0, 0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    sys.path[:0] = [path for path in environ.get("PYTHONPATH", "").split(":") if path]
    sys.argv = [str(Path(sys.executable).with_name(words[0])), *words[1:]]
    logging.getLogger().handlers.clear()  # fairseq's commands set it up before they import fairseq
    faulthandler.dump_traceback_later(LIMIT, exit=True, file=2)
    (script,) = entry_points(group="console_scripts", name=words[0])
    status = 1
    try:
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
