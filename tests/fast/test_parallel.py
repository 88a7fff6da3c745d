"""Batches translated side by side, by processes, against one after the other."""

import multiprocessing
import os
import signal
import time

import pytest
import torch
from fairseq import options
from fairseq.data import LanguagePairDataset
from fairseq.dataclass.configs import FairseqConfig, GenerationConfig
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from fairseq_cli import generate
from helpers.paths import USER_DIR
from helpers.processes import run
from helpers.small import SMALL, build, dictionary, task
from helpers.toy_corpus import hypotheses

from macaron_fairseq.common import environment
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.fast import parallel
from macaron_fairseq.fast.task import MacaronTranslationConfig, MacaronTranslationTask

WORDS = dictionary(300)


def model(arch="macaron_transformer", **generation):
    """A model with preferences, made ready as fairseq-generate does."""
    built = build(arch, *SMALL, "--share-all-embeddings", for_task=task(WORDS), seed=1)
    with torch.no_grad():
        built.decoder.output_projection.weight.mul_(3)
    built.prepare_for_inference_(FairseqConfig(generation=GenerationConfig(**generation)))
    return built


def data(seed=1, sentences=20):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 12, (sentences,), generator=generator).tolist()
    source = [torch.randint(4, len(WORDS), (n,), generator=generator) for n in lengths]
    source = [torch.cat((x, torch.tensor([WORDS.eos()]))) for x in source]
    sizes = [len(x) for x in source]
    return LanguagePairDataset(source, sizes, WORDS, source, sizes, WORDS, shuffle=False)


def prepare(the_task, models, sentences=20, **options):
    """Batches and a generator, in fairseq-generate's order."""
    iterator = the_task.get_batch_iterator(data(sentences=sentences), max_sentences=3, **options)
    return iterator.next_epoch_itr(shuffle=False), generator_of(the_task, models)


def generator_of(the_task, models, **generation):
    return the_task.build_generator(models, GenerationConfig(beam=3, max_len_b=12, **generation))


def ours(count=2):
    config = MacaronTranslationConfig(decoding_processes=count)
    return MacaronTranslationTask(config, WORDS, WORDS)


def flat(found):
    return [
        {
            key: x[key].flatten().tolist()
            for key in ("tokens", "score", "positional_scores", "alignment", "attention")
        }
        for sentence in found
        for x in sentence
    ]


def unused(*args, **kwargs):
    raise AssertionError("this process has searched")


def test_processes_are_a_number_from_0():
    with pytest.raises(UserError, match="--decoding-processes is -3: give 0 or more"):
        parallel.translate_ahead(None, [], None, -3)


@pytest.mark.parametrize(
    ("arch", "count"),
    [("macaron_transformer", 2), ("transformer", 3), ("macaron_transformer", 50)],
)
def test_processes_find_what_fairseq_finds(arch, count, monkeypatch):
    models = [model(arch)]
    stock, the_task = TranslationTask(TranslationConfig(), WORDS, WORDS), ours(count)
    batches, generator = prepare(stock, models)
    expected = [stock.inference_step(generator, models, x) for x in batches]
    batches, generator = prepare(the_task, models)
    monkeypatch.setattr(generator, "generate", unused)
    found = [the_task.inference_step(generator, models, x) for x in batches]
    assert len(found) == len(expected) == 7
    for one, other in zip(map(flat, found), map(flat, expected), strict=True):
        for mine, its in zip(one, other, strict=True):
            for name, value in its.items():
                assert mine[name] == pytest.approx(value, abs=1e-5), name
    found[0][0][0]["positional_scores"].div_(2)  # as fairseq-generate does


def test_a_shard_is_translated_alone(monkeypatch):
    the_task, models = ours(), [model()]
    batches, generator = prepare(the_task, models, num_shards=2, shard_id=1)
    monkeypatch.setattr(generator, "generate", unused)
    samples = [x for x in batches if x]
    assert len(samples) == 3
    for sample in samples:
        assert len(the_task.inference_step(generator, models, sample)) == len(sample["id"])


def test_no_more_is_translated_ahead_than_twice_the_processes(monkeypatch):
    asked = []

    class Recorded(parallel.Workers):
        def map(self, arguments):
            return super().map(asked.append(x) or x for x in arguments)

    monkeypatch.setattr(parallel, "Workers", Recorded)
    the_task, models = ours(2), [model()]
    batches, generator = prepare(the_task, models, sentences=60)
    for number, sample in enumerate(batches, 1):
        the_task.inference_step(generator, models, sample)
        assert len(asked) == min(number + 3, 20)


def test_another_batch_than_the_next_is_searched_here():
    """Out of order, or with the numbers of the next but another text."""
    the_task, models = ours(), [model()]
    stock = TranslationTask(TranslationConfig(), WORDS, WORDS)
    for change in ("order", "text"):
        batches, generator = prepare(the_task, models)
        samples = list(batches)
        if change == "order":
            samples = samples[1:]
        else:
            other = data(seed=2)
            samples = [other.collater([other[int(i)] for i in x["id"]]) for x in samples]
        for sample in samples[:3]:
            found = the_task.inference_step(generator, models, sample)
            expected = stock.inference_step(generator_of(stock, models), models, sample)
            assert [x["tokens"] for x in flat(found)] == [x["tokens"] for x in flat(expected)]


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": True},
        {"prefix_size": 1},
        {"constraints": "ordered"},
        {"print_alignment": "hard"},
        {"diverse_beam_groups": 3},
    ],
    ids=str,
)
def test_other_searches_have_no_processes(options):
    the_task, models = ours(), [model()]
    prepare(the_task, models)
    assert the_task.translated
    generator_of(the_task, models, **options)
    assert not the_task.translated


