"""What is refused before fairseq's commands parse, and that the installed fairseq needs it.

A test named `test_fairseq_...` fails once fairseq has mended the fault: then its mend can go.
"""

import logging
import subprocess
from argparse import Namespace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commands import apply, sentence_of
from conftest import FIXTURES, train
from fairseq import checkpoint_utils, optim, options
from fairseq.data import data_utils
from fairseq.data.indexed_dataset import MMapIndexedDataset, make_builder
from fairseq.dataclass.configs import (
    CheckpointConfig,
    CommonConfig,
    DistributedTrainingConfig,
    FairseqConfig,
)
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed.utils import infer_init_method
from fairseq.models import ARCH_MODEL_REGISTRY, DistributedFairseqModel, build_model
from fairseq.models.roberta import RobertaModel
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModel
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from fairseq.optim.lr_scheduler.cosine_lr_scheduler import CosineLRSchedule, CosineLRScheduleConfig
from fairseq.trainer import Trainer
from omegaconf import OmegaConf
from small import (
    NO_DROPOUT,
    SMALL,
    SMALL_DECODER,
    arguments,
    build,
    dictionary,
    language_task,
    task,
)
from torch.distributed import HashStore

from macaron_fairseq import UserError, plugin
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.preflight import (
    binarised,
    checks,
    command_line,
    ranks,
    restored,
    samples,
    save_folder,
)

STORED = FIXTURES / "stored"


def refusal(*words):
    """The sentence with which a command line is refused."""
    return sentence_of(lambda: apply(checks.check, [str(word) for word in words]))


# --- the command line ----------------------------------------------------------------------------


def test_flags_and_defaults_are_fairseqs():
    """Of all commands: what `parse` finds is what fairseq's own parsers find."""
    words = ["data", "--path", "a.pt", "--fp16", "--save-dir", "s", "--distributed-port", "3"]
    for parser in (
        options.get_training_parser(),
        options.get_generation_parser(),
        options.get_interactive_generation_parser(),
        options.get_validation_parser(),
        options.get_eval_lm_parser(),
    ):
        for given in (["data"], words):
            ours = vars(command_line.parse(given)[0])
            theirs = vars(parser.parse_known_args(given)[0])
            shared = ours.keys() & theirs.keys() - {"distributed_world_size", "path", "task"}
            assert {"fp16", "cpu", "required_batch_size_multiple"} < shared
            assert {name: ours[name] for name in shared} == {n: theirs[n] for n in shared}
    names = {"checkpoint_activations", "offload_activations"}
    assert names <= {*TransformerConfig.__dataclass_fields__}
    assert names | {"macaron_matmul"} <= vars(command_line.parse([])[0]).keys()
    assert command_line.parse(["--distributed-world-size", "2"])[0].distributed_world_size == 2
    assert command_line.parse([])[0].distributed_world_size is None  # not given
    task = options.get_training_parser().parse_known_args(["data"])[0].task
    assert command_line.parse([])[0].task == task


def test_a_word_that_is_too_long_for_a_name_is_no_folder(tmp_path):
    """As the pairs of a multilingual task are."""
    long = ",".join(f"{x}-{y}" for x in range(20) for y in range(20))
    flags = ["--lang-pairs", long, "--save-dir", long, "--restore-file", long]
    line = command_line.read(["fairseq-train", str(tmp_path), *flags])
    assert command_line.first_data(line.others) == tmp_path
    checks.refuse_truncated_data(line.others, "train")
    save_folder.claim(line)  # fairseq will say that this is not a folder
    assert not save_folder.held


def test_who_asks_for_help_is_not_told_what_is_missing(tmp_path):
    assert command_line.read(["fairseq-train", str(tmp_path), "--help"]) is None


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


# --- betas that are none -------------------------------------------------------------------------


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


# --- a learning rate that cannot fall ------------------------------------------------------------

COSINE = ["data", "--lr-scheduler", "cosine", "--warmup-updates", "10"]


def test_fairseqs_cosine_divides_by_the_updates_after_the_warm_up():
    cfg = CosineLRScheduleConfig(warmup_updates=10, lr=[0.1], max_update=10)
    optimizer = optim.build_optimizer(
        OmegaConf.create({"_name": "sgd", "momentum": 0.0, "weight_decay": 0.0, "lr": [0.1]}),
        [torch.nn.Parameter(torch.ones(1))],
    )
    schedule = CosineLRSchedule(cfg, optimizer)
    with pytest.raises(ZeroDivisionError):
        schedule.step_update(10)


