"""Masked language models: what they share with fairseq's RoBERTa, schemes, heads and refusals."""

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, build_model
from fairseq.models.roberta import RobertaModel
from fairseq.models.transformer import TransformerModel
from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.translation import TranslationConfig
from helpers.classifiers import HEAD, classifier, sentences
from helpers.formulas import ENCODERS, layer_of
from helpers.small import (
    NO_DROPOUT,
    SMALL,
    SMALL_ENCODER,
    arguments,
    build,
    count_parameters,
    dictionary,
    language_task,
    masked_task,
    task,
    texts,
)
from omegaconf import OmegaConf
from torch._subclasses import FakeTensorMode

from macaron_fairseq import UserError, plugin
from macaron_fairseq.model.operators import Gate
from macaron_fairseq.schemes import splitting
from macaron_fairseq.schemes.splitting import (
    SCHEMES,
    SELF,
    SELF_ATTENTION,
    WHOLE,
    Operator,
    Scheme,
    step,
)

# width, heads, layers, width of each FFN half
SIZES = {"base": (768, 12, 12, 1536), "small": (512, 8, 6, 1024), "tiny": (256, 4, 4, 512)}
WIDE = [*SMALL_ENCODER, "--encoder-ffn-embed-dim", "24"]
FAIRSEQS = ["--macaron-scheme", "lie-trotter", "--macaron-kernels", "fairseq"]
PRE_AND_POST = [
    ("roberta_prenorm", []),
    ("roberta", ["--macaron-post-norm"]),
]


def roberta(arch, *flags, **kwargs):
    return build(arch, "--task", "masked_lm", *flags, for_task=masked_task(), **kwargs)


@pytest.mark.parametrize("size", SIZES)
def test_settings(size):
    width, heads, layers, half = SIZES[size]
    macaron = arguments(f"macaron_roberta_{size}", "--task", "masked_lm")
    stock = arguments(f"roberta_{size}_pre_norm", "--task", "masked_lm")
    for args, inner in ((macaron, half), (stock, 2 * half)):
        assert args.encoder_embed_dim == width
        assert args.encoder_attention_heads == heads
        assert args.encoder_layers == layers
        assert args.encoder_ffn_embed_dim == inner
        assert args.encoder_normalize_before is True
        assert args.layernorm_embedding is False
        assert args.activation_fn == "gelu"
        assert (args.dropout, args.attention_dropout, args.activation_dropout) == (0.1, 0.1, 0)


@pytest.mark.parametrize("size", SIZES)
def test_baseline_is_fairseqs_class_with_3d_parameters_less_per_layer(size):
    width, _, layers, _ = SIZES[size]
    with FakeTensorMode():  # shapes and no numbers
        macaron, stock = (
            build_model(arguments(arch, "--task", "masked_lm"), masked_task())
            for arch in (f"macaron_roberta_{size}", f"roberta_{size}_pre_norm")
        )
    assert type(stock) is RobertaModel
    assert count_parameters(macaron) - count_parameters(stock) == 3 * width * layers


@pytest.mark.parametrize(("arch", "flags"), PRE_AND_POST)
def test_lie_trotter_is_fairseqs_roberta(arch, flags):
    """Same names, same numbers bit for bit in evaluation and in three steps of training."""
    dropout = ["--dropout", "0.1", "--attention-dropout", "0.1", "--activation-dropout", "0.1"]
    stock = roberta(arch, *WIDE, *dropout)
    macaron = roberta("macaron_roberta_tiny", *FAIRSEQS, *WIDE, *dropout, *flags)
    assert [*stock.state_dict()] == [*macaron.state_dict()]
    tokens = texts()
    hidden = tokens.eq(tokens.roll(1)) | tokens.gt(30)
    for a, b in zip(stock.parameters(), macaron.parameters(), strict=True):
        assert torch.equal(a, b)
    for more in ({}, {"features_only": True}, {"masked_tokens": hidden}):
        for inputs in (tokens, tokens[:1]):  # with padding, and without
            if len(inputs) == 1 and "masked_tokens" in more:
                continue
            one, other = (model(inputs, **more)[0] for model in (stock, macaron))
            assert torch.equal(one, other)
    found = []
    for model in (stock.train(), macaron.train()):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for update in range(3):
            torch.manual_seed(100 + update)
            model.zero_grad()
            logits = model(tokens, masked_tokens=hidden)[0]
            torch.nn.functional.cross_entropy(logits, tokens[hidden]).backward()
            if update < 2:
                optimizer.step()
        found.append([p.grad for p in model.parameters()])
    for name, one, other in zip(dict(stock.named_parameters()), *found, strict=True):
        assert torch.equal(one, other), name


