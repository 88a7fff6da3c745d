"""The command line of the GLUE recipe: what one run of it is to do."""

import argparse
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import glue_data
import glue_records
from common import benchmark, entry, text_recipe
from common import options as recipe_options
from common.benchmark import refuse_below, refuse_open_quotes
from common.options import Once, Parser, seeds_of
from common.text_recipe import TextRecipe
from glue_tasks import TASKS

from macaron_fairseq.commands.arguments import positive
from macaron_fairseq.common import files
from macaron_fairseq.common.names import look_up

HERE = Path(__file__).resolve().parent
NAME = "glue"
STAGES = ("prepare", "pretrain", "finetune", "report")
# Noticed here, not after hours of training.
NEEDED = {"sklearn": "scikit-learn", "scipy": "scipy", "statsmodels": "statsmodels"}
OF_AUTHORS = "transformer_bert_", "transformer_classifier_"  # which have <cls> in the dictionary
EPILOG = """\
-- FLAG...: further flags of fairseq-train, for the pre-training of all architectures. Those of the
network, such as --macaron-scheme and --layernorm-embedding, hold for fine-tuning, too: give them to
both stages. All else of fine-tuning is in finetuning.yaml.

Run it again after an interruption: finished work is kept, training resumes."""


@dataclass(frozen=True)
class TaskSetting:
    """How a task is fine-tuned."""

    epochs: int
    batch: int  # sentences or pairs
    weight_decay: float = 0

    def __post_init__(self) -> None:
        """Raise a ValueError where no task could be trained so."""
        refuse_below(1, epochs=self.epochs, batch=self.batch)
        refuse_below(0, weight_decay=self.weight_decay)


@dataclass(frozen=True)
class Finetuning:
    """All that finetuning.yaml says."""

    flags: str
    warmup: float  # share of the updates
    learning_rates: list[float]
    tasks: dict[str, TaskSetting]

    def __post_init__(self) -> None:
        """Raise a ValueError where no task could be trained so."""
        refuse_open_quotes(flags=self.flags)
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup should be a share of the updates, not {self.warmup:g}")
        if not self.learning_rates or min(self.learning_rates) <= 0:
            raise ValueError("learning_rates should be numbers above 0")
        if {*self.tasks} != {*TASKS}:
            raise ValueError(f"tasks should be {', '.join(TASKS)}")


@dataclass(frozen=True)
class Glue:
    """The recipe with the options of one run."""

    recipe: TextRecipe  # of the pre-training
    stages: list[str]
    pretrained: Path | None  # what is fine-tuned instead of what is pre-trained here
    codes: Path | None  # its BPE merges
    dictionary: Path | None  # and its dict.txt
    folder: Path | None  # --glue
    names: list[str]  # --tasks; none: all that are there
    setting: Finetuning
    seeds: list[int]
    epochs: int | None
    most_updates: int | None
    from_scratch: bool
    jobs: int
    is_usual: bool
    keeps: bool
    records: Path | None  # of finished runs, here or elsewhere

    @property
    def tasks(self) -> list[str]:
        """The tasks; ends the program where nothing says which."""
        if self.names:
            return self.names
        if self.folder:
            return glue_data.present(self.folder)
        made_before = [name for name in TASKS if glue_data.where(self.recipe, name).is_dir()]
        if not made_before:
            sys.exit("say where GLUE's files are: --glue FOLDER")
        return made_before


