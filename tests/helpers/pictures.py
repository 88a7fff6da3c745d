"""Pictures that matplotlib need not draw."""

from contextlib import contextmanager

import pytest

# matplotlib and PIL are imported where they are needed, see conftest.py.


@contextmanager
def undrawn():
    """Figures are put together; instead of a drawing they save an empty one of a few pixels."""
    figures = pytest.importorskip("matplotlib.figure")
    from PIL import Image

    def savefig(figure, file, *, format, dpi=100):
        width, height = figure.get_size_inches() * 72
        if format == "svg":
            file.write(f'<svg width="{width}pt" height="{height}pt"></svg>')
        else:
            Image.new("RGB", (1, 1)).save(file, format)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures.Figure, "savefig", savefig)
        yield
