"""The trained pair that comes with the package, what is typed on a terminal, and completion."""

import codecs
import json
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import served
from helpers.paths import ROOT
from helpers.stored import CHECKPOINT, write_data

from macaron_fairseq import UserError, cli
from macaron_fairseq.commands import demo as command
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.translation import demo, terminal


@pytest.fixture(scope="module")
def phrases():
    """English to German."""
    texts = [demo.phrases_file(x).read_text("utf-8").splitlines() for x in demo.LANGUAGES]
    return dict(zip(*texts, strict=True))


# --- the files -----------------------------------------------------------------------------------


def test_the_files_are_few_and_tell_nothing_of_where_they_were_made():
    files = [path for path in demo.FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 6_000_000
    for path in files:
        assert str(ROOT).encode() not in path.read_bytes(), path
    for model in demo.MODELS:
        state = checkpoints.load_checked(demo.checkpoint(model))
        assert {x.dtype for x in state["model"].values()} == {torch.float16}
        said = vars(state["cfg"]["model"]) | state["cfg"]["task"]
        assert not [value for value in said.values() if str(value).startswith("/")]


def test_both_models_have_the_same_size_but_for_three_vectors_a_layer():
    """What equal size means: a LayerNorm and a bias more in each of eight layers."""
    baseline, macaron = demo.about()["models"]
    assert macaron["parameters"] - baseline["parameters"] == 8 * 3 * 128


def test_no_phrase_is_one_that_the_models_were_trained_on(phrases):
    pytest.importorskip("babel")
    pytest.importorskip("num2words")
    import make_corpus

    splits = make_corpus.make_splits(24_000, 1000, 1000, seed=1)
    seen = {english for split in ("train", "valid") for english, _ in splits[split]}
    assert len(phrases) == 100 and not seen & phrases.keys()


# --- the command ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What the command prints in another folder."""
    folder = tmp_path_factory.mktemp("some where")
    command = served.folder() / "macaron-fairseq"
    done = subprocess.run([command, "demo"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.mark.slow
def test_phrases_stand_next_to_references_and_two_translations(printed, phrases):
    blocks = re.findall(
        r"  English +(.+)\n  reference +(.+)\n  Transformer ([=≠]) (.+)\n  Macaron +([=≠]) (.+)\n",
        printed[1],
    )
    assert [block[:2] for block in blocks] == list(phrases.items())[:8]
    found = [(reference, *x) for _, reference, *rest in blocks for x in (rest[:2], rest[2:])]
    for reference, mark, translation in found:
        same = re.sub('[„“" ]', "", reference) == re.sub('[„“" ]', "", translation)
        assert (mark == "=") == same
    assert {mark for _, mark, _ in found} == {"=", "≠"}


@pytest.mark.slow
def test_what_it_prints_can_be_pasted(printed, monkeypatch, tmp_path, capsys):
    folder, text = printed
    monkeypatch.chdir(folder)
    words = [shlex.split(x)[1:] for x in text.splitlines() if x.startswith("  macaron-fairseq ")]
    assert [x[0] for x in words] == ["translate", "describe", "demo"]
    source = tmp_path / "typed"
    source.write_text("She speaks Danish and lives in Lima.\n")
    cli.main([*words[0], "--cpu", str(source)])
    assert "Dänisch" in capsys.readouterr().out
    cli.main(words[1])
    assert "x <- x + 1/2 FFN" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_page_is_that_of_dynamics(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("SENTENCES", "JACOBIANS"):  # each takes seconds
        monkeypatch.setattr(command, f"PAGE_{name}", 1)
    cli.main(["demo", "--phrases", "1", "--page"])
    content = json.loads((tmp_path / "demo-dynamics" / "dynamics.json").read_text())
    assert [model["label"] for model in content["models"]] == ["Transformer", "Macaron"]
    assert content["command"] == "macaron-fairseq demo --page demo-dynamics"
    assert "demo-dynamics/dynamics.html" in capsys.readouterr().out


def test_there_are_a_hundred_phrases():
    with pytest.raises(UserError, match=r"^there are 100 phrases: ask for no more than that$"):
        demo.translate(101)


# --- translate, on a terminal --------------------------------------------------------------------


@pytest.fixture
def data(tmp_path):
    return write_data(tmp_path / "data")


class Terminal:
    """A pseudo-terminal: what a person types and sees."""

    def __init__(self):
        self.ours, self.theirs = pty.openpty()
        self.seen = ""
        self.decoder = codecs.getincrementaldecoder("utf-8")()

    def wait_for(self, text, times=1):
        end = time.monotonic() + 120
        while self.seen.count(text) < times:
            assert select.select([self.ours], [], [], end - time.monotonic())[0], self.seen
            self.seen += self.decoder.decode(os.read(self.ours, 4096))

    def type(self, text):
        os.write(self.ours, text.encode())


def start(data, **streams):
    words = [served.folder() / "macaron-fairseq", "translate", "--path", CHECKPOINT]
    words += ["--data", data, "--cpu"]
    return subprocess.Popen(words, env={**os.environ, "TERM": "dumb"}, **streams)


@pytest.mark.slow
def test_on_a_terminal_each_line_is_asked_for_and_answered(data):
    screen = Terminal()
    process = start(data, stdin=screen.theirs, stdout=screen.theirs, stderr=screen.theirs)
    screen.wait_for(f"loading {CHECKPOINT}")
    screen.wait_for("en> ")
    screen.type("the new er\n")
    screen.wait_for("er new the\r\n")
    screen.wait_for("en> ", times=2)
    screen.type("öl is a\n\x04")
    screen.wait_for("a is öl\r\n")
    assert process.wait(60) == 0


@pytest.mark.slow
def test_what_is_typed_into_a_file_leaves_translations_alone_in_it(data):
    screen = Terminal()
    process = start(data, stdin=screen.theirs, stdout=subprocess.PIPE, stderr=screen.theirs)
    screen.wait_for("en> ")
    screen.type("the new er\n")
    assert process.stdout.readline() == b"er new the\n"
    screen.wait_for("en> ", times=2)
    screen.type("\x04")
    assert (process.stdout.read(), process.wait(60)) == (b"", 0)


@pytest.mark.slow
def test_a_pipe_is_not_asked(data):
    """Whatever its translation and what is said go to."""
    screen = Terminal()
    process = start(data, stdin=subprocess.PIPE, stdout=screen.theirs, stderr=screen.theirs)
    process.stdin.write(b"the new er\n")
    process.stdin.close()
    assert process.wait(120) == 0
    screen.wait_for("er new the\r\n")
    assert screen.seen.startswith(f"loading {CHECKPOINT}: some seconds\r\n")
    assert "en> " not in screen.seen


def test_a_line_that_is_no_utf8_is_asked_for_again(monkeypatch, capsys):
    typed = iter(["gr\udcfc\udcdf", "grüß"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    assert next(terminal.typed_lines("de", "en")) == "grüß"
    assert "this is not UTF-8" in capsys.readouterr().err


# --- mistakes ------------------------------------------------------------------------------------


def test_each_of_several_mistakes_is_named(tmp_path):
    words = ["translate", tmp_path / "none", "--path", tmp_path / "a.pt", "--data", tmp_path / "b"]
    with pytest.raises(UserError) as error:
        cli.main([str(word) for word in words])
    assert str(error.value).splitlines() == [
        f"{tmp_path}/b: no such folder",
        f"{tmp_path}/a.pt: no such checkpoint or export",
        f"{tmp_path}/none: no such file",
    ]


# --- completion ----------------------------------------------------------------------------------


def completed(script, *words):
    """What bash offers for the last word."""
    ask = f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; "
    ask += 'COMPREPLY=(); "$(complete -p macaron-fairseq | sed "s/.*-F \\([^ ]*\\) .*/\\1/")"; '
    ask += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", f"source {shlex.quote(str(script))}; {ask}"], capture_output=True, text=True
    )
    return done.stdout.split()


def test_bash_completes_commands_flags_and_values(tmp_path, capsys):
    pytest.importorskip("shtab")
    cli.main(["completion", "bash"])
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    assert completed(script, "macaron-fairseq", "tr") == ["translate"]
    assert "--batch-lines" in completed(script, "macaron-fairseq", "translate", "--b")
    assert completed(script, "macaron-fairseq", "translate", "--compute-type", "d") == ["default"]


# --- setting up ----------------------------------------------------------------------------------


def test_an_active_environment_is_not_taken_for_the_interpreter(tmp_path):
    """What a new environment sees is the packages of the interpreter that the active one is of."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    script = (ROOT / "setup-env.sh").read_text()
    (function,) = re.findall(r"^original_of\(\) \{$.*?^\}$", script, re.MULTILINE | re.DOTALL)
    python = tmp_path / "venv" / "bin" / "python"
    words = ["bash", "-c", f'{function}\noriginal_of "$1"', "-", python]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    assert Path(found).resolve() == Path(sys.executable).resolve()
    assert not Path(found).is_relative_to(tmp_path)
