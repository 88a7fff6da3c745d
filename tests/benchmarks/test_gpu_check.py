"""`benchmarks/gpu_check.py`, and training under the fake GPU; gpus' flags are in test_gpus.py."""

import importlib
import inspect
import json
import math
import os
import shutil
import subprocess
import sys

import pytest
from helpers import commands, served
from helpers.paths import FIXTURES, ROOT, USER_DIR
from helpers.toy_corpus import TRAIN, logged

from macaron_fairseq.preflight import batches

BENCHMARKS = ROOT / "benchmarks"
FAKE = ROOT / "tests" / "fakegpu"
STORED = FIXTURES / "stored"
TIMEOUT = 600


@pytest.fixture(autouse=True)
def on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(FAKE))


@pytest.fixture
def fake():
    """The folder of the fake GPU, or a skip that says why there is none."""
    import build

    if reason := build.reason_against():
        pytest.skip(reason)
    build.build()
    return FAKE


def check(*words):
    """The table's rows, the status and all that was said."""
    program = [str(BENCHMARKS / "gpu_check.py"), *map(str, words)]
    if "fake" in words:  # which comes before PyTorch
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run([sys.executable, *program], timeout=TIMEOUT, cwd=ROOT, **streams)
    else:
        done = commands.run_forked(program[0], program[1:], ROOT)
    lines = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line[:1] == "|"]
    return {name: rest for name, *rest in lines[2:]}, done.returncode, done.stdout


# --- what each part gains ------------------------------------------------------------------------


@pytest.mark.slow
def test_each_part_of_a_gpus_work_can_be_left_out(fake, tmp_path):
    """Which a fake GPU sees by the kernels that come instead."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "gpu_parts.py", "--device", "fake", "--shapes", "tiny"]
        + ["--turns", "1", "--json", tmp_path / "found.json"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())["parts"]
    assert list(found) == ["training tiny fp16", "generation tiny fp16"]
    for name, parts in found.items():
        counts = {row: x["kernels"] for row, x in parts.items()}
        least = counts.pop("everything")
        if name.startswith("generation"):  # the search is not about kernels
            del counts["candidate search"], counts["stock fairseq"], counts["plain steps"]
        assert min(counts.values()) > least, counts
        assert all(len(x["seconds"]) == 1 for x in parts.values())
    assert "| stock fairseq |" in done.stdout


# --- the checks ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.longest
def test_the_checks_on_a_cpu(tmp_path):
    """What the fake GPU does not show, and that each check can fail."""
    names = ["syncs", "decoding"]
    rows, status, said = check(
        "--device", "cpu", "--checks", *names, "--json", tmp_path / "found.json"
    )
    assert status == 0, said
    assert list(rows) == names
    assert rows.pop("syncs")[0] == "not run"
    assert all(row[:2] == ["pass", "fails"] for row in rows.values()), rows
    written = json.loads((tmp_path / "found.json").read_text())
    assert {"device", "torch", "date", "cpu"} <= written["machine"].keys()
    assert [x["name"] for x in written["checks"]] == names


@pytest.mark.slow
def test_processes_that_train_together(data_bin, tmp_path, monkeypatch):
    """In this process, and with commands that need not import fairseq anew."""
    from gpu import commands as of_checks
    from gpu import processes
    from gpu.setups import Device

    def start(device, name, *words):
        return [str(served.folder() / name), *map(str, words)]

    monkeypatch.setattr(of_checks, "start", start)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/data").symlink_to(data_bin)
    device = Device("cpu", tmp_path)
    assert processes.look(device, False).passes
    spoiled = processes.look(device, True)
    assert not spoiled.passes and len(spoiled.figures["one"]) == len(spoiled.figures["two"]) == 2


@pytest.mark.slow
@pytest.mark.longest
def test_the_checks_on_the_fake_gpu(fake):
    """Syncs, kernels and the attention of an update are those that were recorded, or fewer."""
    names = ["gradients", "masks", "dropout", "syncs", "search", "resume", "learning"]
    rows, status, said = check("--device", "fake", "--checks", *names)
    assert status == 0, said
    assert list(rows) == names
    assert all(row[:2] == ["pass", "fails"] for row in rows.values()), rows


@pytest.mark.slow
def test_what_there_is_no_time_for_is_said():
    rows, status, _ = check("--device", "cpu", "--checks", "masks", "--minutes", "-1")
    assert status == 1 and rows["masks"][0] == "not run"
    assert rows["masks"][-1] == "out of time: see --minutes"


def test_a_check_must_be_able_to_fail(tmp_path):
    from gpu import checks
    from gpu.setups import Device

    device = Device("cpu", tmp_path)

    def good(_, spoil):
        return checks.Outcome(not spoil, "well", {"x": 1})

    def blind(_, spoil):
        return checks.Outcome(True, "well")

    def bad(_, spoil):
        return checks.Outcome(False, "ill")

    def raises(_, spoil):
        raise ValueError("of\nits own")

    def missing(_, spoil):
        raise checks.NotHere("no GPU")

    rows = [checks.run(x.__name__, x, device) for x in (good, blind, bad, raises, missing)]
    assert [(x.result, x.control) for x in rows] == [
        *(("pass", "fails"), ("FAIL", "PASSES"), ("FAIL", "fails"), ("FAIL", "")),
        ("not run", ""),
    ]
    assert rows[0].figures == {"x": 1, "control": {"x": 1}}
    assert rows[1].says == "well; and the spoiled one passes too"
    assert rows[3].says == "ValueError: of its own"
    reported = checks.run("speed", lambda *_: checks.Outcome(True, "", {}, False), device)
    assert (reported.result, reported.control) == ("pass", "none")
    table = checks.table(rows).splitlines()
    assert table[2] == "| good | pass | fails | 0 | well |"


def test_every_check_has_a_control_on_a_gpu(tmp_path):
    """Speed's is that of the same times with the sides exchanged."""
    import gpu_check
    from gpu import speed
    from gpu.setups import Device

    looks = {name: importlib.import_module(f"gpu.{x}").look for name, x in gpu_check.CHECKS.items()}
    assert all(len(inspect.signature(look).parameters) == 2 for look in looks.values())
    times = {"training base fp16": {"stock over ours": [1.6, 1.5, 1.7]}}
    (tmp_path / "speed.json").write_text(json.dumps(times))
    assert speed.look(Device("cuda", tmp_path), True) == checks_outcome(
        False, "times as fast as stock: training base fp16 0.62 (0.59-0.67)"
    )
    assert not speed.look(Device("cpu", tmp_path), True).is_judged


