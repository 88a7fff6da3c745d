"""`macaron-fairseq describe`: formulas, parameters and operations of a model's layers."""

import re
from argparse import Namespace

import pytest
import torch
from fairseq import models
from helpers import formulas
from helpers.paths import FIXTURES
from helpers.small import SMALL, arguments, build, dictionary, language_task, task
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from macaron_fairseq import UserError, cli
from macaron_fairseq.analysis import anatomy, description, empty_models, flops
from macaron_fairseq.schemes import splitting, substeps

CHECKPOINT = FIXTURES / "stored" / "checkpoint.pt"


def described(capsys, *words):
    cli.main(["describe", *map(str, words)])
    return capsys.readouterr().out


def test_the_papers_layers(capsys):
    assert described(capsys, "--path", CHECKPOINT) == (FIXTURES / "described.txt").read_text()


@pytest.mark.parametrize(
    ("size", "text"), [(1 / 3, "1/3"), (2 / 3, "2/3"), (-1, "-1"), (0.6756035959798289, "0.675604")]
)
def test_sizes_of_steps_as_one_writes_them(size, text):
    assert splitting.as_fraction(size) == text


def test_sizes_by_hand(capsys):
    """d 16, FFN 24 in two halves, 4 heads, 2+2 layers, 64 types, shared embeddings."""
    flags = [*SMALL, "--encoder-ffn-embed-dim", "12", "--share-all-embeddings", "--types", "64"]
    lines = described(
        capsys, "--arch", "macaron_transformer", *flags, "--tokens", "10"
    ).splitlines()
    attention, ffn, norm = 4 * (16 * 16 + 16), 2 * 16 * 24 + 24 + 16, 2 * 16
    encoder = attention + ffn + 2 * norm
    assert lines[7] == (
        f"  {encoder + 48:,} parameters; baseline {encoder:,} (+48, +{48 / encoder:.2%})"
    )
    # 2 operations for each weight, and two products of 10 x 16 with each other's tokens.
    operations = (2 * (4 * 16 * 16 + 2 * 16 * 24) + 4 * 10 * 16) / 1e6
    assert lines[8].startswith(f"  {operations:.3f} million operations; baseline {operations:.3f}")
    decoder = encoder + attention + norm
    assert f"  {decoder + 48:,} parameters; baseline {decoder:,} " in "\n".join(lines)
    whole = 2 * (encoder + decoder) + 2 * norm + 64 * 16
    assert f"  {whole + 4 * 48:,} parameters; baseline {whole:,} (+192" in "\n".join(lines)


def test_the_named_baseline_shows_a_wrong_width(capsys):
    """As wide as the baseline's in each half: with layers of its own, twice as wide."""
    flags = ["--encoder-ffn-embed-dim", "256", "--share-all-embeddings", "--types", "100"]
    lines = described(capsys, "--arch", "macaron_transformer_tiny", *flags)
    d, layers = 128, 4
    attention, ffn, norm = 4 * (d * d + d), 2 * d * 256 + 256 + d, 2 * d
    whole = layers * (3 * attention + 2 * ffn + 5 * norm) + 2 * norm + 100 * d
    more = 2 * layers * (ffn + norm)
    assert (
        f"  transformer_tiny_pre_norm, whose FFNs are 256 wide, has {whole:,} "
        f"({more:+,}, {more / whole:+.2%})" in lines.splitlines()
    )


