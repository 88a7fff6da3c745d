"""Scores against arithmetic, an own count of n-grams, sacreBLEU's command and Perl."""

import argparse
import hashlib
import json
import math
import os
import random
import shutil
import subprocess
import threading
from collections import Counter
from pathlib import Path

import pytest
import sacrebleu
from fairseq.data import data_utils
from helpers.processes import run

from macaron_fairseq.commands import score
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.evaluation.scores import metrics
from macaron_fairseq.text.marks import remove_bpe
from macaron_fairseq.text.tokenization import detokenize

REFERENCE = ["Ein kleiner Hund läuft.", 'Sie sagt: "E-Mail!"', "Drei rote Bälle liegen im Gras."]
# Out of order, with BPE joined, an n-best list, and all that fairseq prints besides.
GENERATED = """\
2026-11-21 12:00:00 | INFO | fairseq_cli.generate | loading model(s) from averaged.pt
S-2\tthree red balls lie in the grass .
T-2\tDrei rote Bälle liegen im Gras .
H-2\t-0.4\tDrei rote Bälle liegen im Gras .
D-2\t-0.4\tDrei rote Bälle liegen im Gras .
P-2\t-0.1 -0.2 -0.3 -0.1
H-2\t-0.9\tDrei Bälle .
D-2\t-0.9\tDrei Bälle .
P-2\t-0.4 -0.2 -0.3 -0.1
S-0\ta small dog runs .
W-0\t0.101\tseconds
H-0\t-0.2\tEin kleiner Hund rennt .
D-0\t-0.2\tH-1\tnot a hypothesis
H-1\t-0.3\tSie sagt : &quot; E @-@ Mail ! &quot;
Generate test with beam=5: BLEU4 = 1.23, 9.9/9.9/9.9/9.9
"""


def parse(*flags):
    parser = argparse.ArgumentParser()
    score.add_arguments(parser)
    return parser.parse_args([*map(str, flags)])


@pytest.fixture
def scored(tmp_path, capsys):
    """Score text against text in files; scores.json, the hypotheses, and what was printed."""

    def call(generated, reference=REFERENCE, *flags, **more):
        (tmp_path / "generated.txt").write_bytes(generated.encode())
        (tmp_path / "test.de").write_bytes("".join(x + "\n" for x in reference).encode())
        for name, lines in more.items():
            (tmp_path / name).write_bytes("".join(x + "\n" for x in lines).encode())
        output = {name: tmp_path / "out" / name for name in ("scores.json", "hypotheses.txt")}
        score.run(
            parse(
                *(tmp_path / "generated.txt", "--reference", tmp_path / "test.de"),
                *("--target-lang", "de", "--json", output["scores.json"]),
                *("--hypotheses", output["hypotheses.txt"], *flags),
            )
        )
        record = json.loads(output["scores.json"].read_bytes())
        return record, output["hypotheses.txt"].read_bytes().decode(), capsys.readouterr()

    call.folder = tmp_path
    return call


def value(record, metric):
    (found,) = [entry for entry in record["scores"] if entry["metric"] == metric]
    return found


def count_bleu(hypothesis_lines, reference_lines):
    """multi-bleu.perl's definition with one reference, written anew."""
    matched, guessed, lengths = [0] * 4, [0] * 4, [0, 0]
    for pair in zip(hypothesis_lines, reference_lines, strict=True):
        words = [line.split(" ") if line else [] for line in pair]
        lengths = [total + len(w) for total, w in zip(lengths, words, strict=True)]
        for n in range(1, 5):
            ours, theirs = (
                Counter(tuple(w[i : i + n]) for i in range(len(w) - n + 1)) for w in words
            )
            matched[n - 1] += sum((ours & theirs).values())
            guessed[n - 1] += sum(ours.values())
    if 0 in matched:
        return 0.0
    hypothesis, reference = lengths
    penalty = math.exp(1 - reference / hypothesis) if hypothesis < reference else 1
    product = math.prod(m / g for m, g in zip(matched, guessed, strict=True))
    return 100 * penalty * product**0.25


