"""The named architectures: sizes, equality with the baseline, and the user's last word."""

import pytest
from conftest import arguments, build
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.models.transformer import TransformerModel

from macaron_fairseq.model import MacaronTransformerModel

# embed_dim, heads, layers, width of each FFN half, (dropout, attention, activation): the paper's.
MACARON = {
    "macaron_transformer": (512, 8, 6, 1024, (0.1, 0.1, 0.1)),
    "macaron_transformer_iwslt_de_en": (512, 4, 6, 512, (0.3, 0.1, 0.1)),
    "macaron_transformer_wmt_en_de": (512, 8, 6, 1024, (0.1, 0.1, 0.1)),
    "macaron_transformer_wmt_en_de_big": (1024, 16, 6, 2048, (0.3, 0.1, 0.1)),
    "macaron_transformer_tiny": (128, 4, 4, 128, (0.3, 0.1, 0.1)),
}


def baseline(arch):
    return arch.removeprefix("macaron_") + "_pre_norm"


@pytest.mark.parametrize("arch", MACARON)
def test_settings(arch):
    width, heads, layers, half, dropouts = MACARON[arch]
    macaron, stock = arguments(arch), arguments(baseline(arch))
    for args, inner in ((macaron, half), (stock, 2 * half)):
        for side in ("encoder", "decoder"):
            assert getattr(args, f"{side}_embed_dim") == width
            assert getattr(args, f"{side}_attention_heads") == heads
            assert getattr(args, f"{side}_layers") == layers
            assert getattr(args, f"{side}_ffn_embed_dim") == inner
            assert getattr(args, f"{side}_normalize_before") is True
        assert (args.dropout, args.attention_dropout, args.activation_dropout) == dropouts
        assert args.activation_fn == "relu"


@pytest.mark.parametrize("arch", MACARON)
def test_baseline_has_3d_parameters_less_per_layer(arch):
    """One LayerNorm (2d) and one bias (d) more in each Macaron layer, and nothing else."""
    width, _, layers, _, _ = MACARON[arch]
    sizes = [sum(p.numel() for p in build(a).parameters()) for a in (arch, baseline(arch))]
    assert sizes[0] - sizes[1] == 3 * width * 2 * layers


@pytest.mark.parametrize("arch", MACARON)
def test_lie_trotter_takes_the_baselines_width(arch):
    stock = build(baseline(arch))
    macaron = build(arch, "--macaron-scheme", "lie-trotter")
    assert {n: p.shape for n, p in stock.named_parameters()} == {
        n: p.shape for n, p in macaron.named_parameters()
    }


FLAGS = {
    "encoder_embed_dim": 96,
    "decoder_embed_dim": 96,
    "encoder_ffn_embed_dim": 40,
    "decoder_ffn_embed_dim": 44,
    "encoder_layers": 3,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 3,
    "dropout": 0.25,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "activation_fn": "gelu",
}


@pytest.mark.parametrize("arch", [*MACARON, *map(baseline, MACARON)])
def test_a_flag_beats_the_architecture(arch):
    flags = [
        text
        for name, value in FLAGS.items()
        for text in ("--" + name.replace("_", "-"), str(value))
    ]
    args = arguments(arch, *flags)
    assert {name: getattr(args, name) for name in FLAGS} == FLAGS


@pytest.mark.parametrize("arch", MACARON)
def test_post_norm_by_flag(arch):
    args = arguments(arch, "--macaron-post-norm")
    assert args.encoder_normalize_before is args.decoder_normalize_before is False


@pytest.mark.parametrize(
    ("arch", "like", "pre_norm"),
    [
        ("transformer_iwslt_de_en_macaron", "macaron_transformer_iwslt_de_en", False),
        ("transformer_iwslt_de_en_macaron_v2", "macaron_transformer_iwslt_de_en", True),
        ("transformer_wmt_en_de_macaron", "macaron_transformer_wmt_en_de", False),
        ("transformer_wmt_en_de_macaron_v2", "macaron_transformer_wmt_en_de", True),
        ("transformer_wmt_en_de_big_t2t_macaron", "macaron_transformer_wmt_en_de_big", True),
    ],
)
def test_the_released_names(arch, like, pre_norm):
    args, same = arguments(arch), arguments(like)
    assert args.encoder_normalize_before is args.decoder_normalize_before is pre_norm
    for name in ("encoder_embed_dim", "decoder_ffn_embed_dim", "encoder_attention_heads"):
        assert getattr(args, name) == getattr(same, name)
    assert ARCH_MODEL_REGISTRY[arch] is MacaronTransformerModel


def test_the_baselines_are_fairseqs_own_class():
    assert MODEL_REGISTRY["macaron_transformer"] is MacaronTransformerModel
    assert all(ARCH_MODEL_REGISTRY[baseline(arch)] is TransformerModel for arch in MACARON)
