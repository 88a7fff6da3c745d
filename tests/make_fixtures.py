"""Makes the files in `fixtures/`; run once for each format, never to mend a failing test.

    python tests/make_fixtures.py released|stored

`released/` holds a small random model in the format of the authors' released code, and what the
plain formulas of `formulas` say that it computes. `stored/` holds a checkpoint of this package that
learnt to reverse digits, its dictionaries, and lines to decode.
"""

import shutil
import sys
import tempfile
from argparse import Namespace
from pathlib import Path

import torch
from helpers.formulas import attention, ffn, layer_norm
from helpers.paths import FIXTURES, USER_DIR
from helpers.processes import run
from helpers.toy_corpus import preprocess, write_reversal

WIDTH, HEADS, TYPES, LAYERS, ENCODER_FFN, DECODER_FFN = 16, 4, 24, 2, 20, 28


def released():
    """A checkpoint as fairseq 0.6 wrote it: legacy serialisation, a Namespace, old names."""
    folder = FIXTURES / "released"
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(11)

    def random(*shape, scale=0.3):
        return scale * torch.randn(*shape, generator=generator)

    model = {}

    def add(name, out, inner, bias=True):
        model[f"{name}.weight"] = random(out, inner)
        if bias:
            model[f"{name}.bias"] = random(out)

    def add_norm(name):
        model[f"{name}.weight"], model[f"{name}.bias"] = 1 + random(WIDTH), random(WIDTH)

    embedding = random(TYPES, WIDTH, scale=0.25)
    embedding[1] = 0
    for side in ("encoder", "decoder"):
        model[f"{side}.version"] = torch.tensor([2.0])
        model[f"{side}.embed_tokens.weight"] = embedding
        model[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
        for i in range(LAYERS):
            layer = f"{side}.layers.{i}"
            for name in ["self_attn"] + ["encoder_attn"] * (side == "decoder"):
                model[f"{layer}.{name}.in_proj_weight"] = random(3 * WIDTH, WIDTH)
                model[f"{layer}.{name}.in_proj_bias"] = random(3 * WIDTH)
                add(f"{layer}.{name}.out_proj", WIDTH, WIDTH)
            second = ENCODER_FFN if side == "encoder" else DECODER_FFN
            for name, inner in (("macaron_fc", ENCODER_FFN), ("fc", second)):
                add(f"{layer}.{name}1", inner, WIDTH)
                add(f"{layer}.{name}2", WIDTH, inner)
            for name in NORMS[side]:
                add_norm(f"{layer}.{name}")
        add_norm(f"{side}.layer_norm")

    args = Namespace(
        task="translation",
        arch="transformer_iwslt_de_en_macaron_v2",
        macaron="new",
        criterion="label_smoothed_cross_entropy",
        label_smoothing=0.1,
        optimizer="adam",
        lr=[0.0015],
        lr_scheduler="inverse_sqrt",
        warmup_updates=8000,
        source_lang="de",
        target_lang="en",
        data=["somewhere"],
        left_pad_source="True",
        left_pad_target="False",
        raw_text=False,
        share_all_embeddings=True,
        share_decoder_input_output_embed=True,
        dropout=0.3,
        attention_dropout=0.1,
        relu_dropout=0.1,
        **{
            f"{side}_{name}": value
            for side, inner in (("encoder", ENCODER_FFN), ("decoder", DECODER_FFN))
            for name, value in {
                "embed_dim": WIDTH,
                "layers": LAYERS,
                "attention_heads": HEADS,
                "ffn_embed_dim": inner,
                "normalize_before": True,
                "learned_pos": False,
            }.items()
        },
    )
    torch.save(
        {
            "args": args,
            "model": model,
            "optimizer_history": [
                {
                    "criterion_name": "LabelSmoothedCrossEntropyCriterion",
                    "optimizer_name": "FairseqAdam",
                    "lr_scheduler_state": {"best": None},
                    "num_updates": 7,
                }
            ],
            "extra_state": {
                "train_iterator": {"epoch": 2, "iterations_in_epoch": 0},
                "val_loss": 4.0,
            },
            "last_optimizer_state": None,
        },
        folder / "checkpoint.pt",
        _use_new_zipfile_serialization=False,
    )
    for language in ("de", "en"):
        words = "".join(f"w{i} {100 - i}\n" for i in range(TYPES - 4))
        (folder / f"dict.{language}.txt").write_text(words)

    source = torch.tensor([[1, 1, 9, 14, 2], [5, 6, 7, 22, 2]])
    previous = torch.tensor([[2, 8, 10, 4], [2, 23, 5, 5]])
    memory, logits = forward(model, source, previous)
    torch.save(
        {"source": source, "previous": previous, "encoder_out": memory, "logits": logits},
        folder / "expected.pt",
    )


WEIGHT_BIAS = ("weight", "bias")
NORMS = {
    "encoder": ["layer_norms.0", "layer_norms.1", "layer_norms.2"],
    "decoder": [
        "self_attn_layer_norm",
        "encoder_attn_layer_norm",
        "final_layer_norm",
        "macaron_layer_norm",
    ],
}


def forward(model, source, previous):
    """The released model in plain tensor operations: encoder state and logits, batch first."""
    p = {}
    for name, value in model.items():
        p[name] = value.double()
        if "in_proj_" in name:
            for letter, part in zip("qkv", value.double().chunk(3), strict=True):
                p[name.replace("in_proj_", f"{letter}_proj.")] = part

    def embed(tokens):
        return WIDTH**0.5 * p["encoder.embed_tokens.weight"][tokens] + positions(tokens)

    def half(layer, name, norm, x):
        fcs = ((f"fc{i}.{part}", f"{layer}.{name}{i}.{part}") for i in "12" for part in WEIGHT_BIAS)
        weights = {new: p[old] for new, old in fcs}
        return x + 0.5 * ffn(weights, "", layer_norm(p, f"{layer}.{norm}", x))

    def attend(layer, name, norm, x, memory, hidden):
        y = layer_norm(p, f"{layer}.{norm}", x)
        return x + attention(
            p, f"{layer}.{name}", y, y if memory is None else memory, HEADS, hidden
        )

    hidden = source.eq(1)[:, None]
    x = embed(source) * source.ne(1)[..., None]
    for i in range(LAYERS):
        layer = f"encoder.layers.{i}"
        x = half(layer, "macaron_fc", "layer_norms.2", x)
        x = attend(layer, "self_attn", "layer_norms.0", x, None, hidden)
        x = half(layer, "fc", "layer_norms.1", x)
    memory = layer_norm(p, "encoder.layer_norm", x)
    x = embed(previous)
    future = torch.ones(previous.shape[1], previous.shape[1]).triu(1).bool()[None]
    for i in range(LAYERS):
        layer = f"decoder.layers.{i}"
        x = half(layer, "macaron_fc", "macaron_layer_norm", x)
        x = attend(layer, "self_attn", "self_attn_layer_norm", x, None, future)
        x = attend(layer, "encoder_attn", "encoder_attn_layer_norm", x, memory, hidden)
        x = half(layer, "fc", "final_layer_norm", x)
    x = layer_norm(p, "decoder.layer_norm", x)
    return memory, x @ p["decoder.embed_tokens.weight"].T


def positions(tokens):
    """Sinusoids of the first half of the channels, cosines of the second; from 2 up, padding 0."""
    real = tokens.ne(1)
    place = torch.where(real, real.cumsum(1) + 1, 0).double()
    half = WIDTH // 2
    rates = torch.exp(
        torch.arange(half).double() * -(torch.log(torch.tensor(10000.0).double()) / (half - 1))
    )
    angles = place[..., None] * rates
    return torch.cat((angles.sin(), angles.cos()), -1) * real[..., None]


STORED_TRAIN = [
    *("--arch", "macaron_transformer_tiny", "--share-all-embeddings", "--cpu", "--seed", "1"),
    *("--encoder-embed-dim", "32", "--decoder-embed-dim", "32", "--encoder-layers", "2"),
    *("--decoder-layers", "2", "--encoder-ffn-embed-dim", "32", "--decoder-ffn-embed-dim", "32"),
    *("--dropout", "0", "--attention-dropout", "0", "--activation-dropout", "0"),
    *("--optimizer", "adam", "--adam-betas", "(0.9,0.98)", "--lr", "0.01"),
    *("--lr-scheduler", "inverse_sqrt", "--warmup-updates", "200", "--max-update", "2000"),
    *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"),
    *("--max-tokens", "2000", "--no-epoch-checkpoints"),
]


def stored():
    """A checkpoint of this package as it is today, without what only training needs."""
    with tempfile.TemporaryDirectory() as scratch:
        write_reversal(Path(scratch), train=10000, valid=100, test=6)
        data = preprocess(Path(scratch))
        save = Path(scratch, "save")
        run("fairseq-train", data, "--user-dir", USER_DIR, "--save-dir", save, *STORED_TRAIN)
        state = torch.load(save / "checkpoint_last.pt", weights_only=True)
        state["last_optimizer_state"] = None
        state["extra_state"] = {"train_iterator": {"epoch": 1}}
        folder = FIXTURES / "stored"
        folder.mkdir(parents=True, exist_ok=True)
        forget_paths(state["cfg"])
        torch.save(state, folder / "checkpoint.pt")
        for language in ("src", "tgt"):
            shutil.copy(data / f"dict.{language}.txt", folder)
        shutil.copy(Path(scratch, "test.src"), folder / "input.src")


def forget_paths(config):
    """Clear, in place, where the file was made."""
    items = config if isinstance(config, dict) else vars(config)
    for name, value in items.items():
        if isinstance(value, str) and value.startswith("/"):
            items[name] = ""
        elif isinstance(value, dict | Namespace):
            forget_paths(value)


if __name__ == "__main__":
    {"released": released, "stored": stored}[sys.argv[1]]()
