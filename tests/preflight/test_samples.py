"""Text of language models that makes no batch, and that the installed fairseq needs the check.

A test named `test_fairseq_...` fails once fairseq has mended the fault: then its mend can go.
"""

import numpy as np
import pytest
import torch
from fairseq.data import data_utils
from fairseq.data.indexed_dataset import make_builder
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import build_model
from helpers.commands import apply, refusal
from helpers.small import (
    SMALL_DECODER,
    arguments,
    language_task,
    text_data,
)
from omegaconf import OmegaConf

from macaron_fairseq.preflight import (
    checks,
    samples,
)


def test_fairseq_reads_no_batch_of_few_samples():
    for count, multiple, batches in ((7, 8, 0), (7, 1, 1), (8, 8, 1)):
        sizes = np.full(count, 64)
        found = data_utils.batch_by_size(
            np.arange(count), lambda i: 64, sizes, 8192, required_batch_size_multiple=multiple
        )
        assert len(found) == batches
        assert samples.has_batch(sizes, 8192, None, multiple) == bool(batches)
    with pytest.raises((AssertionError, IndexError)):  # the sample does not fit into a batch
        data_utils.batch_by_size(np.arange(8), lambda i: 64, np.full(8, 64), 32)


@pytest.mark.parametrize(("task", "most"), [("language_modeling", 448), ("masked_lm", 441)])
def test_text_without_a_batch_is_refused(tmp_path, task, most):
    words = ["fairseq-train", tmp_path, "--cpu", "--task", task, "--tokens-per-sample", 64]
    words = [str(word) for word in (*words, "--max-tokens", 8192)]
    text_data(tmp_path, train=900, valid=most)
    said = refusal(*words)
    assert (
        f"the set valid of {tmp_path} has {most} tokens" in said
        and "7 samples of at most 64" in said
    )
    for others in (
        *(["--required-batch-size-multiple", "1"], ["--disable-validation"]),
        ["--tokens-per-sample", "32"],
    ):
        apply(checks.check, [*words, *others])
    text_data(tmp_path, valid=most + 1)
    apply(checks.check, words)
    apply(checks.check, [*words, "--max-tokens", "64"])
    for least in (0, -3) if task == "language_modeling" else (1, 0):
        assert f"--tokens-per-sample is {least}: give a" in refusal(
            *words, "--tokens-per-sample", least
        )
    assert refusal(*words, "--max-tokens", 63) == (
        "a sample of 64 tokens does not fit into a batch of 63: give --max-tokens 64 or more, or a "
        "smaller --tokens-per-sample"
    )
    text_data(tmp_path, train=most)
    assert "the set train" in refusal(*words)
    builder = make_builder(str(tmp_path / "train.bin"), "mmap", vocab_size=20)
    builder.finalize(str(tmp_path / "train.idx"))
    assert refusal(*words) == f"the set train of {tmp_path} is empty: give more text"


@pytest.mark.parametrize(("tokens", "most"), [(8192, 8), (8192, 4), (256, 8)])
def test_text_to_validate_with_has_limits_of_its_own(tmp_path, tokens, most):
    """Seven samples of 64 tokens, of which fairseq makes a batch or none."""
    text_data(tmp_path, train=900, valid=448)
    words = ["fairseq-train", tmp_path, "--cpu", "--task", "language_modeling"]
    words += ["--tokens-per-sample", 64, "--max-tokens", 8192, "--batch-size", 64]
    words += ["--max-tokens-valid", tokens, "--batch-size-valid", most]
    sizes = np.full(7, 64)
    if data_utils.batch_by_size(np.arange(7), lambda i: 64, sizes, tokens, most, 8):
        apply(checks.check, [*map(str, words)])
    else:
        assert "the set valid" in refusal(*words)
    words += ["--max-tokens-valid", 32]
    assert refusal(*words) == (
        "a sample of 64 tokens does not fit into a batch of 32: give --max-tokens-valid 64 or "
        "more, or a smaller --tokens-per-sample"
    )
    apply(checks.check, [*map(str, words), "--disable-validation"])


