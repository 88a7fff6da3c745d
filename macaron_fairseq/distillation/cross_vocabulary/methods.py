"""SRA, ULD and MinED: what a student learns from its own pass and its teacher's over a batch.

`losses.py` has the formulas of SRA and ULD, `minimum_edit.py` those of MinED, each with its source.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from macaron_fairseq.distillation.cross_vocabulary import losses, minimum_edit
from macaron_fairseq.distillation.cross_vocabulary.crossing import Pass, last_of_decoder, wider
from macaron_fairseq.distillation.cross_vocabulary.recoding import Recoder, bare
from macaron_fairseq.distillation.layer_plan import Pairs
from macaron_fairseq.distillation.layers import DECODER, read_by
from macaron_fairseq.distillation.maps import Maps
from macaron_fairseq.distillation.spans import member_weights
from macaron_fairseq.fast.chunked_sum import chunked_sum
from macaron_fairseq.text.marks import SUBWORD_NMT

SRA, ULD, MINED = METHODS = "sra", "uld", "mined"


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

        weight, pairs = student.model.decoder.output_projection.weight, (ours[there], theirs[there])
        steepest = 1 / self.temperature
        found = chunked_sum(divergence, weight, student.learnt(), *pairs, steepest=steepest)
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
        steepest = 1 / self.temperature
        taught = chunked_sum(divergence, wider(student, teacher), learnt, *pairs, steepest=steepest)
        row, place, _ = alone
        weight = student.model.decoder.output_projection.weight
        pairs = states[row, place], target[row, place]
        return taught + chunked_sum(nll, weight, learnt, *pairs, steepest=steepest)

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
