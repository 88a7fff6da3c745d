"""What beam search keeps of a batch between two steps.

fairseq copies all keys and values at each step: once to append the last token's, and again in the
order of the hypotheses that go on. Here a sentence has `beam` slots for each position, which are
written once. A table says which slot belongs to which hypothesis. Reordering changes the table
alone, and attention is masked with it. The encoder's keys are kept once for each sentence.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from macaron_fairseq.model.incremental import EVALUATIONS, IncrementalState

# The keys of this module in an incremental state.
BATCH = "macaron_fairseq batch"
EVALUATION = "macaron_fairseq evaluation"  # its number, in the state of one
OWN = {BATCH, EVALUATION, EVALUATIONS}

POSITIONS = 16  # for which caches have room at first
MOST_SLOTS = 16  # of a sentence: attention to more, most of them masked, costs more than copies


@dataclass
class Cache:
    """Keys and values, (2, sentence, head, position, slot, head channel), of one attention."""

    memory: Tensor | None = None
    mask: Tensor | None = None  # of the encoder's padding, added to scores
    is_static: bool = False
    length: int = 0  # positions that are written


@dataclass
class Batch:
    """What is kept of a batch, whose rows are `beam` hypotheses for each sentence in turn."""

    beam: int = 1
    length: int = 0  # tokens of a hypothesis, the one that is being decoded included
    slots: Tensor | None = None  # of each hypothesis' tokens, (sentence, beam, position)
    padding: Tensor | None = None  # True in slots of padding, (sentence, position, slot)
    mask: Tensor | None = None  # of slots of other hypotheses, added to scores
    caches: dict[tuple[str, int], Cache] = field(default_factory=dict)
    # Begun with gradients, a batch is fairseq's: those would need keys that nothing overwrites.
    # Begun without, it gives none. Begun with several tokens at once, it is fairseq's, too.
    is_fairseqs: bool = field(default_factory=torch.is_grad_enabled)
    is_searched: bool = False  # by beam search, which moves hypotheses within sentences only
    hidden: tuple[Tensor, Tensor | None] | None = None  # the source's padding, and its mask

    def cache(self, attention: Any, evaluation: int) -> Cache:
        """The cache of one evaluation of fairseq's attention, by its name for states."""
        key = attention._incremental_state_id, evaluation  # which copies of both keep
        found = self.caches.get(key)
        if found is None:
            found = self.caches[key] = Cache()
        return found

    def append(self, cache: Cache, written: Tensor, padding: Tensor | None) -> Tensor | None:
        """Write the last token's keys and values, (2, sentence, head, slot, channel).

        Returns:
            What is to be added to scores, (sentence, 1, beam, position * slot), or None.
        """
        if cache.length == self.length:  # the first attention that sees this token
            self.begin_token(written.shape[1], written.device)
            self.hide(padding, written.dtype)
        position, cache.length = cache.length, self.length
        if cache.memory is None:
            cache.memory = written.new_empty(*written.shape[:3], POSITIONS, *written.shape[3:])
        elif position == cache.memory.shape[3]:
            cache.memory = torch.cat((cache.memory, torch.empty_like(cache.memory)), 3)
        cache.memory[:, :, :, position] = written
        return self.mask

    def begin_token(self, sentences: int, device: torch.device) -> None:
        """Give each hypothesis a new slot, for the token that is decoded now."""
        own = torch.arange(self.beam, device=device).expand(sentences, -1)[..., None]
        self.slots = own if self.slots is None else torch.cat((self.slots, own), 2)
        self.length += 1

    def hide(self, padding: Tensor | None, dtype: torch.dtype) -> None:
        """Mask the slots of other hypotheses and of padding, but never a hypothesis's last one."""
        self.mask = None
        if self.slots is None or (self.beam == 1 and padding is None and self.padding is None):
            return
        sentences, beam, length = self.slots.shape
        own = self.slots[0, :, -1]  # 0 to beam - 1: the last token's slots
        seen = self.slots[..., None] == own  # (sentence, beam, position, slot)
        if padding is not None or self.padding is not None:
            before, last = self.padding, padding
            if before is None:
                before = seen.new_zeros(sentences, length - 1, beam)
            last = seen.new_zeros(sentences, 1, beam) if last is None else last.bool()
            self.padding = torch.cat((before, last.view(sentences, 1, beam)), 1)
            seen[:, :, :-1] &= ~self.padding[:, None, :-1]
        mask = torch.zeros(seen.shape, dtype=dtype, device=own.device)
        self.mask = mask.masked_fill_(seen.logical_not_(), -torch.inf).view(sentences, 1, beam, -1)

    def fill(self, cache: Cache, memory: Tensor, padding: Tensor | None) -> None:
        """Keep the encoder's keys and values, (2, sentence, head, position, channel)."""
        cache.memory = memory.unsqueeze(4)
        cache.is_static, cache.length = True, memory.shape[3]
        if padding is None:
            return
        if self.hidden is None or self.hidden[0] is not padding:  # else of another layer
            mask = None
            if padding.any():
                mask = torch.zeros(padding.shape, dtype=memory.dtype, device=memory.device)
                least = torch.finfo(mask.dtype).min / 2  # a row of padding alone gives no NaN
                mask = mask.masked_fill_(padding.bool(), least)[:: self.beam, None, None]
            self.hidden = padding, mask
        cache.mask = self.hidden[1]

    def read(self, cache: Cache) -> tuple[Tensor, ...]:
        """Keys and values, (sentence * head, position * slot, channel)."""
        if cache.memory is None:
            raise AssertionError("the cache is written before it is read")
        written = cache.memory[:, :, :, : cache.length]
        _, sentences, heads, positions, slots, channels = written.shape
        return written.reshape(2, sentences * heads, positions * slots, channels).unbind()

    def reorder(self, new_order: Tensor) -> None:
        """Make row i what row `new_order[i]` was; rows may be left out or repeated."""
        chosen = self.chosen(new_order)
        if chosen is None:
            if not self.keeps_sentences(new_order):
                self.separate(new_order.device)
            sentences = new_order.view(-1, self.beam)[:, 0] // self.beam
            self.select(sentences)
            chosen = new_order.view(-1, self.beam) % self.beam
        if self.beam > 1 and self.slots is not None:
            self.slots = self.slots.gather(1, chosen[..., None].expand(-1, -1, self.length))

    def sentences(self) -> int:
        """How many sentences the caches hold."""
        written = (x.memory for x in self.caches.values() if x.memory is not None)
        return next((memory.shape[1] for memory in written), 0)

    def chosen(self, new_order: Tensor) -> Tensor | None:
        """Where hypotheses stay in their sentences, as at most steps of a search, (sentence, beam).

        Returns:
            Which of its sentence each one was, or None if sentences are left out or moved.
        """
        count = self.sentences()
        if not count or len(new_order) != count * self.beam:
            return None
        first = torch.arange(0, len(new_order), self.beam, device=new_order.device)
        chosen = new_order.view(-1, self.beam) - first[:, None]
        # With slots. As many hypotheses as before: no sentence has left.
        if self.is_searched and self.beam > 1:
            return chosen
        return chosen if torch.equal(chosen, chosen.clamp(0, self.beam - 1)) else None

    def keeps_sentences(self, new_order: Tensor) -> bool:
        """Whether hypotheses stay with those of their sentence."""
        if len(new_order) % self.beam:
            return False
        sentences = new_order.view(-1, self.beam) // self.beam
        return bool((sentences == sentences[:, :1]).all())

    def select(self, sentences: Tensor) -> None:
        """Keep these sentences, in this order."""
        own = torch.arange(len(sentences), device=sentences.device)
        stay = int((sentences == own).cumprod(0).sum())  # the first ones, which need no copy
        for cache in self.caches.values():
            select_sentences(cache, sentences, stay)
        self.slots = None if self.slots is None else self.slots[sentences]
        self.padding = None if self.padding is None else self.padding[sentences]

    def separate(self, device: torch.device) -> None:
        """Make a sentence of each hypothesis, after which any reordering is possible."""
        sentences = torch.arange(self.sentences(), device=device).repeat_interleave(self.beam)
        slots = None if self.slots is None else self.slots.flatten(0, 1)[:, None, :, None, None]
        for cache in self.caches.values():
            select_sentences(cache, sentences, stay=0)
            if cache.is_static or slots is None or cache.memory is None:
                continue
            kept = cache.memory[:, :, :, : cache.length]
            cache.memory = kept.gather(4, slots.expand(*kept.shape[:4], 1, kept.shape[5]))
        if self.padding is not None and slots is not None:
            self.padding = self.padding[sentences].gather(2, slots[:, 0, :, 0])
        self.slots = None if slots is None else torch.zeros_like(slots[:, 0, :, 0]).mT
        self.beam = 1


