"""The colours and marks of pictures and pages, one of each for a model.

The colours are blue, orange, green, purple, teal, magenta, olive. They differ in lightness too: the
colour-blind tell them apart. Marks tell lines apart where no colour is seen. There is one mark more
than colours: the eighth model has the first one's colour, and a mark that no other has.
"""

LIGHT = ("#538aec", "#c47a3a", "#085023", "#601d9d", "#418a80", "#883354", "#716500")
DARK = ("#7ac7fe", "#df7f43", "#c0f2b2", "#9067cb", "#409897", "#c06080", "#d3ce4d")
# Neither dark nor light: for areas, whose colour cannot follow a page's.
AREA = ("#3b86c8", "#cc7438", "#449b63", "#a172c4", "#2c9999", "#c75ba3", "#958420")

# The marks as matplotlib calls them, and as style sheets cut them out of a square.
MARKS = {
    "o": "circle(42%)",
    "s": "inset(14%)",
    "D": "polygon(50% 0, 100% 50%, 50% 100%, 0 50%)",
    "^": "polygon(50% 4%, 100% 92%, 0 92%)",
    "v": "polygon(50% 96%, 0 8%, 100% 8%)",
    "P": "polygon(33% 0, 67% 0, 67% 33%, 100% 33%, 100% 67%, 67% 67%, 67% 100%, 33% 100%, "
    "33% 67%, 0 67%, 0 33%, 33% 33%)",
    "X": "polygon(24% 0, 50% 26%, 76% 0, 100% 24%, 74% 50%, 100% 76%, 76% 100%, 50% 74%, "
    "24% 100%, 0 76%, 26% 50%, 0 24%)",
    "*": "polygon(50% 0, 63% 33%, 98% 35%, 71% 57%, 80% 92%, 50% 72%, 20% 92%, 29% 57%, 2% 35%, "
    "37% 33%)",
}


def declared(colours: tuple[str, ...]) -> str:
    """The colours as variables of a style sheet."""
    return " ".join(f"--series-{i}: {colour};" for i, colour in enumerate(colours))


def declared_marks() -> str:
    """The marks as variables of a style sheet."""
    return " ".join(f"--mark-{i}: {shape};" for i, shape in enumerate(MARKS.values()))


def light(series: int) -> str:
    """The colour of a model; after the last colour follows the first one."""
    return LIGHT[series % len(LIGHT)]


def area(series: int) -> str:
    """The same for an area."""
    return AREA[series % len(AREA)]


def variable(series: int) -> str:
    """The same as a variable of the style sheet."""
    return f"var(--series-{series % len(LIGHT)})"


def mark(series: int) -> str:
    """The mark of a model, as matplotlib calls it."""
    return [*MARKS][series % len(MARKS)]


def mark_variable(series: int) -> str:
    """The same as a variable of the style sheet."""
    return f"var(--mark-{series % len(MARKS)})"
