"""Causal language models: fairseq's model bit for bit, causality, caches, scoring, refusals."""

import numpy as np
import pytest
import torch
from fairseq.data import TruncatedDictionary, token_block_dataset
from fairseq.models import build_model
from fairseq.models.transformer import TransformerDecoderBase
from fairseq.models.transformer_lm import TransformerLanguageModel, TransformerLanguageModelConfig
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from helpers.formulas import DECODERS, goes_with_post_norm, layer_of
from helpers.small import (
    NO_DROPOUT,
    SMALL_DECODER,
    arguments,
    build,
    dictionary,
    language_task,
    masked_task,
)
from omegaconf import OmegaConf
from torch import nn

from macaron_fairseq import UserError
from macaron_fairseq.fast import attention
from macaron_fairseq.schemes import splitting, substeps

SIZES = {"": (768, 12, 12, 1536), "_small": (512, 8, 6, 1024), "_tiny": (256, 4, 4, 512)}
WIDE = [*SMALL_DECODER, "--decoder-ffn-embed-dim", "24"]
FAIRSEQS = ["--macaron-scheme", "lie-trotter", "--macaron-kernels", "fairseq"]


def lm(arch, *flags, types=60, **kwargs):
    flags = ["--task", "language_modeling", *flags]
    return build(arch, *flags, for_task=language_task(types), **kwargs)


def lines(lengths=(9, 5, 7, 3), types=64, seed=1):
    """What the model reads of right-padded texts, each after </s>."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.full((len(lengths), max(lengths)), 1)
    for row, length in zip(tokens, lengths, strict=True):
        row[:length] = torch.randint(4, types, (length,), generator=generator)
        row[0] = 2
    return tokens


@pytest.mark.parametrize("arch", ["macaron_transformer_lm_tiny", "transformer_lm_tiny_pre_norm"])
@pytest.mark.parametrize("tokens", [32, 2000])
def test_of_hydras_arguments_the_task_says_how_long_samples_are(tokens, arch):
    """And the checkpoint then says how many positions there are, at least as many as before."""
    cfg = OmegaConf.create({"_name": arch, "decoder_embed_dim": 16, "decoder_ffn_embed_dim": 8})
    OmegaConf.set_struct(cfg, True)
    model = build_model(cfg, language_task(tokens_per_sample=tokens))
    assert model.max_positions() == cfg.max_target_positions == max(tokens, 1024)
    again = build_model(cfg, language_task(tokens_per_sample=64))
    assert again.max_positions() == max(tokens, 1024)


@pytest.mark.parametrize("size", SIZES)
def test_settings(size):
    width, heads, layers, half = SIZES[size]
    macaron = arguments(f"macaron_transformer_lm{size}", "--task", "language_modeling")
    stock = arguments(f"transformer_lm{size}_pre_norm", "--task", "language_modeling")
    for args, inner in ((macaron, half), (stock, 2 * half)):
        assert args.decoder_embed_dim == args.decoder_input_dim == args.decoder_output_dim == width
        assert args.decoder_attention_heads == heads
        assert args.decoder_layers == layers
        assert args.decoder_ffn_embed_dim == inner
        assert args.decoder_normalize_before is True
        assert args.share_decoder_input_output_embed is True
        assert args.activation_fn == "gelu"
        assert (args.dropout, args.attention_dropout, args.activation_dropout) == (0.1, 0.1, 0)


@pytest.mark.parametrize("size", SIZES)
def test_baseline_is_fairseqs_class_with_3d_parameters_less_per_layer(size):
    width, _, layers, _ = SIZES[size]
    with torch.device("meta"):
        macaron, stock = (
            build_model(arguments(arch, "--task", "language_modeling"), language_task())
            for arch in (f"macaron_transformer_lm{size}", f"transformer_lm{size}_pre_norm")
        )
    assert type(stock) is TransformerLanguageModel
    sizes = [sum(p.numel() for p in model.parameters()) for model in (macaron, stock)]
    assert sizes[0] - sizes[1] == 3 * width * layers


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--decoder-learned-pos", "--no-scale-embedding", "--layernorm-embedding"],
        ["--no-decoder-final-norm", "--decoder-input-dim", "12"],
        ["--decoder-layerdrop", "0.5"],
    ],
    ids=" ".join,
)
def test_lie_trotter_is_fairseqs_transformer_lm(flags):
    """Same names, same numbers bit for bit in evaluation and in three steps of training."""
    dropout = ["--dropout", "0.1", "--attention-dropout", "0.1", "--activation-dropout", "0.1"]
    common = [*WIDE, *dropout, *flags]
    shared = [] if "--decoder-input-dim" in flags else ["--share-decoder-input-output-embed"]
    stock = lm("transformer_lm_gpt", *common, *shared)
    macaron = lm("macaron_transformer_lm", *FAIRSEQS, *common)
    assert [*stock.state_dict()] == [*macaron.state_dict()]
    for a, b in zip(stock.parameters(), macaron.parameters(), strict=True):
        assert torch.equal(a, b)
    tokens = lines()
    for inputs in (tokens, tokens[:1]):
        assert torch.equal(stock(inputs)[0], macaron(inputs)[0])
    found = []
    for model in (stock.train(), macaron.train()):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for update in range(3):
            torch.manual_seed(100 + update)
            model.zero_grad()
            logits = model(tokens)[0].flatten(0, 1)
            torch.nn.functional.cross_entropy(logits, tokens.roll(-1, 1).flatten()).backward()
            if update < 2:
                optimizer.step()
        found.append([p.grad for p in model.parameters()])
    for name, one, other in zip(dict(stock.named_parameters()), *found, strict=True):
        assert (one is None and other is None) or torch.equal(one, other), name


STEPS = [
    *(
        ["--macaron-scheme", scheme, "--macaron-substep", substep]
        for scheme in splitting.SCHEMES
        for substep in substeps.SUBSTEPS
    ),
    *(
        ["--macaron-scheme", scheme, "--macaron-post-norm"]
        for scheme in splitting.SCHEMES
        if goes_with_post_norm(scheme)
    ),
]


@pytest.mark.parametrize("kernels", ["fairseq", "fused"])
@pytest.mark.parametrize("flags", STEPS, ids=" ".join)
def test_a_position_sees_nothing_after_it(flags, kernels):
    """Other tokens after position t leave all logits up to t as they are; those at t count."""
    model = lm("macaron_transformer_lm_tiny", *WIDE, *flags, "--macaron-kernels", kernels).double()
    tokens = lines((8, 8))
    with torch.no_grad():
        before = model(tokens)[0]
        for t in range(1, 8):
            other = tokens.clone()
            other[:, t:] = (other[:, t:] - 4 + 7) % 60 + 4
            after = model(other)[0]
            assert (after[:, :t] - before[:, :t]).abs().max() <= 1e-12
            assert (after[:, t] - before[:, t]).abs().max() > 1e-6


@pytest.mark.parametrize("scheme", splitting.SCHEMES)
def test_a_position_of_a_long_text_sees_nothing_after_it(scheme):
    """On a CPU, PyTorch's causal kernel attends from 65 tokens on."""
    flags = ["--macaron-scheme", scheme, "--macaron-kernels"]
    fused, plain = (
        lm("macaron_transformer_lm_tiny", *WIDE, *flags, kernels).double()
        for kernels in ("fused", "fairseq")
    )
    tokens = lines((70, 70))
    assert tokens.shape[1] > attention.SHORT
    with torch.no_grad():
        before = fused(tokens)[0]
        assert (before - plain(tokens)[0]).abs().max() <= 1e-9
        for t in (1, 63, 64, 65, 69):
            other = tokens.clone()
            other[:, t:] = (other[:, t:] - 4 + 7) % 60 + 4
            after = fused(other)[0]
            assert (after[:, :t] - before[:, :t]).abs().max() <= 1e-12
            assert (after[:, t] - before[:, t]).abs().max() > 1e-6


