"""The figures of one model along depth, row by row: sub-layers, layers, and products of layers."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from macaron_fairseq.analysis.by_layer import LAYER, sublayer_rows
from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.residual import depth, spectra
from macaron_fairseq.analysis.residual.depth import AtTokens, Depth
from macaron_fairseq.analysis.running_statistics import rounded

SHOWN_TOKENS = 4  # whose eigenvalues are drawn


@dataclass
class MatrixRow:
    """One sub-layer, one layer, or the product of the first layers up to one."""

    name: str
    layer: int  # from 1; of a product the last one
    operator: str
    occurrence: int = 1  # of the operator in the layer
    time: float | None = None  # of a sub-layer, in layers: where it ends
    figures: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # by token
    eigenvalues: list[list[float]] = field(default_factory=list)  # [real, imaginary]
    singular_values: list[Floats] = field(default_factory=list)  # by token, largest first

    def add(self, matrix: Floats, move: Floats, **more: float) -> None:
        """Add the figures of one token: of its matrix, whose map moves it by so much."""
        found = spectra.of_matrix(matrix, move)
        for name, value in {**found.figures, **more}.items():
            self.figures[name].append(value)
        if len(self.singular_values) < SHOWN_TOKENS:
            self.eigenvalues += [[rounded(x.real), rounded(x.imag)] for x in found.eigenvalues]
        self.singular_values.append(found.singular_values)


@dataclass(frozen=True)
class MatrixSide:
    """The rows of an encoder or a decoder."""

    name: str
    sublayers: list[MatrixRow]
    layers: list[MatrixRow]
    products: list[MatrixRow]


def of_sides(
    sides: Mapping[str, Sequence[Depth]], done: Callable[[], object] = lambda: None
) -> list[MatrixSide]:
    """All rows of a model.

    Args:
        sides: see `depth.along_depth`.
        done: called once for each row, see `count`.
    """
    found = []
    for name, layers in sides.items():
        sublayers = []
        for layer in layers:
            for one, title, time, nth in sublayer_rows(layer.whole.layer, layer.sublayers):
                row = MatrixRow(title, one.layer, one.operator, nth, time)
                sublayers.append(filled(row, one))
                done()
        wholes = []
        for layer in layers:
            row = MatrixRow(f"layer {layer.whole.layer}", layer.whole.layer, LAYER)
            wholes.append(filled(row, layer.whole))
            done()
        products = []
        for row in products_of([layer.whole for layer in layers]):
            products.append(row)
            done()
        found.append(MatrixSide(name, sublayers, wholes, products))
    return found


def count(sides: Mapping[str, Sequence[Depth]]) -> int:
    """How many rows there are."""
    return sum(2 + len(layer.sublayers) for layers in sides.values() for layer in layers)


def filled(row: MatrixRow, one: AtTokens) -> MatrixRow:
    """The row with the figures of all tokens."""
    for matrix, before, after in zip(one.jacobians, one.before, one.after, strict=True):
        row.add(matrix, after - before)
        row.figures["added_scaled"].append(row.figures["added"][-1] * float(before.std()))
    return row


def products_of(layers: Sequence[AtTokens], only_last: bool = False) -> list[MatrixRow]:
    """A row for the product from the first layer to each, or only to the last one."""
    blocks = np.stack([layer.jacobians for layer in layers])
    products = depth.cumulative(blocks)
    rows = []
    for i in range(len(layers) - 1 if only_last else 0, len(layers)):
        row = MatrixRow(f"layers 1 to {i + 1}", i + 1, LAYER)
        moves = layers[i].after - layers[0].before
        for token, (product, move) in enumerate(zip(products[i], moves, strict=True)):
            row.add(product, move, **spectra.lyapunov_figures(blocks[: i + 1, token]))
        rows.append(row)
    return rows
