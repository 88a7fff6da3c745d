"""Movies of particles, as GIF or MP4: matplotlib draws, Pillow or ffmpeg writes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from matplotlib.animation import FFMpegWriter, PillowWriter
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.progress import following

WRITERS: dict[str, Any] = {".gif": PillowWriter, ".mp4": FFMpegWriter}
FRAMES_PER_SECOND = 15
DPI = 90


@dataclass(frozen=True)
class Movie:
    """A figure that changes from frame to frame."""

    figure: Figure
    draw: Callable[[int], None]  # make the figure that of a frame, from 0
    frames: int


def refuse_unwritable(path: Path) -> None:
    """Raise a `UserError` now, not after the simulation, if no such movie can be written."""
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        raise UserError(f"--animate takes a name that ends in .gif or .mp4, not {path}")
    if not writer.isAvailable():
        raise UserError(f"{path} needs ffmpeg, which is not installed: install it, or take a .gif")
    if path.is_dir():
        raise UserError(f"{path} is a folder: give --animate the name of a file in it")
    files.refuse_output([], path)


def write(movie: Movie, path: Path) -> None:
    """Write a movie as its name says, whole or not at all.

    Raises:
        UserError: if it cannot be written.
    """
    FigureCanvasAgg(movie.figure)
    writer = WRITERS[path.suffix.lower()](FRAMES_PER_SECOND)
    with TemporaryDirectory() as folder:
        made = Path(folder) / f"movie{path.suffix.lower()}"
        with writer.saving(movie.figure, made, DPI):
            for frame in following(range(movie.frames), "movie"):
                movie.draw(frame)
                writer.grab_frame()
        files.write(path, made.read_bytes())
