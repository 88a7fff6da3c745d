"""Steps, logs and checkpoints of the recipes, one by one, in this process."""

import errno
import fcntl
import json
import logging
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Thread, Timer
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import sacrebleu
from common import (
    ask_fairseq,
    downloads,
    launch,
    options,
    stage_evaluate,
    stage_prepare,
    stage_train,
    steps,
    summary,
)
from helpers.commands import sentence_of
from helpers.recipes import EXAMPLES, program
from helpers.run_folders import write_manifest

from macaron_fairseq.text import data_folder
from macaron_fairseq.text.tokenization import Pipeline


def test_what_a_kill_leaves_is_not_taken_for_done(tmp_path):
    """At each line of `step`: in a fork that ends there, as a killed process does."""

    def fill(text):
        def filled(folder):
            (folder / "one").write_text(text)
            (folder / "two").write_text(text)

        return filled

    def killed_after(lines, folder):
        child = os.fork()
        if child:
            return os.waitpid(child, 0)[1] != 0

        def trace(frame, event, _):
            nonlocal lines
            if frame.f_code.co_filename == steps.__file__ and event == "line":
                lines -= 1
                if lines < 0:
                    os._exit(1)
            return trace

        sys.settrace(trace)
        steps.step(folder, ["new"], fill("new"))
        os._exit(0)

    for lines in range(100):
        folder = tmp_path / str(lines)
        steps.step(folder, ["old"], fill("old"))
        was_killed = killed_after(lines, folder)
        content = {path.name: path.read_text() for path in folder.glob("[ot]*")}
        if steps.made(folder):  # old or new, and nothing between
            assert content in ({"one": text, "two": text} for text in ("old", "new"))
        steps.step(folder, ["new"], fill("new"))
        assert {path.read_text() for path in folder.glob("[ot]*")} == {"new"}
        assert not [*tmp_path.glob("*.part"), *tmp_path.glob("*.replaced")]
        if not was_killed:
            break
    assert 10 < lines < 99


def test_a_lock_is_no_link(tmp_path):
    """By which another user could have a recipe empty a file."""
    (tmp_path / "file").write_text("text")
    (tmp_path / "lock").symlink_to(tmp_path / "file")
    with pytest.raises(SystemExit, match="lock cannot be used as a lock: "):
        steps.open_lock(tmp_path / "lock")
    assert (tmp_path / "file").read_text() == "text"


def test_what_is_done_is_not_done_again(tmp_path):
    made = []
    for text in ("one", "one", "other", "one"):
        steps.step(tmp_path / "step", ["inputs", text], lambda out: made.append(out.name))
    assert made == ["step.part"] * 3


def test_a_kill_between_the_two_names_costs_no_work(tmp_path):
    folder, part = tmp_path / "step", tmp_path / "step.part"
    for text in ("old", "new"):
        steps.step(folder, [text], lambda out: (out / "text").write_text(out.name))
    folder.rename(part)
    steps.step(folder, ["new"], lambda out: pytest.fail("it is made again"))
    assert (folder / "text").read_text() == "step.part" and not part.exists()
    # What is whole but of other inputs is made again.
    folder.rename(part)
    made = []
    steps.step(folder, ["other"], lambda out: made.append(out.name))
    assert made == ["step.part"] and not (folder / "text").exists()


def test_a_refusal_keeps_what_a_kill_left_between_two_names(tmp_path):
    folder, old = tmp_path / "step", tmp_path / "step.replaced"
    steps.step(folder, ["old"], lambda out: (out / "text").write_text("whole"))
    folder.rename(old)
    with pytest.raises(SystemExit):
        steps.step(folder, ["new"], lambda out: sys.exit("no"))
    assert (folder / "text").read_text() == "whole" and steps.made(folder) and not old.exists()


def test_a_folder_that_is_a_link_is_replaced(tmp_path):
    folder, elsewhere = tmp_path / "step", tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    for number in range(3):
        steps.step(folder, [str(number)], lambda out: (out / "text").write_text(out.name))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "step"]
    assert (folder / "text").is_file() and not any(elsewhere.iterdir())


@pytest.mark.parametrize("kind", ["folder", "link", "file"])
def test_what_the_user_has_put_there_is_never_replaced(tmp_path, kind):
    """Such as a corpus in `data`, where the work folder is the one that holds it."""
    folder, corpus = tmp_path / "data", tmp_path / "data" / "train.en"
    if kind == "file":
        corpus = folder
    else:
        real = tmp_path / "real" if kind == "link" else folder
        real.mkdir()
        (real / "train.en").write_text("mine")
        if kind == "link":
            folder.symlink_to(real)
    corpus.write_text("mine")
    with pytest.raises(SystemExit, match="data holds what no recipe made: move it, or give"):
        steps.step(folder, ["inputs"], lambda out: pytest.fail("it is begun"))
    assert corpus.read_text() == "mine"