@pytest.mark.parametrize(
    ("lines", "references", "expected"),
    [
        # "the" matches once: 5 of 6 words; 3 of 5 pairs, 2 of 4 triples, 1 of 3 fours.
        (
            ["the cat sat on the mat"],
            ["the cat sat on a mat"],
            100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25,
        ),
        # All match, 4 words of 5: only brevity costs.
        (["a b c d"], ["a b c d e"], 100 * math.exp(1 - 5 / 4)),
        # Longer than the reference: no penalty but the precisions.
        (["a b c d e"], ["a b c d"], 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25),
        # Counts are summed over the corpus, then divided: 6/8, 4/6, 3/4, 2/2; lengths are equal.
        (["a b c d e", "x y z"], ["a b c d e", "x q r"], 100 * (6 / 8 * 4 / 6 * 3 / 4) ** 0.25),
        # Brevity is the corpus's, not the sentence's: 5+4 words against 4+5.
        (
            ["a b c d e", "p q r s"],
            ["a b c d", "p q r s t"],
            100 * (8 / 9 * 6 / 7 * 4 / 5 * 2 / 3) ** 0.25,
        ),
        # No four words match; there are no four words; no words at all; nothing matches.
        (["a b c x e"], ["a b c d e"], 0),
        (["a b c"], ["a b c"], 0),
        ([""], ["a b c d"], 0),
        (["p q r s"], ["a b c d"], 0),
        # Tokens are what stands between spaces, and case counts.
        (["Das &quot; Haus , 3.5 @-@ mal"], ["Das &quot; Haus , 3.5 @-@ mal"], 100),
        (
            ["DAS rote Haus am See"],
            ["das rote Haus am See"],
            100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25,
        ),
    ],
)
def test_tokenised_bleu_is_multi_bleu(lines, references, expected):
    result = metrics.tokenised_bleu(lines, references, lowercase=False)
    assert result.score == pytest.approx(expected)
    assert count_bleu(lines, references) == pytest.approx(expected)
    assert result.metric == "tokenised BLEU"


def test_tokenised_bleu_of_many_sentences():
    rng = random.Random(1)
    references = [[rng.choice("abcdefgh") for _ in range(rng.randint(1, 30))] for _ in range(200)]
    lines = [
        [w if rng.random() < 0.7 else "x" for w in r if rng.random() < 0.95] for r in references
    ]
    lines, references = ([" ".join(words) for words in text] for text in (lines, references))
    result = metrics.tokenised_bleu(lines, references, lowercase=False)
    assert 10 < result.score < 90
    assert result.score == pytest.approx(count_bleu(lines, references))


def test_detail_of_bleu():
    result = metrics.tokenised_bleu(["a b c d"], ["a b x d e"], lowercase=False)
    # 3 of 4 words and 1 of 3 pairs; exp(1 - 5/4).
    assert result.detail == ("75.0/33.3/0.0/0.0 (BP = 0.779 ratio = 0.800 hyp_len = 4 ref_len = 5)")


def test_lowercase_includes_umlauts():
    lines, references = ["ÄPFEL und Birnen am Baum"], ["äpfel UND Birnen am Baum"]
    assert metrics.tokenised_bleu(lines, references, lowercase=True).score == pytest.approx(100)
    assert metrics.chrf(lines, references, lowercase=True).score == pytest.approx(100)
    assert metrics.bleu(lines, references, "de", lowercase=True).score == pytest.approx(100)
    split = metrics.compound_split_bleu(lines, references, "de", lowercase=True)
    assert split.score == pytest.approx(100)
    # "Birnen am Baum" alone is the same: no four words.
    assert metrics.tokenised_bleu(lines, references, lowercase=False).score == 0


COMPOUNDS = {
    "Nord-Süd-Route": "Nord ##AT##-##AT## Süd ##AT##-##AT## Route",
    "E-Mail-Adresse": "E ##AT##-##AT## Mail ##AT##-##AT## Adresse",
    # One letter is both right of the first hyphen and left of the second.
    "a-b-c": "a ##AT##-##AT## b-c",
    "a-b-c-d": "a ##AT##-##AT## b-c ##AT##-##AT## d",
    "5-jährig , U-Bahn-": "5 ##AT##-##AT## jährig , U ##AT##-##AT## Bahn-",
    "Haus- und Garten - -5": "Haus- und Garten - -5",
    "a--b": "a ##AT##-##AT## -b",
    "1990\u201395": "1990\u201395",  # an en dash
}


def test_compounds_split():
    assert {text: metrics.split_compounds(text) for text in COMPOUNDS} == COMPOUNDS


