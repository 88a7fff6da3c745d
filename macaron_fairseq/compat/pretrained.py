"""A checkpoint of a masked language model that training is to start from, and does not fit.

fairseq drops a classification head for another number of classes, with a warning, and trains a new
one. It answers another number of positions with a traceback. Both can go when
`test_fairseq_drops_a_head_of_other_classes` fails.
"""

import re
from argparse import ArgumentError, ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairseq.data import Dictionary
from torch import Tensor

from macaron_fairseq.common.errors import UserError

HEAD = "sentence_classification_head"  # fairseq's default
POSITIONS = "encoder.sentence_encoder.embed_positions.weight"
# Architectures of this package and of the authors; others' users may mean what fairseq does.
OURS = "macaron_roberta|roberta_.*_pre_norm$|transformer_(bert|classifier)_"
# How many positions a model has where no flag says it, by the task.
DEFAULTS = {"masked_lm": 1024, "sentence_prediction": 512}


def refuse_other(path: Path, weights: Mapping[str, Tensor], flags: Sequence[str]) -> None:
    """Raise a `UserError` if a checkpoint has other classes or positions than the flags ask for.

    Args:
        path: of the checkpoint.
        weights: its parameters by name.
        flags: those of fairseq-train.
    """
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("arch", "task"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--classification-head-name", default=HEAD)
    for name in ("num-classes", "max-positions", "tokens-per-sample"):
        parser.add_argument(f"--{name}", type=int)
    try:
        args, _ = parser.parse_known_args(flags)
    except ArgumentError:  # fairseq will say it
        return
    if args.task not in DEFAULTS or not re.match(OURS, args.arch or ""):
        return
    head = weights.get(f"classification_heads.{args.classification_head_name}.out_proj.weight")
    if head is not None and args.num_classes not in (None, len(head)):
        raise UserError(
            f"{path} has the head '{args.classification_head_name}' with {len(head)} classes, but "
            f"--num-classes is {args.num_classes}: give {len(head)}, or train a new head under "
            "another --classification-head-name"
        )
    wanted = args.max_positions or args.tokens_per_sample or DEFAULTS[args.task]
    if POSITIONS in weights:
        positions = len(weights[POSITIONS]) - Dictionary().pad() - 1
        if positions != wanted:
            raise UserError(
                f"{path} has {positions} positions, and the model is to have {wanted}: give "
                f"--max-positions {positions}"
            )
