"""What a GPU cannot do is refused, and `--bf16` trains; see also test_gpu_check.py.

A test named `test_fairseq_...` fails once fairseq has mended the fault: then its mend can go.
"""

import sys
from argparse import Namespace

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.optim import FairseqBMUF, FairseqOptimizer, FP16Optimizer
from helpers.commands import apply, refusal
from helpers.small import parse
from helpers.toy_corpus import logged, train

from macaron_fairseq.compat import tpu
from macaron_fairseq.model import bf16
from macaron_fairseq.preflight import checks, gpus


@pytest.fixture
def old_gpu(monkeypatch):
    """A machine with one GPU that has no bf16."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla V100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 0))


# --- bf16 ----------------------------------------------------------------------------------------


def test_fairseq_takes_bf16_for_a_tpus(monkeypatch):
    """With the architecture's own function, as without the plugin."""
    name = "transformer_tiny"
    monkeypatch.setitem(ARCH_CONFIG_REGISTRY, name, ARCH_CONFIG_REGISTRY[name].configure)
    assert parse(name, "--bf16").tpu is True


@pytest.mark.parametrize("arch", ["transformer_tiny", "transformer_lm_gpt", "macaron_transformer"])
@pytest.mark.parametrize("flag", ["--bf16", "--memory-efficient-bf16"])
def test_bf16_needs_no_tpu(arch, flag):
    of_lm = ["--task", "language_modeling"] if "lm" in arch else []
    args = parse(arch, flag, *of_lm)
    assert args.bf16 is True and args.tpu is False


def test_a_tpu_that_is_asked_for_is_left(monkeypatch):
    """PyTorch/XLA is not here, and fairseq will say so."""
    monkeypatch.setattr(sys, "argv", ["fairseq-train", "data", "--bf16", "--tpu"])
    assert parse("transformer_tiny", "--bf16", "--tpu").tpu is True


def test_a_tpu_is_left_alone_where_there_may_be_one(monkeypatch):
    monkeypatch.setattr(tpu, "find_spec", lambda name: name == "torch_xla")
    monkeypatch.setitem(ARCH_CONFIG_REGISTRY, "transformer_tiny", lambda args: None)
    tpu.leave_bf16_to_gpus()
    assert parse("transformer_tiny", "--bf16").tpu is True
    configured = []
    tpu.WithoutTPU(configured.append)({"bf16": True})  # of a checkpoint
    assert configured == [{"bf16": True}]
    given = Namespace(bf16=False, tpu=True)
    tpu.WithoutTPU(configured.append)(given)
    assert given.tpu is True


@pytest.mark.slow
@pytest.mark.skipif(not bf16.is_fast_here(), reason="this CPU has no bf16")
def test_fairseq_train_in_bf16(data_bin, tmp_path):
    """On a CPU, which fairseq itself can do once it looks for no TPU, also with its own models."""
    flags = "--arch", "transformer_tiny", "--max-update", "3", "--save-interval-updates", "3"
    coarse = logged(train(data_bin, tmp_path / "bf16", "--bf16", *flags).stdout)
    exact = logged(train(data_bin, tmp_path / "fp32", *flags).stdout)
    assert coarse.keys() == exact.keys() == {1, 2, 3}
    for update, (loss, *_) in exact.items():
        assert coarse[update][0] == pytest.approx(loss, rel=0.01)
    for name, is_coarse in (("bf16", True), ("fp32", False)):  # fairseq saves both in fp32
        weights = torch.load(tmp_path / name / "checkpoint_last.pt")["model"].values()
        assert all(torch.equal(x, x.bfloat16().float()) for x in weights) == is_coarse


def test_bf16_on_a_cpu_without_it(monkeypatch):
    monkeypatch.setattr(bf16, "is_fast_here", lambda: False)
    sentence = refusal("fairseq-train", "data", "--cpu", "--bf16")
    assert "--bf16 is not for this CPU" in sentence and "leave it out" in sentence
    monkeypatch.setattr(bf16, "is_fast_here", lambda: True)
    apply(checks.check, ["fairseq-train", "data", "--cpu", "--bf16"])
    assert "--cpu rules it out" in refusal("fairseq-generate", "data", "--cpu", "--bf16")


def test_a_gpu_without_bf16(old_gpu):
    for flag in ("--bf16", "--memory-efficient-bf16"):
        sentence = refusal("fairseq-train", "data", flag)
        assert sentence == (
            f"{flag} needs a GPU of compute capability 8.0 or higher, and this one, Tesla V100, "
            "has 7.0: use --fp16 instead"
        )
    apply(checks.check, ["fairseq-train", "data", "--fp16"])


