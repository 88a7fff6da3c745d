"""A student and a teacher with another vocabulary read the same batch; and the losses of that.

`losses.py` and `minimum_edit.py` have the formulas and their sources.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from torch.nn.utils.rnn import pad_sequence

from macaron_fairseq.distillation import layers
from macaron_fairseq.distillation.cross_vocabulary import losses, minimum_edit
from macaron_fairseq.distillation.cross_vocabulary.chunked_sum import chunked_sum
from macaron_fairseq.distillation.cross_vocabulary.last_token import attended
from macaron_fairseq.distillation.cross_vocabulary.recoding import Recoder, bare
from macaron_fairseq.distillation.layer_plan import Pairs
from macaron_fairseq.distillation.layers import DECODER, ENCODER, Place, States, read_by
from macaron_fairseq.distillation.maps import Maps
from macaron_fairseq.distillation.spans import centres, member_weights, members_of_ranges
from macaron_fairseq.fast.chunked_loss import chunks
from macaron_fairseq.text.marks import SUBWORD_NMT

SRA, ULD, MINED = LOSSES = "sra", "uld", "mined"

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


# --- the losses ----------------------------------------------------------------------------------


class Sra(Maps):
    """The losses of SRA, and the maps that they need."""

    student_types: Tensor
    teacher_types: Tensor

    def __init__(
        self,
        pairs: Mapping[str, Pairs],
        student: Any,
        teacher: Any,
        types: tuple[list[int], list[int]],
        temperature: float,
    ) -> None:
        """Make the maps.

        Args:
            pairs: which layers meet on each side, from the lowest up.
            student: a model of the student's sizes.
            teacher: the model.
            types: the shared ones, see `losses.common_types`.
            temperature: of the softmax over shared types.
        """
        super().__init__(pairs, student, teacher, bias=False)
        self.temperature = temperature
        for name, of_side in zip(("student_types", "teacher_types"), types, strict=True):
            self.register_buffer(name, torch.tensor(of_side), persistent=False)

    def forward(
        self, student: Pass, teacher: Pass, members: Mapping[str, tuple[Tensor, Tensor]]
    ) -> dict[str, Tensor]:
        """`cosine`, `geometry` and `shared`: cos and geo as means over the sides, and kd.

        cos is of all pairs of layers, geo of the highest pair.
        """
        cosine, geometry = [], []
        for side, pairs in self.pairs.items():
            of_layers = []
            for (i, j), to_teacher in zip(pairs, self.maps[side], strict=True):  # type: ignore[call-overload]
                ours, _ = student.centres(side, i, members[side][0])
                theirs, tokens = teacher.centres(side, j, members[side][1])
                ours, theirs = together(ours, theirs)
                weights = member_weights(members[side][1], tokens).sum(2).to(ours.dtype)
                projected = to_teacher(ours).to(ours.dtype)
                of_layers.append(losses.centre_loss(projected, theirs, weights))
                highest = ours, theirs, weights
            cosine.append(torch.stack(of_layers).mean())
            geometry.append(losses.geometry_loss(*highest))
        return {
            "cosine": torch.stack(cosine).mean(),
            "geometry": torch.stack(geometry).mean(),
            "shared": self.shared(student, teacher, members[DECODER]),
        }

    def shared(self, student: Pass, teacher: Pass, members: tuple[Tensor, Tensor]) -> Tensor:
        """kd of the last layers' centres."""
        (ours, _), (theirs, _) = (
            x.centres(*last_of_decoder(x.model), own)
            for x, own in zip((student, teacher), members, strict=True)
        )
        there = members[0].any(2) & members[1].any(2)

        def divergence(ours: Tensor, theirs: Tensor) -> Tensor:
            z = student.logits(ours, self.student_types), teacher.logits(theirs, self.teacher_types)
            return losses.divergence(*z, self.temperature)

        weight = student.model.decoder.output_projection.weight
        found = chunked_sum(divergence, weight, student.learnt(), ours[there], theirs[there])
        return found / len(members[0])


