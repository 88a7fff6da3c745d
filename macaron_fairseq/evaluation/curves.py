"""The learning curves of all runs in one picture."""

from collections.abc import Sequence
from io import BytesIO

from macaron_fairseq.evaluation.runs import Run


def draw(runs: Sequence[Run]) -> bytes | None:
    """A PNG file, one colour for each architecture; None where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    archs = list(dict.fromkeys(run.arch for run in runs))
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for run in runs:
        colour = f"C{archs.index(run.arch)}"
        training = run.training
        if training.train_curve:
            axes.plot(*zip(*training.train_curve, strict=True), colour, alpha=0.3, lw=0.7)
        if training.valid_curve:
            axes.plot(*zip(*training.valid_curve, strict=True), f"{colour}o-", ms=3)
    for i, arch in enumerate(archs):
        axes.plot([], [], f"C{i}o-", ms=3, label=arch)
    axes.set(xlabel="updates", ylabel="loss (bits per token)")
    axes.set_title("loss in validation (dots) and in training (thin)")
    axes.grid(alpha=0.3)
    axes.legend()
    image = BytesIO()
    figure.savefig(image, format="png", dpi=120)
    return image.getvalue()
