"""A report as one HTML page that needs nothing but itself (report.html).

Its style and its script stand in the two files of this module's name next to it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from macaron_fairseq.common import html_page
from macaron_fairseq.common.wording import counted
from macaron_fairseq.evaluation.report import curves, provenance, report_tables, report_text
from macaron_fairseq.evaluation.report.report_tables import Table
from macaron_fairseq.evaluation.report.verdict import Summary, signed
from macaron_fairseq.evaluation.scores import failures
from macaron_fairseq.text.languages import has_spaces
from macaron_fairseq.text.tokenization import split_characters

STYLE, SCRIPT = (Path(__file__).with_suffix(suffix) for suffix in (".css", ".js"))
# With more columns, a table becomes a list of cards on a narrow screen.
NARROW_COLUMNS = 3

EXAMPLES = (
    "Sentences whose two translations differ most in sentence BLEU (sacreBLEU, effective order). "
    "Marked pieces, between spaces, are not in the reference; in Chinese and Japanese they are "
    "characters."
)


def page(summary: Summary, picture: str | None, dynamics: str | None) -> str:
    """The whole page.

    Args:
        summary: the report.
        picture: the learning curves as an SVG element, where there are any.
        dynamics: the address of a page on the models' dynamics, if there is one.
    """
    tests, baseline = summary["tests"], summary["baseline"]
    archs = [row["arch"] for row in summary["architectures"]]
    parts = [
        f"<h1>{escape(summary['title'])}</h1>",
        f'<p class="soft">{inline(subject(summary))}</p>',
        verdict(summary),
        contents(dynamics),
        '<h2 id="scores">Scores</h2>',
        *(part for test in tests for part in scores(test)),
        *(paragraph(text) for text in report_text.unmatched(summary["published_elsewhere"])),
        significance(summary),
        '<h2 id="curves">Learning curves</h2>',
        *learning_curves(archs, picture, report_text.no_picture(summary)),
        '<h2 id="differences">Where translations differ</h2>',
        *(part for test in tests for part in differences(test, baseline, len(tests) > 1)),
        '<h2 id="sentences">Sentences</h2>',
        *(part for test in tests for part in sentences(summary, test, archs)),
        '<h2 id="runs">Runs</h2>',
        table(report_tables.runs(summary, with_scores=False)),
        folded("Size of each architecture", [table(report_tables.architectures(summary))]),
        '<h2 id="provenance">How to repeat it</h2>',
        *how_to_repeat(summary),
    ]
    style, script = (path.read_text("utf-8") for path in (STYLE, SCRIPT))
    return html_page.page(summary["title"], parts, style, script)


def subject(summary: Summary) -> str:
    """What was compared on what."""
    data = summary["data"]
    archs = [f"`{row['arch']}`" for row in summary["architectures"]]
    days = sorted({start["date"][:10] for run in summary["runs"] for start in run["starts"]})
    when = "" if not days else f", {' to '.join(dict.fromkeys((days[0], days[-1])))}"
    tests = ", ".join(
        f"{x['name']} ({counted(x['sentences'], 'sentence')})" for x in summary["tests"]
    )
    return f"{data['source']}-{data['target']}, {tests}. {', '.join(archs)}{when}."


def verdict(summary: Summary) -> str:
    """What the scores show, in words, before any figure."""
    parts = []
    for found in summary["verdict"]:
        details = "".join(f"<li>{inline(text)}</li>" for text in found["details"])
        parts.append(
            f'<p class="headline">{escape(found["headline"])}</p>'
            + (f"<ul>{details}</ul>" if details else "")
            + (paragraph(found["advice"]) if found["advice"] else "")
        )
    parts += [
        f'<p class="warning"><strong>Warning.</strong> {inline(text)}</p>'
        for text in summary["warnings"]
    ]
    return f'<section class="verdict" aria-label="Verdict">{"".join(parts)}</section>'


def contents(dynamics: str | None) -> str:
    """Links to the sections and to other files."""
    sections = {
        "scores": "Scores",
        "curves": "Learning curves",
        "differences": "Where translations differ",
        "sentences": "Sentences",
        "runs": "Runs",
        "provenance": "How to repeat it",
    }
    links = [f'<a href="#{name}">{title}</a>' for name, title in sections.items()]
    others = {"report.json": "All of this as JSON", "report.md": "As Markdown"}
    others |= {dynamics: "The models as dynamics"} if dynamics else {}
    links += [f'<a href="{escape(address)}">{title}</a>' for address, title in others.items()]
    return f'<nav aria-label="Contents">{" ".join(links)}</nav>'


# --- parts ---------------------------------------------------------------------------------------


def inline(text: str) -> str:
    """Text as an element's content; what stands between backticks is code.

    Long names may break after an underscore.
    """
    parts = escape(text).split("`")
    if len(parts) % 2 == 0:  # a lone backtick is text
        parts[-2:] = ["`".join(parts[-2:])]
    return "".join(
        f"<code>{part.replace('_', '_<wbr>')}</code>" if i % 2 else part
        for i, part in enumerate(parts)
    )


def paragraph(text: str) -> str:
    """Text that may hold code."""
    return f"<p>{inline(text)}</p>"


def folded(title: str, parts: Iterable[str]) -> str:
    """What a click unfolds."""
    return f"<details><summary>{inline(title)}</summary>{''.join(parts)}</details>"


def table(shown: Table) -> str:
    """A table with its note.

    The script makes it sort. On a narrow screen a wide one becomes a list of cards: roles say that
    it still is a table.
    """
    kind = "sortable" if len(shown.rows) > 1 else ""
    if len(shown.header) > NARROW_COLUMNS:
        kind += " wide"
    head = "".join(f'<th scope="col" role="columnheader">{inline(x)}</th>' for x in shown.header)
    rows = []
    for name, *cells in shown.rows:
        labelled = zip(shown.header[1:], cells, strict=True)
        rows.append(
            f'<tr role="row"><th scope="row" role="rowheader">{inline(name)}</th>'
            + "".join(
                f'<td role="cell" data-label="{escape(label.replace("`", ""))}">{inline(cell)}</td>'
                for label, cell in labelled
            )
            + "</tr>"
        )
    note = f'<p class="soft">{inline(shown.note)}</p>' if shown.note else ""
    content = (
        f'<table class="{kind.strip()}" role="table"><caption>{inline(shown.title)}</caption>'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f'<tbody role="rowgroup">{"".join(rows)}</tbody></table>'
    )
    return html_page.scrolling(escape(shown.title.replace("`", "")), content) + note


# --- sections ------------------------------------------------------------------------------------


def scores(test: Summary) -> list[str]:
    """Scores, lengths and failures on a test set."""
    return [
        table(report_tables.scores(test)),
        table(report_tables.translations(test)),
        f'<p class="soft">{escape(failures.DEFINITION)}</p>',
    ]


def significance(summary: Summary) -> str:
    """The paired bootstrap, folded: it is not about seeds."""
    shown = report_tables.significance(summary)
    content = table(shown) if shown.rows else paragraph(report_text.no_pairs(summary))
    return folded("Paired bootstrap over sentences, with p-values", [content])


def learning_curves(archs: Sequence[str], picture: str | None, no_picture: str) -> list[str]:
    """The curves with their legend, or why there are none."""
    if not picture:
        return [paragraph(no_picture)]
    title = curves.TITLE[0].upper() + curves.TITLE[1:]
    return [html_page.legend(archs), html_page.figure(picture, escape(title))]


def differences(test: Summary, baseline: str, several: bool) -> Iterator[str]:
    """By length, by frequency, and in n-grams."""
    if several:
        yield f"<h3>{escape(test['name'])}</h3>"
    yield table(report_tables.by_length(test, baseline))
    if test["by_frequency"] is None:
        yield paragraph(report_text.NO_FREQUENCIES)
    else:
        yield table(report_tables.by_frequency(test, baseline))
    for comparison in test["comparisons"]:
        if comparison["seeds"]:
            tables = [table(x) for x in report_tables.ngrams(comparison, baseline) if x.rows]
            yield html_page.panels(f"<div>{x}</div>" for x in tables)


def sentences(summary: Summary, test: Summary, archs: Sequence[str]) -> Iterator[str]:
    """Each comparison's examples, with a search box."""
    for number, comparison in enumerate(test["comparisons"]):
        found = comparison["sentences"]
        if not found:
            continue
        key = f"{test['name']}-{number}"
        yield (
            f"<h3>{inline('`' + comparison['arch'] + '`')} against "
            f"{inline('`' + summary['baseline'] + '`')} on {escape(test['name'])}, seed "
            f"{found['seed']}</h3>"
            f"<p>{test['measure']}, by sentence, is higher for {found['better']:,} of "
            f"{test['sentences']:,} sentences, lower for {found['worse']:,}, and equal for "
            f"{found['equal']:,}.</p>"
        )
        if not found["examples"]:
            continue
        failing = [
            {
                n
                for row in test["translations"]
                if (row["arch"], row["seed"]) == (arch, found["seed"])
                for n in row["failing_lines"]
            }
            for arch in (summary["baseline"], comparison["arch"])
        ]
        names = [summary["baseline"], comparison["arch"]]
        keys = [html_page.key(archs.index(name), name) for name in names]
        items = "".join(
            example(x, keys, failing, summary["data"], test["lowercase"]) for x in found["examples"]
        )
        yield (
            f'<section class="examples">{controls(key, comparison["arch"])}'
            f'<p class="soft">{EXAMPLES} At most {summary["examples_at_most"]} are here, half of '
            f"them in each direction.</p><ol>{items}</ol>"
            '<button type="button" class="more" hidden>Show more</button></section>'
        )


