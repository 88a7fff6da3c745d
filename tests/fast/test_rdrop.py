"""R-Drop: its formula, fairseq's criterion with the same dropout, and training with it."""

import math

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy_with_rdrop import (
    RdropLabelSmoothedCrossEntropyCriterion,
)
from helpers.criteria import EPSILON, PAD, Spy, assert_same, cooler, make, outcome, sample
from helpers.small import DROPOUT, SMALL, build, dictionary, task
from helpers.toy_corpus import logged, train
from torch import nn

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.fast import chunked_loss, criterion
from macaron_fairseq.fast.chunked_loss import ChunkedLoss, rdrop_loss
from macaron_fairseq.fast.rdrop_criterion import (
    ChunkedRdropLabelSmoothedCrossEntropyCriterion as Ours,
)

pytestmark = pytest.mark.usefixtures("small_chunks")
ARCHITECTURES = ["macaron_transformer_tiny", "transformer_tiny_pre_norm"]
ALPHA = 5.0


# --- the formula ---------------------------------------------------------------------------------


def formula(features, weight, target, alpha=ALPHA):
    """Cross-entropies with the smoothed distribution, and alpha times the mean of both KL."""
    logits = features @ weight.t()
    smooth = torch.full_like(logits, EPSILON / (len(weight) - 1))
    smooth.scatter_(1, target[:, None], 1 - EPSILON)
    cross_entropy = -(smooth * logits.log_softmax(1)).sum()
    p, q = (torch.distributions.Categorical(logits=x) for x in (logits[0::2], logits[1::2]))
    kl = torch.distributions.kl_divergence
    divergence = (kl(p, q) + kl(q, p)).sum() / 2
    return cross_entropy + alpha * divergence, divergence


@pytest.fixture
def tensors():
    """Seven tokens, seen twice each."""
    torch.manual_seed(1)
    features = torch.randn(14, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(64, 3, dtype=torch.float64, requires_grad=True)
    return features, weight, torch.randint(64, (7,)).repeat_interleave(2)


@pytest.mark.parametrize("alpha", [0.5, ALPHA])
def test_double_precision_is_the_formula(alpha, tensors):
    expected, expected_divergence = formula(*tensors, alpha)
    loss, _, divergence = rdrop_loss(*tensors, EPSILON, alpha)
    torch.testing.assert_close(loss, expected, rtol=1e-13, atol=0)
    torch.testing.assert_close(divergence, expected_divergence, rtol=1e-12, atol=0)
    assert loss.requires_grad and not divergence.requires_grad
    expected_gradients = torch.autograd.grad(expected, tensors[:2])
    gradients = torch.autograd.grad(loss, tensors[:2])
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-12, atol=1e-12)


def test_gradcheck(tensors):
    features, weight, target = tensors
    for f, w in ((features, weight), (features.detach(), weight), (features, weight.detach())):
        assert torch.autograd.gradcheck(
            lambda f, w: ChunkedLoss.apply(f, w, None, target, EPSILON, ALPHA, torch.double, True)[
                0
            ],
            (f, w),
        )


def test_gradients_are_finite_in_fp16(monkeypatch):
    """Sums of 2,040 rows too, where the passes differ and all gradients point the same way."""
    monkeypatch.setattr(chunked_loss, "CHUNK_ELEMENTS_CPU", 2**22)
    features = torch.tensor([[6.0], [-6.0]]).repeat(1024, 1).half()
    weight = torch.tensor([[0.1], [-0.1]]).half().requires_grad_()
    target = torch.zeros(2048, dtype=torch.long)
    rdrop_loss(features, weight, target, EPSILON, ALPHA)[0].backward()
    exact = weight.detach().double().requires_grad_()
    formula(features.double(), exact, target)[0].backward()
    torch.testing.assert_close(weight.grad.double(), exact.grad, rtol=2e-3, atol=0)


def test_equal_passes_do_not_diverge(tensors):
    features, weight, target = tensors
    twice = features[0::2].repeat_interleave(2, 0)
    loss, _, divergence = rdrop_loss(twice, weight, target, EPSILON, ALPHA)
    assert float(divergence) == 0
    plain, _ = chunked_loss.label_smoothed_nll_loss(twice, weight, target, EPSILON)
    torch.testing.assert_close(loss, plain, rtol=1e-14, atol=0)


# --- fairseq's criterion -------------------------------------------------------------------------


