"""Parts of HTML pages that need nothing but themselves: a frame, cards, figures, tables.

Text is escaped by whoever gives it, with `escape`: titles, captions and cells may hold elements.
"""

import json
import zlib
from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from macaron_fairseq.common import palette

TYPES = {".json": "application/json", ".csv": "text/csv"}  # of files to download

SERIES = f"""
:root {{ {palette.declared(palette.LIGHT)} {palette.declared_marks()} }}
@media (prefers-color-scheme: dark) {{ :root {{ {palette.declared(palette.DARK)} }} }}"""
CSS = (
    SERIES
    + """
:root {
  color-scheme: light dark;
  --page: #ffffff; --card: #f6f7f9; --text: #1c2430; --soft: #5a6472; --rule: #d9dee5;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14181e; --card: #1c222b; --text: #e4e8ee; --soft: #a2acba; --rule: #333c48;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 78rem; padding: 1rem; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif;
}
h1 { font-size: 1.6rem; margin: .5rem 0; }
h2 { font-size: 1.35rem; margin: 2.5rem 0 .5rem; border-bottom: 2px solid var(--rule); }
h3 { font-size: 1.1rem; margin: 1.8rem 0 .3rem; }
h4, .card h3 { font-size: 1rem; margin: 0; }
p { margin: .4rem 0; max-width: 48rem; }
.soft, figcaption { color: var(--soft); font-size: .9rem; }
nav, .legend { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; margin: .5rem 0; }
.legend { list-style: none; padding: 0; font-weight: 600; }
a { color: inherit; }
.key { display: inline-block; width: .9em; height: .9em; margin-right: .4em;
  print-color-adjust: exact; forced-color-adjust: none; }
.card { margin: 1rem 0; padding: .8rem; background: var(--card); border-radius: .5rem; }
.cards { display: grid; gap: 1rem; margin: 1rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); }
.cards .card { margin: 0; }
.panels { display: grid; gap: .5rem 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 16rem), 1fr)); }
figure { margin: 0; max-width: 26rem; }
svg { display: block; width: 100%; height: auto; }
.scroll { overflow-x: auto; }
caption { text-align: left; color: var(--soft); padding: .2rem .6rem; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; font-size: .9rem; }
dt { font-weight: 600; }
dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; } }
summary { cursor: pointer; padding: .3rem 0; }
code { overflow-wrap: anywhere; }
"""
)


def page(title: str, parts: Iterable[str], style: str = "", script: str = "") -> str:
    """A whole page of elements, with a style sheet and a script next to the common ones.

    The script is a module: strict, and its names are not the window's.
    """
    body = "\n".join(parts)
    run = f'<script type="module">{script}</script>\n' if script else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n{run}</body>\n</html>\n"
    )


def as_json(content: Any) -> str:
    """JSON that can stand within a `script` element."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def deflated(content: bytes) -> str:
    """Base64 of zlib, for a script to unpack."""
    return b64encode(zlib.compress(content, 9)).decode()


def key(series: int, label: str) -> str:
    """What a colour and a mark of the pictures stand for; `label` is text."""
    style = f"background: {palette.variable(series)}; clip-path: {palette.mark_variable(series)}"
    return f'<span class="key" style="{style}"></span>{escape(label)}'


def legend(labels: Sequence[str]) -> str:
    """What all colours and marks stand for."""
    keys = "".join(f"<li>{key(i, label)}</li>" for i, label in enumerate(labels))
    return f'<ul class="legend" aria-label="Legend">{keys}</ul>'


def definitions(rows: Iterable[tuple[str, str]]) -> str:
    """A list of names and what belongs to each."""
    return "<dl>" + "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in rows) + "</dl>"


def card(title: str, text: str, content: str, level: int = 4) -> str:
    """A box with a title, which is a heading of that level, a text and pictures."""
    head = f"<h{level}>{title}</h{level}>"
    return f'<section class="card">{head}<p class="soft">{text}</p>{content}</section>'


def figure(picture: str, caption: str = "") -> str:
    """A picture, and what is said above it."""
    above = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f"<figure>{above}{picture}</figure>"


def panels(figures: Iterable[str]) -> str:
    """Figures next to each other, as far as there is room."""
    return f'<div class="panels">{"".join(figures)}</div>'


def scrolling(label: str, content: str) -> str:
    """What may be wider than the page. It has the focus, so that the arrow keys move it."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{content}</div>'


def folded_table(summary: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that a click unfolds; the first cell of each row names it, and has no head."""
    head = "".join(f"<th scope='col'>{x}</th>" for x in heads)
    body = "".join(
        f"<tr><th scope='row'>{name}</th>" + "".join(f"<td>{x}</td>" for x in cells) + "</tr>"
        for name, *cells in rows
    )
    table = (
        f"<table><caption>{summary}</caption><thead><tr><td></td>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )
    return f"<details><summary>{summary}</summary>{scrolling(summary, table)}</details>"


def download(name: str, text: str) -> str:
    """A link to a file that the page itself holds."""
    content = text.encode(errors="backslashreplace")  # as `files.write_all` writes it
    kind, size = TYPES[Path(name).suffix], f"{len(content) / 1000:.0f} kB"
    href = f"data:{kind};base64,{b64encode(content).decode()}"
    if kind == "text/csv":  # which has little that must be escaped
        href = f"data:{kind};charset=utf-8,{quote(content, safe=' ,:;/+-|.()')}"
    return f'<a download="{name}" href="{href}">{name}</a> ({size})'