def checks_outcome(passes, says):
    from gpu import checks

    return checks.Outcome(passes, says)


def test_what_pytorch_says_of_its_mode_is_no_sync():
    from gpu import syncs

    warned = [
        "called a synchronizing CUDA operation (Triggered internally at x.cpp:1)",
        "Synchronization debug mode is a prototype feature and does not yet detect all "
        "synchronizing operations",
    ]
    assert syncs.waits_in(warned) == warned[:1]


def test_weights_of_a_precision_are_told_from_others():
    import torch
    from gpu import starts

    exact = torch.tensor([1 / 3, 1e-30])  # the latter is 0 in fp16
    half, bf16 = (exact.to(x).float() for x in (torch.half, torch.bfloat16))
    wanted = {torch.half: half, torch.bfloat16: bf16, torch.float: exact}
    for dtype in wanted:
        found = [starts.are_of(dtype, [torch.ones(2), x]) for x in wanted.values()]
        assert found == [dtype == x for x in wanted]


def test_what_is_written_after_each_check(tmp_path):
    """A job may be cut before the last."""
    import gpu_check
    from gpu import checks

    figures = {"loss": math.nan, "on a CPU": [5.0, math.inf]}  # of a GPU that is broken
    rows = [checks.Row("masks", "pass", "well"), checks.Row("multi30k", "FAIL", "", "", 1, figures)]
    gpu_check.write(tmp_path / "x.json", "cpu", 0, rows)
    written = json.loads((tmp_path / "x.json").read_text())
    assert [x["name"] for x in written["checks"]] == ["masks", "multi30k"]
    assert written["checks"][1]["figures"] == {"loss": "nan", "on a CPU": [5.0, "inf"]}
    assert written["seconds"] > 0


def test_the_loss_of_a_gpu_is_to_be_one_of_the_cpus(tmp_path):
    from gpu import multi30k

    known = [5.0, 5.1, 4.9, 5.05, 4.95]  # deviation 0.079; 5.04 of them to either side
    within = {x: multi30k.is_within(x, known)[0] for x in (4.62, 5.0, 5.38, 4.58, 5.42, math.nan)}
    assert [x for x, is_one in within.items() if is_one] == [4.62, 5.0, 5.38]
    stored = json.loads(multi30k.LOSSES.read_text())["losses"]
    for found in stored.values():
        assert found["flags"] == multi30k.FLAGS and found["rate"] == multi30k.RATE
        assert {*found["after updates"]} <= {str(x) for x in multi30k.UPDATES.values()}


def test_losses_of_other_data_or_settings_are_not_compared(tmp_path, monkeypatch):
    from gpu import multi30k
    from gpu.checks import NotHere

    for name in ("dict.de.txt", "train.en-de.de.bin", "valid.en-de.de.bin", "test.en-de.de.bin"):
        (tmp_path / name).write_bytes(name.encode())
    first = multi30k.digest(tmp_path)
    (tmp_path / "test.en-de.de.bin").write_bytes(b"another")
    assert multi30k.digest(tmp_path) == first
    (tmp_path / "valid.en-de.de.bin").write_bytes(b"another")
    assert multi30k.digest(tmp_path) != first
    with pytest.raises(NotHere, match="of other data than these"):
        multi30k.known_losses("made", first, 20)
    with pytest.raises(NotHere, match="no CPU's losses are known after 7 updates"):
        multi30k.known_losses("made", first, 7)
    same = json.loads(multi30k.LOSSES.read_text())["losses"]["made"]["data"]
    multi30k.known_losses("made", same, 20)
    monkeypatch.setattr(multi30k, "RATE", 1.0)
    with pytest.raises(NotHere, match="of other rate than these"):
        multi30k.known_losses("made", same, 20)


