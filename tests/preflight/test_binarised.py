"""Files that were cut short, and that the installed fairseq does not notice.

A test named `test_fairseq_...` fails once fairseq has mended the fault: then its mend can go.
"""

import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDataset, make_builder
from helpers.commands import apply, refusal
from helpers.small import text_data

from macaron_fairseq.preflight import (
    binarised,
    checks,
)

SENTENCES = [[4, 5, 6, 2], [7, 2], [8, 9, 10, 11, 2]]


@pytest.fixture(params=[100, 70000])  # types, of 2 and of 4 bytes
def data(tmp_path, request):
    """A data folder as fairseq-preprocess writes it."""
    for subset in ("train", "train1", "valid", "test", "empty"):
        prefix = str(tmp_path / f"{subset}.a-b.a")
        builder = make_builder(f"{prefix}.bin", "mmap", request.param)
        for sentence in SENTENCES if subset != "empty" else []:
            builder.add_item(torch.tensor(sentence))
        builder.finalize(f"{prefix}.idx")
    (tmp_path / "train.old.idx").write_bytes(b"TNTIDX\x00\x00 and so on, of another format")
    return tmp_path


def cut(path, size=-1):
    path.write_bytes(path.read_bytes()[:size])


def test_fairseq_does_not_notice_a_truncated_file_before_it_needs_it(data):
    cut(data / "train.a-b.a.bin")
    dataset = MMapIndexedDataset(str(data / "train.a-b.a"))
    assert len(dataset) == 3 and dataset[1].tolist() == SENTENCES[1]
    with pytest.raises(ValueError):
        dataset[2]


def test_whole_data_is_taken(data):
    for command in ("train", "generate", "validate"):
        apply(checks.check, [f"fairseq-{command}", "--arch", "a", str(data), "--cpu"])
    binarised.refuse_truncated(data, ["empty"])


@pytest.mark.parametrize("size", [-1, 27, 20, 0])
@pytest.mark.parametrize("file", ["train.a-b.a.idx", "train1.a-b.a.idx", "train.a-b.a.bin"])
def test_truncated_data_is_refused_where_it_is_used(file, size, data):
    if file.endswith(".bin") and size > 0:
        size //= 7
    cut(data / file, size)
    sentence = refusal("fairseq-train", "--cpu", f"elsewhere:{data}")
    assert sentence.startswith(f"{data / file} is truncated: it has ")
    assert sentence.endswith("run fairseq-preprocess again")
    apply(checks.check, ["fairseq-generate", "--cpu", str(data)])
    cut(data / "test.a-b.a.bin")
    assert "is truncated" in refusal("fairseq-generate", "--cpu", data)
    assert "is truncated" in refusal("fairseq-validate", data, "--valid-subset", "valid,test")


@pytest.mark.parametrize("file", ["input0/train.bin", "input1/valid.idx", "label/train.bin"])
def test_truncated_sentences_and_labels_are_refused(file, tmp_path):
    for name in ("input0", "input1", "label"):
        (tmp_path / name).mkdir()
        text_data(tmp_path / name, train=9, valid=9)
    words = ["fairseq-train", str(tmp_path), "--cpu", "--task", "sentence_prediction"]
    apply(checks.check, words)
    cut(tmp_path / file)
    assert refusal(*words).startswith(f"{tmp_path / file} is truncated: it has ")


def test_the_name_of_a_set_may_have_a_dot(tmp_path):
    text_data(tmp_path, **{"wiki.train": 900, "wiki.valid": 900, "wiki.test": 900})
    words = ["fairseq-train", str(tmp_path), "--cpu", "--task", "language_modeling"]
    words += ["--train-subset", "wiki.train", "--valid-subset", "wiki.valid"]
    words += ["--tokens-per-sample", "64"]
    cut(tmp_path / "wiki.test.bin")  # which is not used
    apply(checks.check, words)
    assert "the set wiki.train of" in refusal(*words, "--tokens-per-sample", 256)
    cut(tmp_path / "wiki.valid.bin")
    assert refusal(*words).startswith(f"{tmp_path / 'wiki.valid.bin'} is truncated: it has ")
