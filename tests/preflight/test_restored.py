"""What a checkpoint to start from must be, and that the installed fairseq needs the check.

A test named `test_fairseq_...` fails once fairseq has mended the fault: then its mend can go.
"""

import re
from argparse import Namespace
from functools import partial
from pathlib import Path

import pytest
import torch
from fairseq import optim, options
from fairseq.dataclass.configs import (
    CommonConfig,
    FairseqConfig,
)
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY, build_model
from fairseq.optim.lr_scheduler.fixed_schedule import FixedLRSchedule, FixedLRScheduleConfig
from fairseq.optim.lr_scheduler.inverse_square_root_schedule import (
    InverseSquareRootLRScheduleConfig,
    InverseSquareRootSchedule,
)
from fairseq.trainer import Trainer
from helpers.classifiers import HEAD, classifier
from helpers.commands import apply, refusal, sentence_of
from helpers.paths import FIXTURES, ROOT
from helpers.processes import run
from helpers.small import (
    SMALL,
    SMALL_DECODER,
    SMALL_ENCODER,
    arguments,
    build,
    dictionary,
    language_task,
    masked_task,
    task,
)
from helpers.toy_corpus import TRAIN
from omegaconf import OmegaConf

from macaron_fairseq import UserError, plugin
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.preflight import (
    checks,
    command_line,
    missing,
    restored_optimizer,
    start,
)

STORED = FIXTURES / "stored"
DOCS = ROOT / "docs"


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
            "is FairseqNAG: give it by --finetune-from-model and not --restore-file, or give",
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


def test_a_mean_of_checkpoints_has_no_optimizer(of_adam, caplog):
    """fairseq then goes on in its epoch with update 0, without a word."""
    state = torch.load(of_adam, weights_only=False)
    torch.save({**state, "last_optimizer_state": None}, of_adam)
    for flags, is_said in (["--restore-file"], True), (["--finetune-from-model"], False):
        words = ["fairseq-train", "data", "--cpu", *flags, str(of_adam)]
        apply(checks.check, words)
        assert ("has no state of an optimizer" in caplog.text) == is_said
        caplog.clear()


def test_in_a_runs_own_folder_its_optimizer_alone_is_reset(of_adam):
    of_adam.rename(of_adam.parent / "checkpoint_last.pt")
    words = ["fairseq-train", "data", "--cpu", "--save-dir", of_adam.parent]
    assert "add --reset-optimizer, or give" in refusal(*words, "--criterion", "cross_entropy")


def test_fairseq_gives_the_state_of_a_fixed_schedule_to_another():
    sgd = {"_name": "sgd", "momentum": 0.0, "weight_decay": 0.0, "lr": [0.1]}
    optimizer = optim.build_optimizer(OmegaConf.create(sgd), [torch.nn.Parameter(torch.ones(1))])
    fixed = FixedLRSchedule(FixedLRScheduleConfig(lr=[0.1]), optimizer)
    other = InverseSquareRootSchedule(InverseSquareRootLRScheduleConfig(lr=[0.1]), optimizer)
    with pytest.raises(KeyError, match="best"):
        other.load_state_dict(fixed.state_dict())
    fixed.load_state_dict(other.state_dict())


