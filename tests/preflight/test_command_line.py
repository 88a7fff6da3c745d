"""Command lines of fairseq are read as fairseq reads them.

A test named `test_fairseq_...` fails once fairseq has mended the fault: then its mend can go.
"""

from argparse import Namespace
from types import SimpleNamespace

import pytest
from fairseq import checkpoint_utils, options
from fairseq.dataclass.configs import (
    CheckpointConfig,
)
from fairseq.models.transformer import TransformerConfig
from helpers.paths import FIXTURES

from macaron_fairseq import UserError
from macaron_fairseq.preflight import (
    binarised,
    command_line,
    save_folder,
)


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
    binarised.refuse_truncated_folders(line.others, "train")
    with pytest.raises(UserError, match=r"cannot save to .*: File name too long"):
        save_folder.claim(line)


def test_the_first_data_folder_of_this_machine():
    for data, expected in (
        (f"{FIXTURES}:elsewhere", FIXTURES),
        ("nowhere", None),
        (f"s3://bucket/{FIXTURES}", None),
        ("x" * 300, None),
    ):
        assert command_line.first_folder(Namespace(data=data), []) == expected
        assert command_line.first_folder(None, [data]) == expected
    assert command_line.first_folder(Namespace(), []) is None  # of a task without data
    assert command_line.first_folder(None, ["--teacher-data", str(FIXTURES)]) is None


def test_who_asks_for_help_is_not_told_what_is_missing(tmp_path):
    assert command_line.read(["fairseq-train", str(tmp_path), "--help"]) is None


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
