"""The documentation: its commands run, its links lead somewhere, its sentences are short.

Code blocks of `docs/` run in the order of their page, unless a comment above says why not:

    <!-- not run: hours -->

Those, and all blocks of other pages, are read by the parsers of the commands that they name.
"""

import argparse
import ast
import contextlib
import importlib.util
import io
import itertools
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import layer
import pytest
from common import options as recipe_options
from fairseq import options as fairseq_options
from helpers import commands, prose, recipes, run_folders, served
from helpers.paths import ROOT, USER_DIR
from helpers.toy_corpus import train
from scipy import stats

from macaron_fairseq import cli
from macaron_fairseq.evaluation.training import manifest

DOCS = ROOT / "docs"
OTHERS = [ROOT / x for x in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")]
OTHERS += [ROOT / "examples/README.md", *ROOT.glob("examples/*/README.md")]
PAGES = sorted(DOCS.rglob("*.md")) + OTHERS
PROSE = [*PAGES, ROOT / "CHANGELOG.md"]
# Bytes of JSON in git, outside tests/fixtures: of pages, of single runs of about 1,000 each, and of
# distillation's runs. These have their translations, 25,000 for 1,000 sentences.
MOST_JSON, MOST_RUNS, MOST_TRANSLATED = 300_000, 500_000, 1_600_000

BLOCK = re.compile(r"^( *)(```+)(\w+)\n(.*?)^\1\2 *$", re.M | re.S)
NOT_RUN = re.compile(r"<!-- not run: .+ -->\s*\Z")


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    language: str
    code: str
    is_run: bool


def reference_pages():
    """The extension of Sphinx that writes tables from the code."""
    spec = importlib.util.spec_from_file_location("_", DOCS / "_sphinx/reference_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(page):
    text = page.read_text("utf-8")
    return [
        Block(
            found[3],
            re.sub(f"^{found[1]}", "", found[4], flags=re.M),
            page.is_relative_to(DOCS) and not NOT_RUN.search(text[: found.start()]),
        )
        for found in BLOCK.finditer(text)
    ]


def name(page):
    return str(page.relative_to(ROOT))


# --- sentences, links, records -------------------------------------------------------------------


@pytest.mark.parametrize("page", PROSE, ids=name)
def test_sentences_are_short(page):
    """18 words on average, 25 at most, but for one exception of 30."""
    lengths = {x: prose.count(x) for x in prose.sentences(page.read_text("utf-8"))}
    too_long = [x for x, words in lengths.items() if words > 25]
    assert len(too_long) <= 1, too_long
    assert all(words <= 30 for words in lengths.values()), too_long
    assert sum(lengths.values()) <= 18 * len(lengths)


PROGRAMS = [
    path
    for folder in ("macaron_fairseq", "examples", "benchmarks", "docs")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
# Each has a plainer word: the same, next to or with, training runs, available, from where, its own.
AVOIDED = re.compile(r"\b(alike|besides?|trainings|at hand|whence|of (its|their) own)\b", re.I)


def test_sentences_of_programs_are_short():
    """Those of docstrings, help and messages: 25 words at most."""
    found = [
        (name(path), sentence)
        for path in PROGRAMS
        for sentence in prose.of_python(path.read_text("utf-8"))
        if prose.count(sentence) > 25
    ]
    assert found == []


def test_words_that_have_a_plainer_one_are_avoided():
    texts = [(path, prose.sentences(path.read_text("utf-8"))) for path in PROSE]
    texts += [(path, prose.of_python(path.read_text("utf-8"))) for path in PROGRAMS]
    found = [(name(path), x) for path, all_ in texts for x in all_ if AVOIDED.search(x)]
    assert found == []


def anchors(page):
    """What links may name: headings, as GitHub spells them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*OTHERS, ROOT / "CHANGELOG.md"], ids=name)
def test_links_lead_somewhere(page):
    """Those of docs/ are Sphinx's business."""
    text = page.read_text("utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", text):
        path, _, anchor = "".join(target).partition("#")
        if "://" in path:
            continue
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def test_the_pictures_are_what_the_script_draws():
    """The formulas in them are those of `describe`."""
    for file, theme in layer.THEMES.items():
        assert (DOCS / "pictures" / file).read_text("utf-8") == layer.draw(theme)


def test_records_are_few():
    files = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "*.json"], capture_output=True, text=True
    )
    if files.returncode:
        pytest.skip("not a git checkout")
    kept = [x for x in files.stdout.split("\0") if x and not x.startswith("tests/fixtures/")]
    sizes = {x: (ROOT / x).stat().st_size for x in kept if (ROOT / x).exists()}
    records = "docs/results/records/"
    translated = sum(size for x, size in sizes.items() if x.startswith(f"{records}distillation/"))
    runs = sum(size for x, size in sizes.items() if x.startswith(records)) - translated
    assert translated <= MOST_TRANSLATED and runs <= MOST_RUNS
    assert sum(sizes.values()) - runs - translated <= MOST_JSON


# An argument of each command that has any, by the section of the page of commands.
ARGUMENTS = {
    **{"demo": "--page", "tokenize": "--steps", "manifest": "--data", "suggest-batch": "--least"},
    **{"average": "--best", "score": "--metric", "translate": "--engine", "distill": "--best-of"},
    **{"phrases": "--spacy", "export": "--quantization", "report": "--baseline"},
    **{"describe": "--types", "order": "--substep", "dynamics": "--jacobian"},
    **{"particles-phase": "--betas", "completion": "{bash,zsh,tcsh}"},
}


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    from sphinx.cmd.build import main

    strict = ["-E", "-n", "-W", "--keep-going", "-q"]
    assert main([*strict, "-d", str(tmp_path / "trees"), str(DOCS), str(tmp_path / "site")]) == 0
    page = (tmp_path / "site/reference/architectures.html").read_text("utf-8")
    assert "½G₁ · F · ½G₂" in page  # written from the code
    assert "--macaron-substep" in (tmp_path / "site/reference/arguments.html").read_text("utf-8")
    page = (tmp_path / "site/reference/commands.html").read_text("utf-8")
    sections = dict(re.findall(r'<section id="([\w-]+)">(.*?)(?=<section|</article>)', page, re.S))
    row = r'<tr [^>]*><td><p><code [^>]*><span class="pre">([^<]+)</span>'
    found = {name: re.findall(row, section) for name, section in sections.items()}
    assert {*cli.COMMANDS} - {*ARGUMENTS} == {"particles", "user-dir"}
    assert [name for name, word in ARGUMENTS.items() if word not in found[name]] == []


# --- commands that are read ----------------------------------------------------------------------

RECORDED = (
    *("macaron-fairseq", "fairseq-train", "fairseq-generate", "fairseq-preprocess"),
    *("fairseq-hydra-train", "subword-nmt", "make", "pip", "python", "python3", "pytest"),
    *("sbatch", "tensorboard", "sacrebleu", "pre-commit", "git", "perl", "tar", "sphinx-build"),
    "nvidia-cuda-mps-control",
)

WITH_OWN_PARSERS = {
    "examples/distillation/reproduce.sh": "distillation_recipe",
    "examples/glue/reproduce.sh": "glue_options",
    "examples/many-tasks/reproduce.sh": "many_tasks",
    "examples/language-modeling/reproduce.sh": "language_modeling",
}

# Writes down its words: how many, then each.
SHIM = """#!/bin/bash
printf '%s\\0' "$#" "$0" "$@" >> {record}
[[ ${{0##*/}} != macaron-fairseq || ${{1:-}} != user-dir ]] || echo {user_dir}
"""
# Begins what follows its flags.
SRUN = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
exec "$@"
"""
PARSERS = {
    "fairseq-train": fairseq_options.get_training_parser,
    "fairseq-generate": fairseq_options.get_generation_parser,
}


def commands_of(code, folder):
    """The words of each command in a block, from a shell in which no command does anything."""
    record = folder / "record"
    scripts = [*ROOT.glob("examples/*/*.sh")]
    shims = [folder / "bin" / x for x in RECORDED]
    for path in [*shims, *(folder / x.relative_to(ROOT) for x in scripts)]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SHIM.format(record=record, user_dir=USER_DIR))
        path.chmod(0o755)
    srun = folder / "bin/srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/activate").touch()
    for path in re.findall(r"<\s*([\w./-]+)", code):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    env = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-uc", f"{code}\nwait"], cwd=folder, env=env, capture_output=True, text=True
    )
    assert "command not found" not in done.stderr, done.stderr
    assert "unbound variable" not in done.stderr, done.stderr
    assert "syntax error" not in done.stderr, done.stderr
    words = record.read_text().split("\0")[:-1] if record.exists() else []
    found = []
    while words:
        end = int(words[0]) + 2
        found.append([words[1].removeprefix(f"{folder}/"), *words[2:end]])
        words = words[end:]
    return found


def check(command, words):
    """Fail unless the command knows these words."""
    command = command.removeprefix("bin/")
    words = [x for x in words if x != "..."]
    if command == "macaron-fairseq" and words[0].startswith("-"):
        assert words[0] in ("--help", "--version")
    elif command == "macaron-fairseq":
        assert words[0] in cli.COMMANDS, f"there is no command {words[0]}"
        parser = argparse.ArgumentParser(prog=words[0])
        module = f"macaron_fairseq.commands.{words[0].replace('-', '_')}"
        importlib.import_module(module).add_arguments(parser)
        parser.parse_args(words[1:])
    elif command == "fairseq-preprocess":
        fairseq_options.get_preprocessing_parser().parse_args(words)
    elif command in PARSERS:
        fairseq_options.parse_args_and_arch(PARSERS[command](), input_args=words)
    elif command == "examples/schemes/run.sh":
        own = words[: words.index("--")] if "--" in words else words
        args = importlib.import_module("schemes").parser().parse_args(own)
        read_recipe(ROOT / "examples" / args.recipe, words[len(own) + 1 :])
    elif command in WITH_OWN_PARSERS:
        parser = importlib.import_module(WITH_OWN_PARSERS[command]).parser()
        own = words[: words.index("--")] if "--" in words else words
        parser.parse_intermixed_args(own)
    elif command.startswith("examples/"):
        read_recipe(ROOT / Path(command).parent, words)
    elif command == "sbatch":
        script = next(x for x in words if x.endswith(".sbatch"))
        read_recipe((ROOT / script).parent, ["train", *words[words.index(script) + 1 :]])
    elif command == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert {*words} <= {*targets}, targets
    elif command == "pip":
        extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.M)
        asked = [x for word in words for x in re.findall(r"^\.\[([\w,]+)\]$", word)]
        assert all({*x.split(",")} <= {*extras} for x in asked), asked
    elif command in ("python", "python3") and words[0].endswith(".py"):
        if (ROOT / words[0]).is_relative_to(ROOT / "benchmarks"):
            known = "".join(x.read_text("utf-8") for x in (ROOT / "benchmarks").rglob("*.py"))
            flags = [x for x in words if re.fullmatch("--[a-z-]+", x)]
            assert all(f'"{x}"' in known or f'"{x[2:]}"' in known for x in flags), flags
        assert (ROOT / words[0]).exists()
    elif command == "pytest":
        assert all((ROOT / x).exists() for x in words if x.startswith("tests/"))


def read_recipe(folder, words):
    """A recipe's options, as it reads them."""
    if {"-h", "--help"} & {*words}:
        return
    words = [*words]
    if "--from" in words:  # a folder that is there
        words[words.index("--from") + 1] = str(folder)
    recipe_options.read(folder / "benchmark.yaml", folder.name, "", words)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_are_known(page, tmp_path):
    for number, block in enumerate(blocks(page)):
        if block.language == "python":
            check_imports(ast.parse(block.code))
        elif block.language == "json":
            json.loads(block.code)
        elif block.language == "sh":
            for command, *words in commands_of(block.code, tmp_path / str(number)):
                said = io.StringIO()
                with contextlib.redirect_stderr(said):
                    try:
                        check(command, words)
                    except (SystemExit, AssertionError) as error:
                        pytest.fail(f"{command} {' '.join(words)}: {error} {said.getvalue()}")


def check_imports(program):
    """Fail unless there is what the program takes of this package."""
    for node in ast.walk(program):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("macaron_fairseq"):
            module = importlib.import_module(node.module)
            for name in node.names:
                submodule = f"{node.module}.{name.name}"
                assert hasattr(module, name.name) or importlib.util.find_spec(submodule), submodule


# --- blocks that run -----------------------------------------------------------------------------

# Fewer updates than a reader's; what translates is better than chance after them.
SHORTER = {"--max-update 2000 --save-dir": "--max-update 4 --save-dir"}
SHORTER |= {"--max-update 2000": "--max-update 20", "--warmup-updates 1000": "--warmup-updates 10"}
# Of fewer tokens each.
SHORTER |= {"--max-tokens 8192": "--max-tokens 1024", "--max-tokens 4096": "--max-tokens 1024"}
SMALL = "--encoder-layers 1 --decoder-layers 1"
FEW = f"--max-update 20 --batch 512 --seeds 1 --cpu -- --warmup-updates 10 {SMALL}"
SHORTER |= {"--setting tiny --cpu": f"--setting tiny {FEW}"}
SHORTER |= {"learn-bpe -s 10000": "learn-bpe -s 200"}
# What has hardly learnt ends its translations nowhere.
SHORTER |= {"--beam 5 --post-process": "--beam 2 --max-len-b 10 --post-process"}
# With one seed each.
SHORTER |= {"for seed in 1 2; do": "for seed in 1; do"}
# And fewer sentences, of which each takes seconds.
SHORTER |= {"--sentences 20 ": "--sentences 2 --jacobian-sentences 1 "}
SHORTER |= {"--sentences 8": "--sentences 2 --jacobian-sentences 1"}
SHORTER |= {'"runs/quickstart/data", text)': '"runs/quickstart/data", text, jacobian_sentences=1)'}
SHORTER |= {"--sentences 4 --jacobian-sentences 2": "--sentences 2 --jacobian-sentences 1"}


# The pages that tests run, in the order in which one needs what another has made.
OF_FAIRSEQ = [
    f"howto/{x}.md"
    for x in ("fairseq-commands", "language-models", "hydra", "tracking", "several-gpus")
] + ["howto/reproduce-a-table.md"]
OWN_DATA = "howto/own-data.md"
AFTER_IT = ["tutorial.md", "howto/translate.md", "howto/serve-with-ctranslate2.md"]
WITH_PANDAS = ["howto/look-inside.md", "reference/measures.md"]
OF_SCHEMES = ["howto/add-a-scheme.md", "reference/architectures.md"]
OF_TRAINED = [f"howto/{x}.md" for x in ("use-from-python", "read-a-report", "use-the-parts")]
RUN = [*OF_FAIRSEQ, OWN_DATA, *AFTER_IT, *WITH_PANDAS, *OF_SCHEMES, *OF_TRAINED]
RESULTS = ["gpu", "initialisation", "language-models", "multi30k", "rdrop", "schemes"]
RESULTS += ["schemes-quickstart"]


def run(page, folder):
    """Run the blocks of a page in order; those of Python are one program."""
    assert page in RUN
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1"}
    # Stand-ins for the commands, which have fairseq imported: that takes seconds each time.
    env["PATH"] = f"{served.folder()}:{Path(sys.executable).parent}:{env['PATH']}"
    runnable = [x for x in blocks(DOCS / page) if x.is_run and x.language in ("sh", "python")]
    python = ""
    for block, following in itertools.zip_longest(runnable, runnable[1:]):
        code = block.code
        for long, short in SHORTER.items():
            code = code.replace(long, short)
        if block.language == "python":
            python += code
            if following and following.language == "python":
                continue
            (folder / "program.py").write_text(python)
            done = commands.run_forked(str(folder / "program.py"), [], folder, env)
        elif "--dry-run" in code:
            script, *words = shlex.split(code.replace("\\\n", " "), comments=True)
            recipes.recipe(script.removeprefix("examples/"), *words)
            continue
        else:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", code],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=600,
            )
        assert done.returncode == 0, f"{page}:\n{code}\n{done.stdout[-3000:]}"


