"""Reading and writing files, and what the commands say where a disk is full."""

import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.paths import ROOT
from helpers.run_folders import BASE, make_run
from helpers.stored import CHECKPOINT, write_data

from macaron_fairseq import cli
from macaron_fairseq.common import files, locks, text_lines
from macaron_fairseq.common.errors import UserError


def test_only_a_newline_ends_a_line(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("\ufeffa\r\n\r\n\u2028b\x85c\x0c\rd\n\ufeff\nlast".encode())
    assert [*text_lines.read_lines(path)] == ["a", "", "\u2028b\x85c\x0c\rd", "\ufeff", "last"]
    path.write_bytes(b"")
    assert [*text_lines.read_lines(path)] == []


def test_what_cannot_be_read_gets_a_sentence(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"fine\nna\xefve\n")
    lines = text_lines.read_lines(path)
    assert next(lines) == "fine"
    with pytest.raises(UserError, match=r"text, line 2 is not UTF-8 \(byte 0xef at position 3\)"):
        next(lines)
    with pytest.raises(UserError, match=r"cannot read .*nowhere: No such file"):
        next(text_lines.read_lines(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"cannot read .*: Is a directory"):
        next(text_lines.read_lines(tmp_path))


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that breaks off")
def test_what_breaks_off_in_reading_is_no_fault_of_the_file_to_write(tmp_path):
    """Nothing is at the first address of a process."""
    with pytest.raises(UserError, match=r"^cannot read /proc/self/mem: Input/output error$"):
        files.write_lines(tmp_path / "out", text_lines.read_lines(Path("/proc/self/mem")))
    assert not [*tmp_path.iterdir()]


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new folder" / "out"
    files.write_lines(path, ["ä\u2028", ""])
    assert path.read_bytes() == "ä\u2028\n\n".encode()

    def broken():
        yield "half"
        raise UserError("bad input")

    with pytest.raises(UserError, match="bad input"):
        files.write_lines(path, broken())
    assert path.read_bytes() == "ä\u2028\n\n".encode()
    assert [p.name for p in path.parent.iterdir()] == ["out"]
    with pytest.raises(UserError, match=f"^cannot write {path}/below: {path} is a file$"):
        files.write_lines(path / "below", [])


def test_what_takes_the_place_of_a_file_may_be_read_by_the_same(tmp_path):
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    files.write(path, "text")
    assert path.stat().st_mode & 0o777 == 0o600 and path.read_text() == "text"


def test_a_kill_while_writing_leaves_what_was_there(tmp_path):
    path = tmp_path / "manifest.json"
    files.write(path, "before")
    with pytest.raises(KeyboardInterrupt), files.written(path) as file:
        file.write(b"aft")
        file.flush()
        raise KeyboardInterrupt
    assert path.read_text() == "before"


def test_several_files_are_written_or_none(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "one").write_text("before")
    with pytest.raises(UserError, match=r"cannot write .*folder: Is a directory"):
        files.write_all({tmp_path / "one": "text", tmp_path / "folder": "more"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "one"]
    assert (tmp_path / "one").read_text() == "before"
    files.write_all({tmp_path / "one": "ä", tmp_path / "two": b"\xff"})
    assert (tmp_path / "one").read_text("utf-8") == "ä"
    assert (tmp_path / "two").read_bytes() == b"\xff"


@pytest.mark.parametrize("comes", ["before", "meanwhile", "a file"])
def test_a_folder_with_anything_else_stays(comes, tmp_path):
    folder = tmp_path / "out"
    other = folder if comes == "a file" else folder / "thesis.tex"
    other.parent.mkdir(exist_ok=True)
    ran = []

    def write():
        with files.written_folder(folder, ["a"]) as partial:
            ran.append(1)
            (partial / "a").write_text("new")
            if comes == "meanwhile":
                other.write_text("years of work")

    if comes != "meanwhile":
        other.write_text("years of work")
    with pytest.raises(UserError, match=f"^{folder} is in the way: move it, or choose another"):
        write()
    assert other.read_text() == "years of work"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert bool(ran) == (comes == "meanwhile")
    other.unlink()
    comes = "no more"
    write()
    assert (folder / "a").read_text() == "new" and [*tmp_path.iterdir()] == [folder]


@pytest.mark.parametrize(
    "content", ["{", '{"a": NaN}', "[" * 100_000, "\ud800".join("{}"), "1" * 5000]
)
def test_what_is_no_json_gets_a_sentence(content, tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(UserError, match=f"^{path} is not a JSON file: write it anew$"):
        files.read_json(path, {}, "write it anew")


def test_an_object_has_the_fields_that_are_needed(tmp_path):
    path = tmp_path / "x.json"
    for content, fault in (
        ("[]", "is not as expected"),
        ("{}", "has no int 'a'"),
        ('{"a": "1"}', "has no int 'a'"),
    ):
        path.write_text(content)
        with pytest.raises(UserError, match=f"^{path} {fault}: write it anew$"):
            files.read_json(path, {"a": int}, "write it anew")
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"a": 1, "b": None}).encode())
    assert files.read_json(path, {"a": int}, "") == {"a": 1, "b": None}


# --- a full disk ---------------------------------------------------------------------------------

NEEDS_FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Something to do for each command."""
    folder = tmp_path_factory.mktemp("work")
    write_data(folder / "data")
    make_run(folder / "runs", BASE, 1)
    (folder / "in").write_text("the new er\n")
    (folder / "ref").write_text("er new the\n")
    (folder / "generated").write_text("H-0\t-1\ter new the\n")
    return folder


COMMANDS = {
    "tokenize": "--steps lowercase --file en in {}",
    "translate": f"--path {CHECKPOINT} --data data --cpu in -o {{}}",
    "score": "generated --reference ref --target-lang de --hypotheses {}",
    "average": f"{CHECKPOINT} -o {{}}",
}
PRINTING = {
    "tokenize": "--steps lowercase --file en in -",
    "translate": f"--path {CHECKPOINT} --data data --cpu in",
    "score": "generated --reference ref --target-lang de",
    "average": f"{CHECKPOINT} -o averaged.pt",
    "report": f"runs/{BASE}/seed1 -o report",
    "manifest": "run --data data -- --arch x",
    "export": f"--path {CHECKPOINT} --data data -o exported",
}


@NEEDS_FULL
@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_gets_a_sentence(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=r"^cannot write /dev/full: "):
        cli.main([name, *COMMANDS[name].format("/dev/full").split()])


@NEEDS_FULL
@pytest.mark.parametrize("name", PRINTING)
def test_standard_output_on_a_full_disk_gets_a_sentence(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Path("/dev/full").open("w"))  # noqa: SIM115 - see `to_stdout`
        with pytest.raises(UserError) as error:
            cli.main([name, *PRINTING[name].split()])
        sys.stdout.close()
    assert str(error.value) == "cannot write to standard output: No space left on device"


@pytest.mark.parametrize("mode", [">", ">>"])
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/dev/stderr", "/dev/fd/2"])
def test_what_standard_output_goes_to_is_not_replaced(name, mode, tmp_path):
    """A file, by the name that the system has for it."""
    program = "import sys; from pathlib import Path; from macaron_fairseq.common import files\n"
    program += "files.write(Path(sys.argv[1]), 'result\\n')"
    log = tmp_path / "log"
    log.write_text("before\n")
    script = f'(echo first; "$1" -c "$2" "$3"; echo last) {mode} "$4" 2>&1'
    words = ["bash", "-c", script, "-", sys.executable, program, name, log]
    subprocess.run(words, check=True, cwd=ROOT)
    expected = ["before"] * (mode == ">>") + ["first", "result", "last"]
    assert log.read_text().split() == expected


def test_what_a_file_is_called_while_it_is_written_is_no_input(tmp_path):
    part = tmp_path / "out.part"
    part.write_text("kept")
    with pytest.raises(UserError, match=r"out\.part is one of the files to read: choose another"):
        files.refuse_output([part], tmp_path / "out")
    files.refuse_output([part], tmp_path / "other")


def test_an_output_in_a_folder_that_is_not_writable_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    said = f"^cannot write to {tmp_path}: name another folder"
    with pytest.raises(UserError, match=said):
        files.refuse_output([], tmp_path / "out")
    with pytest.raises(UserError, match=said):
        files.refuse_output([], tmp_path / "new" / "out")
    monkeypatch.setattr(os, "access", lambda *args: False)
    for written_in_place in ("-", "/dev/null"):
        files.refuse_output([], Path(written_in_place))


def test_the_file_that_standard_input_comes_from_is_no_output(tmp_path, monkeypatch):
    """As in `translate -o news.en < news.en`, which would replace it."""
    (tmp_path / "news.en").write_text("text\n")
    with (tmp_path / "news.en").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        with pytest.raises(
            UserError, match=r"standard input comes from .*news\.en: choose another"
        ):
            files.refuse_output([Path("-")], tmp_path / "news.en")
        files.refuse_output([Path("-")], tmp_path / "news.de")
        files.refuse_output([], tmp_path / "news.en")


def test_a_folder_that_a_kill_left_between_two_names_is_kept(tmp_path):
    """Whoever writes it again and fails leaves what was there."""
    (tmp_path / "out.replaced").mkdir()
    (tmp_path / "out.replaced" / "a").write_text("old")
    with pytest.raises(RuntimeError), files.written_folder(tmp_path / "out", ["a"]):
        raise RuntimeError
    assert [x.name for x in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "a").read_text() == "old"


def test_the_old_folder_stays_where_the_new_one_cannot_take_its_name(tmp_path, monkeypatch):
    folder, rename = tmp_path / "folder", Path.rename
    folder.mkdir()
    (folder / "text").write_text("old")

    def full(path, target):
        if path == files.partial_of(folder):
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", full)
    with (
        pytest.raises(UserError, match=r"cannot write .*folder: No space left on device"),
        files.written_folder(folder, ["text"]) as partial,
    ):
        (partial / "text").write_text("new")
    assert [*tmp_path.iterdir()] == [folder] and (folder / "text").read_text() == "old"


def test_the_bytes_of_a_path_that_is_no_text_do_not_cost_the_result(tmp_path):
    path = tmp_path / "found.json"
    said = files.as_json({"command": os.fsdecode(b"order -o x\xe4")})
    files.write(path, said)
    assert json.loads(path.read_bytes()) == {"command": "order -o x\udce4"}


def test_a_large_file_is_hashed_once(tmp_path, monkeypatch):
    """Reports ask for a checkpoint's hash with each test set."""
    monkeypatch.setattr(files, "LARGE", 8)
    path = tmp_path / "checkpoint.pt"
    for content in (b"8 bytes.", b"8 others"):
        path.write_bytes(content)
        os.utime(path, ns=(0, int(content[2])))
        expected = hashlib.sha256(content).hexdigest()
        assert files.sha256(path) == expected
        with monkeypatch.context() as unread:
            unread.setattr(hashlib, "sha256", lambda: SimpleNamespace())
            assert files.sha256(path) == expected


def test_text_that_is_too_long_for_a_name_is_no_file():
    assert not files.is_there("word " * 1000)


def test_two_processes_that_write_one_file_do_not_mix(tmp_path):
    """The one that began last ends with all that is its own. So it is also without locks."""
    path = tmp_path / "out"
    sentence = "^another process has begun to write .*out, too: start this again once that one has"
    with pytest.raises(UserError, match=sentence), files.written(path) as first:
        first.write(b"first ")
        with files.written(path) as second:
            first.write(b"again")
            second.write(b"second")
    assert path.read_bytes() == b"second"


@pytest.mark.parametrize("keep_partial", [False, True])
def test_who_has_written_a_file_for_hours_is_not_disturbed(keep_partial, tmp_path, monkeypatch):
    """By the same command in another job of an array; one that was killed leaves the way free."""
    monkeypatch.setattr(locks, "SECONDS", 0)
    path, ends = tmp_path / "out", multiprocessing.get_context("fork").Event()

    def write():
        with files.written(path, keep_partial=keep_partial) as file:
            file.write(b"of hours")
            file.flush()
            ends.wait(60)

    other = multiprocessing.get_context("fork").Process(target=write)
    other.start()
    while not (files.partial_of(path).is_file() and files.partial_of(path).stat().st_size):
        assert other.is_alive()
        time.sleep(0.01)
    refused = pytest.raises(UserError, match=r"is writing .*out: wait until it ends")
    with refused, files.written(path, keep_partial=keep_partial):
        pass
    ends.set()
    other.join()
    assert path.read_bytes() == b"of hours"
    files.partial_of(path).write_bytes(b"of one that was killed")
    with files.written(path, keep_partial=keep_partial) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