@pytest.mark.parametrize("mode", ["none", "complete", "complete_doc", "eos"])
def test_samples_of_sentences_are_counted_as_fairseq_does(tmp_path, mode):
    """Seven sentences of 60 tokens are no batch, and eight are, however they are cut."""
    words = ["fairseq-train", tmp_path, "--cpu", "--task", "masked_lm", "--max-tokens", 8192]
    words += ["--tokens-per-sample", 64, "--sample-break-mode", mode, "--disable-validation"]
    for count in (7, 8):
        builder = make_builder(str(tmp_path / "train.bin"), "mmap", vocab_size=20)
        for _ in range(count):
            builder.add_item(torch.full((60,), 5))
        builder.finalize(str(tmp_path / "train.idx"))
        if count == 7:
            assert f"no batch of its {count} samples" in refusal(*words)
    apply(checks.check, [str(word) for word in words])


@pytest.mark.parametrize("mode", ["complete", "complete_doc"])
def test_short_documents_fit_into_a_batch_that_a_whole_sample_does_not(tmp_path, mode):
    """Each of 20 tokens, and an empty line after it."""
    builder = make_builder(str(tmp_path / "train.bin"), "mmap", vocab_size=20)
    for _ in range(20):
        builder.add_item(torch.full((20,), 5))
        builder.add_item(torch.full((1,), 2))
    builder.finalize(str(tmp_path / "train.idx"))
    words = ["fairseq-train", tmp_path, "--cpu", "--task", "language_modeling"]
    words += ["--max-tokens", 200, "--tokens-per-sample", 300, "--disable-validation"]
    words = [str(word) for word in [*words, "--required-batch-size-multiple", 1]]
    apply(checks.check, [*words, "--sample-break-mode", mode])
    assert "a sample of 300 tokens does not fit" in refusal(*words)


def test_sets_in_fairseqs_older_formats_are_left_to_fairseq(tmp_path):
    builder = make_builder(str(tmp_path / "train.bin"), "lazy")
    builder.add_item(torch.full((7,), 5))
    builder.finalize(str(tmp_path / "train.idx"))
    words = ["fairseq-train", tmp_path, "--cpu", "--task", "language_modeling"]
    apply(checks.check, [str(x) for x in [*words, "--max-tokens", 64, "--disable-validation"]])


@pytest.mark.parametrize("flags", [[], ["--max-target-positions", "48"]])
@pytest.mark.parametrize("arch", ["transformer_lm", "macaron_transformer_lm_tiny"])
def test_samples_are_no_longer_than_what_a_model_reads(tmp_path, arch, flags):
    """Whether fairseq saves its arguments as a mapping or, without a dataclass, as a namespace."""
    words = ["--task", "language_modeling", "--tokens-per-sample", "32", *SMALL_DECODER, *flags]
    cfg = convert_namespace_to_omegaconf(arguments(arch, *words))
    positions = build_model(cfg.model, language_task()).max_positions()
    saved = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    assert isinstance(saved["model"], dict) == (arch == "transformer_lm")
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": {}, "args": None, "cfg": saved}, path)
    evaluate = ["fairseq-eval-lm", "data", "--cpu", "--path", str(path), "--tokens-per-sample"]
    apply(checks.check, [*evaluate, str(positions)])
    assert refusal(*evaluate, positions + 1).endswith(f"give --tokens-per-sample {positions}")
    # The window comes from the sample before, and a model may be given other positions.
    apply(checks.check, [*evaluate, str(positions + 4), "--context-window", "4"])
    said = refusal(*evaluate, positions + 5, "--context-window", 4)
    assert said.endswith(f"give --tokens-per-sample {positions + 4}")
    learned = f"{{'decoder_learned_pos': True, 'max_target_positions': {positions}}}"
    words = [*evaluate, positions + 4, "--context-window", 4, "--model-overrides", learned]
    assert refusal(*words).endswith(f"give --tokens-per-sample {positions}")
    other = f"{{'max_target_positions': {positions + 9}}}"
    apply(checks.check, [*evaluate, str(positions + 9), "--model-overrides", other])
    # No sample is longer than the set.
    text_data(tmp_path, test=positions)
    evaluate[1] = str(tmp_path)
    apply(checks.check, [*evaluate, str(positions + 1)])
    text_data(tmp_path, test=positions + 1)
    assert refusal(*evaluate, positions + 1).endswith(f"give --tokens-per-sample {positions}")
    # How long it is can be asked of whole files only.
    for name in ("test.bin", "test.idx"):
        (tmp_path / name).write_bytes(b"")
        said = refusal(*evaluate, positions + 1)
        assert said.startswith(f"{tmp_path / name} is truncated: it has 0 bytes instead of ")
        text_data(tmp_path, test=positions + 1)
