"""The colours of pictures and pages: as many as there are schemes, one for each model.

The order is blue, orange, green, purple, teal, magenta, olive.
"""

LIGHT = ("#1f6fb2", "#c2571a", "#2f8f4e", "#8a4fb0", "#0f8a8a", "#b8388c", "#7a6a10")
DARK = ("#6ab0ec", "#f2a065", "#74cf93", "#c69be6", "#5fd0d0", "#ee8cc8", "#d6c35a")
# Neither dark nor light: for areas, whose colour cannot follow a page's.
AREA = ("#3b86c8", "#d97b3c", "#4aa86b", "#a172c4", "#2fa3a3", "#c75ba3", "#958420")


def declared(colours: tuple[str, ...]) -> str:
    """The colours as variables of a style sheet."""
    return " ".join(f"--series-{i}: {colour};" for i, colour in enumerate(colours))


def light(series: int) -> str:
    """The colour of a model; after the last colour follows the first one."""
    return LIGHT[series % len(LIGHT)]


def area(series: int) -> str:
    """The same for an area."""
    return AREA[series % len(AREA)]


def variable(series: int) -> str:
    """The same as a variable of the style sheet."""
    return f"var(--series-{series % len(LIGHT)})"
