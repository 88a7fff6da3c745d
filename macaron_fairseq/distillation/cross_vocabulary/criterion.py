"""The criterion `cross_vocabulary_label_smoothed_cross_entropy`: a teacher with other tokens.

`methods.py` has what is learnt.
"""

import logging
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models import BaseFairseqModel
from torch import Tensor

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat.arguments import of_task
from macaron_fairseq.distillation import teachers
from macaron_fairseq.distillation.cross_vocabulary import crossing, losses
from macaron_fairseq.distillation.cross_vocabulary.crossing import Pass
from macaron_fairseq.distillation.cross_vocabulary.methods import (
    METHODS,
    MINED,
    SRA,
    ULD,
    MinEd,
    Sra,
    uld,
)
from macaron_fairseq.distillation.cross_vocabulary.recoding import Recoder
from macaron_fairseq.distillation.layer_plan import LayerPlan, match_last
from macaron_fairseq.distillation.layers import (
    DECODER,
    ENCODER,
    layers_of,
    refuse_layer_dropout,
)
from macaron_fairseq.distillation.student_criterion import (
    StudentConfig,
    StudentCriterion,
    log_mean,
    refuse_numbers,
)
from macaron_fairseq.distillation.teacher_memory import Answer
from macaron_fairseq.fast.criterion import for_features, has_plain_projection, on_the_host, unwrap

NAME = "cross_vocabulary_label_smoothed_cross_entropy"
TEMPERATURE, GEOMETRY_WEIGHT = 2.0, 50.0  # by default

logger = logging.getLogger(__name__)


@dataclass
class CrossVocabularyLabelSmoothedCrossEntropyCriterionConfig(StudentConfig):
    """The shared options, and those of the losses across vocabularies."""

    teacher: str = field(default="", metadata={"help": "checkpoint of the model to learn from"})
    teacher_data: str = field(
        default="",
        metadata={
            "help": "the teacher's data folder, with preprocessing.json, code and data-bin/dict.*"
        },
    )
    distill_weight: float = field(
        default=0.5,
        metadata={
            "help": "w in the loss (1 - w) label-smoothed CE + w times the loss across "
            "vocabularies; 0: without a teacher (default: 0.5)"
        },
    )
    cross_vocabulary_loss: ChoiceEnum([*METHODS]) = field(  # type: ignore[valid-type]
        default=SRA,
        metadata={
            "help": "sra: spans' centres of mass; uld: sorted probabilities; mined: tokens of the "
            "least edit distance (default: sra)"
        },
    )
    distill_temperature: float = field(
        default=TEMPERATURE,
        metadata={
            "help": "temperature T of the softmax in the losses of sra and mined (default: 2)"
        },
    )
    geometry_weight: float = field(
        default=GEOMETRY_WEIGHT,
        metadata={"help": "weight of SRA's geometry term (default: 50, the authors')"},
    )