@pytest.mark.parametrize(
    ("saved", "flags", "is_refused"),
    [
        ({"lr": 0.1}, "--lr-scheduler inverse_sqrt", True),
        ({"lr": 0.1}, "--lr-scheduler inverse_sqrt --reset-lr-scheduler", False),
        ({"lr": 0.1}, "--lr-scheduler fixed", False),
        ({"best": 3.0}, "--lr-scheduler fixed", False),
        ({"best": 3.0}, "--lr-scheduler polynomial_decay", False),
        ({"lr": 0.1}, "--lr-scheduler manual", False),
        ({"best": None}, "--lr-scheduler inverse_sqrt", False),
        ({"best": None}, "--lr-scheduler reduce_lr_on_plateau", True),
        ({"best": 3.0}, "--lr-scheduler reduce_lr_on_plateau", False),
    ],
)
def test_a_checkpoint_of_another_schedule(saved, flags, is_refused):
    state = {"optimizer_history": [{"lr_scheduler_state": saved}], "last_optimizer_state": {"a": 1}}
    args, _ = command_line.parse(["data", *flags.split()])
    check = partial(restored_optimizer.refuse_other_schedule, Path("x.pt"), state, args)
    if is_refused:
        said = sentence_of(check)
        other = f"x.pt was trained with another schedule than --lr-scheduler {args.lr_scheduler}"
        assert said.startswith(other)
        del state["last_optimizer_state"]  # without which fairseq does not read it
    check()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], ""),
        (["--best-checkpoint-metric", "ppl"], "the lowest loss, and now it is to be that of the l"),
        (["--maximize-best-checkpoint-metric"], "lowest loss, and now it is to be that of the hig"),
        (["--best-checkpoint-metric", "ppl", "--reset-meters"], ""),
    ],
)
def test_the_best_of_another_metric(flags, said):
    """With which fairseq would compare."""
    checkpoint = {"best_checkpoint_metric": "loss", "maximize_best_checkpoint_metric": False}
    state = {"cfg": {"checkpoint": checkpoint}, "extra_state": {"best": 5.0}}
    args, _ = command_line.parse(["data", *flags])
    check = partial(restored_optimizer.refuse_other_metric, Path("run/x.pt"), state, args)
    if said:
        assert said in sentence_of(check)
    else:
        check()


@pytest.mark.parametrize(
    ("before", "now"),
    [([], []), (["--share-all-embeddings"], []), ([], ["--share-decoder-input-output-embed"])],
)
def test_a_state_of_another_number_of_parameters(before, now, tmp_path):
    """Where embeddings share their weights only before, or only now."""
    for language in ("en", "de"):
        dictionary().save(str(tmp_path / f"dict.{language}.txt"))
    arch = "macaron_transformer_tiny"
    model = build(arch, *SMALL, *before)
    adam = torch.optim.Adam(model.parameters())
    words = ["fairseq-train", str(tmp_path), "-s", "en", "-t", "de", "--arch", arch, *SMALL]
    given = command_line.with_defaults(command_line.read([*words, *now]).flags)
    state = {"last_optimizer_state": adam.state_dict()}
    check = partial(restored_optimizer.refuse_other_count, Path("x.pt"), state, given)
    given.load_checkpoint_heads = True  # which fairseq puts on later
    check()
    given.load_checkpoint_heads = False
    if before == now:
        check()
    else:
        own = sum(1 for _ in build(arch, *SMALL, *now).parameters())
        assert (
            f"{len([*model.parameters()])} parameters, and the model has {own}: give the same f"
            in (sentence_of(check))
        )


@pytest.mark.parametrize("kind", ["args", "cfg"])
def test_a_run_does_not_turn_round(kind, tmp_path):
    """Nor does a model decode the other way without a word."""
    pair = {"_name": "translation", "source_lang": "en", "target_lang": "de"}
    task = (
        {"args": Namespace(task="translation", **pair)}
        if kind == "args"
        else {"cfg": {"task": pair}}
    )
    state = {"model": {}, "args": None, **task}
    for languages, is_reversed in (
        (["-s", "de", "-t", "en"], True),
        (["-s", "en", "-t", "de"], False),
        (["-s", "de", "-t", "fr"], False),
        ([], False),
    ):
        args, _ = command_line.parse(["data", *languages])
        assert checkpoints.is_reversed(state, args, None) == is_reversed
    args, _ = command_line.parse(["data", "-s", "de", "-t", "en"])
    said = sentence_of(lambda: checks.check_restored(Path("x.pt"), state, args, None, None))
    assert said.startswith("x.pt was trained from en to de: give -s and -t as before, or")
    args, _ = command_line.parse(["data", "-s", "de", "-t", "en", "--finetune-from-model", "x.pt"])
    checks.check_restored(Path("x.pt"), state, args, None, None)
    # Where fairseq took the pair from the files.
    state = {"cfg": {"task": {"_name": "translation", "source_lang": None, "target_lang": None}}}
    (tmp_path / "train.en-de.en.bin").touch()
    for languages, is_reversed in (
        (["-s", "de", "-t", "en"], True),
        (["-s", "en", "-t", "de"], False),
    ):
        args, _ = command_line.parse(["data", *languages])
        assert checkpoints.is_reversed(state, args, tmp_path) == is_reversed