def controls(key: str, arch: str) -> str:
    """A search box and a choice, which the script shows: without it they do nothing."""
    key = escape(key)
    return (
        '<form class="controls" role="search" hidden>'
        f'<label for="search-{key}">Search</label>'
        f'<input type="search" id="search-{key}" placeholder="a word of any of the texts">'
        f'<label for="which-{key}">Show</label><select id="which-{key}">'
        '<option value="">all</option>'
        f'<option value="better">better with {escape(arch)}</option>'
        '<option value="worse">worse</option>'
        '<option value="failing">looping or cut off</option></select>'
        '<output aria-live="polite"></output></form>'
    )


def example(
    x: Summary,
    keys: Sequence[str],
    failing: Sequence[set[int]],
    data: Summary,
    lowercase: bool,
) -> str:
    """One sentence: source, reference, and both translations."""
    source, target = (escape(data[side]) for side in ("source", "target"))
    fails = [x["number"] in lines for lines in failing]
    kind = ["better" if x["difference"] > 0 else "worse", *(["failing"] if any(fails) else [])]
    rows = []
    if x["source"] is not None:
        rows.append(("source", f'<span lang="{source}" dir="auto">{escape(x["source"])}</span>'))
    rows.append(("reference", f'<span lang="{target}" dir="auto">{escape(x["reference"])}</span>'))
    for side, key, fail in zip(("baseline", "other"), keys, fails, strict=True):
        words = marked(x[side], x["reference"], data["target"], lowercase)
        note = f"BLEU {x[f'{side}_bleu']:.1f}" + (", loops or is cut off" if fail else "")
        rows.append((key, f'<span lang="{target}" dir="auto">{words}</span> <small>{note}</small>'))
    return (
        f'<li data-kind="{" ".join(kind)}"><p><strong>{signed(x["difference"])}</strong> '
        f'<span class="soft">line {x["number"]:,}</span></p>{html_page.definitions(rows)}</li>'
    )


