"""Loops over NumPy's arrays, which Numba compiles when they are first called."""

import logging
from functools import cache
from importlib import import_module
from typing import Any


@cache
def loops(name: str) -> Any:
    """The module of that name in this package, or None where Numba does not compile it."""
    try:
        module: Any = import_module(f"{__name__}.{name}")
        # Where the root logger lets everything pass, Numba's compiler tells of each of its steps.
        logging.getLogger("numba").setLevel(logging.WARNING)
        module.try_out()
    except Exception:  # not there, broken, no folder for its results: we can do without
        return None
    return module
