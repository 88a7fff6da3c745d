"""fairseq's commands with the plugin, as processes: what users run, on models of 16 channels."""

import os
import shutil
import socket
import subprocess

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from helpers import served
from helpers.paths import FIXTURES, USER_DIR
from helpers.processes import run
from helpers.small import NO_DROPOUT, build, task
from helpers.toy_corpus import TRAIN, hypotheses, logged, preprocess, train
from subword_nmt.apply_bpe import BPE

from macaron_fairseq import MacaronTransformerModel, cli

STORED = FIXTURES / "stored"  # reverses strings of digits
# Without it fairseq leaves out sentences.
ALL_SENTENCES = ["--required-batch-size-multiple", "1"]


def load(path):
    return torch.load(path, weights_only=True)


def generate(data, *paths):
    return run(
        "fairseq-generate",
        *(data, "--user-dir", USER_DIR, "--path", os.pathsep.join(map(str, paths)), "--cpu"),
        *("--max-len-a", "1", "--max-len-b", "5", "--beam", "2", *ALL_SENTENCES),
    ).stdout


def assert_every_test_sentence_is_translated(output, data):
    references = (data.parent / "test.tgt").read_text().splitlines()
    assert sorted(hypotheses(output)) == list(range(len(references)))
    lines = [line.split("\t") for line in output.splitlines() if line.startswith("T-")]
    printed = {int(name[2:]): text for name, text in lines}
    assert [printed[i] for i in range(len(references))] == references


def assert_same_model(one, other, **tolerance):
    assert list(one) == list(other)
    for name, parameter in one.items():
        if tolerance:
            torch.testing.assert_close(other[name], parameter, rtol=0, **tolerance)
        else:
            assert torch.equal(other[name], parameter), name


# --- training ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_training_broken_off_in_an_epoch_ends_as_if_it_had_not_been(data_bin, training, tmp_path):
    """Dropout is active, so it must go on from the same random numbers too."""
    shutil.copy(training.folder / "checkpoint_1_4.pt", tmp_path / "checkpoint_last.pt")
    flags = ["--max-epoch", "2", "--save-interval-updates", "4"]
    resumed = logged(train(data_bin, tmp_path, *flags).stdout)
    updates = len(training.logged)
    assert updates > 12  # more than an epoch to go
    assert resumed == {i: training.logged[i] for i in range(5, updates + 1)}

    whole, state = (load(f / "checkpoint_last.pt") for f in (training.folder, tmp_path))
    assert whole["cfg"]["model"].dropout > 0
    assert state["optimizer_history"][-1]["num_updates"] == updates
    assert_same_model(whole["model"], state["model"])
    moments, resumed_moments = (s["last_optimizer_state"]["state"] for s in (whole, state))
    assert list(moments) == list(resumed_moments) and moments
    for i, moment in moments.items():
        for name in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(moment[name], resumed_moments[i][name])


@pytest.mark.slow
def test_worker_processes_that_load_data_change_nothing(data_bin, training, tmp_path):
    done = train(data_bin, tmp_path, "--max-update", "3", "--num-workers", "2", "--no-save")
    assert logged(done.stdout) == {i: training.logged[i] for i in (1, 2, 3)}


