"""Flags of fairseq-train after -- that a recipe refuses: it counts with what they would change."""

import sys
from collections.abc import Collection, Sequence

SET_BY_THE_RECIPE = {
    **dict.fromkeys(
        ("--max-update", "--max-tokens", "--cpu", "--bf16"), "is an option: name it before --"
    ),
    **dict.fromkeys(
        (
            *("--arch", "-a", "--seed", "--save-dir", "--update-freq", "--fp16"),
            "--distributed-world-size",
        ),
        "is set by the recipe: see --archs, --seeds, --work, --batch, --fp32 and --processes",
    ),
    "--user-dir": "is this package, and fairseq takes one alone",
    "--log-format": "is set by the recipe, which reads the log",
    **dict.fromkeys(
        (
            "--restore-file",
            "--reset-optimizer",
            "--reset-lr-scheduler",
            "--reset-meters",
            "--reset-dataloader",
        ),
        "would begin anew at each start: see fairseq's --finetune-from-model",
    ),
    **dict.fromkeys(
        ("--no-last-checkpoints", "--checkpoint-suffix"),
        "would leave nothing to go on from",
    ),
    "--no-save-optimizer-state": "would count updates from 0 again where a run goes on",
    **dict.fromkeys(
        ("--batch-size", "--max-sentences"),
        "would make updates smaller than the recipe's: see --batch and --max-tokens",
    ),
}


def check_extra(extra: Sequence[str], averages: Collection[int], is_scored: bool = True) -> None:
    """End the program where a flag says behind the recipe's back what it counts with.

    Args:
        extra: flags of fairseq-train.
        averages: how many checkpoints of each model are averaged, 0 for its best one; none where
            the last one is scored.
        is_scored: whether anything is scored.
    """
    average = max(averages, default=0)
    if is_scored and "--no-save" in extra:
        sys.exit("--no-save would leave nothing to score: leave it out")
    lost = {"--disable-validation", "--no-best-checkpoints"} & {*extra}
    if is_scored and 0 in averages and lost:
        sys.exit(f"the best checkpoint is to be scored: leave out {min(lost)}")
    for i, word in enumerate(extra):
        flag, equals, value = word.partition("=")
        value = value if equals else "".join(extra[i + 1 : i + 2])
        if flag in SET_BY_THE_RECIPE:
            sys.exit(f"{flag} {SET_BY_THE_RECIPE[flag]}")
        averaged = f"the last {average} epochs are to be averaged"
        if flag == "--keep-last-epochs" and value.isdecimal() and int(value) < average:
            sys.exit(f"{averaged}: keep as many, or give --average {value}")
        if flag == "--no-epoch-checkpoints" and average:
            sys.exit(f"{averaged}: leave out {flag}")


def check_schemes(archs: Sequence[str], extra: Sequence[str]) -> None:
    """End the program where a flag would override the scheme or the sub-step that --archs names."""
    given = {word.partition("=")[0] for word in extra}
    for slashes, flag in enumerate(("--macaron-scheme", "--macaron-substep"), 1):
        named = [name for name in archs if name.count("/") >= slashes]
        if named and flag in given:
            sys.exit(f"{flag} would override what --archs says, {named[0]}: give one of both")