@pytest.mark.parametrize("updates", ["0", "10", "9"])
def test_a_cosine_without_updates_to_fall_in(updates):
    argv = ["fairseq-train", *COSINE, "--max-update", updates]
    said = sentence_of(lambda: apply(checks.check, argv))
    assert f"until --max-update {updates}: give a greater one" in said


def test_a_cosine_with_updates_to_fall_in():
    for more in (["--max-update", "11"], ["--lr-period-updates", "5"]):
        apply(checks.check, ["fairseq-train", *COSINE, "--cpu", *more])


# --- files that are not there --------------------------------------------------------------------


def test_fairseq_starts_from_scratch_without_a_named_checkpoint(tmp_path):
    trainer = SimpleNamespace(data_parallel_world_size=1)
    assert Trainer.load_checkpoint(trainer, str(tmp_path / "mistyped.pt")) is None


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--restore-file", "--finetune-from-model"])
def test_a_mistyped_checkpoint_to_start_from(flag, tmp_path):
    train = ["fairseq-train", "data", "--cpu", "--save-dir", tmp_path, "--reset-optimizer"]
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


@pytest.mark.parametrize("suffix", ["", "-part0"])
@pytest.mark.parametrize(
    "flags", [["restore"], ["finetune"], ["continue"], ["continue", "finetune"], []]
)
@pytest.mark.parametrize("has_last", [True, False])
def test_training_starts_from_the_file_that_fairseq_takes(flags, has_last, suffix, tmp_path):
    """It completes some names, and prefers one flag to another."""
    names = {"restore": "restore_file", "finetune": "finetune_from_model"}
    words = ["--save-dir", str(tmp_path / "a.pt"), f"--checkpoint-suffix={suffix}"]
    (tmp_path / "a.pt").mkdir()
    for name in flags:
        (tmp_path / f"{name}.pt").touch()
        flag = names.get(name, "continue_once").replace("_", "-")
        words += [f"--{flag}", str(tmp_path / f"{name}.pt")]
    if has_last:
        (tmp_path / "a.pt" / f"checkpoint_last{suffix}.pt").touch()
    args = vars(options.get_training_parser().parse_args(words))
    cfg = CheckpointConfig(**{x: args[x] for x in args if hasattr(CheckpointConfig, x)})
    loaded = []
    trainer = SimpleNamespace(
        checkpoint_suffix=cfg.checkpoint_suffix,
        load_checkpoint=lambda name, *args, **kwargs: loaded.append(name),
        get_train_iterator=lambda **kwargs: SimpleNamespace(epoch=1),
        lr_step=lambda epoch: None,
    )
    checkpoint_utils.load_checkpoint(cfg, trainer)
    expected = loaded if flags or has_last else []  # else it begins anew
    assert [str(path) for path in command_line.to_restore(command_line.parse(words)[0])] == expected


def test_what_is_not_used_is_not_missed(tmp_path):
    """With a checkpoint to go on from, fairseq-train does not look at the other."""
    (tmp_path / "checkpoint_last.pt").write_bytes((STORED / "checkpoint.pt").read_bytes())
    words = ["--save-dir", str(tmp_path), "--finetune-from-model", str(tmp_path / "gone.pt")]
    apply(checks.check, ["fairseq-train", "data", "--cpu", *words])


def test_fairseq_generate_ends_in_a_traceback_without_its_checkpoint(tmp_path):
    for path, error in [(tmp_path / "nosuch.pt", OSError), (tmp_path, OSError)]:
        with pytest.raises(error) as raised:
            checkpoint_utils.load_model_ensemble([str(path)])
        assert not isinstance(raised.value, SystemExit)


def test_a_missing_checkpoint_to_decode_with(tmp_path):
    nosuch = tmp_path / "nosuch.pt"
    for command in ("generate", "interactive", "validate", "eval-lm"):
        words = [f"fairseq-{command}", "data", "--cpu", "--path"]
        assert refusal(*words, nosuch) == f"{nosuch}: no such checkpoint"
        ensemble = f"{STORED / 'checkpoint.pt'}:{nosuch}"
        if command != "eval-lm":  # of other models
            assert refusal(*words, ensemble) == f"{nosuch}: no such checkpoint"
        assert refusal(*words, tmp_path).startswith(f"{tmp_path} is a folder")


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
            assert bool(checkpoints.LANGUAGE_MODELS.match(arch)) == is_one, arch
            found[is_one] += 1
    assert min(found.values()) > 10


