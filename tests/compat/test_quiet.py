"""What importing the package says, loads and leaves behind, each in a process of its own."""

import subprocess
import sys

import pytest
from helpers.paths import ROOT

WITHOUT_TENSORBOARDX = "import sys; sys.modules['tensorboardX'] = None; "


def run_python(code):
    """What a program writes to stdout and to stderr."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.slow
def test_fairseq_asks_for_a_package_and_sets_up_logging():
    """The fault of fairseq's that `compat.quiet` is for."""
    out, err = run_python(
        WITHOUT_TENSORBOARDX + "import logging, fairseq; print(logging.getLogger().level)"
    )
    assert "Please install tensorboardX" in err and out != "30\n"  # WARNING, Python's own


@pytest.mark.slow
def test_importing_the_plugin_is_quiet_and_leaves_logging_alone():
    state = "[logging.getLogger().level, [*logging.getLogger().handlers]]"
    out, err = run_python(
        WITHOUT_TENSORBOARDX + f"import logging; before = {state}; import macaron_fairseq.plugin; "
        f"print(before == {state}, logging.getLogger('fairseq.tasks.text_to_speech').filters); "
        # What training does not need, and takes a second to import.
        "print([x for x in sys.modules if x.startswith(('sacremoses', 'subword_nmt', "
        "'macaron_fairseq.evaluation', 'macaron_fairseq.translation', 'macaron_fairseq.text.')) "
        "and x != 'macaron_fairseq.text.marks']); "
        "logging.getLogger('fairseq').warning('a warning')"
    )
    assert (out, err) == ("True []\n[]\n", "a warning\n")


@pytest.mark.slow
def test_other_messages_of_fairseqs_import_are_shown():
    """To whoever has asked for messages of that level."""
    code = """
import logging
logging.basicConfig(level=logging.INFO, format="%(message)s")
from macaron_fairseq.compat import quiet
logger = logging.getLogger(quiet.ASKS)
seen = []
def import_module(name):
    logger.info("Please install tensorboardX: pip install tensorboardX")
    logger.info("something else")
quiet.import_module = import_module
quiet.import_fairseq()
"""
    assert run_python(code) == ("", "something else\n")


WITHOUT_FAIRSEQ = [
    *("cli", "api", "schemes.formulas", "schemes.splitting", "schemes.substeps"),
    *(f"commands.{name}" for name in ("manifest", "report", "score", "tokenize")),
    *("analysis.measures", "analysis.particles.run", "translation.ctranslate2_engine"),
    *("evaluation.scores.scoring", "evaluation.report.report"),
]


def test_what_needs_no_fairseq_imports_neither_it_nor_pytorch():
    """In one process: what none of them imports, each does not import."""
    code = f"""
import importlib, sys
import macaron_fairseq
from macaron_fairseq import PassUserDir, UserError
assert "load" in dir(macaron_fairseq)
for name in {WITHOUT_FAIRSEQ}:
    importlib.import_module("macaron_fairseq." + name)
    print(name, *(x for x in ("torch", "fairseq") if x in sys.modules))
from macaron_fairseq.schemes import substeps
assert substeps.get("midpoint").slope(lambda x: -x, 1.0, 0.5, None) == -0.75
print("computed", *(x for x in ("torch", "fairseq") if x in sys.modules))
"""
    out, err = run_python(code)
    assert (out.splitlines(), err) == ([*WITHOUT_FAIRSEQ, "computed"], "")
