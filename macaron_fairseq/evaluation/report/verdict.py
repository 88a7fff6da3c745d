"""What a report's scores show, in words; and what to know before believing them."""

from collections.abc import Sequence
from typing import Any

from macaron_fairseq.common.wording import counted
from macaron_fairseq.evaluation.scores.metrics import LOWER_IS_BETTER
from macaron_fairseq.evaluation.training import training_flags
from macaron_fairseq.evaluation.training.runs import UNFINISHED

Summary = dict[str, Any]  # what `summary.summarize` gives, or a part of it

LEVEL = 0.95  # of the intervals
FFN_WIDTHS = "--encoder-ffn-embed-dim", "--decoder-ffn-embed-dim"
NAMED = 6  # runs in a warning; it counts the others

ALONE = "One architecture: there is nothing to compare it with."
NOT_PAIRED = "No seed in common: nothing is said about the difference."
ONE_SEED = "One seed: the difference says nothing about the scheme."
NOT_SHOWN = "No difference is shown: the interval over seeds includes 0."
SHOWN = "A difference is shown: the interval over seeds excludes 0."
EQUAL = "All seeds have the same difference: without a spread there is no interval."
ADVICE = {
    ONE_SEED: "Another seed may move a score by more than this. Train each architecture with three "
    "seeds or more.",
    NOT_PAIRED: "Train both architectures with the same seeds.",
    NOT_SHOWN: "To tell more, fix a larger number of seeds, and look when all are trained. Adding "
    "seeds until the interval excludes 0 finds differences that are not there.",
    EQUAL: "The test set is small, or there are few seeds: take more of both.",
}


def verdicts(tests: Sequence[Summary], baseline: str) -> list[Summary]:
    """A headline for each kind of finding, and a sentence for each comparison that it is true of.

    Args:
        tests: a report's test sets, with their comparisons.
        baseline: the architecture that others are compared with.

    Returns:
        Objects with `headline`, `details`, a list of sentences, and `advice`, which may be empty.
    """
    found: dict[str, list[str]] = {}
    for test in tests:
        for comparison in test["comparisons"]:
            where = f" on {test['name']}" if len(tests) > 1 else ""
            found.setdefault(kind(comparison), []).append(sentence(comparison, baseline, where))
    return [
        {"headline": headline, "details": details, "advice": ADVICE.get(headline, "")}
        for headline, details in (found or {ALONE: []}).items()
    ]


def kind(comparison: Summary) -> str:
    """The headline of one comparison."""
    if len(comparison["seeds"]) < 2:
        return ONE_SEED if comparison["seeds"] else NOT_PAIRED
    if not (interval := comparison["difference"]["interval"]):
        return EQUAL
    low, high = interval
    return NOT_SHOWN if low <= 0 <= high else SHOWN


def sentence(comparison: Summary, baseline: str, where: str) -> str:
    """How one architecture scores against the baseline."""
    seeds, difference = comparison["seeds"], comparison["difference"]
    both = f"{named(comparison['arch'])} against {named(baseline)}{where}"
    if not seeds:
        return f"{both}: not compared."
    text = f"{both}: {signed(difference['mean'])} {comparison['metric']}"
    if comparison["metric"] in LOWER_IS_BETTER:
        text += " (lower is better)"
    if len(seeds) == 1:
        return f"{text} with seed {seeds[0]}."
    text += f" over {len(seeds)} seeds"
    if not difference["interval"]:
        return f"{text}, the same with each."
    low, high = (interval_end(x) for x in difference["interval"])
    return f"{text}, 95 % interval {low} to {high}."


def named(arch: str) -> str:
    """An architecture by its name; one with the Transformer's order of operators is said to be it.

    A comparison by schemes calls it macaron_transformer_tiny/lie-trotter.
    """
    return f"`{arch}`" + " (the Transformer)" * arch.endswith("/lie-trotter")


def is_transformer(arch: str) -> bool:
    """Whether an architecture, perhaps with its scheme, has the Transformer's layers."""
    return "macaron" not in arch or arch.endswith("/lie-trotter")


def signed(value: float) -> str:
    """A number with its sign; what is rounded to 0 has none."""
    text = f"{value:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text


def interval_end(value: float) -> str:
    """The same of an interval's end: not 0 where the interval excludes 0."""
    text = signed(value)
    return f"{value:+.1g}" if text == "0.00" and value else text