@pytest.mark.skipif(not shutil.which("perl"), reason="needs perl")
def test_compounds_split_as_in_perl():
    substitution = r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"
    text = "\n".join(COMPOUNDS)
    done = subprocess.run(
        ["perl", "-ple", substitution], input=text.encode(), capture_output=True, check=True
    )
    assert metrics.split_compounds(text) == done.stdout.decode().removesuffix("\n")


def test_czech_words_that_sacremoses_stumbles_over_end_no_long_job():
    lines = detokenize(["To je e' - mail .", "To je pes ."], "cs")
    assert lines[1] == "To je pes."
    assert lines[0].startswith("To je e") and lines[0].endswith("mail.")


def test_compound_split_bleu_takes_no_notice_of_kinds_of_quotation_marks():
    raw = ["Er sagt: \u201eDas ist der E-Mail-Dienst\u201c \u2013 und geht."]
    ours = [
        'Er sagt: "Das ist der E-Mail-Dienst" - und geht.'
    ]  # as models that see them normalised
    result = metrics.compound_split_bleu(ours, raw, "de", lowercase=False)
    assert result.score == pytest.approx(100)


def test_compound_split_bleu():
    # Die lange Nord - Ost - Route . against Süd: 7 of 8 words, 5 of 7 pairs, 3 of 6 triples,
    # 1 of 5 fours.
    result = metrics.compound_split_bleu(
        ["Die lange Nord-Ost-Route."], ["Die lange Nord-Süd-Route."], "de", lowercase=False
    )
    assert result.score == pytest.approx(100 * (7 / 8 * 5 / 7 * 3 / 6 * 1 / 5) ** 0.25)
    assert result.detail.endswith("hyp_len = 8 ref_len = 8)")
    assert result.metric == "compound-split BLEU"


def test_signatures_tell_the_tokens():
    lines = ["ein Hund läuft heute"]
    end = f"smooth:none|version:{sacrebleu.__version__}"
    model = metrics.tokenised_bleu(lines, lines, lowercase=True)
    assert model.signature == f"tokens:model|nrefs:1|case:lc|eff:no|tok:none|{end}"
    split = metrics.compound_split_bleu(lines, lines, "de", lowercase=False)
    assert split.signature == (
        f"tokens:moses-normalized-compound-split|nrefs:1|case:mixed|eff:no|tok:none|{end}"
    )


def test_no_warning_of_tokens_where_tokens_are_meant(caplog):
    lines = ["ein Hund läuft heute ."] * 100
    metrics.tokenised_bleu(lines, lines, lowercase=False)
    metrics.compound_split_bleu(lines, lines, "de", lowercase=False)
    assert not caplog.records
    metrics.bleu(lines, lines, "de", lowercase=False)
    assert "tokenized period" in caplog.text


def test_order_restored_and_text_detokenised(scored):
    record, text, printed = scored(GENERATED, REFERENCE)
    assert text == (
        'Ein kleiner Hund rennt.\nSie sagt: "E-Mail!"\nDrei rote Bälle liegen im Gras.\n'
    )
    assert record["test"] == "test"
    assert record["sentences"] == 3
    reference = scored.folder / "test.de"
    assert (scored.folder / "out" / record["reference"]).samefile(reference)
    assert record["reference_sha256"] == hashlib.sha256(reference.read_bytes()).hexdigest()
    assert record["generated_sha256"] == hashlib.sha256(GENERATED.encode()).hexdigest()
    assert [entry["metric"] for entry in record["scores"]] == ["BLEU", "chrF"]
    assert printed.err == ""
    for entry in record["scores"]:
        assert f"{entry['score']:.2f}" in printed.out
        assert entry["signature"] in printed.out
        assert entry["detail"] in printed.out


