"""Which numbers the options of distillation can be."""

import math

from macaron_fairseq.common.errors import UserError


def require_share(flag: str, value: float) -> None:
    """Raise a `UserError` unless it is from 0 to 1."""
    if not 0 <= value <= 1:
        raise UserError(f"{flag} is {value}: give a number from 0 to 1")


def require_temperature(flag: str, value: float) -> None:
    """Raise a `UserError` unless it is above 0 and finite."""
    if not 0 < value < math.inf:
        raise UserError(f"{flag} is {value}: give a number above 0")


def require_room(flag: str, value: float) -> None:
    """Raise a `UserError` unless it is a finite number from 0 on."""
    if not 0 <= value < math.inf:
        raise UserError(f"{flag} is {value}: give GiB, or 0 for none")


def require_weight(flag: str, value: float) -> None:
    """Raise a `UserError` unless it is a finite number from 0 on."""
    if not 0 <= value < math.inf:
        raise UserError(f"{flag} is {value}: give a number, 0 or more")
