"""Perplexities of a held-back text, in units that compare, and their table."""

import math
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.stage_text import Counts

from macaron_fairseq.common import markdown
from macaron_fairseq.common.wording import counted
from macaron_fairseq.evaluation.report import verdict
from macaron_fairseq.evaluation.scores import intervals, p_values
from macaron_fairseq.evaluation.scores.intervals import Interval

EVALUATED = re.compile(r"Evaluated ([\d,]+) tokens")


@dataclass(frozen=True)
class Perplexity:
    """What a model gives a text, in total and by unit.

    A model that needs `bits` for the whole text has a perplexity of 2^(bits / n) for n units. The
    bits are the same whatever the units, so that models with other BPE merges compare. It is None
    where it is more than a number can be.
    """

    bits: float
    per_token: float | None
    per_word: float | None
    bits_per_character: float
    context: int  # least tokens before one that is scored
    validation: float | None = None  # fairseq's last loss on the validation text


def of_bits(bits: float, counts: Counts, context: int) -> Perplexity:
    """The perplexities of a text for which a model needs so many bits."""
    return Perplexity(
        bits=bits,
        per_token=two_to(bits / counts.tokens),
        per_word=two_to(bits / counts.words),
        bits_per_character=bits / counts.characters,
        context=context,
    )


def two_to(bits: float) -> float | None:
    """2 ** bits, and None where that is more than a number can be."""
    try:
        return 2**bits
    except OverflowError:
        return None


def of_loss(loss: float, log: str, counts: Counts, context: int) -> Perplexity:
    """What fairseq-eval-lm found.

    Args:
        loss: bits per token.
        log: what it said.
        counts: of the text that it should have scored.
        context: least tokens before one that is scored.

    Ends the program where it did not score each token of the text once.
    """
    tokens = EVALUATED.findall(log)
    if not tokens:
        sys.exit("fairseq-eval-lm does not say how many tokens it scored")
    scored = int(tokens[-1].replace(",", ""))
    if scored != counts.tokens:
        sys.exit(
            f"fairseq-eval-lm scored {scored} tokens of {counts.tokens}: the data is not what was "
            "prepared; run the stage prepare again"
        )
    if not math.isfinite(loss):
        sys.exit(f"the loss is {loss}: the training diverged; try a smaller -- --lr")
    return of_bits(loss * scored, counts, context)


# --- Planned comparisons -------------------------------------------------------------------------


@dataclass(frozen=True)
class Planned:
    """A comparison that was planned, in bits per character over the seeds that both have."""

    baseline: str
    seeds: list[int]
    differences: list[float]  # minus the baseline: below 0 is better
    interval: Interval | None  # of their mean, 95 %
    p: float | None  # of the paired t test; None for one seed
    holm: float | None  # corrected for all comparisons that were planned


def planned(
    main: Sequence[str],
    baselines: Mapping[str, str],
    found: Mapping[str, Mapping[int, Perplexity]],
    first: str,
) -> dict[str, Planned]:
    """The planned comparisons that can be made.

    Args:
        main: all systems whose comparison was planned.
        baselines: what some are compared with.
        found: by system and seed.
        first: the baseline of the others.
    """
    bases = {name: baselines.get(name) or first for name in main}
    every = {
        name: differences(found.get(base, {}), found.get(name, {})) for name, base in bases.items()
    }
    made = {name: by_seed for name, by_seed in every.items() if by_seed}
    p = {name: p_values.paired_t([*by_seed.values()]) for name, by_seed in made.items()}
    corrected = p_values.holm(p, len(main))
    result = {}
    for name, by_seed in made.items():
        values = [*by_seed.values()]
        interval = intervals.over_seeds(values)
        base = bases[name]
        result[name] = Planned(base, [*by_seed], values, interval, p[name], corrected[name])
    return result


def differences(
    base: Mapping[int, Perplexity], other: Mapping[int, Perplexity]
) -> dict[int, float]:
    """Bits per character less those of the baseline, by the seeds that both have."""
    return {
        seed: other[seed].bits_per_character - one.bits_per_character
        for seed, one in base.items()
        if seed in other
    }


# --- The table -----------------------------------------------------------------------------------

FIGURES = {
    "validation loss": ("validation", ".3f"),
    "perplexity per token": ("per_token", ".2f"),
    "per word": ("per_word", ".2f"),
    "bits per character": ("bits_per_character", ".4f"),
}
LARGE = 1e6  # from where on a figure has three digits and an exponent


