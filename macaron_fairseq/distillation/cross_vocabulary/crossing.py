"""A student and a teacher with another vocabulary read the same batch."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.nn.utils.rnn import pad_sequence

from macaron_fairseq.distillation import layers
from macaron_fairseq.distillation.cross_vocabulary.last_token import attended
from macaron_fairseq.distillation.cross_vocabulary.recoding import Recoder
from macaron_fairseq.distillation.layers import DECODER, ENCODER, Place, States, read_by
from macaron_fairseq.distillation.spans import centres, members_of_ranges
from macaron_fairseq.fast.chunked_loss import chunks

Sample = Mapping[str, Any]

# --- the batch -----------------------------------------------------------------------------------


class Crossed(NamedTuple):
    """A batch of the student's as its teacher reads it."""

    sample: dict[str, Any]  # with "net_input" and "target"
    members: dict[str, tuple[Tensor, Tensor]]  # spans, see `spans`: the student's, the teacher's


def cross(sample: Sample, recoders: Mapping[str, Recoder], teacher: Any) -> Crossed:
    """Make the teacher's batch, padded on the right, and the spans of both.

    What is longer than the teacher can read is cut off. Samples of a language model can begin and
    end inside a word (--sample-break-mode none): what the student reads first precedes its target.

    Args:
        sample: as fairseq's translation and language modeling tasks make it.
        recoders: for each side of the models.
        teacher: the model.
    """
    device = sample["target"].device
    tokens, members = {}, {}
    first = first_of(read_by(DECODER, sample["net_input"]), recoders[DECODER].student.pad())
    for side, recoder in recoders.items():
        ours = sample["net_input"]["src_tokens"] if side == ENCODER else sample["target"]
        limit = getattr(teacher, side).max_positions()
        before = first if side == DECODER else None
        tokens[side], pair = cross_side(ours.cpu(), recoder, limit, before)
        members[side] = (pair[0].to(device), pair[1].to(device))
    target, theirs = tokens[DECODER], recoders[DECODER].teacher
    start = torch.tensor([[recoders[DECODER].last_of(token)] for token in first])
    previous = torch.cat([start, target[:, :-1]], 1)
    previous = previous.masked_fill(target.eq(theirs.pad()), theirs.pad())
    source = tokens.get(ENCODER, previous)
    read = {"src_tokens": source, "src_lengths": source.ne(theirs.pad()).sum(1)}
    if ENCODER in tokens:
        read["prev_output_tokens"] = previous
    inputs = {name: x.to(device) for name, x in read.items()}
    return Crossed({"net_input": inputs, "target": target.to(device)}, members)


def first_of(tokens: Tensor, padding: int) -> list[int]:
    """The first token of each sentence of a batch, (batch, length), padded on either side."""
    places = tokens.ne(padding).int().argmax(1, keepdim=True)
    return tokens.gather(1, places).flatten().tolist()


