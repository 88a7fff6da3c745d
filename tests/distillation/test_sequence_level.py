"""Training sets of a teacher's translations, by the stored model, which reverses strings."""

import hashlib
import json
import os
import random
import shutil
import signal
from types import SimpleNamespace

import pytest
import sacrebleu
import torch
from fairseq.data import Dictionary
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from helpers.small import SMALL_DECODER, language_task
from helpers.stored import CHECKPOINT, binarise, noisy, random_words, write_data
from helpers.students import save

from macaron_fairseq import UserError, cli
from macaron_fairseq.distillation.sequence_level import distilling, translated_pairs
from macaron_fairseq.distillation.sequence_level.training_set import TrainingSet
from macaron_fairseq.distillation.sequence_level.translated_pairs import Choice, copied
from macaron_fairseq.evaluation.training import manifest
from macaron_fairseq.text import data_folder
from macaron_fairseq.translation import fairseq_engine
from macaron_fairseq.translation.fairseq_engine import FairseqEngine
from macaron_fairseq.translation.translator import Batching, Search

SENTENCES = 26
KEEP_ALL = ("--max-copied", "1")


def write_set(folder, name, pairs):
    words = Dictionary.load(str(folder / "data-bin" / "dict.en.txt"))
    for side, language in enumerate(("en", "de")):
        sentences = [pair[side] for pair in pairs]
        binarise(folder / "data-bin" / f"{name}.en-de.{language}", words, sentences)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data folder, whose targets have errors; and a teacher that errs elsewhere."""
    folder = tmp_path_factory.mktemp("distillation")
    data, rng = write_data(folder / "data"), random.Random(1)
    sources = random_words(SENTENCES, longest=14)
    targets = [
        [rng.choice(["a", "is"]) if rng.random() < 0.2 else word for word in reversed(words)]
        for words in sources
    ]
    pairs = [*zip(sources, targets, strict=True)]
    write_set(data, "train", pairs)
    write_set(data, "valid", pairs[:3])
    write_set(data, "test", pairs[3:5])
    (data / "reference").mkdir()
    (data / "reference" / "test.de").write_text("a\n")
    (data / "data-bin" / "preprocess.log").write_text("x")
    data_folder.write(data, "en", "de", ["normalize", "lowercase", "tokenize"], ["test"])
    noisy(CHECKPOINT, folder)
    return SimpleNamespace(path=folder, data=data, pairs=pairs, teacher=folder / "noisy.pt")


def distill(folder, out, *words, teacher=None, data=None):
    cli.main(
        ["distill", "--teacher", str(teacher or folder.teacher), "--cpu", "--batch-lines", "5"]
        + ["--data", str(data or folder.data), "-o", str(out), *words]
    )


def files_of(folder):
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def lines(path):
    return path.read_text("utf-8").splitlines()


@pytest.fixture(scope="module")
def whole(folder):
    """What an uninterrupted run writes."""
    distill(folder, folder.path / "whole", *KEEP_ALL)
    return files_of(folder.path / "whole")


# --- what is written -----------------------------------------------------------------------------


def test_it_is_a_data_folder_like_any_other(folder, whole):
    out = folder.path / "whole"
    task = TranslationTask.setup_task(
        TranslationConfig(
            data=str(out / "data-bin"), source_lang="en", target_lang="de", dataset_impl="mmap"
        )
    )
    task.load_dataset("train", combine=True)
    dataset, dictionary = task.datasets["train"], task.source_dictionary
    assert len(dataset) == SENTENCES
    for i, (source, _) in enumerate(folder.pairs):
        assert dictionary.string(dataset[i]["source"]).split() == source
        assert dictionary.string(dataset[i]["target"]) == lines(out / "bpe" / "train.de")[i]
    for kind in ("raw", "tokenized", "bpe"):  # of whole words without punctuation
        found = lines(out / kind / "train.en")
        assert found == [" ".join(source) for source, _ in folder.pairs]
    assert manifest.describe(out)["tests"] == ["test"]
    same = ("code", "reference/test.de", "data-bin/dict.de.txt", "data-bin/valid.en-de.de.bin")
    original = files_of(folder.data)
    assert all(whole[name] == original[name] for name in same)
    assert "data-bin/preprocess.log" not in whole
    found = json.loads(whole["preprocessing.json"])
    assert found["fingerprint"] == data_folder.fingerprint(out / "data-bin")
    assert found["distilled"]["of_fingerprint"] == data_folder.fingerprint(folder.data / "data-bin")
    sha256 = hashlib.sha256(folder.teacher.read_bytes()).hexdigest()
    assert found["distilled"]["teacher"] == [{"name": "noisy.pt", "sha256": sha256}]
    # Raw text is what the command translate makes of these sentences.
    (folder.path / "in").write_text("\n".join(" ".join(x) for x, _ in folder.pairs) + "\n")
    cli.main(
        ["translate", "--path", str(folder.teacher), "--data", str(folder.data), "--cpu"]
        + ["--batch-lines", "5", str(folder.path / "in"), "-o", str(folder.path / "translated")]
    )
    assert lines(out / "raw" / "train.de") == lines(folder.path / "translated")


def test_best_of_is_what_sacrebleu_says_and_mix_comes_after_the_original(folder, whole):
    out = folder.path / "best"
    distill(folder, out, "--best-of", "4", "--beam", "4", "--mix", *KEEP_ALL)
    data = data_folder.read(folder.data)
    engine = fairseq_engine.load(str(folder.teacher), data, Search(beam=4), use_gpu=False)
    expected = []
    for source, target in folder.pairs:
        hypotheses = data.decode(next(engine.translate_n_best([[source]], 4))[0])
        (reference,) = data.decode([target])
        scores = [sacrebleu.sentence_bleu(x, [reference]).score for x in hypotheses]
        expected.append(hypotheses[scores.index(max(scores))])
    found = lines(out / "raw" / "train.de")
    assert found == [" ".join(target) for _, target in folder.pairs] + expected
    assert len(lines(out / "raw" / "train.en")) == 2 * SENTENCES
    assert expected != whole["raw/train.de"].decode().splitlines()  # a choice was made


def stub(translations):
    """An engine that knows the answers, by the source's first word."""

    def translate_n_best(batches, number):
        for batch in batches:
            yield [[translations[source[0]]] for source in batch]

    return SimpleNamespace(max_length=8, longest=lambda batch: 9, translate_n_best=translate_n_best)