def report(
    found: Mapping[str, Mapping[int, Perplexity]],
    counts: Counts,
    train: Counts,
    what: str = "architecture",
    baselines: Mapping[str, str] | None = None,
    others: Mapping[str, Counts] | None = None,
    first: str = "",
    planned: Mapping[str, Planned] | None = None,
) -> str:
    """The table of all that were trained, the baseline first, and what its figures are of.

    Args:
        found: by architecture or system, and seed.
        counts: of the text that is scored.
        train: of the text that was trained on.
        what: what has a row.
        baselines: what some are also compared with.
        others: of the text that is scored, for those with other merges than the first.
        first: the baseline of all, of which there may be no figures; the first one by default.
        planned: the comparisons that were planned.
    """
    first = first or next(iter(found))
    lines = ["# Perplexity of the held-back text", "", table_of_figures(found, what), ""]
    if planned:
        lines += [table_of_planned(planned), ""]
    pairs = [(first, name) for name in found if name != first]
    pairs += [(base, name) for name, base in (baselines or {}).items() if base != first]
    several = 0
    for base, name in pairs:
        if seeds := {*found.get(base, ())} & {*found.get(name, ())}:
            several += len(seeds) > 1
            lines += [difference(base, name, found[base], found[name], what), ""]
        elif name in found:
            lines += [f"`{name}` and `{base}` have no seed in common: no difference.", ""]
    lines += [x for said in verdict.of_several(several) for x in (said, "")]
    if any(None in (x.per_token, x.per_word) for seeds in found.values() for x in seeds.values()):
        lines += [
            "A perplexity of `-` is more than 10^308, as where a line without spaces is a word.",
            "",
        ]
    context = next(iter(next(iter(found.values())).values())).context
    lines += [*about_text(counts, train, context), *about_merges(counts, others or {})]
    return "\n".join(lines) + "\n"


def table_of_figures(found: Mapping[str, Mapping[int, Perplexity]], what: str) -> str:
    """A row for each that was trained: means and deviations over seeds."""
    rows = []
    for name, by_seed in found.items():
        cells = [f"`{name}`", str(len(by_seed))]
        for figure, form in FIGURES.values():
            values = [getattr(one, figure) for one in by_seed.values()]
            if None in values:
                cells.append(markdown.NOTHING)
            else:
                cells.append(markdown.spread(values, form if max(values) < LARGE else ".3g"))
        rows.append(cells)
    return markdown.table([what, "seeds", *FIGURES], rows)


def about_text(counts: Counts, train: Counts, context: int) -> list[str]:
    """What was scored and trained on, and how."""
    return [
        f"Held back: {', '.join(counts.documents)}. It has {counts.lines:,} lines, "
        f"{counts.words:,} words, {counts.tokens:,} tokens and {counts.characters:,} characters.",
        f"Trained on {train.tokens:,} tokens of {counted(len(train.documents), 'document')}. Each "
        f"token was scored with at least {context} before it, but at the beginning. A word is a "
        "token of Moses, or a line end.",
    ]


def about_merges(counts: Counts, others: Mapping[str, Counts]) -> list[str]:
    """What keeps figures per token from being compared: other merges, and unknown tokens."""
    tokens = {name: one.tokens for name, one in others.items()}
    lines = []
    for number in sorted({*tokens.values()}):
        those = ", ".join(f"`{name}`" for name, of in tokens.items() if of == number)
        lines.append(
            f"With the merges of {those} it has {number:,} tokens: compare these per word or "
            "character."
        )
    if unknown := max(one.unknown for one in (counts, *others.values())):
        lines.append(
            f"Tokens that are not in the dictionary: {unknown}. The models do not spell "
            "them out, so that other BPE merges compare less."
        )
    return lines


def table_of_planned(planned: Mapping[str, Planned]) -> str:
    """The planned comparisons, a row each, and what their p values are."""
    rows = []
    for name, one in planned.items():
        mean = f"{statistics.mean(one.differences):+.4f}"
        if one.interval:
            mean += f" ({one.interval[0]:+.4f} to {one.interval[1]:+.4f})"
        by_seed = " ".join(f"{value:+.4f}" for value in one.differences)
        p = [markdown.number(value, ".4f") for value in (one.p, one.holm)]
        rows.append([f"`{name}`", f"`{one.baseline}`", by_seed, mean, *p])
    head = ["planned", "minus its baseline", "by seed", "mean, 95 % interval", "p", "by Holm"]
    return (
        f"{markdown.table(head, rows)}\n\nBits per character. p is that of a paired t test over "
        "seeds. Holm's correction is for all comparisons that were planned, done or not."
    )


def difference(
    baseline: str,
    name: str,
    base: Mapping[int, Perplexity],
    other: Mapping[int, Perplexity],
    what: str = "architecture",
) -> str:
    """How much better or worse one is than its baseline, over the seeds that both have."""
    values = [*differences(base, other).values()]
    said = f"`{name}` less `{baseline}`: {statistics.mean(values):+.4f} bits per character"
    if len(values) < 2:
        return f"{said}. One seed: this says nothing about the {what}."
    if not (interval := intervals.over_seeds(values)):
        return f"{said}, the same with each of {len(values)} seeds."
    low, high = interval
    where = "excludes" if low > 0 or high < 0 else "includes"
    return (
        f"{said}, with a 95 % interval over {len(values)} paired seeds from {low:+.4f} to "
        f"{high:+.4f}, which {where} 0."
    )