FORMULAS = {
    ("--macaron-scheme", "parallel"): [
        "  x <- x + Self(LN x) + FFN(LN x)",
        "  x <- x + Self(LN x) + Cross(LN x) + FFN(LN x)",
        "(the same)",
    ],
    ("--macaron-scheme", "yoshida4"): [
        "  x <- x + 0.675604 FFN(LN x)",
        "  x <- x - 1.70241 Self(LN x)",
    ],
    ("--macaron-scheme", "yoshida4", "--macaron-substep", "midpoint"): [
        "  x <- x - 1.70241 k,  f(x) = Self(LN x),  h = -1.70241",
    ],
    ("--macaron-substep", "midpoint"): [
        "  x <- x + 1/2 k,  f(x) = FFN1(LN x),  h = 1/2",
        "  x <- x + k,  f(x) = Self(LN x),  h = 1",
        "  k = f(x + h/2 f(x))",
        "(2.00 times as many)",
    ],
    ("--macaron-substep", "rk4"): [
        "  x <- x + 1/2 k,  f(x) = FFN2(LN x),  h = 1/2",
        "  k = (k1 + 2 k2 + 2 k3 + k4)/6, k1 = f(x), k2 = f(x + h/2 k1), k3 = f(x + h/2 k2), "
        "k4 = f(x + h k3)",
        "(4.00 times as many)",
    ],
    ("--macaron-substep", "gated-rk2"): [
        "  x <- x + k,  f(x) = Cross(LN x),  h = 1",
        "  k = g k1 + (1 - g) k2, k1 = f(x), k2 = f(x + h k1), g = sigmoid(W [k1; k2] + b)",
    ],
    ("--macaron-post-norm",): ["  x <- LN(x + 1/2 FFN1(x))", "post-norm"],
    ("--macaron-decoder-scheme", "strang-symmetric"): [
        "encoder strang-marchuk, decoder strang-symmetric; sub-step euler",
        "  x <- x + 1/2 Self(LN x)",
    ],
}


@pytest.mark.parametrize(("flags", "expected"), FORMULAS.items())
def test_formulas(flags, expected, capsys):
    lines = described(capsys, "--arch", "macaron_transformer_tiny", *flags)
    for line in expected:
        assert line in lines


@pytest.mark.parametrize("scheme", splitting.SCHEMES)
def test_the_difference_of_each_layer(scheme, capsys):
    """Of d = 128, and FFNs of 256 in all; a gate for each of the sums that steps go along."""
    attention, ffn, norm = 4 * (128 * 128 + 128), 2 * 128 * 256 + 256 + 128, 2 * 128
    encoder, decoder = attention + ffn + 2 * norm, 2 * attention + ffn + 3 * norm
    has_two_ffns = formulas.has_two_ffns(scheme)
    gates = {"parallel": (1, 1)}.get(scheme, (3, 4) if has_two_ffns else (2, 3))
    for flags, of_gates in ((["euler"], (0, 0)), (["gated-rk2"], gates)):
        flags = ["--macaron-scheme", scheme, "--macaron-substep", *flags]
        lines = described(capsys, "--arch", "macaron_transformer_tiny", *flags)
        for baseline, count in zip((encoder, decoder), of_gates, strict=True):
            more = 3 * 128 * has_two_ffns + count * (2 * 128 + 1)
            stated = f"{more:+,}, {more / baseline:+.2%}" if more else "the same"
            whole = f"  {baseline + more:,} parameters; baseline {baseline:,} ({stated})"
            assert whole in lines.splitlines()


def test_fairseqs_transformer(capsys):
    lines = described(capsys, "--arch", "transformer_tiny_pre_norm").splitlines()
    assert lines[0] == "transformer_tiny_pre_norm: fairseq's own layers"
    assert lines[3:6] == [
        "  x <- x + Self(LN x)",
        "  x <- x + FFN(LN x)",
        "  Self of 4 heads; FFN 128 -> 256 -> 128",
    ]
    assert sum("(the same)" in line for line in lines) == 3


def layer_by_hand(d, ffn):
    """Parameters of an encoder layer, and operations for a token in sentences of ten."""
    parameters = 4 * (d * d + d) + 2 * d * ffn + ffn + d + 2 * 2 * d
    return parameters, (2 * (4 * d * d + 2 * d * ffn) + 4 * 10 * d) / 1e6


def test_masked_language_models(capsys):
    flags = ["--encoder-layers", "2", "--types", "100", "--tokens", "10"]
    lines = described(capsys, "--arch", "roberta_base", *flags).splitlines()
    parameters, operations = layer_by_hand(768, 3072)
    assert lines[0] == "roberta_base: fairseq's own layers"
    assert lines[2:6] == [
        "encoder, 2 layers of width 768, post-norm",
        "  x <- LN(x + Self(x))",
        "  x <- LN(x + FFN(x))",
        "  Self of 12 heads; FFN 768 -> 3072 -> 768",
    ]
    assert lines[6].startswith(f"  {parameters:,} parameters; baseline {parameters:,} (the same)")
    assert lines[7].startswith(f"  {operations:.3f} million operations; ")
    assert not any(line.startswith("decoder") for line in lines)


