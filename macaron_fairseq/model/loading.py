"""Trained models and their dictionaries from files, checked before fairseq reads them.

Import `macaron_fairseq.plugin` first, which makes fairseq know the models.
"""

from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils, utils
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationTask

from macaron_fairseq.common.errors import UserError, in_a_line
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.model import checkpoint_sizes


def load_dictionary(path: Path) -> Dictionary:
    """A dictionary that fairseq-preprocess wrote.

    Raises:
        UserError: if it cannot be read.
    """
    try:
        return Dictionary.load(str(path))
    except Exception as error:  # fairseq raises no narrower one for text that is not UTF-8
        raise UserError(f"cannot read the dictionary {path}: {in_a_line(error)}") from error


def load_models(path: str, task: FairseqTask) -> list[Any]:
    """The models of checkpoints with ":" between them, in fp32 on the CPU.

    Raises:
        UserError: if a file is bad or a model was trained with other dictionaries than the task's.
    """
    paths = utils.split_paths(path)
    for name in paths:
        refuse_unfit(name, task)
    try:
        # The embeddings are in the checkpoint; the file that they began with may be gone.
        overrides = dict.fromkeys(("encoder_embed_path", "decoder_embed_path"))
        return checkpoint_utils.load_model_ensemble(paths, overrides, task)[0]
    except RuntimeError as error:  # PyTorch's or fairseq's word on what is in the file
        raise UserError(f"fairseq cannot load {path}: {in_a_line(error)}") from error


def refuse_unfit(path: str, task: FairseqTask) -> None:
    """Raise a `UserError` if a checkpoint is bad, or of another task, model or dictionary."""
    state = checkpoints.load_checked(Path(path))
    # fairseq prefers a part of a divided model.
    read = checkpoint_utils.get_maybe_sharded_checkpoint_filename(path, "", 0, 1)
    if read != path:
        raise UserError(f"fairseq would read {read} in place of {path}: move one of them away")
    if isinstance(task, TranslationTask):
        checkpoints.refuse_other_task(path, state, "translation")
    arguments = checkpoints.model_arguments(state)
    arch = arguments["arch"]
    if arch not in ARCH_MODEL_REGISTRY and arch not in MODEL_REGISTRY:
        raise UserError(
            f"{path} holds a model of the architecture {arch}, which neither fairseq nor this "
            "package knows"
        )
    if arguments.get("merge_src_tgt_embed"):
        return  # its embedding has the types of both dictionaries
    types = len(task.source_dictionary), len(task.target_dictionary)
    checkpoint_sizes.refuse_other_dictionaries(path, state["model"], *types)
    checkpoint_sizes.refuse_other_output(path, state["model"], types[1])
