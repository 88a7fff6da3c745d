"""The steps of text against Moses' own scripts, many processes, and `macaron-fairseq tokenize`."""

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import archives
from sacremoses import MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes

from macaron_fairseq import cli
from macaron_fairseq.common import text_lines
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.text import corpus, languages, marks, tokenization
from macaron_fairseq.text.tokenization import Pipeline

# --- steps ---------------------------------------------------------------------------------------

# The right-hand sides were printed by Moses' own scripts as the Python package mosestokenizer 1.2.1
# has them: here tokenizer-v1.1.perl -q -l LANGUAGE.
TOKENIZED = {
    "en": {
        "Mr. Smith didn't pay $3,000.50 (in cash) on Jan. 5.": (
            "Mr. Smith didn &apos;t pay $ 3,000.50 ( in cash ) on Jan. 5 ."
        ),
        "\"It's 5 o'clock,\" she said... and left!": (
            "&quot; It &apos;s 5 o &apos;clock , &quot; she said ... and left !"
        ),
        "The 1990's hits: rock & roll, A|B, [x] <y>.": (
            "The 1990 &apos;s hits : rock &amp; roll , A &#124; B , &#91; x &#93; &lt; y &gt; ."
        ),
        "Well-known e-mail: first.last@example.com, No. 5, No. Yes.": (
            "Well-known e-mail : first.last @ example.com , No. 5 , No . Yes ."
        ),
    },
    "de": {
        "Das kostet z.B. 3.000,50 € bzw. mehr, sagt Dr. Meier.": (
            "Das kostet z.B. 3.000,50 € bzw. mehr , sagt Dr. Meier ."
        ),
        "Am 5. Mai ging's los: „Wie geht's?“ \u2013 gut…": (
            "Am 5. Mai ging &apos; s los : „ Wie geht &apos; s ? “ \u2013 gut …"
        ),
        "Die S-Bahn (Linie 7) fährt um 8.30 Uhr. Nr. 5 nicht.": (
            "Die S-Bahn ( Linie 7 ) fährt um 8.30 Uhr . Nr. 5 nicht ."
        ),
    },
    "fr": {
        "L'homme n'a pas dit « aujourd'hui ».": (
            "L&apos; homme n&apos; a pas dit « aujourd&apos; hui » ."
        )
    },
}

# The same with the option -a, where that makes a difference.
SPLIT_AT_HYPHENS = {
    "Well-known e-mail : first.last @ example.com , No. 5 , No . Yes .": (
        "Well @-@ known e @-@ mail : first.last @ example.com , No. 5 , No . Yes ."
    ),
    "Die S-Bahn ( Linie 7 ) fährt um 8.30 Uhr . Nr. 5 nicht .": (
        "Die S @-@ Bahn ( Linie 7 ) fährt um 8.30 Uhr . Nr. 5 nicht ."
    ),
}

# By normalize-punctuation.perl -l LANGUAGE.
NORMALIZED = {
    "en": {
        "“Well,” he said \u2013 it\u2019s 5 % ( or so ) …": (
            '"Well," he said - it\'s 5% (or so) ...'
        ),
        "He said \"yes\", then ''no''. `So` :": 'He said "yes," then " no " . \'So\':',
    },
    "de": {
        "Er sagte: „Ja.“ und ging —schnell; 1\u00a0000 Leute « kamen » .": (
            'Er sagte: "Ja". und ging - schnell; 1,000 Leute " kamen " .'
        ),
        'Das heißt "so",  und (so) !': 'Das heißt "so", und (so)!',
        "Er sagte: „Ja.“": 'Er sagte: "Ja".',
    },
    "fr": {
        "«\u00a0Bonjour\u00a0», dit-il\u00a0; c\u2019est à 20\u00a0%.": (
            '"Bonjour", dit-il; c\'est à 20%.'
        )
    },
}


