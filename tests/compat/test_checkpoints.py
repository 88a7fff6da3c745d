"""Bad checkpoints are refused with their name and the reason; nothing in them runs."""

import copyreg
import importlib.util
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path
from types import ModuleType

import fairseq
import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils, file_io, utils
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from helpers.commands import apply
from helpers.paths import FIXTURES, USER_DIR
from helpers.processes import run
from helpers.small import parse
from helpers.toy_corpus import TRAIN, train
from omegaconf import AnyNode, DictConfig, ListConfig, OmegaConf

import macaron_fairseq
from macaron_fairseq import MacaronTransformerModel, UserError
from macaron_fairseq.compat import checkpoints, every_checkpoint, whole_copies
from macaron_fairseq.model import averaging, loading
from macaron_fairseq.preflight import checks

STORED = FIXTURES / "stored"


class Hostile:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture
def hostile(tmp_path):
    path = tmp_path / "hostile.pt"
    torch.save({"model": {}, "args": Hostile(tmp_path / "ran")}, path)
    yield path
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def legacy_hostile(tmp_path):
    path = tmp_path / "legacy.pt"
    state = {"model": {}, "args": Hostile(tmp_path / "ran")}
    torch.save(state, path, _use_new_zipfile_serialization=False)
    yield path
    assert not (tmp_path / "ran").exists()


def test_fairseq_does_not_load_its_own_checkpoints(tmp_path):
    """It does not tell PyTorch what to allow. Once it does, `allow_safe_globals` can go."""
    state = {"args": Namespace(arch="transformer"), "model": {}, "extra_state": {}}
    state["optimizer_history"] = [{"num_updates": 1, "lr_scheduler_state": {}}]
    torch.save(state, tmp_path / "stock.pt")
    allowed = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        with pytest.raises(pickle.UnpicklingError, match=r"GLOBAL argparse\.Namespace"):
            every_checkpoint.read(str(tmp_path / "stock.pt"))  # as fairseq has it
    finally:
        torch.serialization.add_safe_globals(allowed)
    checkpoints.load(tmp_path / "stock.pt")


def test_hostile_files_are_refused(hostile, legacy_hostile):
    for path in (hostile, legacy_hostile):
        with pytest.raises(UserError, match=rf"{path} holds posix.mkdir, which no fairseq"):
            checkpoints.load(path)


@pytest.mark.parametrize("legacy", [False, True])
def test_meters_of_old_are_loaded_and_saved(legacy, tmp_path, monkeypatch):
    """fairseq until 0.8 saved objects of a module that is no more."""
    old = ModuleType("fairseq.meters")
    for name in ("AverageMeter", "TimeMeter", "StopwatchMeter"):
        setattr(old, name, type(name, (), {"__module__": old.__name__}))
    monkeypatch.setitem(sys.modules, old.__name__, old)
    meter = old.AverageMeter()
    meter.__dict__.update(val=1.5, avg=2.0, sum=4.0, count=2)
    meters = OrderedDict(train_loss=meter, wps=old.TimeMeter(), train_wall=old.StopwatchMeter())
    state = {"args": Namespace(), "model": {"x": torch.ones(1)}}
    path, saved = tmp_path / "old.pt", tmp_path / "new.pt"
    extra = {"extra_state": {"train_meters": meters}}
    torch.save(state | extra, path, _use_new_zipfile_serialization=not legacy)
    monkeypatch.delitem(sys.modules, old.__name__)
    averaging.save(averaging.average([path]), saved)
    for loaded in map(checkpoints.load, (path, saved)):
        loss = loaded["extra_state"]["train_meters"]["train_loss"]
        assert (loss.val, loss.avg, loss.sum, loss.count) == (1.5, 2.0, 4.0, 2)