@pytest.mark.parametrize("name", ["text", "some.log"])
def test_a_refusal_leaves_nothing_but_logs(tmp_path, name):
    def refuse(folder):
        (folder / name).write_text("x")
        sys.exit("no")

    with pytest.raises(SystemExit):
        steps.step(tmp_path / "step", ["inputs"], refuse)
    left = [path.name for path in tmp_path.rglob("*")]
    assert sorted(left) == (["some.log", "step.part"] if name == "some.log" else [])


def test_two_do_not_work_on_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "LOCK_SECONDS", 0)
    lock = tmp_path / "a.lock"
    lock.write_text("process 1 of another run, which has ended, and whose name is longer\n")
    who = f"process {os.getpid()} of {socket.gethostname()} holds {lock}"
    at_work = pytest.raises(SystemExit, match=f"^another run is at work there: {who}$")
    with steps.hold(lock), at_work, steps.hold(lock):
        pass
    with steps.hold(lock):
        pass
    assert lock.read_text() == ""


def test_a_command_that_fails_shows_the_end_of_its_log(tmp_path, capfd):
    script = "for i in $(seq 30); do echo $i; done >&2; exit 3"
    with pytest.raises(SystemExit, match=f"bash failed; see {tmp_path}/log"):
        steps.logged(tmp_path / "log", ["bash", "-c", script])
    assert capfd.readouterr().err.split() == [str(i) for i in range(11, 31)]
    with pytest.raises(SystemExit) as end:
        steps.call(["bash", "-c", "exit 5"])
    assert end.value.code == 5


def test_a_command_that_was_killed_says_nothing_so_the_recipe_does(tmp_path, capfd):
    with pytest.raises(SystemExit, match=r"^bash was ended by SIGKILL: is there too little memory"):
        steps.call(["bash", "-c", "kill -9 $$"])
    with pytest.raises(SystemExit, match=rf"^bash was ended by SIGSEGV; see {tmp_path}/log$"):
        steps.logged(tmp_path / "log", ["bash", "-c", "kill -SEGV $$"])
    with pytest.raises(SystemExit) as end:  # as the recipe itself
        steps.call(["bash", "-c", "kill -TERM $$"])
    assert end.value.code == 128 + 15


def test_where_nobody_sees_its_log_a_long_command_is_told_of(tmp_path, monkeypatch, capsys):
    running = steps.Logged(tmp_path / "log", ["true"], "sleeping")
    waits, wait = [], running.process.wait

    def late(seconds):
        waits.append(seconds)
        if len(waits) < 3:
            raise subprocess.TimeoutExpired("true", seconds)
        return wait()

    monkeypatch.setattr(running.process, "wait", late)
    running.wait()
    assert waits == [300, 300, 300]
    assert capsys.readouterr().err.splitlines() == [
        f"sleeping: {minutes} minutes so far; see {tmp_path / 'log'}" for minutes in (5, 10)
    ]


def test_a_dry_run_prints_commands_alone(tmp_path, capsys):
    """Which a shell may read; what is said of them goes to standard error."""
    words = ["train", "--dry-run", "--cpu", "--work", str(tmp_path), "--seeds", "1 2"]
    with patch.object(ask_fairseq, "apart", lambda function, *words: function(*words)):
        program.main([str(EXAMPLES / "multi30k/reproduce.sh"), *words])
    printed = capsys.readouterr()
    commands = [shlex.split(line) for line in printed.out.splitlines()]
    assert len(commands) == 4 and all("fairseq-train" in words[:3] for words in commands)
    assert "no GPU: training in fp32" in printed.err


def test_every_command_finds_the_same_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", raising=False)
    tell = (
        "import os, sys; print(sys.flags.utf8_mode, os.environ['TORCH_CUDNN_SDPA_DEPRIORITIZED'])"
    )

    def told(environ):
        with (tmp_path / "said").open("w") as said:
            steps.start([sys.executable, "-c", tell], environ, stdout=said).wait()
        return (tmp_path / "said").read_text()

    assert told(None) == "1 1\n"
    assert told({"PYTHONUTF8": "0", "TORCH_CUDNN_SDPA_DEPRIORITIZED": "0"}) == "1 0\n"