@pytest.mark.parametrize("language", ["en", "de", "fr"])
def test_steps_do_what_moses_does(language):
    plain, split = (Pipeline([s], language) for s in ("tokenize", "tokenize-hyphens"))
    for raw, tokens in TOKENIZED[language].items():
        assert plain(raw) == tokens
        assert split(raw) == SPLIT_AT_HYPHENS.get(tokens, tokens)
    normalize = Pipeline(["normalize"], language)
    for raw, normalized in NORMALIZED[language].items():
        assert normalize(raw) == normalized


def moses(script, *flags):
    """One of Moses' scripts, under any of the names that it has in packages."""
    folder = Path(os.environ["MOSES_SCRIPTS"])
    path = next(
        p for p in (folder / f"{script}.perl", folder / f"{script}-v1.1.perl") if p.exists()
    )

    def lines(raw):
        done = subprocess.run(
            ["perl", path, *flags],
            input=archives.text(raw),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        return [line.strip() for line in done.stdout.decode().removesuffix("\n").split("\n")]

    return lines


@pytest.mark.skipif(
    "MOSES_SCRIPTS" not in os.environ, reason="MOSES_SCRIPTS names no folder with tokenizer.perl"
)
@pytest.mark.parametrize("language", ["en", "de"])
def test_steps_agree_with_the_scripts_of_moses_at_hand(language):
    side = ("en", "de").index(language)
    raw = [pair[side] for pair in archives.sentences(500, 9) + archives.ODD]
    raw += [*TOKENIZED[language], *NORMALIZED[language]]
    for step, script in {
        "normalize": moses("normalize-punctuation", "-l", language),
        "tokenize": moses("tokenizer", "-q", "-l", language),
        "tokenize-hyphens": moses("tokenizer", "-q", "-a", "-l", language),
    }.items():
        assert [*map(Pipeline([step], language), raw)] == script(raw), step


def test_tokens_are_those_of_sacremoses_where_letters_are_looked_up():
    raw = [
        "Die U.S.A. Nord",
        "In den U.S.A. z.B. am 3.4. um 5.30.",
        "Nr. 5. nicht. Ja. ja",
        "é.É. ß.",
        "3.a 3.4.",
        "",
    ]
    for language in ("en", "de", "fr"):
        ours, theirs = Pipeline(["tokenize"], language), MosesTokenizer(language)
        assert [*map(ours, raw)] == [theirs.tokenize(line, return_str=True) for line in raw]


def test_printable_puts_a_space_for_each_character_of_class_c():
    # Tab, bell, soft hyphen, zero-width space, private use and unassigned are; NBSP is none.
    printable = Pipeline(["printable"], "en")
    assert printable("a\tb\x07c\u00add\u200be\ue000f\U000e0080g\u00a0h") == "a b c d e f g\u00a0h"


def test_steps_are_done_in_their_order():
    raw = "Das heißt „SO“"
    assert Pipeline(["normalize", "lowercase", "tokenize"], "de")(raw) == (
        "das heißt &quot; so &quot;"
    )
    assert Pipeline(["tokenize", "lowercase"], "de")(raw) == "das heißt „ so “"
    assert Pipeline([], "de")(raw) == raw


@pytest.mark.parametrize("steps", [[step] for step in tokenization.STEPS] + [[*tokenization.STEPS]])
def test_a_line_stays_one_line(steps):
    odd = ["", " ", "a\x0bb\x0cc\x1cd\x85e\u2028f\u2029g\rh", '."', "…", "…\u2028", "\u2028"]
    apply = Pipeline(steps, "de")
    for line in odd + [side for pair in archives.ODD for side in pair]:
        assert "\n" not in apply(line)
    assert apply("") == ""


CODES = "#version: 0.2\nl o\nlo w</w>\n"


@pytest.fixture
def codes(tmp_path):
    path = tmp_path / "codes of BPE"
    path.write_text(CODES)
    return path


@pytest.mark.parametrize(
    ("tokens", "mark"),
    [
        (["a@@", "b"], "@@"),
        (["▁a", "b"], "▁"),
        (["a", "b@@c", "d▁e"], ""),
        (["The▁", "c", "at▁"], "▁"),  # of a model that writes the mark behind words
        (["▁", "a@@", "b@@"], "@@"),
        (["▁x", "▁y", "z@@"], "▁"),
        (["▁", *["word"] * 999], "▁"),
        (["▁", *["word"] * 1000], ""),  # a sign in a text of words
        ([], ""),
    ],
)
def test_the_mark_of_tokens_is_the_frequent_one(tokens, mark):
    assert marks.mark_of(tokens) == mark


def test_pieces_are_seen_wherever_the_mark_is():
    """SentencePiece also writes none before the first word, or one behind each."""
    cut = ["▁The ▁c at", "The ▁cat ▁sat", "The▁ c at▁ sat▁"]
    assert all(map(marks.has_pieces, cut))
    assert marks.join_tokens(cut, "▁") == ["The cat", "The cat sat", "The cat sat"]
    for line in cut[:2]:
        marks.refuse_suffixes(line.split(), "")
    with pytest.raises(UserError, match=r"are behind the words, by its option .*: ask elsewhere$"):
        marks.refuse_suffixes(cut[2].split(), "ask elsewhere")
    text = ["Name : ▁ ▁", "a word", "", "a sign ▁ in a text"]
    assert not any(map(marks.has_pieces, text))


def test_the_mark_of_a_dictionary_is_by_how_often_its_symbols_occur():
    """Of pieces that are characters the mark is one in thousands, and the most frequent one."""
    characters = ["▁", *map(chr, range(0x4E00, 0x4E00 + 5000))]
    assert marks.mark_of(characters, [9000, *[3] * 5000]) == "▁"
    assert marks.mark_of(characters, [9, *[3] * 5000]) == ""


def test_tokens_are_joined_by_their_mark():
    pieces = ["▁the ▁ber lin , ▁is", "", "▁ ▁x@@ ▁y"]
    assert marks.join_tokens(pieces, "▁") == ["the berlin, is", "", "x@@ y"]
    for mark in ("@@", ""):
        assert marks.join_tokens(["a@@ b ▁c d@@"], mark) == ["ab ▁c d"]


def test_bpe_applies_the_merges(codes):
    segment = Pipeline(["lowercase", "bpe"], "en", codes)
    assert segment("Low lower slow") == "low lo@@ w@@ e@@ r s@@ low"


@pytest.mark.parametrize(
    "line",
    [
        "",
        " ",
        " \r",
        "slow",
        " low  lower ",
        "low  slow",
        "\tlow",
        "low\r",
        "\r s \r ",
        "lo\u00a0w\u3000 s",
    ],
)
def test_bpe_is_subword_nmts_with_any_white_space(line, codes):
    with codes.open() as file:
        expected = tokenization.BPE(file).process_line(line)
    assert Pipeline(["bpe"], "en", codes)(line) == expected


def test_bpe_forgets_words_before_they_fill_the_memory(codes, monkeypatch):
    made, segmented = [], []

    class Spy(tokenization.BPE):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

        def segment_tokens(self, tokens, dropout=0):
            segmented.extend(tokens)
            return super().segment_tokens(tokens, dropout)

    monkeypatch.setattr(tokenization, "BPE", Spy)
    monkeypatch.setattr(tokenization, "CACHE", 10)
    segment = Pipeline(["bpe"], "en", codes)
    for number in range(1000, 2000):
        assert segment(f"{number} ") == "@@ ".join(str(number)) + " "
        assert len(made[0].cache) <= 1
    segment("1990 1000 1999")
    assert segmented[-2:] == ["1999", "1000"]  # the others are remembered


def test_wrong_steps_and_codes_get_a_sentence(tmp_path):
    with pytest.raises(
        UserError, match=r"unknown step 'tokenise': the preprocessing takes .*Did you mean tokenize"
    ):
        Pipeline(["normalize", "tokenise"], "de")
    with pytest.raises(UserError, match="needs a file of merges: name it with --codes"):
        Pipeline(["bpe"], "de")
    with pytest.raises(UserError, match=r"cannot read the BPE codes .*nowhere: No such file"):
        Pipeline(["bpe"], "de", tmp_path / "nowhere")
    for content in (b"", b"no merges at all\n", b"caf\xe9 s\n"):
        (tmp_path / "codes").write_bytes(content)
        with pytest.raises(UserError, match="codes is not a file of BPE codes"):
            Pipeline(["bpe"], "de", tmp_path / "codes")


def test_merges_of_fastbpe_need_a_version(tmp_path):
    """They join the end of a word to its last letter, as those of version 0.2 do."""
    path = tmp_path / "codes"
    path.write_text("t h\nth e</w>\n")
    words = ["--steps", "bpe", "--codes", path, "--file", "en", "-", tmp_path / "out"]
    with pytest.raises(UserError, match=r"look like fastBPE's: put a line '#version: 0.2'"):
        command(*words)
    assert Pipeline(["bpe"], "en", path)("the") == "th@@ e"  # for a model that has read such text
    path.write_text("#version: 0.2\nt h\nth e</w>\n")
    assert Pipeline(["bpe"], "en", path)("the then") == "the th@@ e@@ n"
    path.write_text("t h\nth e\nthe </w>\n")  # of version 0.1, which needs no line
    assert Pipeline(["bpe"], "en", path)("the then") == "the the@@ n"


def test_a_signal_while_codes_are_read_accuses_no_file(tmp_path, monkeypatch):
    def ended(file):
        raise SystemExit(143)

    (tmp_path / "codes").write_text("#version: 0.2\na b\n")
    monkeypatch.setattr(tokenization, "BPE", ended)
    with pytest.raises(SystemExit) as end:
        Pipeline(["bpe"], "de", tmp_path / "codes")
    assert end.value.code == 143


@pytest.mark.parametrize(
    "code, codes", [("en", "EN en-GB en_us eng"), ("fr", "fra fre FR-ca"), ("de", "deu ger")]
)
def test_a_language_has_several_codes(code, codes, capsys):
    """Moses' rules go by one of them: of English, `It 's` and `don 't`; of German, quotes."""
    text = "It's said: \u201eWe don't!\u201c L'ami d'un \u00ab\u00a0chien\u00a0\u00bb."
    steps = ["normalize", "tokenize"]
    tokens = Pipeline(steps, code)(text)
    for other in codes.split():
        assert Pipeline(steps, other)(text) == tokens
        assert tokenization.detokenize([tokens], other) == tokenization.detokenize([tokens], code)
    assert not capsys.readouterr().err


def test_codes_of_languages_are_those_of_sacremoses():
    known = {*NonbreakingPrefixes().available_langs.values()} - {"mni", "tdt", "yue"}  # no shorter
    assert known | {"ja", "ko"} == {*languages.CODES}
    assert tokenization.detokenize(["It 's John 's dog ."], "eng") == ["It's John's dog."]
    of_iso = {"spa": "es", "ita": "it", "swe": "sv", "nld": "nl", "gre": "el", "por": "pt"}
    of_iso |= {"fin": "fi", "lit": "lt", "lav": "lv", "slk": "sk", "slv": "sl", "cmn": "zh"}
    assert {code: languages.short_code(code) for code in of_iso} == of_iso


def test_codes_that_no_step_reads_are_refused(tmp_path):
    words = ["tokenize", "--steps", "tokenize", "--codes", str(tmp_path), "--language", "en"]
    with pytest.raises(UserError, match="--codes is for the step bpe: add it to --steps, or drop"):
        cli.main(words)


def test_an_unknown_language_is_told_once(capsys):
    tokenization.tokenizer.cache_clear()
    Pipeline(["tokenize"], "de")
    assert not capsys.readouterr().err
    Pipeline(["normalize", "tokenize"], "xx")
    Pipeline(["tokenize-hyphens"], "xx")
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "no abbreviations for the language 'xx'" in told


# --- on all cores --------------------------------------------------------------------------------


def in_blocks(lines, size):
    for first in range(0, len(lines), size):
        content = "".join(line + "\n" for line in lines[first : first + size])
        yield text_lines.Block("corpus", first + 1, content.encode())


def test_workers_change_nothing():
    lines = [side for pair in archives.sentences(100, 3) for side in pair]
    apply = Pipeline(["normalize", "lowercase", "tokenize"], "en")
    expected = [apply(line) for line in lines]
    assert len(set(expected)) > 100
    for workers in (1, 2, 3):
        done = b"".join(corpus.process(in_blocks(lines, 7), apply, workers)).decode()
        assert done.split("\n") == [*expected, ""]
    assert not [*corpus.process([], apply, workers=2)]


def test_more_workers_than_a_machine_can_hold():
    work = corpus.process([], Pipeline(["lowercase"], "en"), workers=1_000_000)
    with pytest.raises(UserError, match=r"1000000 worker processes on .* --workers"):
        next(work)


@pytest.mark.parametrize("workers", [1, 2])
def test_memory_does_not_grow_with_the_corpus(workers):
    taken = 0

    def numbers():
        nonlocal taken
        for taken in range(1, 1000):
            yield text_lines.Block("numbers", taken, b"%d\n" % taken)

    results = corpus.process(numbers(), Pipeline(["lowercase"], "en"), workers)
    for got in range(1, 200):
        assert next(results) == b"%d\n" % got
        ahead = taken - got
        assert ahead < 2 * workers
    assert workers == 1 or ahead >= 1  # else nothing is done at the same time
    results.close()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="there is no /proc")
