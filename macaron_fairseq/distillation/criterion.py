"""The criterion `distilled_label_smoothed_cross_entropy`: a student learns from its teachers.

`word_level.py` and `trajectory/losses.py` have the losses and their sources.
"""

import logging
import math
import os
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.models import BaseFairseqModel
from torch import Tensor

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.distillation import layers, teachers, text_spans
from macaron_fairseq.distillation.layers import States
from macaron_fairseq.distillation.student_criterion import (
    StudentConfig,
    StudentCriterion,
    log_mean,
    refuse_numbers,
)
from macaron_fairseq.distillation.teacher_memory import Answer
from macaron_fairseq.distillation.trajectory.following import Following, Plan
from macaron_fairseq.distillation.word_level import (
    Logits,
    Mixture,
    distilled_loss,
    divergence,
    projected,
)
from macaron_fairseq.fast.criterion import (
    for_features,
    on_the_host,
    products_dtype,
    takes_features,
    unwrap,
)

NAME = "distilled_label_smoothed_cross_entropy"

logger = logging.getLogger(__name__)


@dataclass
class DistilledLabelSmoothedCrossEntropyCriterionConfig(StudentConfig):
    """The shared options, and those of word level and trajectory."""

    teacher: str = field(
        default="",
        metadata={
            "help": "checkpoint of the model to learn from; with ':' between several, from the "
            "mean of their probabilities"
        },
    )
    distill_weight: float = field(
        default=0.5,
        metadata={
            "help": "w in the loss (1 - w) label-smoothed CE + w T^2 KL(teacher || student); "
            "0: without a teacher (default: 0.5)"
        },
    )
    distill_temperature: float = field(
        default=1.0,
        metadata={"help": "temperature T of both softmaxes in the KL (default: 1)"},
    )
    no_temperature_squared: bool = field(
        default=False,
        metadata={
            "help": "leave out the factor T^2 of the KL, which keeps the size of its gradient"
        },
    )
    trajectory_weight: float = field(
        default=0.0,
        metadata={
            "help": "weight of MTA's losses per token, which make the student's layers follow the "
            "first teacher's (default: 0); the authors take 2 or 3"
        },
    )
    trajectory_spans: str = field(
        default=text_spans.WORDS,
        metadata={
            "help": "on what layers are compared: tokens, words or phrases; with ',' between "
            "several kinds the lower layers take the first, as in words,phrases (default: words)"
        },
    )
    trajectory_source_phrases: str = field(
        default="",
        metadata={
            "help": "file with the phrases of each training sentence, as FIRST-LAST ..., in words "
            "counted from 0"
        },
    )
    trajectory_target_phrases: str = field(
        default="", metadata={"help": "the same file for the sentences that the decoder reads"}
    )