@pytest.mark.parametrize("kernels", ["fairseq", "fused"])
@pytest.mark.parametrize(
    ("scheme", "substep", "norm"),
    [
        ("strang-marchuk", "gated-rk2", []),
        ("parallel", "midpoint", []),
        ("lie-trotter", "euler", ["--macaron-post-norm"]),
    ],
)
def test_its_layers_are_the_formula_of_the_flags(scheme, substep, norm, kernels, monkeypatch):
    """From the embeddings to the last layer, in fp64, with padding; test_layers.py has all."""
    monkeypatch.setattr("fairseq.utils.softmax", lambda x, dim, onnx_trace=False: x.softmax(dim))
    steps = ["--macaron-scheme", scheme, "--macaron-substep", substep, "--activation-fn", "relu"]
    model = roberta(
        "macaron_roberta_tiny", *WIDE, *steps, *norm, "--macaron-kernels", kernels
    ).double()
    tokens = texts()
    with torch.no_grad():
        _, extra = model(tokens, features_only=True, return_all_hiddens=True)
        states = [x.transpose(0, 1) for x in extra["inner_states"]]
        hidden = tokens.eq(1)[:, None].expand(-1, tokens.shape[1], -1)
        for before, after, layer in zip(
            states[:-1], states[1:], model.encoder.sentence_encoder.layers, strict=True
        ):
            p = dict(layer.named_parameters())
            applied = ENCODERS[scheme], substep
            expected = layer_of(p, *applied, before, 4, hidden, pre_norm=not norm)
            assert (after - expected)[tokens.ne(1)].abs().max() <= 1e-9


def test_gates_start_at_one_half():
    """fairseq draws all linear maps anew for BERT."""
    model = build_model(
        arguments("macaron_roberta_tiny", *SMALL_ENCODER, "--macaron-substep", "gated-rk2"),
        masked_task(),
    )
    gates = [module for module in model.modules() if isinstance(module, Gate)]
    assert len(gates) == 2 * 3
    assert all(p.eq(0).all() for gate in gates for p in gate.parameters())
    others = [p for n, p in model.named_parameters() if n.endswith("network.fc1.weight")]
    assert all(abs(p.std() - 0.02) < 0.003 for p in others)  # BERT's


def test_the_gradient_reaches_every_parameter():
    model = roberta("macaron_roberta_tiny", *SMALL_ENCODER, *NO_DROPOUT).train()
    tokens = texts()
    model(tokens)[0].square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


def test_padding_changes_nothing():
    model = roberta("macaron_roberta_tiny", *SMALL_ENCODER)
    tokens = texts()
    with torch.no_grad():
        together = model(tokens)[0]
        for row, found in zip(tokens, together, strict=True):
            own = row[row.ne(1)]
            alone = model(own[None])[0][0]
            assert (found[: len(own)] - alone).abs().max() <= 1e-5


@pytest.mark.parametrize("flag", ["--ffn-blocks-to-remove", "--ffn-reg-scale-factor"])
def test_pruning_is_for_layers_with_one_ffn(flag):
    words = *SMALL_ENCODER, flag, "1"
    assert roberta("macaron_roberta_tiny", *words, "--macaron-scheme", "lie-trotter")
    with pytest.raises(UserError, match=f"{flag} is for layers with one FFN: leave it out, or"):
        roberta("macaron_roberta_tiny", *words)


@pytest.mark.parametrize("flag", ["--mha-heads-to-keep", "--mha-reg-scale-factor"])
def test_pruning_of_heads_is_for_layers_with_one_self_attention(flag, monkeypatch):
    """Whether it is applied once or twice; a scheme of a user's own may have two."""
    words = *SMALL_ENCODER, flag, "1", "--macaron-scheme"
    assert roberta("macaron_roberta_tiny", *words, "strang-marchuk-attention")
    two = (step(1, SELF), step(1, WHOLE), step(1, Operator(SELF_ATTENTION, 2)))
    monkeypatch.setitem(SCHEMES, "lie-trotter-reversed", Scheme(two, two))
    with pytest.raises(UserError, match=f"{flag} is for layers with one self-attention: leave "):
        roberta("macaron_roberta_tiny", *words, "lie-trotter-reversed")


def test_positions_are_as_many_as_the_tasks_texts_have():
    assert roberta("macaron_roberta_tiny", *SMALL_ENCODER).max_positions() == 1024  # the default
    flags = ["--task", "masked_lm", "--tokens-per-sample", "32", *SMALL_ENCODER]
    model = build("macaron_roberta_tiny", *flags, for_task=masked_task(32))
    assert model.max_positions() == 32


# --- fine-tuning ---------------------------------------------------------------------------------


def test_a_head_is_put_on_a_pretrained_model():
    flags = ["--max-positions", "32", *SMALL_ENCODER]
    pretrained = build("macaron_roberta_tiny", *flags, for_task=masked_task(32)).state_dict()
    model = classifier(classes=3).eval()
    first = model.classification_heads[HEAD].out_proj.weight.clone()
    model.load_state_dict({**pretrained})
    assert model(texts(), classification_head_name=HEAD)[0].shape == (4, 3)
    assert torch.equal(model.classification_heads[HEAD].out_proj.weight, first)
    for name, tensor in pretrained.items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_a_checkpoint_of_other_shapes_is_refused():
    saved = classifier(classes=3).state_dict()
    with pytest.raises(UserError, match="has 3 classes and the task 2: give --num-classes 3, or"):
        classifier(classes=2).load_state_dict({**saved})
    with pytest.raises(UserError, match="has 32 positions and the model 16: give --max-positions"):
        classifier(classes=3, max_positions=16).load_state_dict({**saved})
    other = build("macaron_roberta_tiny", *SMALL_ENCODER, for_task=masked_task(32, types=50))
    with pytest.raises(UserError, match="embeds 65 types, but the dictionary has 55 with its"):
        other.load_state_dict({**saved})
    # Under another name it is another head, and the old one is left out.
    model = classifier(classes=2, classification_head_name="another")
    model.load_state_dict({**saved})


