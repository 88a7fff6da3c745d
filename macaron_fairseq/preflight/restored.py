"""A checkpoint that training is to start from, and that does not fit the flags.

Another scheme or sub-step with the same parameters only this package knows, so that check stays.
The rest is what fairseq answers with a traceback: another dictionary, number of positions,
architecture or optimizer, other layers. Each can go when fairseq says it in a sentence.

fairseq drops a classification head for another number of classes, with a warning, and trains a new
one: see `test_fairseq_drops_a_head_of_other_classes`. Where training starts from the authors' BERT,
it hides each of the model's sentences behind two tracebacks. `refuse_other_parameters` can go when
`test_fairseq_hides_what_a_model_says_of_a_checkpoint` fails.
"""

import io
import logging
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from fairseq import options, tasks
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from fairseq.optim import OPTIMIZER_REGISTRY
from torch import Tensor
from torch._subclasses import FakeTensorMode

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat import checkpoints, pretrained
from macaron_fairseq.model import architectures, same_network
from macaron_fairseq.preflight.missing import DICTIONARIES

logger = logging.getLogger(__name__)

Shapes = dict[str, set[tuple[int, ...]]]  # of parameters, by name

LANGUAGE_MODELS = (
    architectures.ROBERTA,
    architectures.ROBERTA_BASELINE,
    architectures.LM,
    architectures.LM_BASELINE,
)
TRANSLATION = architectures.MODEL, architectures.BASELINE
HEAD = "sentence_classification_head"  # fairseq's default
# What says how many positions a masked model has: the first that is given.
POSITIONS = "max_positions", "tokens_per_sample", "max_source_positions"
# Parameters with a row for each type or position, of which fairseq or the model itself says more.
OF_TYPES = "embed_tokens|embed_positions|output_projection|embed_out|lm_head|adaptive|version|float"


def completed(flags: Sequence[str]) -> Namespace | None:
    """What fairseq-train makes of its flags; None where it refuses them, which it will say."""
    try:
        with unlogged(), redirect_stderr(io.StringIO()):
            return options.parse_args_and_arch(options.get_training_parser(), [*flags])
    except (Exception, SystemExit):  # the second of the parser
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


def refuse_other_model(
    path: Path, state: dict[str, Any], given: Namespace, folder: Path | None, is_begun_anew: bool
) -> None:
    """Refuse to go on with another network than a checkpoint's.

    Of a scheme with the same parameters fairseq would notice nothing. Where training begins anew
    from the parameters, it may be meant: a warning.

    Args:
        path: of the checkpoint.
        state: what it holds.
        given: the flags, see `completed`.
        folder: of the data, the first one if there are several.
        is_begun_anew: whether training takes the parameters alone.

    Raises:
        UserError: naming the flags to give.
    """
    if model_of(given.arch) not in (*LANGUAGE_MODELS, *TRANSLATION, architectures.BERT):
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


def model_of(arch: str | None) -> str | None:
    """The name of an architecture's model, as fairseq knows it."""
    return ARCH_MODEL_NAME_REGISTRY.get(arch)


# --- Its parameters ------------------------------------------------------------------------------


def refuse_other_parts(
    path: Path, weights: Mapping[str, Tensor], given: Namespace, folder: Path | None
) -> None:
    """Raise a `UserError` if a checkpoint has other parameters, or of other sizes.

    Args:
        path: of the checkpoint.
        weights: its parameters by name.
        given: the flags, of an architecture that is known; see `completed`.
        folder: of the data, the first one if there are several.
    """
    if given.task in DICTIONARIES and model_of(given.arch) in LANGUAGE_MODELS:
        classes = getattr(given, "num_classes", -1)
        head = getattr(given, "classification_head_name", HEAD)
        positions = (getattr(given, name, None) for name in POSITIONS)
        pretrained.refuse_other_sizes(
            str(path),
            weights,
            types=types_in(folder, given.task) if folder else None,
            positions=next(filter(None, positions), None),
            classes={head: classes} if classes > 0 else None,
        )
    if model_of(given.arch) == architectures.BERT:
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
                f"{path} is of another architecture than {arch}: it {verb} '{min(names)}', "
                f"which the model {end}; give its own --arch"
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
    with unlogged():
        model.upgrade_state_dict(renamed)  # from the names of older versions of fairseq
    found: tuple[Shapes, Shapes] = ({}, {})
    for shapes, parameters in zip(found, (model.state_dict(), renamed), strict=True):
        for name, tensor in parameters.items():
            if not name.startswith(pretrained.HEADS):
                key = re.sub(r"layers\.\d+", "layers.N", name)
                shapes.setdefault(key, set()).add(tuple(tensor.shape))
    return found


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


