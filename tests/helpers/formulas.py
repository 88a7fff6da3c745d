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


# --- schemes and sub-steps -----------------------------------------------------------------------

# The steps of a layer: size, and what is applied to one and the same state. "first" is the FFN with
# parameters of its own in earlier.0, "ffn" the one that fairseq's layer has.
STRANG = [(0.5, "first"), (1, "self"), (0.5, "ffn")]
STRANG_SYMMETRIC = [(0.5, "first"), (0.5, "self"), (1, "cross"), (0.5, "self"), (0.5, "ffn")]
# Yoshida's 1 / (2 - 2^(1/3)) and 1 - 2 / (2 - 2^(1/3)), and half of each.
W1, W0, H1, H0 = 1.3512071919596578, -1.7024143839193153, 0.6756035959798289, -0.8512071919596577
ENCODERS = {
    "lie-trotter": [(1, "self"), (1, "ffn")],
    "lie-trotter-reversed": [(1, "ffn"), (1, "self")],
    "strang-marchuk": STRANG,
    "strang-marchuk-attention": [(0.5, "self"), (1, "ffn"), (0.5, "self")],
    "strang-symmetric": STRANG,
    "parallel": [(1, "self", "ffn")],
    "yoshida4": [
        *[(H1, "ffn"), (W1, "self"), (H1, "ffn")],
        *[(H0, "ffn"), (W0, "self"), (H0, "ffn")],
        *[(H1, "ffn"), (W1, "self"), (H1, "ffn")],
    ],
}
DECODERS = {
    "lie-trotter": [(1, "self"), (1, "cross"), (1, "ffn")],
    "lie-trotter-reversed": [(1, "ffn"), (1, "self"), (1, "cross")],
    "strang-marchuk": [(0.5, "first"), (1, "self"), (1, "cross"), (0.5, "ffn")],
    "strang-marchuk-attention": [
        *[(0.5, "self"), (0.5, "cross"), (1, "ffn")],
        *[(0.5, "cross"), (0.5, "self")],
    ],
    "strang-symmetric": STRANG_SYMMETRIC,
    "parallel": [(1, "self", "cross", "ffn")],
    "yoshida4": [
        *[(H1, "ffn"), (H1, "self"), (W1, "cross"), (H1, "self"), (H1, "ffn")],
        *[(H0, "ffn"), (H0, "self"), (W0, "cross"), (H0, "self"), (H0, "ffn")],
        *[(H1, "ffn"), (H1, "self"), (W1, "cross"), (H1, "self"), (H1, "ffn")],
    ],
}


def has_two_ffns(scheme):
    """Whether its layers have another FFN than fairseq's."""
    return any("first" in names for _, *names in ENCODERS[scheme])


def goes_with_post_norm(scheme):
    """Whether each step follows one operator, and none goes back."""
    steps = ENCODERS[scheme] + DECODERS[scheme]
    return all(size > 0 and len(names) == 1 for size, *names in steps)


def one_step(substep, f, x, h, gate):
    """The state after a step of x' = f(x); `gate` is a weight, (1, 2 channels), and a bias."""
    if substep == "euler":
        return x + h * f(x)
    if substep == "midpoint":
        return x + h * f(x + h / 2 * f(x))
    k1 = f(x)
    if substep == "gated-rk2":
        k2 = f(x + h * k1)
        weight, bias = gate
        g = 1 / (1 + torch.exp(-(torch.cat((k1, k2), -1) @ weight.T + bias)))
        return x + h * (g * k1 + (1 - g) * k2)
    k2 = f(x + h / 2 * k1)
    k3 = f(x + h / 2 * k2)
    k4 = f(x + h * k3)
    return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def layer_of(p, steps, substep, x, heads, hidden, memory=None, memory_hidden=None, pre_norm=True):
    """A layer of these steps; the gate of a step is that of the first one of the same operators."""
    norms = {
        "first": "earlier.0.layer_norm",
        "ffn": "final_layer_norm",
        "self": "self_attn_layer_norm",
        "cross": "encoder_attn_layer_norm",
    }
    networks = {
        "first": lambda y: ffn(p, "earlier.0.network.", y),
        "ffn": lambda y: ffn(p, "", y),
        "self": lambda y: attention(p, "self_attn", y, y, heads, hidden),
        "cross": lambda y: attention(p, "encoder_attn", y, memory, heads, memory_hidden),
    }

    def field(names, x):
        return sum(networks[name](layer_norm(p, norms[name], x)) for name in names)

    applied = [names for _, *names in steps]
    for size, *names in steps:
        if not pre_norm:  # of one operator, evaluated once
            x = step(p, norms[names[0]], False, x, networks[names[0]], size)
            continue
        gate = f"gates.{applied.index(names)}"
        gates = p.get(f"{gate}.weight"), p.get(f"{gate}.bias")
        x = one_step(substep, lambda x, names=names: field(names, x), x, size, gates)
    return x
