"""fairseq's commands in processes that need not import fairseq anew, which takes seconds."""

import faulthandler
import logging
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import served

TIMEOUT = 600
LIMIT = 400  # seconds, after which a command says where it is and ends
# A server forks each of them. It has imported fairseq, and what training imports later; of this
# project nothing.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(served.PRELOADED)


def run_forked(command, words, cwd=None):
    """What `subprocess.run` gives of a console script of fairseq, stdout and stderr in one."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        process = CONTEXT.Process(
            target=become, args=(command, words, cwd or Path.cwd(), dict(os.environ), output)
        )
        process.start()
        process.join(TIMEOUT)
        if process.is_alive():
            process.kill()
            raise subprocess.TimeoutExpired(command, TIMEOUT)
        text = output.read_text()
    return subprocess.CompletedProcess([command, *words], process.exitcode, text)


def become(command, words, cwd, environ, output):
    """Be that command, as its console script would."""
    with output.open("wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    os.chdir(cwd)
    be_as_started_by_a_shell(environ)
    sys.argv = [str(Path(sys.executable).with_name(command)), *words]
    faulthandler.dump_traceback_later(LIMIT, exit=True, file=2)
    (script,) = entry_points(group="console_scripts", name=command)
    sys.exit(script.load()())


def be_as_started_by_a_shell(environ):
    """Forget what the forked process has of its server."""
    os.environ.clear()
    os.environ.update(environ)
    logging.getLogger().handlers.clear()  # fairseq's commands set it up before they import fairseq
    # The server's way to start processes is handed on. Each worker that loads data would then
    # import PyTorch and fairseq: seconds in each epoch, and again in each validation.
    multiprocessing.set_start_method(None, force=True)


def run_script(path, words, environ, output=None):
    """The exit status of a Python script, in a process that has fairseq imported.

    What it prints goes to the file `output`, where one is given.
    """
    process = CONTEXT.Process(target=be_script, args=(str(path), words, environ, output))
    process.start()
    process.join(TIMEOUT)
    if process.is_alive():
        process.kill()
        raise subprocess.TimeoutExpired(path, TIMEOUT)
    return process.exitcode


def be_script(path, words, environ, output):
    """Be that script, as `python3 PATH WORD...` would."""
    if output:
        with Path(output).open("wb") as file:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
    be_as_started_by_a_shell(environ)
    sys.argv = [path, *words]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")


def apply(check, argv):
    """Let a check of `macaron_fairseq.preflight` see a command line, as the package does."""
    from macaron_fairseq.preflight import command_line

    if line := command_line.read(argv):
        check(line)


def sentence_of(function):
    """The one sentence with which it ends the program."""
    with pytest.raises(SystemExit) as end:
        function()
    assert isinstance(end.value.code, str) and "\n" not in end.value.code
    return end.value.code
