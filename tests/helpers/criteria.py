"""What the tests of criteria share: batches, what a criterion returns, how large tensors get."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers.small import batch, task

PAD = 1
EPSILON = 0.1


def biased(model):
    """Give the model's output layer a bias."""
    weight = model.decoder.output_projection.weight
    model.decoder.output_projection = torch.nn.Linear(weight.shape[1], weight.shape[0])


def sample(**kwargs):
    """A batch as fairseq's translation task hands it to a criterion."""
    source, lengths, previous = batch(**kwargs)
    target = torch.full_like(previous, PAD)
    target[:, :-1] = previous[:, 1:]
    last = previous.ne(PAD).sum(1) - 1
    target[torch.arange(len(target)), last] = 2
    return {
        "net_input": {
            "src_tokens": source,
            "src_lengths": lengths,
            "prev_output_tokens": previous,
        },
        "target": target,
        "ntokens": int(target.ne(PAD).sum()),
    }


def cooler(kind):
    """That criterion with log-probabilities of its own."""

    class Cooler(kind):
        def get_lprobs_and_target(self, model, net_output, sample):
            return super().get_lprobs_and_target(model, (net_output[0] / 2, None), sample)

    return Cooler


def make(cls, sentence_avg=False, label_smoothing=EPSILON, for_task=None, **options):
    return cls(for_task or task(), sentence_avg, label_smoothing, **options)


def outcome(cls, model, data, wrapper=None, **options):
    """What a criterion returns, and the gradient of each parameter."""
    model.zero_grad()
    loss, sample_size, log = make(cls, **options)(wrapper or model, data)
    (3 * loss).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    return SimpleNamespace(loss=loss, sample_size=sample_size, log=log, gradients=gradients)


def assert_same(ours, fairseqs, tolerance=2e-6):
    """Gradients are compared relative to the largest of the parameter's."""
    assert ours.sample_size == fairseqs.sample_size
    assert ours.log.keys() == fairseqs.log.keys()
    for name, value in fairseqs.log.items():
        assert float(ours.log[name]) == pytest.approx(float(value), rel=tolerance), name
    assert float(ours.loss) == pytest.approx(float(fairseqs.loss), rel=tolerance)
    for name, expected in fairseqs.gradients.items():
        if name.endswith("k_proj.bias"):  # softmax does not depend on it: only rounding is left
            continue
        error = (ours.gradients[name] - expected).abs().max() / expected.abs().max().clamp(1e-3)
        assert error < tolerance, name
        assert ours.gradients[name].dtype == expected.dtype


class Spy(TorchDispatchMode):
    """What operations return: the most elements, and the most rows of one score for each type."""

    def __init__(self, types=64):
        super().__init__()
        self.types = types
        self.numel = self.rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
                if tensor.shape[-1:] == (self.types,):
                    self.rows = max(self.rows, tensor.numel() // self.types)
        return result
