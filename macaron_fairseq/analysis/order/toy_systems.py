"""Small systems whose flow is known: attention and an FFN with random weights.

x' = F(x) + C(x) + G(x) for a few tokens x: F attention among them, C attention to fixed ones (in
the decoder only), G a two-layer perceptron with tanh. All in fp64, and smooth, as orders need it;
several systems, since in one of them errors may happen to cancel.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product

import torch
from torch import Tensor

from macaron_fairseq.analysis import integrators, local_error
from macaron_fairseq.analysis.order.results import Measured, refuse_bad_names, result
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.progress import following
from macaron_fairseq.schemes import splitting, substeps
from macaron_fairseq.schemes.splitting import CROSS_ATTENTION, FFN, SELF_ATTENTION, Operator, Steps
from macaron_fairseq.schemes.substeps import Field, Gate, SubStep

SYSTEMS, TOKENS, MEMORY, WIDTH, INNER = 16, 6, 5, 8, 16
STRENGTH = 2.0  # of the second linear maps: how far a step of 1 goes

# The flow is that of so many steps of the classic Runge-Kutta method, and more if they are longer.
PARTS = 16
LONGEST = 1 / 500
MOST = 4.0  # a step of which the flow is still known to about 1e-6

Fields = Mapping[str, Field]
Method = Callable[[Fields, SubStep, Tensor, float], Tensor]


def system(seed: int) -> tuple[dict[str, Field], Tensor]:
    """The three fields by the operators' names, and a state, (systems, tokens, channels)."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(SYSTEMS, *shape, generator=generator, dtype=torch.float64)

    def matrix(rows: int, columns: int, strength: float = 1.0) -> Tensor:
        return strength * random(rows, columns) / rows**0.5

    x, memory = random(TOKENS, WIDTH), random(MEMORY, WIDTH)

    def attention() -> Callable[[Tensor, Tensor], Tensor]:
        scores, values = matrix(WIDTH, WIDTH), matrix(WIDTH, WIDTH, STRENGTH)
        return lambda x, y: (x @ scores @ y.mT / WIDTH**0.5).softmax(-1) @ y @ values

    among, across = attention(), attention()
    first, second = matrix(WIDTH, INNER), matrix(INNER, WIDTH, STRENGTH)
    fields = {
        SELF_ATTENTION: lambda x: among(x, x),
        CROSS_ATTENTION: lambda x: across(x, memory),
        FFN: lambda x: torch.tanh(x @ first) @ second,
    }
    return fields, x


def exact(f: Field, x: Tensor, h: float, gate: Gate | None = None) -> Tensor:
    """The mean slope of the flow of f over a step, to about 1e-10 for steps up to 1."""
    parts = max(PARTS, math.ceil(abs(h) / LONGEST))
    y, part = x, h / parts
    for _ in range(parts):
        y = y + part * substeps.rk4(f, y, part)
    return (y - x) / h


EXACT = SubStep(exact, 4 * PARTS, "(x(h) - x(0))/h")
SUBSTEPS = {"exact": EXACT, **substeps.SUBSTEPS}  # the gated one with g = 1/2, as it starts


def advance(steps: Steps, fields: Fields, substep: SubStep, x: Tensor, h: float) -> Tensor:
    """The state after a layer whose steps are `h` times as long; operators share their weights."""

    def apply(operator: Operator, x: Tensor) -> Tensor:
        return fields[operator.kind](x)

    return integrators.advance(steps, apply, substep, {}, x, h)


def whole(fields: Fields) -> Field:
    """What all fields give, in sum."""
    return lambda x: torch.stack([f(x) for f in fields.values()]).sum(0)


def richardson(steps: Steps, fields: Fields, substep: SubStep, x: Tensor, h: float) -> Tensor:
    """Two half steps and a whole one, weighted so that a second-order method's errors cancel."""
    half = advance(steps, fields, substep, x, h / 2)
    halves = advance(steps, fields, substep, half, h / 2)
    return (4 * halves - advance(steps, fields, substep, x, h)) / 3


RICHARDSON = "richardson-strang"  # no layer computes it: it is here to compare


def methods(side: str) -> dict[str, Method]:
    """How to advance by each scheme, in an encoder's or a decoder's layer."""
    found: dict[str, Method] = {
        name: partial(advance, getattr(scheme, side)) for name, scheme in splitting.SCHEMES.items()
    }
    symmetric = getattr(splitting.SCHEMES["strang-symmetric"], side)
    return {**found, RICHARDSON: partial(richardson, symmetric)}


def errors(side: str, scheme: str, substep: str, steps: Sequence[float], seed: int) -> list[float]:
    """The error after one step against the flow, relative to the state, for each step size.

    Root mean square over all systems, tokens and channels.
    """
    fields, x = system(seed)
    if side == "encoder":
        fields = {kind: f for kind, f in fields.items() if kind != CROSS_ATTENTION}
    method = methods(side)[scheme]
    found = []
    for h in steps:
        flow = x + h * exact(whole(fields), x, h)
        difference = method(fields, SUBSTEPS[substep], x, h) - flow
        found.append((difference.norm() / x.norm()).item())
    return found


def of_toy_systems(
    scheme_names: Sequence[str] | None = None,
    substep_names: Sequence[str] | None = None,
    longest: float = 0.01,
    seed: int = 1,
) -> Measured:
    """The errors of these schemes with these sub-steps, of all where None is given.

    Args:
        scheme_names: of `methods`.
        substep_names: of `SUBSTEPS`.
        longest: the longest step; two more are each half of the one before.
        seed: of the systems' weights.

    Raises:
        UserError: if there is none of a name, the flow of so long a step is not known, or the
            errors are not finite.
    """
    if longest > MOST:
        raise UserError(
            f"the flow of toy systems is known for steps up to {MOST:g}, and not for {longest:g}: "
            "give a smaller --step"
        )
    known = methods("encoder")
    refuse_bad_names(scheme_names, substep_names, known, SUBSTEPS)
    steps = local_error.halved(longest, times=2)
    wanted = list(product(scheme_names or known, substep_names or SUBSTEPS))
    results = [
        result(side, pair, steps, errors(side, *pair, steps, seed))
        for pair in following(wanted, "methods")
        for side in ("encoder", "decoder")
    ]
    return Measured("Local error on toy systems", {"seed": seed}, steps, results)
