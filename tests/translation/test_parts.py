"""Shards of a file's translation: resumed, checked, joined; with the stored model."""

import json
import math
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from helpers.stored import CHECKPOINT, PREPROCESSING, noisy, random_words, write_data

from macaron_fairseq import UserError, cli
from macaron_fairseq.common import locks
from macaron_fairseq.text import data_folder
from macaron_fairseq.translation import fairseq_engine
from macaron_fairseq.translation.fairseq_engine import FairseqEngine
from macaron_fairseq.translation.file_parts import TextFile
from macaron_fairseq.translation.journal import Journal
from macaron_fairseq.translation.parts import Parts, Shard, folder_of, settings_of
from macaron_fairseq.translation.translator import Search


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data, a checkpoint that errs, and text with what the ends of lines can be."""
    folder = tmp_path_factory.mktemp("shards")
    write_data(folder / "data")
    noisy(CHECKPOINT, folder)
    lines = [" ".join(words) for words in random_words(22, longest=12)]
    lines[3], lines[8] = "", lines[8] + "\r"
    (folder / "in").write_text("\ufeff" + "\n".join(lines), "utf-8", newline="\n")
    return folder


def translate(folder, output, *words, path=None, text=None):
    cli.main(
        ["translate", "--path", str(path or folder / "noisy.pt"), "--data", str(folder / "data")]
        + ["--cpu", "--batch-lines", "4", str(text or folder / "in"), "-o", str(output), *words]
    )


@pytest.fixture(scope="module")
def whole(folder):
    translate(folder, folder / "whole")
    return (folder / "whole").read_bytes()


def test_tokens_that_the_model_does_not_know_are_told_of(folder, tmp_path, capsys):
    (tmp_path / "data").symlink_to(folder / "data")
    (tmp_path / "in").write_text("the \u4f60\n", "utf-8")
    translate(tmp_path, tmp_path / "out", "--shard", "1/1", path=CHECKPOINT)
    assert "are unknown to the model, such as \u4f60" in capsys.readouterr().err


@pytest.mark.parametrize("count", [1, 3, 8])
def test_joined_shards_are_the_whole(folder, tmp_path, whole, count, capsys):
    out = tmp_path / "out"
    for number in reversed(range(1, count + 1)):
        translate(folder, out, "--shard", f"{number}/{count}")
    assert not out.exists() and f"shard 1/{count} is done" in capsys.readouterr().out
    translate(folder, out, "--join")
    assert out.read_bytes() == whole and whole.count(b"\n") == 22
    for word in ("--join", f"--shard=1/{count}"):
        with pytest.raises(UserError, match="out is there already: choose another name, or remove"):
            translate(folder, out, word)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_is_done_is_not_done_again(folder, tmp_path, whole, monkeypatch):
    seen = []
    search = FairseqEngine.search

    def count(self, batch):
        seen.extend(map(tuple, batch))
        return search(self, batch)

    monkeypatch.setattr(FairseqEngine, "search", count)
    translate(folder, tmp_path / "out", "--shard", "1/2")
    assert len(seen) == 11
    translate(folder, tmp_path / "out", "--shard", "1/2")
    assert len(seen) == 11
    translate(folder, tmp_path / "out", "--shard", "2/2")
    assert len(seen) == 21  # all but the empty line
    translate(folder, tmp_path / "out", "--join")
    assert (tmp_path / "out").read_bytes() == whole


def test_two_processes_do_not_do_the_same_parts(folder, tmp_path, whole, monkeypatch):
    out, (reader, writer) = tmp_path / "out", os.pipe()
    child = os.fork()
    if not child:

        def stuck(self, batch):
            os.write(writer, b"x")
            signal.pause()

        try:
            monkeypatch.setattr(FairseqEngine, "search", stuck)
            translate(folder, out, "--shard", "1/2")
        finally:
            os._exit(1)
    os.close(writer)
    assert os.read(reader, 1) == b"x"
    os.close(reader)
    try:
        monkeypatch.setattr(locks, "SECONDS", 0)
        for shard in ("1/2", "2/3"):  # of the latter, one part of two is another's
            with pytest.raises(UserError, match="another process is at work on these parts in "):
                translate(folder, out, "--shard", shard)
        translate(folder, out, "--shard", "2/2")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    translate(folder, out, "--shard", "1/2")
    translate(folder, out, "--join")
    assert out.read_bytes() == whole


def test_what_is_written_of_a_part_is_not_done_again(folder, tmp_path, whole, monkeypatch):
    out, seen = tmp_path / "out", []
    search = FairseqEngine.search

    def interrupted(self, batch):
        if len(seen) == 3:
            raise KeyboardInterrupt
        seen.extend(map(tuple, batch))
        return search(self, batch)

    monkeypatch.setattr(FairseqEngine, "search", interrupted)
    with pytest.raises(SystemExit, match="130"):
        translate(folder, out, "--shard", "1/1", "--batch-size", "1")
    seen.append("interrupted")
    translate(folder, out, "--shard", "1/1", "--batch-size", "1")
    seen.remove("interrupted")
    assert len(seen) == len({*seen}) == 21
    translate(folder, out, "--join", "--batch-size", "1")
    assert out.read_bytes() == whole


def test_jobs_with_other_settings_that_begin_together_are_refused(tmp_path):
    one, other = (Parts(tmp_path / "out.parts", {"beam": beam}, 2, 1) for beam in (5, 4))

    def fill(parts, shard):
        parts.fill(lambda lines: ["a"], lambda *_: [{0: "b"}], shard, "test")

    with one.held(Shard(1, 2)), other.held(Shard(2, 2)):  # nothing is there yet
        fill(one, Shard(1, 2))
        with pytest.raises(UserError, match="was made with beam 5, and now it is 4"):
            fill(other, Shard(2, 2))


def test_a_lock_that_was_made_anew_keeps_nobody_out(tmp_path, monkeypatch):
    parts = Parts(tmp_path / "out.parts", {}, 2, 1)
    claim = locks.claim

    def wait(file, *bytes):
        """Until another job has joined the parts, and a third has begun them anew."""
        parts.remove()
        parts.folder.mkdir()
        (parts.folder / "lock").touch()
        return claim(file, *bytes)

    monkeypatch.setattr(locks, "claim", wait)
    with (
        pytest.raises(UserError, match="another process has just joined the parts"),
        parts.held(Shard()),
    ):
        pass


def test_a_journal_is_what_was_written_whole(tmp_path):
    path = tmp_path / "journal"
    with Journal(path, "of this") as journal:
        journal.add({3: "ö\u2028", 0: ""})
        journal.add({1: "b"})
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with Journal(path, "of this") as journal:
            done = whole[:end].count(b"\n") - 1
            assert journal.done == dict([(3, "ö\u2028"), (0, ""), (1, "b")][: max(done, 0)])
            journal.add({7: "more"})
        with Journal(path, "of this") as journal:
            assert journal.done[7] == "more"
    for damaged in ('[null, "x"]', "[7, null]", "7", "{}"):
        path.write_bytes(whole + f"{damaged}\n".encode())
        with Journal(path, "of this") as journal:
            assert len(journal.done) == 3
        assert path.read_bytes() == whole
    with Journal(path, "of that") as journal:
        assert not journal.done
    with pytest.raises(UserError, match=r"cannot write .*: Is a directory"):
        Journal(tmp_path, "of this")


def test_parts_that_do_not_belong_together_are_refused(folder, tmp_path):
    out = tmp_path / "out"
    translate(folder, out, "--shard", "1/2")
    with pytest.raises(UserError, match="lacks 3 parts of 6, lines 13 to 16, 17 to 20, 21 to 22"):
        translate(folder, out, "--join")
    with pytest.raises(UserError, match="was made with beam 5, and now it is 4: give the same"):
        translate(folder, out, "--shard", "2/2", "--beam", "4")
    with pytest.raises(UserError, match=r"was made with model [0-9a-f]+, and now it is [0-9a-f]+"):
        translate(folder, out, "--join", path=CHECKPOINT)
    other = shutil.copytree(folder / "data", tmp_path / "data")
    with (other / "code").open("a") as codes:  # of BPE
        codes.write("a b\n")
    with pytest.raises(UserError, match=r"was made with data [0-9a-f ]+, and now it is [0-9a-f ]+"):
        translate(folder, out, "--shard", "2/2", "--data", str(other))
    (changed := tmp_path / "in").write_text((folder / "in").read_text().replace("a", "b", 1))
    with pytest.raises(UserError, match=r"was made with source [0-9a-f]+, and now it is [0-9a-f]+"):
        translate(folder, out, "--shard", "2/2", text=changed)
    translate(folder, out, "--shard", "2/2")
    (part, *_) = sorted((tmp_path / "out.parts").iterdir())
    content = part.read_text("utf-8")
    part.write_text(content + "one more\n", "utf-8")
    with pytest.raises(UserError, match="has 5 lines and not 4: remove it"):
        translate(folder, out, "--join")
    for damaged in ("not ours\n", '{"settings": [1]}\n', "[]\n", "{}\n"):
        part.write_text(damaged, "utf-8")
        with pytest.raises(UserError, match="lines-00000001-00000004 is damaged: remove it"):
            translate(folder, out, "--join")
    assert not out.exists()


def test_parts_of_another_search_batch_or_precision_are_refused(folder, tmp_path):
    """What a GPU did in fp16 is not joined to what a CPU did."""
    translate(folder, tmp_path / "out", "--shard", "1/2")
    for flag, was, now in (
        ("--lenpen", 1.0, 0.6),
        ("--max-len-a", 0.0, 1.5),
        ("--max-len-b", 200, 50),
        ("--batch-lines", 4, 5),
        ("--max-tokens", 4096, 100),
        ("--batch-size", 128, 2),
    ):
        name = flag.strip("-").replace("-", "_")
        with pytest.raises(UserError, match=f"was made with {name} {was}, and now it is {now}: "):
            translate(folder, tmp_path / "out", "--join", flag, str(now))
    with pytest.raises(UserError, match="was made with precision None, and now it is fp16: "):
        translate(folder, tmp_path / "out", "--join", "--fp16")


@pytest.mark.parametrize(
    ("side", "now"),
    [
        ("source", "lowercase tokenize / normalize lowercase tokenize"),
        ("target", "normalize lowercase tokenize / lowercase tokenize"),
    ],
)
def test_parts_of_text_that_was_prepared_another_way_are_refused(side, now, folder, tmp_path):
    data, was = tmp_path / "data", "normalize lowercase tokenize / normalize lowercase tokenize"
    translate(folder, tmp_path / "out", "--shard", "1/2")
    shutil.copytree(folder / "data", data)
    other = {**PREPROCESSING, f"{side}_steps": ["lowercase", "tokenize"]}
    (data / "preprocessing.json").write_text(json.dumps(other))
    for word in ("--shard=2/2", "--join"):
        with pytest.raises(UserError, match=f"was made with steps {was}, and now it is {now}: "):
            translate(folder, tmp_path / "out", word, "--data", str(data))


def test_a_file_has_no_parts(tmp_path):
    file = tmp_path / "out.parts"
    file.touch()
    with pytest.raises(UserError, match=f"^cannot write {file}: Not a directory"):
        Parts(file, {}, 4, 4).refuse_others()


def test_a_part_that_another_job_finishes_meanwhile_is_none(tmp_path, monkeypatch):
    folder = tmp_path / "out.parts"
    folder.mkdir()
    (folder / "lines-00000001-00000004.begun").symlink_to("gone")  # as one that was listed
    Parts(folder, {}, 4, 4).refuse_others()
    Parts(tmp_path / "joined", {}, 4, 4).refuse_others()


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "1/", "a/b", "1/0"])
def test_a_shard_is_one_of_several(text, capsys):
    with pytest.raises(SystemExit):
        cli.main(["translate", "--path", "x", "--data", "x", "--shard", text])
    assert f"{text} should be I/N, such as 1/8 to 8/8" in capsys.readouterr().err


def test_shards_need_files(folder, tmp_path):
    with pytest.raises(UserError, match="--shard and --join need files"):
        translate(folder, "-", "--shard", "1/2")


def test_where_parts_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert folder_of(Path("a")) == Path("a.parts")
    assert folder_of(Path()) == tmp_path.with_name(f"{tmp_path.name}.parts")


def test_what_no_shard_could_do_is_refused_before_any_begins(folder, tmp_path):
    text = tmp_path / "in.txt"
    text.write_bytes(b"one\ntwo\n\xff\n")
    with pytest.raises(UserError, match="line 3 is not UTF-8"):
        TextFile(text, 1)
    with pytest.raises(UserError, match=r"^--compute-type is for an export"):
        translate(folder, tmp_path / "out", "--shard", "1/100", "--compute-type", "int8")
    with pytest.raises(UserError, match=f"^{tmp_path} is a folder and no export: name a"):
        translate(folder, tmp_path / "out", "--shard", "1/2", path=tmp_path)


@pytest.mark.parametrize(("total", "count"), [(10, 3), (2, 5), (0, 2), (7, 7)])
def test_shares_are_all_of_it_once(total, count):
    shares = [Shard(number, count).share(total) for number in range(1, count + 1)]
    assert [i for share in shares for i in share] == [*range(total)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_no_lines(tmp_path):
    parts = Parts(tmp_path / "parts", {}, lines=0, size=5)
    assert parts.left(Shard()) == [] and [*parts.read()] == []


def test_output_that_is_not_finite_is_refused(folder, tmp_path):
    state = torch.load(CHECKPOINT, weights_only=True)
    for name, parameter in state["model"].items():
        if ".fc" in name:
            parameter.fill_(1e30)
    torch.save(state, tmp_path / "large.pt")
    data = data_folder.read(folder / "data")
    engine = fairseq_engine.load(str(tmp_path / "large.pt"), data, Search(), use_gpu=False)
    with pytest.raises(UserError, match=r"output is not finite.*; the sentence begins"):
        engine.search([["the", "new"]])


@pytest.mark.parametrize("ends", ["without a score", "never"])
def test_a_sentence_that_is_not_finite_is_named(ends, folder, monkeypatch):
    """Whatever else is in its batch."""
    data = data_folder.read(folder / "data")
    engine = fairseq_engine.load(str(CHECKPOINT), data, Search(), use_gpu=False)
    step = engine.task.inference_step
    bad = engine.task.source_dictionary.index("is")

    def spoiled(generator, models, sample):
        rows = sample["net_input"]["src_tokens"].eq(bad).any(1).tolist()
        if ends == "never":
            assert not any(rows)
        found = step(generator, models, sample)
        for beam, is_bad in zip(found, rows, strict=True):
            beam[0]["score"] = math.nan if is_bad else beam[0]["score"]
        return found

    monkeypatch.setattr(engine.task, "inference_step", spoiled)
    with pytest.raises(UserError, match=r"not finite.*; the sentence begins a is the$"):
        engine.search([["the", "new"], ["er"], ["a", "is", "the"], ["est", "the", "a"]])


def test_what_does_not_fit_into_memory_is_searched_in_halves(folder, monkeypatch):
    """With the limit of the whole batch: a translation is as long as in one piece."""
    data = data_folder.read(folder / "data")
    search = Search(max_len_a=0.5, max_len_b=0)
    engine = fairseq_engine.load(str(CHECKPOINT), data, search, use_gpu=False)
    batch = [["the", "new"], ["er"] * 9, ["a"], ["is"] * 4, ["est", "the", "a"]]
    whole = engine.search_n_best(batch, 2)
    assert max(len(best) for best, *_ in whole) == engine.longest(batch)
    tried, step = [], engine.task.inference_step

    def small(generator, models, sample):
        tried.append(len(sample["id"]))
        if len(sample["id"]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return step(generator, models, sample)

    monkeypatch.setattr(engine.task, "inference_step", small)
    assert engine.search_n_best(batch, 2) == whole
    assert tried == [5, 3, 2, 1, 2]

    def none(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(engine.task, "inference_step", none)
    with pytest.raises(UserError, match="a single sentence does not fit: lower --beam"):
        engine.search_n_best(batch, 1)


def test_a_kill_while_parts_are_removed_leaves_none_under_their_name(tmp_path, monkeypatch):
    found = Parts(tmp_path / "out.parts", {}, 3, 1)
    found.folder.mkdir()
    found.path(range(1)).touch()

    def killed(path, ignore_errors):
        if path.is_dir():
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        found.remove()
    assert not found.folder.exists()


def test_what_lies_among_the_parts_is_not_removed(folder, tmp_path, capsys):
    out, log = tmp_path / "out", tmp_path / "out.parts" / "1.log"
    log.parent.mkdir()
    log.write_text("of a job")
    with pytest.raises(UserError, match=f"^{log} is in the folder of the parts, which is removed"):
        translate(folder, out, "--shard", "1/1")
    parts = Parts(log.parent, {}, 3, 1)
    parts.path(range(1)).touch()
    parts.remove()  # as if the log had come meanwhile
    assert len([*log.parent.iterdir()]) == 2
    assert f"warning: {log.parent} stays: it, or " in capsys.readouterr().err
    log.rename(tmp_path / "1.log")
    (log.parent / ".nfs01").touch()
    parts.remove()
    assert not log.parent.exists()


def test_an_output_is_replaced_by_its_own_parts_alone(folder, tmp_path):
    out = tmp_path / "out"
    out.write_text("of earlier")
    folder_of(out).mkdir()
    with pytest.raises(UserError, match="out is there already: choose another name"):
        translate(folder, out, "--shard", "1/1")
    assert out.read_text() == "of earlier"


@pytest.mark.parametrize("kept", [0, -5])
def test_a_part_that_was_cut_off_is_not_joined(kept, folder, tmp_path):
    out = tmp_path / "out"
    translate(folder, out, "--shard", "1/1")
    part = sorted(folder_of(out).glob("lines-*"))[1]
    whole = part.read_bytes()
    part.write_bytes(whole[:kept])
    with pytest.raises(UserError, match=f"^{part} is damaged: remove it, and "):
        translate(folder, out, "--join")
    part.unlink()
    translate(folder, out, "--shard", "1/1")
    assert part.read_bytes() == whole


@pytest.mark.parametrize(
    "steps, told", [(["tokenize"], "en de"), (["lowercase"], None), ([], None)]
)
def test_parts_know_by_whose_rules_text_is_split(steps, told, tmp_path):
    """Earlier versions had none for these names: their parts are of other tokens."""
    data = write_data(tmp_path / "data")
    (tmp_path / "model.pt").touch()
    shutil.copy(data / "data-bin" / "dict.en.txt", data / "data-bin" / "dict.eng.txt")
    for name, expected in (("eng", told), ("en", None)):
        data_folder.write(data, name, "de", steps)
        found = settings_of(str(tmp_path / "model.pt"), data_folder.read(data), Search())
        assert found.get("languages") == expected


@pytest.mark.parametrize("changed", ["two.pt", "data/code", "data/data-bin/dict.de.txt"])
def test_parts_know_each_model_of_an_ensemble_and_each_file_of_the_data(changed, tmp_path):
    data = data_folder.read(write_data(tmp_path / "data"))
    for name in ("one.pt", "two.pt"):
        (tmp_path / name).write_text(name)
    models = f"{tmp_path / 'one.pt'}{os.pathsep}{tmp_path / 'two.pt'}"
    before = settings_of(models, data, Search())
    assert settings_of(models, data, Search()) == before
    with (tmp_path / changed).open("a") as file:
        file.write("more")
    assert settings_of(models, data, Search()) != before


def test_a_shard_tells_how_much_of_the_whole_is_done(tmp_path):
    """Five parts, of which the first of two shards has two."""
    parts = Parts(tmp_path / "out.parts", {}, lines=5, size=1)
    (tmp_path / "out.parts").mkdir()
    every = parts.ranges()
    for lines in every[:2]:
        parts.path(lines).touch()
    said = parts.said(Shard(1, 2))
    assert said == f"shard 1/2 is done (2 parts of 5); {tmp_path / 'out.parts'} has 2 of 5"
    for lines in every[2:]:
        parts.path(lines).touch()
    assert parts.said(Shard(2, 2)).endswith("has 5 of 5; --join writes the whole")
