"""Communities of residual coordinates in trained models, layer by layer, and their coupling.

For each layer: the communities of the state that it reads, over all tokens of the sample, and how
much its Jacobians amplify each. See `communities` and `coupling`, whose defaults are this project's
choices.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.residual import coupling
from macaron_fairseq.analysis.residual.coupling import Choices, Placed
from macaron_fairseq.analysis.residual.depth import Sides
from macaron_fairseq.analysis.residual.interventions import Place
from macaron_fairseq.analysis.residual.rows import MatrixSide
from macaron_fairseq.analysis.running_statistics import rounded
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.evaluation.scores.p_values import holm

LEAST_TOKENS = 3  # of a graph

StatesBySide = Mapping[str, Sequence[Floats]]  # before each layer, by side: see `depth.states`


def placed_by_layer(
    states: StatesBySide,
    sides: Sides,
    choices: Choices,
    done: Callable[[], object] = lambda: None,
) -> dict[str, list[Placed]]:
    """The communities of each layer of one model, by side.

    Args:
        states: see `depth.states`.
        sides: the same model's, see `depth.along_depth`.
        choices: see there.
        done: called once for each layer.

    Raises:
        UserError: if a state never changes, or Leiden is wanted and not installed.
    """
    found: dict[str, list[Placed]] = {}
    for side, layers in sides.items():
        for layer, state in zip(layers, states[side], strict=False):  # and one after the last
            whole = layer.whole
            try:
                placed = coupling.place(state, whole.jacobians, choices)
            except UserError:  # which is a ValueError, too
                raise
            except ValueError as error:
                raise UserError(
                    f"the graph of layer {whole.layer} of the {side} cannot be drawn: {error}"
                ) from error
            found.setdefault(side, []).append(placed)
            done()
    return found


def refuse_few_tokens(states: StatesBySide) -> None:
    """Raise a `UserError` if a side has too few tokens for a graph."""
    for side, of_layers in states.items():
        if (count := len(of_layers[0])) < LEAST_TOKENS:
            raise UserError(
                f"the graph of the {side}'s layers needs {LEAST_TOKENS} tokens, and there are "
                f"{count}: give more or longer sentences"
            )


def figures(placed: Placed, choices: Choices) -> dict[str, float]:
    """The figures of one layer of one run; NaN for a coupling that it cannot have.

    Returns:
        communities: how many there are.
        modularity: theirs.
        most_amplified, least_amplified: the largest and the smallest amplification.
        coupling: see `coupling.couple`.
    """
    found = coupling.of_placed([placed], choices)
    return {
        "communities": placed.communities.count,
        "modularity": placed.communities.modularity,
        "most_amplified": max(placed.amplifications, default=np.nan),
        "least_amplified": min(placed.amplifications, default=np.nan),
        "coupling": np.nan if found.value is None else found.value,
    }


def add(
    found: Sequence[MatrixSide], placed: Mapping[str, Sequence[Placed]], choices: Choices
) -> None:
    """Add the figures to the rows of the layers."""
    for side in found:
        for row, of_layer in zip(side.layers, placed[side.name], strict=True):
            for name, value in figures(of_layer, choices).items():
                row.figures[name].append(value)


def coupling_of(
    sides: Sides,
    placed: Mapping[str, Sequence[Placed]],
    places: Sequence[Place],
    choices: Choices,
) -> float:
    """The mean coupling of some layers: of communities as they are with other Jacobians.

    Args:
        sides: of the model that has lost parts.
        placed: of the whole model.
        places: the layers.
        choices: see there.

    Returns:
        The mean of those that there are; NaN without any.
    """
    values = []
    for side, number in places:
        here, jacobians = placed[side][number - 1], sides[side][number - 1].whole.jacobians
        amplified = coupling.amplifications(jacobians, here.communities.labels, choices.gain)
        changed = replace(here, amplifications=amplified)
        values.append(coupling.of_placed([changed], choices).value)
    return float(np.mean([x for x in values if x is not None] or [np.nan]))


# --- over runs -----------------------------------------------------------------------------------


def summary(
    runs: Sequence[Mapping[str, Sequence[Placed]]], choices: Choices
) -> dict[str, list[dict[str, Any]]]:
    """What the JSON file says of the layers of a model's runs, by side.

    The runs are independent groups of communities, see `coupling.couple`. P-values are also
    corrected for the number of the model's layers, by Holm's method.
    """
    layers = {
        (side, i): [run[side][i] for run in runs]
        for side, of_side in runs[0].items()
        for i in range(len(of_side))
    }
    found = {key: coupling.of_placed(placed, choices) for key, placed in layers.items()}
    corrected = holm({f"{side}:{i}": x.p for (side, i), x in found.items()})
    result: dict[str, list[dict[str, Any]]] = {}
    for (side, i), placed in layers.items():
        value = found[side, i]
        result.setdefault(side, []).append(
            {
                "layer": i + 1,
                "coupling": None if value.value is None else rounded(value.value),
                "p": value.p,
                "corrected_p": corrected[f"{side}:{i}"],
                "points": value.points,
                "runs": [communities(x) for x in placed],
            }
        )
    return result


def communities(placed: Placed) -> dict[str, Any]:
    """What the JSON file says of the communities of one layer of one run."""
    found = placed.communities
    return {
        "constant": found.constant,
        "isolated": found.isolated,
        "modularity": rounded(found.modularity),
        "labels": found.labels.tolist(),
        "sizes": found.sizes,
        "centralities": [rounded(x) for x in placed.centralities],
        "amplifications": [rounded(x) for x in placed.amplifications],
    }


def sensitivity(
    runs: Sequence[tuple[StatesBySide, Sides]],
    choices: Choices,
    done: Callable[[], object] = lambda: None,
) -> list[dict[str, Any]]:
    """What each choice changes for the runs of a model, see `coupling.sensitivity`.

    Layers are named as in "encoder:2".
    """
    first, _ = runs[0]
    layers = {
        f"{side}:{i + 1}": [
            (states[side][i], sides[side][i].whole.jacobians) for states, sides in runs
        ]
        for side, of_side in first.items()
        for i in range(len(of_side) - 1)  # the last state is after all layers
    }
    return coupling.sensitivity(layers, choices, done)
