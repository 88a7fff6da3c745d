"""Text of a language model that is too short for a single batch, or samples longer than the model.

fairseq cuts text into samples, and leaves out those beyond the last multiple of eight. Where none
is left it ends in "The dataset is empty", with a traceback, as where a sample is larger than a
batch. This can go when `test_fairseq_reads_no_batch_of_few_samples` fails.
"""

import ast
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import Dictionary, TokenBlockDataset, data_utils
from fairseq.data.indexed_dataset import MMapIndexedDataset

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.preflight import binarised, command_line
from macaron_fairseq.preflight.command_line import CommandLine

OF_SAMPLES = "language_modeling", "masked_lm"  # tasks that cut text into samples


def refuse_too_few(folder: Path, args: Namespace) -> None:
    """Check the sets that a language model is to be trained and validated with.

    Args:
        folder: of fairseq-preprocess.
        args: of a `CommandLine`.

    Raises:
        UserError: if there is no batch of one of them.
    """
    if args.task not in OF_SAMPLES:
        return
    limits = args.max_tokens, args.batch_size, "--max-tokens"
    sets = {args.train_subset: limits}
    if not args.disable_validation:
        if args.max_tokens_valid:
            limits = args.max_tokens_valid, args.batch_size, "--max-tokens-valid"
        if args.batch_size_valid:
            limits = limits[0], args.batch_size_valid, limits[2]
        sets |= dict.fromkeys(args.valid_subset.split(","), limits)
    for name, limits in sets.items():
        if binarised.is_binarised(folder / name):
            refuse_without_batch(folder / name, args, *limits)


def refuse_without_batch(
    path: Path, args: Namespace, max_tokens: int | None, max_samples: int | None, flag: str
) -> None:
    """Raise a `UserError` if fairseq makes no batch of a set.

    Args:
        path: of the set's files, without .bin and .idx.
        args: of a `CommandLine`.
        max_tokens: of a batch.
        max_samples: of a batch.
        flag: that sets the tokens.
    """
    if not Path(f"{path}.bin").stat().st_size:
        raise UserError(f"the set {path.name} of {path.parent} is empty: give more text")
    data = MMapIndexedDataset(str(path))  # which must outlive its sizes
    tokens, size = int(data.sizes.sum()), args.tokens_per_sample
    begin = int(args.task == "masked_lm")  # <s>, which fairseq adds
    if size <= begin:
        raise UserError(f"--tokens-per-sample is {size}: give a number above {begin}")
    mode, multiple = args.sample_break_mode or "none", args.required_batch_size_multiple
    # Samples of other modes end with sentences or documents, and are shorter.
    if mode == "none" and max_tokens and min(size, tokens) > max_tokens:
        raise UserError(
            f"a sample of {min(size, tokens)} tokens does not fit into a batch of {max_tokens}: "
            f"give {flag} {min(size, tokens)} or more, or a smaller --tokens-per-sample"
        )
    most = len(data) if mode == "eos" else tokens // size
    if most >= 2 * multiple:  # there is a batch, and cutting so much text takes a while
        return
    special = Dictionary()
    samples = TokenBlockDataset(data, data.sizes, size - begin, special.pad(), special.eos(), mode)
    sizes = samples.sizes.astype(np.int64) + begin
    if not has_batch(sizes, max_tokens, max_samples, multiple):
        raise UserError(
            f"the set {path.name} of {path.parent} has {tokens} tokens, so few that fairseq makes "
            f"no batch of its {len(samples)} samples of at most {size}: give more text, a smaller "
            "--tokens-per-sample, or --required-batch-size-multiple 1"
        )


def has_batch(
    sizes: np.ndarray, max_tokens: int | None, max_samples: int | None, multiple: int
) -> bool:
    """Whether fairseq makes a batch of samples of these sizes."""
    if max_tokens and len(sizes) and sizes.max() > max_tokens:  # which fairseq tells itself
        return True
    order = np.arange(len(sizes))
    return bool(
        data_utils.batch_by_size(order, sizes.__getitem__, sizes, max_tokens, max_samples, multiple)
    )


def refuse_too_long(line: CommandLine, state: dict[str, Any]) -> None:
    """Raise a `UserError` if samples are longer than a causal model: fairseq would skip them."""
    args, folder = line.args, command_line.first_folder(None, line.others)
    model = {**checkpoints.model_arguments(state), **overrides(args.model_overrides)}
    # What the window has is read, too, but counts only where there is a vector for each position.
    window = 0 if model.get("decoder_learned_pos") else args.context_window
    size = args.tokens_per_sample - window
    if folder and binarised.is_binarised(folder / args.gen_subset):
        data = MMapIndexedDataset(str(folder / args.gen_subset))
        size = min(size, int(data.sizes.sum()))
    # fairseq's own models say it only where a flag did, and else have the samples' size.
    positions = model.get("max_target_positions") or model.get("tokens_per_sample")
    if positions is not None and size > positions:
        raise UserError(
            f"--tokens-per-sample {args.tokens_per_sample} makes samples of {size} tokens, and the "
            f"model has {positions} positions: give --tokens-per-sample {positions + window}"
        )


def overrides(text: str) -> dict[str, Any]:
    """What --model-overrides says; nothing where fairseq cannot read it, which it will say."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {}
    return found if isinstance(found, dict) else {}
