"""Students of one teacher that learn in several ways: students.yaml, and a recipe for each way."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import ask_fairseq, benchmark, student_systems, train_command
from common.options import add_words
from common.student_systems import System
from common.text_recipe import TextRecipe

from macaron_fairseq.common import files

FILE = Path(__file__).with_name("students.yaml")


@dataclass(frozen=True)
class Students:
    """All that students.yaml says."""

    systems: dict[str, System]  # the first one is the baseline of all
    main: list[str] = field(default_factory=list)  # systems whose comparison was planned


@dataclass(frozen=True, kw_only=True)
class StudentRecipe(TextRecipe):
    """The recipe of one way to learn; all that have the same BPE share its data."""

    system: str
    baseline: str
    has_own_bpe: bool
    planned: tuple[str, ...]  # of all systems, those whose comparison was planned

    @property
    def data(self) -> Path:
        """The teacher's data, or that of the student's own BPE."""
        return self.preparation.data if self.has_own_bpe else super().data

    @property
    def preparation(self) -> "StudentRecipe":
        """The recipe that prepares the data."""
        return student_systems.preparation(self, self.has_own_bpe)

    @property
    def place(self) -> Path:
        """What all students of this architecture have."""
        return self.work / "students" / self.archs[0]

    def run(self, arch: str, seed: int) -> Path:
        """The folder of one training."""
        return self.place / self.system / f"seed{seed}"


def add_options(parser: Any) -> None:
    """Add the options on students."""
    parser.add_argument(
        "--teacher",
        metavar="CHECKPOINT",
        type=Path,
        help="train students of this model, of the one architecture that --archs names",
    )
    parser.add_argument(
        "--teacher-data",
        metavar="FOLDER",
        type=Path,
        help="the teacher's data (default: this recipe's, of the same text and --merges)",
    )
    parser.add_argument(
        "--students",
        metavar="FILE",
        type=Path,
        help=f"in which ways they learn (default: {FILE.name} next to this script)",
    )
    add_words(
        parser,
        "--systems",
        "some of these ways alone; the first one and their baselines are trained, too",
    )


def read(path: Path) -> Students:
    """The ways to learn; ends the program with a sentence where the file is not as it should be."""
    found = benchmark.read_as(Students, path)
    student_systems.refuse_bad(found.systems, found.main, path)
    return found


def refuse_unfit_teacher(recipes: Sequence[TextRecipe]) -> None:
    """End the program where fairseq-train would refuse a teacher, before any student is trained."""
    asked = {}
    for recipe in recipes:
        is_done = all(map(train_command.trained_as, recipe.runs()))
        if "--teacher" in recipe.extra and not is_done:
            flags = [*recipe.data_flags, *recipe.benchmark.training.words(), *recipe.extra]
            flags += train_command.arch_flags(recipe.archs[0])
            asked[recipe.data, "--teacher-data" in flags] = flags  # others would ask for the same
    if asked and (reason := ask_fairseq.apart(why_unfit, [*asked.values()])):
        sys.exit(reason)


def why_unfit(asked: Sequence[Sequence[str]]) -> str:
    """Why fairseq-train would refuse the teacher that one of these flags name; "" if it would not.

    Args:
        asked: the flags of fairseq-train, for prepared data.
    """
    ask_fairseq.quieten()
    from fairseq import options, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    import macaron_fairseq.plugin  # which --user-dir would find imported, without the registrations
    from macaron_fairseq.common.errors import UserError
    from macaron_fairseq.distillation import teacher_files

    assert macaron_fairseq.plugin
    for flags in asked:
        sys.argv = ["recipe", *flags]  # where fairseq looks for --user-dir and --task
        args = options.parse_args_and_arch(options.get_training_parser(), [*flags])
        task = tasks.setup_task(convert_namespace_to_omegaconf(args).task)
        try:
            if across := getattr(args, "teacher_data", None):
                teacher_files.load_across(args.teacher, across, task)
            else:
                teacher_files.load(args.teacher, task)
        except UserError as error:
            return str(error)
    return ""


def refuse_seen(data: Path, tests: Sequence[str]) -> None:
    """End the program where a teacher was trained on what is to be scored.

    Args:
        data: the teacher's.
        tests: the names of documents.
    """
    path = data / "held-out" / "counts.json"
    if path.is_file():  # else it was made otherwise, and does not say
        train = files.read_json(path, {"train": dict}, "make the data again")["train"]
        if seen := [name for name in tests if name in train["documents"]]:
            sys.exit(
                f"the teacher was trained on {', '.join(seen)}, as {path} says: what --test names "
                "no model should have seen"
            )


def flags_of(
    systems: dict[str, System], args: Any, work: Path, is_trained: bool
) -> dict[str, list[str]]:
    """The flags of each system, with the teacher that the options name.

    Ends the program with a sentence where students are to be trained, and there is no such teacher.
    """
    if is_trained and not args.teacher.is_file():
        sys.exit(f"--teacher {args.teacher}: no such checkpoint")
    if is_trained and args.teacher_data and not args.teacher_data.is_dir():
        sys.exit(f"--teacher-data {args.teacher_data}: no such folder")
    if args.teacher_data:
        refuse_seen(args.teacher_data, args.test)
    data = (args.teacher_data or work / "data").absolute()
    return {
        name: student_systems.flags_of(how, args.teacher.absolute(), data)
        for name, how in systems.items()
    }
