"""What the tests of distillation share: a student, and teachers that are saved as checkpoints."""

from argparse import Namespace

import torch
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY

from helpers.small import NO_DROPOUT, SMALL, arguments, build, dictionary

STUDENT = "macaron_transformer_tiny"
FLAGS = [*SMALL, *NO_DROPOUT, "--share-all-embeddings"]
LARGER = [*FLAGS, "--encoder-embed-dim", "24", "--decoder-embed-dim", "24"]


def translation(types=60, source="en", target="de", name="translation"):
    """A whole task, fairseq's or this package's, which loading a teacher needs."""
    d = dictionary(types)
    settings = TASK_DATACLASS_REGISTRY[name](source_lang=source, target_lang=target)
    return TASK_REGISTRY[name](settings, d, d)


def save(path, *flags, arch=STUDENT, seed=2, types=60, for_task=None, change=None, **task_settings):
    """A checkpoint as fairseq-train writes it, and the model in it."""
    for_task = for_task or translation(types)
    model = build(arch, *flags, for_task=for_task, seed=seed)
    if change:
        with torch.no_grad():
            change(model)
    state = {
        "args": None,
        "cfg": {
            "model": Namespace(**vars(arguments(arch, *flags))),
            "task": {"_name": "translation", **task_settings},
        },
        "model": model.state_dict(),
        "optimizer_history": [
            {"optimizer_name": "FairseqAdam", "lr_scheduler_state": {}, "num_updates": 1}
        ],
        "extra_state": {"train_iterator": {"epoch": 1}},
    }
    torch.save(state, path)
    return model


def learnt(model, criterion, data):
    """Loss, what is logged and all gradients of a batch."""
    model.zero_grad()
    criterion.zero_grad()
    loss, _, log = criterion(model, data)
    loss.backward()
    gradients = [p.grad.clone() for x in (model, criterion) for p in x.parameters()]
    return [loss.detach(), *map(torch.as_tensor, log.values()), *gradients]


def asked(criterion):
    """The sources of each pass of the teachers, as a list that grows."""
    passes = []

    def counted(forward):
        def one_pass(*args, **kwargs):
            passes.append(kwargs["src_tokens"])
            return forward(*args, **kwargs)

        return one_pass

    for model in criterion.teachers.models:  # a hook would want its logits, and get another path
        model.forward = counted(model.forward)
    return passes
