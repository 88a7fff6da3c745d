"""What the Macaron models have in common, in front of fairseq's own classes."""

import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.masked_lm import MaskedLMTask
from fairseq.tasks.sentence_prediction import SentencePredictionTask
from fairseq.tasks.translation import TranslationTask
from omegaconf import OmegaConf

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import listed
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.compat.arguments import PassUserDir, of_task
from macaron_fairseq.model import architectures, arguments, bf16

# What a model can be trained for, by fairseq's names; other tasks are the user's affair.
TASK_CLASSES: dict[str, type] = {
    "translation": TranslationTask,
    "language_modeling": LanguageModelingTask,
    "masked_lm": MaskedLMTask,
    "sentence_prediction": SentencePredictionTask,
}


class UnpublishedModel(BaseFairseqModel):
    """A model of which none is published; its class comes before fairseq's."""

    @classmethod
    def hub_models(cls) -> dict[str, str]:
        """No model is published under a name; give `from_pretrained` a folder."""
        return {}


class MacaronModel(UnpublishedModel):
    """A model of fairseq's whose layers integrate a scheme; its class comes before fairseq's."""

    sides: Sequence[str]  # which of "encoder" and "decoder" it has
    tasks: Sequence[str]  # of `TASK_CLASSES`, those that it is for
    loading: ClassVar[Mapping[str, Any]] = {}  # what `from_pretrained` takes by default
    args: Namespace

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str,
        checkpoint_file: str = "model.pt",
        data_name_or_path: str = ".",
        **kwargs: Any,
    ) -> Any:
        """Load trained models as fairseq's `from_pretrained` does.

        Raises:
            UserError: if a checkpoint is bad, naming it; or if an archive or an address is given,
                which fairseq would unpack wherever it says.
        """
        model_name_or_path, data_name_or_path = map(str, (model_name_or_path, data_name_or_path))
        if Path(model_name_or_path).is_file() or files.is_remote(model_name_or_path):
            raise UserError(
                f"{model_name_or_path} is no folder: give the folder of the checkpoint, and first "
                "download or unpack what it comes in"
            )
        for name in checkpoint_file.split(os.pathsep):
            checkpoints.load_checked(Path(model_name_or_path, name))
        return super().from_pretrained(
            model_name_or_path, checkpoint_file, data_name_or_path, **{**cls.loading, **kwargs}
        )

    @classmethod
    def complete(cls, args: Namespace, task: FairseqTask) -> None:
        """Fill in the arguments that a model is built from, check them, and change their class.

        Raises:
            UserError: if the model is not for that task, or arguments do not go together.
        """
        refuse_other_task(args, task, cls.tasks)
        refuse_no_scheme(args)
        architectures.set_macaron_defaults(args)
        arguments.refuse_senseless_values(args, cls.sides)
        args.__class__ = PassUserDir  # as which fairseq will save it; see there

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output as fairseq does: of the network, and what else there is."""
        if not self.has_bf16_products():
            return super().forward(*args, **kwargs)
        # The command line was checked, but fairseq-hydra-train has another.
        bf16.refuse_where_wrong(self.args, next(self.parameters()).is_cuda)
        with torch.autocast("cpu", torch.bfloat16):
            output, extra = super().forward(*args, **kwargs)
        return output.float(), extra  # a sum of losses needs more than 8 bits

    def has_bf16_products(self) -> bool:
        """Whether matrix products are to be of bf16: in training, where asked for."""
        return self.training and self.args.macaron_matmul == "bf16"


def as_namespace(args: Any) -> Namespace:
    """The arguments as fairseq's commands give them; those of fairseq-hydra-train are no namespace.

    fairseq loses what it does not know of those.
    """
    if not OmegaConf.is_config(args):
        return args
    values: Any = OmegaConf.to_object(args)
    kept = [side for side in ("encoder", "decoder") if values.get(f"{side}_layers_to_keep")]
    if kept:
        raise UserError(
            f"{kept[0]}_layers_to_keep is for fairseq-train: from fairseq-hydra-train's settings "
            "fairseq would lose other layers, or save a model that does not load"
        )
    arguments.warn_of_unknown_names(values)
    return Namespace(**values)


def refuse_other_task(args: Namespace, task: Any, tasks: Sequence[str]) -> None:
    """Raise a `UserError` if it is a task that the model is not for."""
    given = [name for name, kind in TASK_CLASSES.items() if isinstance(task, kind)]
    if given and not set(given) & set(tasks):
        arch = getattr(args, "arch", None) or getattr(args, "_name", None)  # hydra's name for it
        raise UserError(
            f"--arch {arch} is not for --task {given[0]}: give --task "
            f"{listed(tasks)}, or an architecture for {given[0]}"
        )


def refuse_no_scheme(args: Namespace) -> None:
    """Raise a `UserError` if the architecture is one that does not know of schemes."""
    if getattr(args, "macaron_scheme", None) is None:
        arch = getattr(args, "arch", None) or getattr(args, "_name", None)
        raise UserError(
            f"--arch {arch} sets no scheme: let its function call "
            f"{architectures.__name__}.{architectures.configure_macaron.__name__}(args, size)"
        )


def refuse_longer_samples(args: Any, task: FairseqTask, positions: int, flag: str) -> None:
    """Raise a `UserError` if a language model's samples have more tokens than it has positions.

    A sample of --sample-break-mode eos is a line instead. fairseq leaves out lines that are too
    long in training. In validation it asks for --skip-invalid-size-inputs-valid-test.

    Args:
        args: of the model, which tell how long samples are if the task has such.
        task: the task.
        positions: of the model.
        flag: that sets these.
    """
    tokens = getattr(args, "tokens_per_sample", None)
    modes = {getattr(x, "sample_break_mode", None) for x in (args, of_task(task))}
    if tokens is not None and tokens > positions and "eos" not in modes:
        raise UserError(
            f"--tokens-per-sample {tokens} is more than the {positions} positions of the model "
            f"({flag}): lower the first or raise the second"
        )