def trained(cls, model, data, **options):
    """What a criterion makes of a model in training, with the same dropout in each call."""
    torch.manual_seed(7)
    return outcome(cls, model.train(), data, rdrop_alpha=ALPHA, **options)


def both(model, **options):
    """Ours and fairseq's, whose NLL in the log is that of both passes."""
    ours = trained(Ours, model, sample(), **options)
    fairseqs = trained(RdropLabelSmoothedCrossEntropyCriterion, model, sample(), **options)
    fairseqs.log["nll_loss"] = fairseqs.log["nll_loss"] / 2
    return ours, fairseqs


@pytest.mark.parametrize("kernels", ["fused", "fairseq"])
@pytest.mark.parametrize("tie", [["--share-all-embeddings"], []])
def test_equals_fairseqs(tie, kernels):
    flags = [*SMALL, *DROPOUT, *tie, "--macaron-kernels", kernels]
    ours, fairseqs = both(build(ARCHITECTURES[0], *flags))
    assert_same(ours, fairseqs, tolerance=5e-6)
    assert ours.log["rdrop_kl_loss"] > 1


def test_own_probabilities_of_a_subclass_are_taken():
    model = build(ARCHITECTURES[1], *SMALL, *DROPOUT)
    kinds = Ours, RdropLabelSmoothedCrossEntropyCriterion
    ours, fairseqs = (trained(cooler(kind), model, sample()) for kind in kinds)
    fairseqs.log["nll_loss"] = fairseqs.log["nll_loss"] / 2
    assert_same(ours, fairseqs, tolerance=5e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"label_smoothing": 0.0},
        {"sentence_avg": True},
        {"report_accuracy": True},
    ],
)
def test_options_mean_what_they_mean_to_fairseq(options):
    model = build(ARCHITECTURES[1], *SMALL, *DROPOUT)
    assert_same(*both(model, **options), tolerance=5e-6)


def test_a_prefix_is_ignored():
    """fairseq's criterion fails where there is one: here the formula, on the same predictions."""
    model = build(ARCHITECTURES[0], *SMALL, *DROPOUT)
    data = sample()
    ours = trained(Ours, model, data, ignore_prefix_size=2)
    torch.manual_seed(7)
    twice = {name: torch.cat((x, x)) for name, x in data["net_input"].items()}
    features = model(**twice, features_only=True)[0][:, 2:]
    passes = features.flatten(0, 1).view(2, -1, features.shape[-1])
    target = data["target"][:, 2:].flatten()
    paired = passes[:, target.ne(PAD)].transpose(0, 1).flatten(0, 1)
    weight = model.decoder.output_projection.weight
    expected, divergence = formula(paired, weight, target[target.ne(PAD)].repeat_interleave(2))
    assert float(ours.loss) == pytest.approx(float(expected), rel=2e-6)
    assert ours.log["rdrop_kl_loss"] == pytest.approx(float(divergence), rel=5e-6)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("alpha", [0.0, ALPHA])
def test_evaluation_is_the_plain_criterions(arch, alpha):
    model = build(arch, *SMALL, *DROPOUT)  # in evaluation mode
    ours = outcome(Ours, model, sample(), rdrop_alpha=alpha, report_accuracy=True)
    plain = outcome(LabelSmoothedCrossEntropyCriterion, model, sample(), report_accuracy=True)
    assert_same(ours, plain)


def test_without_weight_training_is_the_plain_criterions():
    model = build(ARCHITECTURES[0], *SMALL, *DROPOUT).train()
    results = []
    for cls, options in ((Ours, {"rdrop_alpha": 0}), (LabelSmoothedCrossEntropyCriterion, {})):
        torch.manual_seed(7)
        results.append(outcome(cls, model, sample(), **options))
    assert_same(*results)


def test_the_batch_stays_as_it_was():
    data = sample()
    trained(Ours, build(ARCHITECTURES[0], *SMALL, *DROPOUT), data)
    assert data["net_input"].keys() == sample()["net_input"].keys()
    assert all(torch.equal(x, sample()["net_input"][n]) for n, x in data["net_input"].items())


