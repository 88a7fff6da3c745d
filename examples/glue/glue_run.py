"""One run of fine-tuning: train, answer the dev and test sets, score.

usage: glue_run.py FOLDER

FOLDER/plan.json says what is to be done; FOLDER/result.json is there once it is. The recipe
(glue.py) starts this as a process. It goes on from where an earlier start was ended. A status of 75
says that another process is at the same run.
"""

import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import glue_metrics
from common import ask_fairseq, stage_train, train_command
from common.launch import ELSEWHERE, only_one
from glue_tasks import TASKS

from macaron_fairseq.common import environment, files

BATCH = 64  # sentences to answer at once


@dataclass(frozen=True)
class Plan:
    """What one run is."""

    task: str
    flags: list[str]  # of fairseq-train
    updates: int
    cpu: bool
    splits: dict[str, dict[str, Any]]  # dev and test sets: fairseq's subset, and dev's labels
    settings: str  # stands for flags and data
    start: str  # stands for the model that it starts from; "" from scratch
    keeps: bool  # whether the model stays
    pretraining: str  # stands for the settings and the text of that model's training


def run(folder: Path) -> None:
    """Do what is not done of a run."""
    plan = Plan(**json.loads((folder / "plan.json").read_text("utf-8")))
    with only_one(folder / "run.lock"):
        if (folder / "result.json").is_file():
            return  # another process has made it
        begin = time.monotonic()
        checkpoint = folder / "checkpoint_last.pt"
        had = stage_train.updates_of(checkpoint) if checkpoint.is_file() else 0
        if had != plan.updates:  # else fairseq would make one update more
            train([*plan.flags, "--save-dir", str(folder)])
        subsets = [one["subset"] for one in plan.splits.values()]
        outputs = predict(checkpoint, subsets, plan.cpu)
        files.write(folder / "result.json", files.as_json(result(plan, outputs, begin)))
        remove_checkpoints(folder, plan)


def remove_checkpoints(folder: Path, plan: Plan) -> None:
    """Remove the models of a finished run, unless they are to be kept."""
    if not plan.keeps:
        for path in folder.glob("checkpoint*.pt*"):
            path.unlink()


def why_unfit(
    checkpoint: Path, dictionary: Path, arch: str, flags: Sequence[str], outputs: Sequence[int]
) -> str:
    """Why a run could not start from a checkpoint; "" where it could.

    fairseq-train itself would take one of another scheme, which would then compute something else.

    Args:
        checkpoint: of a masked language model.
        dictionary: a dict.txt.
        arch: of --archs.
        flags: those of the network.
        outputs: those of the tasks' heads.
    """
    with TemporaryDirectory() as data:
        words = Path(data, "input0")  # all that the task needs with numbers for labels
        words.mkdir()
        shutil.copy(dictionary, words / "dict.txt")
        flags = [data, "--task", "sentence_prediction", "--regression-target", *flags]
        flags += ["--criterion", "sentence_prediction"]
        if reason := ask_fairseq.unknown_to_fairseq([arch], flags, is_for_here=False):
            return reason
        from macaron_fairseq.common.errors import UserError
        from macaron_fairseq.compat import checkpoints
        from macaron_fairseq.model import loading, same_network
        from macaron_fairseq.preflight import command_line, restored_parameters

        try:
            loading.load_dictionary(dictionary)
            state = checkpoints.load(checkpoint)
            for count in outputs:
                whole = [*flags, *train_command.arch_flags(arch), "--num-classes", str(count)]
                if given := command_line.with_defaults(whole):
                    restored_parameters.refuse_other_parts(
                        checkpoint, state["model"], given, Path(data)
                    )
        except UserError as error:
            return str(error)
        trained = checkpoints.model_arguments(state)
        reason = same_network.other_network(trained, vars(given) if given else {})
        return reason and (
            f"{checkpoint} {reason}: give after -- the flags that it was trained with"
        )


def result(plan: Plan, outputs: Mapping[str, Sequence[Sequence[float]]], begin: float) -> Any:
    """What is kept of a run: scores on dev, answers to all sets."""
    task = TASKS[plan.task]
    answers = {
        name: glue_metrics.answers(task, outputs[one["subset"]])
        for name, one in plan.splits.items()
    }
    dev = [split.name for split in task.dev]
    right = {name: plan.splits[name]["labels"] for name in dev}
    return {
        "task": plan.task,
        "settings": plan.settings,
        "start": plan.start,
        "pretraining": plan.pretraining,
        "scores": glue_metrics.of_task(task, answers, right),
        "answers": answers,
        "updates": plan.updates,
        "seconds": round(time.monotonic() - begin, 1),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "environment": environment.summary(),
    }


def train(flags: Sequence[str]) -> None:
    """Be fairseq-train; PyTorch and fairseq stay for what follows."""
    from fairseq_cli import train

    import macaron_fairseq.plugin  # which --user-dir would find imported, without it
    from macaron_fairseq.preflight import checks, command_line

    assert macaron_fairseq.plugin
    sys.argv = ["fairseq-train", *flags]
    if line := command_line.read(sys.argv):  # which the import did not see
        checks.check(line)
    train.cli_main()


def predict(checkpoint: Path, subsets: Sequence[str], cpu: bool) -> dict[str, list[list[float]]]:
    """The outputs of the classification head for each example of these subsets, in their order.

    Args:
        checkpoint: of the task sentence_prediction, with its data where it was.
        subsets: valid, valid1, test and so on.
        cpu: whether no GPU is to be used.
    """
    import torch
    from fairseq import checkpoint_utils, utils

    import macaron_fairseq.plugin  # where nothing was left to train

    assert macaron_fairseq.plugin
    (model,), saved, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)])
    device = torch.device("cuda" if torch.cuda.is_available() and not cpu else "cpu")
    model.to(device).eval()
    head = saved.criterion.classification_head_name
    found: dict[str, list[list[float]]] = {}
    for subset in subsets:
        task.load_dataset(subset)
        dataset = task.dataset(subset)
        rows: dict[int, list[float]] = {}
        batches = task.get_batch_iterator(
            dataset, max_sentences=BATCH, max_positions=task.max_positions()
        )
        for sample in batches.next_epoch_itr(shuffle=False):
            sample = utils.move_to_cuda(sample) if device.type == "cuda" else sample
            with torch.no_grad():
                logits, _ = model(
                    **sample["net_input"], features_only=True, classification_head_name=head
                )
            for number, row in zip(sample["id"].tolist(), logits.float().tolist(), strict=True):
                rows[number] = row
        found[subset] = [rows[number] for number in range(len(dataset))]
    return found


def plan_of(folder: Path, plan: Plan) -> None:
    """Write what a run is to do; ends the program where an unfinished one has another plan."""
    before, identity = folder / "plan.json", (plan.settings, plan.start)
    try:
        with only_one(folder / "run.lock"):
            is_begun = before.is_file() and any(folder.glob("checkpoint*.pt*"))
            if is_begun and identity_of(before) != identity:
                sys.exit(
                    f"{folder} has an unfinished run of other options, text or start: give those, "
                    "or another --work, or remove that folder"
                )
            files.write(before, files.as_json(asdict(plan)))
    except SystemExit as end:
        if end.code != ELSEWHERE:
            raise  # else the process that is at the run goes by its own plan


def identity_of(path: Path) -> tuple[str, str]:
    """What a plan or a result was made from: its settings and its start."""
    content = json.loads(path.read_text("utf-8"))
    return content.get("settings", ""), content.get("start", "")  # "" of an older version


if __name__ == "__main__":
    run(Path(sys.argv[1]))
