"""`benchmarks/gpu_check.py`, and training under the fake GPU; gpus' flags are in test_gpus.py."""

import json
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, TRAIN, USER_DIR, logged

BENCHMARKS = ROOT / "benchmarks"
FAKE = ROOT / "tests" / "fakegpu"
TIMEOUT = 600


@pytest.fixture(autouse=True)
def on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
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
    """The table's rows, the status and what else was said."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "gpu_check.py", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        cwd=ROOT,
    )
    lines = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]
    return {name: rest for name, *rest in lines}, done.returncode, done.stderr


# --- the checks ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_checks_on_a_cpu(tmp_path):
    """The code that runs on a GPU, and that each check can fail."""
    names = ["gradients", "masks", "dropout", "resume", "decoding", "syncs"]
    rows, status, said = check(
        "--device", "cpu", "--checks", *names, "--json", tmp_path / "found.json"
    )
    assert status == 0, said
    assert list(rows) == names
    assert rows.pop("syncs")[0] == "not run"
    assert all(row[:2] == ["pass", "fails"] for row in rows.values()), rows
    written = json.loads((tmp_path / "found.json").read_text())
    assert {"device", "torch", "date", "cpu"} <= written["machine"].keys()
    found = {x["name"]: x["figures"] for x in written["checks"]}
    assert max(found["gradients"]["errors"]["fp32"].values()) < 5e-6
    assert found["resume"]["fp32 adam"] == found["resume"]["bf16 fused_adam"] == 0


@pytest.mark.slow
def test_the_checks_on_the_fake_gpu(fake):
    """Syncs, kernels and the attention of an update are those that were recorded, or fewer."""
    rows, status, said = check("--device", "fake", "--checks", "syncs", "search", "masks")
    assert status == 0, said
    assert all(row[:2] == ["pass", "fails"] for row in rows.values()), rows


@pytest.mark.slow
def test_what_there_is_no_time_for_is_said():
    rows, status, _ = check("--device", "cpu", "--checks", "masks", "--minutes", "-1")
    assert status == 0 and rows["masks"][0] == "not run"
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
    assert checks.run("blind", blind, device, has_control=False).result == "pass"
    table = checks.table(rows).splitlines()
    assert table[2] == "| good | pass | fails | 0 | well |"


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


@pytest.mark.slow
def test_another_optimizer_on_the_fake_gpu(fake, data_bin, tmp_path):
    output = train_on_fake(
        *(fake, data_bin, tmp_path, "--bf16", "--optimizer", "nag", "--momentum", "0.9"),
        *("--max-update", "2"),
    )
    assert len(logged(output)) == 2
