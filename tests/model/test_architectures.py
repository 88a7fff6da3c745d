"""The named architectures: sizes, equality with the baseline, and the user's last word."""

import sys
from argparse import Namespace

import pytest
import torch
from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_INV_REGISTRY,
    ARCH_MODEL_NAME_REGISTRY,
    ARCH_MODEL_REGISTRY,
    MODEL_REGISTRY,
    build_model,
    register_model_architecture,
)
from fairseq.models.transformer import TransformerModel, base_architecture
from helpers.formulas import has_two_ffns
from helpers.small import arguments, count_parameters, language_task, masked_task, parse, task
from omegaconf import OmegaConf

from macaron_fairseq import UserError
from macaron_fairseq.model import architectures
from macaron_fairseq.model.transformer import MacaronTransformerModel as PlainModel
from macaron_fairseq.plugin import MacaronTransformerModel
from macaron_fairseq.schemes import splitting
from macaron_fairseq.schemes.splitting import CROSS, SELF, WHOLE, Scheme, step

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


@pytest.fixture
def own_architecture():
    """Register a function as an architecture of `macaron_transformer`, for one test."""
    registries = ARCH_MODEL_REGISTRY, ARCH_MODEL_NAME_REGISTRY, ARCH_CONFIG_REGISTRY
    name = "an_architecture_of_a_users_own"

    def register(function):
        register_model_architecture("macaron_transformer", name)(function)
        return name

    yield register
    for registry in registries:
        registry.pop(name, None)
    ARCH_MODEL_INV_REGISTRY["macaron_transformer"].remove(name)


def test_a_user_may_add_an_architecture(own_architecture):
    size = architectures.Size(32, 64, heads=4, layers=2, dropout=0.1)
    arch = own_architecture(lambda args: architectures.configure_macaron(args, size))
    model = build_model(arguments(arch), task())
    assert len(model.encoder.layers) == 2 and model.encoder.layers[0].fc1.out_features == 32


def test_an_architecture_of_a_users_own_may_be_trained_in_bf16(own_architecture, monkeypatch):
    """fairseq would look for a TPU."""
    size = architectures.Size(32, 64, heads=4, layers=2, dropout=0.1)
    arch = own_architecture(lambda args: architectures.configure_macaron(args, size))
    monkeypatch.setattr(sys, "argv", ["fairseq-train", "data", "--bf16"])
    args = parse(arch, "--bf16")
    assert args.bf16 is True and args.tpu is False


def test_an_architecture_without_a_scheme_is_refused(own_architecture):
    arch = own_architecture(base_architecture)
    args = Namespace(arch=arch)
    base_architecture(args)
    with pytest.raises(UserError, match=f"--arch {arch} sets no scheme: let its function call"):
        build_model(args, task())


def test_hydras_null_is_what_is_not_set():
    args = arguments("macaron_transformer_tiny")
    args.macaron_substep = args.macaron_kernels = None
    build_model(args, task())
    assert args.macaron_substep == "euler" and args.macaron_kernels == "fused"
    args = Namespace(macaron_scheme=None, encoder_normalize_before=None)
    ARCH_CONFIG_REGISTRY["macaron_transformer_tiny"](args)
    assert args.macaron_scheme == "strang-marchuk" and args.encoder_normalize_before is True


def test_a_misspelt_setting_of_hydra_is_told(caplog):
    cfg = OmegaConf.create({"_name": "macaron_transformer_tiny", "macaron_schema": "parallel"})
    build_model(cfg, task())
    (said,) = caplog.messages
    assert said.startswith("model.macaron_schema is no argument, and has no effect. Did you mean ")
    assert "macaron_scheme" in said


WHOLE_STEPS = step(1, SELF), step(1, CROSS), step(1, WHOLE)


@pytest.mark.parametrize(
    ("scheme", "flags", "said"),
    [
        (Scheme(WHOLE_STEPS[:1], WHOLE_STEPS), [], "no ffn in the encoder"),
        (Scheme(WHOLE_STEPS[2:], WHOLE_STEPS), [], "no self-attention in the encoder"),
        (Scheme(WHOLE_STEPS[::2], WHOLE_STEPS[::2]), [], "no cross-attention in the decoder"),
        (Scheme(WHOLE_STEPS[::2], WHOLE_STEPS[::2]), ["--no-cross-attention"], ""),
        (Scheme((), WHOLE_STEPS), [], "no self-attention and no ffn in the encoder"),
    ],
)
def test_a_scheme_applies_what_its_layers_have(scheme, flags, said, monkeypatch):
    """What it leaves out nothing would train."""
    monkeypatch.setitem(splitting.SCHEMES, "made-up", scheme)
    flags = ["--macaron-scheme", "made-up", *flags]
    if said:
        with pytest.raises(UserError, match=f"^the scheme 'made-up' has {said}, which its layers"):
            build_unfilled("macaron_transformer_tiny", *flags)
    else:
        build_unfilled("macaron_transformer_tiny", *flags)


