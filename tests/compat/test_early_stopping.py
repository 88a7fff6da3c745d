"""`--patience` goes on counting after an interruption."""

import re
import sys
from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationTask
from fairseq_cli import train as command
from helpers.processes import run
from helpers.toy_corpus import TRAIN, train

from macaron_fairseq.compat import early_stopping
from macaron_fairseq.fast.task import MacaronTranslationTask

# A learning rate of 0: the first validation loss stays the best.
PATIENT = ["--patience", "2", "--lr", "0", "--no-epoch-checkpoints"]


def epochs(output):
    return [int(x) for x in re.findall(r"end of epoch (\d+)", output)]


def test_an_interrupted_run_ends_where_an_uninterrupted_one_does(data_bin, tmp_path):
    """Of a run that was killed in its third epoch, there is what the first two left."""
    flags = [*PATIENT, "--arch", "transformer_tiny"]  # fairseq's model and task
    whole = train(data_bin, tmp_path / "whole", *flags).stdout
    assert epochs(whole) == [1, 2, 3]  # the best, and two that are no better
    train(data_bin, tmp_path / "cut", *flags, "--max-epoch", "2")
    resumed = train(data_bin, tmp_path / "cut", *flags).stdout
    assert epochs(resumed) == [3] and "hasn't improved for last 2 runs" in resumed
    last = [tmp_path / name / "checkpoint_last.pt" for name in ("whole", "cut")]
    states = [torch.load(path, weights_only=False)["extra_state"] for path in last]
    best = states[0]["val_loss"]
    assert [x["TranslationTask"] for x in states] == 2 * [{"best": best, "num_runs": 2}]


def test_validations_within_an_epoch_count(data_bin, tmp_path):
    often = ["--validate-interval-updates", "2", "--save-interval-updates", "4"]
    flags = [*PATIENT, "--patience", "3", *often]
    whole = train(data_bin, tmp_path / "whole", *flags).stdout
    train(data_bin, tmp_path / "cut", *flags, "--max-update", "4")
    resumed = train(data_bin, tmp_path / "cut", *flags).stdout
    ends = [re.findall(r"Saved checkpoint .*@ (\d+) updates", x)[-1] for x in (whole, resumed)]
    assert ends == ["8", "8"]  # updates 2, 4, 6 and 8


def test_fairseq_forgets_the_count_of_patience(data_bin, tmp_path, monkeypatch):
    """The fault of fairseq's that `compat.early_stopping` is for."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # or it could not resume at all
    flags = ["--arch", "transformer_tiny", *TRAIN[2:], *PATIENT, "--save-dir", tmp_path]
    run("fairseq-train", data_bin, *flags, "--max-epoch", "2")
    assert epochs(run("fairseq-train", data_bin, *flags).stdout) == [3, 4, 5]


@pytest.fixture
def forgetful(monkeypatch):
    """fairseq's functions as a new process has them."""
    for function in (command.should_stop_early, checkpoint_utils.save_checkpoint):
        for name in ("best", "num_runs"):
            monkeypatch.setattr(function, name, None, raising=False)
            monkeypatch.delattr(function, name)


def test_the_count_is_forgotten_with_the_best_checkpoint(forgetful, monkeypatch):
    """Where --reset-optimizer or --reset-meters lets fairseq forget that."""
    task, saved = FairseqTask(None), {"best": 2.5, "num_runs": 4}
    assert task.get_checkpoint_dict() == {}
    task.set_checkpoint_dict(saved)
    assert not vars(command.should_stop_early)
    monkeypatch.setattr(checkpoint_utils.save_checkpoint, "best", 2.5, raising=False)
    task.set_checkpoint_dict(saved)
    assert task.get_checkpoint_dict() == {"FairseqTask": saved}
    cfg = SimpleNamespace(patience=5, maximize_best_checkpoint_metric=False)
    assert command.should_stop_early(SimpleNamespace(checkpoint=cfg), 2.5)


def test_a_task_of_the_same_data_goes_on_with_the_count(forgetful, monkeypatch):
    """`translation` and `macaron_translation` go on from one another."""
    saved = {"best": 2.5, "num_runs": 4}
    for name, value in saved.items():
        monkeypatch.setattr(command.should_stop_early, name, value, raising=False)
    for kind in (TranslationTask, MacaronTranslationTask):
        task = kind.__new__(kind)
        found = early_stopping.get_checkpoint_dict(task)
        assert found == dict.fromkeys(("TranslationTask", "MacaronTranslationTask"), saved)


def test_it_is_found_where_fairseqs_command_is_the_program(forgetful, monkeypatch):
    """That is, as `python -m fairseq_cli.train`."""
    program = SimpleNamespace(should_stop_early=lambda: None)
    program.should_stop_early.best = 1.0
    monkeypatch.setitem(sys.modules, "__main__", program)
    assert early_stopping.get_checkpoint_dict(FairseqTask(None)) == {"FairseqTask": {"best": 1.0}}