@pytest.mark.parametrize("arch", ["roberta", "masked_lm"])
def test_checkpoints_of_masked_language_models(arch, tmp_path, capsys):
    sizes = {"embed_dim": 16, "ffn_embed_dim": 24, "attention_heads": 4, "layers": 2}
    args = Namespace(arch=arch, max_positions=12, tokens_per_sample=12)
    for name, value in sizes.items():
        setattr(args, f"encoder_{name}", value)
    words = dictionary(60)
    both = Namespace(source_dictionary=words, dictionary=words)
    model = models.build_model(args, both)
    old = {name.replace("encoder.", "decoder.", 1): x for name, x in model.state_dict().items()}
    args.max_positions = None
    torch.save({"args": args, "model": old}, tmp_path / "x.pt")
    lines = described(capsys, "--path", tmp_path / "x.pt", "--tokens", "10").splitlines()
    assert lines[2] == "encoder, 2 layers of width 16, post-norm"
    parameters, operations = layer_by_hand(16, 24)
    assert lines[6].startswith(f"  {parameters:,} parameters; ")
    assert lines[7].startswith(f"  {operations:.3f} million operations; ")
    whole = sum(p.numel() for p in model.parameters())
    assert lines[9:11] == [
        "whole model, with embeddings of 64 types",
        f"  {whole:,} parameters",
    ]


def test_a_checkpoint_of_the_authors_says_less_of_itself(capsys):
    """That of their BERT baseline has no scheme: it is the Transformer's."""
    found = FIXTURES / "reference/bert_small/baseline/checkpoint.pt"
    said = described(capsys, "--path", found)
    assert "transformer_bert_base: lie-trotter" in said
    layer = 4 * (16 * 16 + 16) + (16 * 48 + 48) + (48 * 16 + 16)  # its LayerNorms have no weights
    assert f"{layer:,} parameters; baseline {layer:,} (the same)" in said


def test_every_architecture_that_is_offered_can_be_described():
    """Also those that other models of fairseq register."""
    offered = [name for name, x in models.ARCH_MODEL_REGISTRY.items() if empty_models.is_known(x)]
    assert {"roberta_large", "bert_base", "transformer", "macaron_transformer"} <= {*offered}
    assert {"macaron_roberta_base", "transformer_lm_tiny_pre_norm"} <= {*offered}
    assert "xmod_base" not in offered  # whose layers have adapters
    # Narrow, where weights are drawn for real.
    narrow = {"encoder_embed_dim": 16, "encoder_ffn_embed_dim": 16, "encoder_attention_heads": 2}
    for name in offered:
        small = Namespace(**{"decoder_layers" if "transformer_lm" in name else "encoder_layers": 1})
        if anatomy.is_masked_lm(models.ARCH_MODEL_REGISTRY[name]):
            vars(small).update(narrow)
        text_of_it = str(description.describe(*empty_models.of_architecture(name, small, 10), 5))
        assert text_of_it.startswith(f"{name}: ")


@pytest.mark.parametrize("arch", ["transformer_tiny_pre_norm", "macaron_transformer_tiny"])
def test_first_weights_change_no_formula(arch, capsys):
    plain, released = (
        described(capsys, "--arch", arch, *flags) for flags in ([], ["--macaron-init", "released"])
    )
    assert plain == released