@pytest.mark.parametrize("arch", ["macaron_roberta_tiny", "roberta_tiny_pre_norm"])
def test_hydras_arguments_build_it(arch):
    """They take no new names by themselves."""
    width = {"encoder_embed_dim": 16, "encoder_ffn_embed_dim": 8, "encoder_attention_heads": 4}
    cfg = OmegaConf.create({"_name": arch, **width})
    OmegaConf.set_struct(cfg, True)
    assert build_model(cfg, masked_task(32)).max_positions() == 32


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["macaron_roberta_tiny", "roberta_tiny_pre_norm"])
def test_what_does_not_go_together_is_refused(arch):
    with pytest.raises(UserError, match="--tokens-per-sample 64 is more than the 32 positions"):
        flags = ["--task", "masked_lm", "--tokens-per-sample", "64", "--max-positions", "32"]
        build(arch, *SMALL_ENCODER, *flags, for_task=masked_task(64))
    build(arch, *SMALL_ENCODER, *flags, "--sample-break-mode", "eos", for_task=masked_task(64))
    with pytest.raises(UserError, match=f"{arch} is not for --task language_modeling: give --task"):
        build(arch, *SMALL_ENCODER, for_task=language_task())
    unmasked = masked_task()
    unmasked.dictionary = Dictionary()
    with pytest.raises(UserError, match="the dictionary has no <mask>"):
        build(arch, *SMALL_ENCODER, for_task=unmasked)


@pytest.mark.parametrize("arch", ["macaron_transformer_tiny", "transformer_tiny_pre_norm"])
def test_a_translation_model_is_for_no_task_of_language_models(arch):
    for other in (masked_task(), language_task(), sentences()):
        name = type(other).__module__.split(".")[-1]
        sentence = f"--arch {arch} is not for --task {name}: give --task translation, or an arch"
        with pytest.raises(UserError, match=sentence):
            build(arch, for_task=other)


@pytest.mark.parametrize("arch", ["macaron_transformer_tiny", "transformer_tiny_pre_norm"])
@pytest.mark.parametrize(
    "name", ["translation", "macaron_translation", "translation_from_pretrained_xlm"]
)
def test_a_translation_model_is_for_tasks_that_derive_from_translation(arch, name):
    words = dictionary()
    one = TASK_REGISTRY[name](TranslationConfig(), words, words)
    assert isinstance(one.build_model(arguments(arch, *SMALL)), TransformerModel)


def test_senseless_steps_and_numbers_are_refused():
    with pytest.raises(UserError, match="'yoshida4' needs pre-norm in the encoder"):
        roberta("macaron_roberta_tiny", "--macaron-scheme", "yoshida4", "--macaron-post-norm")
    with pytest.raises(UserError, match="--encoder-embed-dim 30 cannot be divided"):
        roberta("macaron_roberta_tiny", "--encoder-embed-dim", "30")
    with pytest.raises(UserError, match=r"--dropout 2\.0 is not a probability"):
        roberta("macaron_roberta_tiny", "--dropout", "2")


def test_the_plugin_registers_the_fused_model():
    assert ARCH_MODEL_REGISTRY["macaron_roberta_tiny"] is plugin.MacaronRobertaModel
    assert task().source_dictionary is not None
    fused = roberta("macaron_roberta_tiny", *SMALL_ENCODER)
    plain = roberta("macaron_roberta_tiny", *SMALL_ENCODER, "--macaron-kernels", "fairseq")
    assert type(fused) is not type(plain)
    plain.load_state_dict(fused.state_dict())
    with torch.no_grad():
        assert (fused(texts())[0] - plain(texts())[0]).abs().max() <= 1e-5


def test_what_the_first_ffn_writes_next_to_the_embeddings():
    """docs/howto/pretrain-and-finetune.md says when it is more than they are."""
    shares = []
    for flags in ([], ["--layernorm-embedding"]):
        encoder = roberta("macaron_roberta_tiny", *flags).eval().encoder.sentence_encoder
        x, _ = encoder.forward_embedding(texts((12, 9)))
        first = encoder.layers[0].steps[0]
        network, layer_norm = encoder.layers[0].weights(first.operators[0])
        y = network.fc2(torch.nn.functional.gelu(network.fc1(layer_norm(x))))
        assert first.operators[0].kind == splitting.FFN
        shares.append((first.size * y.norm() / x.norm()).item())
    assert shares[0] > 1 and shares[1] < 0.1
