"""`--user-dir`: the import leaves the process as it was, wherever the folder is and however often.

fairseq imports a user directory in every command and every process that it starts.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT, USER_DIR
from helpers.processes import run

from macaron_fairseq.schemes.splitting import SCHEMES

# --- what the import changes ---------------------------------------------------------------------

SEED = """
import fairseq, random, numpy, torch
random.seed(1), numpy.random.seed(1), torch.manual_seed(1)
"""
STATE = """
import decimal, gc, json, locale, logging, os, signal, sys, threading, warnings

root = logging.getLogger()
handled = [s for s in signal.valid_signals() if s not in (signal.SIGKILL, signal.SIGSTOP)]
state = {
    "sys.path": sys.path,
    "sys.argv": sys.argv,
    "hooks": [repr(sys.excepthook), repr(sys.displayhook), repr(threading.excepthook)],
    "streams": [type(stream).__name__ for stream in (sys.stdin, sys.stdout, sys.stderr)],
    "meta_path": [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path],
    "recursion limit": sys.getrecursionlimit(),
    "gc": [gc.isenabled(), gc.get_threshold()],
    "signals": [str(signal.getsignal(s)) for s in sorted(handled)],
    "threads": threading.active_count(),
    "environment": dict(os.environ),
    "folder": os.getcwd(),
    "umask": os.umask(0o22),
    "locale": locale.setlocale(locale.LC_ALL),
    "decimal": str(decimal.getcontext()),
    "logging": [root.level, [repr(h) for h in root.handlers], logging.root.manager.disable],
    "fairseq's loggers": [
        [name, logger.level, len(logger.handlers), logger.propagate]
        for name, logger in sorted(root.manager.loggerDict.items())
        if name.split(".")[0] == "fairseq" and isinstance(logger, logging.Logger)
    ],
    "warnings": [repr(f) for f in warnings.filters] + [repr(warnings.showwarning)[:20]],
    "numpy": [numpy.geterr(), repr(numpy.get_printoptions())],
    "random numbers": [random.random(), numpy.random.random(), torch.rand(1).item()],
    "torch": [
        str(value)
        for value in (
            torch.get_num_threads(),
            torch.get_num_interop_threads(),
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.is_grad_enabled(),
            torch.is_anomaly_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
            torch.backends.cuda.matmul.allow_tf32,
            torch.cuda.is_initialized(),
            torch.multiprocessing.get_start_method(allow_none=True),
            torch.multiprocessing.get_sharing_strategy(),
            torch.load.__module__,
            torch.save.__module__,
        )
    ],
}
"""
REGISTRIES = """
import torch
from fairseq import criterions, models, optim, tasks
from fairseq.data import encoders

