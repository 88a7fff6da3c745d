"""`--macaron-compile`: layers whose training PyTorch compiles."""

import logging
import shutil

import pytest
import torch
from commands import apply
from small import NO_DROPOUT, SMALL, batch, build

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.fast import compiling
from macaron_fairseq.preflight import checks
from macaron_fairseq.preflight import compiling as refusals

FLAG = "--macaron-compile"
TRAIN = ["fairseq-train", "data", "--cpu", FLAG]
# The second is shorter: a slice of the first one's mask, which is another kind.
SHAPES = [((9, 8), (5, 3)), ((6, 7), (4, 5), (5, 5)), ((10, 12), (9, 5))]
ONE_LAYER = [*SMALL, "--encoder-layers", "1", "--decoder-layers", "1"]


def gradients(model, sizes):
    """Of all parameters, for the mean square of the output."""
    y, _ = model(*batch(sizes=sizes))
    return torch.autograd.grad(y.square().mean(), list(model.parameters()))


@pytest.mark.slow
def test_new_shapes_are_not_compiled_anew_and_gradients_are_the_same(monkeypatch):
    """By a compiler that counts what it is given, and runs it as it is."""
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(compiling, "BACKEND", count)
    # PyTorch logs each of its steps, which shows where a test catches all that is logged.
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)
    plain, compiled = (
        build("macaron_transformer", *ONE_LAYER, *NO_DROPOUT, *flags).train()
        for flags in ([], [FLAG])
    )
    counts = []
    for sizes in SHAPES:
        expected = gradients(plain, sizes)
        for one, other in zip(gradients(compiled, sizes), expected, strict=True):
            assert (one - other).abs().max() <= 1e-6 * max(x.abs().max() for x in expected)
        counts.append(len(graphs))
    assert counts == [2, 3, 3]


def test_only_training_is_compiled(monkeypatch):
    def refuse(graph, inputs):
        raise AssertionError

    monkeypatch.setattr(compiling, "BACKEND", refuse)
    plain, compiled = (build("macaron_transformer", *SMALL, *flags) for flags in ([], [FLAG]))
    assert plain.state_dict().keys() == compiled.state_dict().keys()
    with torch.no_grad():
        assert torch.equal(plain(*batch())[0], compiled(*batch())[0])


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--checkpoint-activations"], "--checkpoint-activations do not go together"),
        (["--offload-activations"], "--offload-activations do not go together"),
        (["--macaron-kernels", "fairseq"], "with --macaron-kernels fairseq they are fairseq's"),
        (["--quant-noise-pq", "0.1"], "with --quant-noise they are fairseq's"),
        (["--ddp-backend", "fully_sharded"], "does not go with --ddp-backend fully_sharded"),
    ],
)
def test_what_it_does_not_go_with(flags, sentence):
    with pytest.raises(UserError, match=sentence):
        apply(checks.check, [*TRAIN, *flags])


def test_without_a_compiler_it_says_so_before_training(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UserError, match=r"there is no C\+\+ compiler.*: drop it"):
        apply(checks.check, TRAIN)
    apply(checks.check, ["fairseq-train", "data", "--cpu"])
    monkeypatch.setattr(refusals, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="Triton is not installed"):
        refusals.refuse_where_impossible(1)
    monkeypatch.setattr(refusals, "find_spec", lambda name: "found")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (6, 1))
    with pytest.raises(UserError, match=r"older than compute capability 7\.0"):
        refusals.refuse_where_impossible(1)
    monkeypatch.setattr("torch._dynamo.is_dynamo_supported", lambda: False)
    with pytest.raises(UserError, match="compiles nothing for this version of Python"):
        refusals.refuse_where_impossible(0)


def test_several_gpus_are_asked_by_their_own_processes(monkeypatch):
    """Asking starts CUDA, which the process that starts the others must not."""
    asked = []
    monkeypatch.setattr(refusals, "find_spec", lambda name: "found")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: asked.append(1) or (8, 0))
    refusals.refuse_where_impossible(2)
    assert not asked
    monkeypatch.setattr("multiprocessing.parent_process", lambda: "another")
    refusals.refuse_where_impossible(2)
    assert asked
