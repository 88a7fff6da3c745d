"""All figures of `macaron-fairseq dynamics --jacobian`.

A figure is the mean over tokens, then over a model's runs, with a 95 % interval over the runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

import numpy as np

from macaron_fairseq.analysis import JACOBIAN_SENTENCES, output
from macaron_fairseq.analysis.models import TrainedModel, in_double, refuse_other_sides
from macaron_fairseq.analysis.residual import depth, interventions, rows, subjects, topology
from macaron_fairseq.analysis.residual.coupling import Choices, Placed, variations
from macaron_fairseq.analysis.residual.depth import Sides
from macaron_fairseq.analysis.residual.effects import Ablation
from macaron_fairseq.analysis.residual.interventions import Place
from macaron_fairseq.analysis.residual.rows import MatrixRow, MatrixSide
from macaron_fairseq.analysis.residual.subjects import Shape, Subject
from macaron_fairseq.analysis.running_statistics import finite_mean, rounded
from macaron_fairseq.analysis.sentences import Sample, Sentence
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.progress import bar
from macaron_fairseq.evaluation.scores import intervals

TITLE = "The residual stream of trained models"

Places = tuple[Place, ...]

TINY = np.finfo(np.float64).tiny  # for the logarithm of a singular value that is zero


@dataclass(frozen=True)
class Settings:
    """What the measures depend on."""

    tokens: int = JACOBIAN_SENTENCES  # one of each of so many sentences
    seed: int = 1  # of the tokens, and of the interventions' controls
    remove: tuple[str, ...] = ()  # names of `interventions.PARTS`
    layers: tuple[str, ...] = ()  # of which to remove it, see `interventions.places`; all if none
    graph: Choices = field(default_factory=Choices)  # of the communities and their coupling
    has_sensitivity: bool = False  # whether to measure what each changes, when trained


@dataclass(frozen=True)
class MeasuredRun:
    """What was found of one run of a model."""

    sides: list[MatrixSide]
    bits: float | None  # per token
    effects: dict[tuple[str, Places], dict[str, float | None]]
    placed: dict[str, list[Placed]]  # communities of each layer, by side
    measured: tuple[topology.StatesBySide, Sides] | None  # kept for `topology.sensitivity`


def compare(
    loaded: Sequence[TrainedModel],
    sample: Sample,
    settings: Settings,
    initial: Sequence[int] = (),
    title: str = TITLE,
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
        UserError: if the models have different widths or layers on different sides, a layer of the
            settings does not exist, a loss is wanted without references, or see
            `TrainedModel.check`.
    """
    refuse_other_sides(loaded)
    found = subjects.grouped(loaded, sample.data, initial)
    if settings.remove:
        refuse_without_loss(loaded, sample)
    for model in loaded:
        model.check(sample)
    read = loaded[0].to_read(sample)
    for model in loaded[1:]:
        model.check_lengths(read)  # of translations, which were none before
    settings = replace(settings, tokens=min(settings.tokens, len(read)))
    of_runs = [
        [(run, subjects.shapes(run.runnable(), read[0])) for run in subject.runs]
        for subject in found
    ]
    subjects.refuse_different_widths([x for runs in of_runs for x in runs])
    for runs in of_runs:
        subjects.refuse_different_seeds(runs)
    shapes = [runs[0][1] for runs in of_runs]
    where = [
        # An untrained model has learnt nothing that a removal could take away.
        places(settings, shape) if subject.is_trained else []
        for subject, shape in zip(found, shapes, strict=True)
    ]
    summaries, removed = [], []
    for subject, of_subject, wanted in zip(found, shapes, where, strict=True):
        has_sensitivity = settings.has_sensitivity and subject.is_trained
        of_this = replace(settings, has_sensitivity=has_sensitivity)
        measured = [
            measure(run, i, f"{subject.title}, run {i}", read, sample, of_this, wanted)
            for i, run in enumerate(subject.runs, 1)
        ]
        summaries.append(summary(subject, of_subject, measured, settings))
        removed += effects_of(subject, measured)
    return {
        "title": title,
        **output.provenance(),
        "data": described(sample, loaded[0]),
        "settings": asdict(settings),
        "models": summaries,
        "interventions": removed,
    }


def refuse_without_loss(loaded: Sequence[TrainedModel], sample: Sample) -> None:
    """Raise a `UserError` where interventions would have no loss to change."""
    if not is_scored(sample):
        raise UserError(
            "--remove measures the loss on translations, and there are none: give --target, or "
            "leave out INPUT"
        )
    for model in loaded:
        if not predicts(model):
            raise UserError(
                f"--remove measures the loss, and {model.path} is a classifier without a head for "
                "tokens: leave out --remove"
            )


def described(sample: Sample, first: TrainedModel) -> dict[str, Any]:
    """What a JSON file says of the sentences, which are the same for all models."""
    found = sample.description()
    if sample.has_own_translations:
        found["decoder"] = f"of all models reads what {first.label} translates (beam 5)"
    return found


