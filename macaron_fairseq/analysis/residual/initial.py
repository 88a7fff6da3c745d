"""A model before training: the architecture and arguments of a checkpoint, weights of a seed."""

from dataclasses import replace

import numpy as np
from fairseq import checkpoint_utils, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from macaron_fairseq.analysis import models
from macaron_fairseq.analysis.models import TrainedModel
from macaron_fairseq.analysis.sentences import Data


def like(trained: TrainedModel, data: Data, seed: int) -> TrainedModel:
    """The model that `fairseq-train --seed SEED` starts from with a checkpoint's arguments.

    Args:
        trained: a model of that checkpoint, see `models.load`; its path is kept.
        data: of the models.
        seed: of PyTorch and NumPy, as fairseq-train sets it before it builds a model.
    """
    state = checkpoint_utils.load_checkpoint_to_cpu(str(trained.path))
    if state.get("args") is not None:
        arguments = convert_namespace_to_omegaconf(state["args"]).model
    else:
        arguments = state["cfg"].model
    task = trained.engine.task if trained.engine else models.language_task(data)
    np.random.seed(seed)
    utils.set_torch_seed(seed)
    model = task.build_model(arguments)
    device = next(trained.model.parameters()).device
    model.to(device)
    model.eval()
    model.requires_grad_(False)
    return replace(trained, model=model, engine=None)
