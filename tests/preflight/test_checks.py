"""What is refused before fairseq's commands parse, and that the installed fairseq needs it.

A test named `test_fairseq_...` fails once fairseq has mended the fault: then its mend can go.
"""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq import optim
from fairseq.data import LanguagePairDataset, data_utils, iterators
from fairseq.dataclass.configs import (
    CommonConfig,
    EMAConfig,
    FairseqConfig,
)
from fairseq.logging import progress_bar
from fairseq.models import ARCH_MODEL_REGISTRY, build_model
from fairseq.models.ema.ema import EMA
from fairseq.models.roberta import RobertaModel
from fairseq.models.transformer_lm import TransformerLanguageModel
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from fairseq.optim.lr_scheduler.cosine_lr_scheduler import CosineLRSchedule, CosineLRScheduleConfig
from fairseq.optim.lr_scheduler.inverse_square_root_schedule import (
    InverseSquareRootLRScheduleConfig,
    InverseSquareRootSchedule,
)
from fairseq.trainer import Trainer
from helpers.commands import apply, refusal
from helpers.paths import FIXTURES
from helpers.small import (
    SMALL,
    arguments,
    batch,
    build,
    dictionary,
    task,
    text_data,
)
from omegaconf import OmegaConf

from macaron_fairseq import UserError, plugin
from macaron_fairseq.compat import checkpoints, every_checkpoint
from macaron_fairseq.model import bf16
from macaron_fairseq.preflight import (
    checks,
    command_line,
)

STORED = FIXTURES / "stored"


def test_other_commands_and_what_fairseq_refuses_itself_are_left_alone():
    for words in (
        ["fairseq-preprocess", "--path", "nosuch.pt"],
        ["python", "--path", "nosuch.pt"],
        ["fairseq-generate", "data", "--path"],
        ["fairseq-generate", "data", "--distributed-port", "x", "--path", "nosuch.pt"],
        ["fairseq-generate", "data", "--path", "https://example.org/model.pt"],
        [],
    ):
        apply(checks.check, words)


@pytest.mark.parametrize("precision", ["--fp16", "--bf16", "--memory-efficient-fp16"])
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_half_precision_without_a_gpu(precision):
    for command in ("fairseq-train", "fairseq-generate", "/x/fairseq_cli/train.py"):
        sentence = refusal(command, "nowhere", precision)
        assert f"{precision} needs a GPU" in sentence and "fp32 on the CPU" in sentence


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_fairseq_makes_a_half_precision_model_on_a_cpu(precision):
    """Without a word, and then trains it slowly."""
    cfg = FairseqConfig(common=CommonConfig(cpu=True, **{precision: True}))
    model = build_model(arguments("transformer_tiny"), task())
    trainer = Trainer(cfg, task(), model, torch.nn.Module())
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    assert {p.dtype for p in trainer.model.parameters()} == {dtype}
    assert trainer.device.type == "cpu"


def test_fairseq_takes_no_layers_to_keep():
    """It parses a list, and then looks for commas in it."""
    args = arguments("transformer_tiny", "--encoder-layers-to-keep", "0")
    assert args.encoder_layers_to_keep == [0]
    with pytest.raises(AttributeError, match="'list' object has no attribute 'split'"):
        build_model(args, task())


def test_fairseqs_adam_takes_bad_betas_until_the_first_update():
    """One beta ends it with a traceback. With a second one of 1 it learns nothing, silently."""

    def adam(betas):
        weight = torch.nn.Parameter(torch.ones(1))
        weight.sum().backward()
        cfg = FairseqAdamConfig(adam_betas=betas, use_old_adam=True, lr=[0.1], tpu=False)
        return weight, FairseqAdam(OmegaConf.structured(cfg), [weight])

    with pytest.raises(TypeError, match="cannot unpack"):
        adam("0.9")[1].step()
    weight, optimizer = adam("(0.9, 1.0)")
    optimizer.step()
    assert weight.item() == 1