def select_sentences(cache: Cache, sentences: Tensor, stay: int) -> None:
    """Keep the caches of these sentences, in place where there are not more of them."""
    memory, count, length = cache.memory, len(sentences), cache.length
    if memory is None:
        return
    if count > memory.shape[1]:
        cache.memory = memory[:, sentences]
    else:
        memory[:, stay:count, :, :length] = memory[:, sentences[stay:], :, :length]
        cache.memory = memory[:, :count]
    cache.mask = None if cache.mask is None else cache.mask[sentences]


def batch(incremental_state: IncrementalState) -> Batch:
    """The batch that an incremental state belongs to.

    It is fairseq's where nobody called `begin`: that decoder does not reorder these caches.
    """
    found = incremental_state.get(BATCH)
    if found is None:
        found = incremental_state[BATCH] = Batch(is_fairseqs=True)
    return found


def begin(incremental_state: IncrementalState, rows: Tensor | None, takes_all: bool) -> None:
    """Prepare a new incremental state.

    Args:
        incremental_state: of a batch.
        rows: of which sentence each row is.
        takes_all: whether each token goes through all layers; else the batch is fairseq's.
    """
    if BATCH not in incremental_state:
        beam = beam_of(rows)
        found = incremental_state[BATCH] = Batch(beam if beam <= MOST_SLOTS else 1)
        found.is_fairseqs |= not takes_all


def evaluation(incremental_state: IncrementalState) -> int:
    """Which evaluation in a layer the state is of, from 0."""
    return incremental_state.get(EVALUATION, 0)


def beam_of(rows: Tensor | None) -> int:
    """How many consecutive rows each sentence has; 1 if sentences have different numbers."""
    if rows is None or not len(rows):
        return 1
    _, counts = rows.unique_consecutive(return_counts=True)
    return int(counts[0]) if bool((counts == counts[0]).all()) else 1
