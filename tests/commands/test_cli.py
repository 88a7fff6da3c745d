"""The command `macaron-fairseq`: how it starts and how it ends."""

import os
import re
import shlex
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from helpers.paths import ROOT

from macaron_fairseq import UserError, cli
from macaron_fairseq.analysis.particles.choices import CHOICES

COMMAND = [sys.executable, "-m", "macaron_fairseq"]
# Without it argparse itself prints into nowhere, and says nothing.
BUFFERED = {name: x for name, x in os.environ.items() if name != "PYTHONUNBUFFERED"}


def test_python_m_is_the_command_and_quiet():
    done = subprocess.run([*COMMAND, "user-dir"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert Path(done.stdout.strip()) == ROOT / "macaron_fairseq"


@pytest.mark.parametrize(
    "words", [["user-dir"], ["--help"], ["tokenize", "--language", "en", "--steps", "lowercase"]]
)
def test_a_cut_pipe_ends_as_a_shell_says_it(words):
    """141 is 128 + SIGPIPE, as for other programs in `... | head -1`; and nothing is said."""
    process = subprocess.Popen(
        [*COMMAND, *words],
        cwd=ROOT,
        env=BUFFERED,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    process.stdout = None
    _, said = process.communicate(b"A LINE\n" * 10, timeout=60)
    assert (process.returncode, said) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    ("word", "what"), [("user-dir", "to standard output"), ("--version", "the output")]
)
def test_a_full_disk_is_one_sentence(word, what):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, word],
            cwd=ROOT,
            env=BUFFERED,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr == f"cannot write {what}: No space left on device\n"


def test_a_folder_that_others_may_not_search_is_one_sentence(monkeypatch, capsys):
    """Root may, so the refusal is made up."""

    def refused(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refused)
    with pytest.raises(SystemExit) as ended:
        cli.main(["translate", "private/a.en", "--path", "private/a.pt", "--data", "private"])
    assert re.fullmatch(r"cannot use private\S*: Permission denied", str(ended.value))


def test_a_forgotten_double_dash_is_named(capsys):
    with pytest.raises(SystemExit):
        cli.main(["suggest-batch", "data-bin", "--arch", "x"])
    assert "flags of fairseq-train follow a word --" in capsys.readouterr().err


def test_closed_streams_are_no_traceback(tmp_path):
    """As some daemons start programs."""
    (tmp_path / "in").write_text("A LINE\n")
    words = ["tokenize", "--steps", "lowercase", "--file", "en", "in", "out"]
    done = subprocess.run(
        ["bash", "-c", 'exec "$@" <&- >&-', "-", *COMMAND, *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out").read_text() == "a line\n"


def test_a_result_for_a_closed_stdout_is_not_lost_in_silence(tmp_path):
    (tmp_path / "in").write_text("A LINE\n")
    words = [*COMMAND, "tokenize", "--steps", "lowercase", "--language", "en"]
    done = subprocess.run(
        ["bash", "-c", 'exec "$@" < in >&-', "-", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == "standard output is closed, and the result is to go there\n"


def test_text_where_a_file_should_be_is_one_sentence(capsys):
    with pytest.raises(UserError, match=r"^The harbour .*\.\.\. looks like text: give the name of"):
        cli.main(["tokenize", "--steps", "lowercase", "--file", "en", "The harbour " * 30, "out"])


@pytest.mark.parametrize("during", ["imports", "work"])
def test_an_interrupt_ends_as_a_shell_says_it(during, monkeypatch, capsys):
    from macaron_fairseq.commands import user_dir

    def interrupted(_):
        raise KeyboardInterrupt

    where = {"imports": (cli, "import_module"), "work": (user_dir, "run")}
    monkeypatch.setattr(*where[during], interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.main(["user-dir"])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


WAITING = """
import sys, time
from macaron_fairseq import cli
from macaron_fairseq.commands import user_dir

def run(_):
    print("ready", flush=True)
    time.sleep(60)

user_dir.run = run
sys.argv = ["macaron-fairseq", "user-dir"]
cli.main()
"""


def test_an_interrupt_ends_a_shells_loop_too():
    """A shell goes on after a command that ends by itself, whatever its status."""
    loop = 'for i in 1 2; do "$@"; echo next; done'
    process = subprocess.Popen(
        ["bash", "-c", loop, "-", sys.executable, "-c", WAITING],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which nohup ignores
    )
    try:
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        out, err = process.communicate(timeout=50)
    finally:
        process.kill()
    assert (out, err) == ("", "interrupted\n") and process.returncode == -signal.SIGINT


def test_a_library_that_does_not_load_is_no_output_that_failed(monkeypatch):
    def broken(name):
        raise OSError("libcudart.so.12: cannot open shared object file")

    monkeypatch.setattr(cli, "import_module", broken)
    with pytest.raises(OSError, match=r"libcudart\.so\.12"):
        cli.main(["describe"])


@pytest.mark.parametrize("name", ["fairseq", "another"])
def test_a_machine_that_only_serves_is_told_what_it_lacks(name, monkeypatch):
    from macaron_fairseq.commands import user_dir

    def failed(args):
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    monkeypatch.setattr(user_dir, "run", failed)
    kind, said = {
        "fairseq": (UserError, "fairseq is missing: install this package with what it depends on"),
        "another": (ModuleNotFoundError, "No module named 'another'"),
    }[name]
    with pytest.raises(kind, match=rf"^{said}"):
        cli.main(["user-dir"])


def test_a_file_that_is_missing_is_no_output_that_failed(monkeypatch):
    """What no command has foreseen stays a traceback, which a report of a bug needs."""
    from macaron_fairseq.commands import user_dir

    error = FileNotFoundError(2, "No such file or directory", "a.txt")

    def failed(args):
        raise error

    monkeypatch.setattr(user_dir, "run", failed)
    with pytest.raises(FileNotFoundError) as raised:
        cli.main(["user-dir"])
    assert raised.value is error and not isinstance(error, UserError)


def test_too_little_memory_is_no_output_that_failed(monkeypatch):
    from macaron_fairseq.commands import user_dir

    def failed(args):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(user_dir, "run", failed)
    with pytest.raises(UserError, match="the operating system reports: Cannot allocate memory"):
        cli.main(["user-dir"])


def test_without_a_command_there_is_help(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main([])
    found = capsys.readouterr()
    assert not found.out and "translate raw text" in found.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("describ", "there is no command describ. Did you mean describe?"),
        ("zzz", "there is no command zzz"),
        ("translate --beem 3 text.en", "there is no option --beem. Did you mean --beam?"),
        ("translate --path= --beem 3", "--path is empty: was a variable not set?"),
        ("translate --zzzz=3", "there is no option --zzzz"),
        ("describe --arch x --dropuot 0", "there is no option --dropuot. Did you mean --dropout"),
        ("particles histograms --beeta 3", "there is no option --beeta. Did you mean --beta"),
    ],
)
def test_what_does_not_exist_is_named_before_what_is_missing(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())
    assert ended.value.code == 2
    assert f"error: {said}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["translate", "a.en", "--path", "", "--data", "x"], "--path"),
        (["translate", "", "--path", "x"], "an argument"),
        ([""], "an argument"),
        (["translate", "a.en", "-o", "", "--path", "x"], "-o"),
        (["translate", "a.en", "-o=", "--path", "x"], "-o"),
        (["translate", "--path=x", ""], "an argument"),
        (["translate", "--cpu", "", "--path", "x"], "an argument"),
    ],
)
def test_an_empty_argument_is_no_folder(words, named, capsys):
    """As Path takes it for the current one."""
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert f"error: {named} is empty: was a variable not set?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("average a.pt --last 1 -o {}", "-o/--output: {} is a folder: name a file"),
        ("phrases a.en --spacy x -o {}", "-o/--output: {} is a folder: name a file"),
        ("translate --path a.pt --data x -o {}", "-o/--output: {} is a folder: name a file"),
        ("score a.txt b.en --json {}", "--json: {} is a folder: name a file"),
        ("score a.txt b.en --hypotheses {}", "--hypotheses: {} is a folder: name a file"),
        ("demo --page {}/file", "--page: {}/file is a file: name a folder"),
        ("order -o -", "-o/--output: - is standard output: name a folder"),
        ("export --path a.pt --data x -o -", "-o/--output: - is standard output: name a folder"),
    ],
)
def test_where_nothing_can_be_written_is_learnt_at_once(words, said, tmp_path, capsys):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        cli.main(words.format(tmp_path).split())
    assert ended.value.code == 2
    assert f"error: argument {said.format(tmp_path)}" in capsys.readouterr().err


def test_the_usage_shown_is_that_of_the_command(capsys):
    with pytest.raises(SystemExit):
        cli.main(["tokenize", "--steps", "tokenize", "--language", "en", "a.en", "-o", "b.en"])
    said = capsys.readouterr().err
    assert said.startswith("usage: macaron-fairseq tokenize ")
    assert said.endswith("macaron-fairseq tokenize: error: unrecognized arguments: a.en -o b.en\n")


def test_an_empty_flag_of_fairseq_train_is_its_own_matter():
    words = ["--", "data-bin", "--eval-bleu-args", ""]
    assert cli.parse(["suggest-batch", *words]).flags == words[1:]


def test_options_may_be_cut_short():
    assert cli.parse(["describe", "--arch", "transformer", "--tok", "7"]).tokens == 7


def test_text_may_look_like_an_option():
    """After a word --, and after the = of an option."""
    found = cli.parse(["average", "--last", "1", "-o", "mean.pt", "--", "--beam"])
    assert found.inputs == [Path("--beam")]
    found = cli.parse(["dynamics", "--path", "x", "--data", "y", "--title=--beam 5"])
    assert found.title == "--beam 5"


# --- help ----------------------------------------------------------------------------------------

COMMANDS = [[name] for name in cli.COMMANDS]
COMMANDS += [["particles", choice] for choice in CHOICES]


def help_of(words, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, "--help"])
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_ends_with_an_example_that_is_understood(words, capsys, monkeypatch):
    """By the command's own parser; and nothing in it is of a checkout."""
    text = help_of(words, capsys)
    assert "--user-dir macaron_fairseq" not in text
    assert text.rstrip().splitlines()[-1].startswith("  ")
    example = [line for line in text.splitlines() if "macaron-fairseq " in line][-1]
    if words == ["user-dir"]:  # of which the command is a word
        assert '--user-dir "$(macaron-fairseq user-dir)"' in example
        return
    (arguments,) = re.findall(r"macaron-fairseq ([^|&<>(]+)", example)
    module = import_module(f"macaron_fairseq.commands.{words[0].replace('-', '_')}")
    asked = []
    monkeypatch.setattr(module, "run", asked.append)
    cli.main(shlex.split(arguments))
    assert len(asked) == 1 and arguments.split()[: len(words)] == words


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_fits_a_narrow_terminal_but_for_what_is_copied(words, capsys, monkeypatch):
    texts = {}
    for columns in (60, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        texts[columns] = help_of(words, capsys)
        prose = [line for line in texts[columns].splitlines() if line[:1].isupper()]
        assert max(map(len, prose)) <= min(columns, cli.WIDTH)
    commands = {
        w: re.findall(r"^  (?:[a-z].*)?macaron-fairseq .*", text, re.M) for w, text in texts.items()
    }
    assert commands[60] == commands[200] and (commands[60] or words == ["user-dir"])


def test_the_description_of_a_group_is_filled_and_indented(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    _, group = help_of(["dynamics"], capsys).split("communities of coordinates, with --jacobian:\n")
    assert group.startswith("  The coordinates of the state before a layer are nodes,\n  their ")


def test_the_commands_are_listed_with_an_example(capsys):
    text = help_of([], capsys)
    assert all(re.search(rf"^    {name}\b", text, re.M) for name in cli.COMMANDS)
    assert text.rstrip().endswith("--arch macaron_transformer ...")
