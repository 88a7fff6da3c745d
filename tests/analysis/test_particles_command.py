"""`macaron-fairseq particles` with random matrices, rescaled tokens and metastability; refusals."""

from functools import partial

import numpy as np
import pytest
from helpers import pictures
from helpers.particles import simulate

from macaron_fairseq import cli
from macaron_fairseq.analysis.particles.rescaled import tokens

pytestmark = pytest.mark.usefixtures("undrawn")

SMALL = {
    "phase-random": ["--particles", "4", "--frames", "3", "--time", "1", "--betas", "2"]
    + ["--trials", "3", "--regenerate", "0.4", "--beta-max", "2", "--key-matrix", "goe"],
    "rescaled": ["--particles", "8", "--frames", "4", "--time", "2"],
    "leaders": ["--particles", "8", "--frames", "4", "--time", "2"],
    "staircase": ["--beta", "50", "80", "--gaps", "1", "2"],
    "first-clusters": ["--particles", "50", "--frames", "4"],
    "mean-field": ["--cells", "64", "--frames", "5"],
}
command = partial(simulate, SMALL)


@pytest.mark.parametrize("choice", SMALL)
def test_command_writes_numbers_and_a_picture(choice, drawn, tmp_path, capsys):
    found = command(choice, output=tmp_path)
    assert found["experiment"] == choice
    assert f"{choice}.json" in capsys.readouterr().out
    if choice != "staircase":
        with pictures.undrawn():
            assert command(choice, "--seed", 2, output=tmp_path)["results"] != found["results"]


@pytest.mark.parametrize("geometry", tokens.GEOMETRIES)
def test_rescaled_tokens_in_space(geometry, tmp_path):
    flags = "--geometry", geometry, "--dim", 3
    found = command("rescaled", *flags, output=tmp_path)["results"]
    assert np.shape(found["positions"]) == (4, 8, 3)


def test_rescaled_tokens_in_many_dimensions(tmp_path, capsys):
    flags = ["--dim", "9", "--geometry", "codimension"]
    found = command("rescaled", *flags, output=tmp_path)["results"]
    assert np.shape(found["coordinates"]) == (4, 8, 8)
    assert np.shape(found["shrinking"]) == (4, 8, 1)
    assert found["volume"] == [None] * 4
    assert ", ..." in capsys.readouterr().out


def test_the_noise_of_the_density_is_as_large_as_asked(tmp_path):
    found = command("mean-field", "--noise", 0.001, output=tmp_path)["results"]
    # Of 64 draws the deviation is known to 9 %; three standard errors are allowed for.
    assert np.std(found["densities"][0]) == pytest.approx(0.001, rel=0.27)


@pytest.mark.parametrize("frames", [2, 3])
def test_leaders_at_few_times(frames, tmp_path):
    found = command("leaders", "--frames", frames, output=tmp_path)["results"]
    assert len(found["matrices"]) == frames