@pytest.fixture
def of_adam(tmp_path):
    """A checkpoint that was trained with fairseq's Adam and label-smoothed cross-entropy."""
    state = torch.load(STORED / "checkpoint.pt", weights_only=False)
    state["last_optimizer_state"] = {"state": {}, "param_groups": []}
    state["optimizer_history"] = [
        {
            "criterion_name": "LabelSmoothedCrossEntropyCriterion",
            "optimizer_name": "FairseqAdam",
            **{"lr_scheduler_state": {}, "num_updates": 1},
        }
    ]
    torch.save(state, tmp_path / "adam.pt")
    return tmp_path / "adam.pt"


def test_fairseq_asserts_that_the_criterion_is_the_same(of_adam):
    cfg = FairseqConfig(common=CommonConfig(cpu=True))
    cfg.optimizer = OmegaConf.structured(optim.adam.FairseqAdamConfig("adam", tpu=False, lr=[0.1]))
    cfg.lr_scheduler = OmegaConf.create({"_name": "fixed", "warmup_updates": 0, "lr": [0.1]})
    cfg.model = arguments("transformer_tiny")
    model = build_model(cfg.model, task())
    state = torch.load(of_adam, weights_only=False)
    torch.save({**state, "model": model.state_dict()}, of_adam)
    trainer = Trainer(cfg, task(), model, torch.nn.Module())
    with pytest.raises(AssertionError, match="Criterion does not match"):
        trainer.load_checkpoint(str(of_adam))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("label_smoothed_cross_entropy --optimizer adam", ""),
        ("label_smoothed_cross_entropy --optimizer fused_adam", ""),
        ("label_smoothed_cross_entropy", ""),  # fairseq will miss the optimizer
        ("cross_entropy --optimizer adam --reset-optimizer", ""),
        (
            "cross_entropy --optimizer adam",
            "--criterion was LabelSmoothedCrossEntropyCriterion, and now it is CrossEnt",
        ),
        (
            "label_smoothed_cross_entropy --optimizer nag",
            "--optimizer was FairseqAdam, and now it is FairseqNAG: add --reset-optim",
        ),
    ],
)
def test_a_checkpoint_of_another_criterion_or_optimizer(flags, said, of_adam, tmp_path):
    words = ["fairseq-train", "data", "--cpu", "--restore-file", of_adam, "--criterion"]
    words = [str(x) for x in (*words, *flags.split())]
    if said:
        assert said in refusal(*words)
    else:
        apply(checks.check, words)


@pytest.mark.parametrize(
    "flags",
    ["", "--bf16", "--fp16 --memory-efficient-fp16", "--use-bmuf"],
)
@pytest.mark.parametrize("optimizer", ["adam", "fused_adam", "nag"])
def test_the_optimizer_has_the_name_that_fairseqs_trainer_saves(flags, optimizer):
    words = ["data", "--cpu", "--arch", "transformer_tiny", "--optimizer", optimizer]
    words += ["--lr-scheduler", "fixed", *flags.split()]
    args = options.parse_args_and_arch(options.get_training_parser(), words)
    cfg = convert_namespace_to_omegaconf(args)
    trainer = Trainer(cfg, task(), build_model(args, task()), torch.nn.Module())
    found = restored.wrapper_of(command_line.parse(words)[0])
    assert found == type(trainer.optimizer).__name__


def test_another_optimizer_in_half_precision_is_told_though_its_wrapper_is_the_same():
    history = [{"optimizer_name": "FP16Optimizer"}]
    state = {"optimizer_history": history, "cfg": {"optimizer": {"_name": "adam"}}}
    for optimizer, expected in (
        ("fused_adam", []),
        ("nag", ["--optimizer was FairseqAdam, and now it is FairseqNAG"]),
    ):
        words = ["data", "--fp16", "--criterion", "x", "--optimizer", optimizer]
        assert [*restored.other_in_optimizer(state, command_line.parse(words)[0])] == expected


# --- batches that are left out -------------------------------------------------------------------


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


def text_data(folder, **tokens):
    for name, count in tokens.items():
        builder = make_builder(str(folder / f"{name}.bin"), "mmap", vocab_size=20)
        builder.add_item(torch.full((count,), 5))
        builder.finalize(str(folder / f"{name}.idx"))
    return folder


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


