"""All figures of `macaron-fairseq dynamics --jacobian`.

A figure is the mean over tokens, then over a model's runs, with a 95 % interval over the runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from macaron_fairseq.analysis import output
from macaron_fairseq.analysis.models import TrainedModel
from macaron_fairseq.analysis.progress import progress
from macaron_fairseq.analysis.residual import depth, interventions, rows, subjects
from macaron_fairseq.analysis.residual.effects import Patient
from macaron_fairseq.analysis.residual.interventions import Place
from macaron_fairseq.analysis.residual.rows import Row, Side
from macaron_fairseq.analysis.residual.subjects import Shape, Subject
from macaron_fairseq.analysis.running_statistics import rounded
from macaron_fairseq.analysis.sentences import Sample, Sentence
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.evaluation import intervals

Places = tuple[Place, ...]

TINY = np.finfo(np.float64).tiny  # for the logarithm of a singular value that is zero


@dataclass(frozen=True)
class Settings:
    """What the measures depend on."""

    tokens: int = 16  # one of each of so many sentences
    seed: int = 1  # of the tokens, and of the interventions' controls
    remove: tuple[str, ...] = ()  # names of `interventions.PARTS`
    layers: tuple[str, ...] = ()  # of which to remove it, see `interventions.places`; all if none


@dataclass(frozen=True)
class Run:
    """What was found of one run of a model."""

    sides: list[Side]
    bits: float | None  # per token
    effects: dict[tuple[str, Places], dict[str, float]]


def compare(
    loaded: Sequence[TrainedModel],
    sample: Sample,
    settings: Settings,
    initial: Sequence[int] = (),
    title: str = "The residual stream of trained models",
) -> dict[str, Any]:
    """All figures of several models at the same tokens.

    Without references, the decoders of all models read what the first one translates.

    Args:
        loaded: see `models.load`; those of one label are seeds of one model.
        sample: see `sentences.read`.
        settings: see there.
        initial: the seeds of the same models untrained, see `initial.like`.
        title: of the page.

    Returns:
        What goes into residual.json.

    Raises:
        UserError: if the models have different widths, a layer of the settings does not exist, a
            loss is wanted without references, or see `TrainedModel.check`.
    """
    found = subjects.of(loaded, sample.data, initial)
    if settings.remove and not is_scored(sample):
        raise UserError(
            "--remove measures the loss on translations, and there are none: give --target, or "
            "leave out INPUT"
        )
    for model in loaded:
        model.check(sample)
    read = loaded[0].to_read(sample)
    settings = replace(settings, tokens=min(settings.tokens, len(read)))
    shapes = [subjects.shapes(subject.runs[0].runnable(), read[0]) for subject in found]
    subjects.refuse_different_widths([*zip((x.runs[0] for x in found), shapes, strict=True)])
    where = [places(settings, of_subject) for of_subject in shapes]
    summaries, removed = [], []
    for subject, of_subject, wanted in zip(found, shapes, where, strict=True):
        runs = [
            measure(run, f"{subject.title}, run {i}", read, sample, settings, wanted)
            for i, run in enumerate(subject.runs, 1)
        ]
        summaries.append(summary(subject, of_subject, runs))
        removed += [
            {
                "label": subject.label,
                "is_trained": subject.is_trained,
                "removed": part,
                "layers": [f"{side}:{number}" for side, number in at],
                "figures": means([run.effects[part, at] for run in runs]),
            }
            for part, at in runs[0].effects
        ]
    return {
        "title": title,
        **output.provenance(),
        "data": sample.description(),
        "settings": asdict(settings),
        "models": summaries,
        "interventions": removed,
    }


def is_scored(sample: Sample) -> bool:
    """Whether there is something to predict."""
    return sample.data.target is None or sample.has_references


def places(settings: Settings, shapes: Mapping[str, Shape]) -> list[Places]:
    """Which layers lose parts together, one entry for each time that the loss is measured.

    Raises:
        UserError: if there is no such layer.
    """
    layers = {side: shape.layers for side, shape in shapes.items()}
    if settings.layers:
        return [interventions.places(text, layers) for text in settings.layers]
    return interventions.every(layers)


def measure(
    run: TrainedModel,
    name: str,
    read: Sequence[Sentence],
    sample: Sample,
    settings: Settings,
    where: Sequence[Places],
) -> Run:
    """All figures of one run of a model.

    Args:
        run: the model.
        name: what to call it while it is measured.
        read: the sentences, see `TrainedModel.to_read`.
        sample: from where they are.
        settings: see there.
        where: see `places`.
    """
    model = depth.in_double(run.runnable())
    with progress(f"{name}: Jacobians", settings.tokens) as bar:
        sides = depth.along_depth(model, read, settings.tokens, settings.seed, bar.update)
    with progress(f"{name}: spectra", rows.count(sides)) as bar:
        found = rows.of(sides, bar.update)
    patient = Patient(model, sides, read, sample.data, settings.tokens, settings.seed)
    wanted = [(part, at) for part in settings.remove for at in where]
    effects = {}
    if wanted:
        with progress(f"{name}: interventions", len(wanted)) as bar:
            for part, at in wanted:
                effects[part, at] = patient.without(part, at)
                bar.update()
    return Run(found, patient.bits if is_scored(sample) else None, effects)


# --- means over runs -----------------------------------------------------------------------------


def summary(subject: Subject, shapes: Mapping[str, Shape], runs: Sequence[Run]) -> dict[str, Any]:
    """What the JSON file says of a model."""
    described = subject.runs[0].description()
    bits = means([{"bits_per_token": run.bits} for run in runs])
    return {
        "label": subject.label,
        "is_trained": subject.is_trained,
        "runs": [
            {"name": name, "bits_per_token": run.bits}
            for name, run in zip(subject.names, runs, strict=True)
        ],
        **{key: described[key] for key in ("architecture", "settings", "parameters")},
        **bits,
        "sides": [
            {
                "side": of_runs[0].name,
                **asdict(shapes[of_runs[0].name]),
                "sublayers": joined([side.sublayers for side in of_runs]),
                "layers": joined([side.layers for side in of_runs]),
                "products": joined([side.products for side in of_runs], has_singular_values=True),
            }
            for of_runs in zip(*(run.sides for run in runs), strict=True)
        ],
    }


def joined(
    of_runs: Sequence[Sequence[Row]], has_singular_values: bool = False
) -> list[dict[str, Any]]:
    """The same rows of several runs, as one."""
    return [one(found, has_singular_values) for found in zip(*of_runs, strict=True)]


def one(found: Sequence[Row], has_singular_values: bool) -> dict[str, Any]:
    """A row of several runs as one; eigenvalues are those of the first run."""
    first = found[0]
    result = {
        "name": first.name,
        "layer": first.layer,
        "operator": first.operator,
        "occurrence": first.occurrence,
        "figures": means(
            [{name: finite_mean(x) for name, x in row.figures.items()} for row in found]
        ),
        "eigenvalues": first.eigenvalues,
    }
    if has_singular_values:
        values = np.stack([x for row in found for x in row.singular_values])
        logs = np.log(np.maximum(values, TINY)).mean(axis=0)
        result["singular_values"] = [rounded(x) for x in np.exp(logs)]  # geometric means
    return result


def finite_mean(values: Sequence[float]) -> float | None:
    """The mean of those that are finite; None without any."""
    finite = [x for x in values if np.isfinite(x)]
    return fmean(finite) if finite else None


def means(of_runs: Sequence[Mapping[str, float | None]]) -> dict[str, dict[str, Any]]:
    """Of each figure: the mean over runs, half of its 95 % interval, and how many runs have it.

    The half is None with one run. Source: Student's t, see `intervals.over_seeds`.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(name for run in of_runs for name in run):
        values = [x for run in of_runs if (x := run.get(name)) is not None]
        mean = fmean(values) if values else None
        interval = intervals.over_seeds(values)
        found[name] = {
            "mean": None if mean is None else rounded(mean),
            "margin": None if interval is None else rounded(interval[1] - mean),
            "n": len(values),
        }
    return found
