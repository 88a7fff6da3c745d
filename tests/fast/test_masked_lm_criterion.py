"""The chunked masked-LM criterion against fairseq's, and the chunked loss of a map with a bias."""

import copy
from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from helpers.criteria import Spy, assert_same, make
from helpers.criteria import outcome as outcome_of_translation
from helpers.small import (
    NO_DROPOUT,
    SMALL_DECODER,
    SMALL_ENCODER,
    build,
    language_task,
    masked_task,
    texts,
)
from torch import nn

from macaron_fairseq.fast import chunked_loss, criterion
from macaron_fairseq.fast.chunked_loss import ChunkedLoss
from macaron_fairseq.fast.criterion import ChunkedLabelSmoothedCrossEntropyCriterion
from macaron_fairseq.fast.masked_lm_criterion import ChunkedMaskedLmLoss, has_plain_head

pytestmark = pytest.mark.usefixtures("small_chunks")
TYPES = 65  # of `masked_task`, with <mask>
AUTHORS = "transformer_bert_base_macaron", "transformer_bert_base"
ARCHITECTURES = ["macaron_roberta_tiny", "roberta_tiny_pre_norm"]


def model_of(arch, *flags):
    model = build(arch, *SMALL_ENCODER, *flags, for_task=masked_task())
    with torch.no_grad():  # which starts at zero
        model.encoder.lm_head.bias.add_(torch.randn(TYPES))
    return model


def sample(lengths=(12, 9, 11, 5), share=0.5):
    tokens = texts(lengths)
    hidden = (torch.rand(tokens.shape, generator=torch.Generator().manual_seed(7)) < share) & (
        tokens.gt(3)
    )
    return {
        "net_input": {
            "src_tokens": tokens.masked_fill(hidden, 64),
            "src_lengths": tokens.ne(1).sum(1),
        },
        "target": tokens.masked_fill(~hidden, 1),
        "ntokens": int(tokens.ne(1).sum()),
        "nsentences": len(tokens),
    }


def outcome(cls, model, data):
    model.zero_grad()
    loss, sample_size, log = cls(MaskedLmConfig(tpu=False), masked_task())(model, data)
    (3 * loss).backward()
    gradients = {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }
    return SimpleNamespace(loss=loss, sample_size=sample_size, log=log, gradients=gradients)


def both(model, data):
    return outcome(ChunkedMaskedLmLoss, model, data), outcome(MaskedLmLoss, model, data)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("flags", [[], ["--untie-weights-roberta"]], ids=["tied", "untied"])
def test_equals_fairseqs(arch, flags):
    model = model_of(arch, *flags)
    assert has_plain_head(model)
    assert_same(*both(model, sample()), tolerance=1e-5)


@pytest.mark.parametrize("arch", AUTHORS)
@pytest.mark.parametrize("flags", [[], ["--untie-weights-roberta"]], ids=["tied", "untied"])
def test_equals_fairseqs_on_the_authors_head(arch, flags):
    """Which has no bias."""
    task = masked_task(types=59)
    task.dictionary.add_symbol("<cls>")
    model = build(arch, *SMALL_ENCODER, *flags, for_task=task)
    assert has_plain_head(model) and not hasattr(model.encoder.lm_head, "bias")
    ours, fairseqs = both(model, sample())
    assert_same(ours, fairseqs, tolerance=1e-5)
    assert fairseqs.gradients["encoder.lm_head.dense.weight"].abs().max() > 0
    assert_of_some_hidden_tokens_at_a_time(model)


@pytest.mark.parametrize("share", [0.0, 0.02, 1.0])
def test_few_hidden_tokens_and_none(share):
    model, data = model_of("macaron_roberta_tiny"), sample(share=share)
    ours, fairseqs = both(model, data)
    assert_same(ours, fairseqs, tolerance=1e-5)
    assert ours.sample_size.dtype == fairseqs.sample_size.dtype


def test_is_of_some_hidden_tokens_at_a_time():
    assert_of_some_hidden_tokens_at_a_time(model_of("macaron_roberta_tiny"))


def assert_of_some_hidden_tokens_at_a_time(model):
    data, rows = sample((30,) * 4, share=0.9), []
    for cls in (ChunkedMaskedLmLoss, MaskedLmLoss):
        with Spy(TYPES) as spy:
            cls(MaskedLmConfig(tpu=False), masked_task())(model, data)
        rows.append(spy.rows)
    assert rows[1] == int(data["target"].ne(1).sum())
    assert rows[0] < TYPES  # the Spy takes the head's square weights for rows of scores