# --- data that was cut short ---------------------------------------------------------------------

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


# --- a checkpoint of another model ---------------------------------------------------------------


@pytest.fixture
def goes_on(tmp_path):
    """Whether flags are checked against a small model's checkpoint."""
    for language in ("en", "de"):
        dictionary().save(str(tmp_path / f"dict.{language}.txt"))

    def check(flags, arch="macaron_transformer_tiny"):
        state = {"args": arguments(arch, *SMALL), "model": build(arch, *SMALL).state_dict()}
        words = ["fairseq-train", str(tmp_path), "-s", "en", "-t", "de", *SMALL]
        words += ["--arch", arch, *flags]
        path, line = tmp_path / "checkpoint_last.pt", command_line.read(words)
        checks.check_restored(path, state, line, tmp_path)

    return check


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], ""),
        (["--macaron-encoder-scheme", "strang-marchuk"], ""),
        (
            ["--macaron-scheme", "strang-symmetric"],
            "was trained with --macaron-scheme strang-marchuk, and the model would have strang-sym",
        ),
        (["--macaron-substep", "rk4"], "--macaron-substep euler, and the model would have rk4"),
        (["--macaron-scheme", "parallel"], "--macaron-scheme strang-marchuk, and the model would"),
        (["--encoder-attention-heads", "2"], "--encoder-attention-heads 4, and the model would"),
        (["--encoder-layers", "3"], "has other layers than the model: give --encoder-layers 2"),
        (
            ["--decoder-ffn-embed-dim", "24"],
            "other layers than the model: give --decoder-ffn-embed",
        ),
        (
            ["--decoder-first-ffn-embed-dim", "24"],
            "'decoder.layers.N.earlier.0.network.fc1.weight' is 128 x 16 there, and 24 x 16 in the",
        ),
        (["--arch", "transformer_tiny_pre_norm"], "of another architecture than transformer_tiny"),
    ],
)
def test_training_goes_on_with_the_network_that_it_began_with(flags, said, goes_on):
    if not said:
        goes_on(flags)
        return
    with pytest.raises(UserError) as refusal:
        goes_on(flags)
    assert said in str(refusal.value)


def test_the_authors_architectures_are_checked_as_well(goes_on):
    """fairseq knows the model of each; names alone would not tell."""
    ours = [x for x, model in ARCH_MODEL_REGISTRY.items() if model in plugin.MODELS.values()]
    corpora = "transformer_iwslt_de_en", "transformer_wmt_en_de"
    theirs = [x for x in ours if x.startswith(corpora) and "_macaron" in x]
    assert len(theirs) == 5
    for arch in theirs:
        goes_on([], arch)
        with pytest.raises(UserError, match="was trained with --macaron-scheme strang-marchuk"):
            goes_on(["--macaron-scheme", "strang-symmetric"], arch)


def test_a_run_that_begins_anew_is_told_what_it_changes(goes_on, caplog):
    goes_on(["--macaron-scheme", "strang-symmetric", "--reset-optimizer"])
    assert "was trained with --macaron-scheme strang-marchuk, and the model would" in caplog.text


# --- ranks that would train separately -----------------------------------------------------------

