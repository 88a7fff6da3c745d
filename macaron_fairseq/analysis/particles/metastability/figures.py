"""Pictures of metastability, as the bytes of PNG files."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from macaron_fairseq.analysis.figures import png
from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles.drawing import cell_edges, colours, draw_angles
from macaron_fairseq.analysis.particles.metastability.first_clusters import FirstClusters
from macaron_fairseq.analysis.particles.metastability.mean_field import MeanField
from macaron_fairseq.analysis.particles.metastability.staircase import Staircase

TURN_TICKS = np.pi * np.array([0, 0.5, 1, 1.5, 2])
TURN_LABELS = ["0", "π/2", "π", "3π/2", "2π"]
ANGLE = "angle (radians)"


def staircase(result: Staircase, title: str) -> bytes:
    """The energy over the logarithm of time, and over the length of the path."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    figure.suptitle(title)
    left, right = figure.subplots(1, 2, sharey=True)
    of_betas = colours(len(result.betas))
    for i, beta in enumerate(result.betas):
        style = {"color": of_betas[i], "label": f"β = {beta:g}"}
        left.plot(result.log_times[i] / np.log(beta), result.energies[i], **style)
        unit = np.log(beta) / (2 * np.sqrt(beta))
        right.plot(result.lengths[i] / unit, result.energies[i], **style)
    left.set(xlabel="ln t / ln β", ylabel="energy E")
    right.set(xlabel="length of the path, in units of ln β / (2 √β)")
    left.set_title("over the logarithm of time", fontsize="medium")
    right.set_title("over the path, as if the speed were 1", fontsize="medium")
    left.set_xlim(left=0)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    left.legend(fontsize="small")
    return png(figure)


def first_clusters(result: FirstClusters, title: str) -> bytes:
    """Paths, the last density, the modes' rates and their growth."""
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    figure.suptitle(title)
    (paths, density), (rates, growth) = figure.subplots(2, 2)
    draw_angles(paths, result.times, result.angles, color="C0", lw=0.3, alpha=0.6)
    for angle in result.predicted:
        paths.axhline(angle, color="C3", ls="--", lw=1)
    paths.set(xlabel="time", ylabel=ANGLE, ylim=(0, 2 * np.pi))
    paths.set_yticks(TURN_TICKS, TURN_LABELS)
    paths.set_title("particles; dashed: predicted clusters", fontsize="medium")
    edges = np.linspace(0, 2 * np.pi, result.densities.shape[1] + 1)
    density.stairs(result.densities[-1], edges, fill=True)
    _draw_predicted(density, result.predicted)
    density.set_title(f"density at time {result.times[-1]:.3g}", fontsize="medium")
    rates.bar(result.modes, result.rates, color="C0")
    rates.bar([result.fastest], [result.rates[result.fastest - 1]], color="C3")
    rates.set(xlabel="mode k", ylabel="rate $k^2 I_k(β) / β$")
    rates.set_title("how fast each mode grows at first", fontsize="medium")
    _draw_growth(growth, result.times, result.amplitudes, result.rates)
    return png(figure, dpi=90)


def mean_field(result: MeanField, title: str) -> bytes:
    """The density over time and at some times, how modes grow, and energy and mass."""
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    figure.suptitle(title)
    (picture, density), (growth, kept) = figure.subplots(2, 2)
    shown = np.maximum(result.densities, 1e-3)
    image = picture.pcolormesh(
        cell_edges(result.times), cell_edges(result.angles), shown.T, norm=LogNorm()
    )
    figure.colorbar(image, ax=picture, label="density")
    picture.set(xlabel="time", ylabel=ANGLE)
    picture.set_yticks(TURN_TICKS, TURN_LABELS)
    picture.set_title("density over time", fontsize="medium")
    for i, part in enumerate((0, 0.5, 0.75, 1)):
        frame = round(part * (len(result.times) - 1))
        label = f"time {result.times[frame]:.3g}"
        density.semilogy(result.angles, np.maximum(result.densities[frame], 1e-4), f"C{i}", lw=1)
        density.plot([], [], f"C{i}", label=label)
    _draw_predicted(density, result.predicted)
    density.set_title("dashed: predicted clusters", fontsize="medium")
    density.legend(fontsize="small")
    _draw_growth(growth, result.times, result.amplitudes, result.rates)
    kept.plot(result.times, result.energy, label="energy $E_β$")
    kept.set(xlabel="time", ylabel="energy $E_β$")
    kept.set_title(
        f"energy; the mass changes by {np.ptp(result.mass):.0e} at most", fontsize="medium"
    )
    kept.grid(alpha=0.3)
    return png(figure, dpi=90)


def _draw_predicted(axes: Axes, predicted: Floats) -> None:
    for angle in predicted:
        axes.axvline(angle, color="C3", ls="--", lw=1)
    axes.set(xlabel=ANGLE, ylabel="density", xlim=(0, 2 * np.pi))
    axes.set_xticks(TURN_TICKS, TURN_LABELS)


def _draw_growth(axes: Axes, times: Floats, amplitudes: Floats, rates: Floats) -> None:
    """The four fastest modes, and how each would grow by its rate alone."""
    for i, mode in enumerate(np.sort(np.argsort(-rates)[:4])):
        axes.semilogy(times, amplitudes[:, mode], f"C{i}", label=f"k = {mode + 1}")
        alone = amplitudes[0, mode] * np.exp(rates[mode] * times)
        axes.semilogy(times, np.where(alone < 1, alone, np.nan), f"C{i}:", lw=1)
    axes.set(xlabel="time", ylabel="$|μ_k|$", ylim=(None, 1.5))
    axes.set_title("modes; dotted: $e^{rt}$ alone", fontsize="medium")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