def test_one_of_two_gpus_without_bf16(old_gpu, monkeypatch):
    """A process that starts one for each GPU leaves it to them."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    apply(checks.check, ["fairseq-train", "data", "--bf16"])
    sentence = refusal("fairseq-train", "data", "--bf16", "--distributed-world-size", "1")
    assert "this one, Tesla V100, has 7.0" in sentence
    assert "this one, Tesla V100" in refusal("fairseq-interactive", "data", "--bf16")


# --- fp16 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--fp16", "--memory-efficient-fp16"])
def test_fp16_with_cpu(flag, old_gpu):
    for command in ("fairseq-train", "fairseq-generate", "fairseq-validate"):
        sentence = refusal(command, "data", flag, "--cpu")
        assert sentence == (
            f"{flag} needs a GPU, and --cpu rules it out: leave it out to compute in fp32 on the "
            "CPU"
        )


def test_fairseq_trains_in_no_fp16_with_bmuf():
    """Its wrapper passes by the fp16 optimizer's `backward`, so that no gradient arrives there.

    The trainer then asks the wrapper for the scaler, and there is none.
    """
    assert FP16Optimizer.backward is not FairseqOptimizer.backward
    assert FairseqBMUF.backward is FairseqOptimizer.backward
    assert not hasattr(FairseqBMUF, "scaler")


def test_bmuf_in_half_precision(old_gpu):
    sentence = refusal("fairseq-train", "data", "--use-bmuf", "--fp16")
    assert sentence == "--use-bmuf and --fp16 do not go together in fairseq: drop one of them"
    apply(checks.check, ["fairseq-train", "data", "--use-bmuf"])


# --- no GPU, or none that works ------------------------------------------------------------------


def broken_cuda(monkeypatch, tmp_path, error):
    """A PyTorch for GPUs, a GPU, and a driver that it cannot use."""
    (tmp_path / "version").touch()
    monkeypatch.setattr(gpus, "DRIVERS", [tmp_path / "version", tmp_path / "none"])
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # NVML counts them all the same

    def init():
        raise RuntimeError(error)

    monkeypatch.setattr(torch.cuda, "init", init)


def test_a_driver_that_is_too_old(monkeypatch, tmp_path):
    """fairseq would train on the CPU without a word."""
    broken_cuda(
        monkeypatch,
        tmp_path,
        "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU "
        "driver by downloading and installing a new version from the URL",
    )
    sentence = refusal("fairseq-train", "data", "--fp16")
    assert "The NVIDIA driver on your system is too old (found version 11040)" in sentence
    assert "update its driver, install a PyTorch for an older CUDA than 13.0" in sentence
    assert sentence.endswith(", or add --cpu without --fp16") and "URL" not in sentence
    assert refusal("fairseq-generate", "data").endswith(", or add --cpu")
    apply(checks.check, ["fairseq-train", "data", "--cpu"])
    # Hidden on purpose, or not of this job.
    with monkeypatch.context() as hidden:
        hidden.setenv("CUDA_VISIBLE_DEVICES", "")
        apply(checks.check, ["fairseq-generate", "data"])
    # Slurm names the GPUs of a job, which hides none of them.
    with monkeypatch.context() as named:
        named.setenv("CUDA_VISIBLE_DEVICES", "0")
        assert refusal("fairseq-generate", "data").endswith(", or add --cpu")
    (tmp_path / "nvidia0").unlink()
    apply(checks.check, ["fairseq-generate", "data"])


def test_a_gpu_that_is_named_and_not_here(monkeypatch, tmp_path):
    """It is no fault of the driver's. A job without a GPU trains on the CPU, as in fairseq."""
    broken_cuda(monkeypatch, tmp_path, "No CUDA GPUs are available")
    apply(checks.check, ["fairseq-train", "data"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    sentence = refusal("fairseq-train", "data", "--fp16")
    assert sentence == (
        "CUDA_VISIBLE_DEVICES=5 names no GPU that PyTorch finds here: correct it, or add --cpu "
        "without --fp16"
    )


def test_a_pytorch_for_cpus_next_to_a_gpu(monkeypatch, tmp_path):
    (tmp_path / "version").touch()
    monkeypatch.setattr(gpus, "DRIVERS", [tmp_path / "version", tmp_path / "none"])
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert "is built for CPUs, so install it for CUDA" in refusal("fairseq-train", "d", "--fp16")
    apply(checks.check, ["fairseq-train", "data"])
