"""What teachers said of each sentence, so that they are not asked again in the next epoch.

Teachers do not learn, and are run without dropout. So what they say of a sentence stays the same,
but for rounding: a batch is multiplied as a whole, and the sentences around it change.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from macaron_fairseq.distillation.layers import read_by

Place = tuple[Any, ...]  # a side of a model, and what of it
Found = dict[Place, Tensor]  # (length, batch, ...), as fairseq's layers have it
Key = tuple[Any, ...]  # a teacher's number, and the tokens that each side of it reads

GIBIBYTE = 2**30

logger = logging.getLogger(__name__)


class Memory:
    """States of sentences, in the computer's own memory whatever the device is.

    Nothing is forgotten: once it is full, new sentences are asked about each time.
    """

    def __init__(self, gibibytes: float, padding: Mapping[str, int]) -> None:
        """Begin with nothing.

        Args:
            gibibytes: how much room there is.
            padding: the symbol of it on each side of the teachers.
        """
        self.room = gibibytes * GIBIBYTE
        self.padding = padding
        self.sentences: dict[Key, Found] = {}
        self.is_full = False

    def recall(
        self, teacher: int, inputs: Mapping[str, Any], ask: Callable[[Mapping[str, Any]], Found]
    ) -> Found:
        """What `ask` says of a batch. It is asked about new sentences alone.

        Args:
            teacher: its number.
            inputs: the "net_input" of a batch.
            ask: the teacher's pass over such inputs.

        Returns:
            The same as `ask(inputs)`, with 0 at padding where a sentence was known.
        """
        masks = {side: read_by(side, inputs).ne(padding) for side, padding in self.padding.items()}
        keys = self.keys(teacher, inputs, masks)
        new = [i for i, key in enumerate(keys) if key not in self.sentences]
        if len(new) == len(keys):
            answer = ask(inputs)
            self.keep(keys, cut(answer, masks))
            return answer
        sentences = {key: self.sentences[key] for key in keys if key in self.sentences}
        if new:
            rows = torch.tensor(new, device=inputs["src_tokens"].device)
            some = {name: x[rows] if torch.is_tensor(x) else x for name, x in inputs.items()}
            asked = cut(ask(some), {side: mask[rows] for side, mask in masks.items()})
            keys_of_new = [keys[i] for i in new]
            self.keep(keys_of_new, asked)
            sentences |= zip(keys_of_new, asked, strict=True)
        return join([sentences[key] for key in keys], masks)

    def keys(
        self, teacher: int, inputs: Mapping[str, Any], masks: Mapping[str, Tensor]
    ) -> list[Key]:
        """What a teacher reads, without padding, for each sentence."""
        sides = []
        for side, mask in masks.items():
            rows = zip(read_by(side, inputs).cpu().numpy(), mask.cpu().numpy(), strict=True)
            sides.append([tokens[is_token].tobytes() for tokens, is_token in rows])
        return [(teacher, *sentence) for sentence in zip(*sides, strict=True)]

    def keep(self, keys: Sequence[Key], sentences: Sequence[Found]) -> None:
        """Remember sentences, if there is room for all of them."""
        size = sum(x.nbytes for found in sentences for x in found.values())
        if size > self.room:
            if not self.is_full:
                logger.info(
                    "--teacher-memory is full with %d sentences; teachers are asked about others "
                    "in each epoch",
                    len(self.sentences),
                )
            self.is_full = True
            return
        self.room -= size
        self.sentences.update(zip(keys, sentences, strict=True))


def cut(found: Found, masks: Mapping[str, Tensor]) -> list[Found]:
    """The states of each sentence, (length, ...), without padding."""
    lengths = {side: mask.sum(1).tolist() for side, mask in masks.items()}
    parts = {
        place: x.transpose(0, 1)[masks[place[0]]].cpu().split(lengths[place[0]])
        for place, x in found.items()
    }
    return [dict(zip(parts, rows, strict=True)) for rows in zip(*parts.values(), strict=True)]


def join(sentences: Sequence[Found], masks: Mapping[str, Tensor]) -> Found:
    """A batch of what `cut` has cut."""
    result = {}
    for place, first in sentences[0].items():
        mask = masks[place[0]]
        batch = torch.zeros(*mask.shape, *first.shape[1:], dtype=first.dtype, device=mask.device)
        batch[mask] = torch.cat([sentence[place] for sentence in sentences]).to(mask.device)
        result[place] = batch.transpose(0, 1)
    return result
