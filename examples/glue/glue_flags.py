"""How each run of fine-tuning is trained, and what stands for it in the records."""

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from shlex import split

import glue_data
import glue_run
from common import ask_fairseq, stage_prepare
from common.recipe import PLUGIN
from common.steps import hash_of
from common.train_command import arch_flags, identity, trained_as
from glue_options import Glue
from glue_records import Key
from glue_tasks import TASKS

from macaron_fairseq.common import files

# Flags of the network itself, or how they begin. Dropouts and positions are each stage's own.
OF_NETWORK = (
    *("--macaron-", "--encoder-", "--activation-fn", "--layernorm-embedding"),
    *("--untie-weights-roberta", "--quant-noise-", "--spectral-norm-", "--pooler-activation-fn"),
)
KIND = ("--task", "sentence_prediction", "--criterion", "sentence_prediction")
sha256 = cache(files.sha256)  # of one file, for all runs
fingerprint = cache(glue_data.fingerprint)


def place(glue: Glue, key: Key) -> Path:
    """The folder of a run."""
    start = "finetuned" if key.pretrained else "from-scratch"
    return glue.recipe.work / start / key.arch / key.task / f"rate{key.rate}-seed{key.seed}"


def updates_of(glue: Glue, name: str, examples: int) -> int:
    """How many updates a fine-tuning has."""
    setting = glue.setting.tasks[name]
    epochs = glue.epochs or setting.epochs
    whole = -(-examples // setting.batch) * epochs
    return min(whole, glue.most_updates or whole)


def plan(glue: Glue, key: Key) -> glue_run.Plan:
    """All that a run goes by; ends the program where its start is missing, or is another one."""
    recipe, task = glue.recipe, TASKS[key.task]
    found = glue_data.examples(recipe, key.task)
    data = glue_data.where(recipe, key.task)
    cpu = not ask_fairseq.count_gpus(recipe)
    precision = [] if cpu or recipe.precision == "fp32" else [f"--{recipe.precision}"]
    model = start_of(glue, key)
    if model and not model.is_file():
        sys.exit(f"{model.parent} has not been pre-trained to its end: run the stage pretrain")
    pretrained_as = pretraining(glue, key)
    if model and pretrained_as and trained_as(model.parent) != pretrained_as:
        sys.exit(
            f"{model.parent} was pre-trained with other options, such as --max-update: give each "
            "stage the same, or run the stage pretrain"
        )
    return glue_run.Plan(
        task=key.task,
        flags=[
            *[str(data), "--user-dir", str(PLUGIN), *flags_of(glue, key)],
            *(["--finetune-from-model", str(model)] if model else []),
            *[*precision, *["--cpu"] * cpu],
            *["--distributed-world-size", "1", "--no-epoch-checkpoints", "--disable-validation"],
            *["--save-interval-updates", "2000", "--keep-interval-updates", "1"],
            *["--log-format", "json", "--log-interval", "50"],
        ],
        updates=updates_of(glue, key.task, found[task.train.name]["examples"]),
        cpu=cpu,
        splits={
            name: {"subset": one["subset"], "labels": one["labels"]}
            for name, one in found.items()
            if name != task.train.name
        },
        settings=settings_hash(glue, key),
        start=sha256(model) if model else "",
        keeps=glue.keeps,
        pretraining=pretrained_as,
    )


def flags_of(glue: Glue, key: Key) -> list[str]:
    """Those of fairseq-train that make a run what it is, on any machine."""
    recipe, setting, task = glue.recipe, glue.setting.tasks[key.task], TASKS[key.task]
    found = glue_data.examples(recipe, key.task)
    updates = updates_of(glue, key.task, found[task.train.name]["examples"])
    flags = [*arch_flags(key.arch), "--seed", str(key.seed), *KIND]
    flags += ["--num-classes", str(task.outputs)]
    flags += ["--regression-target"] * task.is_regression
    flags += [*glue_data.around(recipe), "--max-positions", str(recipe.block)]
    flags += ["--shorten-method", "truncate", "--batch-size", str(setting.batch)]
    flags += ["--required-batch-size-multiple", "1", *split(glue.setting.flags)]
    flags += ["--weight-decay", f"{setting.weight_decay:g}", "--lr", key.rate]
    flags += ["--lr-scheduler", "polynomial_decay", "--total-num-update", str(updates)]
    flags += ["--warmup-updates", str(round(glue.setting.warmup * updates))]
    return [*flags, "--max-update", str(updates), *model_flags(recipe.extra)]


def fixed_flags(glue: Glue) -> list[str]:
    """Those that all runs of fine-tuning share, whatever their task."""
    return [*KIND, *split(glue.setting.flags), *model_flags(glue.recipe.extra)]


def settings_hash(glue: Glue, key: Key) -> str:
    """Stands for what a run is made from, but for the model that it starts from."""
    recipe, flags = glue.recipe, flags_of(glue, key)
    precision = [recipe.precision] * (recipe.precision != "fp16")  # which older records go without
    return hash_of(*flags, *precision, fingerprint(glue_data.where(recipe, key.task)))[:12]


def start_of(glue: Glue, key: Key) -> Path | None:
    """The checkpoint that a run starts from, whether it is there or not; None from scratch."""
    if not key.pretrained:
        return None
    if glue.pretrained:
        return glue.pretrained
    folder = glue.recipe.run(key.arch, pretrain_seed(glue, key.seed))
    # While it trains, its last checkpoint is none to start from.
    return folder / (glue.recipe.checkpoint_name if trained_as(folder) else "untrained")


def pretrain_seed(glue: Glue, seed: int) -> int:
    """The seed of the pre-training from which a seed of fine-tuning starts.

    It goes by the seed itself: machines may share the seeds as they like.
    """
    return glue.recipe.seeds[(seed - 1) % len(glue.recipe.seeds)]


def pretraining(glue: Glue, key: Key) -> str:
    """Stands for the settings and the text of a run's pre-training; needs no model."""
    if not key.pretrained or glue.pretrained:
        return ""
    text = stage_prepare.fingerprint(glue.recipe.data)
    return identity(glue.recipe, text, key.arch, pretrain_seed(glue, key.seed))


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
