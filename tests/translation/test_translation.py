"""Raw text through the stored model, which reverses strings."""

import argparse
import gzip
import hashlib
import io
import itertools
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq.models import build_model
from fairseq.models.nat import FairseqNATModel
from helpers.small import arguments, task
from helpers.stored import (
    CHECKPOINT,
    PREPROCESSING,
    altered,
    generate,
    noisy,
    random_words,
    write_data,
    write_hard_text,
)

from macaron_fairseq import UserError, cli
from macaron_fairseq.common import environment, files
from macaron_fairseq.evaluation.training import manifest
from macaron_fairseq.model.loading import load_dictionary
from macaron_fairseq.text import data_folder
from macaron_fairseq.text.data_folder import DataFolder
from macaron_fairseq.translation import ctranslate2_engine, fairseq_engine, translator
from macaron_fairseq.translation.ctranslate2_engine import CTranslate2Engine
from macaron_fairseq.translation.ctranslate2_export import export
from macaron_fairseq.translation.translator import Batching, Search

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("a data folder") / "data")


@pytest.fixture(autouse=True)
def one_thread():
    """Many are slower for a model of this size; CTranslate2 sets them, too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def engine(checkpoint=CHECKPOINT, dtype=torch.float32, *, data):
    source, target = fairseq_engine.load_dictionaries(data_folder.read(data), [])
    return fairseq_engine.FairseqEngine(str(checkpoint), source, target, Search(), CPU, dtype)


@pytest.fixture(scope="module")
def exported(data, tmp_path_factory):
    """The stored model, for CTranslate2."""
    folder = tmp_path_factory.mktemp("an export") / "float32"
    export(str(CHECKPOINT), data, folder, "float32")
    return folder


@pytest.fixture(scope="module", params=["fairseq", "ctranslate2"])
def reversal(data, exported, request):
    """A function from lines to blocks of translations, with one engine and the other."""
    folder = data_folder.read(data)
    if request.param == "fairseq":
        reverser = engine(data=data)
    else:
        reverser = CTranslate2Engine(exported, folder, Search())
    encode = folder.encoder("en")

    def translate(text, **options):
        return translator.translate(text, reverser, encode, folder.decode, Batching(**options))

    return translate


def flat(blocks):
    return [line for block in blocks for line in block]


def command(data, *args, path=CHECKPOINT):
    """The command, in this process."""
    args = ["translate", "--path", path, "--data", data, "--cpu", *args]
    cli.main([str(arg) for arg in args])


# --- what it computes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        # the , er low@@ er
        ("er lower, the", "the, er lower"),
        ("Er LOWER, the", "the, er lower"),
        # the &quot; er &quot; er low@@, whose last part finds nothing to join
        ('lower "er" the', 'the "er" er low'),
        # a is , est low@@ est , öl
        ("öl, est lowest, is a", "a is, est lowest, öl"),
    ],
)
def test_text_is_preprocessed_translated_and_joined(reversal, raw, expected):
    assert flat(reversal([raw])) == [expected]


def test_untokenised_languages_are_not_detokenised(data):
    folder = DataFolder(data, "en", "de", source_steps=["lowercase"], target_steps=[])
    assert folder.encoder("en")("THE er,") == ["the", "e@@", "r@@", ","]
    assert folder.encoder("de")("THE er") == ["T@@", "H@@", "E", "er"]
    assert folder.decode([["the", ",", "low@@", "er"]]) == ["the , lower"]


def test_each_language_is_detokenised_by_its_own_rules_where_it_was_tokenised(data):
    """Moses joins a French apostrophe to the next word."""
    line, joined = [["l&apos;", "er", "."]], ["l'er."]
    folder = DataFolder(data, "fr", "en", source_steps=["tokenize"], target_steps=["tokenize"])
    assert folder.decode(line, "fr") == joined
    assert folder.decode(line) == folder.decode(line, "en") == ["l' er."]
    folder = DataFolder(data, "fr", "en", source_steps=["tokenize"], target_steps=[])
    assert folder.decode(line, "fr") == joined
    assert folder.decode(line) == ["l&apos; er ."]


def test_a_recipes_folder_without_merges_has_whole_words(tmp_path):
    """Its preprocessing.json names all that there is; one written by hand names nothing."""
    data, hashes = tmp_path, {"dict.en.txt": "0"}
    assert DataFolder(data, "en", "de", [], [], hashes).encoder("en")("lower er") == ["lower", "er"]
    for known in ({}, {**hashes, "code": "0"}):
        with pytest.raises(UserError, match="cannot read the BPE codes"):
            DataFolder(data, "en", "de", [], [], known).encoder("en")


@pytest.mark.slow
def test_output_is_that_of_fairseq_generate(data, tmp_path, capsys):
    """One model and two, on lines longer than those they learnt, where they err."""
    write_hard_text(data, tmp_path)
    outputs = {}
    both = f"{CHECKPOINT}:{noisy(CHECKPOINT, tmp_path)}"
    for paths in (str(CHECKPOINT), both):
        flags = ["--beam", "4", "--lenpen", "0.6", "--max-len-b", "9"]
        expected = generate(tmp_path / "bin", "--path", paths, *flags, capsys=capsys)
        command(data, *flags, "--batch-size", 7, tmp_path / "raw", path=paths)
        outputs[paths] = capsys.readouterr().out.splitlines()
        assert outputs[paths] == expected and len(expected) == 41
    assert outputs[both] != outputs[str(CHECKPOINT)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_precise_enough(data, dtype):
    lines = random_words(20)
    (translated,) = engine(dtype=dtype, data=data).translate([lines])
    assert translated == [line[::-1] for line in lines]


# --- lines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lines": 3},
        {"lines": 1},
        {"max_tokens": 1},
        {"max_tokens": 25, "lines": 10},
        {"batch_size": 4},
    ],
)
def test_order_and_number_of_lines_are_kept(reversal, options):
    lines = random_words(20)
    blocks = [*reversal([" ".join(line) for line in lines], **options)]
    assert flat(blocks) == [" ".join(line[::-1]) for line in lines]
    assert all(len(block) <= options.get("lines", 2000) for block in blocks)


def test_nothing_is_read_ahead(reversal):
    """The first block is answered before the second is asked for."""
    read = []

    def lines():
        for number in range(1, 8):
            read.append(number)
            yield "the new er"

    blocks = reversal(lines(), lines=3)
    assert read == []
    assert next(blocks) == ["er new the"] * 3 and read == [1, 2, 3]
    assert next(blocks) == ["er new the"] * 3 and read == [1, 2, 3, 4, 5, 6]
    assert flat(blocks) == ["er new the"] and read == [*range(1, 8)]


def test_batches_keep_their_limits():
    """With an engine that only counts; sentences have an end, and a long one goes alone."""
    seen = []

    def translate(batches):
        for batch in batches:
            seen.append([len(sentence) for sentence in batch])
            yield [[word.upper() for word in sentence] for sentence in batch]

    counting = SimpleNamespace(max_length=1000, translate=translate, longest=lambda batch: 1000)
    rng = random.Random(1)
    lines = ["x" + " x" * rng.randrange(12) for _ in range(100)] + ["x" + " x" * 49, ""]
    done = []
    blocks = translator.translate(
        lines,
        counting,
        str.split,
        lambda sentences: [" ".join(words) for words in sentences],
        Batching(max_tokens=40, batch_size=8),
        progress=done.append,
    )
    assert flat(blocks) == [line.upper() for line in lines]
    assert seen[0] == [50]
    assert all(len(batch) * (max(batch) + 1) <= 40 and len(batch) <= 8 for batch in seen[1:])
    # None could have taken the first of the next.
    for batch, following in itertools.pairwise(seen[1:]):
        assert len(batch) == 8 or (len(batch) + 1) * (max(batch[0], following[0]) + 1) > 40
    assert sum(done) == len(lines)


def test_processes_translate_the_same(data, monkeypatch):
    """Several batches at a time, each in another process; a single one here."""
    torch.set_num_threads(2)
    lines = random_words(30)
    batches = [lines[i : i + 7] for i in range(0, 30, 7)]
    translator = engine(data=data)
    found = [*translator.translate(batches)]
    assert [x for batch in found for x in batch] == [line[::-1] for line in lines]
    monkeypatch.setattr(translator, "search", lambda batch: [[str(os.getpid())]])
    assert [*translator.translate(batches[:1])] == [[[str(os.getpid())]]]
    before = {*multiprocessing.active_children()}
    processes = [process for ((process,),) in translator.translate(batches)]
    assert len(processes) == 5 and str(os.getpid()) not in processes
    assert {*multiprocessing.active_children()} <= before


def test_a_translation_that_reaches_the_limit_is_told_of(data, tmp_path, capsys):
    source = tmp_path / "source"
    source.write_text("the new\n\nthe new the\n")
    command(data, source, "-o", tmp_path / "out", "--max-len-b", "1")
    said = capsys.readouterr().err
    assert "warning: the translation of line 3 ends at 1 token," in said and "line 2 " not in said
    command(data, source, "-o", tmp_path / "out")
    assert "warning" not in capsys.readouterr().err
    short = altered(CHECKPOINT, tmp_path, max_target_positions=3)
    command(data, source, "-o", tmp_path / "out", path=short)
    assert "warning: the translation of line 1 ends at 2 tokens," in capsys.readouterr().err


def test_flags_limit_the_batches(data, tmp_path, monkeypatch):
    sizes = []
    search = fairseq_engine.FairseqEngine.search

    def count(self, batch):
        sizes.append(len(batch))
        return search(self, batch)

    monkeypatch.setattr(fairseq_engine.FairseqEngine, "search", count)
    (tmp_path / "in").write_text("the new er\n" * 10)
    command(data, tmp_path / "in")
    command(data, tmp_path / "in", "--batch-size", "4")
    command(data, tmp_path / "in", "--max-tokens", "14")
    assert sizes == [10, 4, 4, 2, 3, 3, 3, 1]


def test_lines_end_with_a_newline_alone(data, tmp_path):
    """Of Unix or Windows, a byte order mark, other separators inside, no newline at the end."""
    text = "\ufeffthe new er\r\n\r\n \t\na new\u2028is\x85öl\x0cer\n\x01\n\nis a est"
    (tmp_path / "in").write_bytes(text.encode())
    command(data, tmp_path / "in", "-o", tmp_path / "new" / "out")
    expected = "er new the\n\n\ner öl is new a\n\n\nest a is\n"
    assert (tmp_path / "new" / "out").read_bytes() == expected.encode()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]


def test_tokens_that_the_model_does_not_know_are_told_of(data, tmp_path, capsys):
    (tmp_path / "in").write_text("the \u4f60 the\n\u4f60 z\n")
    command(data, tmp_path / "in")
    said = capsys.readouterr().err.splitlines()[-1]
    folder = data_folder.read(data)
    known = folder.symbols("en")
    tokens = [x for line in ("the \u4f60 the", "\u4f60 z") for x in folder.encoder("en")(line)]
    number = sum(x not in known for x in tokens)
    assert number >= 2
    assert f"warning: {number} of {len(tokens)} tokens are unknown to the model, such as" in said
    (tmp_path / "in").write_text("the er\n")
    command(data, tmp_path / "in")
    assert "unknown" not in capsys.readouterr().err


def test_no_lines(data, tmp_path, capsys):
    (tmp_path / "in").touch()
    command(data, tmp_path / "in")
    assert capsys.readouterr() == ("", "")


def test_a_line_that_is_too_long_is_cut_with_a_warning(data, tmp_path, capsys):
    path = altered(CHECKPOINT, tmp_path, max_source_positions=6)
    (tmp_path / "in").write_text("a new er\nthe new er est is a\nthe is a er is\n")
    command(data, tmp_path / "in", "--batch-lines", "1", path=path)
    out, err = capsys.readouterr()
    assert out.splitlines() == ["er new a", "is est er new the", "is er a is the"]
    assert err.splitlines() == [
        "warning: line 2 has 6 tokens, of which the model takes the first 5: the rest is not "
        "translated"
    ]


def test_a_file_with_a_bad_line_is_refused_at_once(data, tmp_path, monkeypatch):
    monkeypatch.setattr(fairseq_engine, "load", None)
    (tmp_path / "in").write_bytes(b"the new er\na is\nis \xff\nthe a\n")
    message = r"in, line 3 is not UTF-8 \(byte 0xff at position 4\): convert it, for .*"
    with pytest.raises(UserError, match=message):
        command(data, tmp_path / "in", "-o", tmp_path / "out")
    (tmp_path / "in.gz").write_bytes(gzip.compress(b"the new er\n"))
    with pytest.raises(UserError, match=r"in\.gz, line 1 is not UTF-8 .* unpack it, for example"):
        command(data, tmp_path / "in.gz", "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_precedes_a_bad_line_of_a_pipe_is_written(data, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    out.write_text("of another day")
    for words in (["-o", out], []):
        piped = io.BytesIO(b"the new er\na is\nis \xff\nthe a\n")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(piped))
        with pytest.raises(UserError, match="standard input, line 3 is not UTF-8"):
            command(data, "-", *words)
    assert out.read_text() == "of another day"
    assert (tmp_path / "out.part").read_text().splitlines()[0] == "er new the"
    assert capsys.readouterr().out == (tmp_path / "out.part").read_text()


def test_a_pipe_or_link_stays_one(data, tmp_path):
    (tmp_path / "in").write_text("the new er\n")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK)
    command(data, tmp_path / "in", "-o", tmp_path / "pipe")
    assert os.read(reader, 100) == b"er new the\n"
    os.close(reader)

    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    command(data, tmp_path / "in", "-o", tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "er new the\n"


# --- as a process --------------------------------------------------------------------------------


@pytest.fixture
def process(data, exported, request):
    """The command, serving a pipe line by line where the locale knows ASCII alone.

    With two threads, of which each takes a line.
    """
    # With which Python would write each line at once, whatever the command does.
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONUNBUFFERED"}
    path = {"fairseq": CHECKPOINT, "ctranslate2": exported}[request.param]
    with subprocess.Popen(
        [Path(sys.executable).with_name("macaron-fairseq"), "translate", "--data", data, "--cpu"]
        + ["--engine", request.param, "--path", path, "--batch-lines", "2", "--batch-size", "1"],
        env=environment | {"OMP_NUM_THREADS": "2", "LC_ALL": "C", "PYTHONUTF8": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell lets what it starts in the background ignore Ctrl-C, and all that this starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        # Where it does not answer, the test fails instead of waiting for ever.
        timer = threading.Timer(120, process.kill)
        timer.start()
        yield process
        timer.cancel()
        process.kill()


def say(process, text):
    process.stdin.write(text.encode())
    process.stdin.flush()


@pytest.mark.slow
@pytest.mark.parametrize("process", ["fairseq", "ctranslate2"], indirect=True)
def test_a_pipe_is_served_until_ctrl_c(process):
    say(process, "the new er\nöl is a\n")
    assert process.stdout.readline() == b"er new the\n"
    assert process.stdout.readline() == "a is öl\n".encode()
    say(process, "a new er\n\n")
    assert process.stdout.readline() == b"er new a\n"
    assert process.stdout.readline() == b"\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (-signal.SIGINT, b"")  # to a shell it is 130
    assert b"Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize("process", ["ctranslate2"], indirect=True)
def test_a_reader_that_goes_away_ends_it_quietly(process):
    say(process, "the new er\nis a\n")
    process.stdout.readline()
    process.stdout.close()
    say(process, "the new er\nis a\n")
    err = process.stderr.read().decode()
    assert process.wait(timeout=60) == 128 + signal.SIGPIPE
    assert "Traceback" not in err and "Broken" not in err


# --- mistakes ------------------------------------------------------------------------------------


def without(name):
    def spoil(data):
        (data / name).unlink()

    return spoil


def with_content(name, content):
    def spoil(data):
        (data / name).write_bytes(content)

    return spoil


def with_preprocessing(**changes):
    return with_content("preprocessing.json", json.dumps({**PREPROCESSING, **changes}).encode())


def with_sha256(name):
    """preprocessing.json knows the hashes of files, one of which is changed later."""

    def spoil(data):
        data_folder.write(data, "en", "de", PREPROCESSING["source_steps"])
        exchange_lines(data / name)

    return spoil


def exchange_lines(path):
    """As an editor may: as many lines as before, of which two are in other places."""
    first, second, *rest = path.read_text("utf-8").splitlines(keepends=True)
    path.write_text("".join([second, first, *rest]), "utf-8")


EXAMPLE = r'\{"source": "en", "target": "de", "source_steps": \["normalize", "tokenize"\]\}'
MISTAKES = {
    "no preprocessing": (
        without("preprocessing.json"),
        "DATA/preprocessing.json is missing: give the folder that the prepare stage of a recipe "
        f"made; or write the file, like {EXAMPLE}, next to data-bin/ and code",
    ),
    "no JSON": (
        with_content("preprocessing.json", b"{"),
        f"DATA/preprocessing.json is not a JSON file: it should hold a JSON object like {EXAMPLE}",
    ),
    "not UTF-8": (
        with_content("preprocessing.json", b'{"source": "\xff"}'),
        f"DATA/preprocessing.json is not a JSON file: it should hold a JSON object like {EXAMPLE}",
    ),
    "no object": (
        with_content("preprocessing.json", b"[1]"),
        f"DATA/preprocessing.json is not as expected: it should hold a JSON object like {EXAMPLE}",
    ),
    "no steps": (
        with_content("preprocessing.json", b'{"source": "en", "target": "de"}'),
        f"DATA/preprocessing.json is not as expected: it should hold a JSON object like {EXAMPLE}",
    ),
    "steps in one text": (
        with_preprocessing(source_steps="tokenize"),
        f"DATA/preprocessing.json is not as expected: it should hold a JSON object like {EXAMPLE}",
    ),
    "steps that are no texts": (
        with_preprocessing(source_steps=[1, None]),
        f"DATA/preprocessing.json is not as expected: it should hold a JSON object like {EXAMPLE}",
    ),
    "BPE among the steps": (
        with_preprocessing(source_steps=["tokenize", "bpe"]),
        "DATA/preprocessing.json names the step bpe, which follows all others: leave it out",
    ),
    "brackets in brackets": (
        with_content("preprocessing.json", b"[" * 100_000),
        f"DATA/preprocessing.json is not a JSON file: it should hold a JSON object like {EXAMPLE}",
    ),
    "other codes": (
        with_sha256("code"),
        "DATA/code is not the file that it was, as DATA/preprocessing.json says: use the data .*",
    ),
    "lines of a dictionary exchanged": (
        with_sha256("data-bin/dict.de.txt"),
        "DATA/data-bin/dict.de.txt is not the file that it was, as DATA/preprocessing.json says.*",
    ),
    "unknown step": (
        with_preprocessing(source_steps=["tokenise"]),
        r"unknown step 'tokenise': DATA/preprocessing.json takes .*\. Did you mean tokenize.*",
    ),
    "no codes": (without("code"), "cannot read the BPE codes DATA/code: No such file .*"),
    "bad codes": (
        with_content("code", b"#version: 0.2\na b c\n"),
        "DATA/code is not a file of BPE codes .*",
    ),
    "no dictionary": (
        without("data-bin/dict.de.txt"),
        "DATA/data-bin/dict.de.txt is missing: it is written by fairseq-preprocess and belongs to "
        "the model",
    ),
    "of a language model": (
        lambda data: (data / "data-bin/dict.de.txt").rename(data / "data-bin/dict.txt"),
        "DATA is of a language model, and not of two languages",
    ),
    "bad dictionary": (
        with_content("data-bin/dict.en.txt", b"er\n"),
        "cannot read the dictionary DATA/data-bin/dict.en.txt: Incorrect dictionary format.*",
    ),
    "another dictionary": (
        with_content("data-bin/dict.de.txt", b"er 1\nest 1\n"),
        f"{CHECKPOINT} embeds 16 target types, but the target dictionary has 6: use the data "
        "folder, or the dict.*.txt, that the model was trained with",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_bad_data_folder_is_refused_in_a_sentence(tmp_path, spoil, message):
    data = write_data(tmp_path / "DATA")
    (tmp_path / "in").write_text("the new er\n")
    spoil(data)
    with pytest.raises(UserError) as error:
        command(data, tmp_path / "in", "-o", tmp_path / "out")
    assert re.fullmatch(message.replace("DATA", str(data)), str(error.value))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["DATA", "in"]


@pytest.mark.parametrize("name", ["code", "data-bin/dict.de.txt"])
@pytest.mark.parametrize("folder", ["run", "run/averaged"])
def test_a_manifest_tells_of_other_data(folder, name, tmp_path):
    """Of the training, beside the checkpoint or, of an averaged one, above it."""
    data = write_data(tmp_path / "data")
    (tmp_path / folder).mkdir(parents=True)
    path = shutil.copy(CHECKPOINT, tmp_path / folder)
    manifest.write(tmp_path / "run", data, ["--arch", "macaron_transformer"])
    exchange_lines(data / name)
    message = f"{data / name} is not the file that it was, as the manifest.json of {path} says"
    with pytest.raises(UserError, match=message):
        command(data, path=path)
    with pytest.raises(UserError, match=message):
        export(str(path), data, tmp_path / "out", "float32")


def test_an_export_knows_the_codes(exported, tmp_path):
    data = write_data(tmp_path / "data")
    exchange_lines(data / "code")
    message = f"{data}/code is not the file that it was, as {exported}/export.json says"
    with pytest.raises(UserError, match=message):
        CTranslate2Engine(exported, data_folder.read(data), Search())


def test_an_export_knows_its_direction(tmp_path):
    """Joined dictionaries are the same for both."""
    data = write_data(tmp_path / "data")
    shutil.copy(data / "data-bin" / "dict.en.txt", data / "data-bin" / "dict.de.txt")
    data_folder.write(data, "en", "de", ["lowercase"])
    there = data_folder.read(data)
    hashes = {side: files.sha256(there.dictionary("en")) for side in ("source", "target")}
    content = {"dictionaries": hashes, "direction": ["de", "en"]}
    sentence = f"^{tmp_path} translates from de to en, and {data} is prepared for en to de"
    with pytest.raises(UserError, match=sentence):
        ctranslate2_engine.refuse_other_data(tmp_path, content, there)
    content["direction"].reverse()
    ctranslate2_engine.refuse_other_data(tmp_path, content, there)
    for unknown in ({}, {"direction": None}):
        found = {"dictionaries": hashes, **unknown}
        ctranslate2_engine.refuse_other_data(tmp_path, found, there)


def test_an_export_says_its_direction(exported):
    assert json.loads((exported / "export.json").read_text())["direction"] == ["en", "de"]


def test_an_address_is_no_file(data):
    with pytest.raises(UserError, match=r"^s3://x/y\.pt is an address: download the checkpoint or"):
        command(data, path="s3://x/y.pt")


def test_a_data_folder_describes_itself(tmp_path):
    data = write_data(tmp_path / "data")
    data_folder.write(data, "en", "de", ["lowercase"], tests=["a"])
    found = data_folder.read(data)
    assert (found.source, found.target) == ("en", "de")
    assert found.source_steps == found.target_steps == ["lowercase"]
    paths = data / "code", data / "data-bin" / "dict.en.txt", data / "data-bin" / "dict.de.txt"
    assert found.sha256 == {x.name: hashlib.sha256(x.read_bytes()).hexdigest() for x in paths}
    content = json.loads((data / "preprocessing.json").read_text())
    assert content["tests"] == ["a"]
    (data / "data-bin" / "preprocess.log").write_text("when, and where")
    assert data_folder.fingerprint(data / "data-bin") == content["fingerprint"]
    (data / "data-bin" / "train.bin").write_text("more")
    assert data_folder.fingerprint(data / "data-bin") != content["fingerprint"]


def test_the_folder_that_fairseq_takes_is_told_from_ours(data):
    folder = data / "data-bin"
    message = f"{folder}/preprocessing.json is missing: give {data}, the folder above"
    with pytest.raises(UserError, match=message):
        command(folder)


def test_a_checkpoint_in_place_of_the_text_is_refused(data):
    """As after `--path one.pt two.pt`, which are `--path one.pt:two.pt`."""
    words = ["translate", "--path", str(CHECKPOINT), str(CHECKPOINT), "--data", str(data)]
    with pytest.raises(UserError, match=f"--path {CHECKPOINT}:{CHECKPOINT}$"):
        cli.main(words)


def test_nothing_of_a_pipe_is_lost_and_text_may_begin_as_an_archive_does(data, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    words = ["translate", "--path", CHECKPOINT, "--data", data, "--cpu"]

    def fill():
        (tmp_path / "pipe").write_text("the new er\n")

    writer = threading.Thread(target=fill, daemon=True)
    writer.start()
    cli.main([str(x) for x in [*words, tmp_path / "pipe", "-o", tmp_path / "out"]])
    writer.join()
    assert (tmp_path / "out").read_text() == "er new the\n"
    (tmp_path / "text").write_text("PKK new er\n")
    cli.main([str(x) for x in [*words, tmp_path / "text", "-o", tmp_path / "out"]])
    assert (tmp_path / "out").read_text().endswith("\n")


def test_bad_checkpoints_are_refused_in_a_sentence(data, tmp_path):
    good, bad = str(CHECKPOINT), tmp_path / "bad.pt"
    with pytest.raises(UserError, match=f"^{bad}: no such checkpoint or export$"):
        command(data, path=f"{good}:{bad}")
    empty = f"^'{good}:' names a checkpoint or export that is empty: was a variable not set\\?$"
    with pytest.raises(UserError, match=empty):
        command(data, path=f"{good}:")
    bad.write_bytes(CHECKPOINT.read_bytes()[:1000])
    with pytest.raises(UserError, match=f"^{bad} is truncated or not a checkpoint"):
        command(data, path=f"{good}:{bad}")
    state = torch.load(good, weights_only=True)
    del state["model"]["encoder.layers.0.fc1.weight"]
    torch.save(state, bad)
    with pytest.raises(UserError, match=f"^fairseq cannot load {bad}: .*Missing key"):
        command(data, path=bad)
    torch.save({**state, "args": Namespace(arch="transformer_of_mine"), "cfg": None}, bad)
    with pytest.raises(
        UserError, match=f"^{bad} holds a model of the architecture transformer_of_mine"
    ):
        command(data, path=bad)
    torch.save({"model": state["model"]}, bad)
    with pytest.raises(UserError, match=f"^{bad} does not say which model it holds"):
        command(data, path=bad)


def stored_for(folder, source, target):
    """The stored model as one that was trained for these languages."""
    state = torch.load(CHECKPOINT, weights_only=False)
    state["cfg"]["task"] |= {"source_lang": source, "target_lang": target}
    torch.save(state, folder / "other.pt")
    return folder / "other.pt"


@pytest.mark.parametrize(("source", "target"), [("de", "en"), ("en", "fr")])
def test_a_model_of_the_opposite_direction_or_another_language_is_refused(
    source, target, data, tmp_path
):
    """Joined dictionaries are the same for both."""
    path = stored_for(tmp_path, source, target)
    sentence = f"^{path} translates from {source} to {target}, and {data} is prepared for en to de"
    with pytest.raises(UserError, match=sentence):
        command(data, path=path)


@pytest.mark.parametrize("languages", [("eng", "de_DE"), ("src", "tgt")])
def test_other_codes_of_the_same_languages_and_names_of_none_are_taken(languages, data, tmp_path):
    path = stored_for(tmp_path, *languages)
    fairseq_engine.load_dictionaries(data_folder.read(data), [str(path)])


def test_of_two_kinds_of_one_language_the_opposite_direction_is_refused(tmp_path):
    data = DataFolder(tmp_path, "de", "de_LS", [], [])
    data.refuse_other_direction(Path("model.pt"), ("de", "de_LS"))
    with pytest.raises(UserError, match=r"translates from de_LS to de, and .* for de to de_LS"):
        data.refuse_other_direction(Path("model.pt"), ("de_LS", "de"))


def test_a_table_of_another_kind_is_no_checkpoint(data, tmp_path):
    path, state = tmp_path / "bad.pt", torch.load(CHECKPOINT, weights_only=False)
    torch.save({**state, "cfg": argparse.Namespace(model=1), "args": None}, path)
    with pytest.raises(UserError, match="its 'cfg' is not a table"):
        command(data, path=path)


def test_what_is_no_translation_model_is_refused(data, monkeypatch):
    monkeypatch.setattr(fairseq_engine, "load_models", lambda *_: [torch.nn.Linear(1, 1)])
    with pytest.raises(UserError, match=f"^{CHECKPOINT} holds a Linear, which does not translate"):
        command(data)


def test_an_unknown_precision_is_refused(data):
    for precision in ("float16", "FP16", "int8"):
        with pytest.raises(UserError, match=f"no precision {precision}: give fp32, fp16, bf16"):
            fairseq_engine.load(str(CHECKPOINT), data, Search(), precision=precision)


def test_many_models_together_may_have_a_name_longer_than_any(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [f"checkpoint-number-{i:03}.pt" for i in range(20)]
    for name in names[:-1]:
        Path(name).touch()
    with pytest.raises(UserError, match=rf"^{names[-1]}: no such checkpoint$"):
        translator.refuse_missing(":".join(names), "checkpoint")
    Path(names[-1]).touch()
    translator.refuse_missing(":".join(names), "checkpoint")


@pytest.mark.parametrize("flag", ["--fp16", "--bf16"])
def test_half_precision_without_a_gpu_is_refused(data, flag):
    with pytest.raises(UserError, match=f"^{flag} needs a GPU, and --cpu rules it out: leave it"):
        command(data, flag)


def test_files_that_cannot_be_read_or_written(data, tmp_path):
    with pytest.raises(UserError, match=f"^{tmp_path}/none: no such file$"):
        command(data, tmp_path / "none")
    with pytest.raises(UserError, match=f"^{tmp_path} is a folder: name a file$"):
        command(data, tmp_path)
    (tmp_path / "in").write_text("the new er\n")
    with pytest.raises(
        UserError, match=f"^cannot write {tmp_path}/in/out: {tmp_path}/in is a file"
    ):
        command(data, tmp_path / "in", "-o", tmp_path / "in" / "out")


@pytest.mark.parametrize("flag", ["--beam", "--max-tokens", "--batch-size", "--batch-lines"])
def test_sizes_are_above_0(data, capsys, flag):
    with pytest.raises(SystemExit, match=r"^2$"):
        command(data, flag, "0")
    assert f"argument {flag}: 0 is not a whole number above 0" in capsys.readouterr().err


def test_a_length_limit_may_be_of_the_source_alone(data, tmp_path, capsys):
    (tmp_path / "in").write_text("the new er\n")
    command(data, "--max-len-a", "2", "--max-len-b", "0", tmp_path / "in")
    assert capsys.readouterr().out
    for flags in (["--max-len-b", "0"], ["--max-len-a", "0.4", "--max-len-b", "0"]):
        with pytest.raises(UserError, match="leave the translation of a word no token: give more"):
            command(data, *flags)


@pytest.mark.parametrize("flags", [["--lenpen", "1e308"], ["--max-len-a", "1e308"]], ids=str)
def test_absurd_numbers_are_refused(data, flags):
    with pytest.raises(
        UserError, match=rf"^{flags[0]} is 1e\+308: give a number from -?\d+ to \d+$"
    ):
        command(data, *flags)


@pytest.mark.parametrize("name", ["in", "link"])
def test_the_input_is_not_replaced(name, data, tmp_path):
    (tmp_path / "in").write_text("the new er\n")
    (tmp_path / "link").symlink_to("in")
    with pytest.raises(UserError, match=f"^{tmp_path / name} is one of the files to read: choose"):
        command(data, tmp_path / "in", "-o", tmp_path / name)
    assert (tmp_path / "in").read_text() == "the new er\n"


def test_the_input_is_not_replaced_by_way_of_a_new_folder(data, tmp_path):
    (tmp_path / "in").write_text("the new er\n")
    output = tmp_path / "none" / ".." / "in"
    with pytest.raises(UserError, match="in is one of the files to read: choose"):
        command(data, tmp_path / "in", "-o", output)
    assert (tmp_path / "in").read_text() == "the new er\n"


def test_the_input_does_not_grow_by_its_translation(data, tmp_path, monkeypatch):
    (tmp_path / "in").write_text("the new er\n")
    with (tmp_path / "in").open("a") as file:
        monkeypatch.setattr("sys.stdout", file)
        with pytest.raises(UserError, match="in is read, and standard output goes there: choose"):
            command(data, tmp_path / "in", "--batch-lines", "1")
    assert (tmp_path / "in").read_text() == "the new er\n"


def test_a_model_that_fills_in_a_whole_sentence_is_refused(data, monkeypatch):
    """fairseq-generate has another search for it."""
    model = FairseqNATModel.__new__(FairseqNATModel)
    monkeypatch.setattr(fairseq_engine, "load_models", lambda *_: [model])
    with pytest.raises(UserError, match="holds a FairseqNATModel, which does not translate token"):
        command(data)


def test_convolutional_models_search_with_the_beam_of_each_call(data, tmp_path):
    """fairseq makes them know the first one."""
    sizes = ["--encoder-layers", "[(16, 3)]", "--decoder-layers", "[(16, 3)]"]
    sizes += [x for side in ("encoder", "decoder") for x in (f"--{side}-embed-dim", "16")]
    args = arguments("fconv", *sizes, "--decoder-out-embed-dim", "16")
    dictionaries = [load_dictionary(data / "data-bin" / f"dict.{x}.txt") for x in ("en", "de")]
    state = torch.load(CHECKPOINT, weights_only=True)
    state["model"] = build_model(args, task(*dictionaries)).state_dict()
    state["cfg"]["model"] = Namespace(_name="fconv", **vars(args))
    torch.save(state, tmp_path / "fconv.pt")
    sentences = [["the", "new"], ["er"], ["a", "is", "the"], ["new", "er"]]
    beams = Search(beam=5, max_len_b=8), Search(beam=3, max_len_b=8)
    engines = [
        fairseq_engine.load(str(tmp_path / "fconv.pt"), data_folder.read(data), x, use_gpu=False)
        for x in beams
    ]
    engines[0].set_search(beams[1])
    found = [[*engine.translate([sentences])] for engine in engines]
    assert found[0] == found[1]


def test_threads_are_as_many_as_openmp_is_told(monkeypatch):
    for said, threads in (("3", 3), ("4,2", 4), ("", None), ("0", None), ("many", None)):
        monkeypatch.setenv("OMP_NUM_THREADS", said)
        assert environment.wanted_threads() == (threads or environment.available_cores())


@pytest.mark.parametrize("name, dtype", [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_each_precision_has_its_name(name, dtype, data):
    found = engine(dtype=fairseq_engine.PRECISIONS[name], data=data)
    assert {x.dtype for model in found.models for x in model.parameters()} == {dtype}