@pytest.mark.parametrize("kernels", ["fairseq", "fused"])
@pytest.mark.parametrize("flags", STEPS, ids=" ".join)
def test_cached_decoding_equals_full_decoding(flags, kernels):
    model = lm("macaron_transformer_lm_tiny", *WIDE, *flags, "--macaron-kernels", kernels)
    tokens = lines((8, 8, 8))
    state = {}
    with torch.no_grad():
        full = model(tokens)[0]
        for t in range(8):
            if t == 4:  # as beam search does
                order = torch.tensor([2, 0, 0])
                model.decoder.reorder_incremental_state_scripting(state, order)
                tokens, full = tokens[order], full[order]
                tokens[2, 4:] = tokens[2, 4:].flip(0)
                full = model(tokens)[0]
            last = model.decoder(tokens[:, : t + 1], incremental_state=state)[0]
            assert (last[:, 0] - full[:, t]).abs().max() <= 1e-5


@pytest.mark.parametrize("scheme", splitting.SCHEMES)
def test_every_scheme_is_the_formula_without_cross_attention(scheme, monkeypatch):
    monkeypatch.setattr("fairseq.utils.softmax", lambda x, dim, onnx_trace=False: x.softmax(dim))
    flags = ["--macaron-scheme", scheme, "--activation-fn", "relu"]
    model = lm("macaron_transformer_lm_tiny", *WIDE, *flags).double()
    steps = [
        (size, *(name for name in names if name != "cross"))
        for size, *names in DECODERS[scheme]
        if names != ["cross"]
    ]
    with torch.no_grad():
        states = [x.transpose(0, 1) for x in model(lines((6, 6)))[1]["inner_states"]]
        hidden = torch.ones(6, 6).triu(1).bool().expand(2, -1, -1)
        for before, after, layer in zip(states[:-1], states[1:], model.decoder.layers, strict=True):
            p = dict(layer.named_parameters())
            expected = layer_of(p, steps, "euler", before, 4, hidden)
            assert (after - expected).abs().max() <= 1e-9