def corpus(folder, suffix=""):
    """A few English and German sentences in train, valid and test."""
    folder.mkdir(exist_ok=True)
    program = ROOT / "examples/quickstart/make_corpus.py"
    sizes = ["--train", "300", "--valid", "20", "--test", "20"]
    subprocess.run([sys.executable, program, folder, *sizes], check=True, stderr=subprocess.DEVNULL)
    for path in folder.glob("*.??"):
        path.rename(path.with_suffix(f"{suffix}{path.suffix}"))


@pytest.fixture
def workplace(tmp_path):
    """A folder in which a reader would stand."""
    for folder in ("examples", "docs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    return tmp_path


def test_tables_in_the_pages_are_those_of_the_code():
    module = reference_pages()
    pages = {path: path.read_text("utf-8") for path in DOCS.rglob("*.md")}
    old = [path.name for path, page in pages.items() if module.renewed(page) != page]
    assert old == [], "run: python docs/_sphinx/reference_pages.py"


@pytest.mark.slow
@pytest.mark.longest
def test_fairseqs_commands_run(workplace):
    corpus(workplace, ".raw")
    for page in OF_FAIRSEQ:
        run(page, workplace)


@pytest.mark.slow
@pytest.mark.longest
def test_the_tutorial_and_what_follows_it_run(workplace):
    corpus(workplace / "my-text")
    (workplace / "new.en").write_text("The conference began on Monday.\n")
    run(OWN_DATA, workplace)
    (workplace / "runs/quickstart").symlink_to("mine")
    for page in AFTER_IT:
        run(page, workplace)
    # The last one, for what of it needs more than `make setup` installs.
    pytest.importorskip("pandas", reason="pandas is not installed: the extra [notebook]")
    for page in WITH_PANDAS:
        run(page, workplace)


@pytest.mark.slow
def test_adding_a_scheme_runs(workplace):
    for page in OF_SCHEMES:
        run(page, workplace)


@pytest.mark.slow
def test_what_is_done_with_trained_models_runs(workplace):
    """On the models that come with the package, in folders as recipes leave them."""
    pytest.importorskip("pandas", reason="pandas is not installed: the extra [notebook]")
    demo, work = USER_DIR / "demo", workplace / "runs/quickstart"
    of_demo = manifest.describe(demo)["sha256"]
    for arch, model in {run_folders.BASE: "transformer", run_folders.MACARON: "macaron"}.items():
        folder = run_folders.make_run(work, arch, 1)
        (folder / "checkpoint_best.pt").symlink_to(demo / f"{model}.pt")
        run_folders.edit(folder / "manifest.json", lambda x: x["data"]["sha256"].update(of_demo))
    (work / "data").symlink_to(demo)
    run_folders.write_lines(work / "prepare/clean/train.de", ["Word1 Word2 ."])
    for page in OF_TRAINED:
        run(page, workplace)
    assert (workplace / "dynamics/dynamics.html").exists()
    assert (work / "report/report.html").exists()


@pytest.mark.parametrize("page", RESULTS)
def test_tables_of_results_are_what_the_program_below_them_prints(page, monkeypatch, capsys):
    """Rows of tables; of other lines, their figures as they are or in the rounding of the page."""
    monkeypatch.chdir(ROOT)
    path = DOCS / "results" / f"{page}.md"
    (program,) = (x.code for x in blocks(path) if x.language == "python")
    exec(program, {})
    text = " ".join(path.read_text("utf-8").replace("\N{MINUS SIGN}", "-").split())
    printed = capsys.readouterr().out.splitlines()
    assert printed
    for line in printed:
        if line.startswith("|"):
            assert line in text
            continue
        figures = re.findall(r"-?\b\d+(?:\.\d+)?", line)
        assert figures, line
        for figure in figures:
            rounded = f"{float(figure):.2f}" if "." in figure else figure
            shown = f"({re.escape(figure)}|{re.escape(rounded)})"
            assert re.search(rf"(?<![\d.-]){shown}(?!\d)", text), (figure, line)


QUICKSTARTS = [f"schemes-quickstart{x}" for x in ("", "-released", "-warmup")]


def quickstart_scores(file):
    """BLEU of each seed, of the baseline and of Macaron."""
    rows = json.loads((DOCS / f"results/{file}.json").read_text("utf-8"))["rows"]
    found = {row["variant"]: row["scores"]["test"]["BLEU"] for row in rows}
    return [found["baseline"], found["strang-marchuk"]]


def test_the_quickstarts_pages_say_what_the_records_hold():
    for file in QUICKSTARTS:
        scores = quickstart_scores(file)
        found = [f"{statistics.mean(x):.2f} ± {statistics.stdev(x):.2f}" for x in scores]
        differences = [b - a for a, b in zip(*scores, strict=True)]
        number = len(differences)
        error = statistics.stdev(differences) / number**0.5
        middle = statistics.mean(differences)
        low, high = stats.t.interval(0.95, number - 1, middle, error)
        found += [f"{middle:+.2f}", f"{low:.2f} to {high:.2f}"]
        for page in ("schemes-quickstart.md", "index.md"):
            text = " ".join((DOCS / "results" / page).read_text("utf-8").split())
            wanted = found if low > 0 or page != "index.md" else found[:2]
            assert all(x in text for x in wanted), (page, wanted)


def test_the_quickstarts_scores_are_those_of_the_records():
    scores = quickstart_scores("schemes-quickstart")
    ranges = [f"{min(x):.2f} to {max(x):.2f}" for x in scores]
    for page, wanted in (
        (DOCS / "tutorial.md", ranges),
        (DOCS / "results/schemes-quickstart.md", [f"{x:.2f}" for x in itertools.chain(*scores)]),
        (ROOT / "README.md", ranges),
    ):
        text = page.read_text("utf-8")
        assert [x for x in wanted if x not in text] == [], page


@pytest.mark.slow
def test_the_page_on_installing_names_the_warnings_of_a_training(data_bin, tmp_path):
    page = (DOCS / "howto/install.md").read_text("utf-8").partition("## Warnings")[2]
    known = [" ".join(x.split()) for x in re.findall(r"`([^`]+)`", page)]
    own = {"OMP_NUM_THREADS": "1"}  # with which it is a new process, where imports warn too
    printed = train(data_bin, tmp_path, "--max-update", "1", **own).stdout.replace("`", "")
    found = re.findall(r"(?:\w*Warning:|\| WARNING \|)\s+(.*)", printed)
    assert len(found) > 3 and [x for x in found if not any(y in x for y in known)] == []


def test_installing_names_every_extra():
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    extras = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    page = (DOCS / "howto/install.md").read_text("utf-8")
    known = re.findall(r"^(\w+) = \[", extras, re.M)
    assert "plots" in known and [x for x in known if f"`'.[{x}]'`" not in page] == []


def test_contributing_says_when_to_run_each_test():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert [x.name for x in ROOT.glob("tests/test_*.py") if f"tests/{x.name}" not in text] == []


def test_contributing_names_what_there_is_to_begin_in():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = text.partition("## Where to begin")[2].partition("\n## ")[0]
    paths = re.findall(r"`([\w/-]+(?:/|\.\w+))`", table)
    assert len(paths) > 15
    for path in {*paths} - {"benchmark.yaml", "reproduce.sh"}:
        assert (ROOT / path).exists() or (ROOT / "macaron_fairseq" / path).exists(), path
    names = re.findall(r"`([A-Z_]+)` in `([\w/]+\.py)`", table)
    assert len(names) > 5
    for name, path in names:
        assert re.search(rf"^{name}\b", (ROOT / "macaron_fairseq" / path).read_text("utf-8"), re.M)


def test_every_page_that_has_code_to_run_is_run():
    """Of results the tables alone: their commands draw from records of hours."""
    known = {DOCS / page for page in RUN} | {DOCS / f"results/{page}.md" for page in RESULTS}
    for page in DOCS.rglob("*.md"):
        is_of_results = page.is_relative_to(DOCS / "results")
        kinds = ["python"] if is_of_results else ["sh", "python"]
        is_run = any(x.is_run and x.language in kinds for x in blocks(page))
        assert not is_run or page in known, page
