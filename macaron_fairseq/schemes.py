"""Splitting schemes: the order of a layer's operators, as data.

A Transformer layer is one time step of a system of particles, x' = F(x) + G(x), with F attention
and G the position-wise FFN (Lu et al. 2019, section 3). A scheme says in which order, and with
which step, the operators are applied: each (operator, step) pair stands for

    x <- x + step * operator(x)

To add a scheme, add an entry to `SCHEMES`: layers, architectures, checkpoints and the command line
take it from there.
"""

from dataclasses import dataclass
from difflib import get_close_matches

from macaron_fairseq.errors import UserError

FFN = "ffn"
SELF_ATTENTION = "self-attention"
CROSS_ATTENTION = "cross-attention"

Steps = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Scheme:
    """What an encoder layer and a decoder layer apply, in order.

    Every application has weights and a LayerNorm of its own.
    """

    encoder: Steps
    decoder: Steps

    @property
    def encoder_ffns(self) -> int:
        """How many FFNs an encoder layer has: the baseline's inner width is divided among them."""
        return _count_ffns(self.encoder)

    @property
    def decoder_ffns(self) -> int:
        """How many FFNs a decoder layer has."""
        return _count_ffns(self.decoder)


SCHEMES = {
    # The Transformer of Vaswani et al. 2017.
    "lie-trotter": Scheme(
        encoder=((SELF_ATTENTION, 1), (FFN, 1)),
        decoder=((SELF_ATTENTION, 1), (CROSS_ATTENTION, 1), (FFN, 1)),
    ),
    # The Macaron layer of Lu et al. 2019, section 4.
    "strang-marchuk": Scheme(
        encoder=((FFN, 1 / 2), (SELF_ATTENTION, 1), (FFN, 1 / 2)),
        decoder=((FFN, 1 / 2), (SELF_ATTENTION, 1), (CROSS_ATTENTION, 1), (FFN, 1 / 2)),
    ),
}

DEFAULT = "strang-marchuk"


def get(name: str) -> Scheme:
    """The scheme of that name; a `UserError` shows the nearest names to a misspelt one."""
    if name in SCHEMES:
        return SCHEMES[name]
    near = get_close_matches(name, SCHEMES) or list(SCHEMES)
    raise UserError(
        f"unknown splitting scheme '{name}': --macaron-scheme takes {' or '.join(near)}"
    )


def _count_ffns(sequence: Steps) -> int:
    return sum(operator == FFN for operator, _ in sequence)