def distil_with(engine, folder, data, out, choice, size=2000):
    """The result with that engine in place of the teacher, in parts of so many lines."""
    teacher = str(folder.teacher)
    data = data_folder.read(data)
    return distilling.distill(
        teacher, data, out, Search(), Batching(lines=size), choice, lambda: engine
    )


def test_training_files_that_are_not_whole(tmp_path):
    """Missing, cut off, empty, or of something else."""

    def cut(path, size):
        path.write_bytes(path.read_bytes()[:size])

    for i, damage in enumerate(
        (
            lambda path: path.with_suffix(".bin").unlink(),
            lambda path: cut(path.with_suffix(".bin"), -8),
            lambda path: cut(path, -8),
            lambda path: cut(path, 0),
            lambda path: path.write_bytes(b"something else"),
        )
    ):
        data = write_data(tmp_path / f"data{i}")
        write_set(data, "train", [(["the"], ["the"]), (["a", "is"], ["is", "a"])])
        path = data / "data-bin" / "train.en-de.de.idx"
        damage(path)
        with pytest.raises(UserError, match=f"^{path.with_suffix('')}.idx or .bin is missing, dam"):
            TrainingSet(data_folder.read(data))


def test_filters_and_their_counts(folder, tmp_path):
    """Each pair has its case; counted by hand."""
    data = write_data(tmp_path / "data")
    cases = {
        "the": (["the", "new", "a", "is"], ["er", "est"]),  # 4 is not more than 2 * 2; kept
        "new": (["new"] + ["a"] * 8, ["er"]),  # nine tokens are too long for this teacher
        "is": (["is", "new"], ["er"] * 9),  # as long as can be
        "est": (["est", "a"], []),  # empty
        "er": (["er", "is"], ["the", "new", "a", "a", "a"]),  # 5 > 2 * 2
        ",": ([",", "is", "a", "new", "er"], ["est", "er"]),  # and the other way
        "a": (["a", ",", "new", "is"], ["new", ",", "a", "est"]),  # 2 of 3 words copied
        "öl": (["öl", ",", "a", "is"], ["öl", "est", ",", ","]),  # 1 of 2
        "low@@": (["low@@", "er"], ["low@@", "est"]),  # other words, of equal parts; kept
        "&quot;": (["&quot;", "a"], ["er", "<unk>"]),
    }
    write_set(data, "train", [(source, source) for source, _ in cases.values()])
    engine = stub({first: target for first, (_, target) in cases.items()})
    choice = Choice(max_ratio=2, max_copied=0.5)
    result = distil_with(engine, folder, data, tmp_path / "out", choice, size=3)
    assert result.kept == result.pairs == 3 and result.sentences == 10
    assert [*result.dropped.values()] == [1, 1, 1, 1, 2, 1]
    assert lines(tmp_path / "out" / "bpe" / "train.de") == ["er est", "öl est , ,", "low@@ est"]
    assert lines(tmp_path / "out" / "tokenized" / "train.de") == ["er est", "öl est , ,", "lowest"]
    found = json.loads((tmp_path / "out" / "preprocessing.json").read_text())["distilled"]
    assert found["dropped"]["copied"] == 1 and found["kept"] == 3
    assert "dropped: source too long for the teacher 1, cut at" in str(result)