def cross_side(
    ours: Tensor, recoder: Recoder, limit: int, before: list[int] | None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The teacher's tokens of one side, and the spans of both.

    Args:
        ours: the student's tokens, (batch, length), padded on either side.
        recoder: what makes the teacher's of them.
        limit: how many the teacher can read.
        before: for targets of a decoder, what it reads before each. A target's token is read one
            position later, and its last one is not read, and so in no span. None for an encoder.
    """
    found, shift = recoder(ours, before), int(before is not None)
    tokens = [torch.tensor(x.tokens[:limit], dtype=torch.long) for x in found]
    theirs = pad_sequence(tokens, batch_first=True, padding_value=recoder.teacher.pad())
    mask = ours.ne(recoder.student.pad())
    of_student, of_teacher = [], []
    for x, row, first in zip(found, mask, mask.int().argmax(1).tolist(), strict=True):
        counts = int(row.sum()), min(len(x.tokens), limit)
        read = [s for s in x.spans if all(s[i][1] + shift <= counts[i] for i in (0, 1))]
        of_student.append([(a + first + shift, b + first + shift) for (a, b), _ in read])
        of_teacher.append([(a + shift, b + shift) for _, (a, b) in read])
    lengths = ours.shape[1], theirs.shape[1]
    return theirs, (
        members_of_ranges(of_student, lengths[0]),
        members_of_ranges(of_teacher, lengths[1]),
    )


# --- the models' passes --------------------------------------------------------------------------


@dataclass
class Pass:
    """What is known of one model's pass over a batch."""

    model: Any
    padding: int  # the symbol of padding
    sample: Sample
    states: States
    weights: dict[Place, Tensor]  # of its tokens, see `of_last_token`

    def centres(self, side: str, number: int, members: Tensor) -> tuple[Tensor, Tensor]:
        """The centres of mass of spans after a layer, (batch, spans, dim), and tokens' weights."""
        states = self.states[side, number]
        states = states.to(torch.promote_types(states.dtype, torch.float32))
        weights = self.weights[side, number].to(states.dtype)
        return centres(states, members * weights.unsqueeze(1)), weights

    def outputs(self) -> Tensor:
        """The decoder's last states, (batch, length, dim)."""
        return self.states[last_of_decoder(self.model)]

    def logits(self, states: Tensor, types: Tensor | None = None) -> Tensor:
        """The output layer's logits of some last states, (n, dim), in fp32 at least.

        Args:
            states: such as `outputs`.
            types: which types' logits; None for all.
        """
        decoder = self.model.decoder
        projection = decoder.output_projection
        if decoder.project_out_dim is not None:
            weight = decoder.project_out_dim.weight
            states = linear(states.to(weight.dtype), weight)
        weight, bias = projection.weight, getattr(projection, "bias", None)
        if types is not None:
            weight, bias = weight[types], None if bias is None else bias[types]
        found = linear(states.to(weight.dtype), weight, bias)
        return found.to(torch.promote_types(found.dtype, torch.float32))

    def learnt(self) -> list[Tensor]:
        """The parameters of `logits` that are learnt."""
        decoder = self.model.decoder
        found = [*decoder.output_projection.parameters()]
        if decoder.project_out_dim is not None:
            found += decoder.project_out_dim.parameters()
        return [x for x in found if x.requires_grad]

    def is_finite(self) -> bool:
        """Whether there is neither NaN nor infinity in it, nor in the logits of what counts."""
        if not all(x.isfinite().all() for x in self.states.values()):
            return False
        counted = self.outputs()[self.sample["target"].ne(self.padding)]
        parts = chunks(len(counted), self.model.decoder.output_projection.weight)
        return all(bool(self.logits(counted[rows]).isfinite().all()) for rows in parts)


@contextmanager
def passing(
    model: Any, padding: int, sample: Sample, places: Collection[Place], has_centres: bool
) -> Iterator[Pass]:
    """Keep what a model goes through in a pass over a batch.

    Args:
        model: the student or its teacher.
        padding: the symbol of padding.
        sample: the batch as the model reads it.
        places: the layers whose states are wanted.
        has_centres: whether their centres of mass are, for which attentions have to be known.
    """
    weighed = places if has_centres else ()
    masks = {side: read_by(side, sample["net_input"]).ne(padding) for side, _ in weighed}
    with (
        layers.recorded(model, places) as states,
        attended(model, weighed, masks) as weights,
    ):
        yield Pass(model, padding, sample, states, weights)


def last_of_decoder(model: Any) -> Place:
    """The decoder's last layer, whose states the output layer reads."""
    return DECODER, len(layers.layers_of(model)[DECODER])


def wider(student: Pass, teacher: Pass) -> Tensor:
    """An empty weight of the student's precision, with as many types as the larger output layer."""
    own, other = (x.model.decoder.output_projection.weight for x in (student, teacher))
    return own.new_empty(max(len(own), len(other)), 0)
