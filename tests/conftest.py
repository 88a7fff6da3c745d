"""The fixtures that several test modules share, and how pytest runs. Functions are in helpers/."""

import contextlib
import gc
import os
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import pictures, served
from helpers.toy_corpus import logged, preprocess, train, write_reversal

# Of PyTorch and fairseq nothing is imported here: that takes seconds, and the process of
# pytest-xdist that hands out the tests runs none.

# Tests run at the same time: with more threads they, and what they start, wait for one another.
os.environ["OMP_NUM_THREADS"] = "1"
# Recipes look for the commands of this environment, which may not be activated.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

# Whatever uses one of these trains, or waits for fairseq's commands or a browser.
SLOW_FIXTURES = {"data_bin", "training", "trained", "browser"}


def pytest_configure(config):
    """The processes of pytest-xdist inherit the environment, and with it one server of commands."""
    if hands_out_tests(config):
        served.start()


@pytest.hookimpl(trylast=True)  # once pytest-cov is watching
def pytest_sessionstart(session):
    """Where tests run, fairseq knows the package."""
    if not hands_out_tests(session.config):
        with warnings.catch_warnings():
            # PyTorch's of its functions that fairseq calls, and Python's of fairseq's strings.
            old = r"`torch\.jit\.\w+` is deprecated"
            warnings.filterwarnings("ignore", old, DeprecationWarning)
            warnings.filterwarnings("ignore", category=SyntaxWarning, module=".*/site-packages/")
            import fairseq

            import macaron_fairseq.plugin

        assert fairseq and macaron_fairseq.plugin


def hands_out_tests(config):
    """Whether this process runs no test, but has others of pytest-xdist run them."""
    return config.getoption("numprocesses", None) and not hasattr(config, "workerinput")


def pytest_collection_modifyitems(items):
    for item in items:
        if SLOW_FIXTURES.intersection(item.fixturenames):
            item.add_marker("slow")
    # Or at the end all processes would wait for one of them.
    items.sort(key=lambda item: item.get_closest_marker("longest") is None)


def pytest_collection_finish():
    """Garbage is looked for rarely, and not in the half million objects that are there by now."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session")
def data_bin(tmp_path_factory):
    """A preprocessed toy corpus, in a folder whose name has a space."""
    folder = tmp_path_factory.mktemp("a corpus")
    write_reversal(folder, train=200, valid=20, test=20)
    return preprocess(folder)


@pytest.fixture(scope="session")
def training(data_bin, tmp_path_factory):
    """A short training: two epochs and a checkpoint at every fourth update; and what it logged."""
    folder = tmp_path_factory.mktemp("trained")
    done = train(data_bin, folder, "--max-epoch", "2", "--save-interval-updates", "4")
    return SimpleNamespace(folder=folder, logged=logged(done.stdout))


@pytest.fixture(scope="session")
def trained(training):
    """Its save folder."""
    return training.folder


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium; the test skips where there is none."""
    from helpers.browser import chromium

    with chromium() as found:
        yield found


@pytest.fixture
def drawn():
    """For a test of pictures in a module that has them undrawn."""


@pytest.fixture
def undrawn(request):
    """Pictures are put together and not drawn, which takes most of the time of what shows some."""
    with contextlib.nullcontext() if "drawn" in request.fixturenames else pictures.undrawn():
        yield


@pytest.fixture
def one_process(tmp_path_factory):
    """This process is a group of processes, as where several train."""
    import torch

    store = torch.distributed.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def small_chunks(request, monkeypatch):
    """Losses in chunks of five rows, of the module's TYPES or the 64 of the test models."""
    from macaron_fairseq.fast import chunked_loss

    types = getattr(request.module, "TYPES", 64)
    monkeypatch.setattr(chunked_loss, "CHUNK_ELEMENTS_CPU", 5 * types + 1)


@pytest.fixture
def onednn(monkeypatch):
    """oneDNN multiplies whatever this processor is, and however small the matrices."""
    from macaron_fairseq.fast import linear

    if not linear.is_known_here():
        pytest.skip("this PyTorch has no such operator of oneDNN")
    monkeypatch.setattr(linear, "is_faster", lambda: True)
    monkeypatch.setattr(linear, "computes_512_bits", lambda: True)
    for least in ("WEIGHTS", "PRODUCT", "WIDTH", "ROWS"):
        monkeypatch.setattr(linear, f"LEAST_{least}", 1)
    monkeypatch.setattr(linear, "LARGE_PRODUCT", 1)
    multiply, calls = linear.multiply, []
    monkeypatch.setattr(linear, "multiply", lambda *args: calls.append(args) or multiply(*args))
    return calls
