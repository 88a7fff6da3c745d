"""A save folder belongs to one training run: who locks it, who is refused, what a kill leaves."""

import errno
import fcntl
import logging
import subprocess
import sys
from argparse import Namespace

import pytest
from helpers.commands import apply, sentence_of
from helpers.launchers import SRUN, TORCHRUN
from helpers.paths import USER_DIR
from helpers.processes import run

from macaron_fairseq import UserError
from macaron_fairseq.common import locks
from macaron_fairseq.preflight import ranks, save_folder

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "ab")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def save(tmp_path):
    """A save folder, which is let go after the test."""
    yield tmp_path / "save"
    while save_folder.held:
        save_folder.held.pop().close()


def claim(data, save, *flags):
    words = ("/bin/fairseq-train", data, "--cpu", "--save-dir", save, *flags)
    apply(save_folder.claim, [str(word) for word in words])


def other_run(save, code=HOLD):
    """A process that locks the folder, or tries to."""
    command = [sys.executable, "-c", code, save / save_folder.NAME]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_the_second_run_is_refused_until_the_first_is_killed(data, save, monkeypatch):
    monkeypatch.setattr(locks, "SECONDS", 0)
    save.mkdir()
    with other_run(save) as first:
        assert first.stdout.readline() == "held\n"
        with pytest.raises(UserError) as refused:
            claim(data, save)
        assert str(refused.value) == (
            f"another training run is at work in {save}: wait until it ends, or give another "
            "--save-dir"
        )
        first.kill()
        first.wait()
    claim(data, save)
    with other_run(save) as second:
        assert second.stdout.readline() == ""
        second.stdin.close()
        assert second.wait() == 1


def test_a_run_that_is_ending_is_waited_for(data, save):
    save.mkdir()
    with other_run(save, HOLD.replace("sys.stdin.read()", "import time; time.sleep(0.5)")) as first:
        assert first.stdout.readline() == "held\n"
        claim(data, save)
        assert len(save_folder.held) == 1


def test_a_run_that_saved_nothing_leaves_nothing(data, save):
    """As one whose model refuses its flags."""
    for is_new in (True, False):
        if not is_new:
            save.mkdir()
        claim(data, save)
        assert [path.name for path in save.iterdir()] == [save_folder.NAME]
        save_folder.leave(save, is_new)
        assert save.exists() is not is_new
    claim(data, save)
    (save / "checkpoint_last.pt").touch()
    save_folder.leave(save, is_new=True)
    assert len([*save.iterdir()]) == 2
    save_folder.leave(save / "nosuch", is_new=True)


def test_a_lock_that_was_removed_meanwhile_is_made_anew(data, save, monkeypatch):
    """Else two runs would each hold a lock, of two files with one name."""
    claims, removed = locks.claim, []

    def claim_late(file):
        if not removed:
            removed.append((save / save_folder.NAME).unlink())
        return claims(file)

    monkeypatch.setattr(locks, "claim", claim_late)
    claim(data, save)
    with other_run(save) as second:
        second.stdin.close()
        assert second.wait() == 1


@pytest.mark.slow
def test_fairseq_train_leaves_nothing_where_the_model_is_refused(tmp_path, data):
    (data / "dict.txt").write_text("a 1\n")
    for name in ("train", "valid"):
        (data / name).touch()
    words = [data, "--task", "masked_lm", "--arch", "macaron_transformer_tiny", "--cpu"]
    words += ["--criterion", "masked_lm"]
    words += ["--optimizer", "adam", "--max-tokens", "64", "--save-dir", tmp_path / "new" / "save"]
    words += ["--user-dir", USER_DIR]
    done = run("fairseq-train", *words, check=False)
    assert done.returncode == 1 and "is not for --task masked_lm" in done.stdout
    assert [str(path) for path in (tmp_path / "new").rglob("*")] == []


@pytest.mark.parametrize(
    "flags, environ",
    [
        (["--no-save"], {}),
        (["--distributed-port", "x"], {}),
        ([], {**TORCHRUN, "RANK": "1"}),
        (["--distributed-init-method", "tcp://a:1", "--distributed-rank", "1"], {}),
    ],
)
def test_nothing_is_locked(flags, environ, data, save, monkeypatch):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    claim(data, save, *flags)
    assert not save.exists()


def test_other_commands_and_mistakes_leave_no_folder(data, save):
    for words in (
        ["fairseq-generate", data, "--save-dir", save],
        ["fairseq-train", data / "nosuch", "--save-dir", save],
        ["fairseq-train", "--help", "--save-dir", save],
        [],
    ):
        apply(save_folder.claim, [str(word) for word in words])
    assert not save.exists()


@pytest.mark.parametrize(
    "is_first, flags, environ",
    [
        (True, {}, {}),
        (True, {}, TORCHRUN),
        (False, {}, {**TORCHRUN, "RANK": "3"}),
        (False, {}, {**SRUN, "SLURM_PROCID": "3"}),
        (True, {}, {**SRUN, "SLURM_PROCID": "0"}),
        (True, {"distributed_world_size": 1}, {**SRUN, "SLURM_PROCID": "3"}),  # a sweep
        (False, {"distributed_init_method": "tcp://a:1", "distributed_rank": 8}, {}),
        (True, {"distributed_init_method": "tcp://a:1"}, {**TORCHRUN, "RANK": "3"}),
    ],
)
def test_who_is_first(is_first, flags, environ):
    defaults = dict(distributed_world_size=None, distributed_init_method=None, distributed_rank=0)
    assert ranks.is_first(Namespace(**{**defaults, **flags}), environ) is is_first


def test_a_file_is_no_folder_to_save_in(data, tmp_path):
    save = tmp_path / "checkpoint.pt"
    save.touch()
    for given in (save, save / "more"):
        said = sentence_of(lambda given=given: claim(data, given))
        assert said == f"cannot save to {given}: {save} is a file"


def test_another_users_lock_in_a_shared_folder_is_a_warning(data, save, monkeypatch, caplog):
    def hold(path):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(locks, "hold", hold)
    save.mkdir()
    with caplog.at_level(logging.WARNING):
        claim(data, save)
    assert f"{save} cannot be locked" in caplog.text
    said = sentence_of(lambda: claim(data, save / "new"))
    assert said == f"cannot save to {save / 'new'}: Permission denied"


def test_a_disk_without_locks_is_a_warning(data, save, monkeypatch, caplog):
    def lockf(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", lockf)
    with caplog.at_level(logging.WARNING):
        claim(data, save)
    assert f"{save} cannot be locked" in caplog.text