@pytest.mark.parametrize(
    ("flags", "flag"),
    [
        (["--restore-file", "y.pt"], "--restore-file"),
        (["--reset-optimizer"], "--reset-optimizer"),
        (["--reset-dataloader"], "--reset-dataloader"),
    ],
)
def test_training_has_one_beginning(flags, flag):
    words = ["fairseq-train", "data", "--cpu", "--finetune-from-model", "x.pt", *flags]
    assert refusal(*words).endswith(f"begins anew from the parameters: leave out {flag}")


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
    found = restored_optimizer.wrapper_of(command_line.parse(words)[0])
    assert found == type(trainer.optimizer).__name__


def test_another_optimizer_in_half_precision_is_told_though_its_wrapper_is_the_same():
    history = [{"optimizer_name": "FP16Optimizer"}]
    state = {"optimizer_history": history, "cfg": {"optimizer": {"_name": "adam"}}}
    for optimizer, expected in (
        ("fused_adam", []),
        ("nag", ["--optimizer was FairseqAdam, and now it is FairseqNAG"]),
    ):
        words = ["data", "--fp16", "--criterion", "x", "--optimizer", optimizer]
        args, _ = command_line.parse(words)
        assert [*restored_optimizer.other_in_optimizer(state, args)] == expected


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
        given = command_line.with_defaults(line.flags)
        checks.check_restored(path, state, line.args, given, tmp_path)

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
        (["--arch", "transformer_tiny_pre_norm"], "another network than transformer_tiny_pre_norm"),
        (
            ["--no-cross-attention"],
            "with these flags: it has 'decoder.layers.N.encoder_attn.k_proj",
        ),
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


# Registers a criterion, as a user's package does.
CRITERION = """
import macaron_fairseq.plugin
from fairseq.criterions import label_smoothed_cross_entropy as usual, register_criterion


@register_criterion("mine", dataclass=usual.LabelSmoothedCrossEntropyCriterionConfig)
class Mine(usual.LabelSmoothedCrossEntropyCriterion):
    pass
"""


def documented_architecture():
    """The package of the documentation."""
    page = (DOCS / "reference" / "architectures.md").read_text()
    return re.search(r"```python\n(from fairseq.*?)```", page, re.S).group(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "flags"),
    [
        (documented_architecture, ["--arch", "my_macaron"]),
        (lambda: CRITERION, ["--criterion", "mine"]),
    ],
    ids=["architecture", "criterion"],
)
def test_what_another_package_registers_goes_on_with_its_network(code, flags, data_bin, tmp_path):
    """That is after the flags are checked."""
    (package := tmp_path / "my_plugin").mkdir()
    (package / "__init__.py").write_text(code())
    words = [*TRAIN, "--user-dir", package, "--save-dir", tmp_path / "run", *flags]

    def goes_on(*more):
        done = run("fairseq-train", data_bin, *words, *more, check=False, PYTHONPATH=str(ROOT))
        return done.returncode, done.stdout.splitlines()[-1]

    assert goes_on("--max-update", "1")[0] == 0
    status, said = goes_on("--max-update", "2", "--macaron-scheme", "strang-symmetric")
    assert status == 1 and "was trained with --macaron-scheme strang-marchuk, and the mo" in said
    status, said = goes_on("--max-update", "2", "--store-ema")
    assert status == 1 and said.startswith("--store-ema loses the norms")
    assert goes_on("--max-update", "2")[0] == 0


@pytest.mark.parametrize("name", plugin.MODELS)
def test_each_model_is_checked_before_it_is_built(name, monkeypatch):
    """With a criterion of another package, say, the check waits until all is registered."""
    seen = []
    monkeypatch.setattr(start, "before_build", seen.append)
    args = Namespace()
    with pytest.raises((AttributeError, UserError)):  # it has no flags to be built with
        plugin.MODELS[name].build_model(args, None)
    assert seen == [args]


def test_a_teacher_is_not_the_model_that_goes_on(monkeypatch):
    """It may be built while the student's architecture has not been checked yet."""
    line = command_line.read(["fairseq-train", "data", "--arch", "of_another_package"])
    monkeypatch.setattr(start, "unregistered", [line])
    monkeypatch.setattr(checks, "check_built", lambda line, given: pytest.fail("it was checked"))
    start.before_build(arguments("macaron_transformer_tiny", *SMALL))
    assert start.unregistered == [line]


