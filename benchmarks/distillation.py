"""How long an update takes with each of the losses of distillation.

Student and teacher have random weights, and the batch has random tokens without padding: neither
changes how much is computed. The criteria take turns. What is measured is the time of the
processor, forward and backward, without the optimizer; the fastest of all turns counts.

Across vocabularies the batch has as many tokens of a student that splits most words in two. Its
teacher has every word whole, and so fewer tokens to read.
"""

import argparse
import tempfile
import time
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import models, options
from fairseq.data import Dictionary
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from harness import corpora, program
from torch import Tensor

from macaron_fairseq import plugin
from macaron_fairseq.commands.arguments import positive
from macaron_fairseq.common.markdown import table
from macaron_fairseq.distillation.criterion import DistilledLabelSmoothedCrossEntropyCriterion
from macaron_fairseq.distillation.cross_vocabulary.criterion import (
    CrossVocabularyLabelSmoothedCrossEntropyCriterion,
)
from macaron_fairseq.distillation.cross_vocabulary.methods import METHODS
from macaron_fairseq.distillation.teachers import PRECISIONS
from macaron_fairseq.fast.criterion import ChunkedLabelSmoothedCrossEntropyCriterion

assert plugin  # has registered the architectures

# Label smoothing and how losses are divided, as criteria want them.
COMMON: dict[str, Any] = {"sentence_avg": False, "label_smoothing": 0.1}
WORD = "word level"
SOURCE, TARGET = corpora.LANGUAGES


def build(arch: str, task: TranslationTask) -> tuple[Any, Namespace]:
    """A model with one embedding for all, and its arguments."""
    words = ["data", "--arch", arch, "--share-all-embeddings"]
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=words)
    return models.build_model(args, task), Namespace(**vars(args))


def save(path: Path, arch: str, task: TranslationTask) -> None:
    """A checkpoint of such a model."""
    model, args = build(arch, task)
    state = {
        "cfg": {"model": args, "task": {"source_lang": SOURCE, "target_lang": TARGET}},
        "model": model.state_dict(),
        "optimizer_history": [
            {"optimizer_name": "none", "lr_scheduler_state": {}, "num_updates": 0}
        ],
        "extra_state": {"train_iterator": {"epoch": 1}},
    }
    torch.save(state, path)


def own_dictionary(words: int) -> Dictionary:
    """A student's: so many words whole, and of the others the first two letters and the third."""
    dictionary = Dictionary()
    parts = [f"{a}{b}@@" for a in corpora.LETTERS for b in corpora.LETTERS]
    for symbol in (*map(corpora.word, range(words)), *corpora.LETTERS, *parts):
        dictionary.add_symbol(symbol)
    return dictionary


def own_tokens(dictionary: Dictionary, words: Tensor, length: int) -> Tensor:
    """Sentences of random words, numbers of `corpora.word`, as such a student's tokens.

    Args:
        dictionary: see `own_dictionary`.
        words: (sentences, length).
        length: of the result, (sentences, length); each has at least as many tokens.
    """
    rows = []
    for numbers in words.tolist():
        texts = map(corpora.word, numbers)
        parts = [[x] if x in dictionary else [f"{x[:2]}@@", x[2]] for x in texts]
        rows.append([dictionary.index(part) for word in parts for part in word][:length])
    return torch.tensor(rows)


def batch(tokens: Tensor) -> dict[str, Any]:
    """A batch as fairseq's translation task hands it to a criterion.

    Args:
        tokens: of source and target, (2, sentences, length); the ends are replaced.
    """
    source, previous = tokens
    source[:, -1] = previous[:, 0] = 2
    lengths = torch.full((len(source),), source.shape[1])
    return {
        "net_input": {
            "src_tokens": source,
            "src_lengths": lengths,
            "prev_output_tokens": previous,
        },
        "target": previous.roll(-1, 1),
        "ntokens": previous.numel(),
    }


@dataclass
class Case:
    """A criterion, and the student and the batch that it is measured with."""

    criterion: Any
    student: Any
    data: dict[str, Any]


