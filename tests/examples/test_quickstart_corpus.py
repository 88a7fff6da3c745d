"""The corpus of the quickstart: what it promises, against pairs written by hand."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT

pytest.importorskip("babel")
pytest.importorskip("num2words")

import make_corpus

SCRIPT = ROOT / "examples" / "quickstart" / "make_corpus.py"
SIDES = [f"{split}.{side}" for split in ("train", "valid", "test") for side in ("en", "de")]
SMALL = ["--train", "1200", "--valid", "150", "--test", "150"]


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)],
        env=os.environ | environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def read(folder):
    return {side: (folder / side).read_bytes() for side in SIDES}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus") / "new" / "folder"
    assert make_corpus.main([str(folder), *SMALL]) == 0
    return folder


@pytest.fixture(scope="module")
def lines(corpus):
    return {side: text.decode("utf-8").split("\n")[:-1] for side, text in read(corpus).items()}


# --- the files -----------------------------------------------------------------------------------


def test_sizes_are_those_asked_for(corpus, lines):
    assert sorted(path.name for path in corpus.iterdir()) == sorted(SIDES)
    assert [len(lines[side]) for side in SIDES] == [1200, 1200, 150, 150, 150, 150]


def test_default_sizes_are_quick_to_make_and_of_the_length_a_small_model_can_take(tmp_path, capsys):
    assert make_corpus.main([str(tmp_path)]) == 0
    texts = {side: text.decode("utf-8") for side, text in read(tmp_path).items()}
    assert [texts[side].count("\n") for side in SIDES] == [24000] * 2 + [1000] * 4
    for text in texts.values():
        assert 8 <= len(text.split()) / text.count("\n") <= 14
    summary = capsys.readouterr().err
    assert summary.count("\n") == 1
    assert "24000 train, 1000 valid, 1000 test" in summary
    assert re.search(r"babel \d+\.\d+.*num2words \d+\.\d+", summary)


def test_no_sentence_occurs_twice_in_a_split_or_across_splits(lines):
    for side in ("en", "de"):
        everything = [
            line for split in ("train", "valid", "test") for line in lines[f"{split}.{side}"]
        ]
        assert len(set(everything)) == len(everything)


def test_lines_are_clean_text(corpus, lines):
    for side, text in read(corpus).items():
        assert text.endswith(b"\n") and b"\r" not in text, side
    for side_lines in lines.values():
        for line in side_lines:
            assert line and line == " ".join(line.split()), line
            assert not re.search("[\u00a0\u00ad\u2009\u202f{}]", line), line


def test_names_of_the_test_set_mostly_occur_in_training_but_its_sentences_are_new(lines):
    known = {word for line in lines["train.en"] for word in line.split()}
    words = [word for line in lines["test.en"] for word in line.split()]
    assert sum(word in known for word in words) / len(words) > 0.9


# --- the seed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_same_seed_gives_the_same_bytes_whatever_the_hash_seed(corpus, tmp_path, hash_seed):
    done = run(tmp_path, *SMALL, "--seed", 1, PYTHONHASHSEED=hash_seed)
    assert (done.returncode, done.stdout) == (0, "")
    assert read(tmp_path) == read(corpus)


def test_another_seed_gives_another_corpus(corpus, tmp_path):
    assert make_corpus.main([str(tmp_path), *SMALL, "--seed", "2"]) == 0
    assert all(read(tmp_path)[side] != text for side, text in read(corpus).items())


def test_another_training_size_leaves_the_test_set_as_it_is(corpus, tmp_path):
    options = ["--train", "10", "--valid", "150", "--test", "150"]
    assert make_corpus.main([str(tmp_path), *options]) == 0
    for side in ("valid.en", "valid.de", "test.en", "test.de"):
        assert (tmp_path / side).read_bytes() == (corpus / side).read_bytes()


# --- what the sentences say ----------------------------------------------------------------------


# Written by hand, from the languages and not from the libraries.
@pytest.mark.parametrize(
    ("slot", "english", "german"),
    [
        ("city", "Ho Chi Minh City", "Ho-Chi-Minh-Stadt"),
        ("country", "South Korea", "Südkorea"),
        ("territory", "Switzerland", "Schweiz"),
        ("language", "French", "Französisch"),
        ("currency", "Swedish Krona", "Schwedische Krone"),
        ("date", "March 1, 2001", "1. März 2001"),
        ("day", "Thursday, March 1, 2001", "Donnerstag, dem 1. März 2001"),
        ("month", "March", "März"),
        ("month_day", "February 29", "29. Februar"),
        ("month_year", "May 1999", "Mai 1999"),
        ("quarter", "1st quarter 2001", "1. Quartal 2001"),
        ("week", "week 9 of 2001", "Woche 9 des Jahres 2001"),
        ("weekday", "Wednesday", "Mittwoch"),
        ("time", "5:45 PM", "17:45 Uhr"),
        ("time", "12:05 AM", "00:05 Uhr"),
        ("hours", "9:15 AM \u2013 2:30 PM", "09:15\u201314:30 Uhr"),
        ("duration", "3 hours", "3 Stunden"),
        ("ago", "5 days ago", "vor 5 Tagen"),
        ("ahead", "in 2 weeks", "in 2 Wochen"),
        ("price", "€12.50", "12,50 €"),
        ("money", "1,250 Swedish kronor", "1.250 Schwedische Kronen"),
        ("big_money", "$1.2M", "1,2 Mio. $"),
        ("big_money", "€3.5B", "3,5 Mrd. €"),
        ("people", "3.5 million", "3,5 Millionen"),
        ("percent", "12.5%", "12,5 %"),
        ("distance", "2.5 miles", "2,5 Meilen"),
        ("energy", "1,500 kilowatt-hours", "1.500 Kilowattstunden"),
        ("size", "30 cm", "30 cm"),
        ("temperature", "-2.5 degrees Celsius", "-2,5 Grad Celsius"),
        ("spoons", "1.5 cups", "1,5 Tassen"),
        ("number", "one", "eins"),
        ("number", "three hundred and forty-five", "dreihundertfünfundvierzig"),
        ("count", "seventeen", "siebzehn"),
        ("ordinal", "third", "dritte"),
        ("ordinal", "twenty-first", "einundzwanzigste"),
        ("year", "nineteen eighty-four", "neunzehnhundertvierundachtzig"),
        ("year", "two thousand and five", "zweitausendfünf"),
        (
            "spelled",
            "1,200 is written “one thousand, two hundred”",
            "1.200 schreibt man „eintausendzweihundert“",
        ),
    ],
)
def test_a_slot_says_the_same_in_both_languages(slot, english, german):
    rng = random.Random(5)
    draws = (make_corpus.SLOTS[slot](rng) for _ in range(200_000))
    assert next((pair[1] for pair in draws if pair[0] == english), None) == german


def test_lists_are_written_with_and_or_or():
    pairs = [("Spain", "Spanien")] * 3
    slots = {style: make_corpus.listing(pairs, style) for style in ("standard", "or")}
    assert slots["standard"](random.Random(0)) == (
        "Spain, Spain, and Spain",
        "Spanien, Spanien und Spanien",
    )
    assert slots["or"](random.Random(0)) == (
        "Spain, Spain, or Spain",
        "Spanien, Spanien oder Spanien",
    )


def test_things_are_never_counted_as_eins():
    rng = random.Random(3)
    assert not any(make_corpus.count(rng)[1].endswith("eins") for _ in range(2_000))


def test_places_in_running_text_take_no_article_in_german():
    with_article = (
        "Schweiz Türkei Slowakei Mongolei Ukraine Iran Irak Jemen Libanon Sudan Niederlande"
    )
    german = {pair[1] for pair in make_corpus.COUNTRIES}
    assert not german & set(with_article.split())


@pytest.mark.parametrize("frame", make_corpus.FRAMES, ids=lambda frame: frame[0])
def test_a_frame_has_the_same_fields_on_both_sides(frame):
    english, german = ({*re.findall(r"{(.*?)}", side)} for side in frame)
    assert english == german
    assert {field.rstrip("0123456789") for field in english} <= set(make_corpus.SLOTS)


def test_there_is_a_use_for_every_slot():
    fields = re.findall(r"{(\w+?)\d*}", "".join(english for english, _ in make_corpus.FRAMES))
    assert set(fields) == set(make_corpus.SLOTS)


def test_fields_of_one_slot_never_get_the_same_value(monkeypatch):
    monkeypatch.setitem(
        make_corpus.SLOTS, "city", make_corpus.one_of([("Rome", "Rom"), ("X", "Y")])
    )
    rng = random.Random(0)
    filled = {
        make_corpus.fill(("{city1} to {city2}", "{city2} aus {city1}"), rng) for _ in range(50)
    }
    assert filled == {("Rome to X", "Y aus Rom"), ("X to Rome", "Rom aus Y")}


# --- mistakes and accidents ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--train", "-5"], "'-5' is not a whole number above 0"),
        (["--valid", "0"], "'0' is not a whole number above 0"),
        (["--test", "many"], "'many' is not a whole number above 0"),
        (["--seed", "x"], "invalid int value: 'x'"),
        (["--train", "199000"], "201000 pairs are wanted, but at most 200000 can be made"),
    ],
)
def test_a_mistake_gets_one_sentence_and_status_2(tmp_path, capsys, arguments, complaint):
    with pytest.raises(SystemExit) as left:
        make_corpus.main([str(tmp_path), *arguments])
    assert left.value.code == 2
    answer = capsys.readouterr().err
    assert complaint in answer and answer.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_unwritable_folder_gets_one_sentence_and_no_traceback(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        done = run(folder, "--train", 5, "--valid", 5, "--test", 5)
        assert done.returncode == 2
        assert done.stderr.startswith(f"make_corpus.py: cannot write to {folder}: ")
        assert done.stderr.count("\n") == 1


def test_without_arguments_it_says_what_is_missing():
    done = run()
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "OUTPUT_DIR" in done.stderr


def test_without_babel_it_says_how_to_get_it(tmp_path):
    (tmp_path / "babel.py").write_text("raise ImportError('No module named babel')")
    done = run(tmp_path / "out", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert (
        done.stderr.count("\n") == 1
        and 'pip install "babel==2.18.*" "num2words==0.5.*"' in done.stderr
    )


def test_help_names_the_files_and_the_defaults(capsys):
    with pytest.raises(SystemExit) as left:
        make_corpus.main(["--help"])
    assert left.value.code == 0
    told = capsys.readouterr().out
    assert all(word in told for word in [*SIDES, "24000", "1000", "OUTPUT_DIR", "--seed"])


@pytest.mark.parametrize("accident", ["write_text", "replace"])
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, accident):
    path = tmp_path / "train.en"
    path.write_text("old\n")

    def break_off(self, *arguments, **options):
        if accident == "write_text":
            self.write_bytes(b"ha")  # half of it is on the disk by now
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, accident, break_off)
    with pytest.raises(KeyboardInterrupt):
        make_corpus.write_lines(path, ["new", "lines"])
    assert [(found.name, found.read_text()) for found in tmp_path.iterdir()] == [
        ("train.en", "old\n")
    ]
