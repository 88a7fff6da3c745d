"""Another network than that of the checkpoint that training is to start from.

Another scheme or sub-step with the same parameters only this package knows. Other parameters are
checked in `restored_parameters`, the optimizer's state in `restored_optimizer`.
"""

import logging
from argparse import Namespace
from pathlib import Path
from typing import Any

from fairseq.models import ARCH_MODEL_NAME_REGISTRY

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.model import architectures, same_network
from macaron_fairseq.preflight import restored_parameters

logger = logging.getLogger(__name__)


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
    if ARCH_MODEL_NAME_REGISTRY.get(given.arch) not in architectures.MODELS:
        return  # users of other models may mean what fairseq does
    trained = checkpoints.model_arguments(state)
    reason = same_network.other_network(trained, vars(given))
    is_refused = reason and not is_begun_anew
    # A flag of the same architecture says more than the parameters that are missing.
    if not (is_refused and trained["arch"] == given.arch):
        restored_parameters.refuse_other_parts(path, state["model"], given, folder)
    if is_refused:
        raise UserError(f"{path} {reason}: give the same flags, or another --save-dir")
    if reason:
        logger.warning("%s %s", path, reason)
