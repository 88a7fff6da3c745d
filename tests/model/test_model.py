"""The model: what it shares with fairseq's transformer, decoding, padding, and refusals."""

import copy
from argparse import Namespace

import pytest
import torch
from fairseq import models
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.data import Dictionary
from fairseq.modules.quantization.scalar.modules import IntLinear
from fairseq.quantization_utils import quantize_model_scalar
from helpers.formulas import goes_with_post_norm
from helpers.small import NO_DROPOUT, SMALL, arguments, batch, build, dictionary, task

from macaron_fairseq import UserError
from macaron_fairseq.model.layers import SplittingLayer
from macaron_fairseq.model.operators import Gate
from macaron_fairseq.schemes import splitting, substeps

WIDE = ["--encoder-ffn-embed-dim", "24", "--decoder-ffn-embed-dim", "32"]
GATED = ["--macaron-substep", "gated-rk2"]
PRE_NORM = ["--encoder-normalize-before", "--decoder-normalize-before"]


def optimizer_steps(model, n):
    """n steps of Adam on the label-smoothed loss, with dropout; the losses."""
    source, lengths, previous = batch()
    target = previous.roll(-1, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model.train()
    losses = []
    for update in range(n):
        torch.manual_seed(100 + update)
        lprobs = model(source, lengths, previous)[0].log_softmax(-1)
        loss, _ = label_smoothed_nll_loss(lprobs.flatten(0, 1), target.flatten(), 0.1, 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    "flags",
    [
        PRE_NORM,
        [],
        [*PRE_NORM, "--encoder-learned-pos", "--decoder-learned-pos"],
        ["--share-all-embeddings", "--activation-fn", "gelu", "--layernorm-embedding"],
        ["--no-cross-attention", "--cross-self-attention"],
        ["--checkpoint-activations", "--encoder-layerdrop", "0.5"],
        ["--quant-noise-pq", "0.5", "--quant-noise-pq-block-size", "2"],
    ],
    ids=" ".join,
)
def test_lie_trotter_is_fairseqs_transformer(flags):
    """Same names, same numbers bit for bit, same three optimizer steps."""
    dropout = ["--dropout", "0.1", "--attention-dropout", "0.1", "--activation-dropout", "0.1"]
    common = [*SMALL, *WIDE, *dropout, *flags]
    post = [] if "--encoder-normalize-before" in flags else ["--macaron-post-norm"]
    stock = build("transformer", *common)
    same = ["--macaron-scheme", "lie-trotter", "--macaron-kernels", "fairseq"]
    macaron = build("macaron_transformer", *same, *common, *post)
    assert isinstance(macaron.decoder.layers[0], SplittingLayer)

    def equal():
        one, other = stock.state_dict(), macaron.state_dict()
        assert [*one] == [*other]
        assert all(torch.equal(one[name], other[name]) for name in one)

    equal()
    for one, other in zip(stock(*batch()), macaron(*batch()), strict=True):
        if torch.is_tensor(one):
            assert torch.equal(one, other)
    assert optimizer_steps(stock, 3) == optimizer_steps(macaron, 3)
    equal()


@pytest.mark.parametrize("flags", [PRE_NORM, []], ids=["pre-norm", "post-norm"])
def test_gradients_are_fairseqs_where_rounding_shows(flags):
    """So wide that another layout in memory would be another order of sums."""
    dropout = ["--dropout", "0.1", "--attention-dropout", "0.1", "--activation-dropout", "0.1"]
    sizes = ["--encoder-embed-dim", "128", "--decoder-embed-dim", "128"]
    common = [*SMALL, *WIDE, *sizes, *dropout, *flags]
    same = ["--macaron-scheme", "lie-trotter", "--macaron-kernels", "fairseq"]
    post = [] if flags else ["--macaron-post-norm"]
    stock = build("transformer", *common)
    macaron = build("macaron_transformer", *common, *same, *post)
    source, lengths, previous = batch(sizes=[(n, n + 1) for n in range(11, 25)])
    for model in (stock, macaron):
        torch.manual_seed(3)
        lprobs = model.train()(source, lengths, previous)[0].log_softmax(-1)
        (lprobs * torch.linspace(-1, 1, lprobs.shape[-1])).sum().backward()
    for (name, one), other in zip(stock.named_parameters(), macaron.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad), name


OPTIONS = [
    [],
    ["--macaron-post-norm"],
    ["--macaron-scheme", "lie-trotter"],
    ["--share-all-embeddings", "--encoder-learned-pos", "--decoder-learned-pos"],
    ["--no-cross-attention", "--cross-self-attention"],
    ["--layernorm-embedding", "--no-token-positional-embeddings", "--activation-fn", "gelu"],
]


STEPS = [
    ["--macaron-scheme", scheme, "--macaron-substep", substep]
    for scheme in splitting.SCHEMES
    for substep in substeps.SUBSTEPS
]
STEPS += [
    ["--macaron-scheme", scheme, "--macaron-post-norm"]
    for scheme in splitting.SCHEMES
    if goes_with_post_norm(scheme)
]
# Whose caches fairseq's attention keeps.
OTHER_CACHES = [
    ["--macaron-kernels", "fairseq", "--macaron-scheme", "strang-symmetric"],
    ["--macaron-kernels", "fairseq", "--macaron-scheme", "yoshida4"],
    ["--macaron-kernels", "fairseq", "--macaron-substep", "gated-rk2"],
    ["--macaron-substep", "midpoint", "--no-cross-attention", "--cross-self-attention"],
    ["--macaron-scheme", "yoshida4", "--no-cross-attention", "--cross-self-attention"],
    [
        "--macaron-substep",
        "midpoint",
        "--quant-noise-pq",
        "0.3",
        "--quant-noise-pq-block-size",
        "2",
    ],
]


@pytest.mark.parametrize("flags", [*OPTIONS, *STEPS, *OTHER_CACHES], ids=" ".join)
def test_cached_decoding_equals_full_decoding(flags):
    model = build("macaron_transformer", *SMALL, *WIDE, *flags).double()
    source, lengths, _ = batch()
    previous = torch.randint(4, 64, (4, 7), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        encoder_out = model.encoder(source, lengths)
        full, _ = model.decoder(previous, encoder_out)
        state = {}
        for t in range(previous.shape[1]):
            last, _ = model.decoder(previous[:, : t + 1], encoder_out, incremental_state=state)
            assert (last[:, 0] - full[:, t]).abs().max() <= 1e-6


@pytest.mark.parametrize("flags", [*OPTIONS, *STEPS, *OTHER_CACHES], ids=" ".join)
def test_reordered_cache_follows_its_hypothesis(flags):
    """As beam search does: after a reorder the caches are those of the new order."""
    model = build("macaron_transformer", *SMALL, *WIDE, *flags).double()
    source, lengths, _ = batch(sizes=((9, 2), (9, 2), (5, 2), (5, 2)))  # two beams a sentence
    source[1], source[3] = source[0], source[2]
    order = torch.tensor([1, 0, 3, 3])
    first, second = torch.randint(4, 64, (2, 4, 1), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        encoder_out = model.encoder(source, lengths)
        state = {}
        model.decoder(first, encoder_out, incremental_state=state)
        model.decoder.reorder_incremental_state_scripting(state, order)
        tokens = torch.cat((first[order], second), 1)
        cached, _ = model.decoder(tokens, encoder_out, incremental_state=state)
        full, _ = model.decoder(tokens, encoder_out)
    assert (cached[:, 0] - full[:, 1]).abs().max() <= 1e-6


@pytest.mark.parametrize("flags", [*OPTIONS, *STEPS], ids=" ".join)
def test_padding_and_batch_change_nothing(flags):
    model = build("macaron_transformer", *SMALL, *WIDE, *flags).double()
    sizes = ((9, 8), (5, 3), (7, 8), (3, 4))
    source, lengths, previous = batch(sizes=sizes)
    with torch.no_grad():
        together = model(source, lengths, previous)[0]
        for i, (s, t) in enumerate(sizes):
            alone = model(source[i : i + 1, -s:], lengths[i : i + 1], previous[i : i + 1, :t])[0]
            assert (alone[0] - together[i, :t]).abs().max() <= 1e-6


@pytest.mark.parametrize("flags", STEPS, ids=" ".join)
def test_no_position_sees_the_future(flags):
    model = build("macaron_transformer", *SMALL, *WIDE, *flags)
    source, lengths, previous = batch(sizes=((9, 8), (9, 8)))
    changed = previous.clone()
    changed[:, 5:] = 4
    with torch.no_grad():
        one, other = (model(source, lengths, p)[0] for p in (previous, changed))
    assert torch.equal(one[:, :5], other[:, :5])
    assert not torch.allclose(one[:, 5:], other[:, 5:])


@pytest.mark.parametrize(
    "flags",
    [
        ["--encoder-layerdrop", "0.4", "--decoder-layerdrop", "0.4"],
        ["--checkpoint-activations"],
        ["--quant-noise-pq", "0.3", "--quant-noise-pq-block-size", "2"],
        ["--quant-noise-scalar", "0.3"],
        ["--decoder-output-dim", "8"],
        ["--share-decoder-input-output-embed", "--no-scale-embedding"],
        ["--max-source-positions", "20", "--max-target-positions", "20"],
        ["--merge-src-tgt-embed"],
        ["--macaron-scheme", "yoshida4", "--decoder-layerdrop", "0.4"],
        ["--macaron-scheme", "parallel", "--macaron-substep", "rk4", "--macaron-matmul", "bf16"],
        [*GATED, "--checkpoint-activations", "--quant-noise-scalar", "0.3"],
        [*GATED, "--macaron-scheme", "strang-symmetric", "--macaron-matmul", "bf16"],
    ],
    ids=" ".join,
)
def test_fairseqs_options_train(flags):
    model = build("macaron_transformer", *SMALL, *WIDE, *flags)
    assert all(map(torch.isfinite, map(torch.tensor, optimizer_steps(model, 2))))


@pytest.mark.parametrize("flags", [[], GATED], ids=" ".join)
def test_weights_are_quantised_and_gates_are_not(flags):
    """fairseq's task asks for it, and knows the classes of some modules alone."""
    flags = [*SMALL, *flags, "--quant-noise-scalar", "0.3"]
    model = quantize_model_scalar(
        build("macaron_transformer", *flags), Namespace(quant_noise_scalar=0.3)
    )
    kinds = {
        type(module) for name, module in model.named_modules() if name.endswith(("fc1", "q_proj"))
    }
    assert kinds == {IntLinear}
    assert any(isinstance(module, Gate) for module in model.modules()) == (GATED[0] in flags)


@pytest.mark.parametrize("flags", [[], ["--macaron-scheme", "parallel", *GATED]], ids=" ".join)
def test_checkpointed_activations_change_nothing(flags):
    plain = build("macaron_transformer", *SMALL, *WIDE, *flags)
    wrapped = build("macaron_transformer", *SMALL, *WIDE, *flags, "--checkpoint-activations")
    assert optimizer_steps(plain, 3) == pytest.approx(optimizer_steps(wrapped, 3), rel=1e-5)


def test_merged_dictionaries_are_loaded_again():
    two = Dictionary()
    for number in range(30):
        two.add_symbol(f"target{number}")
    flags, both = [*SMALL, "--merge-src-tgt-embed"], task(dictionary(), two)
    trained, loaded = (build("macaron_transformer", *flags, for_task=both, seed=x) for x in (1, 2))
    loaded.load_state_dict(trained.state_dict())
    one, other = (x.state_dict()["decoder.embed_tokens.weight"] for x in (trained, loaded))
    assert len(one) > len(two) and torch.equal(one, other)


def test_adaptive_softmax_trains():
    model = build("macaron_transformer", *SMALL, "--adaptive-softmax-cutoff", "10,30")
    source, lengths, previous = batch()
    features = model(source, lengths, previous)[0]
    logits, _ = model.decoder.adaptive_softmax(features, previous.flatten())
    sum(part.sum() for part in logits if part is not None).backward()
    assert model.decoder.layers[0].earlier["0"].network.fc1.weight.grad.abs().sum() > 0


def test_layers_to_keep_prunes_a_trained_model():
    deep = build("macaron_transformer", *SMALL, "--encoder-layers", "3")
    flags = [*SMALL, "--encoder-layers", "3", "--encoder-layers-to-keep", "0,2"]
    args = arguments("macaron_transformer", *flags)
    pruned = models.build_model(args, task()).eval()
    pruned.load_state_dict(deep.state_dict(), model_cfg=args)
    assert len(pruned.encoder.layers) == 2
    source, lengths, _ = batch()
    del deep.encoder.layers[1]
    with torch.no_grad():
        one, other = (m.encoder(source, lengths)["encoder_out"][0] for m in (deep, pruned))
    assert torch.equal(one, other)


@pytest.mark.parametrize("flags", [[], *STEPS[-9:]], ids=" ".join)
def test_alignment_comes_from_the_cross_attention(flags):
    model = build("macaron_transformer", *SMALL, *flags)
    source, lengths, previous = batch()
    _, extra = model(source, lengths, previous)
    attention = extra["attn"][0]
    assert attention.shape == (4, 8, 9)
    assert torch.allclose(attention.sum(-1), torch.ones(4, 8))
    assert attention[source.eq(1)[:, None].expand_as(attention)].abs().max() == 0


def test_alignment_comes_from_the_last_evaluation():
    """Of several: by the midpoint rule that is the one at the middle of the step."""
    model = build("macaron_transformer", *SMALL, "--macaron-substep", "midpoint")
    seen = []
    last = model.decoder.layers[-1].encoder_attn
    last.register_forward_hook(lambda module, args, result: seen.append(result[1]))
    _, extra = model(*batch())
    assert len(seen) == 2
    assert torch.equal(extra["attn"][0], seen[1].mean(0))
    assert not torch.equal(*seen)


def test_a_decoder_without_source_skips_cross_attention():
    """As fairseq's own does; in `parallel` the other operators of the step stay."""
    model = build("macaron_transformer", *SMALL, "--macaron-scheme", "parallel", *GATED)
    layer, x = model.decoder.layers[0], torch.randn(3, 2, 16)
    layer.gates["0"] = None  # not for the gate: Heun's method with and without cross-attention
    alone, attention, _ = layer(x)
    assert attention is None
    torch.nn.init.zeros_(layer.encoder_attn.out_proj.weight)
    torch.nn.init.zeros_(layer.encoder_attn.out_proj.bias)
    assert torch.allclose(layer(x, torch.randn(4, 2, 16))[0], alone)


def test_masked_encoder_attention_and_fc_results():
    """What fairseq's encoder layer offers besides: a mask, and the FFN's own result."""
    model = build("macaron_transformer", *SMALL, *NO_DROPOUT)
    layer = copy.deepcopy(model.encoder.layers[0])
    x = torch.randn(5, 2, 16)
    mask = torch.ones(5, 5).triu(1)
    changed = x.clone()
    changed[4] += 1
    one, other = (layer(y, None, attn_mask=mask) for y in (x, changed))
    assert torch.equal(one[:4], other[:4])
    layer.return_fc = True
    assert [y.shape for y in layer(x, None)] == [x.shape, x.shape]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ["--macaron-scheme", "strang-marchuck"],
            "unknown splitting scheme 'strang-marchuck': --macaron-scheme takes lie-trotter, .*"
            r"\. Did you mean strang-marchuk, strang-.*\?$",
        ),
        (
            ["--macaron-scheme", "strang"],
            r"takes .*\. Did you mean strang-marchuk, strang-marchuk-attention or "
            r"strang-symmetric\?$",
        ),
        (["--macaron-scheme", "euler"], "takes lie-trotter, .* or [^?]*$"),
        (["--macaron-decoder-scheme", "yoshida"], r"-scheme takes .*\. Did you mean yoshida4\?$"),
        (["--macaron-substep", "rk2"], r"gated-rk2\. Did you mean rk4\?$"),
        (["--macaron-substep", "runge"], "takes euler, midpoint, rk4 or gated-rk2$"),
        (
            ["--macaron-post-norm", "--macaron-substep", "midpoint"],
            "the sub-step 'midpoint' needs pre-norm in the encoder, since .* normalises the state",
        ),
        (
            ["--macaron-post-norm", "--macaron-decoder-scheme", "parallel"],
            "the scheme 'parallel' needs pre-norm in the decoder, since .* another LayerNorm",
        ),
        (
            ["--macaron-post-norm", "--macaron-scheme", "yoshida4"],
            "the scheme 'yoshida4' needs pre-norm in the encoder, since some of its steps go back",
        ),
        (["--macaron-post-norm", "--encoder-normalize-before"], "contradict"),
        (
            ["--macaron-scheme", "lie-trotter", "--encoder-first-ffn-embed-dim", "8"],
            "set --encoder-ffn-embed-dim",
        ),
        (["--encoder-embed-dim", "30"], "choose a multiple"),
        (
            ["--encoder-embed-dim", "64", "--decoder-embed-dim", "32", "--share-all-embeddings"],
            "needs one width",
        ),
        (
            ["--adaptive-softmax-cutoff", "10,30", "--tie-adaptive-weights"],
            "--tie-adaptive-weights needs adaptive input, which translation has not: leave it out",
        ),
    ],
)
def test_what_cannot_work_is_refused(flags, sentence):
    with pytest.raises(UserError, match=sentence):
        build("macaron_transformer", *flags)


