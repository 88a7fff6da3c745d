"""The size of batches: which is suggested, and that real updates are measured."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from macaron_fairseq.analysis import batch_sizes, trainers
from macaron_fairseq.analysis.batch_sizes import Measured, NoBatchError
from macaron_fairseq.cli import main
from macaron_fairseq.common.errors import UserError

FLAGS = [
    *("--arch", "macaron_transformer_tiny", "--encoder-layers", "1", "--decoder-layers", "1"),
    *("--encoder-embed-dim", "16", "--decoder-embed-dim", "16", "--optimizer", "adam"),
    *("--criterion", "label_smoothed_cross_entropy", "--cpu"),
]


def machine(speeds, memory=10**6):
    """What measures made-up speeds; sizes beyond the memory do not fit."""
    return lambda size: Measured(size, speeds[size], size, fits=size <= memory)


def test_the_smallest_that_is_nearly_fastest_is_suggested():
    speeds = {1000: 50.0, 2000: 97.1, 4000: 100.0, 8000: 99.0}
    found = batch_sizes.search(batch_sizes.doubled(1000, 8000), machine(speeds))
    assert [x.max_tokens for x in found] == [1000, 2000, 4000, 8000]
    assert batch_sizes.suggested(found).max_tokens == 2000


def test_the_search_ends_where_memory_does():
    speeds = {1000: 10.0, 2000: 20.0, 4000: 40.0, 8000: 80.0}
    found = batch_sizes.search(batch_sizes.doubled(1000, 8000), machine(speeds, memory=2000))
    assert [x.max_tokens for x in found] == [1000, 2000, 4000]
    assert batch_sizes.suggested(found).max_tokens == 2000
    found = batch_sizes.search(batch_sizes.doubled(1000, 8000), machine(speeds, memory=500))
    with pytest.raises(UserError, match="not even batches of 1000 tokens fit"):
        batch_sizes.suggested(found)


def test_the_search_ends_where_data_do(trainer):
    found = []

    def measure(size):
        found.append(size)
        next(batch_sizes.batches(trainer, size))
        return Measured(size, 1.0, 1.0)

    # All 200 sentences are one batch, which fairseq leaves out: it is not a multiple of 256.
    trainer.cfg.dataset.required_batch_size_multiple = 256
    sizes = batch_sizes.search([100, 10**5, 10**6], measure)
    assert [x.max_tokens for x in sizes] == [100]
    assert found == [100, 10**5]
    with pytest.raises(batch_sizes.NoBatchError, match=r"no batch of 100000 tokens"):
        batch_sizes.search([10**5], measure)


def test_a_set_that_is_one_batch_is_not_measured_again(trainer):
    trainer.task.load_dataset("train")
    dataset = trainer.task.dataset("train")
    longest = int(max(map(dataset.num_tokens, range(len(dataset)))))
    whole = len(dataset) * longest  # tokens, padded
    trainer.cfg.dataset.required_batch_size_multiple = 1
    assert len([*batch_sizes.batches(trainer, whole)]) == 2  # the longest, then all: one batch
    next(batch_sizes.batches(trainer, 2 * whole - 1))
    with pytest.raises(batch_sizes.NoBatchError, match="longer or too few"):
        next(batch_sizes.batches(trainer, 2 * whole))


@pytest.mark.parametrize(
    "flags, said",
    [
        (
            ["--arch", "macaron_transfomer"],
            r"^fairseq has no architecture macaron_transfomer\. Did ",
        ),
        ([*FLAGS, "--nosuch", "1"], r"^fairseq-train would refuse this: unrecognized arg.*nosuch"),
        ([*FLAGS, "--lr", "x"], r"^fairseq-train would refuse this: argument --lr: invalid"),
        ([], r"add --arch macaron_transformer$"),
        ([*FLAGS, "--macaron-scheme", "nosuch"], r"unknown splitting scheme 'nosuch'"),
    ],
)
def test_what_fairseq_does_not_know_is_one_sentence(flags, said, data_bin, capsys):
    with pytest.raises(UserError, match=said):
        trainers.build([str(data_bin), *flags])
    assert capsys.readouterr() == ("", "")


@pytest.fixture
def trainer(data_bin):
    return trainers.build([str(data_bin), *FLAGS, "--max-tokens", "100"])


def test_real_updates_are_measured(trainer, monkeypatch):
    sizes = [batch["ntokens"] for batch in batch_sizes.batches(trainer, 100)]
    assert max(sizes) <= 100 < 2 * max(sizes)
    # The longest sentences come first: they decide whether memory is enough.
    dataset = trainer.task.dataset("train")
    longest = max(x for x in map(dataset.num_tokens, range(len(dataset))) if x <= 100)
    first = next(batch_sizes.batches(trainer, 100))
    assert first["target"].shape[1] == longest
    found = batch_sizes.measure(trainer, 100, updates=2)
    assert trainer.get_num_updates() == 3
    assert found.fits
    assert found.tokens_per_second > 0 < found.memory and found.loading > 0

    def exhausted(*args, **kwargs):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(trainer, "train_step", exhausted)
    assert not batch_sizes.measure(trainer, 100, updates=2).fits


@pytest.mark.parametrize(("used", "fits"), [(90, True), (91, False)])
def test_a_tenth_of_a_gpus_memory_is_left(used, fits, trainer, monkeypatch):
    total = SimpleNamespace(total_memory=100)
    for name, value in {
        **{"reset_peak_memory_stats": None, "synchronize": None, "max_memory_reserved": used},
        "get_device_properties": total,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(trainer, "cuda", True)
    monkeypatch.setattr(trainer, "train_step", lambda *_, **__: None)
    found = batch_sizes.measure(trainer, 100, updates=1)
    assert (found.fits, found.memory) == (fits, used)


def test_without_a_gpu_memory_is_the_processs():
    """As Linux counts it, in KiB; it is the most so far, and so no less than now."""
    text = Path("/proc/self/status").read_text()
    most = 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", text)[1])
    assert batch_sizes.memory(on_gpu=False) == pytest.approx(most, rel=0.05)


def test_the_first_update_is_not_timed(trainer, monkeypatch):
    clock, seconds = [0.0], iter((100.0, 0.5))

    def update(*args, **kwargs):
        clock[0] += next(seconds)

    monkeypatch.setattr(trainer, "train_step", update)
    second = [batch["ntokens"] for batch in batch_sizes.batches(trainer, 100)][1]
    monkeypatch.setattr(batch_sizes.time, "perf_counter", lambda: clock[0])
    assert batch_sizes.measure(trainer, 100, updates=1).tokens_per_second == 2 * second


def test_sentences_that_are_too_long_are_left_out(trainer):
    """As in training; the batches of fairseq would refuse them."""
    trainer.cfg.dataset.required_batch_size_multiple = 1  # or the last batch is left out
    trainer.task.load_dataset("train")
    dataset = trainer.task.dataset("train")
    lengths = [int(dataset.num_tokens(i)) for i in range(len(dataset))]
    short = sorted(lengths)[len(lengths) // 2]
    assert short < max(lengths)
    _, *found = batch_sizes.batches(trainer, short)
    assert sum(batch["nsentences"] for batch in found) == sum(x <= short for x in lengths)
    with pytest.raises(UserError, match=r"no batch of 1 tokens.*: give another --least"):
        batch_sizes.measure(trainer, 1, updates=1)


def test_the_sentences_of_a_batch_are_limited_as_in_training(trainer):
    trainer.cfg.dataset.batch_size = 2
    assert max(batch["nsentences"] for batch in batch_sizes.batches(trainer, 1000)) == 2


def test_all_sentences_are_too_long_with_any_multiple(trainer):
    assert trainer.cfg.dataset.required_batch_size_multiple == 8
    with pytest.raises(NoBatchError, match="no batch of 1 tokens"):
        batch_sizes.measure(trainer, 1, updates=1)


def test_a_folder_without_data(tmp_path):
    with pytest.raises(UserError, match=r"there is no .*nowhere: name a folder that fairseq-prepr"):
        trainers.build([str(tmp_path / "nowhere"), *FLAGS, "--max-tokens", "100"])
    with pytest.raises(UserError, match=r"holds no pair of languages: name a folder"):
        trainers.build([str(tmp_path), *FLAGS, "--max-tokens", "100"])


def test_command_prints_a_flag(data_bin, capsys):
    sizes = ["--least", "64", "--most", "64", "--updates", "1"]
    main(["suggest-batch", *sizes, "--", str(data_bin), *FLAGS])
    printed = capsys.readouterr()
    assert printed.out == "--max-tokens 64\n"
    assert "--max-tokens 64: " in printed.err and "tokens/s" in printed.err
    with pytest.raises(UserError, match="needs an optimizer, too: add --optimizer adam"):
        main(["suggest-batch", "--", str(data_bin), "--arch", "transformer_tiny", "--cpu"])
    with pytest.raises(UserError, match="needs a model, too: add --arch"):
        main(["suggest-batch", "--", str(data_bin), "--optimizer", "adam", "--cpu"])
    with pytest.raises(UserError, match="--adam-betas x should be two numbers"):
        main(["suggest-batch", "--", str(data_bin), *FLAGS, "--adam-betas", "x"])
    with pytest.raises(UserError, match="--most 32 is below --least 64"):
        main(["suggest-batch", "--least", "64", "--most", "32", "--", str(data_bin)])


def test_gpus_beyond_the_first_are_left_alone(data_bin):
    """fairseq's default is a process for each GPU, and nobody starts the others here.

    On a GPU the trainer asks for them when it is made, and on a CPU when it draws batches.
    """
    flags = [str(data_bin), *FLAGS, "--max-tokens", "100", "--distributed-world-size", "2"]
    batches = trainers.build(flags).get_train_iterator(1)
    assert (batches.num_shards, batches.shard_id) == (1, 0)


def test_what_is_looked_for_is_not_given():
    words = ["suggest-batch", "--", "data", "--cpu", "--max-tokens", "100"]
    with pytest.raises(UserError, match="--max-tokens is what is looked for: leave it out"):
        main(words)


def test_what_cannot_train_is_refused_at_once(tmp_path):
    with pytest.raises(SystemExit, match="--fp16 "):
        main(["suggest-batch", "--", str(tmp_path), *FLAGS, "--fp16"])
