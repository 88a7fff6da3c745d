"""Pack what `macaron-fairseq demo` needs of a finished run of the quickstart."""

import datetime
import shutil
from pathlib import Path
from typing import Any

from macaron_fairseq import plugin  # noqa: F401 - registers the models with fairseq
from macaron_fairseq.common import environment, files
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.evaluation.scores import metrics
from macaron_fairseq.model import averaging
from macaron_fairseq.text import data_folder
from macaron_fairseq.translation import demo, fairseq_engine, translator

ARCHS = ("transformer_tiny_pre_norm", "macaron_transformer_tiny")
CHECKPOINTS = 4  # the last, of which each model is the mean
PHRASES = 100  # of the test set: what the demo can show


def packed(state: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint in fp16, without the optimizer's state and the places of its training.

    Parameters that share memory go on sharing it, which makes the file smaller.
    """
    arguments, task = state["cfg"]["model"], state["cfg"]["task"]
    for name, value in vars(arguments).items():
        if str(value).startswith("/"):
            setattr(arguments, name, None)
    source, target = demo.LANGUAGES
    task |= {"data": None, "source_lang": source, "target_lang": target}
    model = state["model"]
    tied = averaging.tied_names(model)
    halves = {name: model[name].half() for name in set(tied.values())}
    return {
        "args": None,
        "cfg": {"model": arguments, "task": task},
        "model": {name: halves[first] for name, first in tied.items()},
        "optimizer_history": [
            {
                "criterion_name": "LabelSmoothedCrossEntropyCriterion",
                "optimizer_name": "FairseqAdam",
                "lr_scheduler_state": {},
                "num_updates": averaging.updates(state),
            }
        ],
        "extra_state": {"train_iterator": {"epoch": 1}},
        "last_optimizer_state": None,
    }


def pack(work: Path, folder: Path) -> None:
    """Fill the folder from the run in WORK, and score what is in it."""
    data, steps = work / "data", data_folder.read(work / "data").source_steps
    (folder / "data-bin").mkdir(parents=True, exist_ok=True)
    shutil.copy(data / data_folder.CODES, folder)
    for language in demo.LANGUAGES:
        shutil.copy(data / "data-bin" / f"dict.{language}.txt", folder / "data-bin")
    data_folder.write(folder, *demo.LANGUAGES, steps)
    sources, references = (
        (data / "reference" / f"test.{language}").read_text("utf-8").splitlines()
        for language in demo.LANGUAGES
    )
    for language, lines in zip(demo.LANGUAGES, (sources, references), strict=True):
        files.write_lines(folder / f"{demo.PHRASES}.{language}", lines[:PHRASES])
    models = []
    for arch, name in zip(ARCHS, demo.MODELS, strict=True):
        mean = averaging.average(averaging.last(work / arch / "seed1", CHECKPOINTS))
        averaging.save(packed(mean), folder / f"{name}.pt")
        models.append(score(folder, name, arch, sources, references))
        print(f"{name}.pt: {models[-1]}", flush=True)
    about = {
        "made_by": "examples/quickstart/make_demo.sh",
        "date": datetime.date.today().isoformat(),
        "machine": f"{environment.cpu_model()}, {environment.available_cores()} cores",
        "versions": environment.versions(),
        "training_pairs": lines_of(work / "prepare" / "clean" / "train.en"),
        "test_sentences": len(sources),
        "models": models,
    }
    files.write(folder / demo.ABOUT, files.as_json(about))


def lines_of(path: Path) -> int:
    """How many lines a file has."""
    return path.read_bytes().count(b"\n")


def score(
    folder: Path, name: str, arch: str, sources: list[str], references: list[str]
) -> dict[str, Any]:
    """What is known of a packed model, its scores on the whole test set among it."""
    data = data_folder.read(folder)
    engine = fairseq_engine.load(
        str(folder / f"{name}.pt"), data, translator.Search(), use_gpu=False
    )
    blocks = translator.translate(sources, engine, data.encoder(data.source), data.decode)
    found = [line for block in blocks for line in block]
    state = checkpoints.load(folder / f"{name}.pt")
    bleu = metrics.bleu(found, references, data.target, lowercase=False)
    return {
        "name": name,
        "arch": arch,
        "parameters": sum(p.numel() for p in engine.models[0].parameters()),
        "updates": averaging.updates(state),
        "bleu": round(bleu.score, 2),
        "signature": bleu.signature,
        "as_reference": sum(
            demo.is_as_reference(translation, reference, data)
            for translation, reference in zip(found, references, strict=True)
        ),
    }
