import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.distributed import ModuleProxyWrapper
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from helpers.criteria import EPSILON, PAD, Spy, assert_same, biased, cooler, make, outcome, sample
from helpers.small import DROPOUT, SMALL, batch, build, dictionary, task
from helpers.students import translation
from helpers.toy_corpus import logged, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from macaron_fairseq.fast import chunked_loss, linear_gradients
from macaron_fairseq.fast.attention import Attention
from macaron_fairseq.fast.chunked_loss import ChunkedLoss
from macaron_fairseq.fast.criterion import (
    ChunkedLabelSmoothedCrossEntropyCriterion,
    on_the_host,
)

pytestmark = pytest.mark.usefixtures("small_chunks")


def both(model, data, **options):
    return (
        outcome(ChunkedLabelSmoothedCrossEntropyCriterion, model, data, **options),
        outcome(LabelSmoothedCrossEntropyCriterion, model, data, **options),
    )


def is_chunked(model, **kwargs):
    """Whether the criterion never holds the scores of all target tokens."""
    data = sample(sizes=((4, 30),) * 4)
    with Spy() as spy:
        make(ChunkedLabelSmoothedCrossEntropyCriterion)(model, data, **kwargs)
    return spy.rows < 120


ARCHITECTURES = ["macaron_transformer_tiny", "transformer_tiny_pre_norm"]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(
    "tie", [["--share-all-embeddings"], ["--share-decoder-input-output-embed"], []]
)
def test_equals_fairseqs(arch, tie):
    model = build(arch, *SMALL, *tie)
    assert is_chunked(model)
    assert_same(*both(model, sample()))


@pytest.mark.parametrize(
    "options",
    [
        {"label_smoothing": 0.0},
        {"label_smoothing": 0.3},
        {"sentence_avg": True},
        {"ignore_prefix_size": 2},
        {"report_accuracy": True},
        {"report_accuracy": True, "ignore_prefix_size": 1, "sentence_avg": True},
    ],
)
def test_options_mean_what_they_mean_to_fairseq(options):
    model = build(ARCHITECTURES[0], *SMALL)
    data = sample()
    if "report_accuracy" in options:  # some right, some wrong
        best = model(**data["net_input"])[0].argmax(-1)
        data["target"] = torch.where(data["target"] % 2 == 0, best, data["target"])
        data["target"][batch()[2] == PAD] = PAD
    ours, fairseqs = both(model, data, **options)
    assert_same(ours, fairseqs)
    if "report_accuracy" in options:
        assert 0 < ours.log["n_correct"] < ours.log["total"]


class Elsewhere(torch.Tensor):
    """What says that it is on a GPU."""

    device = torch.device("cuda")


def test_what_is_logged_on_a_gpu_is_summed_over_batches():
    """Each under its name; what is a number already stays with its batch."""
    logs = [
        {
            name: torch.tensor(x).as_subclass(Elsewhere)
            for name, x in zip(names, values, strict=True)
        }
        | {"ntokens": n}
        for names, values, n in ((("nll_loss", "loss"), (1.5, 3.0), 4), (("loss",), (5.0,), 6))
    ]
    first, second = on_the_host(logs)
    assert first == {"nll_loss": 1.5, "loss": 8.0, "ntokens": 4}
    assert second == {"nll_loss": 0, "loss": 0, "ntokens": 6}
    assert all(type(x) in (int, float) for log in (first, second) for x in log.values())


@pytest.mark.parametrize("prefix", [0, 2])
def test_the_tokens_that_count_on_a_gpu_are_those_on_a_cpu(prefix):
    """Though nobody waits for a GPU to count them: a batch has their number, with the prefix."""
    model, data = build(ARCHITECTURES[0], *SMALL), sample()
    options = {"for_task": translation(), "ignore_prefix_size": prefix}
    expected = outcome(LabelSmoothedCrossEntropyCriterion, model, data, **options)
    data["target"] = data["target"].as_subclass(Elsewhere)
    assert_same(
        outcome(ChunkedLabelSmoothedCrossEntropyCriterion, model, data, **options), expected
    )


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_with_onednn_it_equals_fairseqs(arch, onednn):
    assert_same(*both(build(arch, *SMALL), sample()))
    assert any(x.dim() == 2 for x, *_ in onednn)  # the model's own have three


