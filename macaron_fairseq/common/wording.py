"""Numbers in sentences."""

import math


def counted(number: int, thing: str) -> str:
    """A number and what there is of it: 1 line, 1,000 lines, no other plurals than those in -s."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def number(value: float) -> str:
    """Three digits of a number; near 1 and -1 three of what is missing there.

    A cosine of 0.9996 is not 1. `analysis/number.js` goes by the same rule.
    """
    missing = 1 - abs(value)
    if 1e-6 < missing < 0.01:
        places = 2 - math.floor(math.log10(missing))
        return f"{value:.{places}f}".rstrip("0")
    rounded = float(f"{value:.3g}")
    if not rounded or not 1e-6 <= abs(rounded) < 1e21:
        return f"{rounded:g}"
    places = max(0, 2 - math.floor(math.log10(abs(rounded))))
    text = f"{rounded:.{places}f}"  # 1230, not 1.23e+03
    return text.rstrip("0").rstrip(".") if places else text