@pytest.mark.slow
def test_two_processes_train_the_model_of_one_with_twice_the_batches(data_bin, tmp_path):
    """Over gloo; every process takes every second batch."""
    flags = [*NO_DROPOUT, "--max-update", "4"]
    distributed = [
        *("--distributed-init-method", f"file://{tmp_path}/store"),
        *("--distributed-world-size", "2", "--distributed-no-spawn"),
        *("--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"),
    ]
    command = [served.folder() / "fairseq-train", data_bin, "--user-dir", USER_DIR]
    command += [*TRAIN, *flags, "--save-dir", tmp_path / "two", *distributed]
    processes = [
        subprocess.Popen(
            [*map(str, command), "--distributed-rank", str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    of_two = logged("\n".join(outputs))  # only one of them logs

    of_one = logged(train(data_bin, tmp_path / "one", *flags, "--update-freq", "2").stdout)
    assert sorted(of_one) == sorted(of_two) == [1, 2, 3, 4]
    for update, values in of_one.items():
        assert of_two[update] == pytest.approx(values, abs=2e-3)  # three digits are logged
    one, two = (load(tmp_path / n / "checkpoint_last.pt")["model"] for n in ("one", "two"))
    assert_same_model(one, two, atol=1e-6)


# --- decoding ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_average_is_the_mean_of_trained_checkpoints_and_decodes(data_bin, trained, tmp_path):
    path = tmp_path / "averaged.pt"
    cli.main(["average", str(trained), "--last", "2", "-o", str(path)])
    averaged = load(path)["model"]
    last_two = [load(trained / name)["model"] for name in ("checkpoint_2_16.pt", "checkpoint2.pt")]
    assert list(averaged) == list(last_two[0])
    for name, parameter in averaged.items():
        expected = np.mean([model[name].double().numpy() for model in last_two], axis=0)
        np.testing.assert_array_equal(parameter.numpy(), expected.astype(np.float32))
    assert_every_test_sentence_is_translated(generate(data_bin, path), data_bin)


@pytest.mark.slow
def test_an_ensemble_with_fairseqs_transformer(data_bin, trained, tmp_path):
    """Each token has the logarithm of the mean of both models' probabilities as its score."""
    train(data_bin, tmp_path, "--arch", "transformer", "--max-update", "2")
    paths = [trained / "checkpoint_best.pt", tmp_path / "checkpoint_last.pt"]
    output = generate(data_bin, *paths)
    assert_every_test_sentence_is_translated(output, data_bin)

    models, _, its_task = checkpoint_utils.load_model_ensemble_and_task(
        [str(path) for path in paths], arg_overrides={"data": str(data_bin)}
    )
    assert [type(model).__name__ for model in models] == [
        "MacaronTransformerModel",
        "TransformerModel",
    ]
    source = (data_bin.parent / "test.src").read_text().splitlines()
    lines = [line.split("\t") for line in output.splitlines() if line.startswith("P-")]
    scores = {int(name[2:]): [float(x) for x in text.split()] for name, text in lines}
    for i, text in hypotheses(output).items():
        tokens = encode(its_task.source_dictionary, source[i])
        target = encode(its_task.target_dictionary, text)
        previous = target.roll(1)
        outputs = [m.eval()(tokens, torch.tensor([tokens.numel()]), previous) for m in models]
        probabilities = [
            m.get_normalized_probs(out, log_probs=False)
            for m, out in zip(models, outputs, strict=True)
        ]
        mean = torch.stack(probabilities).mean(0).gather(2, target[..., None])[0, :, 0]
        # Scores of base 2 with four digits.
        torch.testing.assert_close(torch.tensor(scores[i]), mean.log2(), atol=2e-4, rtol=0)


def encode(dictionary, text):
    return dictionary.encode_line(text, add_if_not_exist=False).long()[None]


@pytest.fixture(scope="module")
def hub():
    return MacaronTransformerModel.from_pretrained(
        str(STORED), "checkpoint.pt", str(STORED), source_lang="src", target_lang="tgt"
    )


@pytest.mark.slow
def test_interactive_answers_standard_input_in_order(hub):
    """Line by line, whatever their lengths; and as the Python interface does.

    A version that breaks checkpoints of 0.1 fails here.
    """
    source = (STORED / "input.src").read_text().splitlines()
    source = sorted(source, key=len, reverse=True) + source[::-1]
    done = run(
        "fairseq-interactive",
        *(STORED, "--user-dir", USER_DIR, "-s", "src", "-t", "tgt", "--cpu"),
        *("--path", STORED / "checkpoint.pt", "--buffer-size", "5", "--batch-size", "2"),
        stdin="".join(line + "\n" for line in source),
    )
    answers = hypotheses(done.stdout)
    assert list(answers) == list(range(len(source)))  # in this order
    assert list(answers.values()) == [line[::-1] for line in source] == hub.translate(source)


@pytest.mark.slow
def test_validate_reports_the_loss_that_training_recorded(data_bin, trained):
    done = run(
        "fairseq-validate",
        *(data_bin, "--user-dir", USER_DIR, "--path", trained / "checkpoint_best.pt", "--cpu"),
        *("--task", "translation", "--max-tokens", "200"),
    )
    recorded = load(trained / "checkpoint_best.pt")["extra_state"]["val_loss"]
    reported = [line for line in done.stdout.splitlines() if "| valid on 'valid' subset |" in line]
    loss = float(reported[-1].split(" | loss ")[1].split(" |")[0])
    assert loss == pytest.approx(recorded, abs=2e-3)
    # That is fairseq's habit, and the plugin says so.
    assert "bsz 16" in reported[-1] and "leaves out the last batch" in done.stdout


# --- what is not translation, and the other ways in ----------------------------------------------


@pytest.mark.slow
def test_a_language_model_of_fairseqs_trains_and_is_evaluated(data_bin, tmp_path):
    """The plugin must not be in the way."""
    data, corpus = tmp_path / "data", data_bin.parent
    run(
        "fairseq-preprocess",
        *("--user-dir", USER_DIR, "--only-source", "--destdir", data),
        *("--trainpref", corpus / "train.src", "--validpref", corpus / "valid.src"),
        *("--testpref", corpus / "test.src"),
    )
    size = ["--max-tokens", "256", "--tokens-per-sample", "32", "--cpu", *ALL_SENTENCES]
    run(
        "fairseq-train",
        *(data, "--user-dir", USER_DIR, "--task", "language_modeling", "--arch", "transformer_lm"),
        *("--decoder-layers", "1", "--decoder-embed-dim", "16", "--decoder-attention-heads", "2"),
        *("--decoder-ffn-embed-dim", "16", "--optimizer", "adam", "--lr", "0.01"),
        *("--max-update", "2", "--save-dir", tmp_path, *size),
    )
    done = run(
        "fairseq-eval-lm",
        *(data, "--user-dir", USER_DIR, "--path", tmp_path / "checkpoint_last.pt", *size),
    )
    words = (corpus / "test.src").read_text()
    assert f"Evaluated {len(words.split()) + words.count(chr(10)):,} tokens" in done.stdout
    perplexity = float(done.stdout.split("Perplexity: ")[1].split()[0])
    assert 1 < perplexity < 1000


@pytest.mark.slow
def test_hydra_train_trains_a_model_that_generate_decodes(data_bin, tmp_path):
    """`model._name` is how that command spells --arch."""
    sizes = {"embed_dim": 16, "layers": 2}
    size = [f"{side}_{n}={x}" for side in ("encoder", "decoder") for n, x in sizes.items()]
    run(
        "fairseq-hydra-train",
        *("task=translation", f"task.data={data_bin}", "criterion=label_smoothed_cross_entropy"),
        *("optimizer=adam", "lr_scheduler=fixed", "optimization.lr=[0.01]"),
        *("dataset.max_tokens=200", "optimization.max_update=2", f"checkpoint.save_dir={tmp_path}"),
        *(f"common.user_dir={USER_DIR}", "common.cpu=true", f"hydra.run.dir={tmp_path}"),
        *("+model._name=macaron_transformer_tiny", "+model.share_all_embeddings=true"),
        *(f"+model.{word}" for word in size),
        cwd=tmp_path,
    )
    state = load(tmp_path / "checkpoint_last.pt")
    dictionary = Dictionary.load(str(data_bin / "dict.src.txt"))
    flags = [f"--{word.replace('_', '-')}" for word in size] + ["--share-all-embeddings"]
    expected = build("macaron_transformer_tiny", *flags, for_task=task(dictionary))
    shapes = {name: tensor.shape for name, tensor in expected.state_dict().items()}
    assert {name: tensor.shape for name, tensor in state["model"].items()} == shapes

    output = generate(data_bin, tmp_path / "checkpoint_last.pt")
    assert_every_test_sentence_is_translated(output, data_bin)


@pytest.mark.slow
def test_preprocess_with_worker_processes_writes_the_same_files(data_bin, tmp_path):
    """Each worker writes its part and one joins them."""
    preprocess(data_bin.parent, "--workers", "2", "--destdir", tmp_path)
    names = sorted(path.name for path in data_bin.iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert {"train.src-tgt.src.bin", "train.src-tgt.tgt.idx", "dict.src.txt"} <= {*names}
    for name in names:
        if name != "preprocess.log":
            assert (tmp_path / name).read_bytes() == (data_bin / name).read_bytes(), name


def test_the_python_interface_translates_text(hub):
    source = (STORED / "input.src").read_text().splitlines()[0]
    translation = hub.translate(source)
    assert isinstance(translation, str) and translation == source[::-1]
    assert hub.translate(["1 2 3"], beam=1) == ["3 2 1"]


@pytest.mark.slow
def test_the_python_interface_tokenises_and_splits_words(tmp_path):
    """Moses around BPE, as in the class's docstring: words in, words out."""
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\n1 2\n")
    split = BPE(codes.open(), separator="@@").process_line
    assert split("123 45") == "12@@ 3 4@@ 5"
    words = [f"{i * 7919 % 10000 + 10}" for i in range(64)]
    for name in ("train", "valid", "test"):
        text = "".join(split(f"{word} , {word[::-1]} .") + "\n" for word in words)
        (tmp_path / f"{name}.src").write_text(text)
        (tmp_path / f"{name}.tgt").write_text(text)
    data = preprocess(tmp_path)
    train(data, tmp_path, "--max-update", "2")

    hub = MacaronTransformerModel.from_pretrained(
        str(tmp_path),
        "checkpoint_last.pt",
        str(data),
        bpe="subword_nmt",
        bpe_codes=str(codes),
        tokenizer="moses",
        moses_no_dash_splits=True,
    )
    assert hub.tokenize("1-2, 3") == "1-2 , 3"
    tokens = hub.encode("123, 45.")
    assert hub.src_dict.string(tokens) == "12@@ 3 , 4@@ 5 ."
    for flags in ({"beam": 1, "max_len_b": 9}, {"beam": 5, "max_len_b": 9}):
        raw = hub.tgt_dict.string(hub.generate(tokens, **flags)[0]["tokens"])
        assert "@@ " in raw
        (text,) = hub.translate(["123, 45."], **flags)
        assert text and "@@" not in text
        assert text.replace(" ", "") == raw.replace("@@", "").replace(" ", "")


@pytest.mark.slow
def test_a_mistake_is_one_sentence_and_status_1(tmp_path):
    """Of a command that imports fairseq, too, which says this and that while it is imported."""
    words = ["dynamics", "--path", "none.pt", "--data", "none"]
    done = run("python", "-m", "macaron_fairseq", *words, check=False, cwd=tmp_path)
    assert done.returncode == 1
    (line,) = done.stdout.splitlines()  # standard error is there, too
    assert line == "none.pt: no such checkpoint"
    assert not list(tmp_path.iterdir())


def test_a_command_that_is_killed_while_it_starts_leaves_no_process():
    ours, servers = socket.socketpair()
    socket.send_fds(ours, [b'[["fairseq-train"'], [0, 1, 2])
    ours.close()
    child = os.fork()
    if not child:
        served.attend(servers)
    servers.close()
    assert os.waitpid(child, 0)[1] == 0
