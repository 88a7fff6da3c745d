"""Movies of particles, and the page on which they move, in headless Chromium."""

import base64
import shutil
import sys
import zlib
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from helpers.browser import opened, overflow
from helpers.particles import simulate
from PIL import Image

from macaron_fairseq import cli
from macaron_fairseq.analysis import interactive_page
from macaron_fairseq.analysis.particles import movies, simulation
from macaron_fairseq.analysis.particles.sphere import experiments, page
from macaron_fairseq.analysis.particles.sphere import movies as sphere_movies
from macaron_fairseq.analysis.particles.systems import System

FRAMES = 4
RUN = ["--particles", "12", "--frames", str(FRAMES), "--time", "3"]
command = partial(simulate, dict.fromkeys(("trajectories", "histograms"), RUN))


def cloud(dim, n=7):
    times = np.linspace(0, 3, FRAMES)
    start = simulation.random_start(n, dim, 1)
    return experiments.trajectories(System("sa", 2), start, times, 0.999)


# Movies.


@pytest.mark.parametrize("dim", [2, 3, 5])
def test_each_frame_shows_the_particles_of_its_time(dim):
    result = cloud(dim)
    movie = sphere_movies.trajectories(result, "title", 0.999)
    assert movie.frames == FRAMES
    axes = movie.figure.axes[0]
    points = axes.collections[-1]
    for frame in (2, 0):
        movie.draw(frame)
        x = result.positions[frame]
        if dim == 3:
            assert np.transpose(points._offsets3d) == pytest.approx(x)
            continue
        shown = np.asarray(points.get_offsets())
        if dim == 2:
            assert shown == pytest.approx(x)
        else:  # a projection: lengths do not grow
            assert (np.linalg.norm(shown, axis=1) < 1).all()
        assert f"time {frame:.2f}" in movie.figure.get_suptitle()


@pytest.mark.slow
def test_a_gif_has_the_frames(tmp_path, capsys):
    found = command("trajectories", "--animate", tmp_path / "a.GIF", output=tmp_path / "out")
    assert "animate" not in found["parameters"]
    assert f"and {tmp_path / 'a.GIF'}\n" in capsys.readouterr().out
    command("histograms", "--animate", tmp_path / "b.gif", output=tmp_path / "out")
    for name in ("a.GIF", "b.gif"):
        with Image.open(tmp_path / name) as image:
            assert image.n_frames == FRAMES
            pictures = []
            for i in range(FRAMES):
                image.seek(i)
                pictures.append(np.asarray(image.convert("RGB")))
        assert all((a != b).any() for a, b in pairwise(pictures))