def test_broken_files_are_refused(tmp_path):
    whole = (STORED / "checkpoint.pt").read_bytes()
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(UserError, match="no such checkpoint"):
        checkpoints.load(path)
    for content, reason in [
        (b"", "is empty: was saving it interrupted"),
        (whole[: len(whole) // 2], "is truncated or not a checkpoint: was saving it interrupted"),
        (whole[:-1], "is truncated or not a checkpoint"),
        (whole[:100], "is truncated or not a checkpoint"),
        (b"no checkpoint at all", "is truncated or not a checkpoint"),
        (pickle.dumps([1, 2]), "is truncated or not a checkpoint"),
    ]:
        path.write_bytes(content)
        with pytest.raises(UserError, match=reason):
            checkpoints.load(path)
    torch.save([1, 2], path)
    with pytest.raises(UserError, match="not a fairseq checkpoint"):
        checkpoints.load(path)
    torch.save({"cfg": Incomplete()}, path)
    with pytest.raises(UserError, match="is truncated or not a checkpoint"):
        checkpoints.load(path)


def test_a_file_of_the_old_format_is_refused_wherever_it_ends(tmp_path):
    state = torch.load(STORED / "checkpoint.pt", weights_only=False)
    torch.save(state, tmp_path / "whole.pt", _use_new_zipfile_serialization=False)
    whole, path = (tmp_path / "whole.pt").read_bytes(), tmp_path / "cut.pt"
    for size in [*range(1, 200, 7), *range(200, len(whole), len(whole) // 60)]:
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"is (truncated or not a|no fairseq) checkpoint"):
            checkpoints.load(path)
    path.write_text("the 7\nof 5\n")  # a dictionary
    with pytest.raises(UserError, match="is truncated or not a checkpoint"):
        checkpoints.load(path)


def test_tables_of_arguments_that_are_none_hold_nothing(tmp_path):
    state = {"model": {"x": torch.ones(1)}, "cfg": {"model": "abc", "task": "abc"}}
    torch.save(state, tmp_path / "x.pt")
    checkpoints.refuse_other_task("x", checkpoints.load(tmp_path / "x.pt"), "translation")


@pytest.mark.parametrize("name", ["args", "cfg"])
def test_arguments_that_are_no_table_are_refused(name, tmp_path):
    torch.save({"model": {"x": torch.ones(1)}, name: "abc"}, tmp_path / "x.pt")
    with pytest.raises(UserError, match=f"its '{name}' is not a table"):
        checkpoints.load(tmp_path / "x.pt")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({}, "which model it holds: use one of fairseq-train"),
        ({"args": None, "cfg": None}, "which model it holds: use one of fairseq-train"),
        ({"args": Namespace(arch="macaron_roberta_tiny")}, "which task its model, macaron_rob"),
        ({"args": Namespace(arch="transformer_bert_base")}, "which task its model, transformer_b"),
        ({"cfg": {"model": {"_name": "transformer_lm_tiny_pre_norm"}}}, "which task its model, tr"),
    ],
)
def test_files_that_do_not_say_what_they_hold_are_refused(said, reason, tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": {}, **said}, path)
    with pytest.raises(UserError, match=f"^{path} does not say {reason}"):
        checkpoints.load(path)


@pytest.mark.parametrize("number", [np.float64(0.5), np.float32(0.5)])
def test_a_number_of_numpy_is_loaded(number, tmp_path):
    """As fairseq saves where F1 says which checkpoint is the best."""
    state = {"model": {}, "args": Namespace(arch="x", task="y"), "extra_state": {"best": number}}
    torch.save(state, tmp_path / "checkpoint.pt")
    assert checkpoints.load(tmp_path / "checkpoint.pt")["extra_state"]["best"] == 0.5


def test_a_name_that_no_file_can_have_is_refused():
    for call in (checkpoints.load, lambda path: macaron_fairseq.describe(path)):
        with pytest.raises(UserError, match=r"^cannot read a+.*: File name too long"):
            call(Path("a" * 300))


def test_old_files_without_a_task_are_of_translation_models(tmp_path):
    """As fairseq takes them."""
    torch.save({"model": {}, "args": Namespace(arch="transformer")}, tmp_path / "checkpoint.pt")
    checkpoints.load(tmp_path / "checkpoint.pt")


@pytest.mark.parametrize("name", ["translation_from_pretrained_bart", "translation", "masked_lm"])
def test_the_task_is_read_however_fairseq_saved_it(name, tmp_path):
    """The first has no dataclass, so fairseq saves a namespace."""
    cfg = convert_namespace_to_omegaconf(parse("transformer_tiny", "--task", name))
    saved = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    assert isinstance(saved["task"], Namespace) == (name == "translation_from_pretrained_bart")
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": {}, "args": None, "cfg": saved}, path)
    assert checkpoints.named(checkpoints.load(path), "task") == name


@pytest.mark.parametrize("changed", [1, 400])
def test_changed_bytes_are_refused_though_pytorch_loads_them(changed, tmp_path):
    path = tmp_path / "checkpoint.pt"
    content = bytearray((STORED / "checkpoint.pt").read_bytes())
    middle = len(content) // 2  # in some tensor
    for i in range(middle, middle + changed):
        content[i] ^= 1
    path.write_bytes(content)
    torch.load(path)
    checkpoints.load(path)  # a quick look
    for refuse in (checkpoints.load_checked, lambda x: averaging.average([x])):
        with pytest.raises(UserError, match=rf"{path} is damaged: its bytes have changed"):
            refuse(path)
    for command in ("train", "generate"):
        flag = "--restore-file" if command == "train" else "--path"
        with pytest.raises(UserError, match="is damaged"):
            apply(checks.check, [f"fairseq-{command}", "data", "--cpu", flag, str(path)])


def test_files_without_checksums_are_taken(tmp_path):
    """PyTorch need not write them, and did not in its format of old."""
    state = {"args": Namespace(), "model": {"weight": torch.ones(3)}}
    torch.save(state, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state, tmp_path / "without.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    for name in ("legacy.pt", "without.pt"):
        assert checkpoints.load_checked(tmp_path / name)["model"]["weight"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_none_are_named(value, dtype, tmp_path):
    """The first bad parameter, wherever models are computed with."""
    state = torch.load(STORED / "checkpoint.pt")
    state["model"] = {name: tensor.to(dtype) for name, tensor in state["model"].items()}
    for name in ("decoder.layers.0.fc1.weight", "decoder.layers.1.fc1.weight"):
        state["model"][name][3, 2] = value
    path = tmp_path / "checkpoint.pt"
    torch.save(state, path)
    what = "NaN" if value != value else "infinity"
    dictionary = Dictionary.load(str(STORED / "dict.src.txt"))
    its_task = TranslationTask(TranslationConfig(), dictionary, dictionary)
    for refuse in (
        lambda: averaging.average([STORED / "checkpoint.pt", path]),
        lambda: loading.load_models(str(path), its_task),  # of translate and export
        lambda: MacaronTransformerModel.from_pretrained(str(tmp_path), path.name, str(STORED)),
        lambda: apply(checks.check, ["fairseq-generate", "data", "--cpu", "--path", str(path)]),
    ):
        with pytest.raises(UserError) as refused:
            refuse()
        sentence = f"{path} holds {what} in 'decoder.layers.0.fc1.weight': its training"
        assert str(refused.value).startswith(sentence)


class Incomplete:
    """Pickled as a configuration of omegaconf that lacks what it is made of."""

    __class__ = DictConfig

    def __reduce_ex__(self, protocol):
        return copyreg.__newobj__, (DictConfig,), {"a": 1}


def generate(path, *flags, **kwargs):
    return run(
        "fairseq-interactive",
        *(
            STORED,
            "-s",
            "src",
            "-t",
            "tgt",
            "--path",
            path,
            "--cpu",
            "--input",
            STORED / "input.src",
        ),
        *flags,
        **kwargs,
    )


PROGRAM = "__import__('os').mkdir({!r})"


def with_argument(path, name, value):
    """A trained model's checkpoint in which an argument is another."""
    state = torch.load(STORED / "checkpoint.pt", weights_only=False)
    setattr(state["cfg"]["model"], name, value)
    torch.save(state, path)
    return path


def stored_task():
    """That of the stored model."""
    source, target = (Dictionary.load(str(STORED / f"dict.{x}.txt")) for x in ("src", "tgt"))
    return TranslationTask(TranslationConfig(), source, target)


def test_fairseq_runs_an_argument_of_a_checkpoint(tmp_path):
    """Once it does not, `refuse_program` can go."""
    with pytest.raises(TypeError):  # what it gives is no list
        utils.eval_str_list(PROGRAM.format(str(tmp_path / "ran")))
    assert (tmp_path / "ran").is_dir()


def test_arguments_that_hold_themselves_or_another_are_refused(tmp_path):
    path = with_argument(tmp_path / "a.pt", "adaptive_softmax_cutoff", "${task.data}")
    with pytest.raises(UserError, match="has the argument adaptive_softmax_cutoff = "):
        checkpoints.load(path)
    # omegaconf's own classes complete themselves when they are asked, and otherwise in fairseq.
    model = {"_name": "fconv", "encoder_layers": "${y}", "y": "[(512, 3)]"}
    node = {"encoder_layers": AnyNode("run(2)")}
    for value in (DictConfig(model), [{"encoder_layers": "${x[0]}"}], "${x}", node):
        path = with_argument(tmp_path / "a.pt", "more", value)
        with pytest.raises(UserError, match="which fairseq would run"):
            checkpoints.load(path)
    endless = {}
    endless["cfg"] = endless
    torch.save({"model": {}, "cfg": endless}, path)
    with pytest.raises(UserError, match="its arguments have no end"):
        checkpoints.load(path)


@pytest.mark.parametrize("before", ["", " ", "[1][0] or ", "*", "[x for x in ()] or "])
def test_a_program_among_the_arguments_is_refused(before, tmp_path):
    text = before + PROGRAM.format(str(tmp_path / "ran"))
    path = with_argument(tmp_path / "a.pt", "adaptive_softmax_cutoff", text)
    if before == "*":  # this is no Python, and fairseq says so
        assert checkpoints.load(path)
        path = with_argument(tmp_path / "b.pt", "adaptive_softmax_cutoff", text[1:].encode())
        with pytest.raises(UserError, match="has the argument adaptive_softmax_cutoff = b"):
            checkpoints.load(path)
    else:
        with pytest.raises(UserError, match="has the argument adaptive_softmax_cutoff = "):
            checkpoints.load(path)
    assert not (tmp_path / "ran").exists()


def test_what_holds_bytes_is_a_program_too(tmp_path):
    """Python evaluates an array's bytes."""
    array = np.frombuffer(b"1+1     ", "i8")
    assert eval(array) == 2
    path = with_argument(tmp_path / "a.pt", "encoder_layers", array)
    with pytest.raises(UserError, match="has the argument encoder_layers = array"):
        checkpoints.load(path)


def test_a_file_that_a_checkpoint_names_is_examined_too(tmp_path):
    """A pre-trained model, which fairseq reads while it builds this one."""
    program = PROGRAM.format(str(tmp_path / "ran"))
    other = with_argument(tmp_path / "other.bin", "adaptive_softmax_cutoff", program)
    state = torch.load(STORED / "checkpoint.pt", weights_only=False)
    named = {"_name": "fconv_self_att", "pretrained": "True", "pretrained_checkpoint": str(other)}
    state["cfg"]["model"] = Namespace(**{**vars(state["cfg"]["model"]), **named})
    torch.save(state, tmp_path / "a.pt")
    assert checkpoints.load(tmp_path / "a.pt")
    with pytest.raises(UserError, match=r"other\.bin has the argument adaptive_softmax_cutoff = "):
        checkpoint_utils.load_model_ensemble([str(tmp_path / "a.pt")], task=stored_task())
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_of_another_kind_is_left_to_fairseq(tmp_path):
    """data2vec's `model` holds more than tensors."""
    state = torch.load(STORED / "checkpoint.pt", weights_only=False)
    state["model"]["_ema"] = {"x": torch.ones(1)}
    torch.save(state, tmp_path / "a.pt")
    assert checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "a.pt"))["model"]["_ema"]


def test_a_part_next_to_a_checkpoint_is_not_read_in_its_place(tmp_path):
    program = PROGRAM.format(str(tmp_path / "ran"))
    with_argument(tmp_path / "a-shard0.pt", "adaptive_softmax_cutoff", program)
    path = str(shutil.copy(STORED / "checkpoint.pt", tmp_path / "a.pt"))
    with pytest.raises(UserError, match=r"would read \S*/a-shard0\.pt in place of \S*/a\.pt: "):
        loading.load_models(path, stored_task())
    with pytest.raises(UserError, match=r"a-shard0\.pt has the argument adaptive_softmax_cutoff"):
        checkpoint_utils.load_model_ensemble([path], task=stored_task())
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("kind", "content"),
    [(DictConfig, [1, 2]), (DictConfig, {"a": 1}), (ListConfig, 5), (ListConfig, "x")],
)
def test_a_forged_configuration_is_refused(kind, content, tmp_path):
    forged = kind([]) if kind is ListConfig else kind({"a": 1})
    forged.__dict__["_content"] = content
    with pytest.raises(UserError, match="is not a fairseq checkpoint"):
        checkpoints.load(with_argument(tmp_path / "a.pt", "more", forged))


def test_a_folder_whose_name_is_not_utf_8(tmp_path):
    path = tmp_path / os.fsdecode(b"b\xffad") / "a.pt"
    path.parent.mkdir()
    shutil.copy(STORED / "checkpoint.pt", path)
    assert checkpoints.load_checked(path)["model"]


def test_a_sentence_shows_what_would_control_a_terminal(tmp_path):
    path = with_argument(tmp_path / "a.pt", "more", {"\x1b]0;title\x07": "${x}"})
    with pytest.raises(UserError) as refused:
        checkpoints.load(path)
    assert str(refused.value).partition(" has the argument ")[2].startswith(r"\x1b]0;title\x07 = ")
    assert str(refused.value) == refused.value.code


def test_a_program_that_ends_in_a_backslash_is_refused(tmp_path):
    """It is Python with the lines that follow it, and none without."""
    text = f"{PROGRAM.format(str(tmp_path / 'ran'))} \\\n\n"
    with pytest.raises(TypeError):  # fairseq runs it
        utils.eval_str_list(text)
    assert (tmp_path / "ran").is_dir()
    path = with_argument(tmp_path / "a.pt", "encoder_layers", text)
    with pytest.raises(UserError, match="has the argument encoder_layers = "):
        checkpoints.load(path)
    in_a_list = with_argument(tmp_path / "b.pt", "more", [{"encoder_layers": text}])
    with pytest.raises(UserError, match="has the argument encoder_layers = "):
        checkpoints.load(in_a_list)


def test_what_fairseqs_models_are_given_is_no_program(tmp_path):
    values = (
        "[(512, 3)] * 20",
        "True",
        "[(64, 1), (-1, 2)]",
        "2000,8000",
        "{'a': 'b c'}",
        "None",
        "word",
    )
    for value in (*values, 20, None, [1]):
        checkpoints.load(with_argument(tmp_path / "a.pt", "encoder_layers", value))
    checkpoints.load(with_argument(tmp_path / "a.pt", "save_dir", "run(2)"))  # as it evaluates none


def test_all_arguments_that_fairseq_evaluates_are_looked_at():
    folder = Path(fairseq.__file__).parent
    call = r"\beval(?:_str_list|_str_dict|_bool)?\(\s*(?:self\.)?(?:args|cfg)\.(\w+)"
    found = set()
    files_of = ("models/**/*.py", "tasks/*.py", "criterions/*.py")
    for path in (path for pattern in files_of for path in folder.glob(pattern)):
        found |= {*re.findall(call, path.read_text("utf-8"))}
    assert len(found) > 15 and found <= checkpoints.EVALUATED


@pytest.mark.parametrize("name", ["archive.tar.gz", "https://example.org/model.tar.gz"])
def test_archives_and_addresses_are_not_unpacked(name, tmp_path):
    (tmp_path / "archive.tar.gz").touch()
    name = name if "://" in name else str(tmp_path / name)
    with pytest.raises(UserError, match="is no folder: give the folder of the checkpoint"):
        MacaronTransformerModel.from_pretrained(name)


@pytest.mark.slow
def test_fairseqs_commands_refuse_in_one_sentence(hostile, tmp_path):
    done = generate(hostile, "--user-dir", USER_DIR, check=False)
    assert done.returncode == 1
    assert f"{hostile} holds posix.mkdir" in done.stdout and "Traceback" not in done.stdout


def test_training_on_a_truncated_checkpoint_is_refused(tmp_path):
    truncated = tmp_path / "checkpoint_last.pt"
    truncated.write_bytes((STORED / "checkpoint.pt").read_bytes()[:5000])
    with pytest.raises(UserError, match=rf"{truncated} is truncated .* --restore-file FILE"):
        apply(checks.check, ["fairseq-train", "data", "--cpu", "--save-dir", str(tmp_path)])


@pytest.mark.slow
def test_a_forgotten_user_dir_is_named(tmp_path):
    done = generate(STORED / "checkpoint.pt", check=False, cwd=tmp_path)
    assert done.returncode != 0
    assert "Unsupported global: GLOBAL macaron_fairseq.PassUserDir" in done.stdout


def test_save_is_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "out.pt"
    averaging.save({"model": {}}, path)
    before = path.read_bytes()

    def full_disk(state, file):
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(UserError, match="No space left on device"):
        averaging.save({"model": {}}, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["out.pt"]


def test_fairseq_copies_checkpoints_in_place(tmp_path):
    """The fault of fairseq's that `compat.whole_copies` is for: half a copy is in the old file."""
    spec = importlib.util.spec_from_file_location("unchanged", file_io.__file__)
    unchanged = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(unchanged)
    new, old = tmp_path / "checkpoint9.pt", tmp_path / "checkpoint_best.pt"
    for copy, is_in_place in ((unchanged.PathManager.copy, True), (whole_copies.copy, False)):
        new.write_bytes(b"new")
        old.write_bytes(b"old")
        file = old.stat().st_ino
        assert copy(str(new), str(old), overwrite=True)
        assert old.read_bytes() == b"new" and (old.stat().st_ino == file) == is_in_place


def test_a_kill_while_fairseq_copies_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    def copy_half(source, target):
        Path(target).write_bytes(Path(source).read_bytes()[:2])
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "copyfile", copy_half)
    new, old = tmp_path / "checkpoint9.pt", tmp_path / "checkpoint_best.pt"
    new.write_bytes(b"newer")
    old.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        checkpoint_utils.PathManager.copy(str(new), str(old), overwrite=True)
    assert old.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == [new.name, old.name]


@pytest.mark.slow
def test_a_run_that_computes_bleu_is_resumed(data_bin, tmp_path):
    """Its checkpoints hold the counts of n-grams, as arrays."""
    flags = ["--eval-bleu", "--eval-bleu-args", '{"beam": 1, "max_len_b": 3}', "--eval-bleu-detok"]
    flags += ["space", "--max-epoch"]
    train(data_bin, tmp_path, *flags, "1")
    state = checkpoints.load(tmp_path / "checkpoint_last.pt")
    assert "_bleu_counts" in str(state["extra_state"]["metrics"])
    done = train(data_bin, tmp_path, *flags, "2")
    assert "Loaded checkpoint" in done.stdout


@pytest.mark.slow
def test_a_full_disk_leaves_the_previous_checkpoint(data_bin, trained, tmp_path):
    """fairseq writes under another name first: what is there already still loads."""
    save = tmp_path / "save"
    shutil.copytree(trained, save)
    kept = {path.name: path.read_bytes() for path in save.iterdir()}
    limit = max(map(len, kept.values())) // 2 // 1024  # KiB: half of a checkpoint fits
    words = [Path(sys.executable).with_name("fairseq-train"), data_bin, "--user-dir", USER_DIR]
    words += ["--save-dir", save, *TRAIN, "--max-epoch", "3"]
    script = f'ulimit -f {limit}; trap "" XFSZ; exec "$@"'
    words = ["bash", "-c", script, "bash", *words]
    done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert done.returncode != 0
    assert "torch_persistent_save" in done.stderr  # it was saving
    assert done.stderr.rstrip().endswith("File too large")
    assert {name: (save / name).read_bytes() for name in kept} == kept
    checkpoints.load(save / "checkpoint_last.pt")


@pytest.mark.slow
def test_a_kill_while_saving_leaves_the_previous_checkpoints(data_bin, tmp_path):
    """A checkpoint is saved at each update, so that the kill falls into one or just beside it."""
    command = Path(sys.executable).with_name("fairseq-train")
    flags = [*TRAIN, "--save-dir", tmp_path, "--save-interval-updates", "1", "--max-epoch", "99"]
    process = subprocess.Popen(
        [command, data_bin, "--user-dir", USER_DIR, *flags, "--disable-validation"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while len(list(tmp_path.glob("checkpoint_*_*.pt"))) < 5:
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    saved = list(tmp_path.glob("checkpoint_*_*.pt"))
    assert len(saved) >= 5
    for path in saved:
        checkpoints.load(path)


def test_a_pytorch_that_loads_unsafely_is_refused(monkeypatch):
    for version, is_safe in [("2.5.1", False), ("2.6.0", True), ("2.13.0+cpu", True)]:
        monkeypatch.setattr(torch, "__version__", version)
        if is_safe:
            checkpoints.allow_safe_globals()
        else:
            with pytest.raises(UserError, match=r"PyTorch 2\.5\.1 is too old: install 2\.6"):
                checkpoints.allow_safe_globals()


def test_arguments_of_other_programs_stay_as_they_are(tmp_path):
    """Whatever their tasks are called."""
    theirs = [Namespace(task="bert"), Namespace(relu_dropout=0.1), Namespace(task="bert", arch="x")]
    torch.save({"own": theirs}, tmp_path / "own.pt")
    checkpoints.allow_safe_globals()
    assert torch.load(tmp_path / "own.pt", weights_only=True)["own"] == theirs
