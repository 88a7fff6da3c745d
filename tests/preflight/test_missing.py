"""What fairseq's commands need is missing: they end in a traceback, and we in one sentence."""

import os

import pytest
from fairseq import options, tasks
from fairseq.data import data_utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from fairseq_cli import train
from helpers.commands import apply, sentence_of
from helpers.paths import FIXTURES

from macaron_fairseq.preflight import command_line, missing, start

STORED = FIXTURES / "stored" / "checkpoint.pt"  # of a translation model
SETS = "train", "valid", "test"
BATCH = "--max-tokens", "64"
DICTIONARY = "a 3\nb 2\n"


@pytest.fixture
def pair(tmp_path):
    """The names of what fairseq-preprocess writes for two languages."""
    return written(tmp_path / "pair", "dict.en.txt", "dict.de.txt", kind=".en-de.en")


@pytest.fixture
def text(tmp_path):
    """And for a language model."""
    return written(tmp_path / "text", "dict.txt")


@pytest.fixture
def labelled(tmp_path):
    """And for sentences with labels."""
    folder = tmp_path / "labelled"
    written(folder / "input0", "dict.txt")
    return folder


def written(folder, *dictionaries, kind=""):
    folder.mkdir(parents=True)
    for name in dictionaries:
        (folder / name).write_text(DICTIONARY)
    for name in SETS:
        for end in ("bin", "idx"):
            (folder / f"{name}{kind}.{end}").touch()
    return folder


def refuse(command, *words):
    apply(missing.refuse, [f"/bin/fairseq-{command}", *map(str, words)])


def refusal(command, *words):
    """The sentence with which a command line is refused."""
    return sentence_of(lambda: refuse(command, *words))


def test_fairseq_ends_in_a_traceback_without_a_folder_or_a_dictionary(pair, text):
    for languages in ({}, {"source_lang": "en", "target_lang": "fr"}):
        folder = pair if languages else pair / "nosuch"
        with pytest.raises(FileNotFoundError):
            TranslationTask.setup_task(TranslationConfig(data=str(folder), **languages))
    (text / "dict.txt").unlink()
    with pytest.raises(FileNotFoundError):
        MaskedLMTask.setup_task(MaskedLMConfig(data=str(text)))
    assert data_utils.infer_language_pair(str(text)) == (None, None)
    with pytest.raises(Exception, match="Could not infer language pair"):
        TranslationTask.setup_task(TranslationConfig(data=str(text)))


def configuration(folder):
    """fairseq-train's, without a size of batches."""
    words = [str(folder), "--arch", "transformer_tiny", "--cpu", "--optimizer", "adam"]
    args = options.parse_args_and_arch(options.get_training_parser(), words)
    return convert_namespace_to_omegaconf(args)


def test_fairseq_ends_in_a_traceback_without_a_set(pair):
    task = tasks.setup_task(configuration(pair).task)
    with pytest.raises(FileNotFoundError, match="Dataset not found"):
        task.load_dataset("test2016")


def test_fairseq_train_ends_in_a_traceback_without_a_size_of_batches(pair):
    with pytest.raises(AssertionError, match="Must specify batch size"):
        train.main(configuration(pair))


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("train", BATCH),
        ("train", ("--batch-size", "8")),
        ("train", (*BATCH, "--disable-validation", "--valid-subset", "nosuch")),
        ("train", (*BATCH, "-s", "en", "--target-lang", "de")),
        ("generate", ()),
        ("interactive", ()),
        ("validate", ("--task", "translation", *BATCH)),
    ],
)
def test_whole_data_is_taken(pair, command, flags):
    refuse(command, pair, *flags)


def test_other_tasks_commands_and_orders_are_left_alone(text, labelled):
    refuse("train", text, "--task", "masked_lm", *BATCH)
    refuse("eval-lm", text)
    refuse("validate", labelled, "--task", "sentence_prediction", *BATCH)
    refuse("preprocess", "nosuch")
    refuse("train", "nosuch", "--task", "speech_to_text")
    refuse("train", "--dropout", "0.1", "nosuch")  # an unknown flag: which word is the folder?
    refuse("train", "https://example.org/data")
    refuse("train")
    (text / "train.idx").unlink()
    (text / "train.bin").rename(text / "train")  # of --dataset-impl raw
    refuse("train", text, "--task", "language_modeling", *BATCH)


def test_a_folder_that_is_not_there(tmp_path, pair):
    nosuch = tmp_path / "nosuch"
    for command in ("train", "generate", "interactive", "eval-lm"):
        said = refusal(command, f"{nosuch}:{pair}")
        assert said == f"there is no folder {nosuch}: give the one that fairseq-preprocess wrote"
    assert "no folder" in refusal("generate", pair / "dict.en.txt")
    refuse("generate", f"{pair}:{nosuch}")  # which reads the first alone
    said = refusal("train", f"{pair}:{nosuch}")
    assert said == f"there is no folder {nosuch}: give the one that fairseq-preprocess wrote"


@pytest.mark.parametrize("command", ["train", "generate"])
def test_a_folder_that_cannot_be_looked_at(command):
    """Here since its name is too long; fairseq ends in a traceback."""
    said = sentence_of(lambda: start.start([f"/bin/fairseq-{command}", "x" * 300]))
    assert said.endswith("x... looks like text: give the name of a file or folder")


def test_languages_of_other_data(pair, text):
    said = refusal("train", pair, "-s", "en", "-t", "fr", *BATCH)
    assert said == f"{pair} has no dict.fr.txt: give -s and -t, of de and en"
    for file in pair.glob("*.en-de.*"):
        file.unlink()
    said = refusal("interactive", pair)
    assert said == f"no file of {pair} names the pair of languages: give -s and -t, of de and en"
    assert refusal("generate", text / "..").endswith("give another folder")