def test_data_is_replaced_unless_a_model_was_trained_on_it(tmp_path):
    data, new, runs = tmp_path / "data", tmp_path / "new", tmp_path / "work"

    def replace(before, now):
        for folder, fingerprint in ((data, before), (new, now)):
            folder.mkdir(exist_ok=True)
            (folder / "preprocessing.json").write_text(json.dumps({"fingerprint": fingerprint}))
        stage_prepare.refuse_other_data(data, new, runs)

    run, damaged = runs / "students" / "arch" / "seed1", runs / "a" / "seed1"
    write_manifest(run, "one")
    damaged.mkdir(parents=True)
    (damaged / "manifest.json").write_text("{")
    said = sentence_of(lambda: replace("one", "two"))
    assert said.startswith(f"{run} was trained on what {data} holds, which would be replaced by")
    replace("one", "one")  # as where other code made it
    replace("two", "three")


@pytest.mark.parametrize(
    "call",
    [
        'stage_train.follow_training(child, dict(os.environ), Path("log"), "x", 0, 9)',
        'steps.call(child, stdout=open("log", "w"))',
        'steps.logged(Path("errors"), child, stdout=open("log", "w"))',
    ],
)
def test_a_command_ends_with_its_recipe(call, tmp_path):
    """SIGTERM ends both: a command without its recipe would hold the locks."""
    code = f"""
import os, sys
sys.path.insert(0, sys.argv[1])
from common import stage_train, steps
from pathlib import Path
child = [sys.executable, "-u", "-c", "import os, time; print(os.getpid()); time.sleep(60)"]
{call}
"""
    words = [sys.executable, "-c", code, EXAMPLES]
    recipe = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.DEVNULL)
    log, end = tmp_path / "log", time.monotonic() + 60
    while not (log.exists() and log.read_text().endswith("\n")) and time.monotonic() < end:
        time.sleep(0.05)
    recipe.terminate()
    assert recipe.wait() == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(log.read_text()), 0)


def test_one_process_alone_is_in_a_folder_that_comes_and_goes(tmp_path):
    """The first leaves nothing in it, and removes it while the second waits."""
    folder, inside, leave = tmp_path / "records", [], [Event(), Event()]

    def enter(number):
        with steps.alone_in(folder):
            inside.append(number)
            leave[number].wait(10)
            inside.remove(number)

    threads = [Thread(target=enter, args=(i,), daemon=True) for i in (0, 1)]
    with steps.alone_in(folder):
        threads[0].start()
        time.sleep(0.2)
        assert inside == []
    while not inside:
        time.sleep(0.01)
    threads[1].start()
    time.sleep(0.2)
    assert inside == [0] and folder.is_dir()
    for event, thread in zip(leave, threads, strict=True):
        event.set()
        thread.join(10)
    assert inside == [] and not folder.exists()


@pytest.mark.parametrize("name", ["records", "."])
def test_the_lock_of_a_folder_is_a_file_in_it(name, tmp_path, monkeypatch):
    """On network disks a folder's own lock would be this machine's alone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "records").mkdir()
    (tmp_path / "records/a.json").touch()
    folder = Path(name)
    with (folder / ".lock").open("a") as file:
        with steps.alone_in(folder), pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_an_empty_working_folder_may_be_locked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with steps.alone_in(Path()):
        pass
    assert [*tmp_path.iterdir()] == []


def test_who_waits_for_a_lock_says_so(tmp_path, capfd):
    entered = Event()

    def enter():
        with steps.hold(tmp_path / "lock", waits=True):
            entered.set()

    with steps.hold(tmp_path / "lock"):
        thread = Thread(target=enter, daemon=True)
        thread.start()
        time.sleep(0.2)
        assert not entered.is_set()
    thread.join(10)
    assert entered.is_set()
    assert f"waiting for another run, which holds {tmp_path}/lock" in capfd.readouterr().err


def test_epochs_without_a_last_checkpoint_are_not_mixed_with_new_ones(tmp_path):
    """As a copy that was cut leaves them."""
    recipe = SimpleNamespace(extra=[])
    assert stage_train.updates_had(recipe, tmp_path) == 0
    for name in ("checkpoint_best.pt", "checkpoint2.pt", "checkpoint3.pt"):
        assert stage_train.updates_had(recipe, tmp_path) == 0
        (tmp_path / name).touch()
    said = "holds checkpoint3.pt and no checkpoint_last.pt: copy it to that name to go on"
    with pytest.raises(SystemExit, match=said):
        stage_train.updates_had(recipe, tmp_path)
    recipe.extra.append("--no-last-checkpoints")
    assert stage_train.updates_had(recipe, tmp_path) == 0


def test_what_a_gpu_has_decoded_is_kept_where_there_is_none(tmp_path, monkeypatch):
    """As on a cluster's front end; --cpu asks for it."""
    words = ["--work", str(tmp_path), "--average", "0"]
    recipe = options.read(EXAMPLES / "multi30k" / "benchmark.yaml", "multi30k", "", words)
    run, decoded = recipe.run("arch", 1), []

    def decode(log, words, stdout):
        decoded.append((words[words.index("--gen-subset") + 1], words[-1]))

    monkeypatch.setattr(stage_evaluate, "logged", decode)
    monkeypatch.setattr(stage_evaluate, "call", lambda words, stdout: None)
    monkeypatch.setattr(stage_evaluate, "what_evaluates", lambda: ["code"])
    run.mkdir(parents=True)
    (run / "checkpoint_best.pt").write_text("weights")
    for device in (["--fp16"], ["--cpu"], ["--fp16"]):
        stage_evaluate.evaluate_one(recipe, run, device)
    subsets = "test", "test1", "test2"  # as fairseq calls them
    assert decoded == [(x, "--fp16") for x in subsets]
    stage_evaluate.evaluate_one(replace(recipe, cpu=True), run, ["--cpu"])
    assert decoded[3:] == [(x, "--cpu") for x in subsets]