def test_tokenised_bleu_is_of_the_models_tokens(scored):
    tokens = [
        "ein kleiner Hund läuft .",
        "Sie sagt : &quot; E @-@ Mail ! &quot;",
        "Drei rote Bälle liegen im Gras .",
    ]
    flags = ("--metric", "tokenised-bleu", "compound-split-bleu", "--tokenized-reference")
    path = scored.folder / "tokens.de"
    record, _, _ = scored(
        GENERATED, REFERENCE, *flags, path, "--test", "t", **{"tokens.de": tokens}
    )
    decoded = ["Ein kleiner Hund rennt .", *tokens[1:]]
    assert value(record, "tokenised BLEU")["score"] == pytest.approx(count_bleu(decoded, tokens))
    assert record["test"] == "t"
    # Against the raw text, which has "Ein", after E-Mail is whole again and split anew.
    split = 'Sie sagt : " E ##AT##-##AT## Mail ! "'
    assert value(record, "compound-split BLEU")["score"] == pytest.approx(
        count_bleu(
            ["Ein kleiner Hund rennt .", split, tokens[2]],
            ["Ein kleiner Hund läuft .", split, tokens[2]],
        )
    )
    record, _, _ = scored(
        GENERATED, REFERENCE, *flags, path, "--lowercase", **{"tokens.de": tokens}
    )
    lower = [[line.lower() for line in lines] for lines in (decoded, tokens)]
    assert value(record, "tokenised BLEU")["score"] == pytest.approx(count_bleu(*lower))


def test_sentencepieces_marks_are_refused(scored):
    with pytest.raises(UserError, match=r"has SentencePiece's marks \(\u2581\): remove them, in"):
        scored("H-0\t-1\t\u2581Ein \u2581klein er\nH-1\t-1\ta\nH-2\t-1\t\n")


def test_signs_in_text_are_no_marks(scored):
    """A line drawn with SentencePiece's sign, and a difference of files, which is text already."""
    generated = "H-0\t-1\t\u2581 Ein\nH-1\t-1\tsee @@ -1 here\nH-2\t-1\tdrei Hunde\n"
    _, hypotheses, _ = scored(generated, REFERENCE, "--detokenized")
    assert hypotheses.splitlines() == ["\u2581 Ein", "see @@ -1 here", "drei Hunde"]


def test_bpe_marks_removed_and_said_once(scored):
    generated = "H-0\t-1\tEin klei@@ ner Hu@@ nd .\nH-1\t-1\tdrei Hun@@\nH-2\t-1\t\n"
    _, text, printed = scored(generated)
    assert text == "Ein kleiner Hund.\ndrei Hun\n\n"
    assert printed.err.count("removed BPE marks (@@)") == 1


def test_plain_hypotheses_are_taken_as_they_are(scored):
    plain = ['Sie sagt : "nein"', "x@@ y", "", "a &amp; b"]
    _, text, printed = scored("".join(x + "\n" for x in plain), ["a", "b", "c", "d"], "--plain")
    assert text.split("\n") == [*plain, ""]
    assert printed.err == ""


def test_only_newlines_end_lines_and_carriage_returns_before_them_are_dropped(scored):
    reference = ["Ein\u2028kleiner Hund\x85läuft heute.\r", "Vier\x0bBälle liegen im Gras.\r"]
    plain = "".join(line.removesuffix("\r") + "\n" for line in reference)
    record, text, _ = scored(plain, reference, "--plain")
    assert record["sentences"] == 2
    assert value(record, "BLEU")["score"] == pytest.approx(100)
    assert text == plain
    record, _, _ = scored("H-1\t-1\tx\r\nH-0\t-1\ty\r\n", reference)
    assert record["sentences"] == 2


@pytest.mark.parametrize(
    ("generated", "sentence"),
    [
        (
            "H-0\t-1\ta\nH-3\t-1\tb\nH-1\t-1\tb\nH-2\t-1\tb\n",
            "has H-3, but {}/test.de ends at line 3, which is H-2: give the reference of",
        ),
        (
            "H-1\t-1\tb\n",
            "lacks 2 of the 3 sentences of {}/test.de, H-0 first: decode the whole test set. Give "
            "--required-batch-size-multiple 1, or",
        ),
        (
            "H-0\t-1\ta\nH-1\t-1\tb\nH-0\t-1\ta\n",
            "line 3 has H-0 a second time: give the output of one decoding, not of several",
        ),
        ("2026-11-21 | INFO\n", "has no H- lines: give what fairseq-generate printed"),
        ("", "has no H- lines"),
        ("H-0\t-1\tein\r 50%|##  | 1/2 [00:01]Hund\n", "line 1 is a damaged H- line"),
        ("H-0\t-1\ta\nH-1\t-0.", "line 2 is a damaged H- line"),
    ],
)
def test_bad_hypotheses_end_in_a_sentence(scored, generated, sentence):
    with pytest.raises(UserError) as caught:
        scored(generated)
    assert sentence.format(scored.folder) in str(caught.value)
    assert str(caught.value).startswith(str(scored.folder / "generated.txt"))
    assert not (scored.folder / "out").exists()