def test_a_changed_head_is_left_to_fairseq():
    model = model_of("macaron_roberta_tiny")
    head = model.encoder.lm_head
    head.register_forward_hook(lambda module, inputs, output: 2 * output)
    assert not has_plain_head(model)
    assert_same(*both(model, sample()))
    for part in ("encoder", None):
        model = model_of("macaron_roberta_tiny")
        of_part = getattr(model, part) if part else model
        of_part.register_forward_hook(lambda module, inputs, output: (2 * output[0], *output[1:]))
        assert not has_plain_head(model)
        assert_same(*both(model, sample()))
    model.encoder.lm_head = nn.Identity()
    assert not has_plain_head(model)
    for method in ("forward", "output_layer"):
        model = model_of("macaron_roberta_tiny")
        whole = type(model.encoder)

        def double(self, *args, whole=whole, method=method, **kwargs):
            found = getattr(whole, method)(self, *args, **kwargs)
            return (2 * found[0], found[1]) if method == "forward" else 2 * found

        model.encoder.__class__ = type("Doubled", (whole,), {method: double})
        assert not has_plain_head(model)
        assert_same(*both(model, sample()))
    model = model_of("macaron_roberta_tiny")
    model.find_unused_parameters = True
    assert not has_plain_head(model)


def test_bf16_products_are_near():
    model = model_of("macaron_roberta_tiny", "--macaron-matmul", "bf16", *NO_DROPOUT).train()
    ours, fairseqs = both(model, sample())
    assert ours.loss.item() == pytest.approx(fairseqs.loss.item(), rel=0.02)


def test_three_updates_are_fairseqs():
    found = []
    first = model_of("macaron_roberta_tiny", "--dropout", "0.1")
    for cls in (ChunkedMaskedLmLoss, MaskedLmLoss):
        model = copy.deepcopy(first).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for update in range(3):
            torch.manual_seed(update)
            optimizer.zero_grad()
            loss, _, _ = cls(MaskedLmConfig(tpu=False), masked_task())(model, sample())
            loss.backward()
            optimizer.step()
        found.append(loss.item())
    assert found[0] == pytest.approx(found[1], rel=1e-5)


# --- the loss of a map with a bias ---------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_a_bias_is_part_of_the_logits(epsilon):
    torch.manual_seed(2)
    features, weight = (torch.randn(n, 6, dtype=torch.double).requires_grad_() for n in (9, 12))
    bias = torch.randn(12, dtype=torch.double).requires_grad_()
    target = torch.randint(12, (9,))
    log_p = (features @ weight.t() + bias).log_softmax(-1)
    nll = -log_p.gather(1, target[:, None]).sum()
    share = epsilon / 11
    expected = (1 - epsilon - share) * nll - share * log_p.sum()
    found, found_nll = chunked_loss.label_smoothed_nll_loss(
        features, weight, target, epsilon, bias=bias
    )
    assert float(found) == pytest.approx(float(expected), rel=1e-12)
    assert float(found_nll) == pytest.approx(float(nll), rel=1e-12)
    leaves = features, weight, bias
    torch.testing.assert_close(
        torch.autograd.grad(found, leaves), torch.autograd.grad(expected, leaves)
    )
    assert torch.autograd.gradcheck(
        lambda f, w, b: ChunkedLoss.apply(f, w, b, target, epsilon, 0.0, torch.double, True)[0],
        leaves,
    )


# --- causal language models ----------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["macaron_transformer_lm_tiny", "transformer_lm_tiny_pre_norm"])
def test_a_causal_model_has_the_chunked_criterion_of_translation(arch):
    model = build(arch, *SMALL_DECODER, for_task=language_task())
    assert criterion.has_plain_projection(model)
    tokens = texts((12, 9, 11, 5))
    data = {
        "net_input": {"src_tokens": tokens, "src_lengths": tokens.ne(1).sum(1)},
        "target": tokens.roll(-1, 1).masked_fill(tokens.roll(-1, 1).eq(0), 1),
        "ntokens": 33,
    }
    assert_same(
        *(
            outcome_of_translation(cls, model, data)
            for cls in (
                ChunkedLabelSmoothedCrossEntropyCriterion,
                LabelSmoothedCrossEntropyCriterion,
            )
        )
    )
    with Spy() as spy:
        make(ChunkedLabelSmoothedCrossEntropyCriterion)(model, data)
    assert spy.rows < 33