def test_never_makes_a_tensor_of_tokens_by_types(monkeypatch):
    monkeypatch.setattr(chunked_loss, "CHUNK_ELEMENTS_CPU", 20_000)
    for_task = task(dictionary(1000))
    model = build(ARCHITECTURES[0], *SMALL, *DROPOUT, for_task=for_task)
    largest = []
    for cls in (Ours, RdropLabelSmoothedCrossEntropyCriterion):
        with Spy() as spy:
            trained(cls, model, sample(sizes=((9, 30),) * 8), for_task=for_task)
        largest.append(spy.numel)
    assert largest[1] == 2 * 240 * 1004
    assert largest[0] < 80_000  # of attention


def test_other_outputs_are_left_to_fairseq():
    model = build(ARCHITECTURES[0], *SMALL, *DROPOUT)
    projection = model.decoder.output_projection
    model.decoder.output_projection = nn.Linear(projection.in_features, projection.out_features)
    assert_same(*both(model, report_accuracy=True), tolerance=1e-12)


def test_the_loss_of_each_token_is_left_to_fairseq():
    model = build(ARCHITECTURES[0], *SMALL, *DROPOUT).train()
    losses = []
    for cls in (Ours, RdropLabelSmoothedCrossEntropyCriterion):
        torch.manual_seed(7)
        losses.append(make(cls, rdrop_alpha=ALPHA)(model, sample(), reduce=False)[0])
    assert losses[0].shape == (64, 1) and torch.equal(*losses)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_about_as_exact_as_fairseqs(dtype):
    model = build(ARCHITECTURES[0], *SMALL).to(dtype)
    data = sample(sizes=((9, 30),) * 8)
    target = data["target"].flatten()
    weight = model.decoder.output_projection.weight.detach()
    passes = model(**data["net_input"], features_only=True)[0].detach().repeat(2, 1, 1)
    passes += 0.3 * torch.randn(passes.shape, generator=torch.Generator().manual_seed(1))
    shape = 2, -1, passes.shape[-1]

    def gradients(loss_of, dtype):
        leaves = [x.to(dtype).requires_grad_() for x in (passes, weight)]
        loss_of(*leaves).backward()
        return [x.grad.double() for x in leaves]

    def paired(passes):
        return passes.reshape(shape).transpose(0, 1).flatten(0, 1)

    def fairseqs(passes, weight):
        output = nn.functional.linear(passes, weight), None
        stock = make(RdropLabelSmoothedCrossEntropyCriterion, rdrop_alpha=ALPHA)
        return stock.compute_loss(model, output, data)[0]

    twice = target.repeat_interleave(2)
    exact = gradients(lambda x, w: formula(paired(x), w, twice)[0], torch.double)
    ours = gradients(lambda x, w: rdrop_loss(paired(x), w, twice, EPSILON, ALPHA)[0], dtype)
    theirs = gradients(fairseqs, dtype)
    for mine, stock, true in zip(ours, theirs, exact, strict=True):
        assert (mine - true).norm() <= 1.5 * (stock - true).norm()


@pytest.mark.parametrize("alpha", [-1.0, math.nan, math.inf])
def test_a_weight_that_is_none_is_refused(alpha):
    with pytest.raises(UserError, match=f"--rdrop-alpha is {alpha}: give a number, 0 or more"):
        make(Ours, rdrop_alpha=alpha)


# --- training ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_training_logs_what_fairseqs_criterion_logs(data_bin, tmp_path):
    """The same losses and gradient norms, and in validation those of one pass."""
    flags = ["--arch", ARCHITECTURES[0], "--macaron-init", "released", *DROPOUT]
    flags += ["--rdrop-alpha", "5", "--macaron-scheme", "strang-symmetric"]
    flags += ["--lr", "0.001", "--max-update", "12"]
    names = "label_smoothed_cross_entropy_with_rdrop", f"{criterion.NAME}_with_rdrop"
    outputs = [
        train(data_bin, tmp_path / name, *flags, "--criterion", name).stdout for name in names
    ]
    stock, ours = map(logged, outputs)
    assert stock.keys() == ours.keys() == set(range(1, 13))
    for update, (loss, nll, *others) in stock.items():
        assert ours[update] == pytest.approx([loss, nll / 2, *others], rel=1e-3), update
    assert all('"train_rdrop_kl_loss"' in output for output in outputs)
    assert '"valid_rdrop_kl_loss"' not in outputs[1]
    models, saved, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(tmp_path / names[1] / "checkpoint_last.pt")], {"data": str(data_bin)}
    )
    assert saved.model.macaron_init == "released"
    assert len(models) == 1
