"""`--loss-kernel liger`. Liger-Kernel itself runs in Triton's interpreter, where both are there."""

import sys
from types import SimpleNamespace

import pytest
import torch
from commands import apply
from criteria import EPSILON, assert_same, outcome, sample
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from small import SMALL, build
from torch import nn

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.fast import liger
from macaron_fairseq.fast.criterion import ChunkedLabelSmoothedCrossEntropyCriterion
from macaron_fairseq.preflight import checks
from macaron_fairseq.preflight import liger as refusals

FLAGS = ["--criterion", "chunked_label_smoothed_cross_entropy", "--loss-kernel", "liger"]


class PyTorchs:
    """Liger's loss as its documentation has it, by PyTorch's own cross-entropy."""

    def __init__(self, label_smoothing, reduction, accum_dtype):
        self.options = {"label_smoothing": label_smoothing, "reduction": reduction}

    def __call__(self, weight, features, target):
        return nn.functional.cross_entropy(features @ weight.t(), target, **self.options)


@pytest.fixture(params=["pytorch", "liger"])
def kernel(request, monkeypatch):
    if request.param == "pytorch":
        module = SimpleNamespace(LigerFusedLinearCrossEntropyLoss=PyTorchs)
        monkeypatch.setitem(sys.modules, "liger_kernel", SimpleNamespace(transformers=module))
        monkeypatch.setitem(sys.modules, "liger_kernel.transformers", module)
        return
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # before it is imported
    for name in refusals.NEEDED:
        pytest.importorskip(name)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(
    "options",
    [
        {"label_smoothing": EPSILON},
        {"label_smoothing": 0.0},
        {"label_smoothing": 0.3, "report_accuracy": True, "sentence_avg": True},
        {"ignore_prefix_size": 2},
    ],
)
def test_it_equals_fairseqs(options):
    model = build("macaron_transformer_tiny", *SMALL)
    data = sample()
    ours = outcome(
        ChunkedLabelSmoothedCrossEntropyCriterion, model, data, **options, loss_kernel="liger"
    )
    assert_same(ours, outcome(LabelSmoothedCrossEntropyCriterion, model, data, **options))


@pytest.mark.usefixtures("kernel")
def test_a_batch_of_padding_alone_is_zero():
    model = build("macaron_transformer_tiny", *SMALL)
    data = sample()
    data["target"].fill_(1)
    ours = outcome(ChunkedLabelSmoothedCrossEntropyCriterion, model, data, loss_kernel="liger")
    assert ours.loss == 0
    assert not any(x.any() for x in ours.gradients.values())


def test_where_it_cannot_run_it_is_refused_before_training(monkeypatch):
    with pytest.raises(UserError, match="--loss-kernel liger runs on a GPU: drop it"):
        apply(checks.check, ["fairseq-train", "data", "--cpu", *FLAGS])
    apply(checks.check, ["fairseq-train", "data", "--cpu", *FLAGS[:2], "--loss-kernel", "chunks"])
    monkeypatch.setattr(refusals, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="needs liger_kernel and triton: pip install liger-kernel"):
        refusals.refuse_where_impossible(on_gpu=True)
    monkeypatch.setattr(refusals, "find_spec", lambda name: "found")
    refusals.refuse_where_impossible(on_gpu=True)


@pytest.mark.parametrize("kernel", ["liger"], indirect=True)
@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(("dtype", "most"), [(torch.float16, 1e-2), (torch.bfloat16, 3e-2)])
def test_half_precision_is_within_what_the_gpus_check_allows(dtype, most):
    torch.manual_seed(1)
    exact = torch.randn(300, 32).to(dtype).double(), torch.randn(64, 32).to(dtype).double()
    target = torch.randint(64, (300,))
    own = [x.to(dtype).requires_grad_() for x in exact]
    loss, nll = liger.label_smoothed_nll_loss(*own, target, EPSILON)
    loss.backward()
    for x in exact:
        x.requires_grad_()
    log_p = (exact[0] @ exact[1].t()).log_softmax(1)
    right = -log_p.gather(1, target.unsqueeze(1)).sum()
    others = -log_p.sum() - right
    expected = (1 - EPSILON) * right + EPSILON / 63 * others
    expected.backward()
    assert float(loss) == pytest.approx(float(expected), rel=most)
    assert float(nll) == pytest.approx(float(right), rel=most)
    for mine, true in zip(own, exact, strict=True):
        assert (mine.grad.double() - true.grad).norm() < most * true.grad.norm()