def test_a_result_that_a_network_disk_shows_late_is_seen(tmp_path, monkeypatch):
    Timer(0.5, (tmp_path / "result").touch).start()
    assert launch.appears(tmp_path / "result")
    monkeypatch.setattr(launch, "LATE_SECONDS", 0)
    assert not launch.appears(tmp_path / "none")


def test_a_disk_without_locks_does_not_end_the_work(tmp_path, monkeypatch):
    def none(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(steps.fcntl, "flock", none)
    with steps.hold(tmp_path / "lock"):
        (tmp_path / "done").touch()
    assert (tmp_path / "done").exists()


@pytest.mark.parametrize(
    ("language", "line", "joined"),
    [
        ("de", "„Das ist gut“, sagte er – und schwieg drei Tage lang.", ""),  # noqa: RUF001
        ("de", "Das ist gut , sagte er , und schwieg drei Tage lang .", ""),  # tokenised already
        ("zh", "你好 世界 , 我们 在 这里 。", ""),  # sacreBLEU's own cutting leaves spaces out
        ("hi", "वह घर गया। वह सो गया।", ""),
        ("th", "ที่นี่ ดีครับ", "ที ่ นี ่ ดีครับ"),
        ("yo", "mo fẹ\u0301 lọ síbẹ\u0300 ní", "mo fẹ \u0301 lọ síbẹ \u0300 ní"),
    ],
)
def test_a_script_that_moses_cuts_within_words_is_named(language, line, joined, tmp_path, capsys):
    tokens = Pipeline(["normalize", "tokenize"], language)(line)
    for kind, text in (("reference", line), ("tokenized", tokens)):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / f"test.{language}").write_text(f"{text}\n")
    steps = ["normalize", "tokenize"]
    data = data_folder.DataFolder(tmp_path, "en", language, steps, steps, {})
    recipe = SimpleNamespace(name="own", tests=["test"], target=language)
    stage_prepare.warn_of_low_bleu(recipe, data)
    said = capsys.readouterr().out
    if joined:
        bleu = sacrebleu.corpus_bleu([joined], [[line]], lowercase=True).score
        assert (
            f"test.{language} itself, tokenised and detokenised, has a BLEU of {bleu:.0f}." in said
        )
    else:
        assert not said


# --- The log of a training -----------------------------------------------------------------------


def test_the_reason_of_a_failure_is_shown_and_not_what_torchrun_says_of_it(tmp_path):
    log = (
        "Traceback (most recent call last):\n"
        '  File "torch/distributed/elastic/rendezvous/api.py", line 1, in a_frame\n'
        "DistNetworkError: the port is taken\n"
        "E torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)\n"
        "=====\n"
    )
    lines = log.splitlines(keepends=True)
    watched = stage_train.follow(lines, tmp_path / "train.log", "tiny", 0, 9)
    assert not watched.is_done and watched.tail[-1] == "DistNetworkError: the port is taken\n"
    assert (tmp_path / "train.log").read_text() == log


