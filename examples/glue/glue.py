"""Pre-train masked language models, fine-tune them on GLUE, and compare (see reproduce.sh)."""

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from shlex import split
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "common"))

import benchmark  # noqa: E402
import glue_data  # noqa: E402
import glue_records  # noqa: E402
import glue_report  # noqa: E402
import glue_run  # noqa: E402
import glue_tasks  # noqa: E402
import launch  # noqa: E402
import options as recipe_options  # noqa: E402
import recipe as recipes  # noqa: E402
import stage_prepare  # noqa: E402
import stage_text  # noqa: E402
import stage_train  # noqa: E402
import text_recipe  # noqa: E402
from glue_records import Key, Record  # noqa: E402
from glue_report import Result, System  # noqa: E402
from glue_tasks import TASKS  # noqa: E402
from launch import Job  # noqa: E402
from options import PLUGIN, Once, Parser, above_zero, seeds_of  # noqa: E402
from steps import hash_of, say  # noqa: E402
from text_recipe import TextRecipe  # noqa: E402
from train_command import arch_flags, identity  # noqa: E402

from macaron_fairseq.common import files  # noqa: E402
from macaron_fairseq.common.names import look_up  # noqa: E402

NAME = "glue"
SPECIAL = 4  # symbols that fairseq puts in front of a dictionary
STAGES = ("prepare", "pretrain", "finetune", "report")
# Noticed here, not after hours of training.
NEEDED = {"sklearn": "scikit-learn", "scipy": "scipy", "statsmodels": "statsmodels"}
EPILOG = """\
-- FLAG...: further flags of fairseq-train, for the pre-training of all architectures

Run it again after an interruption: finished work is kept, training resumes."""


@dataclass(frozen=True)
class TaskSetting:
    """How a task is fine-tuned."""

    epochs: int
    batch: int  # sentences or pairs
    weight_decay: float = 0


@dataclass(frozen=True)
class Finetuning:
    """All that finetuning.yaml says."""

    flags: str
    warmup: float  # share of the updates
    learning_rates: list[float]
    tasks: dict[str, TaskSetting] = field(default_factory=dict)


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


# --- The command line ----------------------------------------------------------------------------