@pytest.mark.parametrize(
    "betas", ["0.9", "(0.9, 0.98", "(0.9,)", "(0.9, 1.0)", "(-0.1, 0.9)", "(0.9, 'b')", ""]
)
def test_betas_that_are_none(betas):
    said = refusal("fairseq-train", "data", "--cpu", "--optimizer", "adam", "--adam-betas", betas)
    assert f"--adam-betas {betas} should be two numbers from 0 to below 1" in said


@pytest.mark.parametrize("betas", ["(0.9,0.98)", "[0.9, 0.98]", "0.9, 0.98", "(0, 0.999)"])
def test_betas_as_fairseq_evaluates_them(betas):
    apply(checks.check, ["fairseq-train", "data", "--cpu", "--adam-betas", betas])


def test_fairseq_divides_by_what_may_be_0():
    with pytest.raises(ZeroDivisionError):
        iterators.GroupedIterator([1, 2], 0)  # --update-freq
    with pytest.raises(ZeroDivisionError):
        progress_bar.JsonProgressBar([1, 2], log_interval=0).log({}, step=1)


def test_fairseq_takes_a_limit_of_0_tokens_for_none():
    """So 0 is refused only without --batch-size."""
    sizes = np.full(10, 3)
    found = data_utils.batch_by_size(np.arange(10), lambda i: sizes[i], sizes, 0, 4)
    assert [len(batch) for batch in found] == [4, 4, 2]
    apply(
        checks.check, ["fairseq-train", "data", "--cpu", "--max-tokens", "0", "--batch-size", "4"]
    )


@pytest.mark.parametrize("flag", ["--max-tokens", "--log-interval", "--update-freq"])
def test_a_number_of_nothing(flag):
    said = refusal("fairseq-train", "data", "--cpu", flag, "0")
    assert said == f"{flag} is 0: give 1 or more"


def test_a_beam_of_nothing():
    words = ["data", "--cpu", "--path", "nosuch.pt", "--beam", "0"]
    assert refusal("fairseq-generate", *words) == "--beam is 0: give 1 or more"


def test_one_of_several_numbers_of_batches():
    said = refusal("fairseq-train", "data", "--cpu", "--update-freq", "2,0")
    assert said == "--update-freq is 0: give 1 or more"


def test_fairseqs_average_loses_norms():
    model = build("transformer_pre_norm", *SMALL)
    average = EMA(model, EMAConfig(store_ema=True, ema_decay=0.9))
    assert average.get_model().decoder.layer_norm is not None
    average.step(model)
    assert average.get_model().encoder.layer_norm is average.get_model().decoder.layer_norm is None


@pytest.mark.parametrize("arch", ["macaron_transformer_lm_tiny", "transformer_pre_norm"])
def test_an_average_of_a_pre_norm_model(arch):
    task = ["--task", "language_modeling"] * ("lm" in arch)
    words = ["fairseq-train", "data", "--cpu", "--arch", arch, *task, "--max-tokens", "64"]
    assert refusal(*words, "--store-ema").startswith("--store-ema loses the norms after the last")
    apply(checks.check, words)


def test_layers_that_would_be_computed_again_in_another_precision(monkeypatch):
    """On a GPU: on a CPU fairseq makes nothing of `--amp`."""
    words = ["fairseq-train", "data", "--max-tokens", "64", "--amp"]
    apply(checks.check, [*words, "--cpu", "--checkpoint-activations"])
    monkeypatch.setattr(checks, "check_devices", lambda *_: 1)
    for name in ("checkpoint", "offload"):
        said = refusal(*words, f"--{name}-activations")
        assert said.startswith(f"--amp and --{name}-activations do not go together in fairseq")


