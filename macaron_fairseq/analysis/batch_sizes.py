"""Which --max-tokens makes training fastest on this machine (`macaron-fairseq suggest-batch`).

Few tokens leave a GPU waiting for its next kernel, and from some size on more tokens only take more
memory. Sizes are doubled until memory or the training set runs out, or the largest is reached.
"""

import itertools
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fairseq import utils
from fairseq.trainer import Trainer

from macaron_fairseq.common.errors import UserError

# A size is fast enough if its speed is at least this share of the best.
ENOUGH = 0.97
# Of the GPU's memory that updates may reserve: later batches have other shapes.
USABLE = 0.9


class NoBatchError(UserError):
    """A training set has no batch of that size."""


@dataclass(frozen=True)
class Measured:
    """Updates of one size."""

    max_tokens: int
    tokens_per_second: float  # target tokens; median over the updates
    memory: float  # bytes at most: of the GPU or, on a CPU, of the process
    loading: float = 0.0  # seconds to load a batch, the median; a worker does it aside in training
    fits: bool = True


def measure(trainer: Trainer, max_tokens: int, updates: int) -> Measured:
    """Run updates of that size; a first one, of the longest sentences, is not timed.

    Args:
        trainer: see `trainers.build`. Its model changes as in training.
        max_tokens: of a batch.
        updates: how many to time.

    Raises:
        UserError: see `batches`.
    """
    on_gpu = trainer.cuda
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    speeds, loading, end = [], [], time.perf_counter()
    try:
        for i, batch in enumerate(itertools.islice(batches(trainer, max_tokens), updates + 1)):
            loading.append(time.perf_counter() - end)
            begin = time.perf_counter()
            trainer.train_step([batch], raise_oom=True)
            if on_gpu:
                torch.cuda.synchronize()
            end = time.perf_counter()
            if i:
                speeds.append(batch["ntokens"] / (end - begin))
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        trainer.zero_grad()
        torch.cuda.empty_cache()
        return Measured(max_tokens, 0.0, memory(on_gpu), fits=False)
    used = memory(on_gpu)
    fits = not on_gpu or used <= USABLE * torch.cuda.get_device_properties(0).total_memory
    # The first was drawn with all others.
    return Measured(
        max_tokens, statistics.median(speeds), used, statistics.median(loading[1:]), fits
    )


def batches(trainer: Trainer, max_tokens: int) -> Iterator[dict]:
    """Batches of that size: that of the longest sentences, then the others as training draws them.

    As in training, sentences that are longer than that are left out.

    Raises:
        NoBatchError: if all sentences are longer, fairseq leaves out the only batch, or the whole
            set is a batch of half that size.
        UserError: if there is no training set.
    """
    task, data = trainer.task, trainer.cfg.dataset
    if trainer.cfg.dataset.train_subset not in task.datasets:
        try:
            task.load_dataset(data.train_subset)
        except FileNotFoundError as error:
            raise UserError(f"{error}: name a folder that fairseq-preprocess wrote") from error
    dataset = task.dataset(data.train_subset)
    whole: list[Any] = []
    if min(map(dataset.num_tokens, range(len(dataset)))) <= max_tokens:  # else fairseq has none
        epoch = task.get_batch_iterator(
            dataset,
            max_tokens=max_tokens,
            max_sentences=data.batch_size,
            max_positions=utils.resolve_max_positions(
                task.max_positions(), trainer.model.max_positions(), max_tokens
            ),
            ignore_invalid_inputs=True,
            required_batch_size_multiple=data.required_batch_size_multiple,
            seed=trainer.cfg.common.seed,
            disable_iterator_cache=True,
        )
        whole = [ids for ids in epoch.frozen_batches if len(ids)]

    def length(ids: Any) -> int:
        return max(map(dataset.num_tokens, ids))

    if not whole or (len(whole) == 1 and 2 * length(whole[0]) * len(whole[0]) <= max_tokens):
        raise NoBatchError(
            f"the training set has no batch of {max_tokens} tokens, since all its sentences are "
            "longer or too few: give another --least"
        )
    longest = max(whole, key=length)
    yield dataset.collater([dataset[i] for i in longest])
    yield from epoch.next_epoch_itr(shuffle=True)


def memory(on_gpu: bool) -> float:
    """Bytes that the GPU reserved at most or, without one, that this process had."""
    if on_gpu:
        return torch.cuda.max_memory_reserved()
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def search(sizes: Iterable[int], measure: Callable[[int], Measured]) -> list[Measured]:
    """Measure sizes from the least on, until one does not fit or the data have no batch of it.

    Raises:
        NoBatchError: if they have none of the least size.
    """
    found: list[Measured] = []
    for size in sizes:
        try:
            found.append(measure(size))
        except NoBatchError:
            if not found:
                raise
            break
        if not found[-1].fits:
            break
    return found


def doubled(least: int, most: int) -> Iterator[int]:
    """least, twice as many, and so on up to most."""
    size = least
    while size <= most:
        yield size
        size *= 2


def suggested(found: Sequence[Measured]) -> Measured:
    """The smallest that fits and is nearly as fast as the fastest, see `ENOUGH`.

    Raises:
        UserError: if none fits.
    """
    fitting = [x for x in found if x.fits]
    if not fitting:
        raise UserError(
            f"not even batches of {found[0].max_tokens} tokens fit: lower --least, or train with "
            "--fp16 or --checkpoint-activations"
        )
    best = max(x.tokens_per_second for x in fitting)
    return next(x for x in fitting if x.tokens_per_second >= ENOUGH * best)
