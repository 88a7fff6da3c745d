"""A checkpoint that training is to start from, and that does not fit the model.

fairseq drops a classification head for another number of classes, with a warning, and trains a new
one. It answers another dictionary, number of positions, other layers or another architecture with a
traceback. All of this can go when `test_fairseq_drops_a_head_of_other_classes` fails.

Where training starts from the authors' BERT, fairseq hides each of the model's sentences behind two
tracebacks. `refuse_other_parameters` can go when
`test_fairseq_hides_what_a_model_says_of_a_checkpoint` fails.
"""

import io
import logging
import re
from argparse import ArgumentError, ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from fairseq import options, tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from torch import Tensor
from torch._subclasses import FakeTensorMode

from macaron_fairseq.common.errors import UserError

HEADS = "classification_heads."  # how the names of their parameters begin
HEAD = "sentence_classification_head"  # fairseq's default
# The parameters that have a row for each type of the dictionary, and for each position.
CAUSAL_TYPES = "decoder.embed_tokens.weight"
MASKED_TYPES = "encoder.sentence_encoder.embed_tokens.weight"
POSITIONS = "encoder.sentence_encoder.embed_positions.weight"
# Architectures of this package; others' users may mean what fairseq does.
OURS = "macaron_(roberta|transformer_lm)|(roberta|transformer_lm)(_.*)?_pre_norm$"
TRANSLATION = "macaron_transformer|transformer(_.*)?_pre_norm$"  # and language models
# Parameters with a row for each type or position, of which fairseq or the model itself says more.
OF_TYPES = "embed_tokens|embed_positions|output_projection|embed_out|lm_head|adaptive|version|float"
AUTHORS = "transformer_(bert|classifier)_"  # whose files have other names
# How many positions a model has where no flag says it, by the task.
DEFAULTS = {"masked_lm": 1024, "sentence_prediction": 512}
# Where in a data folder the dictionary of a task lies.
DICTIONARIES = {
    "language_modeling": "dict.txt",
    "masked_lm": "dict.txt",
    "sentence_prediction": "input0/dict.txt",
}