def uld(student: Pass, teacher: Pass) -> Tensor:
    """ULD, summed over positions that both have."""
    sides = student, teacher
    outputs = [x.outputs() for x in sides]
    masks = [x.sample["target"].ne(x.padding) for x in sides]
    counts = torch.stack([x.sum(1) for x in masks]).amin(0)
    places = torch.arange(int(counts.max()), device=counts.device)
    row, place = (places < counts.unsqueeze(1)).nonzero().unbind(1)
    states = (
        output[row, mask.int().argmax(1)[row] + place]
        for output, mask in zip(outputs, masks, strict=True)
    )

    def difference(ours: Tensor, theirs: Tensor) -> Tensor:
        return losses.uld_loss(student.logits(ours), teacher.logits(theirs))

    return chunked_sum(difference, wider(student, teacher), student.learnt(), *states)


class MinEd:
    """MinED with two dictionaries."""

    def __init__(self, recoder: Recoder, temperature: float) -> None:
        """Find each of the teacher's types its like.

        Raises:
            UserError: if rapidfuzz is not installed.
        """
        self.student, self.teacher = recoder.student, recoder.teacher
        self.mark = recoder.mark  # of the student's tokens
        self.to_student = minimum_edit.nearest_types(
            recoder.comparable(), self.teacher.symbols, self.student.nspecial
        )
        self.columns = torch.tensor(self.to_student)  # the same, moved to where it is read
        self.temperature = temperature

    def __call__(self, student: Pass, teacher: Pass) -> Tensor:
        """The loss, summed over the student's positions."""
        ours, theirs = (read_by(DECODER, x.sample["net_input"]) for x in (student, teacher))
        target = student.sample["target"]
        counted = target.ne(student.padding)
        # The row, the student's position and the teacher's, which is -1 where nothing matches.
        met: list[tuple[int, int, int]] = []
        rows = zip(ours.tolist(), theirs.tolist(), counted.tolist(), strict=True)
        for number, (read, other, counts) in enumerate(rows):
            places = [i for i, is_counted in enumerate(counts) if is_counted]
            others = [token for token in other if token != teacher.padding]
            found = self.match([read[i] for i in places], others)
            met += [(number, i, j) for i, j in zip(places, found, strict=True)]
        matched, alone = (
            torch.tensor(x, dtype=torch.long, device=target.device).view(-1, 3).unbind(1)
            for x in ([x for x in met if x[2] >= 0], [x for x in met if x[2] < 0])
        )
        self.columns = self.columns.to(target.device)

        def divergence(own: Tensor, other: Tensor) -> Tensor:
            z = student.logits(own)
            mapped = minimum_edit.as_students(teacher.logits(other), self.columns, z.shape[1])
            return losses.divergence(z, mapped, self.temperature)

        def nll(own: Tensor, gold: Tensor) -> Tensor:
            return cross_entropy(student.logits(own) / self.temperature, gold, reduction="sum")

        states, learnt = student.outputs(), student.learnt()
        row, place, column = matched
        pairs = states[row, place], teacher.outputs()[row, column]
        taught = chunked_sum(divergence, wider(student, teacher), learnt, *pairs)
        row, place, _ = alone
        weight = student.model.decoder.output_projection.weight
        untaught = chunked_sum(nll, weight, learnt, states[row, place], target[row, place])
        return taught + untaught

    def match(self, read: list[int], others: list[int]) -> list[int]:
        """Which of the teacher's positions those of the student's meet, see `matches`."""
        texts = (
            [bare(self.student[token], self.mark) for token in read],
            [bare(self.teacher[token], SUBWORD_NMT) for token in others],
        )
        return minimum_edit.matches(read, others, texts, self.to_student)


def together(ours: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors in the more exact of their precisions."""
    dtype = torch.promote_types(ours.dtype, theirs.dtype)
    return ours.to(dtype), theirs.detach().to(dtype)