def marked(hypothesis: str, reference: str, language: str, lowercase: bool) -> str:
    """A translation whose words that the reference does not have are marked.

    Words stand between spaces; in Chinese and Japanese a character is a word.
    """
    by_character = not has_spaces(language)

    def same(text: str) -> str:
        return text.lower() if lowercase else text

    def words(text: str) -> list[str]:
        return (split_characters(text) if by_character else text).split()

    known = set(words(same(reference)))
    shown = ""
    for part in re.split(r"(\s+)", hypothesis):
        if part.isspace():
            shown += escape(part)
        for word in words(part):
            found = same(word) in known
            shown += escape(word) if found else f"<mark>{escape(word)}</mark>"
    return shown


def how_to_repeat(summary: Summary) -> list[str]:
    """Provenance, folded."""
    flags = report_tables.flags(summary)
    command = [
        f"<pre><code>{escape(provenance.command(summary))}</code></pre>",
        *(paragraph(text) for text in provenance.remarks(summary)),
        *([table(flags)] if flags else []),
    ]
    return [
        folded("Command", command),
        folded("Code, data and checkpoints", [listed(provenance.facts(summary))]),
        folded("Metrics", [listed(provenance.signatures(summary))]),
        folded("Where and when", [listed(provenance.environments(summary))]),
    ]


def listed(lines: Iterable[str]) -> str:
    """A list of lines that may hold code."""
    return f"<ul>{''.join(f'<li>{inline(line)}</li>' for line in lines)}</ul>"