def test_progress_goes_on_where_the_checkpoint_was(tmp_path, capsys):
    log = [
        "| INFO | fairseq.trainer | Loaded checkpoint x.pt (epoch 9 @ 2170 updates)\n",
        '| INFO | train_inner | {"num_updates": "21| INFO | train_inner | {"loss": "3"}\n',
        '| INFO | train_inner | {"loss": "4.5", "wps": "321", "num_updates": "2180"}\n',
        "| INFO | fairseq_cli.train | done training in 0.1 seconds\n",
    ]
    watched = stage_train.follow(log, tmp_path / "train.log", "tiny", 2170, 8000)
    last = capsys.readouterr().err.splitlines()[-1]
    assert watched.is_done and "2180/8000" in last and "loss 4.5, 321 words/s" in last
    assert (tmp_path / "train.log").read_text() == "".join(log)


def test_a_training_that_ends_by_patience_says_so(tmp_path, capsys):
    log = [
        '| INFO | train_inner | {"loss": "4.5", "wps": "321", "num_updates": "152"}\n',
        "| INFO | early stop since valid performance hasn't improved for last 10 runs\n",
        "| INFO | fairseq_cli.train | done training in 0.1 seconds\n",
    ]
    watched = stage_train.follow(log, tmp_path / "train.log", "tiny", 0, 2000)
    said = "tiny: ended at update 152: 10 validations in a row found no lower loss (--patience)\n"
    assert watched.is_done and capsys.readouterr().err.endswith(said)


def test_a_training_that_ran_out_of_its_hours_is_not_finished(tmp_path):
    log = [
        '| INFO | train_inner | {"loss": "4.5", "wps": "321", "num_updates": "152"}\n',
        "| INFO | Stopping training due to cumulative_training_time: 1.1 > stop_time_hours: 1.0\n",
        "| INFO | fairseq_cli.train | done training in 0.1 seconds\n",
    ]
    words = [sys.executable, "-c", f"print({''.join(log)!r}, end='')"]
    with pytest.raises(SystemExit, match="x: stopped by --stop-time-hours, which counts the hours"):
        stage_train.follow_training(words, {}, tmp_path / "train.log", "x", 0, 9)


def test_samples_that_fairseq_leaves_out_are_counted_once(tmp_path, capsys):
    skipped = "| WARNING | fairseq.tasks.fairseq_task | 1,234 samples have invalid sizes and will"
    log = [f"{skipped} be skipped, max_positions=40, first few sample ids=[7]\n"] * 2
    log.append("| INFO | fairseq_cli.train | done training in 0.1 seconds\n")
    stage_train.follow(log, tmp_path / "train.log", "tiny", 0, 20)
    said = "tiny: 1,234 samples are too long for --max-tokens or the model, and are left out\n"
    assert capsys.readouterr().err.count(said) == 1


def test_what_is_loaded_before_the_first_update_is_said(tmp_path, capsys):
    log = [
        "2026 | INFO | fairseq_cli.train | {'_name': None}\n",
        "2026 | INFO | fairseq_cli.train | num. shared model params: 1 (num. trained: 1)\n",
        "2026 | INFO | fairseq.trainer | begin training epoch 1\n",
        '| INFO | train_inner | {"loss": "9", "wps": "1", "num_updates": "10"}\n',
        "2026 | INFO | fairseq.trainer | begin training epoch 2\n",
        "| INFO | fairseq_cli.train | done training in 0.1 seconds\n",
    ]
    stage_train.follow(log, tmp_path / "train.log", "tiny", 0, 20)
    printed = capsys.readouterr().err
    assert "\r" not in printed  # which is for terminals
    bars = [x for x in printed.split("\n") if "%" in x]
    said = [re.search(r"updates/s, (.*)\]", bar) for bar in bars]
    assert [x[1] for x in said if x] == [
        "loading PyTorch and fairseq",
        "making the model",
        "reading the data",
        "first updates: they compile some code",
        "loss 9, 1 words/s",
    ]


def test_a_slow_training_shows_updates_a_second_too():
    shown = stage_train.tqdm.format_meter(
        2, 8, 25.0, unit=" updates", bar_format=stage_train.BAR, ncols=120
    )
    assert "2/8 [00:25<01:15,  0.08 updates/s]" in shown


def test_a_full_disk_is_told_in_a_sentence(tmp_path, capfd, monkeypatch):
    """The training ends too, since nobody would read its log."""
    (tmp_path / "train.log").symlink_to("/dev/full")
    talks = ["bash", "-c", "trap 'exit 9' TERM; while true; do echo a line; sleep .1; done"]

    def run(file, words):
        log = tmp_path / "train.log"
        stage_train.follow_training(talks, dict(os.environ), log, "tiny, seed 1", 0, 9)

    monkeypatch.setattr(program, "run", run)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    with pytest.raises(SystemExit) as end:
        program.main([str(tmp_path / "mine" / "run.sh")])
    said = capfd.readouterr().err.splitlines()[-1]
    assert end.value.code == 1
    assert said == f"mine: cannot write {tmp_path}/train.log: No space left on device"