class DistilledLabelSmoothedCrossEntropyCriterion(StudentCriterion):
    """`chunked_label_smoothed_cross_entropy` with a divergence from teachers.

    Teachers are run in training only. In evaluation, and with weights of 0, this is the parent. So
    the validation losses of students with and without a teacher can be compared.

    As in the parent, there is no matrix of all tokens by types, but in the four cases named there.
    A subclass that follows trajectories otherwise names its own `following_class`.
    """

    following_class: type[Following] = Following
    logged_in_training = "kd_loss", "teacher_entropy", "trajectory_loss"

    def __init__(
        self,
        task: Any,
        sentence_avg: bool,
        label_smoothing: float,
        ignore_prefix_size: int = 0,
        report_accuracy: bool = False,
        teacher: str = "",
        distill_weight: float = 0.5,
        distill_temperature: float = 1.0,
        no_temperature_squared: bool = False,
        teacher_precision: str = "fp32",
        teacher_memory: float = 0.0,
        trajectory_weight: float = 0.0,
        trajectory_layers: str = "",
        trajectory_encoder_layers: str = "",
        trajectory_decoder_layers: str = "",
        trajectory_spans: str = text_spans.WORDS,
        trajectory_source_phrases: str = "",
        trajectory_target_phrases: str = "",
    ) -> None:
        """Load the teachers; the arguments are the parent's and the options.

        With a trajectory's weight, `follow` has to be called, too; `build_criterion` does so.

        Raises:
            UserError: if a number makes no sense or a teacher does not go with the task.
        """
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        refuse_numbers(
            distill_weight,
            distill_temperature,
            teacher_memory,
            "--trajectory-weight",
            trajectory_weight,
        )
        self.mixture = Mixture(distill_weight, distill_temperature, not no_temperature_squared)
        self.trajectory_weight = trajectory_weight
        self.needs_student = trajectory_weight > 0
        self.plan = Plan(
            trajectory_layers,
            encoder_layers=trajectory_encoder_layers,
            decoder_layers=trajectory_decoder_layers,
            spans=trajectory_spans,
            source_phrases=trajectory_source_phrases,
            target_phrases=trajectory_target_phrases,
        )
        # Without any teacher the plan may stay: fairseq-validate overrides the weights alone.
        if distill_weight and not trajectory_weight and (named := self.plan.named()):
            raise UserError(
                f"{named[0]} has no effect without --trajectory-weight: give a weight, such as 2, "
                f"or leave {named[0]} out"
            )
        if trajectory_weight and not distill_weight:  # with neither, fairseq-validate reads none
            unused = "--no-temperature-squared" if no_temperature_squared else ""
            if distill_temperature != 1:
                unused = "--distill-temperature"
            if unused:
                raise UserError(f"{unused} has no effect with --distill-weight 0: leave it out")
            if os.pathsep in teacher:
                raise UserError(
                    "with --distill-weight 0 no teacher but the first is asked: name one, and not "
                    f"--teacher {teacher}"
                )
        self.following: Following | None = None
        self.answers: list[Logits] = []  # the teachers', of the batch that is being learnt
        self.sums: dict[str, Tensor] = {}  # what it adds to the log
        self.teachers: teachers.Teachers | None = None
        if distill_weight or trajectory_weight:
            if not teacher:
                raise UserError(
                    "--criterion distilled_label_smoothed_cross_entropy needs --teacher CHECKPOINT"
                )
            from macaron_fairseq.distillation import teacher_files  # a second that few need

            self.teachers = teacher_files.load(
                teacher, task, str(teacher_precision), teacher_memory
            )
            number, formula = len(self.teachers.models), self.mixture.formula()
            logger.info("%d teacher(s); loss = %s", number, formula)

    @staticmethod
    def learns_maps(args: Namespace) -> bool:
        """Whether it follows the teacher's layers."""
        return args.trajectory_weight > 0

    def follow(self, student: Any) -> None:
        """Match the layers of such a student with the first teacher's.

        Raises:
            UserError: if layers or files that were named are not what they should be.
        """
        assert self.teachers is not None
        self.following = self.following_class(
            self.plan, student, self.teachers.models[0], self.task, self.train_subset
        )
        self.following.teacher = self.teachers.sha256()
        logger.info(
            "trajectory, with weight %g: %s", self.trajectory_weight, self.following.describe()
        )

    def forward(
        self, model: BaseFairseqModel, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Return loss, sample size and logging output, as fairseq's criteria do.

        In training the log also has `kd_loss`, the KL, `teacher_entropy`, and the
        `trajectory_loss`, each where its weight is not 0. Trajectories have no loss of each token:
        without `reduce` they are left out.

        Raises:
            SystemExit: if a teacher's output holds NaN or infinity.
        """
        if not self.is_taught(model):
            return super().forward(model, sample, reduce)
        following, self.sums = self.following if reduce else None, {}
        # Before the student, whose pass fills the memory of the device.
        self.answers, first = self.ask(sample)
        places = following.student_places if following else ()
        try:
            with layers.recorded(unwrap(model), places) as states:
                loss, sample_size, log = super().forward(model, sample, reduce)
        finally:
            self.answers = []  # they are as large as the batch
        if following:
            with torch.autocast(loss.device.type, enabled=False):  # its sums are fp32
                distance = sample_size * following(states, first, sample)
            self.sums["trajectory_loss"] = distance.detach()  # or the log would keep its graph
            loss = loss + self.trajectory_weight * distance
            log["loss"] = loss.data
        self.refuse_nan(first.states)
        return loss, sample_size, {**log, **{name: x.data for name, x in self.sums.items()}}

    def refuse_nan(self, states: States) -> None:
        """Raise a `SystemExit` if something was not finite, and the teacher is why."""
        entropy, distance = (self.sums.get(x) for x in ("teacher_entropy", "trajectory_loss"))
        is_bad = entropy is not None and not torch.isfinite(entropy)
        if distance is not None and not torch.isfinite(distance):
            is_bad = is_bad or not all(x.isfinite().all() for x in states.values())
        if is_bad:
            raise SystemExit(teachers.NOT_FINITE)  # after a `UserError` fairseq saves crash.pt

    def is_taught(self, model: BaseFairseqModel) -> bool:
        """Whether the teachers are asked."""
        return self.teachers is not None and model.training

    def compute_loss(
        self, model: BaseFairseqModel, net_output: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return the sums over the target tokens of the loss, and of the NLL for the log."""
        if not (self.is_taught(model) and self.mixture.weight):
            return super().compute_loss(model, net_output, sample, reduce)
        if "features_only" not in sample["net_input"]:
            return self.compute_unchunked(model, net_output, sample, reduce)
        features, weight, target = self.select(model, net_output, sample)
        loss, nll, kl, entropy = distilled_loss(
            features, weight, target, self.eps, self.mixture, self.answers, products_dtype(model)
        )
        self.sums.update(kd_loss=kl, teacher_entropy=entropy)
        return loss, nll

    def compute_unchunked(
        self,
        model: BaseFairseqModel,
        net_output: Any,
        sample: dict[str, Any],
        reduce: bool,
    ) -> tuple[Tensor, Tensor]:
        """The same for any model, with matrices of all tokens by types."""
        log_p, target = self.get_lprobs_and_target(model, net_output, sample)
        loss, nll = label_smoothed_nll_loss(
            log_p, target, self.eps, ignore_index=self.padding_idx, reduce=reduce
        )
        counted = target.ne(self.padding_idx)
        with teachers.undisturbed(log_p.device):
            everything = [answer(slice(None)) for answer in self.answers]
        kl, entropy = divergence(log_p[counted], everything, self.mixture.temperature)
        self.sums.update(kd_loss=kl.sum().detach(), teacher_entropy=entropy.sum())
        if reduce:
            kl = kl.sum()
        else:  # a loss of each position, as the parent's
            kl = torch.zeros_like(loss[:, 0]).masked_scatter(counted, kl).unsqueeze(1)
        return (1 - self.mixture.weight) * loss + self.mixture.factor * kl, nll

    def ask(self, sample: dict[str, Any]) -> tuple[list[Logits], Answer]:
        """What each teacher says of the target tokens that count, if that has a weight.

        And what the first one's pass found. Without a weight it alone is asked, for its states.
        """
        assert self.teachers is not None
        has_weight = self.mixture.weight > 0
        answers: list[Logits] = []
        first = None
        for number, model in enumerate(self.teachers.models):
            following = None if number else self.following
            with teachers.undisturbed(sample["target"].device):
                gives_features = takes_features(self, model)
            asked = partial(read, following, gives_features, has_weight)
            found = self.teachers.answer(number, sample["net_input"], asked)
            first = first or found
            if not has_weight:
                break
            output = found.output, None
            if gives_features:
                features, weight, _ = self.select(model, output, sample)
                answers.append(projected(features, weight))
            else:
                with teachers.undisturbed(sample["target"].device):
                    log_q, target = self.get_lprobs_and_target(model, output, sample)
                answers.append(log_q[target.ne(self.padding_idx)].__getitem__)
        assert first is not None
        return answers, first

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Aggregate what was logged; KL and entropy are shown in bits per token."""
        logging_outputs = on_the_host(logging_outputs)
        super().reduce_metrics(logging_outputs)
        tokens = sum(log.get("ntokens", 0) for log in logging_outputs)
        for name in ("kd_loss", "teacher_entropy"):
            log_mean(name, logging_outputs, tokens * math.log(2), tokens, 3)
        sizes = sum(log.get("sample_size", 0) for log in logging_outputs)
        log_mean("trajectory_loss", logging_outputs, sizes, sizes, 4)


def read(
    following: Following | None,
    gives_features: bool,
    has_output: bool,
    model: Any,
    inputs: Mapping[str, Any],
) -> Answer:
    """A teacher's pass: its output, and states that a student follows with their weights.

    Args:
        following: that student's.
        gives_features: whether the output is features, of which a plain projection makes logits.
        has_output: whether the output is wanted.
        model: a teacher.
        inputs: the "net_input" of a batch.
    """
    with layers.recorded(model, following.teacher_places if following else ()) as states:
        output = model(**(for_features(inputs) if gives_features else inputs))
    weights = following.weights(states, inputs) if following else {}
    return Answer(output[0] if has_output else None, states, weights)