@pytest.mark.parametrize(
    ("reference", "flags", "sentence"),
    [
        (["a", "b", " ", "c"], [], "test.de, line 3 is empty: give a reference with"),
        ([], [], "test.de is empty: give the text"),
        (
            ["a"],
            ["--plain"],
            "generated.txt as in {}/test.de, but there are 15 and 1: give texts of the",
        ),
        (REFERENCE, ["--metric", "tokenised-bleu"], "name it with --tokenized-reference"),
        (REFERENCE, ["--metric", "tokenised-bleu", "--plain"], "without --plain"),
        (
            REFERENCE,
            ["--metric", "tokenised-bleu", "--tokenized-reference", "{}/short.de"],
            "short.de as in {}/test.de, but there are 2 and 3",
        ),
        (
            REFERENCE,
            ["--metric", "tokenised-bleu", "--tokenized-reference", "{}/none.de"],
            "cannot read {}/none.de: No such file or directory",
        ),
        (
            REFERENCE,
            ["--json", "{}/test.de"],
            "test.de is one of the files to read: choose",
        ),
        (
            REFERENCE,
            ["--json", "{}/out", "--hypotheses", "{}/out"],
            "out would hold both hypotheses and scores: name two files",
        ),
        (REFERENCE, ["--json", "-", "--hypotheses", "/dev/stdout"], "would hold both hypotheses"),
        (REFERENCE, ["--json", "{}/s", "--hypotheses", "{}/s.part"], "would hold both hypotheses"),
        (REFERENCE, ["--hypotheses", "{}/test.de/x"], "cannot write {}/test.de/x: "),
        (REFERENCE, ["--reference", "-"], "a reference cannot be stdin"),
        (REFERENCE, ["--keep-tokens"], "bleu compares detokenised text, which --keep-tokens does"),
        (REFERENCE, ["--plain", "--keep-tokens", "--metric", "bleu"], "bleu compares detokenised"),
        (REFERENCE, ["--plain", "--detokenized"], "--detokenized and --plain say what"),
        (REFERENCE, ["--plain", "--tokenized-reference", "x"], "--tokenized-reference is for the"),
    ],
)
def test_other_mistakes_end_in_a_sentence(scored, reference, flags, sentence):
    flags = [flag.format(scored.folder) for flag in flags]
    with pytest.raises(UserError) as caught:
        scored(GENERATED, reference, *flags, **{"short.de": ["a", "b"]})
    assert sentence.format(scored.folder) in str(caught.value)
    assert (scored.folder / "test.de").read_text("utf-8") == "".join(x + "\n" for x in reference)


def test_chrf_with_words_is_the_mean_of_all_orders():
    """Of 1 to 4 letters 3 of 4, 2 of 3, 1 of 2 and 0 of 1 match, of words 1 of 2 and 0 of 1."""
    of_letters = 3 / 4 + 2 / 3 + 1 / 2
    found = [metrics.chrf(["ab cd"], ["ab ce"], False, words) for words in (0, 2)]
    assert [x.metric for x in found] == ["chrF", "chrF++"]
    assert found[0].score == pytest.approx(100 * of_letters / 4)
    assert found[1].score == pytest.approx(100 * (of_letters + 1 / 2) / 6)


def test_ter_counts_edits_and_shifts(scored):
    for lowercase, edits in ((False, 2), (True, 1)):
        found = metrics.ter(["The cat sat on the mat"], ["the cat sat on a mat"], "en", lowercase)
        assert found.score == pytest.approx(100 * edits / 6)
    assert metrics.ter(["c d a b"], ["a b c d"], "en", False).score == pytest.approx(100 / 4)
    # In Chinese each of five characters is a word, of which one is another.
    assert metrics.ter(["我爱你中华"], ["我爱你中国"], "zho", False).score == pytest.approx(20)
    record, _, _ = scored(GENERATED, REFERENCE, "--metric", "ter", "chrf++")
    assert [x["metric"] for x in record["scores"]] == ["TER", "chrF++"]