def test_a_process_apart_tells_mistakes_and_ends_with_this_one(tmp_path):
    with pytest.raises(FileNotFoundError) as missing:
        ask_fairseq.apart((tmp_path / "nowhere").read_text)
    assert missing.value.filename == str(tmp_path / "nowhere")
    assert sentence_of(ask_fairseq.apart, sys.exit, "a sentence") == "a sentence"
    said = sentence_of(ask_fairseq.apart, os.abort)
    assert said == "a process that loads fairseq was ended by SIGABRT"
    assert sentence_of(ask_fairseq.apart, os._exit, 3) == "a process that loads fairseq failed"
    Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(SystemExit) as end:
        ask_fairseq.apart(time.sleep, 60)
    assert end.value.code == 128 + signal.SIGTERM and not multiprocessing.active_children()


@pytest.mark.slow
def test_what_fairseq_does_not_know_is_found_out_in_a_process_apart(monkeypatch, caplog):
    """Which knows this package's architectures, whatever of it has been imported before."""

    unknown = ask_fairseq.unknown_to_fairseq
    flags = ["data-bin", "--optimizer", "adam"]
    archs = ["transformer_tiny_pre_norm", "macaron_transformer_tiny"]
    assert ask_fairseq.apart(unknown, archs, flags, True) == ""
    # The rest in this process, where it changes these two.
    monkeypatch.setattr(sys, "argv", sys.argv)
    caplog.set_level(logging.WARNING, "fairseq")
    unknown = partial(unknown, is_for_here=True)
    said = unknown(archs, [*flags, "--nosuch", "1"])
    assert said.startswith("fairseq-train would refuse this: unrecognized arguments: --nosuch")
    said = unknown(archs, [*flags, "--lr", "abc"])
    assert said.startswith("fairseq-train would refuse this: argument --lr: invalid")
    said = unknown(archs, flags, decode=["--beem", "5"])
    assert said.startswith("fairseq-generate would refuse this: unrecognized arguments: --beem")
    assert unknown(archs, flags, decode=["--beam", "5", "--lenpen", "1"]) == ""
    cosine = ["--lr-scheduler", "cosine", "--warmup-updates", "9", "--max-update", "9"]
    said = unknown(archs, [*flags, *cosine])
    assert "cosine falls after --warmup-updates 9 until --max-update 9: give a greater" in said
    schemes = ["macaron_transformer_tiny/parallel/midpoint", "transformer_tiny_pre_norm/parallel"]
    assert unknown(schemes[:1], flags) == ""
    assert "unrecognized arguments: --macaron-scheme parallel" in unknown(schemes, flags)
    for task, other in {
        "translation": "transformer_lm_tiny_pre_norm",
        "language_modeling": "roberta_tiny_pre_norm",
        "masked_lm": "transformer_tiny_pre_norm",
    }.items():
        said = unknown([other], [*flags, "--task", task])
        assert said == f"{other} is not for {task}: name one that is in --archs"
    half = [*flags, "--cpu", "--fp16"]  # which no CPU takes
    assert "--cpu" in unknown(archs, half) and unknown(archs, half, is_for_here=False) == ""
    with pytest.raises(SystemExit, match="was ended by SIGKILL: is there too little memory"):
        ask_fairseq.apart(signal.raise_signal, signal.SIGKILL)


# --- What a recipe ends with ---------------------------------------------------------------------


