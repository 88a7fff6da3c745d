"""Commands and scripts in processes that need not import fairseq anew, which takes seconds."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from helpers import served


def run_forked(command, words, cwd=None, environ=None, stdin=None):
    """What `subprocess.run` gives of a console script or a Python file, all output in one."""
    with open_text() as output, open_text() as given:
        given.write(stdin or "")
        given.seek(0)
        streams = [given.fileno(), output.fileno(), output.fileno()]
        words = [command, *words]
        status = served.run(words, cwd or Path.cwd(), environ or os.environ, streams)
        output.seek(0)
        return subprocess.CompletedProcess(words, status, output.read())


def open_text():
    """A file that is gone when it is closed."""
    return tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")


def apply(check, argv):
    """Let a check of `macaron_fairseq.preflight` see a command line, as the package does."""
    from macaron_fairseq.preflight import command_line

    if line := command_line.read(argv):
        check(line)


def sentence_of(function, *arguments):
    """The one sentence with which it ends the program."""
    with pytest.raises(SystemExit) as end:
        function(*arguments)
    assert isinstance(end.value.code, str) and "\n" not in end.value.code
    return end.value.code


def refusal(*words):
    """The sentence with which a command line of fairseq is refused before it is parsed."""
    from macaron_fairseq.preflight import checks

    return sentence_of(lambda: apply(checks.check, [str(word) for word in words]))