def test_bf16_products_are_for_training_on_a_cpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr(bf16, "is_fast_here", lambda: True)
    train = ["fairseq-train", "data", "--macaron-matmul", "bf16"]
    with pytest.raises(UserError, match=r"bf16 is for training on a CPU: give --bf16"):
        apply(checks.check, train)
    apply(checks.check, [*train, "--cpu", "--distributed-world-size", "1"])
    # Such a model is loaded anywhere.
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert build("macaron_transformer", *SMALL, "--macaron-matmul", "bf16")


@pytest.mark.parametrize("flag", ["--checkpoint-activations", "--offload-activations"])
def test_bf16_products_are_not_computed_again_in_fp32(flag):
    with pytest.raises(UserError, match=f"{flag} do not go together"):
        apply(checks.check, ["fairseq-train", "data", "--macaron-matmul", "bf16", "--cpu", flag])
    # Where no command line tells, as with fairseq-hydra-train.
    model = build("macaron_transformer", *SMALL, "--macaron-matmul", "bf16", flag)
    model(*batch())  # in evaluation all is fp32
    with pytest.raises(UserError, match="-activations do not go together"):
        model.train()(*batch())


def test_bf16_products_are_refused_where_they_are_slow(monkeypatch):
    monkeypatch.setattr(bf16, "is_fast_here", lambda: False)
    with pytest.raises(UserError, match=r"not for this CPU.*leave it out"):
        apply(checks.check, ["fairseq-train", "data", "--macaron-matmul", "bf16", "--cpu"])
    apply(checks.check, ["fairseq-train", "data", "--macaron-matmul", "fp32", "--cpu"])


def test_a_smaller_output_dictionary_with_shared_weights(caplog):
    words = ["fairseq-train", "data", "--cpu", "--task", "language_modeling", "--max-tokens", "64"]
    words += ["--output-dictionary-size", "40", "--arch"]
    shared = ["--share-decoder-input-output-embed"]
    adaptive = ["--adaptive-softmax-cutoff", "20"]
    for flags, is_said in ([], False), ([*shared, *adaptive], False), (shared, True):
        for arch in ("macaron_transformer_lm_tiny", "transformer_lm"):
            apply(checks.check, [*words, arch, *flags])
            assert ("not the 40 of --output-dictionary-size" in caplog.text) == is_said
            caplog.clear()


@pytest.mark.skipif(hasattr(np, "compat"), reason="this numpy is below 2")
def test_fairseq_makes_no_buckets():
    lines = [torch.full((n,), 5) for n in (3, 4, 5)]
    sizes, words = [len(x) for x in lines], dictionary()
    with pytest.raises((TypeError, AttributeError)):
        LanguagePairDataset(lines, sizes, words, lines, sizes, words, num_buckets=2)
    said = refusal("fairseq-train", "data", "--cpu", "--num-batch-buckets", "4")
    assert said == "--num-batch-buckets needs a numpy below 2: leave it out"


COSINE = ["data", "--lr-scheduler", "cosine", "--warmup-updates", "10"]
ROOT = ["data", "--lr-scheduler", "inverse_sqrt"]


def descent():
    """One of fairseq's optimizers."""
    return optim.build_optimizer(
        OmegaConf.create({"_name": "sgd", "momentum": 0.0, "weight_decay": 0.0, "lr": [0.1]}),
        [torch.nn.Parameter(torch.ones(1))],
    )


def test_fairseqs_inverse_square_root_divides_by_the_warm_up():
    cfg = InverseSquareRootLRScheduleConfig(warmup_updates=0, lr=[0.1])
    with pytest.raises(ZeroDivisionError):
        InverseSquareRootSchedule(cfg, descent())


def test_an_inverse_square_root_needs_a_warm_up():
    said = refusal("fairseq-train", *ROOT, "--warmup-updates", "0")
    assert said == "--lr-scheduler inverse_sqrt needs --warmup-updates of 1 or more"
    for more in ([], ["--warmup-updates", "1"]):  # fairseq's default is 4,000
        apply(checks.check, ["fairseq-train", *ROOT, "--cpu", *more])


