"""Phrases by spaCy: which words they are, the file of them, and what is refused."""

import sys
from itertools import chain

import pytest
import torch
from helpers.commands import sentence_of
from helpers.small import symbols

from macaron_fairseq import cli
from macaron_fairseq.distillation import text_spans
from macaron_fairseq.distillation.text_spans import Words
from macaron_fairseq.distillation.trajectory import spacy_phrases
from macaron_fairseq.text.marks import mark_of

spacy = pytest.importorskip("spacy", reason="spaCy is not installed: the extra [spacy]")


@pytest.fixture(scope="module")
def blank():
    return spacy.blank("en")


def annotated(pipeline, text):
    """A sentence of word/PART-OF-SPEECH/dependency/head."""
    words, pos, deps, heads = zip(*(x.split("/") for x in text.split()), strict=True)
    return spacy.tokens.Doc(
        pipeline.vocab, words=words, pos=pos, deps=deps, heads=[*map(int, heads)]
    )


# Worked out by hand; the head of a word is the number of another.
SENTENCES = {
    # AUX ADV AUX VERB is no row of AUX* ADV* VERB+; it begins at the last AUX.
    "the/DET/det/2 old/ADJ/amod/2 man/NOUN/nsubj/6 has/AUX/aux/6 often/ADV/advmod/6 "
    "been/AUX/aux/6 walking/VERB/ROOT/6 slowly/ADV/advmod/6 to/ADP/prep/6 the/DET/det/10 "
    "sea/NOUN/pobj/8": ["the old man", "been walking slowly", "the sea"],
    "she/PRON/nsubj/2 never/ADV/advmod/2 sings/VERB/ROOT/2": ["she", "never sings"],
    # A participle in a noun chunk is no phrase as well.
    "the/DET/det/2 running/VERB/amod/2 dog/NOUN/nsubj/3 barked/VERB/ROOT/3": [
        "the running dog",
        "barked",
    ],
    "can/AUX/aux/2 will/AUX/aux/2 try/VERB/ROOT/2 start/VERB/xcomp/2": ["can will try start"],
    "oh/INTJ/ROOT/0 very/ADV/advmod/0": [],
}


@pytest.mark.parametrize("text", SENTENCES)
def test_noun_chunks_and_verb_phrases(text, blank):
    doc = annotated(blank, text)
    found = spacy_phrases.phrases(doc)
    assert [doc[a : b + 1].text for a, b in found] == SENTENCES[text]


def test_of_phrases_in_one_another_the_longest_counts():
    spans = [(3, 3), (0, 2), (1, 2), (2, 4), (0, 1), (0, 2), (3, 4)]
    assert spacy_phrases.longest(spans) == [(0, 2), (2, 4)]


def test_words_are_those_of_the_training_text():
    assert spacy_phrases.words("▁the ▁ber lin ▁is", "▁") == ["the", "berlin", "is"]
    assert spacy_phrases.words("<2de> ▁ber lin ▁ ▁is ▁ &quot;", "▁") == [
        "<2de>",
        "berlin",
        "▁",
        "is",
        '"',
    ]


@pytest.mark.parametrize(
    "text",
    [
        ["<2de> ▁ber lin ▁is", "lin ▁is", "▁ ▁is", "a@@ ▁b ▁c"],
        ["a@@ b ▁ c", "@@ b", "the ▁ cat", "x@@ y@@ z"],
    ],
)
def test_words_have_the_numbers_of_training(text):
    """One mark is that of the whole text, and the other one a sign like any."""
    pieces = [line.split() for line in text]
    known = symbols(*dict.fromkeys(chain(*pieces)))
    mark = mark_of([*chain(*pieces)])
    for line, of_line in zip(text, pieces, strict=True):
        tokens = torch.tensor([[known.index(x) for x in of_line] + [known.eos()]])
        numbers = Words(known).numbers(tokens)
        assert len(spacy_phrases.words(line, mark)) == int(numbers.max()) + 1


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    """The folder of a pipeline that knows some words by rules."""
    folder = tmp_path_factory.mktemp("pipeline") / "rules"
    made = spacy.blank("en")
    ruler = made.add_pipe("attribute_ruler")
    known = {"er": "NOUN nsubj", "lower": "NOUN dobj", "is": "AUX aux", "new": "VERB ROOT"}
    for word, tags in known.items():
        pos, dep = tags.split()
        ruler.add([[{"ORTH": word}]], {"POS": pos, "DEP": dep})
    made.to_disk(folder)
    return folder


def test_the_command_writes_what_training_reads(pipeline, tmp_path, capsys):
    text = "er is new\n\nnew low@@ er lo@@ w\nis is\n"
    (tmp_path / "text").write_text(text)
    cli.main(
        ["phrases", str(tmp_path / "text"), "--spacy", str(pipeline), "-o", str(tmp_path / "out")]
    )
    assert (tmp_path / "out").read_text() == "0-0 1-2\n\n0-0 1-1\n\n"
    assert capsys.readouterr().err.splitlines()[-1] == "4 lines"
    found = text_spans.Phrases(tmp_path / "out")
    found.check(4)


def test_mistakes(blank, tmp_path, monkeypatch):
    (tmp_path / "text").write_text("er is new\n")

    def refusal(model):
        words = ["phrases", str(tmp_path / "text"), "--spacy", str(model)]
        return sentence_of(lambda: cli.main(words))

    assert "--spacy no_such is not an installed pipeline of spaCy ([E050]" in refusal("no_such")
    (tmp_path / "text").write_bytes(b"er is new\nna\xefve\n")
    assert "text, line 2 is not UTF-8" in refusal("no_such")  # before hours of work
    (tmp_path / "text").write_text("er is new\n")
    blank.to_disk(tmp_path / "blank")
    assert "does not tag and parse: give a pipeline that does" in refusal(tmp_path / "blank")
    spacy.blank("xx").to_disk(tmp_path / "xx")
    assert "spaCy finds no noun chunks in xx" in refusal(tmp_path / "xx")
    monkeypatch.setitem(sys.modules, "spacy", None)
    found = refusal("en_core_web_sm")
    assert "pip install spacy, or install this package with its extra [spacy]" in found