def test_beam_search_with_a_prefix_finds_what_fairseqs_kernels_find():
    model = lm("macaron_transformer_lm_tiny", *WIDE)
    plain = lm("macaron_transformer_lm_tiny", *WIDE, "--macaron-kernels", "fairseq")
    plain.load_state_dict(model.state_dict())
    prefix = torch.tensor([[5, 6, 7], [8, 9, 10]])
    sample = {"net_input": {"src_tokens": prefix, "src_lengths": torch.tensor([3, 3])}}
    found = []
    for one in (model, plain):
        generator = SequenceGenerator([one], dictionary(), beam_size=3, max_len_a=0, max_len_b=9)
        hypotheses = generator.generate([one], sample, prefix_tokens=prefix, bos_token=2)
        found.append([x[0]["tokens"].tolist() for x in hypotheses])
    assert found[0] == found[1]
    assert [x[:3] for x in found[0]] == prefix.tolist()


def test_adaptive_input_and_softmax_are_fairseqs():
    flags = ["--adaptive-input", "--adaptive-input-cutoff", "20,40", "--adaptive-softmax-cutoff"]
    flags += ["20,40", *WIDE, *NO_DROPOUT]
    stock, macaron = (
        lm("transformer_lm_gpt", *flags),
        lm("macaron_transformer_lm", *FAIRSEQS, *flags),
    )
    assert [*stock.state_dict()] == [*macaron.state_dict()]
    macaron.load_state_dict(stock.state_dict())
    with torch.no_grad():
        assert torch.equal(stock(lines())[0], macaron(lines())[0])


def test_adaptive_input_costs_no_layers_of_fairseqs(monkeypatch):
    """fairseq builds it together with a model, and the layers to keep would be built, too."""
    built = []
    monkeypatch.setattr(
        TransformerDecoderBase,
        "build_decoder_layer",
        lambda self, *args, **kwargs: built.append(1) or nn.Identity(),
    )
    flags = ["--adaptive-input", "--adaptive-input-cutoff", "20,40", "--adaptive-softmax-cutoff"]
    flags += ["20,40", *WIDE, "--decoder-layers-to-keep", "0,1"]
    lm("macaron_transformer_lm", *FAIRSEQS, *flags)
    assert not built


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("arch", ["macaron_transformer_lm_tiny", "transformer_lm_tiny_pre_norm"])
def test_an_adaptive_softmax_has_the_weights_of_adaptive_input_if_told_so(arch, is_tied):
    flags = ["--adaptive-input", "--adaptive-input-cutoff", "20,40", "--adaptive-softmax-cutoff"]
    flags += ["20,40", *SMALL_DECODER, *["--tie-adaptive-weights"] * is_tied]
    decoder = lm(arch, *flags).decoder
    weights = [*decoder.adaptive_softmax.parameters()]
    bands = [band[0].weight for band in decoder.embed_tokens.embeddings]
    assert [len(x) for x in bands] == [20, 20, 64 - 40]
    assert [any(x is w for w in weights) for x in bands] == [is_tied] * 3


ADAPTIVE = [*SMALL_DECODER, "--adaptive-softmax-cutoff", "20,40"]


@pytest.mark.parametrize("arch", ["macaron_transformer_lm_tiny", "transformer_lm_tiny_pre_norm"])
def test_an_adaptive_softmax_loads(arch):
    """Although these share the embeddings with the output, if it has no weights itself."""
    model, again = (lm(arch, *ADAPTIVE, seed=seed) for seed in (1, 2))
    again.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(model(lines())[0], again(lines())[0])


def test_fairseq_cannot_load_an_adaptive_softmax_that_is_told_to_share():
    model = lm("transformer_lm", *ADAPTIVE, "--share-decoder-input-output-embed")
    with pytest.raises(RuntimeError, match=r"Unexpected key.*output_projection"):
        model.load_state_dict(model.state_dict())


@pytest.mark.parametrize("arch", ["macaron_transformer_lm_tiny", "transformer_lm_tiny_pre_norm"])
def test_a_smaller_dictionary_of_the_output(arch):
    """As many types are predicted, by weights that are not the embeddings'."""
    words = dictionary(60)
    smaller = LanguageModelingTask(LanguageModelingConfig(), words, TruncatedDictionary(words, 40))
    flags = ["--task", "language_modeling", *SMALL_DECODER]
    model = build(arch, *flags, "--output-dictionary-size", "40", for_task=smaller)
    assert model(lines())[0].shape[-1] == 40
    tied = build(arch, *flags, "--share-decoder-input-output-embed", for_task=smaller)
    assert tied(lines())[0].shape[-1] == 64  # as those load that were trained so


