"""Students of one teacher that learn in several ways: students.yaml, and a recipe for each way."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import benchmark
import student_systems
from student_systems import System
from text_recipe import TextRecipe

FILE = Path(__file__).with_name("students.yaml")


@dataclass(frozen=True)
class Students:
    """All that students.yaml says."""

    systems: dict[str, System]  # the first one is the baseline of all


@dataclass(frozen=True)
class StudentRecipe(TextRecipe):
    """The recipe of one way to learn; all that have the same BPE share its data."""

    system: str
    baseline: str
    has_own_bpe: bool

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


def read(path: Path) -> dict[str, System]:
    """The ways to learn; ends the program with a sentence where the file is not as it should be."""
    try:
        systems = benchmark.typed(Students, benchmark.read_yaml(path), "").systems
    except ValueError as error:
        sys.exit(f"{path}: {error}")
    student_systems.refuse_bad(systems, path)
    return systems


def flags_of(systems: dict[str, System], args: Any, work: Path) -> dict[str, list[str]]:
    """The flags of each system, with the teacher that the options name.

    Ends the program with a sentence where there is no such teacher.
    """
    if not args.teacher.is_file():
        sys.exit(f"--teacher {args.teacher}: no such checkpoint")
    if args.teacher_data and not args.teacher_data.is_dir():
        sys.exit(f"--teacher-data {args.teacher_data}: no such folder")
    data = (args.teacher_data or work / "data").absolute()
    return {
        name: student_systems.flags_of(how, args.teacher.absolute(), data)
        for name, how in systems.items()
    }
