"""A checkpoint of another network than the model that training is to start from.

Another scheme or sub-step with the same parameters only this package knows. fairseq answers another
dictionary, number of positions or architecture, and other layers, with a traceback. Each of these
checks can go when fairseq says it in a sentence.

fairseq drops a classification head for another number of classes, with a warning, and trains a new
one: see `test_fairseq_drops_a_head_of_other_classes`. Where training starts from the authors' BERT,
it hides each of the model's sentences behind two tracebacks. `refuse_other_parameters` can go when
`test_fairseq_hides_what_a_model_says_of_a_checkpoint` fails.
"""

import io
import logging
import re
from argparse import Namespace
from collections.abc import Mapping
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from fairseq import tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from torch import Tensor
from torch._subclasses import FakeTensorMode

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.model import architectures, checkpoint_sizes, same_network
from macaron_fairseq.preflight import command_line
from macaron_fairseq.preflight.missing import DICTIONARIES

logger = logging.getLogger(__name__)

Shapes = dict[str, set[tuple[int, ...]]]  # of parameters, by name

# Models with one dictionary, whose sizes data and flags tell.
SIZED_BY_DATA = (
    architectures.ROBERTA,
    architectures.ROBERTA_BASELINE,
    architectures.LM,
    architectures.LM_BASELINE,
)
# What says how many positions a masked model has: the first that is given.
POSITIONS = "max_positions", "tokens_per_sample", "max_source_positions"
# Parameters with a row for each type or position, of which fairseq or the model itself says more.
OF_TYPES = "embed_tokens|embed_positions|output_projection|embed_out|lm_head|adaptive|version|float"


def refuse_other_model(
    path: Path, state: dict[str, Any], given: Namespace, folder: Path | None, is_begun_anew: bool
) -> None:
    """Refuse to go on with another network than a checkpoint's.

    Of a scheme with the same parameters fairseq would notice nothing. Where training begins anew
    from the parameters, it may be meant: a warning.

    Args:
        path: of the checkpoint.
        state: what it holds.
        given: the flags, see `command_line.with_defaults`.
        folder: of the data, the first one if there are several.
        is_begun_anew: whether training takes the parameters alone.

    Raises:
        UserError: naming the flags to give.
    """
    if not is_known(given):
        return  # users of other models may mean what fairseq does
    trained = checkpoints.model_arguments(state)
    reason = same_network.other_network(trained, vars(given))
    is_refused = reason and not is_begun_anew
    # A flag of the same architecture says more than the parameters that are missing.
    if not (is_refused and trained["arch"] == given.arch):
        refuse_other_parts(path, state["model"], given, folder)
    if is_refused:
        raise UserError(f"{path} {reason}: give the same flags, or another --save-dir")
    if reason:
        logger.warning("%s %s", path, reason)


def is_known(given: Namespace) -> bool:
    """Whether the flags name an architecture whose models this package registers."""
    return ARCH_MODEL_NAME_REGISTRY.get(given.arch) in architectures.MODELS


def refuse_other_parts(
    path: Path, weights: Mapping[str, Tensor], given: Namespace, folder: Path | None
) -> None:
    """Raise a `UserError` if a checkpoint has other parameters, or of other sizes.

    Args:
        path: of the checkpoint.
        weights: its parameters by name.
        given: the flags, of an architecture that is known; see `command_line.with_defaults`.
        folder: of the data, the first one if there are several.
    """
    pruned = "mha_heads_to_keep", "ffn_blocks_to_remove"
    if any(getattr(given, name, -1) not in (-1, None) for name in pruned):
        return  # fairseq prunes the model before it loads
    if given.task in DICTIONARIES and ARCH_MODEL_NAME_REGISTRY.get(given.arch) in SIZED_BY_DATA:
        classes = getattr(given, "num_classes", -1)
        head = getattr(given, "classification_head_name", checkpoint_sizes.CLASSES_HEAD)
        positions = (getattr(given, name, None) for name in POSITIONS)
        checkpoint_sizes.refuse_other_sizes(
            str(path),
            weights,
            types=types_in(folder, given.task) if folder else None,
            positions=next(filter(None, positions), None),
            classes={head: classes} if classes > 0 else None,
        )
    if ARCH_MODEL_NAME_REGISTRY.get(given.arch) == architectures.BERT:
        refuse_other_layers(path, weights, given)
        refuse_other_parameters(path, weights, given)
    else:
        own, theirs = shapes_by_name(weights, given)
        # Before sizes, which are of no use in another one.
        refuse_other_architecture(path, given.arch, own, theirs)
        refuse_other_layers(path, weights, given)
        refuse_other_shapes(path, own, theirs)