def test_fairseqs_cosine_divides_by_the_updates_after_the_warm_up():
    cfg = CosineLRScheduleConfig(warmup_updates=10, lr=[0.1], max_update=10)
    schedule = CosineLRSchedule(cfg, descent())
    with pytest.raises(ZeroDivisionError):
        schedule.step_update(10)


@pytest.mark.parametrize("updates", ["0", "10"])
def test_a_cosine_without_updates_to_fall_in(updates):
    said = refusal("fairseq-train", *COSINE, "--max-update", updates)
    assert f"until --max-update {updates}: give a greater one" in said


def test_a_cosine_with_updates_to_fall_in():
    # The second ends before it falls.
    for more in (["--max-update", "11"], ["--max-update", "9"], ["--lr-period-updates", "5"]):
        apply(checks.check, ["fairseq-train", *COSINE, "--cpu", *more])


def test_fairseq_starts_from_scratch_without_a_named_checkpoint(tmp_path):
    trainer = SimpleNamespace(data_parallel_world_size=1)
    assert Trainer.load_checkpoint(trainer, str(tmp_path / "mistyped.pt")) is None


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--restore-file", "--finetune-from-model"])
def test_a_mistyped_checkpoint_to_start_from(flag, tmp_path):
    train = ["fairseq-train", "data", "--cpu", "--save-dir", tmp_path]
    train += ["--reset-optimizer"] * (flag == "--restore-file")
    mistyped = tmp_path / "mistyped.pt"
    assert refusal(*train, flag, mistyped) == f"{mistyped}: no such checkpoint"
    assert refusal(*train, f"{flag}={tmp_path}").startswith(f"{tmp_path} is a folder")
    apply(checks.check, [*map(str, train), "--restore-file", "checkpoint_last.pt"])  # the default
    apply(checks.check, [*map(str, train), flag, str(STORED / "checkpoint.pt")])
    (tmp_path / "mistyped-shard0.pt").touch()
    if flag == "--restore-file":  # which fairseq completes
        apply(checks.check, [*map(str, train), flag, str(mistyped)])
    else:
        assert refusal(*train, flag, mistyped) == f"{mistyped}: no such checkpoint"


def test_what_is_not_used_is_not_missed(tmp_path):
    """With a checkpoint to go on from, fairseq-train does not look at the other."""
    (tmp_path / "checkpoint_last.pt").write_bytes((STORED / "checkpoint.pt").read_bytes())
    words = ["--save-dir", str(tmp_path), "--finetune-from-model", str(tmp_path / "gone.pt")]
    apply(checks.check, ["fairseq-train", "data", "--cpu", *words])


def test_fairseq_generate_ends_in_a_traceback_without_its_checkpoint(tmp_path):
    for path, error in [(tmp_path / "nosuch.pt", OSError), (tmp_path, OSError)]:
        with pytest.raises(error) as raised:
            every_checkpoint.read(str(path))
        assert not isinstance(raised.value, SystemExit)


def test_a_missing_checkpoint_to_decode_with(tmp_path):
    nosuch = tmp_path / "nosuch.pt"
    for command in ("generate", "interactive", "validate", "eval-lm"):
        words = [f"fairseq-{command}", "data", "--cpu", "--path"]
        assert refusal(*words, nosuch) == f"{nosuch}: no such checkpoint"
        ensemble = f"{STORED / 'checkpoint.pt'}:{nosuch}"
        if command in ("generate", "interactive"):
            assert refusal(*words, ensemble) == f"{nosuch}: no such checkpoint"
        assert refusal(*words, tmp_path).startswith(f"{tmp_path} is a folder")
    # A language model that scores, too, is a file that fairseq opens.
    words = ["fairseq-generate", "data", "--cpu", "--path", STORED / "checkpoint.pt"]
    assert refusal(*words, "--lm-path", nosuch) == f"{nosuch}: no such checkpoint"