def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    script = (
        "import os, signal, sys; sys.argv[0] = 'macaron-fairseq'\n"
        "from macaron_fairseq.common.text_lines import Block\n"
        "from macaron_fairseq.text.corpus import Pipeline, process\n"
        "block = Block('x', 1, b'x\\n')\n"
        "done = process([block] * 9, Pipeline(['lowercase'], 'en'), workers=2)\n"
        "next(done)\n"
        "print(open(f'/proc/self/task/{os.getpid()}/children').read(), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        printed, _ = process.communicate(timeout=120)  # to its end: when the last of them has gone
    assert len(printed.split()) >= 2 and process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_line_is_named_whoever_reads_it(workers, tmp_path):
    path = tmp_path / "corpus"
    path.write_bytes(b"fine\n" * 9 + b"na\xefve\n" + b"fine\n" * 5)
    blocks = text_lines.read_blocks(path, 4)
    with pytest.raises(UserError, match=r"corpus, line 10 is not UTF-8 \(byte 0xef at position 3"):
        [*corpus.process(blocks, Pipeline(["lowercase"], "en"), workers)]


def test_a_bad_line_is_named_before_anything_is_written(tmp_path):
    (tmp_path / "good").write_bytes(b"fine\n")
    (tmp_path / "bad").write_bytes(b"fine\n" * 9 + b"na\xefve\n")
    texts = [("en", tmp_path / name, tmp_path / f"{name}.out") for name in ("good", "bad")]
    with pytest.raises(UserError, match=r"bad, line 10 is not UTF-8"):
        corpus.tokenize(texts, ["lowercase"], workers=1)
    assert sorted(x.name for x in tmp_path.iterdir()) == ["bad", "good"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_carriage_return_within_a_line_is_refused_where_it_stays(workers, tmp_path):
    """fairseq would begin a line there; most steps take it for white space."""
    (tmp_path / "in").write_bytes(b"one\r\ntwo\rthree\n")
    text = [("en", tmp_path / "in", tmp_path / "out")]
    with pytest.raises(UserError, match=r"in, line 2 has a carriage return within it, which"):
        corpus.tokenize(text, ["lowercase"], workers=workers)
    corpus.tokenize(text, ["tokenize"], workers=workers)
    assert (tmp_path / "out").read_bytes() == b"one\ntwo three\n"
    with pytest.raises(UserError, match="workers is -1: give 1 or more"):
        corpus.tokenize(text, ["tokenize"], workers=-1)


def test_codes_may_begin_with_a_byte_order_mark(codes, tmp_path):
    marked = tmp_path / "marked"
    marked.write_bytes(b"\xef\xbb\xbf" + codes.read_bytes())
    line = "lower newest widest lowest"
    found, expected = (Pipeline(["bpe"], "en", path)(line) for path in (marked, codes))
    assert found == expected != line


def test_a_pipeline_goes_to_processes_that_do_not_fork(codes):
    apply = Pipeline(["lowercase", "tokenize", "bpe"], "de", codes)
    copy = pickle.loads(pickle.dumps(apply))
    assert copy("Slow, low!") == apply("Slow, low!") == "s@@ low , low !"


def test_a_killed_worker_gets_a_sentence(monkeypatch):
    kill = lambda language: lambda line: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
    monkeypatch.setitem(tokenization.STEPS, "kill", kill)
    with pytest.raises(UserError, match=r"a worker process was killed.*smaller --workers"):
        [*corpus.process(in_blocks(["a"], 1), Pipeline(["kill"], "en"), workers=2)]


# --- the command ---------------------------------------------------------------------------------


def command(*args):
    cli.main(["tokenize", *map(str, args)])


def test_the_bar_ends_with_the_file(tmp_path, monkeypatch):
    (tmp_path / "in").write_text("Ä line\n" * 5000)
    bars, bar = [], corpus.bar
    monkeypatch.setattr(corpus, "bar", lambda *a, **k: bars.append(bar(*a, **k)) or bars[-1])
    command("--steps", "lowercase", "--file", "en", tmp_path / "in", tmp_path / "out")
    (shown,) = bars
    assert shown.n == shown.total == (tmp_path / "in").stat().st_size


def test_the_command_does_many_files_at_once(tmp_path, codes):
    folder = tmp_path / "raw text"
    folder.mkdir()
    (folder / "a.en").write_bytes(b"Don't!\r\n\r\nSlow")
    (folder / "a.de").write_text("Fährt's?\n", encoding="utf-8")
    out = tmp_path / "tok"
    files = [
        *("--file", "en", folder / "a.en", out / "a.en"),
        *("--file", "de", folder / "a.de", out / "a.de"),
    ]
    command("--steps", "lowercase,tokenize", *files, "--workers", 2)
    assert (out / "a.en").read_bytes() == b"don &apos;t !\n\nslow\n"
    assert (out / "a.de").read_bytes() == "fährt &apos; s ?\n".encode()
    command("--steps", "bpe", "--codes", codes, "--file", "en", out / "a.en", out / "bpe.en")
    assert (out / "bpe.en").read_text().split("\n")[2] == "s@@ low"


def test_the_command_refuses_before_it_works(tmp_path, capsys):
    (tmp_path / "a").write_text("text\n")
    out = tmp_path / "out"
    fine = ["--file", "en", tmp_path / "a", out]
    with pytest.raises(UserError, match="nowhere: no such file"):
        command("--steps", "lowercase", *fine, "--file", "en", tmp_path / "nowhere", tmp_path / "b")
    for folder in (["en", tmp_path, tmp_path / "b"], ["en", tmp_path / "a", tmp_path]):
        with pytest.raises(UserError, match=f"^{tmp_path} is a folder: name a file$"):
            command("--steps", "lowercase", *fine, "--file", *folder)
    with pytest.raises(UserError, match="out is named as the output of several files"):
        command("--steps", "lowercase", *fine, *fine)
    partial = ["--file", "de", tmp_path / "a", tmp_path / "out.part"]
    with pytest.raises(UserError, match=r"out.part is what .*out is called while it is written"):
        command("--steps", "lowercase", *partial, *fine)
    twice = ["--file", "en", "-", tmp_path / "x", "--file", "de", "-", tmp_path / "y"]
    with pytest.raises(UserError, match="can be one file's input only"):
        command("--steps", "lowercase", *twice)
    with pytest.raises(UserError, match=r"unknown step 'lower': .*Did you mean lowercase\?"):
        command("--steps", "lower", *fine)
    with pytest.raises(SystemExit):
        command("--steps", "lowercase")
    assert "--language --file is required" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("name", ["a", "link", "other"])
def test_a_file_to_read_is_not_replaced(name, tmp_path):
    """Under its own name, by a link, or as the input of another of the command's files."""
    (tmp_path / "a").write_text("TEXT\n")
    (tmp_path / "other").write_text("OTHER\n")
    (tmp_path / "link").symlink_to("a")
    texts = ["--file", "en", tmp_path / "a", tmp_path / name]
    texts += ["--file", "en", tmp_path / "other", tmp_path / "out"]
    with pytest.raises(UserError, match=f"^{tmp_path / name} is one of the files to read: choose"):
        command("--steps", "lowercase", *texts)
    assert (tmp_path / "a").read_text() == "TEXT\n" and not (tmp_path / "out").exists()


def test_the_command_is_a_filter_in_any_locale():
    done = subprocess.run(
        [Path(sys.executable).with_name("macaron-fairseq"), "tokenize", "--language", "de"]
        + ["--steps", "normalize,printable,tokenize-hyphens", "--workers", "2"],
        input="Wohl-bekannt„\u200b“\r\n\n\u2028\na\u2028b\rc".encode(),
        capture_output=True,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"Wohl @-@ bekannt &quot; &quot;\n\n\na bc\n"


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("hi", "यह घर है। ठीक॥"),
        ("ar", "كتاب، قلم؛ ماذا؟"),
        ("ur", "یہ گھر ہے\u06d4"),
        ("fa", "می\u200cروم؟"),
        ("am", "ሰላም።"),
        ("de", "Donau\u00addampf um 12:30 Uhr, im Jahr 2019: 5 davon"),
    ],
)
def test_what_moses_takes_apart_comes_back(language, text):
    """Its detokenizer leaves spaces there."""
    tokens = Pipeline(["tokenize"], language)(text)
    assert tokens != text and tokenization.detokenize([tokens], language) == [text]


def test_steps_for_what_is_not_seen():
    unseen = "Donau\u00addampf\u200b\ufeff \u0645\u06cc\u200c\u0631\u0648\u0645"
    assert Pipeline(["visible"], "de")(unseen) == "Donaudampf \u0645\u06cc\u200c\u0631\u0648\u0645"
    assert Pipeline(["nfc"], "fr")("e\u0301te\u0301") == "\u00e9t\u00e9"


def test_characters_are_words_where_there_are_no_spaces():
    text = "日本 語 を 話す OK カタカナ 、 well known"
    joined = "日本語を話す OK カタカナ、 well known"
    assert tokenization.join_characters(text) == joined
    assert tokenization.join_characters(joined) == joined
    words = tokenization.split_characters(joined).split()
    assert words == [*"日本語を話す", "OK", *"カタカナ、", "well", "known"]


@pytest.mark.parametrize("language", ["zh", "zho", "ja"])
def test_wide_punctuation_of_languages_without_spaces_has_none_around_it(language):
    assert tokenization.detokenize(
        ["\u6211 \u7231 \uff0c \u4e2d\u56fd \uff01 \uff08 \u4f60 \uff09"], language
    ) == ["\u6211\u7231\uff0c\u4e2d\u56fd\uff01\uff08\u4f60\uff09"]
