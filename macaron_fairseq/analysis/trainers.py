"""fairseq's trainer in this process, to measure its updates."""

import warnings
from collections.abc import Sequence

from fairseq import options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer

from macaron_fairseq.common.errors import UserError


def build(flags: Sequence[str]) -> Trainer:
    """The trainer that fairseq-train makes of these flags.

    The model's first parameters come from --seed. Import `macaron_fairseq.plugin` before, which
    makes fairseq know this package's models.

    Raises:
        UserError: if no model or optimizer is named, or the data folder does not exist or lacks
            something.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of hydra, about itself
        parser = options.get_training_parser()
        if parser.parse_known_args(flags)[0].arch is None:  # which fairseq raises no text for
            raise UserError("fairseq-train needs a model, too: add --arch macaron_transformer_base")
        args = options.parse_args_and_arch(parser, [*flags, "--num-workers", "0"])
        cfg = convert_namespace_to_omegaconf(args)
    if cfg.optimizer is None:
        raise UserError("fairseq-train needs an optimizer, too: add --optimizer adam, for example")
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
