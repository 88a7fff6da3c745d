"""The layers of the paper in plain tensor operations, batch first: the tests' independent truth.

`p` is a layer's state dict; nothing here is taken from the package.
"""

import torch


def layer_norm(p, name, x):
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / (variance + 1e-5).sqrt() * p[f"{name}.weight"] + p[f"{name}.bias"]


def linear(p, name, x):
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def ffn(p, prefix, x):
    return linear(p, f"{prefix}fc2", linear(p, f"{prefix}fc1", x).clamp(min=0))


def attention(p, name, x, memory, heads, hidden):
    """Multi-head attention; `hidden` is True where (batch, query, key) must not be seen."""
    b, t, d = x.shape

    def split(y):
        return y.view(b, -1, heads, d // heads).transpose(1, 2)

    q, k, v = (
        split(linear(p, f"{name}.{n}_proj", y)) for n, y in (("q", x), ("k", memory), ("v", memory))
    )
    scores = q @ k.transpose(2, 3) / (d // heads) ** 0.5
    scores = scores.masked_fill(hidden[:, None], -torch.inf)
    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
    return linear(p, f"{name}.out_proj", (weights @ v).transpose(1, 2).reshape(b, t, d))


def step(p, norm, pre_norm, x, operator, size):
    """x + size * operator(LayerNorm(x)), or LayerNorm(x + size * operator(x))."""
    if pre_norm:
        return x + size * operator(layer_norm(p, norm, x))
    return layer_norm(p, norm, x + size * operator(x))


def macaron_encoder_layer(p, x, heads, pre_norm, hidden):
    x = step(p, "earlier.0.layer_norm", pre_norm, x, lambda y: ffn(p, "earlier.0.network.", y), 0.5)
    x = step(
        p,
        "self_attn_layer_norm",
        pre_norm,
        x,
        lambda y: attention(p, "self_attn", y, y, heads, hidden),
        1,
    )
    return step(p, "final_layer_norm", pre_norm, x, lambda y: ffn(p, "", y), 0.5)


def macaron_decoder_layer(p, x, memory, heads, pre_norm, hidden, memory_hidden):
    x = step(p, "earlier.0.layer_norm", pre_norm, x, lambda y: ffn(p, "earlier.0.network.", y), 0.5)
    x = step(
        p,
        "self_attn_layer_norm",
        pre_norm,
        x,
        lambda y: attention(p, "self_attn", y, y, heads, hidden),
        1,
    )
    x = step(
        p,
        "encoder_attn_layer_norm",
        pre_norm,
        x,
        lambda y: attention(p, "encoder_attn", y, memory, heads, memory_hidden),
        1,
    )
    return step(p, "final_layer_norm", pre_norm, x, lambda y: ffn(p, "", y), 0.5)