@pytest.mark.parametrize(
    ("arch", "for_task", "scheme"),
    [
        ("macaron_roberta_tiny", masked_task, Scheme(WHOLE_STEPS[::2], ())),
        ("macaron_transformer_lm_tiny", language_task, Scheme((), WHOLE_STEPS[::2])),
    ],
)
def test_a_scheme_may_be_of_one_side(arch, for_task, scheme, monkeypatch):
    monkeypatch.setitem(splitting.SCHEMES, "made-up", scheme)
    build_model(arguments(arch, "--macaron-scheme", "made-up"), for_task())


@pytest.mark.parametrize("arch", ["macaron_transformer_tiny", "transformer_tiny_pre_norm"])
def test_the_old_name_of_activation_dropout(arch):
    """As fairseq's `transformer` takes it: where the new one is not given."""
    for flags, expected in (
        (["--relu-dropout", "0.5"], 0.5),
        (["--relu-dropout", "0.5", "--activation-dropout", "0.2"], 0.2),
        ([], 0.1),
    ):
        model = build_unfilled(arch, *flags)
        assert model.encoder.layers[0].activation_dropout_module.p == expected
    with pytest.raises(UserError, match=r"--activation-dropout 5\.0 is not a probability"):
        build_unfilled(arch, "--relu-dropout", "5")


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
    sizes = [count_parameters(build_unfilled(a)) for a in (arch, baseline(arch))]
    assert sizes[0] - sizes[1] == 3 * width * 2 * layers


# As `MACARON`, with the layers of encoder and decoder.
STUDENTS = {
    "macaron_transformer_student": (256, 8, (6, 2), 512),
    "macaron_transformer_student_tiny": (128, 4, (6, 1), 256),
}


@pytest.mark.parametrize("arch", STUDENTS)
def test_students_are_deep_encoders_with_shallow_decoders(arch):
    width, heads, layers, half = STUDENTS[arch]
    for name, inner in ((arch, half), (baseline(arch), 2 * half)):
        args = arguments(name)
        for side, depth in zip(("encoder", "decoder"), layers, strict=True):
            of_side = {name: getattr(args, f"{side}_{name}") for name in SIDE}
            assert of_side == dict(zip(SIDE, (width, heads, depth, inner, True), strict=True))
        assert (args.dropout, args.attention_dropout, args.activation_dropout) == (0.1,) * 3
    sizes = [count_parameters(build_unfilled(a)) for a in (arch, baseline(arch))]
    assert sizes[0] - sizes[1] == 3 * width * sum(layers)


@pytest.mark.parametrize("arch", MACARON)
def test_lie_trotter_takes_the_baselines_width(arch):
    stock = build_unfilled(baseline(arch))
    macaron = build_unfilled(arch, "--macaron-scheme", "lie-trotter")
    assert {n: p.shape for n, p in stock.named_parameters()} == {
        n: p.shape for n, p in macaron.named_parameters()
    }


@pytest.mark.parametrize("arch", ["macaron_transformer_tiny", "macaron_transformer_iwslt_de_en"])
@pytest.mark.parametrize("scheme", splitting.SCHEMES)
def test_every_scheme_is_as_large_as_the_baseline(arch, scheme):
    width, _, layers, _, _ = MACARON[arch]
    more = 3 * width * has_two_ffns(scheme)  # a LayerNorm, 2d, and a bias, d
    stock = count_parameters(build_unfilled(baseline(arch)))
    for substep in ("euler", "gated-rk2"):
        model = build_unfilled(arch, "--macaron-scheme", scheme, "--macaron-substep", substep)
        gates = sum(p.numel() for name, p in model.named_parameters() if ".gates." in name)
        assert count_parameters(model) - stock == layers * 2 * more + gates
        # A gate has 2d weights and a bias, for each sum of operators that steps go along.
        of_encoder, of_decoder = {"parallel": (1, 1), "lie-trotter": (2, 3)}.get(scheme, (0, 0))
        if substep == "gated-rk2" and of_encoder:
            assert gates == layers * (of_encoder + of_decoder) * (2 * width + 1)


def build_unfilled(arch, *flags):
    """A model whose parameters have shapes and no numbers."""
    with torch.device("meta"):
        return build_model(arguments(arch, *flags), task())


def test_each_side_has_its_own_scheme_and_widths():
    flags = ["--macaron-scheme", "strang-marchuk", "--macaron-decoder-scheme", "yoshida4"]
    args = arguments("macaron_transformer_tiny", *flags)
    assert (args.encoder_ffn_embed_dim, args.decoder_ffn_embed_dim) == (128, 256)
    model = build_model(args, task())
    assert [*model.encoder.layers[0].earlier] == ["0"]
    assert not model.decoder.layers[0].earlier
    flags = ["--macaron-encoder-scheme", "lie-trotter"]
    args = arguments("macaron_transformer_tiny", *flags)
    assert (args.encoder_ffn_embed_dim, args.decoder_ffn_embed_dim) == (256, 128)


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