def refuse_other(
    path: Path, weights: Mapping[str, Tensor], flags: Sequence[str], data: Path | None = None
) -> None:
    """Raise a `UserError` if a checkpoint has other sizes than flags and data ask for.

    It names the flags to give.

    Args:
        path: of the checkpoint.
        weights: its parameters by name.
        flags: those of fairseq-train.
        data: the folder of the data, the first one if there are several.
    """
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("arch", "task"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--classification-head-name", default=HEAD)
    for name in ("num-classes", "max-positions", "tokens-per-sample"):
        parser.add_argument(f"--{name}", type=int)
    try:
        args, _ = parser.parse_known_args(flags)
    except ArgumentError:  # fairseq will say it
        return
    if args.task in DICTIONARIES and re.match(OURS, args.arch or ""):
        refuse_other_sizes(
            str(path),
            weights,
            types=types_in(data, args.task) if data else None,
            positions=args.max_positions or args.tokens_per_sample or DEFAULTS.get(args.task),
            classes={args.classification_head_name: args.num_classes},
        )
    if is_known(args.arch) and (model := completed(flags)):
        is_ours = not re.match(AUTHORS, args.arch)
        if is_ours:  # before sizes, which are of no use in another one
            refuse_other_architecture(path, weights, model)
        refuse_other_layers(path, weights, model)
        if is_ours:
            refuse_other_shapes(path, weights, model)
        else:
            refuse_other_parameters(path, weights, model)


def completed(flags: Sequence[str]) -> Namespace | None:
    """What fairseq-train makes of its flags; None where it refuses them, which it will say."""
    try:
        with unlogged(), redirect_stderr(io.StringIO()):
            return options.parse_args_and_arch(options.get_training_parser(), [*flags])
    except (Exception, SystemExit):  # the second of the parser
        return None


def refuse_other_layers(path: Path, weights: Mapping[str, Tensor], args: Namespace) -> None:
    """Raise a `UserError` if a checkpoint has more or fewer layers, or of other widths.

    Args:
        path: of the checkpoint.
        weights: its parameters by name.
        args: of the model, see `completed`.
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
    """The sizes of a side's layers, by the ends of their flags; none where it has no layers.

    Each layer has an FFN of this name, whose first matrix has all of them.
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
        args: of the model, see `completed`.
    """
    model = shapes_of_model(args)
    if not hasattr(model, "refuse_other_parameters"):
        return
    try:
        with unlogged():
            model.refuse_other_parameters({**weights})
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def refuse_other_architecture(path: Path, weights: Mapping[str, Tensor], args: Namespace) -> None:
    """Raise a `UserError` if a checkpoint has parameters of other names than the model.

    In how many layers does not matter here. Nor do classification heads: fairseq puts new ones on.

    Args:
        path: of the checkpoint.
        weights: its parameters by name.
        args: of the model, see `completed`.
    """
    own, theirs = shapes_by_name(weights, args)
    lacking, further = own.keys() - theirs, theirs.keys() - own
    for names, verb, end in ((lacking, "lacks", "has"), (further, "has", "has not")):
        if names:
            raise UserError(
                f"{path} is of another architecture than {args.arch}: it {verb} '{min(names)}', "
                f"which the model {end}; give its own --arch"
            )


def refuse_other_shapes(path: Path, weights: Mapping[str, Tensor], args: Namespace) -> None:
    """Raise a `UserError` if a checkpoint has a parameter of another shape than the model.

    Rows of types, positions and classes do not matter here.

    Args:
        path: of the checkpoint.
        weights: its parameters by name.
        args: of the model, see `completed`.
    """
    own, theirs = shapes_by_name(weights, args)
    for name in own:
        if not (theirs[name] & own[name] or re.search(OF_TYPES, name)):
            sizes = (" x ".join(map(str, min(x[name]))) for x in (theirs, own))
            raise UserError(
                f"{path} has another network than the flags ask for: '{name}' is {next(sizes)} "
                f"there, and {next(sizes)} in the model; give the flags that it was trained with"
            )


def shapes_by_name(
    weights: Mapping[str, Tensor], args: Namespace
) -> tuple[dict[str, set[tuple[int, ...]]], dict[str, set[tuple[int, ...]]]]:
    """The shapes of a model's parameters and of a checkpoint's; those of all layers as of one.

    Nothing where fairseq could not build the model. Classification heads are left out.
    """
    model = shapes_of_model(args)
    if model is None:
        return {}, {}
    renamed = {**weights}
    with unlogged():
        model.upgrade_state_dict(renamed)  # from the names of older versions of fairseq
    found: tuple[dict[str, set[tuple[int, ...]]], ...] = ({}, {})
    for shapes, parameters in zip(found, (model.state_dict(), renamed), strict=True):
        for name, tensor in parameters.items():
            if not name.startswith(HEADS):
                key = re.sub(r"layers\.\d+", "layers.N", name)
                shapes.setdefault(key, set()).add(tuple(tensor.shape))
    return found[0], found[1]


def shapes_of_model(args: Namespace) -> Any:
    """The model that fairseq-train would build, whose parameters take no memory.

    None where fairseq could not build it, which it will say itself.
    """
    try:
        with unlogged(), redirect_stderr(io.StringIO()):
            cfg = convert_namespace_to_omegaconf(args)
            task = tasks.setup_task(cfg.task)
            with FakeTensorMode():
                return task.build_model(cfg.model)
    except UserError:
        raise
    except (Exception, SystemExit):
        return None


@contextmanager
def unlogged() -> Iterator[None]:
    """Log nothing: fairseq-train will do the same once more, and log it."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)


def refuse_other_sizes(
    name: str,
    weights: Mapping[str, Tensor],
    types: int | None = None,
    positions: int | None = None,
    classes: Mapping[str, int | None] | None = None,
) -> None:
    """Raise a `UserError` if parameters are of other sizes; None stands for any size.

    Args:
        name: what to call the checkpoint.
        weights: its parameters by name.
        types: how many the dictionary has, the special symbols included.
        positions: how many the model has.
        classes: how many each head has, by its name.
    """
    for embedding in (CAUSAL_TYPES, MASKED_TYPES):
        found = rows(weights, embedding)
        if None not in (found, types) and found != types:
            raise UserError(
                f"{name} embeds {found} types, but the dictionary has {types} with its special "
                "symbols: use the dict.txt that the model was trained with"
            )
    for head, wanted in (classes or {}).items():
        found = rows(weights, of_head(head))
        if None not in (found, wanted) and found != wanted:
            raise UserError(
                f"the head '{head}' of {name} has {found} classes and the task {wanted}: give "
                f"--num-classes {found}, or train a new head under another "
                "--classification-head-name"
            )
    found = positions_of(weights)
    if None not in (found, positions) and found != positions:
        raise UserError(
            f"{name} has {found} positions and the model {positions}: give --max-positions {found}"
        )


def is_known(arch: str | None) -> bool:
    """Whether an architecture is this package's or the authors'; fairseq is left the others."""
    return re.match(f"{OURS}|{TRANSLATION}|{AUTHORS}", arch or "") is not None


def is_language_model(arch: str | None) -> bool:
    """Whether an architecture is one of the language models here, or of the authors'."""
    return re.match(f"{OURS}|{AUTHORS}", arch or "") is not None


def types_in(data: Path, task: str) -> int | None:
    """How many types a task's dictionary has; None if there is no file, which fairseq will say."""
    path = data / DICTIONARIES[task]
    if not path.is_file():
        return None
    dictionary = Dictionary.load(str(path))
    if task in DEFAULTS:
        dictionary.add_symbol("<mask>")
    return len(dictionary)


def rows(weights: Mapping[str, Tensor], name: str) -> int | None:
    """How many rows a parameter has; None if there is none of that name."""
    return len(weights[name]) if name in weights else None


def positions_of(weights: Mapping[str, Tensor]) -> int | None:
    """How many positions a masked language model has learnt; fairseq's first rows are unused."""
    found = rows(weights, POSITIONS)
    return None if found is None else found - Dictionary().pad() - 1


def of_head(name: str) -> str:
    """The parameter that has a row for each class."""
    return f"{HEADS}{name}.out_proj.weight"
