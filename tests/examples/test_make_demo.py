"""examples/quickstart/make_demo.sh: which options it takes. What it makes is in test_demo.py."""

import make_demo
import pytest
import recipe
from helpers.commands import sentence_of


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cpu"], "the folder comes before --cpu; see --help"),
        (["out", "train"], "train is not among the options; see --help"),
        (["out", "--work=x"], "--work is not among the options; see --help"),
        (["out", "--cpu", "--setting", "tiny"], "--setting is not among the options; see --help"),
    ],
)
def test_one_pair_of_models_is_made_from_one_folder(words, said):
    assert sentence_of(make_demo.run, words) == said


def test_other_options_are_the_quickstarts(monkeypatch):
    def made(file, words):
        raise InterruptedError(file.name, words[4:])  # before anything is packed

    monkeypatch.setattr(recipe, "run", made)
    with pytest.raises(InterruptedError) as end:
        make_demo.run(["out", "--workers", "1", "--", "--seed-of-mine", "train"])
    assert end.value.args == ("run.sh", ["--workers", "1", "--", "--seed-of-mine", "train"])


def test_it_explains_itself(capsys):
    make_demo.run(["--help"])
    assert "make_demo.sh FOLDER [OPTION...]" in capsys.readouterr().out