def test_models_that_may_change_or_draw_have_no_processes():
    in_training = build("macaron_transformer", *SMALL, for_task=task(WORDS), seed=1)
    for models in (
        [in_training],
        [model(), in_training],
        [model(retain_dropout=True)],
        [model().double()],
    ):
        the_task = ours()
        prepare(the_task, models)
        assert not the_task.translated
    the_task = ours(1)
    prepare(the_task, [model()])
    assert not the_task.translated


def test_batches_that_are_read_already_are_not_translated():
    """As of the call before, in fairseq's Python interface."""
    the_task, models = ours(), [model()]
    batches, _ = prepare(the_task, models)
    next(batches)
    generator_of(the_task, models)
    assert not the_task.translated


@pytest.mark.parametrize(
    ("batches", "threads", "count"),
    [(7, 2, 2), (1, 2, 1), (2, 2, 2), (9, 1, 1), (2, 8, 2), (1, 8, 1), (3, 16, 1), (0, 2, 1)],
)
def test_how_many_at_a_time(batches, threads, count, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(environment, "available_cores", lambda: 99)
    assert parallel.count_for(batches) == count
    monkeypatch.setattr(environment, "available_cores", lambda: 1)  # as where threads are bound
    assert parallel.count_for(batches) == 1


def test_a_killed_process_gets_a_sentence(monkeypatch):
    the_task, models = ours(), [model()]
    monkeypatch.setattr(
        parallel.CandidateGenerator,
        "generate",
        lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL),
    )
    batches, generator = prepare(the_task, models)
    with pytest.raises(UserError, match=r"was killed.*try again with --decoding-processes 1"):
        the_task.inference_step(generator, models, next(batches))


def test_a_mistake_in_a_process_is_raised_here_at_once(monkeypatch):
    """Although others are still busy, which end too."""

    def search(self, models, sample, **kwargs):
        if sample["net_input"]["src_tokens"].shape[1] > 4:  # not the first batch: sorted by length
            time.sleep(600)
        raise ValueError("no translation")

    before = {*multiprocessing.active_children()}
    monkeypatch.setattr(parallel.CandidateGenerator, "generate", search)
    the_task, models = ours(), [model()]
    batches, generator = prepare(the_task, models)
    with pytest.raises(ValueError, match="no translation"):
        the_task.inference_step(generator, models, next(batches))
    the_task.translated.workers.close()
    assert {*multiprocessing.active_children()} <= before


def test_prefixes_and_constraints_are_not_ignored():
    """Which a program may give, other than fairseq-generate, without saying so before."""
    the_task, models = ours(), [model()]
    batches, generator = prepare(the_task, models)
    sample = next(batches)
    prefix = torch.full((len(sample["id"]), 1), 7)
    found = the_task.inference_step(generator, models, sample, prefix_tokens=prefix)
    assert all(x["tokens"][0] == 7 for sentence in found for x in sentence)


@pytest.mark.parametrize("forks", [0, 1])
def test_no_processes_get_a_sentence(forks, monkeypatch):
    """As where a user may have no more; those that were started end."""
    fork, left = os.fork, [None] * forks

    def few():
        if not left:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        left.pop()
        return fork()

    before = {*multiprocessing.active_children()}
    monkeypatch.setattr(os, "fork", few)
    with pytest.raises(UserError, match=r"no worker process can be started.*--decoding-proc"):
        prepare(ours(), [model()])
    assert {*multiprocessing.active_children()} <= before


@pytest.mark.slow
def test_fairseq_generate_prints_the_same_from_processes(data_bin, trained, monkeypatch, capsys):
    """An ensemble, in batches of which the last is smaller; this process searches nothing."""
    paths = os.pathsep.join(str(trained / f"checkpoint_{name}.pt") for name in ("last", "best"))
    flags = [data_bin, "--user-dir", USER_DIR, "--path", paths, "--cpu", "--batch-size", 3]
    flags += ["--required-batch-size-multiple", 1, "--beam", 2, "--max-len-b", 12]
    expected = run("fairseq-generate", *flags).stdout

    parent, search = os.getpid(), parallel.CandidateGenerator.generate
    monkeypatch.setattr(
        parallel.CandidateGenerator,
        "generate",
        lambda *args, **kwargs: unused() if os.getpid() == parent else search(*args, **kwargs),
    )
    words = [*map(str, flags), "--task", "macaron_translation", "--decoding-processes", "2"]
    args = options.parse_args_and_arch(options.get_generation_parser(), words)
    generate.main(args)
    output = capsys.readouterr().out
    assert hypotheses(output) == hypotheses(expected) and len(hypotheses(output)) == 20
    names = [
        [line.split("\t")[0] for line in text.splitlines() if line.startswith("H-")]
        for text in (output, expected)
    ]
    assert names[0] == names[1]
