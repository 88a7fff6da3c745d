"""The tables of a report, which its Markdown and its page show.

A cell is text; what stands between backticks is code.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from macaron_fairseq.common.markdown import NOTHING, number, p_value
from macaron_fairseq.evaluation.report.verdict import Summary, signed
from macaron_fairseq.evaluation.scores.metrics import LOWER_IS_BETTER

Row = list[str]


@dataclass(frozen=True)
class Table:
    """A table with what it shows, and what to know when reading it."""

    title: str
    header: Row
    rows: list[Row]
    note: str = ""


# --- scores --------------------------------------------------------------------------------------


def scores(test: Summary) -> Table:
    """One test set: a row for each architecture."""
    metrics = list(test["signatures"])
    rows = test["architectures"]
    with_published = any(row["published"] for row in rows)
    with_interval = [x for x in metrics if any(row["scores"][x]["interval"] for row in rows)]
    header = ["architecture"]
    for metric in metrics:
        header += [metric, *([f"{metric}, 95 %"] if metric in with_interval else [])]
    header += ["seeds", *(["published"] if with_published else [])]
    cells = []
    for row in rows:
        line = [code(row["arch"])]
        for metric in metrics:
            line.append(with_deviation(row["scores"][metric]))
            line += [interval(row["scores"][metric])] if metric in with_interval else []
        published = "; ".join(
            f"{x['metric']} {x['score']} ({x['source']})" for x in row["published"]
        )
        cells.append(
            [*line, str(len(row["seeds"])), *([published or NOTHING] if with_published else [])]
        )
    lower = [metric for metric in metrics if metric in LOWER_IS_BETTER]
    notes = [how_sure(rows)]
    if lower:
        notes.append(f"{' and '.join(lower)}: lower is better.")
    return Table(f"Scores on {test['name']}", header, cells, " ".join(filter(None, notes)))


def how_sure(rows: Sequence[Summary]) -> str:
    """What deviations and intervals are taken over."""
    scores = [score for row in rows for score in row["scores"].values()]
    over = {score["interval_over"] for score in scores}
    notes = []
    if any(score["standard_deviation"] is not None for score in scores):
        notes.append("Mean ± sample standard deviation over seeds.")
    if "seeds" in over:
        notes.append(
            "95 %: Student's interval, for the mean over all seeds that could have been drawn."
        )
    if "sentences" in over:
        notes.append(
            "95 % of a single seed: sacreBLEU's bootstrap over sentences. It holds for other "
            "sentences of this kind, not for other seeds."
        )
    return " ".join(notes)


def translations(test: Summary) -> Table:
    """A row for each run: scores, length, failures, and BLEU without those."""
    metrics = list(test["signatures"])
    rows = [
        [
            code(row["arch"]),
            str(row["seed"]),
            *(f"{row['scores'][metric]:.2f}" for metric in metrics),
            f"{row['length_ratio']:.3f}",
            f"{row['looping']:,}",
            number(row["cut_off"], ","),
            number(row["bleu_without"], ".2f"),
        ]
        for row in test["translations"]
    ]
    maximum = test["maximum_length"]
    header = ["architecture", "seed", *metrics, "length ratio", "loop", "at maximum length"]
    return Table(
        f"Each run on {test['name']}: scores, length and failures",
        [*header, f"{test['measure']} without failures"],
        rows,
        ("" if maximum is None else f"The maximum length is {maximum}. ")
        + "Length ratio: words of the translations by words of the references. Failures loop or "
        f"are at maximum length. {test['measure']} without them is a diagnosis, not a result: each "
        "run is then scored on other lines.",
    )


def significance(summary: Summary) -> Table:
    """The paired bootstrap: a row for each test set, architecture and seed."""
    found = summary["significance"]
    signatures = ", ".join(code(x) for x in dict.fromkeys(x["signature"] for x in found))
    return Table(
        "Paired bootstrap over sentences",
        ["test set", "architecture", "seed", "BLEU", "baseline", "difference", "p"],
        [
            [
                x["test"],
                code(x["arch"]),
                str(x["seed"]),
                f"{x['score']:.2f}",
                f"{x['baseline_score']:.2f}",
                signed(x["difference"]),
                p_value(x["p_value"]),
            ]
            for x in found
        ],
        f"sacreBLEU's paired bootstrap ({signatures}) against {code(summary['baseline'])} of the "
        "same seed. It tests whether the difference of two trained models would hold on other "
        "sentences of this kind. It does not test whether it would hold for other seeds. Its p "
        "counts samples on one side alone, so it is about half of that of a two-sided test.",
    )


# --- where translations differ -------------------------------------------------------------------


def by_length(test: Summary, baseline: str) -> Table:
    """Corpus BLEU of the sentences of each length."""
    return by_group(
        test["by_length"],
        f"{test['measure']} by length of the reference on {test['name']}",
        ("words", "sentences"),
        baseline,
    )


def by_frequency(test: Summary, baseline: str) -> Table:
    """F1 of the words of each frequency."""
    return by_group(
        test["by_frequency"],
        f"F1 of words by their frequency in the training data, on {test['name']}",
        ("times in training", "words"),
        baseline,
        "A word counts as right at most as often as it occurs in the reference. F1 is the harmonic "
        "mean of precision and recall, times 100.",
    )


def by_group(
    rows: Sequence[Summary], title: str, heads: tuple[str, str], baseline: str, note: str = ""
) -> Table:
    """A row for each group; with two architectures, also their difference."""
    others = [arch for arch in rows[0]["scores"] if arch != baseline]
    archs = [baseline, *others]
    with_difference = len(archs) == 2
    cells = []
    for row in rows:
        found = row["scores"]
        line = [group(row), f"{row[heads[1]]:,}", *(with_deviation(found[x]) for x in archs)]
        if with_difference:
            difference = row["differences"][others[0]]
            line.append(NOTHING if difference is None else signed(difference))
        cells.append(line)
    header = [*heads, *map(code, archs), *(["difference"] if with_difference else [])]
    return Table(title, header, cells, note)


def group(row: Summary) -> str:
    """From what to what a group reaches."""
    start, end = row["from"], row["to"]
    if end is None:
        return f"{start:,} or more"
    return f"{start:,}" if start == end else f"{start:,} to {end:,}"


def ngrams(comparison: Summary, baseline: str) -> list[Table]:
    """The n-grams that one side has right more often: the other architecture's, the baseline's."""
    arch, seeds = comparison["arch"], len(comparison["seeds"])
    form = ",.0f" if seeds == 1 else ",.1f"
    return [
        Table(
            f"More often right with {code(name)}",
            ["n-gram", "in references", code(baseline), code(arch)],
            [
                [
                    code(x["text"]),
                    f"{x['references']:,}",
                    *(number(x[side] / seeds, form) for side in ("baseline", "other")),
                ]
                for x in comparison["ngrams"][which]
            ],
        )
        for which, name in (("better", arch), ("worse", baseline))
    ]


# --- runs ----------------------------------------------------------------------------------------


def runs(summary: Summary, with_scores: bool = True) -> Table:
    """All runs: a row for each, and scores of all test sets, which can be many columns."""
    tests = summary["tests"] if with_scores else []
    columns = [(test["name"], metric) for test in tests for metric in test["signatures"]]
    header = [
        "architecture",
        "seed",
        *(f"{metric}, {name}" if len(tests) > 1 else metric for name, metric in columns),
        *("updates", "epochs", "best validation loss", "words/s", "hours"),
    ]
    rows = [
        [
            code(run["arch"]),
            str(run["seed"]),
            *(number(run["scores"][name][metric], ".2f") for name, metric in columns),
            number(run["updates"], ","),
            number(run["epochs"], ".1f"),
            number(run["best_valid_loss"], ".3f"),
            number(run["words_per_second"], ",.0f"),
            number(run["hours"], ".3f"),
        ]
        for run in summary["runs"]
    ]
    return Table("Runs", header, rows, summary["speed_note"])


def architectures(summary: Summary) -> Table:
    """Size and speed: a row for each architecture."""
    rows = [
        [
            code(row["arch"]),
            number(row["parameters"], ","),
            number(row["words_per_second"], ",.0f"),
            number(row["hours"], ".3f"),
        ]
        for row in summary["architectures"]
    ]
    header = ["architecture", "parameters", "words/s", "hours"]
    return Table("Architectures", header, rows, summary["speed_note"])


def flags(summary: Summary) -> Table | None:
    """The flags in which architectures differ, if there are any."""
    differing = summary["flags"]["differing"]
    if not differing:
        return None
    archs = [row["arch"] for row in summary["architectures"]]
    rows = [
        [code(name), *(code(shown[arch]) for arch in archs)] for name, shown in differing.items()
    ]
    return Table("Flags that differ", ["differs next to `--arch`", *map(code, archs)], rows)


def code(text: str) -> str:
    """Text between backticks, of which it has none itself."""
    return f"`{text.replace('`', chr(39))}`"


def with_deviation(score: Summary) -> str:
    """A mean with its standard deviation, if it has one."""
    mean, deviation = score["mean"], score["standard_deviation"]
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def interval(score: Summary) -> str:
    """A 95 % interval, if there is one."""
    found = score["interval"]
    return NOTHING if found is None else f"{found[0]:.2f} to {found[1]:.2f}"
