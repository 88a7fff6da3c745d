"""Splitting schemes: the order of a layer's operators, as data.

A Transformer layer is one time step of a system of particles, x' = F(x) + G(x). F is attention and
G the position-wise FFN (Lu et al. 2019, section 3). A scheme says in which order, and with
which steps, the operators are applied, and which applications share their weights:

    x <- x + size * (operator(x) + ... )

To add a scheme, add an entry to `SCHEMES`: layers, architectures, checkpoints and the command line
take it from there.
"""

from dataclasses import dataclass
from fractions import Fraction
from numbers import Real

from macaron_fairseq.common.names import look_up

FFN = "ffn"
SELF_ATTENTION = "self-attention"
CROSS_ATTENTION = "cross-attention"
KINDS = FFN, SELF_ATTENTION, CROSS_ATTENTION


@dataclass(frozen=True)
class Operator:
    """A network and its LayerNorm, with the same weights however often they are applied."""

    kind: str  # one of KINDS
    number: int = 1  # of those of a kind in a layer

    def __post_init__(self) -> None:
        """Raise a `ValueError` for a kind that no layer builds."""
        if self.kind not in KINDS:
            raise ValueError(f"there is no operator '{self.kind}': take one of {', '.join(KINDS)}")


@dataclass(frozen=True)
class Step:
    """A step along the sum of operators, which all see the same state."""

    size: float
    operators: tuple[Operator, ...]

    def __post_init__(self) -> None:
        """Raise a `ValueError` for what is no step; `step` takes the operators one by one."""
        if not isinstance(self.size, Real) or isinstance(self.size, bool):
            raise ValueError(f"the size of a step is a number, and not {self.size!r}")
        if not isinstance(self.size, int):
            object.__setattr__(self, "size", float(self.size))  # PyTorch takes no Fraction
        refuse_others(self.operators, Operator, "the operators of a step")
        if not self.operators:
            raise ValueError("a step needs an operator")


def refuse_others(found: object, kind: type, what: str) -> None:
    """Raise a `ValueError` for what is no tuple of that kind."""
    if not isinstance(found, tuple) or not all(isinstance(x, kind) for x in found):
        raise ValueError(
            f"{what} are to be a tuple of {kind.__name__}, as in (x,) with its comma, and not "
            f"{repr(found)[:80]}"
        )


Steps = tuple[Step, ...]


def step(size: float, *operators: Operator) -> Step:
    """A step; in this order, so that a scheme reads as its formula."""
    return Step(size, operators)


@dataclass(frozen=True)
class Scheme:
    """What an encoder layer and a decoder layer apply, in order."""

    encoder: Steps
    decoder: Steps

    def __post_init__(self) -> None:
        """Raise a `ValueError` for what is no side; one that no model has may be empty."""
        for side in ("encoder", "decoder"):
            refuse_others(getattr(self, side), Step, f"the steps of the {side}")


SELF = Operator(SELF_ATTENTION)
CROSS = Operator(CROSS_ATTENTION)
# The FFNs of a layer divide the baseline's width among them.
FIRST, SECOND = Operator(FFN, 1), Operator(FFN, 2)
WHOLE = FIRST  # as a layer's only one is called

# Yoshida 1990: three steps of a symmetric second-order method make one of fourth order. The middle
# one goes back; above second order some step has to.
W1 = 1 / (2 - 2 ** (1 / 3))
W0 = 1 - 2 * W1


def triple_jump(symmetric: Steps) -> Steps:
    """The symmetric method three times, its step sizes multiplied by W1, W0 and W1.

    The last operator of a jump is the first of the next, and their two steps stay two. For exact
    flows one step would be the same; for inexact ones the errors would no longer cancel.
    """
    return tuple(step(w * x.size, *x.operators) for w in (W1, W0, W1) for x in symmetric)


SCHEMES = {
    # The Transformer of Vaswani et al. 2017.
    "lie-trotter": Scheme(
        encoder=(step(1, SELF), step(1, WHOLE)),
        decoder=(step(1, SELF), step(1, CROSS), step(1, WHOLE)),
    ),
    # The same with G before F.
    "lie-trotter-reversed": Scheme(
        encoder=(step(1, WHOLE), step(1, SELF)),
        decoder=(step(1, WHOLE), step(1, SELF), step(1, CROSS)),
    ),
    # The Macaron layer of Lu et al. 2019, section 4.
    "strang-marchuk": Scheme(
        encoder=(step(1 / 2, FIRST), step(1, SELF), step(1 / 2, SECOND)),
        decoder=(step(1 / 2, FIRST), step(1, SELF), step(1, CROSS), step(1 / 2, SECOND)),
    ),
    # Attention in halves instead, which share their weights: two attentions of full width would
    # leave nothing of the baseline's parameters to a narrow FFN.
    "strang-marchuk-attention": Scheme(
        encoder=(step(1 / 2, SELF), step(1, WHOLE), step(1 / 2, SELF)),
        decoder=(
            step(1 / 2, SELF),
            step(1 / 2, CROSS),
            step(1, WHOLE),
            step(1 / 2, CROSS),
            step(1 / 2, SELF),
        ),
    ),
    # The paper's with a decoder that reads the same backwards, as its encoder does.
    "strang-symmetric": Scheme(
        encoder=(step(1 / 2, FIRST), step(1, SELF), step(1 / 2, SECOND)),
        decoder=(
            step(1 / 2, FIRST),
            step(1 / 2, SELF),
            step(1, CROSS),
            step(1 / 2, SELF),
            step(1 / 2, SECOND),
        ),
    ),
    # No splitting: all operators at once.
    "parallel": Scheme(
        encoder=(step(1, SELF, WHOLE),),
        decoder=(step(1, SELF, CROSS, WHOLE),),
    ),
    "yoshida4": Scheme(
        encoder=triple_jump((step(1 / 2, WHOLE), step(1, SELF), step(1 / 2, WHOLE))),
        decoder=triple_jump(
            (
                step(1 / 2, WHOLE),
                step(1 / 2, SELF),
                step(1, CROSS),
                step(1 / 2, SELF),
                step(1 / 2, WHOLE),
            )
        ),
    ),
}

DEFAULT = "strang-marchuk"


def get(name: str, flag: str = "--macaron-scheme") -> Scheme:
    """The scheme of that name; a `UserError` shows the nearest names to a misspelt one."""
    return look_up(SCHEMES, name, "splitting scheme", flag)


def as_fraction(size: float, digits: int = 6) -> str:
    """A step's size as one writes it: 1, 1/2, 1.35121."""
    exact = Fraction(size).limit_denominator(128)
    return str(exact) if float(exact) == size else f"{size:.{digits}g}"


def operators(steps: Steps) -> list[Operator]:
    """The operators in the order of their applications."""
    return [operator for x in steps for operator in x.operators]


def without(steps: Steps, kind: str) -> Steps:
    """The steps without operators of that kind."""
    left = [(x.size, [o for o in x.operators if o.kind != kind]) for x in steps]
    return tuple(step(size, *applied) for size, applied in left if applied)


def has_own_first_ffn(steps: Steps) -> bool:
    """Whether the FFN that is applied first is another one than that which is applied last."""
    ffns = [x for x in operators(steps) if x.kind == FFN]
    return bool(ffns) and ffns[0] != ffns[-1]


def count_ffns(steps: Steps) -> int:
    """How many FFNs a layer has: the baseline's inner width is divided among them."""
    return len({x for x in operators(steps) if x.kind == FFN})
