"""Flags of fairseq-train after -- that a recipe refuses: it counts with what they would change."""

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

# What is wrong with a flag, and what a recipe may have instead.
Refused = Mapping[str, tuple[str, Sequence[str]]]

SET = "is set by the recipe"
FINETUNE = "fairseq's --finetune-from-model"  # which any recipe takes after --
REFUSED: Refused = {
    **dict.fromkeys(("--max-update", "--max-tokens", "--cpu", "--bf16"), (SET, ())),
    **dict.fromkeys(("--arch", "-a"), (SET, ["--archs"])),
    "--seed": (SET, ["--pretrain-seeds", "--seeds"]),
    "--save-dir": (SET, ["--work"]),
    "--update-freq": (SET, ["--batch"]),
    "--fp16": (SET, ["--bf16", "--fp32"]),
    "--distributed-world-size": (SET, ["--processes"]),
    "--user-dir": ("is this package, and fairseq takes one alone", ()),
    "--log-format": ("is set by the recipe, which reads the log", ()),
    **dict.fromkeys(
        (
            "--restore-file",
            "--reset-optimizer",
            "--reset-lr-scheduler",
            "--reset-meters",
            "--reset-dataloader",
        ),
        ("would begin anew at each start", [FINETUNE]),
    ),
    **dict.fromkeys(
        ("--no-last-checkpoints", "--checkpoint-suffix"),
        ("would leave nothing to go on from", ()),
    ),
    "--no-save-optimizer-state": ("would count updates from 0 again where a run goes on", ()),
    **dict.fromkeys(
        ("--batch-size", "--max-sentences"),
        ("would make updates smaller than the recipe's", ["--batch", "--max-tokens"]),
    ),
}
# On text of one language, positions, samples and what is scored go together.
REFUSED_ON_TEXT: Refused = {
    **REFUSED,
    **dict.fromkeys(
        ("--tokens-per-sample", "--max-positions", "--max-target-positions"),
        (SET, ["--tokens-per-sample"]),
    ),
    "--total-num-update": (SET, ["--max-update"]),
}


def check_extra(
    extra: Sequence[str],
    averages: Collection[int],
    options: Any,
    is_scored: bool = True,
    refused: Refused = REFUSED,
) -> None:
    """End the program where a flag says behind the recipe's back what it counts with.

    Args:
        extra: flags of fairseq-train.
        averages: how many checkpoints of each model are averaged, 0 for its best one; none where
            the last one is scored.
        options: as the recipe's parser has read them.
        is_scored: whether anything is scored.
        refused: flags, with what is wrong with each.
    """
    names = {f"--{name.replace('_', '-')}" for name in vars(options)}
    if sentence := refusal(extra, averages, names, is_scored, refused):
        sys.exit(sentence)


def refusal(
    flags: Sequence[str],
    averages: Collection[int],
    options: Collection[str] = (),
    is_scored: bool = True,
    refused: Refused = REFUSED,
) -> str:
    """What is wrong with a flag, and a way out by these options; "" if nothing is wrong.

    The other arguments are those of `check_extra`.
    """
    average = max(averages, default=0)
    if is_scored and "--no-save" in flags:
        return "--no-save would leave nothing to score: leave it out"
    lost = {"--disable-validation", "--no-best-checkpoints"} & {*flags}
    if is_scored and 0 in averages and lost:
        return f"the best checkpoint is to be scored: leave out {min(lost)}"
    averaged = f"the last {average} epochs are to be averaged"
    for i, word in enumerate(flags):
        flag, equals, value = word.partition("=")
        value = value if equals else "".join(flags[i + 1 : i + 2])
        if flag in refused and flag in options:
            return f"{flag} is an option: name it before --"
        if flag in refused:
            wrong, others = refused[flag]
            instead = " and ".join(x for x in others if x in options or x == FINETUNE)
            return f"{flag} {wrong}: {f'see {instead}' if instead else 'leave it out'}"
        if flag == "--keep-last-epochs" and value.isdecimal() and int(value) < average:
            or_fewer = f", or give --average {value}" * ("--average" in options)
            return f"{averaged}: keep as many{or_fewer}"
        if flag == "--no-epoch-checkpoints" and average:
            return f"{averaged}: leave out {flag}"
    return ""


def check_schemes(archs: Sequence[str], extra: Sequence[str]) -> None:
    """End the program where a flag would override the scheme or the sub-step that --archs names."""
    given = {word.partition("=")[0] for word in extra}
    for slashes, flag in enumerate(("--macaron-scheme", "--macaron-substep"), 1):
        named = [name for name in archs if name.count("/") >= slashes]
        if named and flag in given:
            sys.exit(f"{flag} would override what --archs says, {named[0]}: give one of both")