def test_other_decoder_output_width():
    model = build(ARCHITECTURES[0], *SMALL, "--decoder-output-dim", "8")
    assert is_chunked(model)
    assert_same(*both(model, sample()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_about_as_exact_as_fairseqs(dtype, monkeypatch):
    monkeypatch.setattr(linear_gradients, "TYPES_AT_ONCE", 25)  # of the 64
    model = build(ARCHITECTURES[0], *SMALL).to(dtype)
    weight = model.decoder.output_projection.weight
    data = sample(sizes=((9, 30),) * 8)
    features = model(**data["net_input"], features_only=True)[0].detach()

    def gradient(loss_of, *tensors):
        tensors = [x.detach().requires_grad_() for x in tensors]
        loss = loss_of(*tensors)
        loss.backward()
        return loss.detach(), [x.grad.double() for x in tensors]

    def fairseqs(features, weight):
        output = nn.functional.linear(features, weight), None
        plain = make(LabelSmoothedCrossEntropyCriterion)
        return plain.compute_loss(model, output, data)[0]

    def ours(features, weight):
        return chunked_loss.label_smoothed_nll_loss(
            features.flatten(0, 1), weight, data["target"].flatten(), EPSILON
        )[0]

    def exact(features, weight):
        return formula(features.flatten(0, 1), weight, data["target"].flatten())[0]

    expected, expected_gradients = gradient(exact, features.double(), weight.double())
    loss, gradients = gradient(ours, features, weight)
    fairseq_loss, fairseq_gradients = gradient(fairseqs, features, weight)
    assert loss.dtype == fairseq_loss.dtype == torch.float32
    assert float(loss) == pytest.approx(float(fairseq_loss), rel=1e-6)
    assert float(loss) == pytest.approx(float(expected), rel=1e-3)
    for mine, theirs, true in zip(gradients, fairseq_gradients, expected_gradients, strict=True):
        assert (mine - true).norm() <= 1.5 * (theirs - true).norm()
        assert (mine - true).norm() < torch.finfo(dtype).eps * true.norm()
    assert_same(*both(model, sample()), tolerance=6 * torch.finfo(dtype).eps)


def formula(features, weight, target):
    """Cross-entropy with the smoothed distribution: 1 - EPSILON and its complement's even split."""
    p = torch.softmax(features @ weight.t(), dim=1)
    q = torch.full_like(p, EPSILON / (len(weight) - 1))
    rows = torch.arange(len(target))
    q[rows, target] = 1 - EPSILON
    return -(q * p.log()).sum(), -p[rows, target].log().sum()


@pytest.fixture
def tensors():
    torch.manual_seed(1)
    features = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(64, 3, dtype=torch.float64, requires_grad=True)
    return features, weight, torch.randint(64, (7,))


def test_double_precision_is_the_formula(tensors):
    expected = formula(*tensors)
    found = chunked_loss.label_smoothed_nll_loss(*tensors, EPSILON)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)
    expected_gradients = torch.autograd.grad(expected[0], tensors[:2])
    gradients = torch.autograd.grad(found[0], tensors[:2])
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-12, atol=1e-13)


def test_gradcheck(tensors):
    features, weight, target = tensors
    for f, w in ((features, weight), (features.detach(), weight), (features, weight.detach())):
        assert torch.autograd.gradcheck(
            lambda f, w: ChunkedLoss.apply(f, w, None, target, EPSILON, 0.0, torch.double, True)[0],
            (f, w),
        )