def parser() -> Parser:
    """What the command line may hold."""
    script = HERE / "reproduce.sh"
    result = recipe_options.new_parser(entry.header(script), STAGES, EPILOG, script.name)
    text_recipe.add_text(result)
    add = result.add_argument
    add("--glue", type=Path, metavar="FOLDER", help="GLUE's files, a folder for each task")
    add(
        "--tasks",
        action=Once,
        metavar='"A B"',
        help=f"of {', '.join(TASKS)} (default: all that are in --glue)",
    )
    add(
        "--short-samples",
        type=short_samples,
        action=Once,
        metavar="TOKENS:UPDATES",
        help="pre-train so many updates on samples of so few tokens, and the others as "
        "--tokens-per-sample says: attention learns sooner on short ones",
    )
    add(
        "--pretrain-seeds",
        type=seeds_of,
        action=Once,
        default=[1],
        metavar='"1 2"',
        help="pre-train with each; seed 1 of fine-tuning starts from the first of these, seed 2 "
        "from the second, and so on in turn (default: 1)",
    )
    add(
        "--learning-rates",
        type=rates_of,
        action=Once,
        metavar='"A B"',
        help="fine-tune with each; the report takes the one with the best mean score on dev "
        "(default: those of finetuning.yaml)",
    )
    add(
        "--epochs",
        type=positive,
        metavar="N",
        help="passes over a task's training set (default: those of finetuning.yaml)",
    )
    add(
        "--finetune-max-update",
        type=positive,
        metavar="N",
        help="end each fine-tuning at N updates, if it has more",
    )
    add("--from-scratch", action="store_true", help="fine-tune models that were not pre-trained")
    add(
        "--jobs",
        type=positive,
        default=1,
        metavar="N",
        help="runs of fine-tuning at a time (default: 1), one on each GPU or core of a CPU",
    )
    add("--sizes", choices=["any"], help="any: accept files of other sizes than GLUE's")
    add(
        "--keep-models",
        action="store_true",
        help="keep checkpoints of fine-tuning, of runs that end from now on",
    )
    add(
        "--records",
        type=Path,
        metavar="FILE",
        help="scores of finished runs: what stands there is not made again and is in the report; "
        "what is finished here is added (default: none)",
    )
    for name, what in (
        ("--pretrained", "a checkpoint to fine-tune, of --archs ARCH; nothing is pre-trained"),
        ("--codes", "the BPE merges of --pretrained"),
        ("--dictionary", "the dict.txt of --pretrained"),
    ):
        add(name, type=Path, metavar="FILE", help=what)
    recipe_options.add_training(result, "fine-tune on each task")
    return result


def rates_of(text: str) -> list[float]:
    """An argument that is learning rates."""
    try:
        found = [float(word) for word in text.split()]
    except ValueError:
        found = []
    if not found or not all(0 < rate < math.inf for rate in found):
        raise argparse.ArgumentTypeError(f"'{text}' should be numbers above 0")
    return found