class CrossVocabularyLabelSmoothedCrossEntropyCriterion(StudentCriterion):
    """`chunked_label_smoothed_cross_entropy`, and a teacher with another BPE and dictionary.

    The teacher is run in training only. In evaluation, and with a weight of 0, this is the parent.
    """

    logged_in_training = "cross_loss", "cosine_loss", "geometry_loss", "shared_loss"

    def __init__(
        self,
        task: Any,
        sentence_avg: bool,
        label_smoothing: float,
        ignore_prefix_size: int = 0,
        report_accuracy: bool = False,
        teacher: str = "",
        teacher_data: str = "",
        distill_weight: float = 0.5,
        cross_vocabulary_loss: str = SRA,
        distill_temperature: float = TEMPERATURE,
        geometry_weight: float = GEOMETRY_WEIGHT,
        trajectory_layers: str = "",
        trajectory_encoder_layers: str = "",
        trajectory_decoder_layers: str = "",
        teacher_precision: str = "fp32",
        teacher_memory: float = 0.0,
    ) -> None:
        """Load the teacher; the arguments are the parent's and the options.

        With a weight, `follow` has to be called, too; `build_criterion` does so.

        Raises:
            UserError: if a number makes no sense, the teacher does not go with the task, or a
                prefix is to be ignored.
        """
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        refuse_numbers(
            distill_weight,
            distill_temperature,
            teacher_memory,
            "--geometry-weight",
            geometry_weight,
        )
        self.weight = distill_weight
        self.kind = str(cross_vocabulary_loss)
        self.temperature = distill_temperature
        self.geometry_weight = geometry_weight
        layers = trajectory_layers, trajectory_encoder_layers, trajectory_decoder_layers
        self.plan = LayerPlan(*layers)
        unused = self.plan.named()
        if geometry_weight != GEOMETRY_WEIGHT:
            unused.append("--geometry-weight")
        if distill_temperature != TEMPERATURE and self.kind != MINED:
            unused.append("--distill-temperature")
        if distill_weight and self.kind != SRA and unused:
            raise UserError(
                f"{unused[0]} has no effect with --cross-vocabulary-loss {self.kind}: leave it out"
            )
        self.teachers: teachers.Teachers | None = None
        self.sra: Sra | None = None
        self.mined: MinEd | None = None
        self.needs_student = distill_weight > 0
        if distill_weight:
            if ignore_prefix_size:
                raise UserError(
                    "--ignore-prefix-size leaves out tokens, which the losses across vocabularies "
                    "compare: give one of both, or --distill-weight 0"
                )
            if getattr(of_task(task), "add_bos_token", False):
                raise UserError(
                    "--add-bos-token hides what a sample begins with, which the losses across "
                    "vocabularies compare: leave it out"
                )
            if not teacher or not teacher_data:
                raise UserError(
                    f"--criterion {NAME} needs --teacher CHECKPOINT and --teacher-data FOLDER"
                )
            from macaron_fairseq.distillation import teacher_files  # a second that few need

            self.teachers, dictionaries, segment = teacher_files.load_across(
                teacher, teacher_data, task, str(teacher_precision), teacher_memory
            )
            self.recoders = {x: Recoder(*pair, segment) for x, pair in dictionaries.items()}

    @staticmethod
    def learns_maps(args: Namespace) -> bool:
        """Whether the loss is SRA, the one that compares layers."""
        return args.distill_weight > 0 and args.cross_vocabulary_loss == SRA

    def follow(self, student: Any) -> None:
        """Prepare the loss between such a student and the teacher.

        Raises:
            UserError: if layers do not exist, no type is in both dictionaries, or an output layer
                is adaptive or none.
        """
        assert self.teachers is not None
        teacher = self.teachers.models[0]
        recoder = self.recoders[DECODER]
        for whose, model, own in (
            ("student", student, recoder.student),
            ("teacher", teacher, recoder.teacher),
        ):
            projection: Any = getattr(model.decoder, "output_projection", None)
            if projection is None:
                raise UserError(
                    f"the {whose} has no plain output layer: across vocabularies take a "
                    "Transformer without --adaptive-softmax-cutoff"
                )
            if len(projection.weight) < len(own):
                raise UserError(
                    f"the {whose} predicts some of its types alone: across vocabularies take a "
                    "model without --output-dictionary-size"
                )
        refuse_layer_dropout(student, DECODER)  # all losses read its last states
        types = losses.common_types(recoder.comparable(), recoder.teacher.symbols)
        counts = len(types[0]), len(recoder.student), len(recoder.teacher)
        layers = ""
        if self.kind == SRA:
            if counts[0] <= recoder.student.nspecial:
                raise UserError(
                    "student and teacher have no type in common: learn by "
                    "--cross-vocabulary-loss uld"
                )
            for whose, model in (("student", student), ("teacher", teacher)):
                if not all(hasattr(x, "self_attn") for x in chain(*layers_of(model).values())):
                    raise UserError(
                        f"the {whose} has layers without self-attention, by which sra weighs "
                        "tokens: learn by --cross-vocabulary-loss uld"
                    )
            pairs = self.plan.pairs(student, teacher, match_last)
            self.sra = Sra(pairs, student, teacher, types, self.temperature)
            self.sra.teacher = self.teachers.sha256()
            if ENCODER in pairs:
                refuse_layer_dropout(student, ENCODER)
            for side, met in pairs.items():
                layers += f"; {side} layers {', '.join(f'{i} to {j}' for i, j in met)}"
        elif self.kind == MINED:
            self.mined = MinEd(recoder, self.temperature)
        shared, own, theirs = counts
        said = f"loss = {1 - self.weight:g} label-smoothed CE + {self.weight:g} {self.kind}"
        if self.kind != ULD:
            said += f" at T = {self.temperature:g}, without a factor T^2"
        said += f"; of {own} and {theirs} types {shared} are shared{layers}"
        said += f"; {recoder.words.describe()}"
        logger.info("%s", said)

    def forward(
        self, model: BaseFairseqModel, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Return loss, sample size and logging output, as fairseq's criteria do.

        In training the log also has `cross_loss`, and of SRA its three parts. There is no such loss
        of each token: without `reduce` this is the parent.

        Raises:
            SystemExit: if the teacher's output holds NaN or infinity.
        """
        if self.teachers is None or not model.training or not reduce:
            return super().forward(model, sample, reduce)
        crossed = crossing.cross(sample, self.recoders, self.teachers.models[0])
        theirs = self.ask(crossed.sample)  # first: the student's pass fills the device's memory
        own = unwrap(model)
        has_centres = self.sra is not None
        places = {crossing.last_of_decoder(own), *(self.sra.student_places if self.sra else ())}
        with crossing.passing(own, self.padding_idx, sample, places, has_centres) as student:
            loss, size, log = super().forward(model, sample, reduce)
        with torch.autocast(loss.device.type, enabled=False):  # its sums are fp32
            found = self.compare(student, theirs, crossed)
        # SRA's are means over sentences, the others sums over tokens, as fairseq's.
        factor = size if self.kind == SRA else 1
        sums = {name: factor * value for name, value in found.items()}
        self.refuse_nan(sums["cross_loss"], theirs)
        loss = (1 - self.weight) * loss + self.weight * sums["cross_loss"]
        log["loss"] = loss.data
        return loss, size, {**log, **{name: value.data for name, value in sums.items()}}

    def ask(self, sample: dict[str, Any]) -> Pass:
        """The teacher's pass over its batch."""
        assert self.teachers is not None
        teacher: Any = self.teachers.models[0]
        padding = self.recoders[DECODER].teacher.pad()
        has_centres = self.sra is not None
        places = {
            crossing.last_of_decoder(teacher),
            *(self.sra.teacher_places if self.sra else ()),
        }
        with teachers.undisturbed(sample["target"].device):
            gives_features = has_plain_projection(teacher)

        def read(model: Any, inputs: Mapping[str, Any]) -> Answer:
            batch = {"net_input": inputs}
            with crossing.passing(model, padding, batch, places, has_centres) as made:
                model(**(for_features(inputs) if gives_features else inputs))
            return Answer(states=made.states, weights=made.weights)

        found = self.teachers.answer(0, sample["net_input"], read)
        return Pass(teacher, padding, sample, found.states, found.weights)

    def compare(self, student: Pass, teacher: Pass, crossed: crossing.Crossed) -> dict[str, Tensor]:
        """The loss of these passes, `cross_loss`, and its parts."""
        if self.sra is not None:
            parts = self.sra(student, teacher, crossed.members)
            total = parts["cosine"] + self.geometry_weight * parts["geometry"] + parts["shared"]
            return {"cross_loss": total, **{f"{name}_loss": x for name, x in parts.items()}}
        if self.mined is not None:
            return {"cross_loss": self.mined(student, teacher)}
        return {"cross_loss": uld(student, teacher)}

    def refuse_nan(self, loss: Tensor, teacher: Pass) -> None:
        """Raise a `SystemExit` if the loss is not finite, and the teacher is why."""
        if not torch.isfinite(loss) and not teacher.is_finite():
            raise SystemExit(teachers.NOT_FINITE)  # after a `UserError` fairseq saves crash.pt

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Aggregate what was logged: of SRA means over sentences, else sums, by the sample size."""
        logging_outputs = on_the_host(logging_outputs)
        super().reduce_metrics(logging_outputs)
        sizes = sum(log.get("sample_size", 0) for log in logging_outputs)
        for name in cls.logged_in_training:
            log_mean(name, logging_outputs, sizes, sizes, 4)