# --- fairseq with numpy 2 ------------------------------------------------------------------------


def split_at_sentences():
    return token_block_dataset.TokenBlockDataset(
        [torch.tensor([5, 2]), torch.tensor([6, 7, 2])], [2, 3], None, 1, 2, break_mode="eos"
    )


@pytest.mark.skipif(hasattr(np, "compat"), reason="numpy 1 has the name")
def test_fairseq_uses_a_name_that_numpy_lost(monkeypatch):
    """The fault of fairseq's that `compat.numpy_names` is for."""
    monkeypatch.setattr(token_block_dataset, "np", np)
    with pytest.raises(AttributeError, match="compat"):
        split_at_sentences()


def test_text_is_split_at_sentences():
    assert [x.tolist() for x in split_at_sentences()] == [[5, 2], [6, 7, 2]]


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["macaron_transformer_lm_tiny", "transformer_lm_tiny_pre_norm"])
def test_what_does_not_go_together_is_refused(arch):
    with pytest.raises(UserError, match="--tokens-per-sample 64 is more than the 32 positions"):
        lm(arch, *SMALL_DECODER, "--tokens-per-sample", "64", "--max-target-positions", "32")
    lines = ["--sample-break-mode", "eos"]  # which are samples then, however long
    lm(arch, *SMALL_DECODER, *lines, "--tokens-per-sample", "64", "--max-target-positions", "32")
    with pytest.raises(UserError, match=f"{arch} is not for --task masked_lm: give --task lang"):
        build(arch, *SMALL_DECODER, for_task=masked_task())


@pytest.mark.parametrize("arch", ["macaron_transformer_lm_tiny", "transformer_lm_tiny_pre_norm"])
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--adaptive-input", "--adaptive-input needs --adaptive-input-cutoff"),
        ("--tie-adaptive-weights", "--tie-adaptive-weights needs --adaptive-input"),
        (
            "--adaptive-input --adaptive-input-cutoff 20,40 --tie-adaptive-weights "
            "--adaptive-softmax-cutoff 10,40",
            "--adaptive-input-cutoff is 20,40 and --adaptive-softmax-cutoff 10,40",
        ),
        (
            "--adaptive-input --adaptive-input-cutoff 20,40 --tie-adaptive-weights "
            "--adaptive-softmax-cutoff 20,40 --decoder-output-dim 8",
            "needs one width, but --decoder-input-dim is 256 and --decoder-output-dim 8",
        ),
        ("--share-decoder-input-output-embed --decoder-output-dim 8", "give it 256, or drop one"),
    ],
)
def test_embeddings_that_do_not_go_together_are_refused(flags, said, arch):
    with pytest.raises(UserError, match=said):
        lm(arch, *flags.split())


@pytest.mark.parametrize("name", ["attn", "fc", "heads", "resids"])
def test_scales_of_fairseqs_layers_are_refused(name):
    with pytest.raises(UserError, match=f"--scale-{name} is for fairseq's own layers: leave it"):
        lm("macaron_transformer_lm_tiny", *SMALL_DECODER, f"--scale-{name}")


@pytest.mark.parametrize("arch", ["macaron_transformer_lm_tiny", "transformer_lm_tiny_pre_norm"])
def test_characters_are_embedded_by_fairseqs_defaults(arch):
    """Which none of its architectures sets, so that they are given to its own here."""
    defaults = TransformerLanguageModelConfig()
    given = ["--character-filters", defaults.character_filters]
    given += ["--character-embedding-dim", str(defaults.character_embedding_dim)]
    given += ["--char-embedder-highway-layers", str(defaults.char_embedder_highway_layers)]
    flags = [*SMALL_DECODER, "--character-embeddings"]
    found, expected = (
        {name: x.shape for name, x in model.decoder.embed_tokens.named_parameters()}
        for model in (lm(arch, *flags), lm("transformer_lm_gpt", *flags, *given))
    )
    assert found == expected and len(found) > 10


def test_another_dictionary_is_refused():
    saved = lm("macaron_transformer_lm_tiny", *WIDE).state_dict()
    with pytest.raises(UserError, match="embeds 64 types, but the dictionary has 54"):
        lm("macaron_transformer_lm_tiny", *WIDE, types=50).load_state_dict(saved)


def test_senseless_steps_are_refused():
    with pytest.raises(UserError, match="'parallel' needs pre-norm in the decoder"):
        lm("macaron_transformer_lm_tiny", "--macaron-scheme", "parallel", "--macaron-post-norm")