@pytest.mark.parametrize("metric", metrics.METRICS.values(), ids=metrics.METRICS)
def test_what_is_known_of_a_metric_fits_its_scores(metric):
    """Equal texts have the best score, and a signature says where it is of the model's tokens."""
    lines = ["Das ist ein Haus .", "Es ist klein , aber schön ."]
    found = metric.compute(lines, lines, "de", False)
    best = 0 if metric.lower_is_better else 100
    assert (found.metric, found.score) == (metric.title, pytest.approx(best))
    assert metric.of_tokens == ("tokens:model|" in found.signature)
    in_capitals = metric.compute([line.upper() for line in lines], lines, "de", True)
    assert in_capitals.score == pytest.approx(best)


def test_hypotheses_that_are_text_are_not_joined_by_moses_rules(scored):
    text = ["He said 'no' & left.", "It's 'new' and costs 5 % more."]
    generated = "".join(f"H-{i}\t-1\t{line}\n" for i, line in enumerate(text))
    record, _, _ = scored(generated, text, "--target-lang", "en", "--detokenized")
    assert [x["score"] for x in record["scores"]] == [pytest.approx(100)] * 2
    record, _, _ = scored(generated, text, "--target-lang", "en")
    assert record["scores"][0]["score"] < 60


def test_case_can_be_ignored_in_errors_of_sequences():
    for lowercase, wrong in ((False, 50), (True, 0)):
        for metric in (metrics.wer, metrics.per):
            found = metric(["A b", "c"], ["a B", "c"], lowercase)
            assert found.score == pytest.approx(wrong if metric is metrics.wer else wrong * 4 / 3)
            assert ("|case:lc|" in found.signature) == lowercase


