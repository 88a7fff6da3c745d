"""A batch that does not fit, into memory or --max-tokens: fairseq's commands say what to do."""

import inspect
import logging
import sys
from types import SimpleNamespace

import pytest
import torch
from fairseq.trainer import Trainer
from helpers.commands import apply
from helpers.small import NO_DROPOUT
from helpers.toy_corpus import train
from torch.multiprocessing import ProcessRaisedException

from macaron_fairseq.preflight import batches


def test_out_of_memory_says_what_to_lower(caplog, monkeypatch):
    """fairseq logs the error with a table, and goes on with the next batch."""
    logger = logging.getLogger("fairseq.trainer")
    before = [*logger.filters]
    logger.filters[:] = []
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    try:
        for _ in range(2):
            apply(batches.explain, ["fairseq-train", "data"])
        assert len(logger.filters) == 1
        with caplog.at_level(logging.INFO, logger=logger.name):
            logger.info("another message")
            for _ in range(2):
                logger.warning("OOM: Ran out of memory with exception: CUDA out of memory.")
    finally:
        logger.filters[:] = before
    said = [record.message for record in caplog.records]
    assert said == [
        "another message",
        batches.TRAIN,
        *["OOM: Ran out of memory with exception: CUDA out of memory."] * 2,
    ]
    assert "halve --max-tokens and double --update-freq" in batches.TRAIN


@pytest.mark.parametrize(
    "command, flags",
    [
        ("fairseq-train", ["--max-tokens", "--update-freq"]),
        ("fairseq-generate", ["--max-tokens", "--batch-size", "--beam"]),
        ("fairseq-interactive", ["--max-tokens", "--batch-size", "--beam"]),
        ("fairseq-validate", ["--max-tokens", "--batch-size"]),
        ("fairseq-eval-lm", ["--max-tokens", "--batch-size"]),
    ],
)
def test_a_command_that_ends_says_what_to_lower(command, flags, monkeypatch, capsys):
    others = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: others.append(error))
    apply(batches.explain, [command, "data"])
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has")
    sys.excepthook(type(error), error, None)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and all(flag in said for flag in flags) and not others
    sys.excepthook(ValueError, ValueError("another"), None)
    assert others and not capsys.readouterr().err


def test_a_process_that_others_wait_for_ends_where_memory_does(monkeypatch):
    """fairseq's would go on without the batch, and the others' sums would meet another's."""
    advice = batches.Advice()
    record = logging.makeLogRecord(
        {"msg": "attempting to recover from OOM in forward/backward pass"}
    )
    assert advice.filter(record)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    assert advice.filter(record)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(SystemExit, match=r"the other processes need it: see above$"):
        advice.filter(record)


def without_memory(number):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def with_a_long_sentence(number):
    raise AssertionError("sentence at index 3 of size 9 should not exceed max_tokens=5")


@pytest.mark.parametrize(
    ("function", "said"),
    [(without_memory, "halve --max-tokens"), (with_a_long_sentence, "longer than the 5 tokens")],
)
def test_the_process_of_a_gpu_says_it_too(function, said, monkeypatch, capfd):
    others = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: others.append(error))
    apply(batches.explain, ["fairseq-train", "data"])
    with pytest.raises(ProcessRaisedException) as failed:
        torch.multiprocessing.start_processes(function, nprocs=1, start_method="fork")
    capfd.readouterr()
    sys.excepthook(type(failed.value), failed.value, None)
    assert said in capfd.readouterr().err and not others


def test_other_programs_keep_their_tracebacks(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    before = sys.excepthook
    for argv in (["program.py"], [], ["fairseq-preprocess"]):
        apply(batches.explain, argv)
    assert sys.excepthook is before


@pytest.mark.slow
def test_a_sentence_longer_than_a_batch_ends_with_the_flag_to_raise(data_bin, tmp_path):
    """As it is found; fairseq leaves such sentences out of the set train alone."""
    flags = [*NO_DROPOUT, "--max-tokens-valid", "4", "--max-update", "1"]
    done = train(data_bin, tmp_path / "save", *flags, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stdout
    assert "longer than the 4 tokens that a batch may have: give a greater --max" in done.stdout


def test_fairseqs_trainer_logs_that_memory_ran_out(caplog):
    """With the words that the advice waits for."""
    assert "attempting to recover from OOM" in inspect.getsource(Trainer.train_step)
    with caplog.at_level(logging.WARNING):
        Trainer._log_oom(SimpleNamespace(), RuntimeError("CUDA out of memory"))
    assert any("Ran out of memory" in record.message for record in caplog.records)