def test_a_checkpoint_of_another_task(tmp_path):
    """It is refused before its data and parameters are compared."""
    path = STORED / "checkpoint.pt"  # of a translation model
    for command, flag in (
        *(("train", "--restore-file"), ("train", "--finetune-from-model")),
        *(("generate", "--path"), ("validate", "--path"), ("eval-lm", "--path")),
    ):
        words = [f"fairseq-{command}", "data", "--cpu", flag, path, "--save-dir", tmp_path]
        for other in ("masked_lm", "language_modeling", "sentence_prediction"):
            said = refusal(*words, "--task", other)
            assert said == f"{path} was trained for translation, and is not a model for {other}"
        for same in ("translation", "macaron_translation", "translation_lev"):
            apply(checks.check, [str(word) for word in (*words, "--task", same)])
    said = refusal("fairseq-eval-lm", "data", "--cpu", "--path", path)
    assert said.endswith("not a model for language_modeling")


def test_fairseq_hides_what_a_model_says_of_a_checkpoint():
    """Behind its own traceback and sentence, in training."""
    cfg = FairseqConfig(common=CommonConfig(cpu=True))
    model = build_model(arguments("macaron_transformer_tiny"), task())  # of another dictionary
    trainer = Trainer(cfg, task(), model, torch.nn.Module())
    with pytest.raises(Exception, match="ensure that the architectures match") as raised:
        trainer.load_checkpoint(str(STORED / "checkpoint.pt"))
    assert not isinstance(raised.value, SystemExit)
    assert isinstance(raised.value.__context__, UserError)


def test_language_models_are_told_from_translation_models_by_their_architecture():
    """The models say which they are."""
    found = {True: 0, False: 0}
    for arch, model in ARCH_MODEL_REGISTRY.items():
        if model in plugin.MODELS.values():
            is_one = issubclass(model, RobertaModel | TransformerLanguageModel)
            assert bool(checkpoints.ARCHITECTURES_OF_LANGUAGE_MODELS.match(arch)) == is_one, arch
            found[is_one] += 1
    assert min(found.values()) > 10


def test_fairseq_leaves_out_the_last_batch_and_we_say_so(caplog):
    def sentences(multiple):
        batches = data_utils.batch_by_size(
            np.arange(20), lambda i: 5, np.full(20, 5), 60, required_batch_size_multiple=multiple
        )
        return sum(map(len, batches))

    assert sentences(1) == 20
    assert sentences(command_line.parse([])[0].required_batch_size_multiple) == 16
    multiple = "--required-batch-size-multiple"
    with caplog.at_level(logging.WARNING):
        apply(
            checks.check, ["fairseq-train", "data", "--cpu"]
        )  # where a batch less does not matter
        apply(checks.check, ["fairseq-generate", "data", "--cpu", multiple, "1"])
        assert not caplog.messages
        apply(checks.check, ["fairseq-generate", "data", "--cpu"])
    assert "leaves out the last batch" in caplog.text and "(default: 8)" in caplog.text


@pytest.mark.parametrize("short", ["data", "theirs"])
def test_the_data_folder_is_not_the_value_of_another_flag(short, tmp_path):
    """Such as that of a teacher, which has another dictionary and may come first.

    Of so little text as one of them has fairseq makes no batch.
    """
    data, theirs = tmp_path / "data", tmp_path / "theirs"
    for folder in (data, theirs):
        folder.mkdir()
        text_data(folder, train=100 if folder.name == short else 900, valid=900)
    words = ["fairseq-train", "--task", "language_modeling", "--arch"]
    words += ["transformer_lm_tiny_pre_norm", "--tokens-per-sample", "64", "--max-tokens", "1024"]
    words += ["--criterion", "cross_vocabulary_label_smoothed_cross_entropy", "--teacher", "t.pt"]
    words += ["--cpu", "--teacher-data", str(theirs), str(data), "--save-dir", str(tmp_path / "s")]
    if short == "theirs":  # which is the teacher's matter
        apply(checks.check, words)
    else:
        assert f"the set train of {data} has 100 tokens" in refusal(*words)