def predicts(model: TrainedModel) -> bool:
    """Whether it predicts tokens; a classifier of the authors' code has no head for that."""
    encoder = getattr(model.runnable(), "encoder", None)
    return getattr(encoder, "lm_head", encoder) is not None or encoder is None


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
    number: int,
    name: str,
    read: Sequence[Sentence],
    sample: Sample,
    settings: Settings,
    where: Sequence[Places],
) -> MeasuredRun:
    """All figures of one run of a model.

    Args:
        run: the model.
        number: of the run.
        name: what to call it while it is measured.
        read: the sentences, see `TrainedModel.to_read`.
        sample: from where they are.
        settings: see there.
        where: see `places`.
    """
    model = in_double(run.runnable())
    states = depth.states(model, read)
    topology.refuse_few_tokens(states)  # before the Jacobians, which take long
    with bar(f"{name}: Jacobians", total=settings.tokens, leave=False) as shown:
        sides = depth.along_depth(model, read, settings.tokens, settings.seed, shown.update)
    with bar(f"{name}: spectra", total=rows.count(sides), leave=False) as shown:
        found = rows.of_sides(sides, shown.update)
    with bar(f"{name}: communities", total=sum(map(len, sides.values())), leave=False) as shown:
        placed = topology.placed_by_layer(states, sides, settings.graph, shown.update)
    topology.add(found, placed, settings.graph)
    ablation = Ablation(
        model=model,
        sides=sides,
        read=read,
        data=sample.data,
        tokens=settings.tokens,
        seed=settings.seed,
        run=number,
        states=states,
        placed=placed,
        choices=settings.graph,
    )
    wanted = [(part, at) for part in settings.remove for at in where]
    effects = {}
    if wanted:
        with bar(f"{name}: interventions", total=len(wanted), leave=False) as shown:
            for part, at in wanted:
                effects[part, at] = ablation.without(part, at)
                shown.update()
    bits = ablation.bits if is_scored(sample) and predicts(run) else None
    return MeasuredRun(
        found, bits, effects, placed, (states, sides) if settings.has_sensitivity else None
    )


# --- means over runs -----------------------------------------------------------------------------


def summary(
    subject: Subject, shapes: Mapping[str, Shape], runs: Sequence[MeasuredRun], settings: Settings
) -> dict[str, Any]:
    """What the JSON file says of a model."""
    described = subject.runs[0].description()
    bits = means([{"bits_per_token": run.bits} for run in runs])
    coupled = topology.summary([run.placed for run in runs], settings.graph)
    return {
        "label": subject.label,
        "is_trained": subject.is_trained,
        "runs": [
            {"name": name, "sha256": model.sha256 or None, "bits_per_token": run.bits}
            for name, model, run in zip(subject.names, subject.runs, runs, strict=True)
        ],
        **{key: described[key] for key in ("architecture", "settings", "parameters")},
        **bits,
        "sides": [
            {
                "side": of_runs[0].name,
                **asdict(shapes[of_runs[0].name]),
                "sublayers": [figures_of(x) for x in rows_of(of_runs, "sublayers")],
                "layers": [with_eigenvalues(x) for x in rows_of(of_runs, "layers")],
                "products": [
                    {**with_eigenvalues(x), "singular_values": singular_values(x)}
                    for x in rows_of(of_runs, "products")
                ],
                "topology": coupled[of_runs[0].name],
            }
            for of_runs in zip(*(run.sides for run in runs), strict=True)
        ],
        "sensitivity": sensitivity(subject, runs, settings.graph),
    }


def effects_of(subject: Subject, runs: Sequence[MeasuredRun]) -> list[dict[str, Any]]:
    """What the JSON file says of interventions in a model, an entry for each."""
    return [
        {
            "label": subject.label,
            "removed": part,
            "layers": [f"{side}:{number}" for side, number in at],
            "figures": means([run.effects[part, at] for run in runs]),
        }
        for part, at in runs[0].effects
    ]


def sensitivity(
    subject: Subject, runs: Sequence[MeasuredRun], choices: Choices
) -> list[dict[str, Any]] | None:
    """What each choice of the graph changes; None where it was not wanted."""
    measured = [run.measured for run in runs if run.measured]
    if not measured:
        return None
    with bar(
        f"{subject.title}: choices", total=1 + len([*variations(choices)]), leave=False
    ) as shown:
        return topology.sensitivity(measured, choices, shown.update)


def rows_of(sides: Sequence[MatrixSide], kind: str) -> list[tuple[MatrixRow, ...]]:
    """The rows of one kind, each in all runs."""
    return [*zip(*(getattr(side, kind) for side in sides), strict=True)]


def figures_of(found: Sequence[MatrixRow]) -> dict[str, Any]:
    """A row of several runs as one."""
    of_runs = [{name: finite_mean(x) for name, x in row.figures.items()} for row in found]
    return {
        **{x: getattr(found[0], x) for x in ("name", "layer", "operator", "occurrence", "time")},
        "figures": means(of_runs),
    }


def with_eigenvalues(found: Sequence[MatrixRow]) -> dict[str, Any]:
    """The same, with eigenvalues of the first run."""
    return {**figures_of(found), "eigenvalues": found[0].eigenvalues}


def singular_values(found: Sequence[MatrixRow]) -> list[float]:
    """Geometric means over tokens and runs, largest first."""
    values = np.stack([x for row in found for x in row.singular_values])
    return [rounded(x) for x in np.exp(np.log(np.maximum(values, TINY)).mean(axis=0))]


def means(of_runs: Sequence[Mapping[str, float | None]]) -> dict[str, dict[str, Any]]:
    """Of each figure: the mean over the runs that have it, half of its 95 % interval, their number.

    The half is None with one run, and 0 where all runs have the same, as counts may. Source:
    Student's t, see `intervals.over_seeds`.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(name for run in of_runs for name in run):
        values = [x for run in of_runs if (x := run.get(name)) is not None and np.isfinite(x)]
        found[name] = {
            "mean": rounded(fmean(values)) if values else None,
            "margin": margin(values),
            "n": len(values),
        }
    return found


def margin(values: Sequence[float]) -> float | None:
    """Half of a 95 % interval; None with fewer than two values."""
    if interval := intervals.over_seeds(values):
        return rounded((interval[1] - interval[0]) / 2)
    return 0.0 if len(values) > 1 else None
