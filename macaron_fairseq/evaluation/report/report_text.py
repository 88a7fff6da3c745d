"""The text of a report, in Markdown (report.md)."""

from collections.abc import Iterable, Sequence

from macaron_fairseq.common.markdown import table
from macaron_fairseq.common.wording import counted
from macaron_fairseq.evaluation.report import provenance, report_tables
from macaron_fairseq.evaluation.report.report_tables import Table
from macaron_fairseq.evaluation.report.verdict import Summary
from macaron_fairseq.evaluation.scores import failures

NO_PICTURE = (
    "No learning curves: matplotlib is not installed. `pip install matplotlib`, and write the "
    "report again."
)
NO_FREQUENCIES = (
    "No scores by the frequency of words: the report does not know the training text, which "
    "`--train-text` names."
)
NO_FIGURES = (
    "No learning curves: no train.log holds figures. Train with `--log-format json`, and keep what "
    "fairseq-train prints."
)
SHOWN = 5  # n-grams in each direction; the page and the JSON file have more


def markdown(summary: Summary, picture: str | None) -> str:
    """The whole report; `picture` names the file with the learning curves, if there is one."""
    parts = [
        f"# {summary['title']}",
        *verdict(summary),
        *(part for test in summary["tests"] for part in scores(test)),
        *unmatched(summary["published_elsewhere"]),
        "## Significance",
        *significance(summary),
        "## Runs",
        plain(report_tables.runs(summary)),
        "## Architectures",
        *with_note(report_tables.architectures(summary)),
        f"![loss in validation and in training]({picture})" if picture else no_picture(summary),
        *(part for test in summary["tests"] for part in differences(test, summary["baseline"])),
        "The page report.html shows sentences with both translations.",
        "## Metrics",
        bullets(provenance.signatures(summary)),
        "## Where and when",
        bullets(provenance.environments(summary)),
        "## How to repeat it",
        bullets(provenance.facts(summary)),
        f"```sh\n{provenance.command(summary)}\n```",
        *provenance.remarks(summary),
        *([plain(flags)] if (flags := report_tables.flags(summary)) else []),
    ]
    return "\n\n".join(parts) + "\n"


def no_picture(summary: Summary) -> str:
    """Why there are no learning curves."""
    has_figures = any(run["train_curve"] or run["valid_curve"] for run in summary["runs"])
    return NO_PICTURE if has_figures else NO_FIGURES


def plain(shown: Table) -> str:
    """A table alone."""
    return table(shown.header, shown.rows)


def with_note(shown: Table) -> list[str]:
    """A table and what is to be known when reading it."""
    return [plain(shown), *([shown.note] if shown.note else [])]


def bullets(lines: Iterable[str]) -> str:
    """A list."""
    return "\n".join(f"- {line}" for line in lines)


def verdict(summary: Summary) -> list[str]:
    """What the scores show, in words, and what to know before believing them."""
    parts = []
    for found in summary["verdict"]:
        parts.append(f"**{found['headline']}** {found['advice']}".strip())
        parts += [bullets(found["details"])] if found["details"] else []
    return [*parts, *(f"**Warning:** {text}" for text in summary["warnings"])]


def scores(test: Summary) -> list[str]:
    """One test set: scores, lengths and failures."""
    return [
        f"## {test['name']}, {counted(test['sentences'], 'sentence')}",
        *with_note(report_tables.scores(test)),
        *with_note(report_tables.translations(test)),
        failures.DEFINITION,
    ]


def unmatched(published: Sequence[Summary]) -> list[str]:
    """The published scores that stand next to no score of the report."""
    if not published:
        return []
    entries = "; ".join(
        f"`{x['arch']}` on {x['test']}, {x['metric']} {x['score']} ({x['source']})"
        for x in published
    )
    return [f"Published, with no run here to stand next to: {entries}."]


def significance(summary: Summary) -> list[str]:
    """The paired bootstrap, or why there is none."""
    if not summary["significance"]:
        return [no_pairs(summary)]
    return with_note(report_tables.significance(summary))


def no_pairs(summary: Summary) -> str:
    """Why there is no paired bootstrap."""
    return f"No run has a BLEU to compare with that of `{summary['baseline']}` of the same seed."


def differences(test: Summary, baseline: str) -> list[str]:
    """Where the translations of a test set differ."""
    parts = [
        f"## Where translations of {test['name']} differ",
        *titled(report_tables.by_length(test, baseline)),
    ]
    if test["by_frequency"] is None:
        parts.append(NO_FREQUENCIES)
    else:
        parts += titled(report_tables.by_frequency(test, baseline))
    for comparison in test["comparisons"]:
        for shown in report_tables.ngrams(comparison, baseline) if comparison["seeds"] else ():
            if shown.rows:
                parts += [f"{shown.title}:", table(shown.header, shown.rows[:SHOWN])]
    return parts


def titled(shown: Table) -> list[str]:
    """A table under its title."""
    return [f"{shown.title}:", *with_note(shown)]