def test_leaders_in_many_dimensions(tmp_path):
    found = command("leaders", "--dim", 20, output=tmp_path)["results"]
    assert np.shape(found["matrices"]) == (4, 8, 8)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["phase-random", "--key-matrix", "gau"], r"unknown key matrix 'gau'.*mean gaussian"),
        (["phase-random", "--value-matrix", "x"], r"takes identity, gram, keys or minus-keys"),
        (["phase-random", "--shared", "x"], r"--shared takes no, trials or all"),
        (["phase-random", "--beta-max", "1e9"], r"needs too many steps: lower --time or --beta"),
        (["phase-random", "--beta-max", "0"], r"--beta-min 0 is not below --beta-max 0"),
        (["phase-random", "--regenerate", "1e-5"], r"give a longer period"),
        (["rescaled", "--geometry", "poly"], r"unknown geometry 'poly'.*Did you mean polytope"),
        (["rescaled", "--positive", "1"], r"--positive is of --geometry codimension and product"),
        (["rescaled", "--geometry", "product", "--positive", "3"], r"3 is above --dim 2"),
        (["rescaled", "--step", "3"], r"--step 3 is too long for V of norm 1: .* below 2.7"),
        (["rescaled", "--time", "400"], r"leaves the range of numbers at time 300: lower --time"),
        (
            ["rescaled", "--geometry", "codimension", "--dim", "3", "--time", "440"],
            r"leaves the range of numbers at time 351: lower --time",
        ),
        (
            ["rescaled", "--geometry", "hyperplanes", "--dim", "3", "--time", "30"],
            r"from time 21.4 on rounding would be most of the result: lower --time 30",
        ),
        (["block-sweep", "--over", "dim", "--dim", "7"], r"leave out --dim"),
        (["phase", "--trials", "1000000", "--particles", "10000"], r"lower --trials, until"),
        (["phase-random", "--trials", "1000000", "--particles", "512"], r"lower --trials, until"),
        (["first-clusters", "--particles", "1000000", "--frames", "999"], r"lower --frames, unt"),
        (["equiangular", "--particles", "512", "--frames", "1000000"], r"lower --frames, until"),
        (
            ["phase-random", "--dim", "100000", "--particles", "2", "--trials", "2"],
            r"2 random matrices in 100,000 dimensions are 20,000,000,000 numbers: lower --dim or",
        ),
        (["phase-random", "--dim", "500", "--frames", "9999"], r"lower --frames, until"),
        (["leaders", "--particles", "512", "--frames", "1000"], r"lower --frames, until"),
        (["rescaled", "--particles", "512", "--dim", "512", "--frames", "999"], r"lower --frames"),
        (["mean-field", "--cells", "100000", "--frames", "999"], r"lower --frames, until"),
        (["staircase", "--system", "usa"], r"--system takes sa or usa-scaled"),
        (["staircase", "--beta", "1"], r"a staircase needs a beta above 1"),
        (["staircase", "--beta", "2", "--gaps", "9", "9"], r"more than half the circle"),
        (["first-clusters", "--beta", "0"], r"--beta 0 has no kernel with modes"),
        (["first-clusters", "--beta", "800"], r"e\^beta leaves the range of numbers at beta 800"),
        (["first-clusters", "--beta", "20", "--time", "9"], r"needs? too many steps: lower --time"),
        (["mean-field", "--scheme", "lax"], r"unknown scheme 'lax'.*lax-friedrichs"),
        (["mean-field", "--beta", "100", "--cells", "99"], r"99 cells are too few for beta 100"),
        (["mean-field", "--beta", "1e6"], r"leaves the range of numbers"),
        (
            ["mean-field", "--beta", "20", "--time", "9"],
            r"more than 200,000 steps",
        ),
    ],
)
def test_mistakes_end_in_a_sentence(flags, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=sentence):
        cli.main(["particles", *flags])
    assert not list(tmp_path.iterdir())
    (tmp_path / "particles").mkdir()  # the user's own stays
    with pytest.raises(SystemExit, match=sentence):
        cli.main(["particles", *flags])
    assert (tmp_path / "particles").is_dir() and not list((tmp_path / "particles").iterdir())


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["leaders", "--particles", "1"], "1 is not a whole number from 2 to 512"),
        (["rescaled", "--dim", "1"], "1 is not a whole number from 2 to 512"),
        (["first-clusters", "--particles", "0"], "0 is not a whole number from 2"),
        (["mean-field", "--cells", "1"], "1 is not a whole number from 32"),
        (["staircase", "--gaps", "0"], "0 is not a number from 0.001"),
        (["phase-random", "--regenerate", "-1"], "-1 is not a number from 1e-9 to 1e9"),
    ],
)
def test_numbers_out_of_range_are_refused(flags, sentence, capsys):
    with pytest.raises(SystemExit):
        cli.main(["particles", *flags])
    assert sentence in capsys.readouterr().err
