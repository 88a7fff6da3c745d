"""What the criteria of students share: options, the student's sizes, the maps of a checkpoint."""

import copy
import logging
import math
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.dataclass import ChoiceEnum
from fairseq.logging import metrics
from omegaconf import DictConfig

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat.arguments import of_task
from macaron_fairseq.distillation import maps, teachers
from macaron_fairseq.fast.criterion import ChunkedLabelSmoothedCrossEntropyCriterion

logger = logging.getLogger(__name__)


@dataclass
class StudentConfig(LabelSmoothedCrossEntropyCriterionConfig):
    """fairseq's options, and those that say which layers of student and teacher meet."""

    trajectory_layers: str = field(
        default="",
        metadata={
            "help": "which layers meet, as STUDENT:TEACHER,... from 1, in encoder and decoder "
            "(default: of a trajectory, each of the student's and the nearest in time; of sra, the "
            "last ones)"
        },
    )
    trajectory_encoder_layers: str = field(
        default="",
        metadata={
            "help": "pairs of the encoder's layers, if --trajectory-layers is not for it; none: no "
            "layer of the encoder"
        },
    )
    trajectory_decoder_layers: str = field(
        default="",
        metadata={
            "help": "pairs of the decoder's layers, if --trajectory-layers is not for it; none: no "
            "layer of the decoder"
        },
    )
    teacher_precision: ChoiceEnum([*teachers.PRECISIONS]) = field(  # type: ignore[valid-type]
        default="fp32",
        metadata={
            "help": "precision of the teacher, whatever the student's; bf16 is faster on "
            "GPUs, and on CPUs that have instructions for it"
        },
    )
    teacher_memory: float = field(
        default=0.0,
        metadata={
            "help": "GiB of the computer's memory, of each process, for what teachers say of "
            "batches, which it then does not compute again in the next epoch. With several GPUs "
            "add --grouped-shuffling --update-epoch-batch-itr False, which gives a process its "
            "batches again"
        },
    )


class StudentCriterion(ChunkedLabelSmoothedCrossEntropyCriterion):
    """A criterion that may have to know what the student is, and to learn maps to its teacher.

    Attributes:
        needs_student: whether `follow` has to be called.
        teachers: those that are asked in training.
        train_subset: the data set of the task that is trained on.
        logged_in_training: what validation does not compute, by its names in the log.
        begins_anew: whether training takes no more than the parameters of a checkpoint.
    """

    needs_student = False
    teachers: Any = None
    train_subset = "train"
    begins_anew = False
    logged_in_training: tuple[str, ...] = ()

    @classmethod
    def build_criterion(cls, cfg: Any, task: Any) -> "StudentCriterion":
        """Build it from fairseq's configuration, which also says what the student is.

        Raises:
            UserError: as `__init__` and `follow` do, or if the training is to be fully sharded or
                the student has adaptive softmax.
        """
        criterion = super().build_criterion(cfg, task)
        whole: Any = cfg._get_root() if isinstance(cfg, DictConfig) else cfg
        if getattr(getattr(whole, "model", None), "adaptive_softmax_cutoff", None):
            raise UserError(
                "--adaptive-softmax-cutoff needs fairseq's --criterion adaptive_loss: leave it "
                "out, or take an --arch without it"
            )
        distributed = getattr(whole, "distributed_training", None)
        if criterion.teachers is not None and getattr(cfg, "teacher_memory", None):
            world = getattr(distributed, "distributed_world_size", 1)
            warn_of_new_batches(getattr(whole, "dataset", None), task, world)
        if criterion.needs_student:
            if getattr(distributed, "ddp_backend", None) == "fully_sharded":
                raise UserError(
                    "a loss that reads the student's layers does not go with --ddp-backend "
                    "fully_sharded, which spreads their parameters over the GPUs"
                )
            if saved := getattr(whole, "checkpoint", None):
                criterion.begins_anew = takes_parameters_alone(saved)
            if dataset := getattr(whole, "dataset", None):  # a program may have none
                criterion.train_subset = dataset.train_subset
            criterion.follow(student_like(copy.copy(task), whole.model))
        return criterion

    @staticmethod
    def learns_maps(args: Namespace) -> bool:
        """Whether it learns maps to its teacher's layers, by the flags of fairseq-train.

        `preflight` asks: a checkpoint's optimizer has a state for them, or has not.
        """
        raise NotImplementedError

    def follow(self, student: Any) -> None:
        """Prepare the loss between such a student and the teacher."""
        raise NotImplementedError

    def load_state_dict(
        self, state_dict: Mapping[str, Any] | None, *args: Any, **kwargs: Any
    ) -> Any:
        """Take the maps of a checkpoint. A student that had none learns new ones.

        Where training begins anew, other maps are learnt in place of those of other layers.

        Raises:
            SystemExit: if they are maps between other layers, or of other widths. It is no
                `UserError`, which fairseq would replace by an exception that says less.
        """
        if state_dict is None:
            logger.info("the checkpoint has no maps to a teacher's layers: new ones are learnt")
            return None
        own = self.state_dict()
        for name in maps.differences(state_dict, own):
            was, now = maps.told(state_dict).get(name, "others"), maps.told(own).get(name, "others")
            if name == "layers" and self.begins_anew:
                logger.info("the maps to a teacher's layers were %s: new ones are learnt", was)
                return None
            if name == "layers":
                raise SystemExit(
                    f"the checkpoint's student has maps from its layers to a teacher's, {was}, and "
                    f"now they would be {now}: give the same --teacher and "
                    "--trajectory-layers as before, or begin anew with --reset-optimizer"
                )
            logger.warning("%s: %s until now, and %s from here on", name, was, now)
        untold = {name: x for name, x in own.items() if name.endswith(maps.EXTRA_STATE)}
        return super().load_state_dict({**untold, **state_dict}, *args, **kwargs)