allowed = torch.serialization.get_safe_globals()
registries = {
    "allowed in checkpoints": [x[1] if isinstance(x, tuple) else x.__name__ for x in allowed],
    "models": sorted(models.MODEL_REGISTRY),
    "architectures": sorted(models.ARCH_MODEL_REGISTRY),
    "tasks": sorted(tasks.TASK_REGISTRY),
    "criterions": sorted(criterions.CRITERION_REGISTRY),
    "optimizers": sorted(optim.OPTIMIZER_REGISTRY),
    "tokenizers": sorted(encoders.TOKENIZER_REGISTRY),
}
"""
PRINT = "json.dump([state, registries], open(sys.argv[1], 'w'))"


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """What a process printed and how it was, after importing fairseq and after the plugin."""
    folder = tmp_path_factory.mktemp("imported")
    result = {}
    for module in ("fairseq", "macaron_fairseq.plugin"):
        program = f"{SEED}import {module}\n{STATE}{REGISTRIES}{PRINT}"
        done = subprocess.run(
            [sys.executable, "-c", program, "state.json"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        state, registries = json.loads((folder / "state.json").read_text())
        result[module] = {
            "stdout": done.stdout,
            "stderr": done.stderr,
            "state": state,
            "registries": registries,
        }
    return result["fairseq"], result["macaron_fairseq.plugin"]


@pytest.mark.slow
def test_the_import_prints_nothing(imported):
    host, plugin = imported
    assert plugin["stdout"] == host["stdout"] == ""
    assert plugin["stderr"] == host["stderr"]  # fairseq's own


@pytest.mark.slow
def test_the_import_changes_no_state_of_the_process(imported):
    host, plugin = imported
    assert len(host["state"]) > 15
    assert plugin["state"] == host["state"]


@pytest.mark.slow
def test_the_import_registers_its_model_and_architectures_and_nothing_else(imported):
    host, plugin = imported
    added = {
        name: set(names) - set(host["registries"][name])
        for name, names in plugin["registries"].items()
    }
    assert added.pop("models") == {
        *("macaron_transformer", "transformer_pre_norm", "macaron_roberta", "roberta_pre_norm"),
        *("macaron_transformer_lm", "transformer_lm_pre_norm", "released_bert"),
    }
    architectures = added.pop("architectures")
    assert {"macaron_transformer", "macaron_transformer_tiny", "transformer_pre_norm"} < {
        *architectures
    }
    authors = {name for name in architectures if name.startswith("transformer_bert_")}
    authors |= {"transformer_classifier_base", "transformer_classifier_L6_A12"}
    others = architectures - authors
    assert all("macaron" in name or name.endswith("_pre_norm") for name in others)
    chunked = "chunked_label_smoothed_cross_entropy"
    assert added.pop("criterions") == {
        *(chunked, f"{chunked}_with_rdrop", "distilled_label_smoothed_cross_entropy"),
        *("chunked_masked_lm", "cross_vocabulary_label_smoothed_cross_entropy"),
    }
    assert added.pop("tasks") == {"macaron_translation"}
    assert added.pop("allowed in checkpoints") == {
        *("argparse.Namespace", "PassUserDir", "AverageMeter", "TimeMeter", "StopwatchMeter"),
        *(f"fairseq.meters.{name}Meter" for name in ("Average", "Time", "Stopwatch")),
        *("dict", "list", "int", "defaultdict", "typing.Any", "DictConfig", "ListConfig"),
        *("AnyNode", "ContainerMetadata", "Metadata", "_TensorPlaceholder"),
        *(
            f"numpy.{core}.multiarray.{name}"
            for core in ("core", "_core")
            for name in ("scalar", "_reconstruct")
        ),
        *("ndarray", "dtype", "Float32DType", "Float64DType", "Int64DType"),
    }
    assert added == {"optimizers": {"fused_adam"}, "tokenizers": set()}
    for name, names in host["registries"].items():
        assert set(names) <= set(plugin["registries"][name])


LATE = """
import sys
import macaron_fairseq
assert not {"torch", "fairseq"} & sys.modules.keys()
from macaron_fairseq import MacaronTransformerModel
from fairseq.models import ARCH_MODEL_REGISTRY
assert ARCH_MODEL_REGISTRY["macaron_transformer_tiny"] is MacaronTransformerModel
try:
    macaron_fairseq.nothing
except AttributeError as error:
    print(error)
"""


@pytest.mark.slow
def test_whoever_asks_for_the_models_class_has_it_registered(tmp_path):
    """Whatever the program is called."""
    program = tmp_path / "fairseq-train"
    program.write_text(LATE)
    done = run("python", program, PYTHONPATH=str(ROOT))
    assert done.stdout.splitlines()[-1] == "module 'macaron_fairseq' has no attribute 'nothing'"


# --- where the folder is -------------------------------------------------------------------------


def schemes(user_dir, **kwargs):
    """What the plugin that fairseq-train imports calls the schemes, when it refuses another."""
    flags = ["--arch", "macaron_transformer_tiny", "--macaron-scheme", "9"]
    done = run("fairseq-train", *flags, "data", "--user-dir", user_dir, check=False, **kwargs)
    assert done.returncode == 1
    refusal = "unknown splitting scheme '9': --macaron-scheme takes "
    assert done.stdout.splitlines()[-1].startswith(refusal), done.stdout
    return re.split(", | or ", done.stdout.splitlines()[-1].removeprefix(refusal))


def copy_of_the_plugin(folder):
    """A copy that can be told from the original: it has one more scheme, "copied"."""
    copy = folder / "macaron_fairseq"
    shutil.copytree(USER_DIR, copy, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "schemes" / "splitting.py").open("a") as file:
        file.write('\nSCHEMES["copied"] = SCHEMES[DEFAULT]\n')
    return copy


@pytest.mark.slow
def test_a_relative_path_from_another_folder(tmp_path):
    relative = os.path.relpath(USER_DIR, tmp_path)
    assert relative.startswith("..")
    assert schemes(relative, cwd=tmp_path) == [*SCHEMES]


@pytest.mark.slow
def test_a_trailing_slash_and_spaces_in_the_path(tmp_path):
    copy = copy_of_the_plugin(tmp_path / "a folder with spaces")
    assert "copied" in schemes(f"{copy}/", cwd=tmp_path)


@pytest.mark.slow
def test_the_checkout_beside_an_installed_copy(tmp_path):
    """The folder that --user-dir names is the one that is used, once."""
    copy_of_the_plugin(tmp_path)
    assert "copied" not in schemes(USER_DIR, PYTHONPATH=str(tmp_path))


@pytest.mark.slow
def test_an_installed_copy_is_used_as_the_user_dir_that_it_names(tmp_path):
    """As in --user-dir "$(macaron-fairseq user-dir)"."""
    copy = copy_of_the_plugin(tmp_path)
    environment = {"PYTHONPATH": str(tmp_path), "cwd": tmp_path.parent}
    done = run("python", "-m", "macaron_fairseq", "user-dir", **environment)
    user_dir = done.stdout.splitlines()[-1]
    assert Path(user_dir).samefile(copy)
    assert "copied" in schemes(user_dir, **environment)


# --- how often it is imported --------------------------------------------------------------------

TWICE = """
import importlib, importlib.util, sys
from argparse import Namespace
from pathlib import Path
from fairseq import models, options, utils