@pytest.mark.slow
def test_no_gpu_is_said_in_a_sentence():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    rows, status, said = check("--checks", "masks")
    assert not rows and status == 1
    assert said.strip().splitlines()[-1].startswith("--device cuda: PyTorch finds none here; see")


# --- the fake GPU --------------------------------------------------------------------------------


def test_without_a_compiler_the_fake_gpu_says_so(monkeypatch, tmp_path):
    import build

    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(RuntimeError, match=r"there is no g\+\+ to compile the shim"):
        build.build(tmp_path)


OF_A_GPU = """
import sys
import fakegpu, torch
x = torch.randn(3, 4, device="cuda", requires_grad=True)
fakegpu.clear()
y = (x @ x.t()).softmax(-1)
y.sum().backward()
assert fakegpu.counts()["syncs"] == 0, fakegpu.counts()
assert fakegpu.counts()["kernels_by_name"]["softmax"] == 1
assert y.device == x.grad.device == torch.device("cuda", 0)
on_cpu = x.detach().cpu()
torch.testing.assert_close(y.detach().cpu(), (on_cpu @ on_cpu.t()).softmax(-1))
try:
    torch.mm(x, torch.ones(4, 4))
except RuntimeError as error:
    assert "same device" in str(error)
else:
    sys.exit("devices were mixed")
fakegpu.clear()
many = [torch.ones(3, device="cuda") for _ in range(64)]
torch._foreach_mul_(many, 2.0)
assert fakegpu.counts()["kernels_by_name"]["_foreach_mul_"] == 2
assert many[63].sum().item() == 6 and fakegpu.counts()["syncs"] == 1
half = torch.randn(2, 3, 5, 8, device="cuda", dtype=torch.half, requires_grad=True)
attend = torch.nn.functional.scaled_dot_product_attention
attend(half, half, half, is_causal=True).sum().backward()
attend(half, half, half, torch.zeros(5, 5, device="cuda", dtype=torch.half))
assert fakegpu.counts()["attention"] == {"flash, causal": 1, "efficient": 1}
assert torch.isfinite(half.grad).all()
"""


@pytest.mark.slow
def test_the_fake_gpu_is_one(fake):
    """Its values are right, it mixes no devices, and it counts what it says."""
    code = f"import sys; sys.path.insert(0, {str(fake)!r})\n{OF_A_GPU}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.returncode == 0, done.stderr


def train_on_fake(fake, data, save, *flags):
    """What fairseq-train prints there."""
    words = [x for x in TRAIN if x != "--cpu"]
    command = [sys.executable, fake, "fairseq-train", data, "--user-dir", USER_DIR]
    done = subprocess.run(
        [*map(str, command), *words, "--save-dir", str(save), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.slow
def test_an_overflow_in_fp16_costs_one_update_and_bleu_is_computed(fake, data_bin, tmp_path):
    """With this package's criterion, task and optimizer."""
    output = train_on_fake(
        *(fake, data_bin, tmp_path, "--fp16", "--fp16-init-scale", str(2**22)),
        *("--criterion", "chunked_label_smoothed_cross_entropy", "--optimizer", "fused_adam"),
        *("--task", "macaron_translation", "--eval-bleu", "--eval-bleu-args", '{"beam": 2}'),
        *("--max-update", "3"),
    )
    skipped = output.count("gradient overflow detected, ignoring gradient")
    assert skipped >= 1
    assert all(x[0] == x[0] for x in logged(output).values())  # no NaN
    assert '"valid_bleu"' in output


def short_of_memory(fake, mib, name, *words):
    """What a command says that ends for want of memory."""
    done = subprocess.run(
        [sys.executable, fake, name, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env={**os.environ, "FAKEGPU_MIB": str(mib)},
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    return done.stderr


@pytest.mark.slow
def test_out_of_memory_in_generation(fake):
    """With memory for the weights and little more."""
    words = [STORED, "-s", "src", "-t", "tgt", "--user-dir", USER_DIR, "--buffer-size", "9"]
    words += ["--path", STORED / "checkpoint.pt", "--input", STORED / "input.src", "--beam", "20"]
    said = short_of_memory(fake, 0.3, "fairseq-interactive", *words)
    assert said.strip().splitlines()[-1] == batches.SEARCH


@pytest.mark.slow
def test_another_optimizer_on_the_fake_gpu(fake, data_bin, tmp_path):
    output = train_on_fake(
        *(fake, data_bin, tmp_path, "--bf16", "--optimizer", "nag", "--momentum", "0.9"),
        *("--max-update", "2"),
    )
    assert len(logged(output)) == 2
