"""The runs that a call asks for, and what is known of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import distillation_records
import distillation_systems as systems
from common.run_options import Options
from common.tasks import Task
from distillation_records import Run
from distillation_systems import TEACHER, Settings, SystemRecipe

TEACHER_SEED = 1


class Runs:
    """The teacher and the students of each task.

    Args:
        args: the command line.
        settings: of distillation.yaml.
        names: the students' systems.
        options: that all runs share.
    """

    def __init__(
        self, args: Any, settings: Settings, names: Sequence[str], options: Options
    ) -> None:
        self.args, self.settings, self.names, self.options = args, settings, names, options
        self.given: dict[str, Path | None] = {}  # by task, see `given_teacher`

    def recipe(self, task: Task, system: str, seed: int) -> SystemRecipe:
        """The recipe of a run."""
        if task.name not in self.given:
            self.given[task.name] = self.given_teacher(task)
        given = self.given[task.name]
        return systems.recipe(task, self.settings, system, seed, self.options_of(system), given)

    def given_teacher(self, task: Task) -> Path | None:
        """The checkpoint that is taken as a task's teacher: of this call or of an earlier one."""
        usual = systems.recipe(task, self.settings, TEACHER, TEACHER_SEED, self.options)
        result = distillation_records.known([usual], self.args.records)[0].result
        if not result:
            return self.args.teacher and self.args.teacher.absolute()
        return systems.teacher_of(usual.work) if result.get("given") else None

    def teacher(self, task: Task) -> SystemRecipe:
        """The recipe of a task's teacher."""
        return self.recipe(task, TEACHER, TEACHER_SEED)

    def options_of(self, system: str) -> Options:
        """The options of a system's runs: students may end elsewhere than their teacher."""
        if system == TEACHER or not self.args.student_updates:
            return self.options
        return replace(self.options, max_update=self.args.student_updates)

    def of(self, task: Task) -> list[SystemRecipe]:
        """The teacher and all students of a task."""
        students = [
            self.recipe(task, name, seed) for name in self.names for seed in self.args.seeds
        ]
        return [self.teacher(task), *students]

    def known(self, task: Task) -> list[Run]:
        """What is known of a task's runs, here and by --records."""
        return distillation_records.known(self.of(task), self.args.records)

    def left(self, task: Task) -> list[SystemRecipe]:
        """The runs that are not done here."""
        return [recipe for recipe in self.of(task) if not recipe.result.is_file()]

    def unlike(self, task: Task, precision: str = "") -> list[tuple[Run, str]]:
        """The runs that do not belong together, and why; see `distillation_records.unlike`."""
        known = self.known(task)
        hashes = [systems.settings_hash(task, self.settings, run.recipe) for run in known]
        return distillation_records.unlike(known, hashes, precision)
