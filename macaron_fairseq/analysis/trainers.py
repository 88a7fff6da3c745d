"""fairseq's trainer in this process, to measure its updates."""

import contextlib
import io
import re
import warnings
from collections.abc import Iterator, Sequence

from fairseq import options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.trainer import Trainer
from omegaconf import DictConfig

from macaron_fairseq.common import names, signals
from macaron_fairseq.common.errors import UserError


def build(flags: Sequence[str]) -> Trainer:
    """The trainer that fairseq-train makes of these flags: `trainer` of their `configuration`.

    Raises:
        UserError: as either of them does.
    """
    return trainer(configuration(flags))


def configuration(flags: Sequence[str]) -> DictConfig:
    """What fairseq-train reads from these flags, for this process alone.

    Import `macaron_fairseq.plugin` before, which makes fairseq know this package's models.

    Raises:
        UserError: if no model or optimizer is named, or fairseq does not know a flag or its value.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of hydra, about itself
        parser = options.get_training_parser()
        with one_sentence():
            arch = parser.parse_known_args(flags)[0].arch
        if arch is None:  # which fairseq raises no text for
            raise UserError("fairseq-train needs a model, too: add --arch macaron_transformer")
        with one_sentence():
            args = options.parse_args_and_arch(parser, [*flags, "--num-workers", "0"])
        cfg = convert_namespace_to_omegaconf(args)
    if cfg.optimizer is None:
        raise UserError("fairseq-train needs an optimizer, too: add --optimizer adam, for example")
    # Or fairseq would ask for the other processes, which it counts as it counts GPUs.
    cfg.distributed_training.distributed_world_size = 1
    return cfg


def trainer(cfg: DictConfig) -> Trainer:
    """The trainer of a configuration, whose model's first parameters come from --seed.

    Raises:
        UserError: if the data folder does not exist or lacks something.
    """
    utils.set_torch_seed(cfg.common.seed)
    try:
        task = tasks.setup_task(cfg.task)
    except FileNotFoundError as error:
        raise UserError(
            f"there is no {error.filename or error}: name a folder that fairseq-preprocess wrote"
        ) from error
    except Exception as error:
        if "infer language pair" not in str(error):
            raise
        raise UserError(
            f"{cfg.task.data} holds no pair of languages: name a folder that fairseq-preprocess "
            "wrote, or --source-lang and --target-lang"
        ) from error
    return Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))


@contextlib.contextmanager
def one_sentence() -> Iterator[None]:
    """Where fairseq's parser refuses a flag, its reason is raised, and not its usage printed."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            yield
    except SystemExit as end:
        # Ours says why; --help; a signal.
        if isinstance(end, UserError) or end.code in (None, 0, *signals.STATUSES):
            raise
        reason = said.getvalue().rpartition("error: ")[2].strip()
        if unknown := re.match(r"argument --arch/-a: invalid choice: '(.*?)'", reason):
            meant = names.question(unknown[1], ARCH_MODEL_REGISTRY)
            raise UserError(f"fairseq has no architecture {unknown[1]}{meant}") from None
        raise UserError(f"fairseq-train would refuse this: {reason}") from None