def types_in(data: Path, task: str) -> int | None:
    """How many types a task's dictionary has; None if there is no file, which fairseq will say."""
    path = data / DICTIONARIES[task]
    if not path.is_file():
        return None
    dictionary = Dictionary.load(str(path))
    if checkpoints.KINDS[task] == "masked":
        dictionary.add_symbol("<mask>")
    return len(dictionary)


# --- The state of its optimizer -------------------------------------------------------------------


def refuse_other_optimizer(
    path: Path, state: dict[str, Any], args: Namespace, given: Namespace | None
) -> None:
    """Raise a `UserError` if a checkpoint's state of the optimizer is that of another training.

    Args:
        path: of the checkpoint.
        state: what it holds.
        args: of a `CommandLine`.
        given: the same flags and all others, see `completed`.
    """
    if not state.get("last_optimizer_state"):
        return
    if reason := next(other_in_optimizer(state, args, given), ""):
        raise UserError(
            f"{path} has the optimizer's state of another training, since {reason}: add "
            "--reset-optimizer, or give the same flags as before"
        )


def other_in_optimizer(
    state: dict[str, Any], args: Namespace, given: Namespace | None = None
) -> Iterator[str]:
    """Why the state of a checkpoint's optimizer is not for these flags.

    fairseq would end with a traceback. Where a student has maps to its teacher in training or
    before, not in both, it would give the state to other parameters.
    """
    last, before = (state.get("optimizer_history") or [{}])[-1], checkpoints.optimizer_of(state)
    for flag, was, now in (
        ("--criterion", last.get("criterion_name"), name_of(CRITERION_REGISTRY, args.criterion)),
        ("--optimizer", name_of(OPTIMIZER_REGISTRY, before), optimizer_of(args)),
        ("the optimizer's precision", last.get("optimizer_name"), wrapper_of(args)),
    ):
        if was and now and was != now:
            yield f"{flag} was {was}, and now it is {now}"
    learns_maps = getattr(CRITERION_REGISTRY.get(args.criterion), "learns_maps", None)
    if given and learns_maps and learns_maps(given) != bool(state.get("criterion")):
        begins, ends = "begins to follow its teacher's layers", "no longer follows layers"
        yield f"the student now {begins if learns_maps(given) else ends}"


def name_of(registry: dict[str, Any], key: str | None) -> str:
    """The name of a class that fairseq knows, or ""."""
    return registry[key].__name__ if key in registry else ""


def optimizer_of(args: Namespace) -> str:
    """The class that makes the updates; "" if the flags do not tell."""
    return name_of(OPTIMIZER_REGISTRY, args.optimizer)


def wrapper_of(args: Namespace) -> str:
    """The class of the optimizer as fairseq names it in a checkpoint; "" if unknown."""
    if args.ddp_backend == "fully_sharded":
        return ""
    if args.use_bmuf:
        return "FairseqBMUF"
    if args.memory_efficient_fp16 or args.memory_efficient_bf16:
        return "MemoryEfficientFP16Optimizer"
    if args.amp:
        return "AMPOptimizer"
    return "FP16Optimizer" if args.fp16 or args.bf16 else optimizer_of(args)
