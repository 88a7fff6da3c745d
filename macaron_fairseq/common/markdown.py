"""Tables in Markdown."""

import statistics
from collections.abc import Sequence

NOTHING = "-"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; line breaks in a cell are spaces there."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(" ".join(cell.split("\n")).replace("|", "\\|") for cell in line) + " |"
        for line in lines
    )


def number(value: float | None, form: str) -> str:
    """A number in that form, or a dash."""
    return NOTHING if value is None else format(value, form)


def three_digits(value: float | None) -> str:
    """The value, or a dash where there is none."""
    return number(value, "#.3g").rstrip(".")


def p_value(p: float | None) -> str:
    """A p value, or a dash."""
    if p is None:
        return NOTHING
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """The mean and, of several values, the sample standard deviation."""
    mean = format(statistics.mean(values), form)
    return f"{mean} ± {statistics.stdev(values):{form}}" if len(values) > 1 else mean
