"""Single sentences: attention maps against fairseq's and PyTorch's own, cosines by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.small import NO_DROPOUT, SMALL, build, dictionary

from macaron_fairseq.analysis import trajectories
from macaron_fairseq.analysis.dynamics import sentence_views
from macaron_fairseq.analysis.sentences import Sentence

WORDS = dictionary()
DATA = SimpleNamespace(source=WORDS, target=WORDS)
SENTENCE = Sentence(7, torch.tensor([4, 9, 5, 9, 2]), torch.tensor([2, 6, 8, 6]))
SOURCE, TARGET = ["w0", "w5", "w1", "w5", "</s>"], ["</s>", "w2", "w4", "w2"]

MODELS = {
    "fairseq": ("transformer_iwslt_de_en_pre_norm",),
    "fairseq, post-norm": ("transformer",),
    "macaron": ("macaron_transformer",),
    "macaron, fairseq's attention": ("macaron_transformer", "--macaron-kernels", "fairseq"),
}


def model(*flags):
    return build(*flags, *SMALL, *NO_DROPOUT)


def maps(found, sentence=SENTENCE):
    """All attention maps of a model, by side, kind, layer and occurrence."""
    view = sentence_views.look(found, sentence, DATA)
    return {
        (side.side, x.kind, x.layer, x.occurrence): x
        for side in view.sides
        for x in side.attentions
    }


def pytorchs(attention, query, key, mask=None):
    """The weights of each head as `torch.nn.MultiheadAttention` gives them."""
    same = torch.nn.MultiheadAttention(attention.embed_dim, attention.num_heads)
    parts = attention.q_proj, attention.k_proj, attention.v_proj
    same.in_proj_weight.data = torch.cat([x.weight.data for x in parts])
    same.in_proj_bias.data = torch.cat([x.bias.data for x in parts])
    with torch.no_grad():
        return same(query, key, key, attn_mask=mask, average_attn_weights=False)[1][0]


@pytest.mark.parametrize("flags", MODELS.values(), ids=MODELS)
def test_attention_of_each_head_is_pytorchs(flags):
    network = model(*flags)
    found = maps(network)
    for layer in trajectories.run(network, SENTENCE.source, SENTENCE.target):
        x = layer.state
        for sublayer in layer.sublayers:
            kind = sublayer.operator
            if kind != "ffn":
                is_self = kind == "self-attention"
                attention = layer.module.self_attn if is_self else layer.module.encoder_attn
                norm = "self_attn_layer_norm" if is_self else "encoder_attn_layer_norm"
                pre = getattr(layer.module, norm) if layer.is_pre_norm else torch.nn.Identity()
                query = pre(x)
                key = query if is_self else layer.given["encoder_out"]
                mask = None
                if is_self and layer.side == "decoder":
                    mask = torch.full((4, 4), -torch.inf).triu(1)
                expected = pytorchs(attention, query, key, mask).numpy()
                weights = found[layer.side, kind, layer.number, 1].weights
                np.testing.assert_allclose(weights, expected, atol=1e-6)
            x = sublayer.advance(x)
    assert len(found) == 2 + 2 * 2


@pytest.mark.parametrize("flags", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("layer", [1, 2])
def test_cross_attention_is_what_fairseqs_decoder_returns(flags, layer):
    """The mean of the heads and the first head, as `--print-alignment` has them, in a batch."""
    network = model(*flags)
    weights = maps(network)["decoder", "cross-attention", layer, 1].weights
    source = torch.tensor([[4, 9, 5, 9, 2], [1, 1, 7, 8, 2]])  # padding to the left
    target = torch.stack([SENTENCE.target, SENTENCE.target])
    with torch.no_grad():
        encoded = network.encoder(source, torch.tensor([5, 3]))
        for heads, own in ((None, weights.mean(0)), (1, weights[0])):
            _, extra = network.decoder(
                target, encoded, alignment_layer=layer - 1, alignment_heads=heads
            )
            np.testing.assert_allclose(own, extra["attn"][0][0].numpy(), atol=1e-6)


@pytest.mark.parametrize("flags", MODELS.values(), ids=MODELS)
def test_rows_sum_to_one_and_nothing_attends_to_the_future(flags):
    for (side, kind, _, _), x in maps(model(*flags)).items():
        np.testing.assert_allclose(x.weights.sum(-1), 1, atol=1e-6)
        assert x.weights.shape[0] == 4
        assert x.keys == (TARGET if (side, kind) == ("decoder", "self-attention") else SOURCE)
        future = np.triu(np.ones(x.weights.shape[1:]), 1) > 0
        if (side, kind) == ("decoder", "self-attention"):
            assert not x.weights[:, future].any()
        else:
            assert (x.weights > 0).all()


def test_a_decoder_that_reads_the_source_with_itself():
    network = model("macaron_transformer", "--cross-self-attention", "--no-cross-attention")
    found = maps(network)
    x = found["decoder", "self-attention", 1, 1]
    assert x.keys == [*SOURCE, *TARGET]
    assert x.weights.shape == (4, 4, 9)
    np.testing.assert_allclose(x.weights.sum(-1), 1, atol=1e-6)
    assert x.weights[:, 0, 6:].max() == 0 < x.weights[:, 0, :6].min()
    assert ("decoder", "cross-attention", 1, 1) not in found


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [("strang-marchuk-attention", [1, 2]), ("parallel", [1]), ("strang-marchuk", [1])],
)
def test_a_scheme_that_attends_twice_has_two_maps_of_a_layer(scheme, expected):
    network = model("macaron_transformer", "--macaron-scheme", scheme)
    found = maps(network)
    assert [x[3] for x in found if x[:3] == ("encoder", "self-attention", 2)] == expected
    first, last = (
        found["encoder", "self-attention", 2, n].weights for n in (expected[0], expected[-1])
    )
    assert (first == last).all() == (expected == [1])  # the state has moved meanwhile


def test_cosines_are_those_of_the_models_own_states():
    network = model("macaron_transformer")
    view = sentence_views.look(network, SENTENCE, DATA)
    assert view.number == 7
    encoder, decoder = view.sides
    assert (encoder.side, encoder.tokens) == ("encoder", SOURCE)
    assert (decoder.side, decoder.tokens) == ("decoder", TARGET)
    with torch.no_grad():
        states = network.encoder(SENTENCE.source[None], torch.tensor([5]), return_all_hiddens=True)[
            "encoder_states"
        ]
    assert len(encoder.cosines) == len(states) == 3
    for cosines, state in zip(encoder.cosines, states, strict=True):
        x = state[:, 0].double().numpy()
        for i in range(5):
            for j in range(5):
                expected = x[i] @ x[j] / np.sqrt(x[i] @ x[i]) / np.sqrt(x[j] @ x[j])
                assert cosines[i, j] == pytest.approx(expected, abs=1e-5)


def test_an_encoder_alone():
    view = sentence_views.look(model("transformer"), Sentence(1, SENTENCE.source, None), DATA)
    assert [side.side for side in view.sides] == ["encoder"]


def test_a_sentence_in_a_list_is_words_and_short():
    assert sentence_views.title(["</s>", "low@@", "er", ",", "</s>"]) == "lower ,"
    long = sentence_views.title(["\N{GRINNING FACE}" * 50, "b" * 50])
    assert long == "\N{GRINNING FACE}" * 50 + " " + "b" * 28 + "…"


@pytest.mark.parametrize(
    ("lengths", "wanted", "expected"),
    [
        ([128, 300], 3, [0]),
        ([5] * 10, 3, [0, 3, 6]),
        ([5, 40, 5, 40, 32, 33], 2, [0, 2]),
        ([5, 40, 5, 40, 32, 33], 8, [0, 2, 4]),
        ([90, 40, 50, 41], 2, [1, 3]),  # the shortest where all are long
        ([300, 129, 128, 40], 3, [2, 3]),
        ([300, 129], 3, []),
        ([5, 6], 0, []),
    ],
)
def test_sentences_that_a_picture_can_hold(lengths, wanted, expected):
    found = [Sentence(i, torch.zeros(3), torch.zeros(n)) for i, n in enumerate(lengths)]
    assert sentence_views.readable([found], wanted, 128) == expected


def test_the_shortest_of_long_sentences_are_shown_where_there_is_no_limit():
    found = [Sentence(i, torch.zeros(n), None) for i, n in enumerate([300, 200, 250])]
    assert sentence_views.readable([found], 2) == [1, 2]


def test_the_longest_of_all_models_translations_counts():
    """One model may repeat itself where another stops."""
    short, looping = (
        [Sentence(i, torch.zeros(5), torch.zeros(n)) for i, n in enumerate(lengths)]
        for lengths in ([6, 6, 6], [200, 6, 7])
    )
    assert sentence_views.readable([short, looping], 3, 128) == [1, 2]
    assert sentence_views.readable([looping, short], 3, 128) == [1, 2]
