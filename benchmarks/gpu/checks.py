"""A check, its negative control, and the table of what passed."""

import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

from gpu.setups import Device
from macaron_fairseq.common import markdown

PASSED, FAILED, SKIPPED = "pass", "FAIL", "not run"


class NotHere(Exception):  # noqa: N818 - no error
    """The check needs what this device has not; the text says what."""


@dataclass
class Outcome:
    """What one run of a check found."""

    passes: bool
    says: str
    figures: dict[str, Any] = field(default_factory=dict)
    is_judged: bool = True  # else it cannot fail here, and needs no control


# Runs a check on a device. With True it breaks something on purpose, and must then fail.
Look = Callable[[Device, bool], Outcome]


@dataclass
class Row:
    """A check in the table and in the JSON."""

    name: str
    result: str
    says: str
    control: str = ""  # "fails", as it must
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """All of it; what is no number of JSON, NaN or infinite, as text."""
        return as_finite(asdict(self))


def as_finite(content: Any) -> Any:
    """The content with floats that JSON does not know as text."""
    if isinstance(content, dict):
        return {name: as_finite(x) for name, x in content.items()}
    if isinstance(content, list | tuple):
        return [as_finite(x) for x in content]
    return str(content) if isinstance(content, float) and not isfinite(content) else content


def run(name: str, look: Look, device: Device) -> Row:
    """Run a check, and then its control: the same check, spoiled, must not pass."""
    start = time.monotonic()
    try:
        found = look(device, False)
        control = look(device, True) if found.is_judged else None
    except NotHere as reason:
        return Row(name, SKIPPED, str(reason))
    except Exception as error:
        traceback.print_exc()
        # Of a command that fails, the end says why.
        says = f"{type(error).__name__}: {' '.join(str(error).split())[-200:]}"
        return Row(name, FAILED, says, seconds=time.monotonic() - start)
    says, is_caught = found.says, control is None or not control.passes
    if not is_caught:
        says += "; and the spoiled one passes too"
    return Row(
        name,
        PASSED if found.passes and is_caught else FAILED,
        says,
        "none" if control is None else "fails" if is_caught else "PASSES",
        round(time.monotonic() - start, 1),
        {**found.figures, "control": control.figures if control else None},
    )


def table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    head = "check", "result", "control", "seconds", ""
    return markdown.table(
        head, [(x.name, x.result, x.control, f"{x.seconds:.0f}", x.says) for x in rows]
    )