def test_best_of_chooses_among_translations_that_can_be_kept(folder, tmp_path):
    """Nine tokens are the limit, and none may be unknown. The reference is the source."""
    data = write_data(tmp_path / "data")
    cases = {  # from the teacher's best translation on
        "the": [["er"] * 4, ["the"] * 9, ["the"] * 7 + ["<unk>"], ["est", "the", "the", "the"]],
        "new": [["er"] * 9, ["new"] * 9, ["est"] * 9],
    }
    write_set(data, "train", [([first] * 8, [first] * 8) for first in cases])
    engine = stub({})
    engine.translate_n_best = lambda batches, n: ([cases[x[0]] for x in some] for some in batches)
    choice = Choice(best_of=4, max_copied=1)
    result = distil_with(engine, folder, data, tmp_path / "out", choice)
    assert lines(tmp_path / "out" / "bpe" / "train.de") == ["est the the the"]
    assert result.kept == 1 and result.dropped["cut at the maximum length"] == 1


@pytest.mark.parametrize(
    ("source", "target", "share"),
    [
        ("Tom is ill", "tom ist krank", 1 / 3),
        ("1 2 3 .", "1 2 3 .", 0),  # no word has a letter
        ("&quot; a &quot;", "&quot; b &quot;", 0),
        ("a a b", "a a c c", 1 / 2),
        ("lower x", "lower", 1),
    ],
)
def test_copied(source, target, share):
    assert copied(source, target) == pytest.approx(share)


def test_pieces_of_sentencepiece_are_no_words(folder, tmp_path):
    """Neither for the filter of copies, nor in the texts."""
    data = write_data(tmp_path / "data")
    for language in ("en", "de"):
        path = data / "data-bin" / f"dict.{language}.txt"
        pieces = path.read_text("utf-8").replace("low@@", "▁low").replace("the", "▁the")
        path.write_text(pieces.replace("new", "▁new"), "utf-8")
    cases = {
        "▁low": (["▁low", "er"], ["▁new", "er"]),  # lower, newer
        "▁the": (["▁the", "est", "▁new"], ["▁the", "est"]),  # a copy
    }
    write_set(data, "train", [(source, source) for source, _ in cases.values()])
    engine = stub({first: target for first, (_, target) in cases.items()})
    result = distil_with(engine, folder, data, tmp_path / "out", Choice())
    assert result.kept == 1 and result.dropped["copied"] == 1
    for kind, expected in (("raw", "newer"), ("tokenized", "newer"), ("bpe", "▁new er")):
        assert lines(tmp_path / "out" / kind / "train.de") == [expected]


