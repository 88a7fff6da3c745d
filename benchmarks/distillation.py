"""How long an update takes with each of the losses of distillation.

Student and teacher have random weights, and the batch has random tokens without padding: neither
changes how much is computed. The criteria take turns. What is measured is the time of the
processor, forward and backward, without the optimizer; the fastest of all turns counts.
"""

import argparse
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from fairseq import models, options
from fairseq.data import Dictionary
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from macaron_fairseq import plugin
from macaron_fairseq.commands.arguments import positive
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.markdown import table
from macaron_fairseq.distillation.criterion import DistilledLabelSmoothedCrossEntropyCriterion
from macaron_fairseq.distillation.teachers import PRECISIONS
from macaron_fairseq.fast.criterion import ChunkedLabelSmoothedCrossEntropyCriterion

assert plugin  # has registered the architectures

# Label smoothing and how losses are divided, as criteria want them.
COMMON: dict[str, Any] = {"sentence_avg": False, "label_smoothing": 0.1}
WORD = "word level"


def build(arch: str, task: TranslationTask) -> tuple[Any, Namespace]:
    """A model with one embedding for all, and its arguments."""
    words = ["data", "--arch", arch, "--share-all-embeddings"]
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=words)
    return models.build_model(args, task), Namespace(**vars(args))


def save(path: Path, arch: str, task: TranslationTask) -> None:
    """A checkpoint of such a model."""
    model, args = build(arch, task)
    state = {
        "cfg": {"model": args, "task": {}},
        "model": model.state_dict(),
        "optimizer_history": [
            {"optimizer_name": "none", "lr_scheduler_state": {}, "num_updates": 0}
        ],
        "extra_state": {"train_iterator": {"epoch": 1}},
    }
    torch.save(state, path)


def batch(sentences: int, length: int, types: int) -> dict[str, Any]:
    """Random tokens, as fairseq's translation task hands them to a criterion."""
    source, previous = torch.randint(4, types, (2, sentences, length))
    source[:, -1] = previous[:, 0] = 2
    inputs = {"src_tokens": source, "src_lengths": torch.full((sentences,), length)}
    return {
        "net_input": {**inputs, "prev_output_tokens": previous},
        "target": previous.roll(-1, 1),
        "ntokens": previous.numel(),
    }


def measure(args: argparse.Namespace) -> dict[str, float]:
    """The seconds of the fastest update with each criterion."""
    dictionary = Dictionary()
    if args.types <= len(dictionary):
        raise UserError(f"--types is {args.types}: give more than {len(dictionary)}")
    for i in range(args.types - len(dictionary)):
        dictionary.add_symbol(f"w{i}")
    task = TranslationTask(TranslationConfig(), dictionary, dictionary)
    student = build(args.student, task)[0].train()
    data = batch(args.sentences, args.length, args.types)
    criteria: dict[str, Any] = {
        "no teacher": ChunkedLabelSmoothedCrossEntropyCriterion(task, **COMMON)
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "teacher.pt")
        save(path, args.teacher, task)
        given: dict[str, Any] = {**COMMON, "teacher": str(path)}
        given["teacher_precision"] = args.teacher_precision
        given["teacher_memory"] = args.teacher_memory
        criteria[WORD] = DistilledLabelSmoothedCrossEntropyCriterion(task, **given)
        for spans in ("words", "tokens"):
            given |= {"trajectory_weight": 2.0, "trajectory_spans": spans}
            follower = DistilledLabelSmoothedCrossEntropyCriterion(task, **given)
            follower.follow(student)
            criteria[f"{WORD} and trajectory on {spans}"] = follower
    best = dict.fromkeys(criteria, float("inf"))
    for _ in range(args.repetitions):
        for name, criterion in criteria.items():
            student.zero_grad()
            start = time.process_time()
            criterion(student, data)[0].backward()
            best[name] = min(best[name], time.process_time() - start)
    return best


def main(argv: list[str] | None = None) -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--student", default="macaron_transformer_student", help="its --arch")
    parser.add_argument("--teacher", default="macaron_transformer_iwslt_de_en", help="its --arch")
    for name, default in (("types", 10000), ("sentences", 80), ("length", 25), ("repetitions", 5)):
        parser.add_argument(f"--{name}", type=positive, default=default, metavar="N")
    parser.add_argument("--teacher-precision", default="fp32", choices=PRECISIONS)
    parser.add_argument(
        "--teacher-memory",
        type=float,
        default=0.0,
        metavar="GIB",
        help="from the second turn on, which counts, the teacher is not asked (default: 0)",
    )
    parser.add_argument("--threads", type=positive, default=1, metavar="N")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    best = measure(args)
    rows = [[name, f"{x:.2f}", f"{x / best[WORD]:.2f}"] for name, x in best.items()]
    print(table(["losses", "seconds an update", f"of {WORD}"], rows))


if __name__ == "__main__":
    main()
