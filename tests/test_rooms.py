"""The house: a room imports only what stands below it, and stands without what stands above."""

import ast
import re
import subprocess
import sys

import pytest
from helpers.paths import ROOT, USER_DIR

import macaron_fairseq

# From the highest floor to the lowest.
ROOMS = [
    *(
        "commands",
        "api",
        "plugin",
        "analysis",
        "distillation",
        "translation",
        "evaluation",
        "preflight",
        "fast",
        "model",
        "schemes",
    ),
    *("text", "compat", "common"),
]
SOURCES = sorted(USER_DIR.rglob("*.py"))


def imported(path):
    """The package's modules and names that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def second(module):
    """The part of a module's name after the package's."""
    return (module.split(".") + [""])[1]


# What the package itself serves, by the name that it has there, as `load` of `api`.
SERVED = {
    name.split(".")[-1]: second(name)
    for name in imported(USER_DIR / "__init__.py")
    if name.split(".")[0] == USER_DIR.name
}


def room(module):
    """The room of a module's name; None for the package, its version and what starts it."""
    name = second(module)
    found = "commands" if name == "cli" else SERVED.get(name, name)
    return found if found in ROOMS else None


def own_room(path):
    return room(".".join(path.relative_to(ROOT).with_suffix("").parts))


def test_what_the_package_serves_is_of_a_room():
    assert (room("macaron_fairseq.load"), room("macaron_fairseq.UserError")) == ("api", "common")
    assert room("macaron_fairseq.MacaronTransformerModel") == "plugin"
    assert {*macaron_fairseq.__all__} <= {*SERVED}
    without = [str(x.relative_to(USER_DIR)) for x in SOURCES if not own_room(x)]
    assert without == ["__init__.py", "__main__.py", "version.py"]


@pytest.mark.parametrize(
    "path", [*filter(own_room, SOURCES)], ids=lambda path: str(path.relative_to(USER_DIR))
)
def test_a_room_imports_only_what_stands_below_it(path):
    found = {room(name) for name in imported(path) if name.split(".")[0] == USER_DIR.name}
    above = ROOMS[: ROOMS.index(own_room(path))]
    assert not found & set(above)


def test_every_folder_is_a_room():
    folders = {path.name for path in USER_DIR.iterdir() if (path / "__init__.py").is_file()}
    assert folders <= set(ROOMS)


# fast/ cannot be imported, and all is built, trained, translated and saved in one process.
WITHOUT_FAST = """
import io, sys
sys.modules["macaron_fairseq.fast"] = None
sys.path.insert(0, "tests")
import macaron_fairseq  # before fairseq: nothing is registered
import torch
from helpers.small import SMALL, SMALL_DECODER, SMALL_ENCODER, batch, build, dictionary
from helpers.small import language_task, masked_task, texts
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.models import ARCH_MODEL_REGISTRY, register_model
from fairseq.sequence_generator import SequenceGenerator
from macaron_fairseq.model import architectures, language_model, masked_language_model
from macaron_fairseq.model.released_bert import CLS, ReleasedBertModel
from macaron_fairseq.model.transformer import BaselineTransformerModel, MacaronTransformerModel

register_model(architectures.MODEL)(MacaronTransformerModel)
register_model(architectures.BASELINE)(BaselineTransformerModel)
register_model(architectures.ROBERTA)(masked_language_model.MacaronRobertaModel)
register_model(architectures.ROBERTA_BASELINE)(masked_language_model.BaselineRobertaModel)
register_model(architectures.LM)(language_model.MacaronLanguageModel)
register_model(architectures.LM_BASELINE)(language_model.BaselineLanguageModel)
register_model(architectures.BERT)(ReleasedBertModel)
architectures.register_all()
source, lengths, previous = batch()
sample = {"net_input": {"src_tokens": source, "src_lengths": lengths}}
flags = [*SMALL, "--encoder-ffn-embed-dim", "32", "--share-all-embeddings"]
several = ["--macaron-scheme", "strang-symmetric", "--macaron-substep", "midpoint"]
archs = [x for x, model in ARCH_MODEL_REGISTRY.items() if model is MacaronTransformerModel]
assert len(archs) == 12, archs
for arch, more in [*((arch, []) for arch in archs), ("macaron_transformer", several)]:
    model = build(arch, *flags, *more).train()
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for _ in range(2):
        torch.manual_seed(1)
        log_p = model(source, lengths, previous)[0].log_softmax(-1)
        loss = label_smoothed_nll_loss(log_p.flatten(0, 1), previous.flatten(), 0.1, 1)[0]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0], arch
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    again = build(arch, *flags, *more, seed=2)
    again.load_state_dict(torch.load(io.BytesIO(file.getvalue())))
    found = []
    for one in (model.eval(), again):
        generator = SequenceGenerator([one], dictionary(), beam_size=3, max_len_b=8)
        found.append([x[0]["tokens"].tolist() for x in generator.generate([one], sample)])
    assert found[0] == found[1], arch
tokens = texts()
masked, causal = masked_task(), language_task()
masked.dictionary.add_symbol(CLS)
for arch, task, sizes in [
    *((f"macaron_roberta_{size}", masked, SMALL_ENCODER) for size in ("base", "small", "tiny")),
    ("transformer_bert_base_macaron", masked, SMALL_ENCODER),
    *((f"macaron_transformer_lm{size}", causal, SMALL_DECODER) for size in ("", "_small", "_tiny")),
]:
    model = build(arch, *sizes, *several, for_task=task).train()
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for _ in range(2):
        torch.manual_seed(1)
        loss = -model(tokens)[0].log_softmax(-1).gather(-1, tokens[..., None]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0], arch
    again = build(arch, *sizes, *several, for_task=task, seed=2)
    again.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(model.eval()(tokens)[0], again(tokens)[0]), arch
assert not [name for name in sys.modules if name.startswith("macaron_fairseq.fast.")]
"""


@pytest.mark.slow
def test_every_architecture_trains_and_computes_without_the_fast_room():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FAST],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("folder", ["preflight", "distillation", "model", "fast"])
def test_a_room_says_what_its_modules_are_for(folder):
    folder = USER_DIR / folder
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8"))) or ""
    named = {x for y in re.findall(r"`([\w.]+)`", text) for x in y.split(".")}
    modules = {x.stem for x in folder.glob("*.py")} | {x.parent.name for x in folder.glob("*/*.py")}
    assert modules - named == {"__init__"}