def refuse_numbers(
    weight: float, temperature: float, memory: float, own_flag: str, own_weight: float
) -> None:
    """Raise a `UserError` if an option is a number that makes no sense.

    Args:
        weight: of --distill-weight.
        temperature: of --distill-temperature.
        memory: of --teacher-memory.
        own_flag: the weight that the criterion alone has.
        own_weight: what it is.
    """
    for flag, value, makes_sense, wanted in (
        ("--distill-weight", weight, 0 <= weight <= 1, "a number from 0 to 1"),
        ("--distill-temperature", temperature, 0 < temperature < math.inf, "a number above 0"),
        (own_flag, own_weight, 0 <= own_weight < math.inf, "a number, 0 or more"),
        ("--teacher-memory", memory, 0 <= memory < math.inf, "GiB, or 0 for none"),
    ):
        if not makes_sense:
            raise UserError(f"{flag} is {value}: give {wanted}")


def log_mean(
    name: str, logs: Sequence[Mapping[str, Any]], count: float, weight: float, digits: int
) -> None:
    """Log what workers have summed up, divided by a count; nothing if no worker has it.

    Args:
        name: of the sum in the logs, and of the mean.
        logs: of the workers.
        count: what the sum is divided by.
        weight: of this mean, next to those of other updates.
        digits: that are shown.
    """
    if any(name in log for log in logs):
        total = sum(log.get(name, 0) for log in logs)
        metrics.log_scalar(name, total / count, weight, round=digits)


def warn_of_new_batches(dataset: Any, task: Any, world: int) -> None:
    """Warn that a memory never sees a batch again, where fairseq makes others in each epoch.

    Or that it seldom does, where each epoch divides batches among processes anew.

    Args:
        dataset: its options on the data.
        task: the student's.
        world: the number of processes.
    """
    useless = "--teacher-memory has no effect, since each epoch has other batches"
    if getattr(dataset, "update_epoch_batch_itr", False):  # as --grouped-shuffling, by default
        logger.warning("%s: give --update-epoch-batch-itr False", useless)
    elif os.pathsep in (getattr(of_task(task), "data", None) or ""):
        logger.warning("%s where the training data is in several folders", useless)
    elif world > 1 and not getattr(dataset, "grouped_shuffling", False):
        logger.warning(
            "--teacher-memory saves little: of %d processes each gets batches of the others in the "
            "next epoch. Add --grouped-shuffling --update-epoch-batch-itr False",
            world,
        )


def takes_parameters_alone(saved: Any) -> bool:
    """Whether fairseq-train begins with a checkpoint's parameters, by its options of checkpoints.

    Once it has saved there, `--finetune-from-model` says nothing any more.
    """
    last = Path(saved.save_dir, f"checkpoint_last{saved.checkpoint_suffix}.pt")
    named = saved.finetune_from_model if saved.continue_once is None else None
    return bool(saved.reset_optimizer or (named and not last.is_file()))


def student_like(task: Any, model_config: Any) -> Any:
    """A model of the student's sizes, made apart from it and without touching random numbers."""
    with torch.random.fork_rng(devices=[]):
        return task.build_model(model_config)
