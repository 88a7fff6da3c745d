"""A model before training: the architecture and arguments of a checkpoint, weights of a seed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from fairseq import checkpoint_utils, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from macaron_fairseq.analysis import models
from macaron_fairseq.analysis.models import TrainedModel
from macaron_fairseq.analysis.sentences import Data
from macaron_fairseq.common.errors import UserError


def like(trained: TrainedModel, data: Data, seed: int) -> TrainedModel:
    """The model that `fairseq-train --seed SEED` starts from with a checkpoint's arguments.

    Args:
        trained: a model of that checkpoint, see `models.load`; its path is kept.
        data: of the models.
        seed: of PyTorch and NumPy, as fairseq-train sets it before it builds a model.

    Raises:
        UserError: if it starts from embeddings in a file that is gone.
    """
    state = checkpoint_utils.load_checkpoint_to_cpu(str(trained.path))
    if state.get("args") is not None:
        arguments = convert_namespace_to_omegaconf(state["args"]).model
    else:
        arguments = state["cfg"].model
    for side in ("encoder", "decoder"):
        path = getattr(arguments, f"{side}_embed_path", None)
        if path and not Path(path).is_file():
            raise UserError(
                f"{trained.path} began with the embeddings in {path}, which is not a file: put it "
                "there, or leave out --initial"
            )
    task = trained.engine.task if trained.engine else models.language_task(data)
    np.random.seed(seed)
    utils.set_torch_seed(seed)
    model = task.build_model(arguments)
    device = next(trained.model.parameters()).device
    model.to(device)
    model.eval()
    model.requires_grad_(False)
    return replace(trained, model=model, engine=None, sha256="")
