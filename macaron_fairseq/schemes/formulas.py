"""Schemes as formulas: what each step of a layer computes, as text."""

from dataclasses import dataclass

from macaron_fairseq.schemes import splitting, substeps
from macaron_fairseq.schemes.splitting import CROSS_ATTENTION, FFN, SELF_ATTENTION, Operator, Steps
from macaron_fairseq.schemes.substeps import SubStep

NAMES = {FFN: "FFN", SELF_ATTENTION: "Self", CROSS_ATTENTION: "Cross"}


@dataclass(frozen=True)
class SchemeFormulas:
    """A splitting scheme, as a pre-norm layer computes it: a formula for each step."""

    name: str
    encoder: tuple[str, ...]
    decoder: tuple[str, ...]
    ffns: int  # in a layer, which share the baseline's inner width
    is_default: bool


def of_schemes(substep: str = substeps.DEFAULT) -> list[SchemeFormulas]:
    """All schemes with one sub-step.

    Raises:
        UserError: if there is no such sub-step.
    """
    method = substeps.get(substep)
    return [
        SchemeFormulas(
            name,
            tuple(formulas(scheme.encoder, method)),
            tuple(formulas(scheme.decoder, method)),
            splitting.count_ffns(scheme.encoder),
            name == splitting.DEFAULT,
        )
        for name, scheme in splitting.SCHEMES.items()
    ]


def formulas(steps: Steps, substep: SubStep, pre_norm: bool = True) -> list[str]:
    """A line for each step; `LN` is the operator's LayerNorm."""
    lines = []
    several = substep.evaluations > 1
    for step in steps:
        terms = [f"{title(x, steps)}({'LN x' if pre_norm else 'x'})" for x in step.operators]
        field = " + ".join(terms)
        size = abs(step.size)
        factor = "" if size == 1 else splitting.as_fraction(size)
        change = "k" if several else f"({field})" if len(terms) > 1 and factor else field
        sign = "-" if step.size < 0 else "+"
        after = " ".join(x for x in ("x", sign, factor, change) if x)
        line = f"x <- {after}" if pre_norm else f"x <- LN({after})"
        h = f"{'-' if step.size < 0 else ''}{splitting.as_fraction(size)}"
        lines.append(f"{line},  f(x) = {field},  h = {h}" if several else line)
    if several:
        lines.append(f"k = {substep.formula}")
    return lines


def title(operator: Operator, steps: Steps) -> str:
    """The name of an operator, with a number where there are several of its kind."""
    of_kind = {x.number for x in splitting.operators(steps) if x.kind == operator.kind}
    number = str(operator.number) if len(of_kind) > 1 else ""
    return f"{NAMES[operator.kind]}{number}"