TORCHRUN = {"MASTER_ADDR": "a", "MASTER_PORT": "1", "WORLD_SIZE": "2", "RANK": "0"}
SRUN = {"SLURM_STEP_NUM_TASKS": "4"}
TWO_NODES = {  # a task on each; this is the second
    **{"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "a,b", "SLURM_NNODES": "2"},
    **{"SLURM_NTASKS": "2", "SLURM_NODEID": "1", "SLURM_PROCID": "1"},
}


def check(environ, gpus, world_size=None, port=-1, init_method=None):
    flags = Namespace(
        distributed_world_size=world_size,
        distributed_port=port,
        distributed_init_method=init_method,
    )
    ranks.check(flags, environ, gpus)


def distributed(**options):
    """fairseq's options of distributed training."""
    options = DistributedTrainingConfig(**options)
    return OmegaConf.structured(FairseqConfig(distributed_training=options)).distributed_training


def inferred(monkeypatch, environ, world_size, **options):
    """What fairseq makes of an environment on a machine with that many GPUs."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: world_size)
    monkeypatch.setattr(subprocess, "check_output", lambda command: b"a\nb\n")  # scontrol
    config = distributed(distributed_world_size=world_size, **options)
    infer_init_method(config)
    return config


@pytest.mark.parametrize("environ", [TORCHRUN, TWO_NODES], ids=["torchrun", "srun"])
def test_fairseq_does_not_see_what_torchrun_or_srun_started(environ, monkeypatch):
    """Where there is one GPU or none: it then trains in one process."""
    config = inferred(monkeypatch, environ, world_size=1)
    assert (config.distributed_world_size, config.distributed_init_method) == (1, None)


def test_fairseq_connects_what_srun_started_by_a_port_alone(monkeypatch):
    with pytest.raises(AssertionError, match="world size is 16 but have 8 available devices"):
        inferred(monkeypatch, TWO_NODES, world_size=8)
    config = inferred(monkeypatch, TWO_NODES, world_size=8, distributed_port=9218)
    assert (config.distributed_world_size, config.distributed_rank) == (16, 8)
    assert config.distributed_init_method == "tcp://a:9218"


def test_fairseq_does_not_see_what_mpirun_started(monkeypatch):
    """Each process would take all GPUs, and believe to be the first."""
    second = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
    config = inferred(monkeypatch, second, world_size=8)
    assert (config.distributed_world_size, config.distributed_rank) == (8, 0)
    assert config.distributed_init_method.startswith("tcp://localhost:")


def test_fairseq_has_no_distributed_data_parallel_on_a_cpu():
    """So `--ddp-backend legacy_ddp` is part of the advice."""
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        model = build_model(arguments("transformer_tiny"), task())
        group = torch.distributed.group.WORLD
        with pytest.raises(ValueError, match="device_ids"):
            DistributedFairseqModel(
                distributed(ddp_backend="pytorch_ddp"), model, group, torch.device("cpu")
            )
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    "flags, sentence",
    [
        # As fairseq decides: world size 1 on a single visible GPU, whatever was started.
        (dict(environ=TORCHRUN, gpus=1), "pass --distributed-world-size 2"),
        (dict(environ=TORCHRUN, gpus=0), "--distributed-init-method.*--ddp-backend legacy_ddp"),
        (dict(environ=TORCHRUN, gpus=0, world_size=2), "--distributed-init-method"),
        (dict(environ=SRUN, gpus=1), "pass --distributed-world-size 4"),
        (dict(environ=SRUN, gpus=8), "pass --distributed-port"),
        (dict(environ={"OMPI_COMM_WORLD_SIZE": "2"}, gpus=1), "mpirun started 2 processes"),
        (dict(environ={"PMI_SIZE": "4"}, gpus=8), "start them with torchrun"),
    ],
)
def test_refused(flags, sentence):
    with pytest.raises(UserError, match=sentence):
        check(**flags)


@pytest.mark.parametrize(
    "flags",
    [
        dict(environ={}, gpus=1),
        dict(environ={**TORCHRUN, "WORLD_SIZE": "1"}, gpus=1),
        dict(environ=TORCHRUN, gpus=8),
        dict(environ=TORCHRUN, gpus=1, world_size=2),
        dict(environ=SRUN, gpus=1, world_size=1),  # a sweep, one training a task
        dict(environ=SRUN, gpus=8, port=9218),
        dict(environ=SRUN, gpus=1, port=9218, world_size=4),
        # salloc and sbatch set this for the shell, where one process is started by hand.
        dict(environ={"SLURM_NTASKS": "4"}, gpus=1),
        dict(environ={**SRUN, "PMI_SIZE": "4"}, gpus=8, port=9218),  # srun --mpi=pmi2
        dict(environ={**TORCHRUN, "OMPI_COMM_WORLD_SIZE": "2"}, gpus=8),
        dict(environ={"OMPI_COMM_WORLD_SIZE": "2"}, gpus=1, world_size=1),
        dict(environ={"OMPI_COMM_WORLD_SIZE": "1"}, gpus=8),
        dict(environ=TORCHRUN, gpus=0, init_method="tcp://127.0.0.1:1"),
    ],
)
def test_left_alone(flags):
    check(**flags)


@pytest.mark.slow
def test_fairseq_train_is_refused(tmp_path, monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    done = train("nowhere", tmp_path / "save", *NO_DROPOUT, check=False)
    assert done.returncode == 1 and "torchrun started 2 processes" in done.stdout
    assert "Traceback" not in done.stdout and not (tmp_path / "save").exists()
