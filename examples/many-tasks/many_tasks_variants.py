"""The variants of a layer that are compared, and the recipe that trains one of them."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from common import benchmark, tasks, train_command
from common.recipe import Recipe
from common.run_options import Options
from common.steps import hash_of
from common.tasks import ARCH, Family, Setting, Task, Tuning

from macaron_fairseq.schemes import splitting, substeps

BASELINE = "lie-trotter"
HALF_DEPTH = "half-depth"
# Flags that `Variant.flags` gives, and those that stand over them.
OF_VARIANT = re.compile(
    "--(macaron-(encoder-|decoder-)?scheme|macaron-substep|(en|de)coder-(layers|.*ffn-embed-dim))"
)


@dataclass(frozen=True)
class Variant:
    """A scheme, with its sub-step and, for equal operations, half the layers."""

    scheme: str
    substep: str = substeps.DEFAULT
    is_half: bool = False

    @property
    def name(self) -> str:
        """As on the command line."""
        parts = [self.scheme, self.substep * (self.substep != substeps.DEFAULT)]
        return "/".join(filter(None, [*parts, HALF_DEPTH * self.is_half]))

    @property
    def folder(self) -> str:
        """As a file's name."""
        return self.name.replace("/", "+")

    def flags(self, kind: Family) -> list[str]:
        """Those of fairseq-train."""
        words = ["--macaron-scheme", self.scheme, "--macaron-substep", self.substep]
        if self.is_half and kind.layers % 2:
            sys.exit(f"{self.name}: there is no half of {kind.layers} layers")
        layers = kind.layers // 2 if self.is_half else kind.layers
        for side in ("encoder", "decoder"):
            ffns = splitting.count_ffns(getattr(splitting.get(self.scheme), side))
            words += [f"--{side}-ffn-embed-dim", str(kind.ffn // ffns)]
            words += [f"--{side}-layers", str(layers)]
        return words

    @classmethod
    def parse(cls, text: str) -> "Variant":
        """SCHEME, SCHEME/SUBSTEP or SCHEME/SUBSTEP/half-depth; ends the program at another."""
        scheme, *rest = text.split("/")
        splitting.get(scheme, "--schemes")
        is_half = rest[-1:] == [HALF_DEPTH]
        if is_half:
            rest.pop()
        if len(rest) > 1:
            sys.exit(f"{text} should be SCHEME, SCHEME/SUBSTEP or SCHEME/SUBSTEP/{HALF_DEPTH}")
        substep = rest[0] if rest else substeps.DEFAULT
        evaluations = substeps.get(substep, "--schemes").evaluations
        if is_half and evaluations != 2:
            sys.exit(
                f"{text}: {HALF_DEPTH} is for sub-steps that double the operations, and {substep} "
                f"takes {evaluations} times as many"
            )
        return cls(scheme, substep, is_half)


# --- The recipe of a run ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RunRecipe(Recipe):
    """The recipe of one run; all runs of a task share its data."""

    variant: Variant
    size: str  # the baseline's layers and inner width
    user_flags: tuple[str, ...]  # of fairseq-train after --, which are in `extra` too
    setting: Setting | None  # None: the benchmark's own
    is_tuning: bool

    def run(self, arch: str, seed: int) -> Path:
        """The folder of one training."""
        place = f"tuning/{self.setting.name}" if self.is_tuning and self.setting else "runs"
        return self.work / place / self.variant.folder / f"seed{seed}"

    @property
    def result(self) -> Path:
        """What is kept of the finished run: its record, or of tuning its scores on the dev set."""
        if self.is_tuning:
            return self.folder_of_run / "dev.json"
        name = f"{self.variant.folder}-seed{self.seeds[0]}.json"
        return self.work.parent / "records" / self.name / name

    @property
    def settings_hash(self) -> str:
        """A hash of the settings that all runs of a task must share to be compared.

        Data, how it was made (`preparation_of`), scheme and seed are recorded apart.
        """
        own, evaluation = self.benchmark.training, self.benchmark.evaluation
        words = [*own.words(), str(self.batch), str(self.max_update)]
        words += train_command.lasting(self.user_flags)
        words += [self.size, self.precision, str(self.average)]
        return hash_of(*words, evaluation.decode, evaluation.score)[:12]


def recipe_of(
    task: Task,
    variant: Variant,
    seed: int,
    setting: Setting | None,
    options: Options,
    is_tuning: bool = False,
) -> RunRecipe:
    """The recipe that trains and scores one run."""
    kind = task.kind
    if setting:
        assert kind.tuning
        flags = f"--attention-dropout {setting.dropout:g} --activation-dropout {setting.dropout:g}"
        training = task.benchmark.training
        training = replace(
            training,
            tokens=setting.tokens,
            max_update=kind.tuning.tokens // setting.tokens,
            flags=f"{training.flags} {flags}",
        )
        task = replace(task, benchmark=replace(task.benchmark, training=training))
    return tasks.recipe_of(
        RunRecipe,
        task,
        seed,
        options,
        archs=[ARCH],
        extra=[*variant.flags(kind), *options.extra],
        variant=variant,
        size=f"{kind.layers} layers, FFN {kind.ffn}",
        user_flags=options.extra,
        setting=setting,
        is_tuning=is_tuning,
    )


def preparation_of(recipe: RunRecipe) -> str:
    """A hash of what the file of tasks says of the data: which files, and what is made of them."""
    described = recipe.benchmark
    parts = {name: [benchmark.said(x.parts), x.every] for name, x in recipe.sets.items()}
    made = benchmark.said(described.preprocessing), described.held_out_by, recipe.is_usual
    return hash_of(json.dumps((parts, made), sort_keys=True))[:12]


def refuse_overriding(extra: Sequence[str]) -> None:
    """End the program where a flag would make a run another than --schemes says."""
    for word in extra:
        if OF_VARIANT.match(flag := word.partition("=")[0]):
            sys.exit(
                f"{flag} would override what --schemes and the file of tasks say: leave it out"
            )


# --- Tuning --------------------------------------------------------------------------------------


def every_point(plan: Tuning) -> list[Setting]:
    """All settings that any round of tuning may come to."""
    names = [x.name for x in fields(Setting)]
    values = {name: dict.fromkeys([getattr(plan.start, name)]) for name in names}
    for some in plan.rounds:
        for name, theirs in some.items():
            values[name].update(dict.fromkeys(theirs))
    return points_of(plan.start, {name: [*theirs] for name, theirs in values.items()})


def points_of(start: Setting, values: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """The settings of one round of tuning: those numbers over the best so far."""
    return [
        replace(start, **dict(zip(values, some, strict=True))) for some in product(*values.values())
    ]