def test_a_recipe_ends_with_scores_and_commands_to_paste(tmp_path, monkeypatch):
    words = ["--work", str(tmp_path / "my work"), "--seeds", "1 2"]
    recipe = options.read(EXAMPLES / "quickstart" / "benchmark.yaml", "quickstart", "", words)
    for arch, bleu in zip(recipe.archs, (80.0, 84.0), strict=True):
        for seed in recipe.seeds:
            scores = [{"metric": "BLEU", "score": bleu + seed}, {"metric": "chrF", "score": 90}]
            folder = recipe.run(arch, seed) / "test"
            folder.mkdir(parents=True)
            (folder / "scores.json").write_text(json.dumps({"scores": scores}))
    monkeypatch.chdir(tmp_path)
    lines = summary.summary(recipe).splitlines()
    assert len(lines) <= 10
    assert lines[:3] == [
        "Scores, mean and standard deviation of 2 seeds",
        "  transformer_tiny_pre_norm  BLEU 81.50 ± 0.71, chrF 90.00 ± 0.00",
        "  macaron_transformer_tiny   BLEU 85.50 ± 0.71, chrF 90.00 ± 0.00",
    ]
    translate, dynamics = (shlex.split(x) for x in lines if x.startswith("  macaron-fairseq "))
    models = [f"my work/{arch}/seed1/checkpoint_best.pt" for arch in recipe.archs]
    search = ["--beam", "5", "--max-len-a", "1.5", "--max-len-b", "10"]
    assert translate[1:] == ["translate", "--data", "my work/data", "--path", models[1], *search]
    assert dynamics[1:4] == ["dynamics", "--data", "my work/data"] and dynamics[5:7] == models
    assert "  less 'my work/report/report.md'" in lines
    (tmp_path / "my work" / "report").mkdir()
    (tmp_path / "my work" / "report" / "report.html").touch()
    page = "  python3 -m webbrowser -t 'my work/report/report.html'"
    lines = summary.summary(recipe).splitlines()
    assert page in lines and "Translate, a line each:" in lines


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ([], "macaron_transformer_tiny/lie-trotter"),
        (["--macaron-substep", "midpoint"], "macaron_transformer_tiny/lie-trotter/midpoint"),
        (["--macaron-encoder-scheme=parallel"], "macaron_transformer_tiny/parallel+lie-trotter"),
    ],
)
def test_the_baseline_of_a_report_is_the_first_architecture_as_it_was_trained(
    flags, named, tmp_path, monkeypatch
):
    baseline, other = "macaron_transformer_tiny/lie-trotter", "macaron_transformer_tiny"
    words = ["--work", str(tmp_path), "--archs", f"{baseline} {other}", "--", *flags]
    trained = ["--arch", other, "--macaron-scheme", "lie-trotter", *flags]
    told = {"arch": other, "flags": trained}
    monkeypatch.setattr(stage_evaluate.manifest, "read", lambda run, hint: told)
    recipe = options.read(EXAMPLES / "quickstart" / "benchmark.yaml", "quickstart", "", words)
    called = []
    monkeypatch.setattr(stage_evaluate, "call", lambda words, **_: called.extend(words))
    monkeypatch.setattr(stage_evaluate, "fingerprint", lambda data: "f00d")
    monkeypatch.setattr(stage_evaluate, "check_data", lambda recipe, run: None)
    monkeypatch.setattr(stage_evaluate, "summary", lambda recipe: "")
    stage_evaluate.report(recipe)
    runs = [tmp_path / arch / "seed1" for arch in (baseline, other)]
    assert called[:6] == ["macaron-fairseq", "report", *runs, "--baseline", named]


