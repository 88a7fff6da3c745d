"""`macaron-fairseq particles`, in the tests' own process."""

import json

from macaron_fairseq import cli


def simulate(small, choice, *flags, output):
    """What it writes as JSON, next to a picture, and with nothing half written left.

    Args:
        small: by choice the flags that make it a small one.
        choice: which simulation.
        flags: more of them.
        output: the folder to write to.
    """
    cli.main(["particles", choice, *small[choice], *map(str, flags), "-o", str(output)])
    assert (output / f"{choice}.png").read_bytes().startswith(b"\x89PNG")
    assert not list(output.glob("*.part"))
    return json.loads((output / f"{choice}.json").read_text("utf-8"))