def read(words: Sequence[str]) -> Glue:
    """The recipe of a command line.

    Ends the program with a sentence where the options do not fit, before anything is written.
    """
    own, extra = recipe_options.own_and_flags(words)
    args = parser().parse_intermixed_args(own)
    stages = ["pretrain"] if args.dry_run else recipe_options.in_order(args.stages, STAGES)
    if args.from_scratch or args.pretrained:
        if args.dry_run:
            sys.exit(
                "--dry-run prints the command that pre-trains, and nothing is pre-trained here"
            )
        stages = [stage for stage in stages if stage != "pretrain"]
        if not stages:
            sys.exit("nothing is pre-trained with --pretrained or --from-scratch: leave that out")
    # As the stages of all recipes are called.
    called = {"prepare": "prepare", "pretrain": "train"}
    recipe = text_recipe.of_text(
        TextRecipe,
        NAME,
        HERE,
        args,
        extra,
        is_scored=stages != ["pretrain"],
        stages=[called[stage] for stage in stages if stage in called],
        held_out={"valid": args.valid},
    )
    if args.pretrained:
        refuse_pretrained(args, stages)
    elif theirs := [arch for arch in recipe.archs if arch.startswith(OF_AUTHORS)]:
        sys.exit(f"{theirs[0]} is for checkpoints of the authors' code: name one with --pretrained")
    if args.tasks is not None and not args.tasks.split():
        sys.exit(f"--tasks names no task: choose from {', '.join(TASKS)}")
    names = [look_up(TASKS, x, "task", "--tasks").name for x in (args.tasks or "").split()]
    lists = ("--tasks", names), ("--learning-rates", args.learning_rates)
    for option, values in lists:
        if values and len({*values}) < len(values):
            sys.exit(f"{option} names a value twice: leave one out")
    if (args.codes or args.dictionary) and not args.pretrained:
        sys.exit("--codes and --dictionary are those of --pretrained: name its checkpoint too")
    for module, package in NEEDED.items() if {"finetune", "report"} & {*stages} else ():
        if not find_spec(module):
            sys.exit(f"scores and their tests need {package}: pip install {package}")
    recipe_options.refuse_no_folder(args.glue, "--glue")
    if "prepare" in stages and not args.glue:
        sys.exit("say where GLUE's files are: --glue FOLDER")
    if args.records:
        glue_records.read(args.records)  # which refuses what is none
        files.refuse_output([], args.records)
    setting = benchmark.read_as(Finetuning, HERE / "finetuning.yaml")
    if args.short_samples:
        refuse_bad_parts(args.short_samples, recipe.block, recipe.max_update)
    return Glue(
        recipe=replace(
            recipe,
            seeds=args.pretrain_seeds,
            short=args.short_samples,
            benchmark=with_positions(recipe.benchmark, recipe.block),
        ),
        stages=stages,
        pretrained=args.pretrained and args.pretrained.absolute(),
        codes=args.codes,
        dictionary=args.dictionary,
        folder=args.glue and args.glue.absolute(),
        names=names,
        setting=replace(setting, learning_rates=args.learning_rates or setting.learning_rates),
        seeds=args.seeds,
        epochs=args.epochs,
        most_updates=args.finetune_max_update,
        from_scratch=args.from_scratch,
        jobs=args.jobs,
        is_usual=not args.sizes,
        keeps=args.keep_models,
        records=args.records,
    )


def refuse_pretrained(args: Any, stages: Sequence[str]) -> None:
    """End the program where a checkpoint lacks what must come with it."""
    if args.from_scratch:
        sys.exit("--pretrained and --from-scratch exclude each other")
    if len(args.archs or []) != 1:
        sys.exit("--pretrained is of one architecture: name it with --archs ARCH")
    if "prepare" in stages and not (args.codes and args.dictionary):
        sys.exit("--pretrained needs the text in its own tokens: --codes FILE --dictionary FILE")
    for path in (args.pretrained, args.codes, args.dictionary):
        if path and not path.is_file():
            sys.exit(f"{path} is not a file")


def short_samples(text: str) -> tuple[int, int]:
    """Tokens and updates of TOKENS:UPDATES."""
    if not re.fullmatch(r"[^:]+:[^:]+", text):
        raise argparse.ArgumentTypeError(f"'{text}' should be TOKENS:UPDATES, as 32:4000")
    tokens, updates = text.split(":")
    if tokens == "1":
        raise argparse.ArgumentTypeError("fairseq makes no samples of one token")
    return positive(tokens), positive(updates)


def refuse_bad_parts(short: tuple[int, int], block: int, max_update: int) -> None:
    """End the program where short samples are not shorter, or leave no update.

    Args:
        short: their tokens, and the updates on them.
        block: the tokens of the others.
        max_update: all updates.
    """
    given = f"--short-samples {short[0]}:{short[1]}"
    if short[0] >= block:
        sys.exit(f"{given}: the others have {block} tokens; give fewer")
    if short[1] >= max_update:
        sys.exit(f"{given}: there are {max_update} updates in all; give fewer")


def with_positions(described: benchmark.Benchmark, block: int) -> benchmark.Benchmark:
    """The models have as many positions as a sample has tokens, here and when fine-tuned."""
    training = described.training
    more = f"{training.more_flags} --max-positions {block}"
    return replace(described, training=replace(training, more_flags=more))