user_dir = sys.argv[1]
utils.import_user_module(Namespace(user_dir=user_dir))
utils.import_user_module(Namespace(user_dir=user_dir))
utils.import_user_module(Namespace(user_dir=user_dir + "/"))
model = models.MODEL_REGISTRY["macaron_transformer"]
architectures = list(models.ARCH_MODEL_REGISTRY.items())
listed = {name: list(names) for name, names in models.ARCH_MODEL_INV_REGISTRY.items()}

def check():
    assert models.MODEL_REGISTRY["macaron_transformer"] is model
    assert list(models.ARCH_MODEL_REGISTRY.items()) == architectures
    assert models.ARCH_MODEL_INV_REGISTRY == listed
    assert len(set(listed["macaron_transformer"])) == len(listed["macaron_transformer"]) > 5
    arguments = ["data", "--arch", "macaron_transformer_tiny", "--encoder-layers", "3"]
    parsed = options.parse_args_and_arch(options.get_training_parser(), input_args=arguments)
    assert (parsed.encoder_layers, parsed.macaron_scheme) == (3, "strang-marchuk")

check()
for name in ("schemes.splitting", "model.architectures", "model.transformer", "plugin"):
    importlib.reload(importlib.import_module(f"macaron_fairseq.{name}"))
importlib.reload(sys.modules["macaron_fairseq"])
check()

init = Path(user_dir, "__init__.py")
spec = importlib.util.spec_from_file_location("again", init, submodule_search_locations=[user_dir])
sys.modules["again"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["again"])
check()

for name in [name for name in sys.modules if name.split(".")[0] == "macaron_fairseq"]:
    del sys.modules[name]
importlib.import_module("macaron_fairseq")
check()
print("registered once")
"""


@pytest.mark.slow
def test_a_second_import_keeps_one_registration(tmp_path):
    """As does a reload, an import under another name, and one after the module was forgotten."""
    done = run("python", "-c", TWICE, USER_DIR, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "registered once"


SPAWN = """
import sys
from argparse import Namespace

def work(rank, user_dir, folder):
    assert "macaron_fairseq" not in sys.modules
    from fairseq import models, utils
    utils.import_user_module(Namespace(user_dir=user_dir))
    with open(f"{folder}/{rank}", "w") as file:
        file.write(" ".join(models.ARCH_MODEL_INV_REGISTRY["macaron_transformer"]))

if __name__ == "__main__":
    import torch.multiprocessing
    from fairseq import utils
    utils.import_user_module(Namespace(user_dir=sys.argv[2]))
    torch.multiprocessing.spawn(work, args=sys.argv[2:4], nprocs=1)
"""


@pytest.mark.slow
def test_spawned_workers_import_it_too(tmp_path):
    """As fairseq does for one process for each GPU; the script is named like its command."""
    script, results = tmp_path / "fairseq-train", tmp_path / "results"
    script.write_text(SPAWN)
    results.mkdir()
    run("python", script, "--dropout", USER_DIR, results, cwd=tmp_path)  # no check knows it
    (path,) = results.iterdir()
    assert "macaron_transformer_tiny" in path.read_text().split()