def test_the_training_text_of_a_report_is_the_target_where_it_was_normalised(tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr(stage_evaluate.manifest, "read", lambda run, hint: {"flags": []})
    monkeypatch.setattr(stage_evaluate.runs, "trained_arch", lambda told: "one")
    monkeypatch.setattr(stage_evaluate, "call", lambda words, **_: called.append(words))
    monkeypatch.setattr(stage_evaluate, "fingerprint", lambda data: "f00d")
    monkeypatch.setattr(stage_evaluate, "check_data", lambda recipe, run: None)
    monkeypatch.setattr(stage_evaluate, "summary", lambda recipe: "")
    clean = tmp_path / "prepare" / "clean"
    clean.mkdir(parents=True)
    for language in ("en", "de"):
        (clean / f"train.{language}").touch()
    for name in ("quickstart", "iwslt14"):  # the second is not normalised
        words = ["--work", str(tmp_path)]
        stage_evaluate.report(options.read(EXAMPLES / name / "benchmark.yaml", name, "", words))
    quickstart, iwslt14 = called
    assert quickstart[quickstart.index("--train-text") + 1] == clean / "train.de"
    assert "--train-text" not in iwslt14


def test_what_ended_within_its_first_epoch_is_to_be_trained_longer(tmp_path):
    for name in ("trained", "checkpoint_last.pt", "checkpoint_best.pt"):
        (tmp_path / name).write_text("it")
    with pytest.raises(SystemExit, match="within its first one, raise --max-update; else it was"):
        stage_evaluate.last_epochs(tmp_path, iwslt14(tmp_path, "--average", "2"))


def test_the_last_epochs_are_averaged_by_their_numbers(tmp_path):
    recipe = iwslt14(tmp_path, "--average", "2")
    for name in ("8", "9", "10", "_best", "_last", "_3_40"):
        (tmp_path / f"checkpoint{name}.pt").touch()
    found = stage_evaluate.last_epochs(tmp_path, recipe)
    assert [x.name for x in found] == ["checkpoint9.pt", "checkpoint10.pt"]


@pytest.mark.parametrize(("words", "flags"), [([], ["--fp16"]), (["--bf16"], []), (["--fp32"], [])])
def test_what_was_trained_in_fp16_alone_is_decoded_so(words, flags, tmp_path, monkeypatch):
    recipe = iwslt14(tmp_path, *words)
    monkeypatch.setattr(stage_evaluate, "count_gpus", lambda recipe: 1)
    assert stage_evaluate.device_flags(recipe) == flags
    monkeypatch.setattr(stage_evaluate, "count_gpus", lambda recipe: 0)
    assert stage_evaluate.device_flags(recipe) == ["--cpu"]


def test_the_commands_to_paste_name_the_mean_that_was_scored(tmp_path):
    recipe = iwslt14(tmp_path)
    for arch in recipe.archs:
        folder = recipe.run(arch, 1) / "test"
        folder.mkdir(parents=True)
        scores = {"scores": [{"metric": "BLEU", "score": 30}]}
        (folder / "scores.json").write_text(json.dumps(scores))
    lines = summary.summary(recipe).splitlines()
    words = next(shlex.split(x) for x in lines if x.startswith("  macaron-fairseq translate"))
    path = recipe.run(recipe.archs[1], 1) / "averaged" / "checkpoint.pt"
    assert Path(words[words.index("--path") + 1]).resolve() == path.resolve()
    assert words[-4:] == ["--beam", "5", "--lenpen", "1.0"]


def iwslt14(work, *words):
    """The recipe of IWSLT14, whose models are means of checkpoints."""
    words = ["--work", str(work), *words]
    return options.read(EXAMPLES / "iwslt14" / "benchmark.yaml", "iwslt14", "", words)


@pytest.mark.parametrize("average", [0, 2])
def test_checkpoints_that_were_removed_are_not_to_be_trained_by_the_stage_that_thinks_it_did(
    average, tmp_path
):
    words = ["--work", str(tmp_path), "--average", str(average)]
    recipe = options.read(EXAMPLES / "iwslt14" / "benchmark.yaml", "iwslt14", "", words)
    with pytest.raises(SystemExit, match=r"^.*holds no checkpoint.*: run the stage train first$"):
        stage_evaluate.evaluate_one(recipe, tmp_path, [])
    (tmp_path / "trained").write_text("so")
    with pytest.raises(SystemExit, match=rf"or not kept; .* remove {tmp_path}$"):
        stage_evaluate.evaluate_one(recipe, tmp_path, [])


def test_a_program_that_lacks_a_package_is_told_in_a_sentence(tmp_path):
    file = EXAMPLES / "quickstart" / "benchmark.yaml"
    recipe = options.read(file, "quickstart", "", ["--work", str(tmp_path)])
    described = replace(recipe.benchmark, program_packages=["sacrebleu", "not-there"])
    with pytest.raises(
        SystemExit, match=r"^not-there is not installed: pip install sacrebleu not-"
    ):
        downloads.inputs(replace(recipe, benchmark=described))


@pytest.mark.parametrize("name", ["a/b/c/d", "a//c", "/b", "a/"])
def test_what_is_no_architecture_with_a_scheme_is_refused(name):
    words = ["--archs", f"macaron_transformer_tiny {name}"]
    with pytest.raises(SystemExit, match=f"'{name}' should be ARCH, ARCH/SCHEME or ARCH/SCHEME/SU"):
        options.read(EXAMPLES / "quickstart" / "benchmark.yaml", "quickstart", "", words)


def test_what_is_in_a_folder_is_not_fetched(tmp_path):
    words = ["--from", str(tmp_path), "--mirror", "https://example.org"]
    with pytest.raises(SystemExit, match=r"^--from and --mirror exclude each other"):
        options.read(EXAMPLES / "iwslt14" / "benchmark.yaml", "iwslt14", "", words)


@pytest.mark.parametrize("words", ["--from .", "--mirror https://example.org", "--sizes any"])
def test_a_recipe_that_makes_its_corpus_takes_no_archives(words):
    with pytest.raises(SystemExit, match=f"^{words.split()[0]} is for archives: this recipe makes"):
        options.read(EXAMPLES / "quickstart" / "benchmark.yaml", "quickstart", "", words.split())