def test_the_decoder_follows_the_encoders_widths():
    args = arguments(
        "macaron_transformer", "--encoder-embed-dim", "64", "--encoder-ffn-embed-dim", "96"
    )
    assert (args.decoder_embed_dim, args.decoder_ffn_embed_dim) == (64, 96)


def test_separate_dictionaries_cannot_share_embeddings():
    with pytest.raises(UserError, match="--joined-dictionary"):
        flags = ["--share-all-embeddings", *SMALL]
        build("macaron_transformer", *flags, for_task=task(dictionary(60), dictionary(70)))


def test_another_dictionary_than_the_checkpoints_is_refused():
    model = build("macaron_transformer", *SMALL)
    other = build("macaron_transformer", *SMALL, for_task=task(dictionary(90)))
    with pytest.raises(UserError, match="embeds 64 source types, but the source dictionary has 94"):
        other.load_state_dict(model.state_dict())


def test_checkpoints_of_before_have_no_substep():
    """Their arguments name one scheme for both sides and nothing else."""
    args = arguments("macaron_transformer", *SMALL, "--macaron-scheme", "lie-trotter")
    for name in ("macaron_encoder_scheme", "macaron_decoder_scheme", "macaron_substep"):
        delattr(args, name)
    model = models.build_model(args, task())
    same = build("transformer_pre_norm", *SMALL)
    model.load_state_dict(same.state_dict())
    with torch.no_grad():
        one, other = (m.eval()(*batch())[0] for m in (model, same))
    assert torch.allclose(one, other, atol=1e-5)


def test_quantisation_noise_is_in_each_ffn_of_a_layer():
    """fairseq's noise is a hook that runs before a linear map."""
    flags = ["--quant-noise-pq", "0.5", "--quant-noise-pq-block-size", "2"]
    layer = build("macaron_transformer", *SMALL, *flags).encoder.layers[0]
    maps = {name: x for name, x in layer.named_modules() if name.endswith(("fc1", "fc2"))}
    assert len(maps) == 4 and all(x._forward_pre_hooks for x in maps.values())