@pytest.mark.parametrize("arch", [x for a in (*MACARON, *STUDENTS) for x in (a, baseline(a))])
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


# What the functions of these names in the authors' code fill in: widths and heads as in
# `MACARON`, whether pre-norm, (dropout, attention, activation).
RELEASED = {
    "transformer_iwslt_de_en_macaron": ("_iwslt_de_en", False, (0.1, 0, 0)),
    "transformer_iwslt_de_en_macaron_v2": ("_iwslt_de_en", True, (0.1, 0.1, 0.1)),
    "transformer_wmt_en_de_macaron": ("_wmt_en_de", False, (0.1, 0, 0)),
    "transformer_wmt_en_de_macaron_v2": ("_wmt_en_de", True, (0.1, 0.1, 0.1)),
    "transformer_wmt_en_de_big_t2t_macaron": ("_wmt_en_de_big", True, (0.3, 0.1, 0.1)),
}


@pytest.mark.parametrize("arch", RELEASED)
def test_the_released_names(arch):
    like, pre_norm, dropouts = RELEASED[arch]
    width, heads, layers, half, _ = MACARON[f"macaron_transformer{like}"]
    args = arguments(arch)
    for side in ("encoder", "decoder"):
        of_side = {name: getattr(args, f"{side}_{name}") for name in SIDE}
        assert of_side == dict(zip(SIDE, (width, heads, layers, half, pre_norm), strict=True))
    assert (args.dropout, args.attention_dropout, args.activation_dropout) == dropouts
    assert ARCH_MODEL_REGISTRY[arch] is MacaronTransformerModel


# Layers, and whether each has two FFNs, of the authors' BERT; all are 768 wide with 12 heads.
BERT = {
    "transformer_bert_base": (12, False),
    "transformer_bert_base_macaron": (12, True),
    "transformer_bert_L6_A12": (6, False),
    "transformer_bert_L6_A12_macaron": (6, True),
    "transformer_classifier_base": (12, False),
    "transformer_classifier_base_macaron": (12, True),
    "transformer_classifier_L6_A12": (6, False),
    "transformer_classifier_L6_A12_macaron": (6, True),
}


@pytest.mark.parametrize("arch", BERT)
def test_the_names_of_the_authors_bert(arch):
    layers, has_two = BERT[arch]
    args = arguments(arch)
    of_side = {name: getattr(args, f"encoder_{name}") for name in SIDE}
    assert of_side == dict(
        zip(SIDE, (768, 12, layers, 1536 if has_two else 3072, True), strict=True)
    )
    assert args.macaron_scheme == ("strang-marchuk" if has_two else "lie-trotter")
    assert args.no_normalize_affine and args.activation_fn == "gelu" and not args.pooler_dropout
    assert (args.dropout, args.attention_dropout, args.activation_dropout) == (0.1, 0.1, 0)
    assert args.only_classifies == ("classifier" in arch)


SIDE = ("embed_dim", "attention_heads", "layers", "ffn_embed_dim", "normalize_before")


def test_a_released_name_widens_the_encoder_alone():
    """But for the decoder's first FFN, which the authors' code makes as wide as the encoder's."""
    args = arguments("transformer_iwslt_de_en_macaron", "--encoder-ffn-embed-dim", "24")
    args.encoder_layers = args.decoder_layers = 1
    model = build_model(args, task())
    layers = [model.encoder.layers[0], model.decoder.layers[0]]
    assert [len(layer.fc1.weight) for layer in layers] == [24, 512]
    assert [len(layer.earlier["0"].network.fc1.weight) for layer in layers] == [24, 24]


def test_the_baselines_are_fairseqs_own_class():
    assert MODEL_REGISTRY["macaron_transformer"] is MacaronTransformerModel
    with torch.device("meta"):
        models = [build_model(arguments(baseline(arch)), task()) for arch in MACARON]
    assert {type(model) for model in models} == {TransformerModel}


@pytest.mark.parametrize("value", ["nan", "-0.1", "1.5", "inf"])
@pytest.mark.parametrize(
    "flag",
    ["--dropout", "--attention-dropout", "--activation-dropout", "--adaptive-softmax-dropout"],
)
def test_a_dropout_that_is_no_probability_is_refused(flag, value):
    with pytest.raises(UserError, match=f"{flag} {value} is not a probability: give 0 to 1"):
        build_unfilled("macaron_transformer_tiny", flag, value)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--cross-self-attention", "--no-cross-attention", "--decoder-embed-dim", "64"],
            "--cross-self-attention attends to both sides at once, but --encoder-embed-dim is 128",
        ),
        (
            ["--share-decoder-input-output-embed", "--decoder-output-dim", "8"],
            "projects by embeddings of width 128, but --decoder-output-dim is 8: give it 128",
        ),
    ],
)
def test_widths_that_do_not_go_together_are_refused(flags, said):
    with pytest.raises(UserError, match=said):
        build_unfilled("macaron_transformer_tiny", *flags)


