"""A student that follows its teacher's trajectory: which layers, on which spans, with which maps.

`losses.py` has the losses and their source.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq.tasks.language_modeling import LanguageModelingTask
from torch import Tensor

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import look_up
from macaron_fairseq.compat.arguments import of_task
from macaron_fairseq.distillation import layers, text_spans
from macaron_fairseq.distillation.layer_plan import NONE, LayerPlan
from macaron_fairseq.distillation.layers import DECODER, ENCODER, Place, States, read_by
from macaron_fairseq.distillation.maps import Maps
from macaron_fairseq.distillation.teacher_memory import Answer
from macaron_fairseq.distillation.text_spans import PHRASES, SPAN_KINDS, TOKENS, Phrases, Words
from macaron_fairseq.distillation.trajectory.losses import (
    LayerPair,
    align,
    token_weights,
    trajectory_loss,
)
from macaron_fairseq.text.marks import refuse_suffixes


@dataclass(frozen=True)
class Plan(LayerPlan):
    """What a user asks for; an empty text leaves it to `Following`."""

    spans: str = text_spans.WORDS  # KIND,... from the lowest pair of layers up
    source_phrases: str = ""  # the file of phrases of what the encoder reads
    target_phrases: str = ""

    def kinds(self, count: int) -> list[str]:
        """The spans of so many pairs: the kinds that were named, shared out evenly from below.

        Raises:
            UserError: if there is no such kind.
        """
        named = [
            look_up({x: x for x in SPAN_KINDS}, word.strip(), "kind of spans", "--trajectory-spans")
            for word in self.spans.split(",")
        ]
        return [named[i * len(named) // count] for i in range(count)]

    def refuse_unused(self, used: Iterable[Sequence[str]]) -> None:
        """Raise a `UserError` if a kind that was named is that of no pair of any side."""
        left = {word.strip() for word in self.spans.split(",")}.difference(*used)
        if left:
            raise UserError(
                f"--trajectory-spans {self.spans} names more kinds than there are pairs of layers, "
                f"so {left.pop()} would not be used: name fewer"
            )


class Following(Maps):
    """The maps from a student's states to its teacher's, and the loss that needs them."""

    def __init__(
        self, plan: Plan, student: Any, teacher: Any, task: Any, subset: str = "train"
    ) -> None:
        """Match the layers, read the phrases and make the maps.

        Args:
            plan: what is asked for.
            student: a model of the student's sizes.
            teacher: a model.
            task: the student's, with its dictionaries.
            subset: the data set that files of phrases go with.

        Raises:
            UserError: if layers, kinds of spans or files are not what they should be.
        """
        super().__init__(plan.pairs(student, teacher), student, teacher)
        for side in self.pairs:
            layers.refuse_layer_dropout(student, side)
        self.task, self.subset = task, subset
        self.kinds = {side: plan.kinds(len(pairs)) for side, pairs in self.pairs.items()}
        plan.refuse_unused(self.kinds.values())
        dictionaries = {ENCODER: task.source_dictionary, DECODER: task.target_dictionary}
        self.words = {side: Words(dictionaries[side]) for side in self.pairs}
        for side, words in self.words.items():
            if words.is_sentencepiece and {*self.kinds[side]} - {TOKENS}:
                way_out = "give --trajectory-spans tokens, which compares no words"
                refuse_suffixes(dictionaries[side].symbols, way_out)
        self.padding = {side: dictionaries[side].pad() for side in self.pairs}
        files = {ENCODER: plan.source_phrases, DECODER: plan.target_phrases}
        self.phrases = {}
        for side, file in files.items():
            text = "source" if side == ENCODER else "target"
            if PHRASES not in self.kinds.get(side, ()):
                if file:
                    meet = f" on {PHRASES}" * (side in self.pairs)
                    way_out = f", or give --trajectory-spans {PHRASES}" * (side in self.pairs)
                    raise UserError(
                        f"--trajectory-{text}-phrases {file} has no effect, since no layers of "
                        f"the {side} meet{meet}: leave it out{way_out}"
                    )
                continue
            if not file:
                way_out = f", or --trajectory-{side}-layers {NONE}, which leaves the {side} out"
                raise UserError(
                    f"--trajectory-spans {plan.spans} needs --trajectory-{text}-phrases FILE"
                    + way_out * (len(self.pairs) > 1)
                )
            self.phrases[side] = Phrases(Path(file))
        if self.phrases and os.pathsep in (getattr(of_task(task), "data", None) or ""):
            raise UserError(
                f"--trajectory-spans {plan.spans} needs the training data in one folder, since "
                "phrases are by the number of the sentence in it"
            )
        if self.phrases and getattr(of_task(task), "shorten_method", None) == "random_crop":
            raise UserError(
                "--shorten-method random_crop begins samples anywhere, so that no phrase is where "
                "its file says: give --shorten-method truncate, or other --trajectory-spans"
            )
        self.checked: Any = None  # the training data that the files go with

    def weights(self, teacher: States, inputs: Mapping[str, Any]) -> dict[Place, Tensor]:
        """The `token_weights` of the teacher's states, of the "net_input" of a batch."""
        return {
            (side, number): token_weights(state, read_by(side, inputs).ne(self.padding[side]))
            for (side, number), state in teacher.items()
        }

    def forward(self, student: States, teacher: Answer, sample: Mapping[str, Any]) -> Tensor:
        """The mean over sides and layers of the losses of `trajectory`.

        Args:
            student: of its pass over the batch.
            teacher: its states, and their `weights`.
            sample: the batch, as fairseq's translation and language modeling tasks make it.

        Raises:
            SystemExit: if a file of phrases does not go with the training data. It is no
                `UserError`, after which fairseq would save the model as crash.pt.
        """
        try:
            self.check_phrases()
        except UserError as error:
            raise SystemExit(str(error)) from None
        found = []
        for side, pairs in self.pairs.items():
            tokens = read_by(side, sample["net_input"])
            mask = tokens.ne(self.padding[side])
            members = {kind: self.members(side, kind, tokens, sample) for kind in self.kinds[side]}
            ways = zip(pairs, self.kinds[side], self.maps[side], strict=True)  # type: ignore[call-overload]
            for (ours, theirs), kind, to_teacher in ways:
                own, place = student[side, ours], (side, theirs)
                weights = token_weights(own, mask), teacher.weights[place]
                states = own, teacher.states[place]
                found.append(align(LayerPair(*states, *weights, members[kind], to_teacher)))
        return trajectory_loss(found)

    def members(self, side: str, kind: str, tokens: Tensor, sample: Mapping[str, Any]) -> Tensor:
        """The spans of a batch on one side."""
        phrases = self.phrases[side].of(sample["id"]) if kind == PHRASES else None
        return text_spans.members(kind, tokens, self.words[side], self.padding[side], phrases)

    def check_phrases(self) -> None:
        """Compare the files of phrases with the training data, once it is loaded."""
        data = self.task.datasets.get(self.subset)
        if data is not None and data is not self.checked:
            is_text = isinstance(self.task, LanguageModelingTask)
            hint = "; with --sample-break-mode eos a line of text is one" * is_text
            for phrases in self.phrases.values():
                phrases.check(len(data), hint)
            self.checked = data

    def get_extra_state(self) -> dict[str, str]:
        """What a checkpoint tells of the maps, and of the spans."""
        kinds = [f"{', '.join(kinds)} of the {side}" for side, kinds in self.kinds.items()]
        return {**super().get_extra_state(), "spans": "; ".join(kinds)}

    def describe(self) -> str:
        """Which layers meet on what, in one line for the log."""
        found = []
        for side, pairs in self.pairs.items():
            met = ", ".join(
                f"{i} to {j} on {kind}"
                for (i, j), kind in zip(pairs, self.kinds[side], strict=True)
            )
            words = f" ({self.words[side].describe()})" * bool({*self.kinds[side]} - {TOKENS})
            found.append(f"{side} layers {met}{words}")
        return "; ".join(found)