def test_parts_can_be_kept_and_joined_again_by_other_filters(
    folder, whole, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "out"
    distill(folder, out, "--max-ratio", "1", "--keep-parts", *KEEP_ALL)
    assert files_of(out) != whole and (tmp_path / "out.parts").is_dir()
    distill(folder, out, "--max-ratio", "1", "--keep-parts", *KEEP_ALL)  # it is there already
    assert (tmp_path / "out.parts").is_dir()
    monkeypatch.setattr(fairseq_engine, "load", None)  # nothing is translated
    capsys.readouterr()
    distill(folder, out, "--shard", "2/3")  # a job that is queued again leaves the others' parts
    assert "shard 2/3 is done" in capsys.readouterr().out and (tmp_path / "out.parts").is_dir()
    shutil.rmtree(out)
    distill(folder, out, *KEEP_ALL)
    assert files_of(out) == whole and not (tmp_path / "out.parts").exists()


def test_sets_that_fairseq_would_join_are_all_translated(folder, whole, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(folder.data, data)
    for path in (data / "data-bin").glob("train*"):
        path.unlink()
    write_set(data, "train", folder.pairs[:9])
    write_set(data, "train1", folder.pairs[9:])
    distill(folder, tmp_path / "out", *KEEP_ALL, data=data)
    found = files_of(tmp_path / "out")
    assert found["data-bin/train.en-de.de.bin"] == whole["data-bin/train.en-de.de.bin"]
    assert not any("train1" in name for name in found)


# --- killed, in shards ---------------------------------------------------------------------------


@pytest.fixture
def seen(monkeypatch, tmp_path):
    """A file of the sentences that are translated; SIGKILL in the third part where `kills`."""
    path, search = tmp_path / "seen", FairseqEngine.search_n_best
    state = SimpleNamespace(kills=False, lines=lambda: lines(path))

    def count(self, batch, number):
        if state.kills and path.exists() and len(lines(path)) == 12:
            os.kill(os.getpid(), signal.SIGKILL)
        with path.open("a") as file:
            file.writelines(" ".join(sentence) + "\n" for sentence in batch)
        return search(self, batch, number)

    monkeypatch.setattr(FairseqEngine, "search_n_best", count)
    return state


def test_killed_and_resumed_is_the_same_and_nothing_is_translated_twice(
    folder, whole, tmp_path, seen
):
    out = tmp_path / "out"
    seen.kills = True
    child = os.fork()
    if not child:
        try:
            distill(folder, out, *KEEP_ALL, "--batch-size", "2")
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    found = sorted(x.name for x in (tmp_path / "out.parts").iterdir())
    parts = ["lines-00000001-00000005", "lines-00000006-00000010"]
    assert found == [*parts, "lines-00000011-00000015.begun", "lock"] and not out.exists()
    with (tmp_path / "out.parts" / found[2]).open("a") as file:
        file.write('[1, "cut')  # as a kill can leave it
    seen.kills = False
    distill(folder, out, *KEEP_ALL, "--batch-size", "2")
    assert files_of(out) == whole
    assert sorted(seen.lines()) == sorted(" ".join(source) for source, _ in folder.pairs)
    assert {path.name for path in tmp_path.iterdir()} == {"out", "seen"}


def test_ctrl_c_is_one_sentence(folder, tmp_path, monkeypatch, capsys):
    def interrupted(self, batch, number):
        raise KeyboardInterrupt

    monkeypatch.setattr(FairseqEngine, "search_n_best", interrupted)
    with pytest.raises(SystemExit) as ended:
        distill(folder, tmp_path / "out")
    assert ended.value.code == 130
    said = "interrupted: what is translated is kept; give the same command again, and it goes on"
    assert capsys.readouterr().err.splitlines()[-1] == said


def test_joined_shards_are_the_whole(folder, whole, tmp_path, seen, capsys, monkeypatch):
    out = tmp_path / "out"
    for shard in ("3/3", "1/3"):
        distill(folder, out, "--shard", shard)
    assert "shard 1/3 is done (2 parts of 6); " in capsys.readouterr().out
    with pytest.raises(UserError, match="lacks 2 parts of 6, lines 11 to 15, 16 to 20: run their"):
        distill(folder, out, "--join")
    with pytest.raises(UserError, match="was made with best of 1, and now it is 2"):
        distill(folder, out, "--shard", "2/3", "--best-of", "2")
    distill(folder, out, "--shard", "2/3")
    with monkeypatch.context() as patched:
        patched.setattr(translated_pairs, "reason_to_drop", lambda *_: translated_pairs.RATIO)
        none_kept = r"no translation is kept \(dropped: lengths too different"
        with pytest.raises(UserError, match=none_kept):
            distill(folder, out, "--join")
    assert not out.exists()
    capsys.readouterr()
    distill(folder, out, "--shard", "2/3", "--mix")
    assert "have no effect with --shard: give them to --join" in capsys.readouterr().err
    distill(folder, out, "--join", *KEEP_ALL)  # filters may change until then
    assert files_of(out) == whole
    assert len(seen.lines()) == SENTENCES


def test_killed_when_all_is_written_the_same_command_clears_up(
    folder, whole, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "out"
    with monkeypatch.context() as changed, pytest.raises(KeyError, match="killed"):
        changed.setattr(distilling.Parts, "remove", lambda self: {}["killed"])
        distill(folder, out, *KEEP_ALL)
    assert (tmp_path / "out.parts").is_dir() and files_of(out) == whole
    with pytest.raises(UserError, match="out is there already: choose another name"):
        distill(folder, out, "--max-copied", "0.9")
    capsys.readouterr()
    distill(folder, out, *KEEP_ALL)
    assert f"wrote {out}: kept {SENTENCES} of {SENTENCES} translations" in capsys.readouterr().out
    assert files_of(out) == whole and not (tmp_path / "out.parts").exists()


def test_parts_in_another_order_are_refused(folder, tmp_path):
    out = tmp_path / "out"
    distill(folder, out, "--shard", "1/1")
    part = sorted((tmp_path / "out.parts").iterdir())[1]
    header, first, second, *rest = part.read_text().splitlines(keepends=True)
    part.write_text("".join([header, second, first, *rest]))
    with pytest.raises(UserError, match="lines-00000006-00000010 is not of sentence 6 of "):
        distill(folder, out, "--join")
    part.write_text("".join([header, "x\n", second, *rest]))
    with pytest.raises(UserError, match="lines-00000006-00000010 is damaged: remove it"):
        distill(folder, out, "--join")


# --- mistakes ------------------------------------------------------------------------------------


def of_other_direction(tmp_path):
    state = torch.load(CHECKPOINT, weights_only=True)
    state["cfg"]["task"] = {"_name": "translation", "source_lang": "de", "target_lang": "en"}
    torch.save(state, tmp_path / "other.pt")
    return tmp_path / "other.pt"


def of_other_kind(tmp_path):
    save(tmp_path / "lm.pt", *SMALL_DECODER, arch="transformer_lm", for_task=language_task(60))
    return tmp_path / "lm.pt"


def of_other_dictionaries(tmp_path):
    shutil.copy(CHECKPOINT, tmp_path / "other.pt")
    known = {"data": {"sha256": {"dict.de.txt": "0" * 64}}}
    (tmp_path / "manifest.json").write_text(json.dumps(known))
    return tmp_path / "other.pt"


MISTAKES = {
    "no teacher": ({"teacher": "missing.pt"}, [], "missing.pt: no such checkpoint"),
    "direction": (
        {"teacher": of_other_direction},
        [],
        "translates from de to en, --data .* from en to de: give a teacher of the same",
    ),
    "kind": (
        {"teacher": of_other_kind},
        [],
        r"lm.pt is a language model .*, but --data .* is for a translation model .*: give a tea",
    ),
    "dictionaries": (
        {"teacher": of_other_dictionaries},
        [],
        "with another dict.de.txt than --data .* has: give the data that it was trained with$",
    ),
    "beam": ({}, ["--best-of", "6"], "--best-of 6 needs as many hypotheses: give --beam 6"),
    "no training set": (
        {"data": lambda tmp_path: write_data(tmp_path / "data")},
        [],
        "holds no training set from en to de: give a folder",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(folder, tmp_path, name):
    changes, words, message = MISTAKES[name]
    changes = {key: x(tmp_path) if callable(x) else x for key, x in changes.items()}
    with pytest.raises(UserError, match=message):
        distill(folder, tmp_path / "out", *words, **changes)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_there_stays(folder, whole):
    with pytest.raises(UserError, match="whole is there already: choose another name"):
        distill(folder, folder.path / "whole")
    assert files_of(folder.path / "whole") == whole


def test_sides_of_different_length_are_refused(folder, tmp_path):
    data = write_data(tmp_path / "data")
    write_set(data, "train", folder.pairs[:4])
    words = Dictionary.load(str(data / "data-bin" / "dict.en.txt"))
    binarise(data / "data-bin" / "train.en-de.de", words, [x for _, x in folder.pairs[:3]])
    with pytest.raises(UserError, match="has 4 sentences of en and 3 of de: run fairseq-preproc"):
        distill(folder, tmp_path / "out", data=data)


def test_the_teacher_goes_where_it_is_told(folder, tmp_path, monkeypatch):
    class LoadedError(Exception):
        pass

    def load(*args, use_gpu, **options):
        raise LoadedError(use_gpu)

    monkeypatch.setattr(fairseq_engine, "load", load)
    with pytest.raises(LoadedError, match="False"):  # `distill` gives --cpu
        distill(folder, tmp_path / "out")
