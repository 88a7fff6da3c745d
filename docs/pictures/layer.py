"""Draw the Transformer's and the Macaron layer as steps in time: layer.svg, and layer-dark.svg.

    python docs/pictures/layer.py

The steps and their sizes are those of `macaron_fairseq.schemes`, the formulas those of
`macaron-fairseq describe`. So the pictures cannot say anything else than the code.
"""

from dataclasses import dataclass
from html import escape
from pathlib import Path

from macaron_fairseq.analysis import description
from macaron_fairseq.schemes import splitting, substeps
from macaron_fairseq.schemes.splitting import FFN, Step, Steps

LAYERS = {"Transformer": "lie-trotter", "Macaron": "strang-marchuk"}
WIDTH, LAYER_HEIGHT = 480, 204
UNIT = 220  # pixels of a step of size 1
SQUARE = 80  # the side of the picture of both times
FONT = "font-family=\"-apple-system,'Segoe UI',Helvetica,Arial,sans-serif\""
MONOSPACE = "font-family=\"ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace\""


@dataclass(frozen=True)
class Theme:
    """Colours for a page of one brightness; the text in a box is white on both."""

    text: str
    faint: str
    attention: str
    ffn: str


THEMES = {
    "layer.svg": Theme(text="#1f2328", faint="#59636e", attention="#0860ca", ffn="#b04800"),
    "layer-dark.svg": Theme(text="#e6edf3", faint="#9198a1", attention="#2a6fdb", ffn="#b85a1c"),
}


def draw(theme: Theme) -> str:
    """Both layers, one below the other, as the text of an SVG file."""
    parts = []
    for row, (title, name) in enumerate(LAYERS.items()):
        parts += layer(f"{title} ({name})", splitting.SCHEMES[name].encoder, row, theme)
    height = len(LAYERS) * LAYER_HEIGHT + 8
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img">\n'
        "<title>A layer of the Transformer and of Macaron as steps in time</title>\n"
        f"{body}\n</svg>\n"
    )


def layer(title: str, steps: Steps, row: int, theme: Theme) -> list[str]:
    """A layer: its name, its steps from left to right, its formulas and its path in time."""
    top = row * LAYER_HEIGHT + 8
    parts = [text(0, top + 16, title, theme.text, size=16, weight="600")]
    x = 0
    for step in steps:
        parts += box(x, top + 30, step, steps, theme)
        x += round(UNIT * step.size)
    for number, formula in enumerate(description.formulas(steps, substeps.get("euler"), True)):
        parts.append(text(0, top + 106 + 24 * number, formula, theme.text, size=14, font=MONOSPACE))
    return parts + path(UNIT * 2 - 4 - SQUARE, top + 90, steps, theme)


def box(x: float, y: float, step: Step, steps: Steps, theme: Theme) -> list[str]:
    """One step, as wide as it is long."""
    (operator,) = step.operators
    half = "½ " if step.size == 1 / 2 else ""
    numbered = splitting.count_ffns(steps) > 1 and operator.kind == FFN
    letter = f"G{'₁₂'[operator.number - 1]}" if numbered else "G" if operator.kind == FFN else "F"
    width = round(UNIT * step.size) - 4
    middle = x + width / 2
    colour = theme.ffn if operator.kind == FFN else theme.attention
    network = "FFN" if operator.kind == FFN else "attention"
    return [
        f'<rect x="{x}" y="{y}" width="{width}" height="48" rx="6" fill="{colour}"/>',
        text(middle, y + 21, f"{half}{letter}", "#ffffff", size=17, weight="600", anchor="middle"),
        text(middle, y + 39, network, "#ffffff", size=13, anchor="middle"),
    ]


def path(left: float, top: float, steps: Steps, theme: Theme) -> list[str]:
    """How far time has gone along F (to the right) and along G (upwards), step by step."""
    bottom, right = top + SQUARE, left + SQUARE
    parts = [
        f'<path d="M{left} {bottom}H{right}V{top}H{left}Z" fill="none" stroke="{theme.faint}"/>',
        f'<path d="M{left} {bottom}L{right} {top}" stroke="{theme.faint}" stroke-dasharray="4 4"/>',
        text(left + SQUARE / 2, bottom + 16, "time along F", theme.faint, anchor="middle"),
        f'<g transform="translate({right + 16} {top + SQUARE / 2}) rotate(-90)">'
        + text(0, 0, "time along G", theme.faint, anchor="middle")
        + "</g>",
    ]
    x, y = left, bottom
    for step in steps:
        is_ffn = step.operators[0].kind == FFN
        length = SQUARE * step.size
        new_x, new_y = (x, y - length) if is_ffn else (x + length, y)
        colour = theme.ffn if is_ffn else theme.attention
        parts += [
            f'<path d="M{x} {y}L{new_x} {new_y}" stroke="{colour}" stroke-width="4" '
            'stroke-linecap="round"/>',
            f'<circle cx="{new_x}" cy="{new_y}" r="5" fill="{colour}"/>',
        ]
        x, y = new_x, new_y
    return parts


def text(
    x: float,
    y: float,
    content: str,
    colour: str,
    size: int = 12,
    weight: str = "400",
    anchor: str = "start",
    font: str = FONT,
) -> str:
    """A line of text."""
    return (
        f'<text x="{x}" y="{y}" {font} font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}" fill="{colour}">{escape(content)}</text>'
    )


if __name__ == "__main__":
    for name, theme in THEMES.items():
        Path(__file__).with_name(name).write_text(draw(theme), "utf-8")