def refuse_other_layers(path: Path, weights: Mapping[str, Tensor], args: Namespace) -> None:
    """Raise a `UserError` if a checkpoint has more or fewer layers, or of other widths.

    Args:
        path: of the checkpoint.
        weights: its parameters by name.
        args: of the model, see `command_line.with_defaults`.
    """
    for side in ("encoder", "decoder"):
        found = layers_of(weights, side)
        own = {name: getattr(args, f"{side}_{name}".replace("-", "_"), None) for name in found}
        if getattr(args, f"{side}_layers_to_keep", None):  # fairseq drops the others
            own["layers"] = None
        others = {name: size for name, size in found.items() if own[name] not in (None, size)}
        if others:
            flags = [f"--{side}-{name} {size}" for name, size in others.items()]
            if "embed-dim" in others:  # which does not say among how many it is divided
                flags.append(f"and its own --{side}-attention-heads")
            raise UserError(
                f"{path} has other layers than the model: give {' '.join(flags)}, or another --arch"
            )


def layers_of(weights: Mapping[str, Tensor], side: str) -> dict[str, int]:
    """The sizes of a side's layers, such as {"layers": 6, "embed-dim": 512, "ffn-embed-dim": 2048}.

    The keys are the ends of flags; {} if there are no layers. They are read from `fc1.weight`,
    (ffn-embed-dim, embed-dim), which each layer has.
    """
    name = re.compile(rf"{side}\.(sentence_encoder\.)?layers\.\d+\.fc1\.weight")
    found = [tensor.shape for key, tensor in weights.items() if name.fullmatch(key)]
    if not found:
        return {}
    return {"layers": len(found), "embed-dim": found[0][1], "ffn-embed-dim": found[0][0]}


def refuse_other_parameters(path: Path, weights: Mapping[str, Tensor], args: Namespace) -> None:
    """Raise a `UserError` if the authors' BERT of these flags has other parameters than the file.

    Args:
        path: of the checkpoint.
        weights: its parameters by name.
        args: of the model, see `command_line.with_defaults`.
    """
    model = shapes_of_model(args)
    if not hasattr(model, "refuse_other_parameters"):
        return
    try:
        with command_line.unlogged():
            model.refuse_other_parameters({**weights})
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def refuse_other_architecture(path: Path, arch: str, own: Shapes, theirs: Shapes) -> None:
    """Raise a `UserError` if a checkpoint has parameters of other names than the model.

    In how many layers does not matter here. Nor do classification heads: fairseq puts new ones on.

    Args:
        path: of the checkpoint.
        arch: the model's architecture.
        own: the shapes of the model, see `shapes_by_name`.
        theirs: those of the checkpoint.
    """
    lacking, further = own.keys() - theirs, theirs.keys() - own
    for names, verb, end in ((lacking, "lacks", "has"), (further, "has", "does not have")):
        if names:
            raise UserError(
                f"{path} has another network than {arch} with these flags: it {verb} "
                f"'{min(names)}', which the model {end}; give its own --arch and flags"
            )


def refuse_other_shapes(path: Path, own: Shapes, theirs: Shapes) -> None:
    """Raise a `UserError` if a checkpoint has a parameter of another shape than the model.

    Rows of types, positions and classes do not matter here.

    Args:
        path: of the checkpoint.
        own: the shapes of the model, see `shapes_by_name`.
        theirs: those of the checkpoint.
    """
    for name in own:
        if not (theirs[name] & own[name] or re.search(OF_TYPES, name)):
            sizes = (" x ".join(map(str, min(x[name]))) for x in (theirs, own))
            raise UserError(
                f"{path} has another network than the flags ask for: '{name}' is {next(sizes)} "
                f"there, and {next(sizes)} in the model; give the flags that it was trained with"
            )


def shapes_by_name(weights: Mapping[str, Tensor], args: Namespace) -> tuple[Shapes, Shapes]:
    """The shapes of a model's parameters and of a checkpoint's; those of all layers as of one.

    Nothing where fairseq could not build the model. Classification heads are left out.
    """
    model = shapes_of_model(args)
    if model is None:
        return {}, {}
    renamed = {**weights}
    with command_line.unlogged():
        model.upgrade_state_dict(renamed)  # from the names of older versions of fairseq
    found: tuple[Shapes, Shapes] = ({}, {})
    for shapes, parameters in zip(found, (model.state_dict(), renamed), strict=True):
        for name, tensor in parameters.items():
            if not name.startswith(checkpoint_sizes.HEADS):
                key = re.sub(r"layers\.\d+", "layers.N", name)
                shapes.setdefault(key, set()).add(tuple(tensor.shape))
    return found


def shapes_of_model(args: Namespace) -> Any:
    """The model that fairseq-train would build, whose parameters take no memory.

    None where fairseq could not build it, which it will say itself.
    """
    try:
        with command_line.unlogged(), redirect_stderr(io.StringIO()):
            cfg = convert_namespace_to_omegaconf(args)
            task = tasks.setup_task(cfg.task)
            with FakeTensorMode():
                return task.build_model(cfg.model)
    except UserError:
        raise
    except (Exception, SystemExit):
        return None


def types_in(data: Path, task: str) -> int | None:
    """How many types a task's dictionary has; None if there is no file, which fairseq will say."""
    path = data / DICTIONARIES[task]
    if not path.is_file():
        return None
    dictionary = Dictionary.load(str(path))
    if checkpoints.KIND_OF_TASK[task] == "masked":
        dictionary.add_symbol("<mask>")
    return len(dictionary)
