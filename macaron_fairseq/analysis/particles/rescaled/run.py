"""Experiments with rescaled tokens, from their parameters to their pictures.

They are those of arXiv 2305.05465; `particles.run` writes what they return.
"""

from argparse import Namespace
from collections.abc import Callable, Iterable

from macaron_fairseq.analysis.particles import settings
from macaron_fairseq.analysis.particles.outcome import Outcome
from macaron_fairseq.analysis.particles.rescaled import figures, tokens
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import look_up

SHOWN = 6  # eigenvalues, and groups


def rescaled_tokens(args: Namespace) -> Outcome:
    """Follow rescaled tokens with one of the value matrices."""
    look_up(dict.fromkeys(tokens.GEOMETRIES), args.geometry, "geometry", "--geometry")
    if args.positive is not None and args.geometry not in ("codimension", "product"):
        raise UserError("--positive is of --geometry codimension and product")
    positive = args.dim - 1 if args.positive is None else args.positive
    if positive > args.dim:
        raise UserError(f"--positive {positive} is above --dim {args.dim}")
    settings.refuse_many(args.particles, args.dim, args.frames, "lower --frames")
    values = tokens.value_matrix(args.geometry, args.dim, positive, args.seed)
    half = tokens.HALF_SIDE if args.dim <= tokens.DRAWN else tokens.HALF_SIDE_OF_MANY
    start = tokens.cube_start(args.particles, args.dim, half, args.seed)
    result = tokens.rescaled(values, start, settings.times(args), args.step)
    title = f"{args.geometry}: {args.particles} rescaled tokens, d = {args.dim}"
    eigenvalues = _first(f"{x:.3g}" for x in result.eigenvalues[:, 0])
    lines = [
        f"eigenvalues of V, real parts: {eigenvalues}",
        f"values along the growing eigenvectors at time {args.time:g}: "
        f"{_first(map(str, result.groups[-1]))}",
        f"places at time 0 and {args.time:g}: {result.places[0]} and {result.places[-1]}",
    ]
    return Outcome(result, figures.rescaled(result, title), lines)


def leaders(args: Namespace) -> Outcome:
    """Look at the attention matrix of rescaled tokens."""
    weights = f"the attention weights of {args.particles:,} tokens, {args.frames:,} times,"
    settings.refuse_large(args.frames * args.particles**2, weights, "lower --frames")
    values = tokens.gram_matrix(args.dim, args.seed)
    start = tokens.cube_start(args.particles, args.dim, 1.0, args.seed)
    result = tokens.leaders(values, start, settings.times(args), args.step, 4)
    lines = [
        f"time {result.times[row]:g}: attention of rank {result.rank[row]} and effective rank "
        f"{result.effective_rank[row]:.1f}, {result.leaders[row]} leaders"
        for row in (0, -1)
    ]
    title = f"attention of {args.particles} tokens, d = {args.dim}"
    return Outcome(result, figures.leaders(result, title), lines)


EXPERIMENTS: dict[str, Callable[[Namespace], Outcome]] = {
    "rescaled": rescaled_tokens,
    "leaders": leaders,
}


def _first(words: Iterable[str]) -> str:
    shown = list(words)
    return ", ".join(shown[:SHOWN] + ["..."] * (len(shown) > SHOWN))
