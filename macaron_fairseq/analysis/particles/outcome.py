"""What an experiment returns, whichever file it is in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from macaron_fairseq.analysis.particles.movies import Movie
from macaron_fairseq.analysis.particles.systems import System


@dataclass(frozen=True)
class Outcome:
    """What an experiment found."""

    result: Any  # a dataclass of numbers
    picture: bytes  # a PNG file
    lines: list[str]  # in words
    system: System | None = None
    movie: Callable[[], Movie] | None = None
    page: Callable[[], str] | None = None
