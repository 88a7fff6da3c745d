"""Numbers in sentences."""


def counted(number: int, thing: str) -> str:
    """A number and what there is of it: 1 line, 1,000 lines, no other plurals than those in -s."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