@pytest.mark.parametrize("arch", ["macaron_transformer_tiny", "transformer_tiny_pre_norm"])
def test_some_layers_are_kept_of_both_kinds(arch):
    model = build_unfilled(arch, "--encoder-layers-to-keep", "0,2", "--decoder-layers-to-keep", "1")
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (2, 1)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_layers_are_a_number_and_their_dropout_a_probability(side):
    with pytest.raises(UserError, match=f"--{side}-layers is -3: give a number, 0 or more"):
        build_unfilled("macaron_transformer_tiny", f"--{side}-layers", "-3")
    with pytest.raises(UserError, match=f"--{side}-layerdrop nan is not a probability"):
        build_unfilled("macaron_transformer_tiny", f"--{side}-layerdrop", "nan")


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("macaron_transformer_tiny", "macaron_kernels"),
        ("macaron_transformer_tiny", "macaron_matmul"),
        ("macaron_transformer_tiny", "macaron_init"),
        ("transformer_tiny_pre_norm", "macaron_init"),
    ],
)
def test_choices_that_no_parser_has_seen_are_checked(arch, name):
    args = arguments(arch)
    setattr(args, name, "fairsq")
    flag = "--" + name.replace("_", "-")
    with pytest.raises(UserError, match=f"{flag} is fairsq: give one of "):
        build_model(args, task())


def test_an_architecture_of_hydra_train_for_another_task_is_refused():
    args = arguments("macaron_transformer_tiny")
    del args.arch
    args._name = "macaron_transformer_tiny"
    with pytest.raises(UserError, match="--arch macaron_transformer_tiny is not for --task lang"):
        build_model(args, language_task())


@pytest.mark.parametrize(
    ("arch", "side", "for_task"),
    [
        ("transformer_tiny_pre_norm", "encoder", task),
        ("transformer_tiny_pre_norm", "decoder", task),
        ("transformer_lm_tiny_pre_norm", "decoder", language_task),
        ("roberta_tiny_pre_norm", "encoder", masked_task),
    ],
)
def test_the_baselines_refuse_the_same_numbers(arch, side, for_task):
    for flags, said in (
        ((f"--{side}-layers", "-1"), f"--{side}-layers is -1: give a number, 0 or more"),
        ((f"--{side}-ffn-embed-dim", "0"), f"--{side}-ffn-embed-dim 0 is not above 0"),
        ((f"--{side}-attention-heads", "3"), f"among --{side}-attention-heads 3: choose"),
        (("--dropout", "1.5"), "--dropout 1.5 is not a probability"),
    ):
        with pytest.raises(UserError, match=said):
            build_model(arguments(arch, *flags), for_task())


@pytest.mark.parametrize("value", [-5, 0])
@pytest.mark.parametrize("name", ["embed-dim", "attention-heads", "ffn-embed-dim"])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_a_size_that_is_not_above_0_is_refused(side, name, value):
    with pytest.raises(UserError, match=f"--{side}-{name} {value} is not above 0"):
        build_unfilled("macaron_transformer_tiny", f"--{side}-{name}", str(value))
    with pytest.raises(UserError, match=f"--{side}-first-ffn-embed-dim {value} is not above 0"):
        build_unfilled("macaron_transformer_tiny", f"--{side}-first-ffn-embed-dim", str(value))


def test_each_name_of_a_model_has_a_class():
    own = [x for x, y in MODEL_REGISTRY.items() if y.__module__.startswith("macaron_fairseq.")]
    assert sorted(own) == sorted(architectures.MODELS)


def test_a_built_model_is_of_the_class_that_users_import_and_derive_from():
    """Its own methods are called; where fairseq's kernels are asked for, it says what to derive."""

    class Mine(MacaronTransformerModel):
        """A user's model."""

    small = arguments("macaron_transformer_tiny")
    assert isinstance(build_model(small, task()), MacaronTransformerModel)
    assert type(Mine.build_model(small, task())) is Mine
    plain = arguments("macaron_transformer_tiny", "--macaron-kernels", "fairseq")
    assert isinstance(MacaronTransformerModel.build_model(plain, task()), PlainModel)
    with pytest.raises(UserError, match=r"^Mine .* macaron_fairseq\.model\.transformer\.Macaron"):
        Mine.build_model(plain, task())
