"""fairseq's trainer in this process, to measure its updates."""

import logging
import warnings
from collections.abc import Sequence

from fairseq import options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer

from macaron_fairseq.common.errors import UserError


def build(flags: Sequence[str]) -> Trainer:
    """The trainer that fairseq-train makes of these flags; its INFO messages are not shown.

    Its first update starts the model's parameters: they come from --seed. The package's models are
    known once `macaron_fairseq.plugin` is imported.

    Raises:
        UserError: if the data folder does not exist, or a file that it must have.
    """
    logging.disable(logging.INFO)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of hydra, about itself
        parser = options.get_training_parser()
        args = options.parse_args_and_arch(parser, [*flags, "--num-workers", "0"])
        cfg = convert_namespace_to_omegaconf(args)
    utils.set_torch_seed(cfg.common.seed)
    try:
        task = tasks.setup_task(cfg.task)
    except FileNotFoundError as error:
        raise UserError(
            f"there is no {error.filename or error}: name a folder that fairseq-preprocess wrote"
        ) from error
    return Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
