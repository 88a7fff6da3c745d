"""Text of a language model that is too short for a single batch.

fairseq cuts text into samples, and leaves out those beyond the last multiple of eight. Where none
is left it ends in "The dataset is empty", with a traceback, as where a sample is larger than a
batch. This can go when `test_fairseq_reads_no_batch_of_few_samples` fails.
"""

from argparse import Namespace
from pathlib import Path

import numpy as np
from fairseq.data import data_utils
from fairseq.data.indexed_dataset import MMapIndexedDataset

from macaron_fairseq.common.errors import UserError

TASKS = "language_modeling", "masked_lm"


def refuse_too_few(folder: Path, args: Namespace) -> None:
    """Check the sets that a language model is to be trained and validated with.

    Args:
        folder: of fairseq-preprocess.
        args: of `preflight.parse`.

    Raises:
        UserError: if there is no batch of one of them.
    """
    if args.task not in TASKS or args.sample_break_mode not in (None, "none"):
        return
    sets = {args.train_subset: (args.max_tokens, args.batch_size)}
    if not args.disable_validation:
        limits = args.max_tokens_valid or args.max_tokens, args.batch_size_valid or args.batch_size
        sets |= dict.fromkeys(args.valid_subset.split(","), limits)
    for name, limits in sets.items():
        if not MMapIndexedDataset.exists(str(folder / name)):
            continue
        data = MMapIndexedDataset(str(folder / name))  # which must outlive its sizes
        tokens = int(data.sizes.sum())
        size = args.tokens_per_sample
        count = -(-tokens // (size - (args.task == "masked_lm")))  # which adds <s>
        size = min(size, tokens)
        if limits[0] and size > limits[0]:
            raise UserError(
                f"a sample of {size} tokens does not fit into a batch of {limits[0]}: give "
                f"--max-tokens {size} or more, or a smaller --tokens-per-sample"
            )
        if not has_batch(count, size, *limits, args.required_batch_size_multiple):
            raise UserError(
                f"the set {name} of {folder} has {tokens} tokens, so few that fairseq makes no "
                f"batch of its {count} samples of {size}: give more text, a "
                "smaller --tokens-per-sample, or --required-batch-size-multiple 1"
            )


def has_batch(
    count: int, size: int, max_tokens: int | None, max_samples: int | None, multiple: int
) -> bool:
    """Whether fairseq makes a batch of so many samples of that size."""
    few = min(count, 2 * multiple)  # more are no fewer batches
    sizes = np.full(few, size)
    return bool(
        data_utils.batch_by_size(
            np.arange(few), sizes.__getitem__, sizes, max_tokens, max_samples, multiple
        )
    )
