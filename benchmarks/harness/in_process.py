"""fairseq's own objects in this process: the batches of a training, and models without training."""

import copy
import functools
import itertools
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from fairseq import checkpoint_utils
from fairseq.data import iterators
from fairseq.trainer import Trainer
from omegaconf import DictConfig

from macaron_fairseq import plugin as plugin  # registers the architectures
from macaron_fairseq.analysis import trainers
from macaron_fairseq.common.errors import UserError, in_a_line
from macaron_fairseq.compat import checkpoints

Lengths = list[tuple[int, int]]


def build_trainer(flags: Sequence[str], device: Sequence[str] = ("--cpu",)) -> Trainer:
    """The trainer that fairseq-train makes of these flags, and of those that name the device."""
    logging.disable(logging.INFO)
    return trainers.trainer(copy.deepcopy(configuration(*flags, *device)))


@functools.cache
def configuration(*flags: str) -> DictConfig:
    """What fairseq-train reads from these flags, once: that is a third of a second of hydra's."""
    return trainers.configuration(flags)


def lengths_of_updates(trainer: Trainer, skipped: int, updates: int) -> Lengths:
    """Lengths of the sentences, (source, target), in the updates that follow the skipped ones."""
    wanted = itertools.islice(batches_of_updates(trainer), skipped, skipped + updates)
    pad = trainer.task.target_dictionary.pad()
    return [
        pair
        for batches in wanted
        for batch in batches
        for pair in zip(
            batch["net_input"]["src_lengths"].tolist(),
            batch["target"].ne(pad).sum(1).tolist(),
            strict=True,
        )
    ]


def batches_of_updates(trainer: Trainer) -> Iterator[list[dict]]:
    """The batches of each update, in the order in which fairseq-train draws them."""
    warnings.filterwarnings("ignore", ".*pin_memory")  # which fairseq asks for without a GPU
    for epoch in itertools.count(1):
        batches = trainer.get_train_iterator(epoch).next_epoch_itr(shuffle=True)
        yield from iterators.GroupedIterator(batches, trainer.cfg.optimization.update_freq[0])


def save_endless_model(flags: Sequence[str], path: Path) -> None:
    """Save a model with random weights that never ends a sentence before it must.

    --max-len-b alone then says how long its translations are, whichever program searches: the last
    LayerNorm adds 10 to a channel in which the embedding of the end of a sentence has -1.
    """
    trainer = build_trainer([*flags, "--no-save-optimizer-state"])
    decoder = trainer.model.decoder
    with torch.no_grad():
        decoder.layer_norm.bias[0] = 10
        end = decoder.output_projection.weight[trainer.task.target_dictionary.eos()]
        end.zero_()
        end[0] = -1
    trainer.save_checkpoint(str(path), {"train_iterator": {"epoch": 1}, "val_loss": None})


def count_parameters(checkpoint: Path, data: Path) -> int:
    """How many parameters a checkpoint's model has, shared ones counted once.

    Raises:
        UserError: if it is not a checkpoint, or of other data.
    """
    logging.disable(logging.INFO)
    checkpoints.load(checkpoint)
    try:
        (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
            [str(checkpoint)], arg_overrides={"data": str(data)}
        )
    except RuntimeError as error:  # PyTorch's word on sizes that do not match
        reason = in_a_line(error)
        raise UserError(f"fairseq cannot load {checkpoint} with this data: {reason}") from error
    return sum(parameter.numel() for parameter in model.parameters())