def test_training_starts_from_the_layers_of_a_checkpoint_that_are_to_be_kept(tmp_path):
    """Of three, as `test_layers_to_keep_prunes_a_trained_model` loads them."""
    for language in ("en", "de"):
        dictionary().save(str(tmp_path / f"dict.{language}.txt"))
    arch, deep = "macaron_transformer_tiny", [*SMALL, "--encoder-layers", "3"]
    path = tmp_path / "deep.pt"
    torch.save({"args": arguments(arch, *deep), "model": build(arch, *deep).state_dict()}, path)
    words = ["fairseq-train", str(tmp_path), "-s", "en", "-t", "de", "--cpu", "--arch", arch]
    words += [*SMALL, "--finetune-from-model", str(path)]
    apply(checks.check, [*words, "--encoder-layers-to-keep", "0,2"])
    with pytest.raises(UserError, match="other layers than the model: give --encoder-layers 3"):
        apply(checks.check, words)


def test_a_run_that_begins_anew_is_told_what_it_changes(goes_on, caplog):
    goes_on(["--macaron-scheme", "strang-symmetric", "--reset-optimizer"])
    assert "was trained with --macaron-scheme strang-marchuk, and the model would" in caplog.text


def save(path, model, arch, name):
    args = Namespace(arch=arch, task=name)
    torch.save({"args": args, "model": model.state_dict()}, path)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--num-classes", "2"], "has 3 classes and the task 2: give --num-classes 3, or train a"),
        (["--num-classes", "3"], "has 32 positions and the model 512: give --max-positions 32"),
        (["--num-classes", "3", "--max-positions", "32"], None),
        (["--num-classes", "2", "--classification-head-name", "x", "--max-positions", "32"], None),
    ],
)
def test_training_does_not_start_from_a_checkpoint_that_does_not_fit(flags, sentence, tmp_path):
    path = tmp_path / "checkpoint.pt"
    save(path, classifier(classes=3), "macaron_roberta_tiny", "sentence_prediction")
    words = ["fairseq-train", "data", "--restore-file", str(path), "--cpu", *flags]
    words += ["--task", "sentence_prediction", "--arch", "macaron_roberta_tiny", *SMALL_ENCODER]
    # Who trains fairseq's own may want what it does: a new head.
    apply(checks.check, [*words, "--arch", "roberta_base"])
    if sentence is None:
        apply(checks.check, words)
        return
    with pytest.raises(UserError, match=sentence):
        apply(checks.check, words)


@pytest.mark.parametrize("name", ["masked_lm", "sentence_prediction", "language_modeling"])
@pytest.mark.parametrize("is_macaron", [True, False])
def test_training_does_not_start_from_a_checkpoint_of_another_dictionary(
    name, is_macaron, tmp_path
):
    """fairseq would answer with a traceback; 60 words make 64 types, and 65 with <mask>."""
    words = dictionary()
    path, file = tmp_path / "checkpoint.pt", tmp_path / missing.DICTIONARIES[name]
    if name == "language_modeling":
        arch = "macaron_transformer_lm_tiny" if is_macaron else "transformer_lm_tiny_pre_norm"
        sizes = SMALL_DECODER
        model = build(arch, *sizes, for_task=language_task())
    else:
        arch = "macaron_roberta_tiny" if is_macaron else "roberta_tiny_pre_norm"
        sizes = SMALL_ENCODER
        model = classifier(arch, classes=3)
    save(path, model, arch, name)
    flags = ["--restore-file", path, "--cpu", "--task", name, "--arch", arch, *sizes]
    flags += ["--max-positions", "32"] if name != "language_modeling" else []
    flags += ["--tokens-per-sample", "32"] if name == "masked_lm" else []
    flags = ["fairseq-train", *map(str, [tmp_path, *flags])]
    file.parent.mkdir(exist_ok=True)
    words.save(str(file))
    apply(checks.check, flags)
    words.add_symbol("one-more")
    words.save(str(file))
    sentence = "64 types, .* has 65 with" if "lm_" in arch else "65 types, .* has 66 with"
    with pytest.raises(UserError, match=f"embeds {sentence} its special symbols"):
        apply(checks.check, flags)


