"""Batches translated in parallel on a CPU, each by a process with one thread.

A step of beam search is many small operations, which two threads do hardly sooner than one. So a
batch on each core is faster than all cores on one batch. The translations are the same.
"""

import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from fairseq.data.iterators import EpochBatchIterator
from torch import Tensor, nn

from macaron_fairseq.common import environment
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.workers import Workers
from macaron_fairseq.fast.beam_search import CandidateGenerator

Sample = dict[str, Any]
Hypotheses = list[list[dict[str, Any]]]  # of each sentence, the best one first


class TranslatedBatches:
    """The next batches of a data set, translated before they are asked for."""

    def __init__(
        self,
        generator: CandidateGenerator,
        models: list[nn.Module],
        dataset: Any,
        batches: Sequence[list[int]],
        count: int,
    ) -> None:
        """Start `count` processes, for which weights and data stay as they are now.

        Args:
            generator: what is to search.
            models: what it searches with.
            dataset: fairseq's.
            batches: the indices in each batch.
            count: how many batches at a time.
        """
        self.generator = generator

        def translate(batch: list[int]) -> tuple[Any, Hypotheses]:
            sample = dataset.collater([dataset[i] for i in batch])
            found = generator.generate(models, sample)
            return sample["net_input"]["src_tokens"].numpy(), converted(found, Tensor.numpy)

        rows = max(map(len, batches)) * generator.search.beam
        self.workers = start(generator, translate, rows, count, "--decoding-processes 1")
        self.results: Iterator[tuple[Any, Hypotheses]] = self.workers.map(batches)

    def next(self, sample: Sample) -> Hypotheses | None:
        """The hypotheses of the next batch; None, from then on, if `sample` is another batch."""
        for tokens, found in self.results:
            if torch.equal(torch.from_numpy(tokens), sample["net_input"]["src_tokens"]):
                return converted(found, torch.from_numpy)
            break
        self.workers.close()
        self.results = iter(())
        return None


def translate_ahead(
    generator: CandidateGenerator, models: list[nn.Module], batches: EpochBatchIterator, count: int
) -> TranslatedBatches | None:
    """Start to translate an iterator's batches, `count` at a time; 0: as many as is fastest.

    None if that is one batch after the other.

    Raises:
        UserError: if the count is below 0.
    """
    if count < 0:
        raise UserError(f"--decoding-processes is {count}: give 0 or more")
    own = batches.frozen_batches[batches.shard_id :: batches.num_shards]
    count = min(count, len(own)) if count else count_for(len(own))
    return TranslatedBatches(generator, models, batches.dataset, own, count) if count > 1 else None


def start(
    generator: CandidateGenerator,
    function: Callable[[Any], Any],
    rows: int,
    count: int,
    advice: str,
) -> Workers:
    """Processes with one thread each, which find the models as they are now.

    What is made of the weights for `rows` hypotheses at a time is made first, and shared.
    """

    def with_one_thread(argument: Any) -> Any:
        torch.set_num_threads(1)  # with more, it would wait for threads that only the parent has
        return function(argument)

    with torch.no_grad(), generator.model.constant_weights(rows):
        return Workers(count, with_one_thread, advice, "fork")


def is_possible(generator: Any, models: Sequence[nn.Module]) -> bool:
    """Whether processes would find the same: beam search in fp32 on a CPU, without dropout.

    macOS is left out: it can fork, but its libraries may fail afterwards. A worker of another pool
    may have none.
    """
    is_known = isinstance(generator, CandidateGenerator) and generator.is_on_candidates
    may_fork = sys.platform == "linux" and not multiprocessing.current_process().daemon
    return is_known and may_fork and all(map(is_repeatable, models))


def is_repeatable(model: nn.Module) -> bool:
    """Whether a model computes the same in any process, and is prepared for inference."""
    return (
        getattr(model, "_is_generation_fast", False)  # as fairseq marks it
        and all(x.is_cpu and x.dtype == torch.float32 for x in model.parameters())
        and not any(getattr(x, "apply_during_inference", False) for x in model.modules())
    )


def count_for(batches: int) -> int:
    """How many of these batches at a time; 1 where all threads on each may be faster.

    That 4n threads are faster than n processes is a guess: docs/results/speed.md measured two of
    both.
    """
    # Where threads are bound to cores, processes would share this thread's core.
    threads = min(torch.get_num_threads(), environment.available_cores())
    return min(batches, threads) if 4 * batches >= threads else 1


def converted(found: Hypotheses, convert: Callable[[Any], Any]) -> Hypotheses:
    """Hypotheses with another kind of arrays, since PyTorch would send each in a shared file."""
    kinds = Tensor, np.ndarray
    return [
        [{k: convert(v) if isinstance(v, kinds) else v for k, v in x.items()} for x in beam]
        for beam in found
    ]