def test_a_tokenised_reference_is_read_once(scored, tmp_path):
    """It may be a pipe."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = "".join(f"{x}\n" for x in ("Ein Hund .", "Zwei Hunde ."))
    writer = threading.Thread(target=pipe.write_text, args=(text,), daemon=True)
    writer.start()
    generated = "H-0\t-1\tEin Hund .\nH-1\t-1\tZwei Hund .\n"
    flags = ["--metric", "wer", "per", "--tokenized-reference", pipe, "--keep-tokens"]
    record, _, _ = scored(generated, ["Ein Hund.", "Zwei Hunde."], *flags)
    assert [x["score"] for x in record["scores"]] == [50, pytest.approx(100 / 6)]
    assert record["tokens"]
    writer.join()


def test_a_record_tells_the_hypotheses(scored):
    record, hypotheses, _ = scored(GENERATED)
    assert not record["tokens"]
    assert record["hypotheses_sha256"] == hashlib.sha256(hypotheses.encode()).hexdigest()


def test_invalid_utf8_is_named_by_file_and_line(scored, tmp_path):
    path = tmp_path / "latin1.txt"
    path.write_bytes("a\n\u00e4\nc\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"latin1\.txt, line 2 is not UTF-8"):
        scored(GENERATED, REFERENCE, "--reference", path)


def test_a_failed_write_leaves_the_old_scores(scored, monkeypatch):
    scored(GENERATED)
    path = scored.folder / "out" / "scores.json"
    before = path.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        with pytest.raises(UserError, match=r"cannot write .*: No space left on device"):
            scored(GENERATED, ["x", "y", "z"])
    assert path.read_bytes() == before
    assert {p.name for p in path.parent.iterdir()} == {"scores.json", "hypotheses.txt"}


def test_hypotheses_without_scores_are_not_left_behind(scored):
    (scored.folder / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*scores\.json: "):
        scored(GENERATED, REFERENCE, "--json", scored.folder / "file" / "scores.json")
    assert not (scored.folder / "out" / "hypotheses.txt").exists()


def test_the_command_agrees_with_sacrebleus_own(tmp_path):
    rng = random.Random(2)
    words = ["Hund", "Bälle", "läuft", "E-Mail", "3,5", "„gut“", "(rot)", "U.S.A.", "&amp;", "5%"]
    reference = [" ".join(rng.choices(words, k=rng.randint(4, 15))) + "." for _ in range(50)]
    changed = [
        " ".join(w for w in line.removesuffix(".").split() if rng.random() < 0.9) + " ."
        for line in reference
    ]
    order = rng.sample(range(50), 50)
    generated = "".join(f"S-{i}\tx\nH-{i}\t-0.5\t{changed[i]}\nP-{i}\t-0.5\n" for i in order)
    (tmp_path / "ref.de").write_text("".join(line + "\n" for line in reference), "utf-8")
    done = run(
        *("macaron-fairseq", "score", "-", "--reference", "ref.de", "--target-lang", "de"),
        *("--hypotheses", "hypotheses.txt", "--json", "scores.json"),
        cwd=tmp_path,
        stdin=generated,
        LC_ALL="C",
    )
    record = json.loads((tmp_path / "scores.json").read_text("utf-8"))
    assert record["generated_sha256"] == hashlib.sha256(generated.encode()).hexdigest()
    scores = record["scores"]
    theirs = json.loads(
        run(
            *("sacrebleu", "ref.de", "-i", "hypotheses.txt", "-m", "bleu", "chrf", "-w", "4"),
            cwd=tmp_path,
        ).stdout
    )
    assert [round(entry["score"], 4) for entry in scores] == [entry["score"] for entry in theirs]
    assert [entry["signature"] for entry in scores] == [entry["signature"] for entry in theirs]
    assert scores[0]["detail"] == theirs[0]["verbose_score"]
    assert 20 < scores[0]["score"] < 99
    # fairseq may log above it while it is imported.
    rows = [line.split("  ")[0] for line in done.stdout.splitlines()[-5:]]
    assert rows == ["BLEU", "chrF", "", "BLEU", "chrF"]


def test_hypotheses_alone_on_stdout(tmp_path, capsys):
    generated, reference = tmp_path / "generated.txt", tmp_path / "test.de"
    generated.write_text(GENERATED, "utf-8")
    reference.write_text("".join(line + "\n" for line in REFERENCE), "utf-8")
    score.run(
        parse(generated, "--reference", reference, "--target-lang", "de", "--hypotheses", "-")
    )
    printed = capsys.readouterr()
    assert printed.out == (
        'Ein kleiner Hund rennt.\nSie sagt: "E-Mail!"\nDrei rote Bälle liegen im Gras.\n'
    )
    assert printed.err.startswith("BLEU ")


def test_what_is_not_used_is_told(tmp_path, capsys):
    generated, reference = tmp_path / "generated.txt", tmp_path / "test.de"
    generated.write_text(GENERATED, "utf-8")
    reference.write_text("".join(line + "\n" for line in REFERENCE), "utf-8")
    words = [generated, "--reference", reference, "--target-lang", "de"]
    score.run(parse(*words))
    assert capsys.readouterr().err == ""
    score.run(parse(*words, "--tokenized-reference", tmp_path / "none", "--test", "a"))
    tokenized, test = capsys.readouterr().err.splitlines()
    assert tokenized.startswith("--tokenized-reference is not used: it is for --metric token")
    assert test == "--test is not used: it names the test set in the file of --json"


@pytest.mark.parametrize("language", ["zh", "zho", "zh-TW", "ZH_cn"])
def test_chinese_has_no_spaces_whatever_its_code(language):
    found = metrics.bleu(["你好世界"], ["你好世界人"], language, False)
    theirs = sacrebleu.corpus_bleu(["你好世界"], [["你好世界人"]], tokenize="zh")
    assert found.score == pytest.approx(theirs.score) and found.score > 70
    assert "tok:zh" in found.signature


def test_a_language_whose_words_sacrebleu_does_not_know_is_told_of(capsys):
    metrics.warn_of_phrases.cache_clear()
    for _ in range(2):
        metrics.bleu(["ฉันรักคุณ"], ["ฉันรักคุณ"], "th", False)
    assert capsys.readouterr().err.count("warning: sacreBLEU cuts th at spaces alone") == 1
    metrics.bleu(["a b"], ["a b"], "de", False)
    assert capsys.readouterr().err == ""


def test_a_language_has_two_or_three_letters():
    with pytest.raises(UserError, match="'chinese' is not a language: give two or three"):
        metrics.bleu(["a"], ["a"], "chinese", False)


def test_remove_bpe_like_fairseq():
    for text in ("ein klei@@ ner Hu@@ nd", "drei Hun@@", "a @-@ b @@", "", "kein Zeichen"):
        theirs = data_utils.post_process(text, "subword_nmt")
        assert remove_bpe([text]) == [theirs]