def parser() -> Parser:
    """What the command line may hold."""
    script = HERE / "reproduce.sh"
    result = recipe_options.new_parser(recipes.header(script), STAGES, EPILOG, script.name)
    text_recipe.add_text(result)
    add = result.add_argument
    add("--glue", type=Path, metavar="FOLDER", help="GLUE's files, a folder for each task")
    add(
        "--tasks",
        action=Once,
        default="",
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
        help="of fine-tuning; the best on dev is taken (default: those of finetuning.yaml)",
    )
    add("--epochs", type=above_zero, metavar="N", help="of fine-tuning (default: the task's)")
    add(
        "--finetune-max-update",
        type=above_zero,
        metavar="N",
        help="end each fine-tuning at N updates, if it has more",
    )
    add("--from-scratch", action="store_true", help="fine-tune models that were not pre-trained")
    add(
        "--jobs",
        type=above_zero,
        default=1,
        metavar="N",
        help="runs of fine-tuning at a time, on a CPU a core each",
    )
    add("--sizes", choices=["any"], help="any: accept files of other sizes than GLUE's")
    add("--keep-models", action="store_true", help="keep the checkpoints of fine-tuning")
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
    recipe_options.add_training(result)
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
    described = benchmark.read(HERE / "benchmark.yaml")
    fields = text_recipe.of_text(NAME, HERE, described, args, extra)
    stages = ["pretrain"] if args.dry_run else args.stages or list(STAGES)
    if args.from_scratch or args.pretrained:
        stages = [stage for stage in stages if stage != "pretrain"]
    if args.pretrained:
        refuse_pretrained(args, stages)
    names = [look_up(TASKS, name, "task", "--tasks").name for name in args.tasks.split()]
    lists = ("--tasks", names), ("--seeds", args.seeds), ("--learning-rates", args.learning_rates)
    for option, values in lists:
        if values and len({*values}) < len(values):
            sys.exit(f"{option} names a value twice: leave one out")
    if (args.codes or args.dictionary) and not args.pretrained:
        sys.exit("--codes and --dictionary are those of --pretrained: name its checkpoint too")
    for module, package in NEEDED.items():
        if not find_spec(module):
            sys.exit(f"scores and their tests need {package}: pip install {package}")
    if args.glue and not args.glue.is_dir():
        sys.exit(f"{args.glue}, given by --glue, is no folder")
    if "prepare" in stages and not args.glue:
        sys.exit("say where GLUE's files are: --glue FOLDER")
    setting = finetuning(HERE / "finetuning.yaml")
    # As the stages of all recipes are called.
    shared = {"prepare": "prepare", "pretrain": "train"}
    fields["seeds"] = args.pretrain_seeds
    if args.short_samples:
        refuse_bad_parts(args.short_samples, fields["block"], fields["max_update"], extra)
    fields["short"] = args.short_samples
    fields["benchmark"] = with_positions(fields["benchmark"], args.tokens_per_sample)
    recipe = TextRecipe(
        **fields,
        stages=[shared[stage] for stage in stages if stage in shared],
        held_out={"valid": args.valid},
    )
    return Glue(
        recipe=recipe,
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
            sys.exit(f"{path} is no file")


def short_samples(text: str) -> tuple[int, int]:
    """Tokens and updates of TOKENS:UPDATES."""
    if not re.fullmatch(r"[^:]+:[^:]+", text):
        raise argparse.ArgumentTypeError(f"'{text}' should be TOKENS:UPDATES, as 32:4000")
    tokens, updates = text.split(":")
    if tokens == "1":
        raise argparse.ArgumentTypeError("fairseq makes no samples of one token")
    return above_zero(tokens), above_zero(updates)


def refuse_bad_parts(
    short: tuple[int, int], block: int, max_update: int, extra: Sequence[str]
) -> None:
    """End the program where short samples are not shorter, leave no update, or cannot be resumed.

    Args:
        short: their tokens, and the updates on them.
        block: the tokens of the others.
        max_update: all updates.
        extra: the flags after --.
    """
    given = f"--short-samples {short[0]}:{short[1]}"
    if short[0] >= block:
        sys.exit(f"{given}: the others have {block} tokens; give fewer")
    if short[1] >= max_update:
        sys.exit(f"{given}: there are {max_update} updates in all; give fewer")
    for word in extra:
        if word.startswith(("--restore-file", "--reset-")):
            sys.exit(f"{given} and {word} do not go together: both would begin at each part")


def with_positions(described: benchmark.Benchmark, block: int) -> benchmark.Benchmark:
    """The models have as many positions as a sample has tokens, here and when fine-tuned."""
    training = described.training
    more = f"{training.more_flags} --max-positions {block}"
    return replace(described, training=replace(training, more_flags=more))


def finetuning(path: Path) -> Finetuning:
    """What finetuning.yaml says; ends the program where it is not as it should be."""
    import yaml

    try:
        found: Finetuning = benchmark.typed(Finetuning, yaml.safe_load(path.read_text("utf-8")), "")
    except (yaml.YAMLError, ValueError) as error:
        sys.exit(f"{path}: {' '.join(str(error).split())}")
    return found


# --- The stages ----------------------------------------------------------------------------------


def run(words: Sequence[str]) -> None:
    """The stages that the command line names."""
    glue = read(words)
    recipe = glue.recipe
    if not recipe.dry_run:
        recipe.work.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONUTF8"] = "1"
    # What cannot be trained is refused before hours of work on text.
    devices = stage_train.plan(recipe) if "train" in recipe.stages else None
    if glue.pretrained and {"prepare", "finetune"} & {*glue.stages}:
        refuse_unfit(glue, glue.pretrained)
    for stage in glue.stages:
        if stage == "prepare":
            assert glue.folder
            for name in glue.tasks:  # what is wrong with them is told before hours of work on text
                glue_tasks.load(TASKS[name], glue.folder, glue.is_usual, lambda notice: None)
            if glue.codes and glue.dictionary:
                stage_text.take(recipe, glue.codes, glue.dictionary)
            else:
                stage_text.prepare(recipe)
            glue_data.prepare(recipe, glue.folder, glue.tasks, glue.is_usual)
        elif stage == "pretrain":
            assert devices
            stage_train.train(recipe, devices)
        elif stage == "finetune":
            finetune(glue)
        else:
            report(glue)


def refuse_unfit(glue: Glue, model: Path) -> None:
    """End the program where no run could start from the checkpoint of --pretrained.

    A flag that the sentence names is given as the recipe takes it.
    """
    recipe, taken = glue.recipe, glue.recipe.data / "data-bin" / "dict.txt"
    dictionary = glue.dictionary if "prepare" in glue.stages else taken
    if not (dictionary and dictionary.is_file()):
        return  # stages say what is not prepared
    [arch] = recipe.archs
    flags = ["--max-positions", str(recipe.block), *model_flags(recipe.extra)]
    outputs = sorted({TASKS[name].outputs for name in glue.tasks})
    reason = stage_train.apart(glue_run.why_unfit, model, dictionary, arch, flags, outputs)
    reason = reason.replace("give --max-positions", "give --tokens-per-sample")
    if reason:
        sys.exit(reason.replace("give --encoder-", "give -- --encoder-"))


def finetune(glue: Glue) -> None:
    """All runs that are not done, seed by seed, so that what is done at any time is balanced."""
    known, left = keep(glue), []
    runs = [
        (name, System(arch, not glue.from_scratch), seed, rate)
        for seed, name, arch, rate in product(
            glue.seeds, glue.tasks, glue.recipe.archs, glue.setting.learning_rates
        )
    ]
    for run in runs:  # all, before a plan is written
        record = known.get(key(*run))
        if record and not is_of(glue, record):
            sys.exit(
                f"{glue.records} holds a run of {record.task}, {record.arch}, rate {record.rate}, "
                f"seed {record.seed} with other options, text or start: name another file"
            )
        if not record:
            left.append(run)
    refuse_mixed(glue, (known[key(*run)] for run in runs if run not in left))
    jobs = [job(glue, *run) for run in left]
    if len(left) < len(runs):
        say(NAME, f"{len(runs) - len(left)} runs are taken from {glue.records}")

    def start(left: Sequence[Job]) -> Iterator[tuple[Job, int]]:
        for job, status in launch.local(left, glue.jobs):
            keep(glue)  # at once: the machine may go
            yield job, status

    launch.finish(NAME, jobs, glue.jobs, start, shown)


def place(glue: Glue, name: str, system: System, seed: int, rate: float) -> Path:
    """The folder of a run."""
    start = "finetuned" if system.is_pretrained else "from-scratch"
    return glue.recipe.work / start / system.arch / name / f"rate{rate:g}-seed{seed}"


def job(glue: Glue, name: str, system: System, seed: int, rate: float) -> Job:
    """What makes one run; its plan is written."""
    folder = place(glue, name, system, seed, rate)
    glue_run.plan_of(folder, plan(glue, name, system, seed, rate))
    script = str(HERE / "glue_run.py")
    label = f"{name}, {system.arch}, learning rate {rate:g}, seed {seed}"
    words = [sys.executable, "-X", "utf8", script, str(folder)]
    return Job(label, words, folder / "run.log", folder / "result.json")


def updates_of(glue: Glue, name: str, examples: int) -> int:
    """How many updates a fine-tuning has."""
    setting = glue.setting.tasks[name]
    epochs = glue.epochs or setting.epochs
    whole = -(-examples // setting.batch) * epochs
    return min(whole, glue.most_updates or whole)


sha256 = cache(files.sha256)  # of one file, for all runs
fingerprint = cache(glue_data.fingerprint)


def plan(glue: Glue, name: str, system: System, seed: int, rate: float) -> glue_run.Plan:
    """All that a run goes by; ends the program where its start is missing."""
    recipe, task = glue.recipe, TASKS[name]
    found = glue_data.examples(recipe, name)
    data = glue_data.where(recipe, name)
    cpu = not stage_train.count_gpus(recipe)
    precision = [] if cpu or recipe.precision == "fp32" else [f"--{recipe.precision}"]
    model = start_of(glue, system, seed)
    if model and not model.is_file():
        sys.exit(f"{model.parent} has not been pre-trained to its end: run the stage pretrain")
    trained_as = ""
    if model and not glue.pretrained:  # its folder says how, whatever the options are now
        trained_as = (model.parent / "trained").read_text("utf-8").strip()
    return glue_run.Plan(
        task=name,
        flags=[
            *[str(data), "--user-dir", str(PLUGIN), *flags_of(glue, name, system, seed, rate)],
            *(["--finetune-from-model", str(model)] if model else []),
            *[*precision, *["--cpu"] * cpu],
            *["--distributed-world-size", "1", "--no-epoch-checkpoints", "--disable-validation"],
            *["--save-interval-updates", "2000", "--keep-interval-updates", "1"],
            *["--log-format", "json", "--log-interval", "50"],
        ],
        updates=updates_of(glue, name, found[task.train.name]["examples"]),
        cpu=cpu,
        splits={
            key: {"subset": one["subset"], "labels": one["labels"]}
            for key, one in found.items()
            if key != task.train.name
        },
        settings=settings(glue, name, system, seed, rate),
        start=sha256(model) if model else "",
        keeps=glue.keeps,
        pretraining=trained_as,
    )


def flags_of(glue: Glue, name: str, system: System, seed: int, rate: float) -> list[str]:
    """Those of fairseq-train that make a run what it is, on any machine."""
    recipe, setting, task = glue.recipe, glue.setting.tasks[name], TASKS[name]
    updates = updates_of(glue, name, glue_data.examples(recipe, name)[task.train.name]["examples"])
    flags = [*arch_flags(system.arch), "--seed", str(seed), "--task", "sentence_prediction"]
    flags += ["--criterion", "sentence_prediction", "--num-classes", str(task.outputs)]
    flags += ["--regression-target"] * task.is_regression
    flags += [*around(recipe), "--max-positions", str(recipe.block)]
    flags += ["--shorten-method", "truncate", "--batch-size", str(setting.batch)]
    flags += ["--required-batch-size-multiple", "1", *split(glue.setting.flags)]
    flags += ["--weight-decay", f"{setting.weight_decay:g}", "--lr", f"{rate:g}"]
    flags += ["--lr-scheduler", "polynomial_decay", "--total-num-update", str(updates)]
    flags += ["--warmup-updates", str(round(glue.setting.warmup * updates))]
    return [*flags, "--max-update", str(updates), *model_flags(recipe.extra)]


def settings(glue: Glue, name: str, system: System, seed: int, rate: float) -> str:
    """Stands for what a run is made from, but for the model that it starts from."""
    flags = flags_of(glue, name, system, seed, rate)
    return hash_of(*flags, fingerprint(glue_data.where(glue.recipe, name)))[:12]


def start_of(glue: Glue, system: System, seed: int) -> Path | None:
    """The checkpoint that a run starts from, whether it is there or not; None from scratch."""
    if not system.is_pretrained:
        return None
    if glue.pretrained:
        return glue.pretrained
    folder = glue.recipe.run(system.arch, pretrain_seed(glue, seed))
    # While it trains, its last checkpoint is none to start from.
    return folder / ("checkpoint_last.pt" if (folder / "trained").is_file() else "untrained")


def pretrain_seed(glue: Glue, seed: int) -> int:
    """The seed of the pre-training from which a seed of fine-tuning starts.

    It goes by the seed itself: machines may share the seeds as they like.
    """
    return glue.recipe.seeds[(seed - 1) % len(glue.recipe.seeds)]


def pretraining(glue: Glue, system: System, seed: int) -> str:
    """Stands for the settings and the text of a run's pre-training; needs no model."""
    if not system.is_pretrained or glue.pretrained:
        return ""
    text = stage_prepare.fingerprint(glue.recipe.data)
    return identity(glue.recipe, text, system.arch, pretrain_seed(glue, seed))


def around(recipe: TextRecipe) -> list[str]:
    """The tokens before and between sentences: RoBERTa's, or those of the authors' BERT.

    RoBERTa has <s> A </s> </s> B </s>, and they have <cls> A </s> B </s>.
    """
    lines = files.read_lines(recipe.data / "data-bin" / "dict.txt")
    words = [line.rpartition(" ")[0] for line in lines]
    if "<cls>" in words:
        return ["--init-token", str(SPECIAL + words.index("<cls>"))]
    return ["--init-token", "0", "--separator-token", "2"]


# Flags of the network itself, or how they begin. Dropouts and positions are each stage's own.
OF_NETWORK = (
    *("--macaron-", "--encoder-", "--activation-fn", "--layernorm-embedding"),
    *("--untie-weights-roberta", "--quant-noise-", "--spectral-norm-"),
)


def model_flags(extra: Sequence[str]) -> list[str]:
    """Of the flags after --, those of the model itself: fine-tuning needs them too."""
    found: list[str] = []
    is_kept = False
    for word in extra:
        if word.startswith("--"):
            is_kept = word.startswith(OF_NETWORK)
        if is_kept:
            found.append(word)
    return found


def shown(path: Path) -> str:
    """The scores of a finished run, shortly."""
    content = json.loads(path.read_text("utf-8"))
    scores = ", ".join(f"{name} {value:.1f}" for name, value in content["scores"].items())
    return f"{scores} ({launch.span(content['seconds'])}, {content['updates']} updates)"


# --- What is finished ----------------------------------------------------------------------------

# What a record has of a run's result.json.
OF_RUN = {
    *("scores", "settings", "start", "pretraining", "updates", "seconds", "date", "environment"),
}


def key(name: str, system: System, seed: int, rate: float) -> Key:
    """How records call a run."""
    return Key(system.arch, system.is_pretrained, name, f"{rate:g}", seed)


def is_of(glue: Glue, one: Record | None) -> bool:
    """Whether a record is of a run with these options and this text.

    And of the model that was pre-trained here, if one was, else of one with these settings.
    """
    if not one:
        return False
    system = System(one.arch, one.pretrained)
    if one.settings != settings(glue, one.task, system, one.seed, float(one.rate)):
        return False
    model = start_of(glue, system, one.seed)
    if not model:
        return not one.start
    if model.is_file():
        return one.start == sha256(model)
    return bool(one.start) and one.pretraining == pretraining(glue, system, one.seed)


def refuse_mixed(glue: Glue, found: Iterable[Record]) -> None:
    """End the program where runs start from different models of one pre-training."""
    first: dict[tuple[str, int], Record] = {}
    for one in found:
        if one.pretrained:
            other = first.setdefault((one.arch, pretrain_seed(glue, one.seed)), one)
            if other.start != one.start:
                sys.exit(
                    f"{one.task}, seed {one.seed} and {other.task}, seed {other.seed} of "
                    f"{one.arch} start from different pre-trained models: remove the runs of one"
                )


def finished(glue: Glue) -> Iterator[tuple[Record, Result]]:
    """The runs that are done here, whatever they were made with."""
    for is_pretrained, arch in product((True, False), glue.recipe.archs):
        system = System(arch, is_pretrained)
        for name, seed, rate in product(glue.tasks, glue.seeds, glue.setting.learning_rates):
            path = place(glue, name, system, seed, rate) / "result.json"
            content = json.loads(path.read_text("utf-8")) if path.is_file() else {}
            if content.keys() >= OF_RUN:  # else of an older version
                known = {x: content[x] for x in OF_RUN}
                record = Record(**key(name, system, seed, rate)._asdict(), **known)
                yield record, Result(name, seed, f"{rate:g}", record.scores, content["answers"])


def keep(glue: Glue) -> dict[Key, Record]:
    """Add the runs that are done here to those of --records; returns all of that file."""
    if not glue.records:
        return {}
    glue_records.add(glue.records, (one for one, _ in finished(glue) if is_of(glue, one)))
    return glue_records.read(glue.records)


def report(glue: Glue) -> None:
    """The table of what was fine-tuned, with and without pre-training; and the files to upload."""
    systems = [System(arch, x) for x, arch in product((True, False), glue.recipe.archs)]
    wanted = [*product(glue.tasks, glue.seeds, glue.setting.learning_rates)]
    recorded = [
        (one, Result(one.task, one.seed, one.rate, one.scores)) for one in keep(glue).values()
    ]
    found: dict[Key, list[tuple[Record, Result]]] = {}  # here, and then in the records
    for record, result in [*finished(glue), *recorded]:
        found.setdefault(record.key, []).append((record, result))
    runs: dict[System, list[Result]] = {}
    for system in systems:
        own = [found[x] for run in wanted if (x := key(run[0], system, *run[1:])) in found]
        fitting = [[x for x in several if is_of(glue, x[0])][:1] for several in own]
        if others := fitting.count([]):
            say(
                NAME,
                f"{system.file}: {others} of {len(own)} finished runs were made with other "
                "options, text or pre-training and are left out",
            )
        taken = [x for one in fitting for x in one]
        refuse_mixed(glue, [record for record, _ in taken])
        if taken:
            runs[system] = [result for _, result in taken]
    if not runs:
        sys.exit(f"{glue.recipe.work} holds no finished run of these: run the stage finetune first")
    for system, results in runs.items():
        if len(results) < len(wanted):
            say(NAME, f"partial: {system.file} has {len(results)} of {len(wanted)} runs")
    examples = {name: glue_data.examples(glue.recipe, name) for name in glue.tasks}
    out = glue.recipe.work / "report"
    files.show(glue_report.write(runs, examples, HERE / "published.json", out))


def main(words: Sequence[str]) -> None:
    """Do what the command line says; every mistake is one sentence and a status of 1."""
    with recipes.refusals(NAME):
        run(words)


if __name__ == "__main__":
    main(sys.argv[1:])
