"""Sentences with labels that cannot be learnt: fairseq ends in a traceback, we in one sentence."""

import numpy as np
import pytest
import torch
from fairseq.data.indexed_dataset import make_builder
from fairseq.tasks.sentence_prediction import SentencePredictionConfig, SentencePredictionTask
from helpers.commands import apply, sentence_of
from torch.nn.functional import nll_loss

from macaron_fairseq.preflight import missing

FIRST, END = 4, 2  # of a dictionary's own symbols, and what ends a line


@pytest.fixture
def folder(tmp_path):
    """Three pairs of sentences, of two classes, for two sets."""
    for name in ("train", "valid"):
        for text in ("input0", "input1"):
            binarise(tmp_path / text / name, [[5, 6], [7], [5]])
        binarise(tmp_path / "label" / name, [[FIRST], [FIRST + 1], [FIRST]])
        (tmp_path / "label" / f"{name}.label").write_text("0.5\n1\n-2e3\n")
    for text in ("input0", "label"):
        (tmp_path / text / "dict.txt").write_text("a 3\nb 2\n")
    return tmp_path


def binarise(path, lines):
    path.parent.mkdir(exist_ok=True)
    builder = make_builder(f"{path}.bin", "mmap", vocab_size=20)
    for line in lines:
        builder.add_item(torch.tensor([*line, END]))
    builder.finalize(f"{path}.idx")


def refuse(folder, *flags, classes="2"):
    words = ["fairseq-train", folder, "--task", "sentence_prediction", "--batch-size", "8"]
    apply(
        missing.refuse,
        [str(x) for x in (*words, *["--num-classes", classes] * bool(classes), *flags)],
    )


def refusal(folder, *flags, **named):
    return sentence_of(lambda: refuse(folder, *flags, **named))


def test_fairseq_does_not_check_labels(folder):
    """A class too many is found by the loss, and another length where the sets are combined."""
    cfg = SentencePredictionConfig(data=str(folder), num_classes=1, regression_target=False, seed=1)
    task = SentencePredictionTask.setup_task(cfg)
    task.load_dataset("train")
    targets = torch.cat([task.dataset("train")[i]["target"] for i in range(3)])
    assert sorted(targets.tolist()) == [0, 0, 1]
    with pytest.raises(IndexError, match="Target 1 is out of bounds"):
        nll_loss(torch.zeros(3, cfg.num_classes), targets)
    binarise(folder / "label" / "train", [[FIRST]])
    with pytest.raises(AssertionError, match="dataset lengths must match"):
        task.load_dataset("train")
    cfg.num_classes = -1
    with pytest.raises(AssertionError, match="num_classes"):
        SentencePredictionTask.setup_task(cfg)
    cfg.num_classes = 1
    (folder / "label" / "dict.txt").unlink()
    with pytest.raises(FileNotFoundError):
        SentencePredictionTask.setup_task(cfg)


def test_fairseq_reads_numbers_without_naming_the_file(folder):
    cfg = SentencePredictionConfig(data=str(folder), num_classes=1, regression_target=True, seed=1)
    (folder / "label" / "train.label").write_text("one\n2\n3\n")
    with pytest.raises(ValueError) as raised:
        SentencePredictionTask.setup_task(cfg).load_dataset("train")
    assert "train.label" not in str(raised.value)


def test_what_can_be_learnt_is_taken(folder):
    refuse(folder)
    refuse(folder, classes="3")
    refuse(folder, "--regression-target", classes="1")
    (folder / "input1" / "train.idx").unlink()  # no pairs
    refuse(folder, "--valid-subset", "train")


@pytest.mark.parametrize("size", [0, 5, -1])
@pytest.mark.parametrize("file", ["label/train.bin", "label/train.idx", "input1/valid.idx"])
def test_files_that_were_cut_short(folder, file, size):
    """They are named before one of them is opened."""
    path = folder / file
    path.write_bytes(path.read_bytes()[:size])
    assert refusal(folder).startswith(f"{path} is truncated: it has ")


def test_the_number_of_classes_is_needed(folder):
    assert refusal(folder, classes="").startswith("how many labels are there? Give --num-classes")


def test_labels_that_no_model_of_so_many_classes_has(folder):
    label = folder / "label" / "train"
    binarise(label, [[FIRST], [FIRST + 2], [FIRST]])
    assert refusal(folder) == f"{label} has at least 3 labels: give --num-classes 3"
    binarise(label, [[FIRST], [FIRST, FIRST + 1], [FIRST]])
    assert refusal(folder).startswith(f"line 2 of the labels {label} has 2 words: write each label")
    binarise(label, [[FIRST], [], [FIRST]])
    assert "line 2" in refusal(folder) and "has 0 words" in refusal(folder)
    binarise(label, [[FIRST], [3], [FIRST]])  # <unk>
    assert refusal(folder) == f"{label} has a label that {label.parent}/dict.txt does not have"
    for end in ("idx", "bin"):
        label.with_suffix(f".{end}").unlink()
    assert refusal(folder).startswith(f"there is no {label}.idx: binarise the labels")
    (folder / "label" / "dict.txt").unlink()
    assert refusal(folder).startswith(f"there is no {folder}/label/dict.txt")


def test_files_of_other_lengths(folder):
    binarise(folder / "label" / "valid", [[FIRST]])
    said = refusal(folder)
    assert said == (
        f"the set valid of {folder} has files of different lengths, in lines: input0 3, input1 3, "
        "label 1"
    )
    refuse(folder, "--disable-validation")
    binarise(folder / "input1" / "train", [[5]] * 2)
    assert "input0 3, input1 2, label 3" in refusal(folder)


@pytest.mark.parametrize("line", ["abc", "1 2", "", "nan", "inf"])
def test_a_line_that_is_no_number(folder, line):
    path = folder / "label" / "valid.label"
    path.write_text(f"1\n{line}\n3\n")
    said = refusal(folder, "--regression-target", classes="1")
    assert said == f"{path}, line 2: '{line}' should be 1 number"


def test_numbers_that_are_not_there(folder):
    (folder / "label" / "train.label").unlink()
    assert "No such file" in refusal(folder, "--regression-target", classes="1")


def test_labels_are_counted_in_any_width(folder):
    """fairseq-preprocess takes 32 bits where the dictionary is large."""
    path = folder / "label" / "train"
    builder = make_builder(f"{path}.bin", "mmap", vocab_size=70_000)
    for number in (FIRST, FIRST + 9, FIRST):
        builder.add_item(torch.tensor([number, END]))
    builder.finalize(f"{path}.idx")
    assert np.fromfile(f"{path}.bin", np.int32).tolist() == [4, 2, 13, 2, 4, 2]
    assert refusal(folder).endswith("give --num-classes 10")