def cases(args: argparse.Namespace, folder: Path) -> dict[str, Case]:
    """What is measured, by name; the teacher and its data folder are written to `folder`."""
    shape = 2, args.sentences, args.length
    corpora.write_synthetic(folder / "data", args.types, corpora.SYNTHETIC_LENGTHS, 1, 1)
    where = str(folder / "data" / "data-bin")
    config = TranslationConfig(data=where, source_lang=SOURCE, target_lang=TARGET)
    task = TranslationTask(config, *[corpora.synthetic_dictionary(args.types)] * 2)
    path = folder / "teacher.pt"
    save(path, args.teacher, task)
    taught: dict[str, Any] = {
        **COMMON,
        "teacher": str(path),
        "teacher_precision": args.teacher_precision,
        "teacher_memory": args.teacher_memory,
    }
    found = {}

    def add(name: str, criterion: Any, student: Any, data: dict[str, Any]) -> None:
        if getattr(criterion, "needs_student", False):
            criterion.follow(student)
        found[name] = Case(criterion, student, data)

    student = build(args.student, task)[0].train()
    data = batch(torch.randint(4, args.types, shape))
    add("no teacher", ChunkedLabelSmoothedCrossEntropyCriterion(task, **COMMON), student, data)
    add(WORD, DistilledLabelSmoothedCrossEntropyCriterion(task, **taught), student, data)
    for spans in ("words", "tokens"):
        own: dict[str, Any] = {"trajectory_weight": 2.0, "trajectory_spans": spans}
        criterion = DistilledLabelSmoothedCrossEntropyCriterion(task, **taught, **own)
        add(f"{WORD} and trajectory on {spans}", criterion, student, data)

    dictionary = own_dictionary(args.types * 2 // 5)
    task = TranslationTask(config, dictionary, dictionary)
    student = build(args.student, task)[0].train()
    words = torch.randint(args.types - 4, shape)
    data = batch(own_tokens(dictionary, words.flatten(0, 1), args.length).view(shape))
    criterion = ChunkedLabelSmoothedCrossEntropyCriterion(task, **COMMON)
    add("no teacher, its own vocabulary", criterion, student, data)
    for kind in METHODS:
        criterion = CrossVocabularyLabelSmoothedCrossEntropyCriterion(
            task, **taught, teacher_data=str(folder / "data"), cross_vocabulary_loss=kind
        )
        add(f"across vocabularies by {kind}", criterion, student, data)
    return found


def measure(args: argparse.Namespace) -> dict[str, float]:
    """The seconds of the fastest update with each criterion."""
    with tempfile.TemporaryDirectory() as folder:
        measured = cases(args, Path(folder))
    best = dict.fromkeys(measured, float("inf"))
    for _ in range(args.repetitions):
        for name, case in measured.items():
            case.student.zero_grad()
            start = time.process_time()
            case.criterion(case.student, case.data)[0].backward()
            best[name] = min(best[name], time.process_time() - start)
    return best


def main(argv: list[str] | None = None) -> None:
    """Measure and print a table."""
    parser = program.parser(__doc__)
    arch = "--arch (default: %(default)s)"
    parser.add_argument("--student", default="macaron_transformer_student", help=f"its {arch}")
    parser.add_argument("--teacher", default="macaron_transformer_iwslt_de_en", help=f"its {arch}")
    for name, default, help in (
        ("types", 10000, "vocabulary"),
        ("sentences", 80, "in a batch"),
        ("length", 25, "tokens of a sentence"),
        ("repetitions", 5, "updates with each loss"),
    ):
        text = f"{help} (default: {default})"
        parser.add_argument(f"--{name}", type=positive, default=default, metavar="N", help=text)
    parser.add_argument(
        "--teacher-precision", default="fp32", choices=PRECISIONS, help="(default: fp32)"
    )
    parser.add_argument(
        "--teacher-memory",
        type=float,
        default=0.0,
        metavar="GIB",
        help="from the second turn on, which counts, the teacher is not asked (default: 0)",
    )
    parser.add_argument("--threads", type=positive, default=1, metavar="N", help="(default: 1)")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    best = measure(args)
    rows = [[name, f"{x:.2f}", f"{x / best[WORD]:.2f}"] for name, x in best.items()]
    print(table(["losses", "seconds an update", f"of {WORD}"], rows))
    print(f"{program.here()}, PyTorch {torch.__version__}; threads: {args.threads}")


if __name__ == "__main__":
    program.start(main)