def caution(tests: Sequence[Summary]) -> list[str]:
    """What several comparisons of a report mean for each of their intervals."""
    return of_several(sum(len(x["seeds"]) > 1 for test in tests for x in test["comparisons"]))


def of_several(number: int) -> list[str]:
    """What so many comparisons, which have an interval each, mean for each."""
    if number < 2:
        return []
    chance = 100 * (1 - LEVEL**number)
    return [
        f"{number} differences are looked at, each with an interval for itself. Where there is "
        f"none at all, up to {chance:.0f} % of such reports show one."
    ]


# --- warnings ------------------------------------------------------------------------------------


def warnings(
    tests: Sequence[Summary],
    flags: Summary,
    architectures: Sequence[Summary],
    runs: Sequence[Summary],
) -> list[str]:
    """What stands between the scores and their reader.

    Args:
        tests: a report's test sets.
        flags: which flags differ.
        architectures: with their `parameters`, None where they are not known.
        runs: with their `updates`, None where they are not known.
    """
    found = [text for test in tests if (text := failures(test, len(tests) > 1))]
    expected = [*training_flags.SCHEME]
    if are_of_equal_size(architectures):
        expected += FFN_WIDTHS  # by which they are: one FFN of 512 is two of 256
    if differing := [name for name in flags["differing"] if name not in expected]:
        names = ", ".join(f"`{name}`" for name in differing)
        found.append(f"The runs differ in more than the architecture: {names}.")
    unfinished = [x["name"] for x in tests if UNFINISHED in (x["decoding"] or "")]
    if unfinished:
        found.append(
            f"Scores of unfinished training runs ({', '.join(unfinished)}): they have not reached "
            "the updates that their flags ask for."
        )
    elif short := [x for run in runs if (x := shortfall(run))]:
        found.append(f"Training runs that did not reach --max-update: {listed(short)}.")
    if alone := [x for run in runs if (x := without_partner(run, runs))]:
        found.append(
            "Some runs have no partner of the same seed. They count in means, and not in "
            f"differences: {listed(alone)}."
        )
    return found


def listed(names: Sequence[str]) -> str:
    """Some of the names, and how many more there are."""
    more = [f"and {counted(len(names) - NAMED, 'more run')}"] * (len(names) > NAMED)
    return "; ".join([*names[:NAMED], *more])


def shortfall(run: Summary) -> str | None:
    """How many updates a run made of those that its flags ask for; None if they name other ends."""
    flags = training_flags.parse(run["flags"])
    asked = " ".join(flags.get("--max-update", ()))
    if not asked.isdecimal() or run["updates"] is None or {*flags} & {*training_flags.ENDS}:
        return None
    if run["updates"] >= int(asked):
        return None
    return f"`{run['arch']}`, seed {run['seed']}: {run['updates']:,} of {int(asked):,} updates"


def without_partner(run: Summary, runs: Sequence[Summary]) -> str | None:
    """The run's name if an architecture was not trained with its seed."""
    archs = {x["arch"] for x in runs}
    partners = {x["arch"] for x in runs if x["seed"] == run["seed"]}
    return f"`{run['arch']}`, seed {run['seed']}" if partners != archs else None


def are_of_equal_size(architectures: Sequence[Summary]) -> bool:
    """Whether their parameters are known, and as many but for 1 %."""
    sizes = [row["parameters"] for row in architectures]
    return bool(sizes) and None not in sizes and max(sizes) <= 1.01 * min(sizes)


def failures(test: Summary, several: bool) -> str | None:
    """Which runs have translations that loop or were cut off, and the score without those."""
    failing = [row for row in test["translations"] if row["failing"]]
    if not failing:
        return None
    named = [
        f"`{row['arch']}`, seed {row['seed']}: {row['failing']:,} of {test['sentences']:,}, "
        f"{row['bleu']:.2f} {test['measure']}"
        + ("" if row["bleu_without"] is None else f" and {row['bleu_without']:.2f} without them")
        for row in failing
    ]
    where = f" on {test['name']}" if several else ""
    return (
        f"Some translations{where} loop or reach the maximum length. {listed(named)}. A few "
        "such lines can explain a difference of points. The score without them is a diagnosis, not "
        "a result."
    )
