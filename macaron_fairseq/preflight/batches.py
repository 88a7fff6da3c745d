"""Batches that do not fit, in one sentence: into a GPU's memory, or into --max-tokens.

Where memory runs out, fairseq-train logs pages of figures and goes on with the next batch. Where it
cannot go on, and in fairseq's commands that decode, there is a traceback. So there is where a
sentence is longer than a batch may be. Of several processes one would go on alone, and the others
wait for it. This can go when fairseq says what to change.
"""

import logging
import re
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch.multiprocessing import ProcessRaisedException

from macaron_fairseq.preflight.command_line import CommandLine

logger = logging.getLogger(__name__)

SHORT = "The GPU is out of memory: "
TRAIN = (
    f"{SHORT}halve --max-tokens and double --update-freq, which leaves the update about as it is; "
    "--fp16 and --checkpoint-activations take less memory, too"
)
SEARCH = f"{SHORT}lower --max-tokens or --batch-size, or else --beam; --fp16 takes less memory, too"
SENTENCE = (
    f"{SHORT}a single sentence does not fit: lower --beam or the --max-len options; --fp16 takes "
    "less memory, too, and --cpu the computer's"
)
SCORE = f"{SHORT}lower --max-tokens or --batch-size; --fp16 takes less memory, too"
SAID = {"train": TRAIN, "generate": SEARCH, "interactive": SEARCH}
TOO_LONG = re.compile(r"should not exceed max_tokens=(\d+)")  # an AssertionError of fairseq


class Advice(logging.Filter):
    """Of fairseq's log: before the first record that tells of memory, this says what to lower.

    Where several processes train together, the one that leaves out a batch ends.
    """

    was_given = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Let the record pass, after a word on it."""
        if "Ran out of memory" in str(record.msg) and not self.was_given:
            self.was_given = True
            logger.error(TRAIN)
        if "attempting to recover from OOM" in str(record.msg) and has_others():
            raise SystemExit("a batch did not fit, and the other processes need it: see above")
        return True


def has_others() -> bool:
    """Whether this process trains together with others."""
    return torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1


def explain(line: CommandLine) -> None:
    """Let one of fairseq's commands say what to change where a batch does not fit."""
    trainer = logging.getLogger("fairseq.trainer")
    if not any(type(x).__name__ == Advice.__name__ for x in trainer.filters):
        trainer.addFilter(Advice())
    sys.excepthook = instead_of_traceback(SAID.get(line.command, SCORE), sys.excepthook)


def instead_of_traceback(sentence: str, others: Callable[..., Any]) -> Callable[..., None]:
    """What Python calls last of all: one sentence if a batch did not fit, and `others` if not.

    Args:
        sentence: of a GPU's memory.
        others: for all other errors.
    """

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # Of another process there is only the text of its traceback.
        is_others = isinstance(error, ProcessRaisedException)
        is_memory = is_others and "torch.OutOfMemoryError: " in str(error)
        if isinstance(error, torch.OutOfMemoryError) or is_memory:
            print(sentence, file=sys.stderr)
        elif (is_others or isinstance(error, AssertionError)) and (
            limit := TOO_LONG.search(str(error))
        ):
            print(
                f"a sentence is longer than the {limit[1]} tokens that a batch may have: give a "
                "greater --max-tokens (--max-tokens-valid for the sets to validate with)",
                file=sys.stderr,
            )
        else:
            others(kind, error, trace)

    return hook