@pytest.mark.skipif(not shutil.which("ffmpeg"), reason="there is no ffmpeg")
def test_an_mp4(tmp_path):
    command("trajectories", "--animate", tmp_path / "a.mp4", output=tmp_path / "out")
    assert (tmp_path / "a.mp4").read_bytes()[4:8] == b"ftyp"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("a.avi", r"--animate takes a name that ends in \.gif or \.mp4, not "),
        ("a.mp4", r"a\.mp4 needs ffmpeg, which is not installed: install it, or take a \.gif"),
        ("folder.gif", r"folder\.gif is a folder: give --animate the name of a file in it"),
        ("file/a.gif", r"is a file"),
    ],
)
def test_movies_that_cannot_be_written(name, sentence, tmp_path, monkeypatch):
    (tmp_path / "folder.gif").mkdir()
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(movies.FFMpegWriter, "isAvailable", lambda: False)
    with pytest.raises(SystemExit, match=sentence):
        command("trajectories", "--animate", tmp_path / name, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_too_many_numbers_are_refused(tmp_path):
    flags = ["--particles", "20000", "--dim", "50", "--frames", "100"]
    with pytest.raises(SystemExit, match="are 100,000,000 numbers: lower --frames, until there"):
        cli.main(["particles", "trajectories", *flags, "-o", str(tmp_path)])


# The page.


def test_without_plotly_the_page_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(SystemExit, match=r"plotly.* is missing.*with its extra \[pages\]"):
        command("trajectories", "--page", output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_numbers_keep_their_digits():
    """A small one too, next to a large one."""
    given = [[3.0, -1.0, 700.0, 1.234e-6]]
    found = interactive_page.numbers(np.array(given))
    assert (found["from"], found["to"], found["shape"]) == (-1, 700, [1, 4])
    held = np.frombuffer(zlib.decompress(base64.b64decode(found["deflated"])), "<f4")
    assert held == pytest.approx(given[0], rel=1e-7)


def test_of_many_particles_a_part_is_shown(monkeypatch):
    monkeypatch.setattr(page, "MOST_SHOWN", 3)
    monkeypatch.setattr(interactive_page, "library", lambda: "")
    written = page.trajectories(cloud(5), "title", 0.999)
    assert "3 of 7 particles are shown" in written
    assert '"particle 7"' in written and '"particle 2"' not in written


def points(shown):
    """Places and texts of the points, as Plotly holds them."""
    return shown.evaluate(
        """() => { const x = document.getElementById("plot").data.at(-1);
          return [["x", "y", "z"].filter((k) => x[k]).map((k) => [...x[k]]), x.hovertext]; }"""
    )


def at_step(shown, step):
    shown.wait_for_selector(f"#plot[data-step='{step}']")
    places, texts = points(shown)
    return np.array(places).T, texts


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_slider_moves_the_points(width, scheme, browser, tmp_path):
    found = command("trajectories", "--page", output=tmp_path)["results"]
    path = np.array(found["positions"])
    with opened(browser, tmp_path / "trajectories.html", width, color_scheme=scheme) as shown:
        places, texts = at_step(shown, 0)
        assert places == pytest.approx(path[0], abs=1e-4)
        assert texts[11].startswith("<b>particle 12</b><br>cluster: 12<br>mean speed: ")
        shown.locator("#step").focus()
        shown.keyboard.press("ArrowRight")
        assert at_step(shown, 1)[0] == pytest.approx(path[1], abs=1e-4)
        shown.keyboard.press("End")
        assert at_step(shown, 3)[0] == pytest.approx(path[3], abs=1e-4)
        assert shown.locator("#now").inner_text() == "time 3 (3 of 3)"
        eye = "() => document.getElementById('plot')._fullLayout.scene.camera.eye"
        before = shown.evaluate(eye)
        shown.locator("#turn").focus()
        shown.keyboard.press("Home")
        shown.wait_for_function(f"x => ({eye})().x != x", arg=before["x"])
        shown.get_by_role("button", name="Play").click()
        at_step(shown, 1)
        shown.get_by_role("button", name="Play").wait_for()  # it stops at the end
        at_step(shown, 3)
        assert overflow(shown) == [0, []]


@pytest.mark.slow
def test_pointing_at_a_particle_shows_its_values(browser, tmp_path):
    found = command("trajectories", "--page", "--dim", 2, output=tmp_path)["results"]
    place = ", ".join(f"{x:.3g}" for x in found["positions"][0][0]).replace("-", "\u2212")
    with opened(browser, tmp_path / "trajectories.html") as shown:
        shown.wait_for_selector("#plot[data-step='0']")
        box = shown.locator("#plot .scatterlayer .trace").last.locator("path.point").first
        box = box.bounding_box()
        shown.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        text = shown.locator("#plot .hoverlayer .hovertext").text_content()
        assert text.startswith("particle 1cluster: 1mean speed: ")
        assert text.endswith(f"({place})")
        shown.get_by_label("Values of point").fill("1")
        said = shown.locator("#values").inner_text()
        assert said.startswith("particle 1; cluster: 1; mean speed: ")
        assert said.endswith(f"; ({place})")
        shown.get_by_label("Values of point").fill("999")
        assert shown.locator("#values").inner_text() == ""
        assert not shown.locator("#turn").is_visible()