def test_scores_far_apart_do_not_overflow(tensors):
    features, weight, target = tensors
    single = (1000 * features).detach().float().requires_grad_()
    scores = (1000 * features) @ weight.t()
    expected = nn.functional.cross_entropy(scores, target, reduction="sum")
    loss, nll = chunked_loss.label_smoothed_nll_loss(single, weight.detach().float(), target, 0.0)
    loss.backward()
    assert float(nll) == pytest.approx(expected.item(), rel=1e-5)
    assert loss.isfinite()
    assert single.grad.isfinite().all()


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_gradients_of_the_same_loss_are_added(factor, tensors):
    features, weight, target = tensors
    expected = torch.autograd.grad(formula(*tensors)[0], (features, weight))
    loss = factor * chunked_loss.label_smoothed_nll_loss(features, weight, target, EPSILON)[0]
    one, other = (torch.autograd.grad(loss, weight, retain_graph=True)[0] for _ in range(2))
    assert (one.data_ptr() == other.data_ptr()) == (factor == 1)  # that kept, without a copy
    for _ in range(3):
        loss.backward(retain_graph=True)
    for leaf, gradient in zip((features, weight), expected, strict=True):
        torch.testing.assert_close(leaf.grad, 3 * factor * gradient, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("feature", [4, 100])
def test_gradients_of_many_tokens_are_finite_in_fp16(feature, monkeypatch):
    """As is each sum before it is fp32, of scaled gradients: fp16 ends at 65,504."""
    monkeypatch.setattr(chunked_loss, "CHUNK_ELEMENTS_CPU", 2**22)
    features = torch.full((6000, 2), feature, dtype=torch.half)
    weight = torch.zeros(64, 2, dtype=torch.half, requires_grad=True)
    target = torch.zeros(6000, dtype=torch.long)
    loss = chunked_loss.label_smoothed_nll_loss(features, weight, target, EPSILON)[0]
    (loss / feature).backward()  # the sum over all tokens is fp16's at the end
    assert weight.grad[0].tolist() == pytest.approx([6000 * (1 / 64 - (1 - EPSILON))] * 2, 1e-3)


def test_only_the_loss_has_a_gradient(tensors):
    loss, nll = chunked_loss.label_smoothed_nll_loss(*tensors, EPSILON)
    assert loss.requires_grad
    assert not nll.requires_grad


def test_a_batch_of_padding_alone_is_zero():
    model = build(ARCHITECTURES[0], *SMALL)
    data = sample()
    data["target"].fill_(PAD)
    ours, fairseqs = both(model, data, report_accuracy=True)
    assert float(ours.loss) == float(fairseqs.loss) == 0
    assert ours.log["total"] == fairseqs.log["total"] == 0
    assert all(not gradient.any() for gradient in ours.gradients.values())


def test_never_makes_a_tensor_of_tokens_by_types(monkeypatch):
    monkeypatch.setattr(chunked_loss, "CHUNK_ELEMENTS_CPU", 20_000)
    for_task = task(dictionary(1000))
    model = build(ARCHITECTURES[0], *SMALL, for_task=for_task)
    data = sample(sizes=((9, 30),) * 8)
    largest = []
    for cls in (ChunkedLabelSmoothedCrossEntropyCriterion, LabelSmoothedCrossEntropyCriterion):
        with Spy() as spy:
            outcome(cls, model, data, for_task=for_task, report_accuracy=True)
        largest.append(spy.numel)
    assert largest[1] == 240 * 1004
    assert largest[0] < 40_000  # of attention


def test_validation_makes_no_gradients():
    model = build(ARCHITECTURES[0], *SMALL)
    expected = outcome(LabelSmoothedCrossEntropyCriterion, model, sample())
    with torch.no_grad():
        loss, _, log = make(ChunkedLabelSmoothedCrossEntropyCriterion)(model, sample())
    assert not loss.requires_grad
    assert float(log["nll_loss"]) == pytest.approx(float(expected.log["nll_loss"]), rel=1e-6)


def test_validation_computes_no_attention_weights(monkeypatch):
    asked, attend = [], Attention.attend

    def spy(self, *args):
        asked.append(args[-1])
        return attend(self, *args)

    monkeypatch.setattr(Attention, "attend", spy)
    model = build("macaron_transformer", *SMALL)
    make(ChunkedLabelSmoothedCrossEntropyCriterion)(model, sample())
    assert asked and not any(asked)
    model(**sample()["net_input"])  # whose last layer is asked for them
    assert sum(asked) == 1


@pytest.mark.parametrize("find_unused_parameters", [False, True])
@pytest.mark.parametrize("tie", [["--share-all-embeddings"], []])
def test_in_distributed_data_parallel(one_process, tie, find_unused_parameters):
    model = build(ARCHITECTURES[0], *SMALL, *tie)
    wrapper = ModuleProxyWrapper(
        DistributedDataParallel(model, find_unused_parameters=find_unused_parameters)
    )
    # Where DDP looks for unused parameters, it takes a projection outside the model for one.
    assert is_chunked(wrapper) == (not find_unused_parameters)
    for _ in range(2):  # an unfinished reduction is an error in the next forward pass
        ours = outcome(ChunkedLabelSmoothedCrossEntropyCriterion, model, sample(), wrapper)
    assert_same(ours, outcome(LabelSmoothedCrossEntropyCriterion, model, sample()))


def noisy(model):
    model.decoder.output_projection.register_forward_pre_hook(lambda module, inputs: None)


def muting(model):
    def mute(module, inputs, output):
        output[0][..., 5] = -1e4

    model.decoder.register_forward_hook(mute)


def watched(model):
    model.register_forward_hook(lambda module, inputs, output: (output[0] / 2, output[1]))


def warmer(model):
    class Warmer(type(model.decoder)):
        def output_layer(self, features):
            return super().output_layer(features) / 2

    model.decoder.__class__ = Warmer


def without_features_only(model):
    class Other(type(model)):
        def forward(self, src_tokens, src_lengths, prev_output_tokens):
            return super().forward(src_tokens, src_lengths, prev_output_tokens)

    model.__class__ = Other


@pytest.mark.parametrize("change", [biased, noisy, muting, watched, warmer, without_features_only])
def test_other_outputs_are_left_to_fairseq(change):
    model = build(ARCHITECTURES[0], *SMALL)
    assert is_chunked(model)
    change(model)
    assert not is_chunked(model)
    assert_same(*both(model, sample()), tolerance=1e-12)


def test_own_probabilities_of_a_subclass_are_taken():
    model, data = build(ARCHITECTURES[0], *SMALL), sample()
    ours = outcome(cooler(ChunkedLabelSmoothedCrossEntropyCriterion), model, data)
    assert_same(ours, outcome(cooler(LabelSmoothedCrossEntropyCriterion), model, data))


def test_targets_that_a_task_of_a_users_own_masks_do_not_count_on_a_gpu():
    """The batch says how many targets there were before."""

    class Masking(TranslationTask):
        pass

    model, data = build(ARCHITECTURES[0], *SMALL), sample()
    data["target"][:, 1] = PAD
    options = {"for_task": Masking(TranslationConfig(), dictionary(), dictionary())}
    expected = outcome(LabelSmoothedCrossEntropyCriterion, model, data, **options)
    data["target"] = data["target"].as_subclass(Elsewhere)
    assert_same(
        outcome(ChunkedLabelSmoothedCrossEntropyCriterion, model, data, **options), expected
    )


def test_language_models_are_chunked_and_equal_fairseqs():
    sizes = ["--decoder-embed-dim", "16", "--decoder-layers", "2", "--decoder-attention-heads", "4"]
    sizes += ["--decoder-input-dim", "16", "--decoder-output-dim", "16"]
    model = build("transformer_lm", *sizes)

    def text(**kwargs):
        data = sample(**kwargs)
        tokens = data["net_input"]["prev_output_tokens"]
        return {**data, "net_input": {"src_tokens": tokens, "src_lengths": tokens.ne(PAD).sum(1)}}

    assert_same(*both(model, text(), report_accuracy=True))
    with Spy() as spy:
        make(ChunkedLabelSmoothedCrossEntropyCriterion)(model, text(sizes=((4, 30),) * 4))
    assert spy.rows < 120


def test_adaptive_softmax_is_left_to_fairseq():
    model = build(ARCHITECTURES[0], *SMALL, "--adaptive-softmax-cutoff", "20,40")
    data = sample()
    expected = make(LabelSmoothedCrossEntropyCriterion)(model, data)
    found = make(ChunkedLabelSmoothedCrossEntropyCriterion)(model, data)
    assert found == expected


def test_the_loss_of_each_token_is_left_to_fairseq():
    model = build(ARCHITECTURES[0], *SMALL)
    expected = make(LabelSmoothedCrossEntropyCriterion)(model, sample(), reduce=False)[0]
    found = make(ChunkedLabelSmoothedCrossEntropyCriterion)(model, sample(), reduce=False)[0]
    assert found.shape == (32, 1)
    assert torch.equal(found, expected)
    assert not is_chunked(model, reduce=False)


def test_autocast_is_left_to_fairseq():
    model = build(ARCHITECTURES[0], *SMALL)
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_chunked(model)
        assert_same(*both(model, sample()), tolerance=1e-12)


@pytest.mark.slow
def test_fifty_updates_of_the_whole_path_log_the_same(data_bin, tmp_path):
    flags = ["--max-update", "50", "--no-save", "--report-accuracy", *DROPOUT, "--lr", "0.001"]
    sides = {
        "stock": ["--macaron-kernels", "fairseq", "--criterion", "label_smoothed_cross_entropy"],
        "ours": ["--criterion", "chunked_label_smoothed_cross_entropy"],
    }
    expected, found = (
        logged(train(data_bin, tmp_path / name, *flags, *side).stdout)
        for name, side in sides.items()
    )
    assert expected.keys() == found.keys() == set(range(1, 51))
    for update, numbers in expected.items():
        assert found[update] == pytest.approx(numbers, rel=5e-4), update
    assert expected[50][0] < 0.9 * expected[1][0]