def test_a_dictionary_that_is_not_there(pair, text):
    said = refusal("eval-lm", pair)
    assert said == f"{pair} has no dict.txt, which --task language_modeling reads"
    said = refusal("train", text, "--task", "sentence_prediction", *BATCH)
    assert said == f"{text} has no input0/dict.txt, which --task sentence_prediction reads"


def test_fairseq_validate_knows_no_task_unless_told():
    with pytest.raises(KeyError, match="None"):
        options.parse_args_and_arch(options.get_validation_parser(), ["data", "--path", "x"])


def test_what_a_command_is_not_told(tmp_path):
    def untold(command, *words):
        line = command_line.read([f"/bin/fairseq-{command}", "data", *map(str, words)])
        return sentence_of(lambda: missing.refuse_untold(line))

    for command in ("generate", "interactive", "validate", "eval-lm"):
        assert untold(command) == f"fairseq-{command} needs a model: give --path FILE"
    said = "fairseq-validate needs a task: give --task translation"
    for path in (STORED, "https://example.org/model.pt"):
        assert untold("validate", "--path", path) == said
    said = untold("train", "--task", "sentence_prediction")
    assert said == "--task sentence_prediction needs its own loss: give --criterion " + (
        "sentence_prediction"
    )
    said = untold("train", "--best-checkpoint-metric", "bleu")
    assert said == "--best-checkpoint-metric bleu needs --eval-bleu, which computes it"
    for criterion, name in (
        ("distilled_label_smoothed_cross_entropy", "kd_loss"),
        ("distilled_label_smoothed_cross_entropy", "trajectory_loss"),
        ("cross_vocabulary_label_smoothed_cross_entropy", "geometry_loss"),
    ):
        said = untold("train", "--criterion", criterion, "--best-checkpoint-metric", name)
        assert said.startswith(f"--best-checkpoint-metric {name} is computed in training alone: ")
    words = ["--criterion", "chunked_label_smoothed_cross_entropy"]
    said = untold("train", "--best-checkpoint-metric", "accuracy", *words)
    assert said == "--best-checkpoint-metric accuracy needs --report-accuracy"
    nosuch = tmp_path / "nosuch"
    said = untold("interactive", "--path", STORED, "--input", nosuch)
    assert said == f"--input {nosuch}: no such file"
    said = untold("interactive", "--path", STORED, "--input", tmp_path)
    assert said == f"--input {tmp_path}: a folder, and not a file"
    said = untold("interactive", "--path", STORED, "--batch-size", "10", "--buffer-size", "5")
    assert said == "--batch-size 10 needs as many lines at a time: give --buffer-size 10"


def test_the_loss_of_masked_tokens_is_divided_by_their_number(caplog):
    refuse_untold = [missing.refuse_untold, ["/bin/fairseq-train", "data", "--task", "masked_lm"]]
    apply(*refuse_untold)
    assert "give --criterion masked_lm" in caplog.text
    caplog.clear()
    apply(refuse_untold[0], [*refuse_untold[1], "--criterion", "masked_lm"])
    assert not caplog.text


def test_commands_that_are_told_all():
    for command, *words in (
        ("generate", "--path", "x"),
        ("validate", "--path", "x", "--task", "masked_lm"),
        ("interactive", "--path", "x", "--input", os.devnull, "--batch-size", "1"),
        ("interactive", "--path", "x", "--batch-size", "10", "--buffer-size", "10"),
        ("train", "--task", "masked_lm", "--criterion", "chunked_masked_lm"),
        ("train", "--best-checkpoint-metric", "bleu", "--eval-bleu"),
        ("train", "--best-checkpoint-metric", "ppl"),
        ("train", "--best-checkpoint-metric", "accuracy", "--criterion", "sentence_prediction"),
        ("train", "--best-checkpoint-metric", "accuracy", "--report-accuracy"),
        ("train", "--best-checkpoint-metric", "bleu", "--disable-validation"),
        ("train", "--best-checkpoint-metric", "bleu", "--task", "a_users_own"),
    ):
        line = command_line.read([f"/bin/fairseq-{command}", "data", *map(str, words)])
        missing.refuse_untold(line)


def test_a_set_that_is_not_there(pair, text, labelled):
    said = refusal("generate", pair, "--gen-subset", "test2016")
    assert said == f"{pair} has no set test2016, only test and train and valid: " + (
        "give another --gen-subset"
    )
    said = refusal("generate", pair, "--gen-subset", "test,valid")  # fairseq takes one
    assert "has no set test,valid, only" in said
    said = refusal("train", pair, *BATCH, "--valid-subset", "valid,late")
    assert "no set late" in said and said.endswith("give another --valid-subset")
    said = refusal("train", labelled, "--task", "sentence_prediction", "--train-subset", "more")
    assert "input0 has no set more" in said and said.endswith("give another --train-subset")
    (text / "wiki.test.idx").touch()
    said = refusal("eval-lm", text, "--gen-subset", "late")
    assert "has no set late, only test and train and valid and wiki.test: " in said
    for name in (*SETS, "wiki.test"):
        (text / f"{name}.idx").unlink()
        (text / f"{name}.bin").unlink(missing_ok=True)
    assert refusal("eval-lm", text).startswith(f"{text} has no sets")


def test_a_size_of_batches_is_needed_to_train(pair):
    assert refusal("train", pair).startswith("how large is a batch? Give --max-tokens")