@pytest.mark.parametrize(
    ("arch", "name", "of_task"),
    [
        ("macaron_roberta_tiny", "masked_lm", masked_task),
        ("roberta_tiny_pre_norm", "masked_lm", masked_task),
        ("macaron_transformer_lm_tiny", "language_modeling", language_task),
        ("transformer_lm_tiny_pre_norm", "language_modeling", language_task),
    ],
)
def test_training_does_not_start_from_a_checkpoint_of_other_layers(arch, name, of_task, tmp_path):
    """The flags that are named are those that make it fit; fairseq answers with a traceback."""
    side, path = "decoder" if "lm_" in arch else "encoder", tmp_path / "checkpoint.pt"
    sizes = [f"--{side}-layers", "2", f"--{side}-embed-dim", "16", f"--{side}-ffn-embed-dim", "24"]
    heads = f"--{side}-attention-heads"
    common = ["--task", name, "--tokens-per-sample", "32"]
    model = build(arch, *common, *sizes, heads, "4", for_task=of_task())
    save(path, model, arch, name)
    words = ["fairseq-train", "data", "--restore-file", str(path), "--cpu", "--arch", arch, *common]
    apply(checks.check, [*words, *sizes, heads, "4"])
    with pytest.raises(UserError, match=f"give {' '.join(sizes)} and its own {heads}, or anoth"):
        apply(checks.check, words)
    with pytest.raises(UserError, match=f"give --{side}-layers 2, or another --arch"):
        apply(checks.check, [*words, *sizes, heads, "4", f"--{side}-layers", "3"])
    with pytest.raises(RuntimeError, match="size mismatch"):
        build(arch, *common, for_task=of_task()).load_state_dict({**model.state_dict()})


@pytest.mark.parametrize(
    ("trained", "arch", "said"),
    [
        (
            "macaron_roberta_tiny",
            "roberta_tiny_pre_norm",
            "it has '.*earlier.0.*', which the model",
        ),
        ("roberta_tiny_pre_norm", "macaron_roberta_tiny", "it lacks '.*earlier.0.*', which the mo"),
    ],
)
def test_training_does_not_start_from_a_checkpoint_of_another_architecture(
    trained, arch, said, tmp_path
):
    """Whatever their sizes; fairseq answers with a traceback."""
    path, common = tmp_path / "checkpoint.pt", ["--task", "masked_lm", "--tokens-per-sample", "32"]
    model = build(trained, *common, *SMALL_ENCODER, for_task=masked_task())
    save(path, model, trained, "masked_lm")
    dictionary().save(str(tmp_path / "dict.txt"))
    words = ["fairseq-train", str(tmp_path), "--restore-file", str(path), "--cpu", *common]
    with pytest.raises(UserError, match=f"another network than {arch} with these flags: {said}"):
        apply(checks.check, [*words, "--arch", arch])
    with pytest.raises(RuntimeError, match=r"Missing key|Unexpected key"):
        other = build(arch, *common, *SMALL_ENCODER, for_task=masked_task())
        other.load_state_dict({**model.state_dict()})


def test_training_starts_from_a_checkpoint_with_names_of_an_older_fairseq(tmp_path):
    """Whose RoBERTa called its encoder a decoder."""
    arch, path = "roberta_tiny_pre_norm", tmp_path / "checkpoint.pt"
    common = ["--task", "masked_lm", "--tokens-per-sample", "32", *SMALL_ENCODER]
    model = build(arch, *common, for_task=masked_task())
    state = model.state_dict()
    old = {re.sub(r"^encoder\.", "decoder.", name): tensor for name, tensor in state.items()}
    torch.save({"args": Namespace(arch=arch, task="masked_lm"), "model": old}, path)
    dictionary().save(str(tmp_path / "dict.txt"))
    words = ["fairseq-train", str(tmp_path), "--restore-file", str(path), "--cpu", *common]
    apply(checks.check, [*words, "--arch", arch])
    model.load_state_dict({**old})  # as fairseq does


def test_fairseq_drops_a_head_of_other_classes():
    """The fault of fairseq's that `preflight.restored_parameters` is for."""
    saved = classifier("roberta_tiny_pre_norm", classes=3).state_dict()
    model = classifier("roberta_tiny_pre_norm", classes=2)
    first = model.classification_heads[HEAD].out_proj.weight.clone()
    model.load_state_dict({**saved})
    assert torch.equal(model.classification_heads[HEAD].out_proj.weight, first)