def test_a_first_half_of_another_width(capsys):
    flags = ["--arch", "macaron_transformer_tiny", "--encoder-first-ffn-embed-dim", "64"]
    lines = described(capsys, *flags).splitlines()
    assert lines[6] == "  FFN1 128 -> 64 -> 128; Self of 4 heads; FFN2 128 -> 128 -> 128"
    assert "(+384, " in lines[7]  # the baseline's FFN is 192 wide


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--arch", "macaron_transformer_tinny"], ". Did you mean macaron_transformer_tiny"),
        (["--arch", "macaron_transformer", "--macaron-scheme", "x"], "--macaron-scheme takes lie"),
        (["--path", CHECKPOINT, "--macaron-scheme", "parallel"], "give no flags of the model"),
        (["--path", CHECKPOINT, "--types", "9"], "and no --types, with --path"),
        (
            ["--arch", "transformer_tiny_pre_norm", "--macaron-substep", "rk4"],
            "transformer_tiny_pre_norm, which is fairseq's own, has no --macaron-substep: drop it",
        ),
        (
            ["--arch", "transformer", "--decoder-first-ffn-embed-dim", "8"],
            "has no --decoder-first-ffn-embed-dim: drop it",
        ),
        (
            ["--arch", "roberta_base", "--macaron-scheme", "parallel"],
            "own, has no --macaron-scheme",
        ),
        (["--path", "none.pt"], "none.pt: no such checkpoint"),
    ],
)
def test_mistakes(words, sentence, capsys):
    with pytest.raises(UserError) as error:
        described(capsys, *words)
    assert sentence in str(error.value)


def test_a_checkpoint_of_another_model(tmp_path, capsys):
    path = tmp_path / "x.pt"
    torch.save({"args": Namespace(arch="lightconv_iwslt_de_en"), "model": {}}, path)
    with pytest.raises(UserError, match="lightconv_iwslt_de_en, which is not supported"):
        described(capsys, "--path", path)


def test_a_language_model_of_fairseqs(tmp_path, capsys):
    """It is among the supported ones. A file of embeddings that it began with may be gone."""
    flags = ["--task", "language_modeling", "--decoder-layers", "2", "--decoder-embed-dim", "16"]
    flags += ["--decoder-ffn-embed-dim", "24", "--decoder-attention-heads", "4"]
    args = arguments("transformer_lm", *flags)
    state = language_task().build_model(args).state_dict()
    args.decoder_embed_path = "/gone"
    torch.save(
        {"args": Namespace(**{**vars(args), "arch": "transformer_lm"}), "model": state},
        tmp_path / "x.pt",
    )
    said = described(capsys, "--path", tmp_path / "x.pt")
    attention, ffn, norm = 4 * (16 * 16 + 16), 2 * 16 * 24 + 24 + 16, 2 * 16
    assert f"{attention + ffn + 2 * norm:,} parameters" in said


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--encoder-attention-heads", "5"], "divisible"),
        (["--encoder-attention-heads", "0"], "zero"),
        (
            ["--encoder-embed-dim", "16", "--decoder-embed-dim", "32", "--share-all-embeddings"],
            "requires",
        ),
        (["--encoder-embed-path", "/none"], "/none"),
    ],
)
def test_arguments_that_fairseq_cannot_build(flags, reason, capsys):
    with pytest.raises(UserError, match=rf"^fairseq cannot build transformer: .*{reason}"):
        described(capsys, "--arch", "transformer", *flags)


def test_an_architecture_has_its_own_models_flags(capsys):
    """Untied, the masked model's output is a matrix of 256 x 10,000 more."""

    def parameters(*flags):
        said = described(capsys, "--arch", "macaron_roberta_tiny", *flags)
        whole = re.search(r"with embeddings of 10,000 types\n  ([\d,]+) parameters", said)[1]
        return int(whole.replace(",", ""))

    assert parameters("--untie-weights-roberta") - parameters() == 2_560_000
    with pytest.raises(UserError, match="macaron_transformer_tiny has no --untie-weights-roberta"):
        described(capsys, "--arch", "macaron_transformer_tiny", "--untie-weights-roberta")


def test_a_checkpoint_without_embeddings(tmp_path, capsys):
    torch.save({"args": Namespace(arch="transformer"), "model": {}}, tmp_path / "x.pt")
    with pytest.raises(UserError, match=r"x\.pt has no 'encoder\.embed_tokens\.weight'"):
        described(capsys, "--path", tmp_path / "x.pt")


