"""`--macaron-init`: from which distributions the weights are drawn."""

import math

import pytest
import torch
from fairseq.models.transformer import TransformerModel
from helpers.small import arguments, language_task, masked_task, task
from scipy import stats

from macaron_fairseq import UserError

ARCHITECTURES = {
    "baseline": ["transformer_tiny_pre_norm"],
    "Macaron": ["macaron_transformer_tiny"],
    "Macaron with fairseq's kernels": ["macaron_transformer_tiny", "--macaron-kernels", "fairseq"],
    "widths of its own": [
        *("macaron_transformer_tiny", "--macaron-scheme", "strang-symmetric"),
        *("--encoder-first-ffn-embed-dim", "64", "--decoder-ffn-embed-dim", "192"),
    ],
    "one FFN": ["macaron_transformer_tiny", "--macaron-scheme", "parallel"],
}


def build(arch, *flags, for_task=None):
    """A model as training starts with it."""
    from fairseq.models import build_model

    torch.manual_seed(1)
    return build_model(arguments(arch, *flags), for_task or task())


def parts(model):
    """The names of all FFNs' weights, of their biases, and of attentions' biases."""
    names = [name for name, _ in model.named_parameters()]
    weights = [x for x in names if x.endswith(("fc1.weight", "fc2.weight"))]
    attention = [x for x in names if x.endswith("_proj.bias")]
    return weights, [x.replace("weight", "bias") for x in weights], attention


@pytest.mark.parametrize("flags", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_released_draws_the_ffns_as_the_authors_do(flags):
    stock, released = (build(*flags, "--macaron-init", x) for x in ("fairseq", "released"))
    weights, biases, attention = parts(released)
    before, after = (dict(model.named_parameters()) for model in (stock, released))
    ffns = 1 if "parallel" in flags or flags[0].startswith("transformer") else 2
    assert len(weights) == 8 * 2 * ffns
    assert len(attention) == 4 * (4 + 8)
    for name in weights:
        outs, ins = after[name].shape
        check_uniform(before[name], 1 / math.sqrt(ins))
        check_uniform(after[name], math.sqrt(6 / (ins + outs)))
    for name in [*biases, *attention]:
        assert not after[name].any(), name
    assert all(before[name].any() for name in biases)
    changed = {*weights, *biases, *attention}
    assert all(torch.equal(x, before[n]) for n, x in after.items() if n not in changed)


def check_uniform(weight, bound):
    """Fail unless the numbers are as if drawn from -bound to bound."""
    values = weight.detach().flatten()
    assert values.abs().max() <= bound * (1 + 1e-6)
    assert stats.kstest(values.numpy(), stats.uniform(-bound, 2 * bound).cdf).pvalue > 1e-4


LANGUAGE_MODELS = {
    "transformer_lm_tiny_pre_norm": (1, language_task, ["--task", "language_modeling"]),
    "macaron_transformer_lm_tiny": (2, language_task, ["--task", "language_modeling"]),
    "roberta_tiny_pre_norm": (1, masked_task, ["--task", "masked_lm"]),
    "macaron_roberta_tiny": (2, masked_task, ["--task", "masked_lm"]),
}


@pytest.mark.parametrize("arch", LANGUAGE_MODELS)
def test_language_models_and_their_baselines_start_so(arch):
    """A masked model's other weights are BERT's: of a standard deviation of 0.02, biases 0."""
    ffns, kind, flags = LANGUAGE_MODELS[arch]
    stock, released = (
        build(arch, *flags, "--macaron-init", x, for_task=kind()) for x in ("fairseq", "released")
    )
    weights, biases, attention = parts(released)
    before, after = (dict(model.named_parameters()) for model in (stock, released))
    assert len(weights) == 4 * 2 * ffns and len(attention) == 4 * 4
    is_bert = kind is masked_task
    for name in weights:
        outs, ins = after[name].shape
        check_uniform(after[name], math.sqrt(6 / (ins + outs)))
        if is_bert:
            normal = stats.norm(0, 0.02).cdf
            assert stats.kstest(before[name].detach().flatten().numpy(), normal).pvalue > 1e-4
        else:
            check_uniform(before[name], 1 / math.sqrt(ins))
    for name in [*biases, *attention]:
        assert not after[name].any() and not (is_bert and before[name].any()), name
    changed = {*weights, *biases, *attention}
    assert all(torch.equal(x, before[n]) for n, x in after.items() if n not in changed)


@pytest.mark.parametrize("flags", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_no_two_ffns_start_equal(flags):
    model = build(*flags, "--macaron-init", "released")
    weights = [model.state_dict()[name].flatten()[:9].tolist() for name in parts(model)[0]]
    assert len({*map(tuple, weights)}) == len(weights)


def test_by_default_the_baseline_is_fairseqs_bit_for_bit():
    flags = ["--encoder-normalize-before", "--decoder-normalize-before"]
    sizes = ["--encoder-embed-dim", "128", "--encoder-ffn-embed-dim", "256"]
    for side in ("encoder", "decoder"):
        sizes += [f"--{side}-layers", "4", f"--{side}-attention-heads", "4"]
    expected = build("transformer", *flags, *sizes).state_dict()
    for more in ([], ["--macaron-init", "fairseq"]):
        model = build("transformer_tiny_pre_norm", *more)
        assert type(model) is TransformerModel
        assert model.state_dict().keys() == expected.keys()
        assert all(torch.equal(x, expected[name]) for name, x in model.state_dict().items())


@pytest.mark.parametrize("arch", ["transformer_tiny_pre_norm", "macaron_transformer_tiny"])
def test_checkpoints_of_before_do_not_say_it(arch):
    args = arguments(arch)
    assert args.macaron_init == "fairseq"
    del args.macaron_init
    from fairseq.models import build_model

    assert build_model(args, task()).encoder.layers[0].fc1.bias.any()


@pytest.mark.parametrize("arch", ["transformer_tiny_pre_norm", "macaron_transformer_tiny"])
def test_flattened_weights_are_refused(arch):
    flags = ["--macaron-init", "released", "--ddp-backend", "fully_sharded"]
    with pytest.raises(UserError, match="does not go with --ddp-backend fully_sharded"):
        build(arch, *flags)