# --- operations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        *(
            ["--macaron-scheme", scheme, "--macaron-substep", substep]
            for scheme in splitting.SCHEMES
            for substep in substeps.SUBSTEPS
        ),
        ["--cross-self-attention", "--no-cross-attention"],
    ],
    ids=" ".join,
)
def test_operations_as_pytorch_counts_them(flags):
    model = build(
        "macaron_transformer", *SMALL, *flags, for_task=task(dictionary(60), dictionary(90))
    )
    source, target = torch.randint(4, 64, (3, 7)), torch.randint(4, 94, (3, 5))
    with (
        torch.no_grad(),
        FlopCounterMode(display=False) as counter,
        sdpa_kernel(SDPBackend.MATH),
    ):
        model(source, torch.full((3,), 7), target)
    assert flops.of_model(model).forward([(7, 5)] * 3) == counter.get_total_flops()


def test_operations_by_hand():
    work = flops.Work(
        source_weights=10, target_weights=20, encoder_width=3, decoder_width=4, cross_width=5
    )
    # 2 (2*10 + 3*20) + 4 (2*2*3 + 3*3*4 + 2*3*5)
    assert work.forward([(2, 3)]) == 160 + 312
    assert work.forward([(2, 3), (2, 3)]) == 2 * 472
    assert work.training([(2, 3)]) == 3 * 472


def test_weights_and_widths_by_hand():
    # d 16, 2+2 layers, FFN 24 (Macaron: 12 + 12), 64 types.
    sizes = ["--encoder-embed-dim", "16", "--encoder-layers", "2", "--encoder-attention-heads", "4"]
    sizes += ["--decoder-embed-dim", "16", "--decoder-layers", "2"]
    sizes += ["--decoder-attention-heads", "4", "--share-all-embeddings"]
    attention, keys_and_values, ffn = 4 * 16 * 16, 2 * 16 * 16, 2 * 16 * 24
    expected = flops.Work(
        source_weights=2 * (attention + ffn + keys_and_values),
        target_weights=2 * (attention + attention - keys_and_values + ffn) + 64 * 16,
        encoder_width=2 * 16,
        decoder_width=2 * 16,
        cross_width=2 * 16,
    )
    for arch, width in (("transformer_tiny_pre_norm", "24"), ("macaron_transformer_tiny", "12")):
        assert flops.of_model(build(arch, *sizes, "--encoder-ffn-embed-dim", width)) == expected


@pytest.mark.parametrize("arch", ["transformer_tiny_pre_norm", "macaron_transformer_tiny"])
def test_operations_of_training_as_pytorch_counts_them(arch):
    model = build(arch, for_task=task(dictionary(60), dictionary(90))).train()
    source, target = torch.randint(4, 64, (3, 7)), torch.randint(4, 94, (3, 5))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        output, _ = model(source, torch.full((3,), 7), target)
        output.sum().backward()
    assert flops.of_model(model).training([(7, 5)] * 3) == counter.get_total_flops()


def test_a_folder_is_told_which_checkpoints_it_holds(tmp_path):
    def refused(folder):
        with pytest.raises(UserError) as error:
            cli.main(["describe", "--path", str(folder)])
        return str(error.value)

    run = tmp_path / "runs" / "seed1"
    run.mkdir(parents=True)
    assert refused(run) == (
        f"{run} is a folder that holds no checkpoint (*.pt): name a file of fairseq-train"
    )
    for name in ("checkpoint12.pt", "checkpoint_last.pt", "checkpoint_best.pt"):
        (run / name).touch()
    assert refused(run) == (
        f"{run} is a folder: name one of its checkpoints, checkpoint_best.pt, checkpoint_last.pt "
        "or checkpoint12.pt"
    )
    for number in (3, 4, 5):
        (run / f"checkpoint{number}.pt").touch()
    assert refused(run).endswith("checkpoint12.pt, checkpoint3.pt or 2 more")
    # Of a folder of folders, those in them.
    assert refused(run.parent).startswith(
        f"{run.parent} is a folder: name one of its checkpoints, seed1/checkpoint_best.pt, "
    )
