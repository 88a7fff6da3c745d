"""Where translations differ, failures, intervals and verdicts, against values taken by hand."""

import math
import re
from collections import Counter

import numpy as np
import pytest
import sacrebleu
from helpers.run_folders import print_generated, sentences, write_lines
from sacrebleu.metrics import BLEU

from macaron_fairseq.evaluation.report import comparison, verdict
from macaron_fairseq.evaluation.scores import failures, intervals
from macaron_fairseq.evaluation.scores.generated import lengths_in_tokens


def split(*lines):
    return [line.split() for line in lines]


# --- by length -----------------------------------------------------------------------------------


def test_sentences_are_scored_by_the_length_of_the_reference():
    references = ["a b c d", "one two three four five", "e f g h i j", "k l m n"]
    system = ["a b c d", "one two three four six", "e f g h i j", "x y z"]
    found = comparison.by_length(references, [4, 5, 6, 4], [system, references], BLEU())
    assert [row[:2] for row in found] == [((1, 4), 2), ((5, 9), 2)]
    short = sacrebleu.corpus_bleu(["a b c d", "x y z"], [["a b c d", "k l m n"]]).score
    longer = sacrebleu.corpus_bleu(system[1:3], [references[1:3]]).score
    assert found[0][2] == pytest.approx([short, 100])
    assert found[1][2] == pytest.approx([longer, 100])
    assert short < longer < 100


@pytest.mark.parametrize(
    ("value", "group"), [(0, (1, 4)), (1, (1, 4)), (4, (1, 4)), (5, (5, 9)), (60, (60, None))]
)
def test_a_length_belongs_to_one_group(value, group):
    assert (
        comparison.groups(comparison.LENGTHS)[comparison.place(value, comparison.LENGTHS)] == group
    )


# --- by frequency --------------------------------------------------------------------------------


def test_words_are_moses_tokens():
    text = ["It's 5 % — “Yes” (he said)."]
    assert comparison.words_of(text, "en", lowercase=True) == split(
        "it &apos;s 5 % - &quot; yes &quot; ( he said ) ."
    )


def test_words_are_lowered_after_they_are_split():
    """As training text is: before a small letter Moses leaves the full stop on its word."""
    assert comparison.words_of(["In Berlin. Das"], "de", lowercase=True) == split("in berlin . das")


def test_words_are_counted_in_the_training_text_line_by_line():
    counts = comparison.count_in(iter(["The cat the dog", "the end"]), ["the", "cat", "x"], True)
    assert counts == {"the": 3, "cat": 1}
    assert comparison.count_in(iter(["The cat the dog"]), ["the"], False) == {"the": 1}


def test_f_measure_by_the_frequency_of_words():
    """One word, a, is frequent; the others are not in the training data.

    a: right 1, given 1, in references 2: P = 1, R = 1/2, F = 2/3.
    The others: right 1, given 4, in references 2: P = 1/4, R = 1/2, F = 1/3.
    """
    references, system = split("a a b", "c"), split("a b b", "d e")
    found = comparison.by_frequency(references, [system, references], Counter(a=100))
    assert [row[:2] for row in found] == [((0, 0), 2), ((100, 999), 2)]
    assert found[0][2] == pytest.approx([100 / 3, 100])
    assert found[1][2] == pytest.approx([200 / 3, 100])


def test_where_no_word_is_right_f_is_zero():
    assert comparison.by_frequency(split("a"), [split("b")], Counter()) == [((0, 0), 1, [0.0])]


# --- n-grams -------------------------------------------------------------------------------------


def test_ngrams_match_as_often_as_both_have_them():
    found = comparison.matches(split("a b a b", "c"), split("a b a", "a"))
    assert found == {
        ("a",): 2,
        ("b",): 1,
        ("a", "b"): 1,
        ("b", "a"): 1,
        ("a", "b", "a"): 1,
    }


def test_ngrams_are_ranked_as_in_compare_mt():
    """(a + 1) / (a + b + 2): x 6/7, "y z" 4/5 (its parts left out), w 6/9. Of v there is 2 more."""
    references = split(*["x"] * 5, *["y z"] * 3, *["w"] * 5, *["v"] * 2)
    other = Counter({("x",): 5, ("y",): 3, ("z",): 3, ("y", "z"): 3, ("w",): 5, ("v",): 2})
    baseline = Counter({("w",): 2})
    better, worse = comparison.salient_ngrams(references, baseline, other)
    assert [(x.text, x.references, x.baseline, x.other) for x in better] == [
        ("x", 5, 0, 5),
        ("y z", 3, 0, 3),
        ("w", 5, 2, 5),
    ]
    assert worse == []
    better, worse = comparison.salient_ngrams(references, other, baseline)
    assert better == []
    assert [(x.text, x.baseline, x.other) for x in worse] == [
        ("x", 5, 0),
        ("y z", 3, 0),
        ("w", 5, 2),
    ]


def test_no_more_ngrams_are_listed_than_a_reader_takes_in():
    words = [f"w{i}" for i in range(11)]
    right = Counter({(word,): 3 for word in words})
    better, worse = comparison.salient_ngrams(split(*words * 3), Counter(), right)
    assert len(better) == 10 and worse == []


def test_ngrams_are_shown_as_raw_text():
    found, _ = comparison.salient_ngrams(split("&apos;s"), Counter(), Counter({("&apos;s",): 3}))
    assert found[0].text == "'s"


# --- sentences -----------------------------------------------------------------------------------


def test_sentences_are_sorted_by_the_difference_of_their_bleu():
    references = ["a b c d e"] * 4
    baseline = ["a b c d x", "a b c d e", "a b c d e", "a b c d x"]
    other = ["a b c d e", "a b c d x", "a b c d e", "x"]
    bleu = BLEU(effective_order=True)
    found = comparison.by_sentence(None, references, baseline, other, bleu, 10)
    assert (found.better, found.worse, found.equal) == (1, 2, 1)
    # p1 = 4/5, p2 = 3/4, p3 = 2/3, p4 = 1/2, and no brevity penalty.
    partly = 100 * math.prod([4 / 5, 3 / 4, 2 / 3, 1 / 2]) ** 0.25
    assert [x.number for x in found.examples] == [4, 1, 2]
    assert found.examples[0].difference == pytest.approx(-partly)
    assert found.examples[1].difference == pytest.approx(100 - partly)
    assert found.examples[2].baseline_bleu == pytest.approx(100)
    assert found.examples[2].other_bleu == pytest.approx(partly)
    few = comparison.by_sentence(["s"] * 4, references, baseline, other, bleu, 2)
    assert [(x.number, x.source) for x in few.examples] == [(4, "s"), (1, "s")]


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "repeats"),
    [
        ("Wählen Sie: Wien, Wien, Wien, Wien, Wien, Graz oder Linz.", True),
        ("Wählen Sie: Wien, Wien, Wien, Wien, Graz oder Linz.", False),
        ("a b c d a b c d a b c d a b c d a b c d", True),
        ("a b c d e a b c d e a b c d e a b c d e a b c d e", False),
        ("in der in der in der in der in der", True),
        ("Diririririrent", True),
        ("zwanzigzwanzigzwanzigzwanzigzwanzig", True),
        ("Schifffahrt, Aaaah", False),
        ("Aaaaaah", True),
        ("\u0915\u093e" * 5, True),  # a letter with its vowel sign
        ("\u0915\u093e" * 4, False),
        ("a" + "\u0301" * 60 + " b", False),  # marks alone, which take no time
        ("1000000000", False),
        ("Ende .....", False),
        ("was was it was", False),
        ("", False),
    ],
)
def test_what_a_loop_is(line, repeats):
    assert failures.repeats(line) == repeats
    assert failures.loops(line, "the reference") == repeats
    assert not failures.loops(line, "ha ha ha ha ha")


def test_what_reached_the_maximum_length(tmp_path):
    path = tmp_path / "generated.txt"
    printed = ["H-1\t-0.1\ta b", "P-1\t-0.1 -0.2 -0.3", "P-0\t-1 -1 -1 -1", "P-0\t-1", "noise"]
    write_lines(path, printed)  # of sentence 0 there are two hypotheses
    found, sources_known = lengths_in_tokens(path)
    assert {number: x.translation for number, x in found.items()} == {1: 2, 0: 3}
    assert not sources_known
    assert failures.cut_off(path, "the best checkpoint, --beam 5 --max-len-b 3") == [0]
    assert failures.cut_off(path, "the best checkpoint, --beam 5") == []
    assert failures.cut_off(path, None) is None
    assert failures.cut_off(tmp_path / "none", "the best checkpoint") is None


@pytest.mark.parametrize(
    ("decoding", "maximum"),
    [
        (None, None),
        ("the best checkpoint, --beam 5", (0, 200)),
        ("the best checkpoint, --max-len-a 0 --max-len-b 50", (0, 50)),
        ("the best checkpoint, --max-len-a 1.2 --max-len-b 10", (1.2, 10)),
        ("the best checkpoint, --max-len-b", None),
        ("the best checkpoint, --match-source-len", None),
    ],
)
def test_the_maximum_length_is_that_of_the_decoding(decoding, maximum):
    assert failures.maximum_length(decoding) == (maximum and failures.MaximumLength(*maximum))


def test_the_maximum_length_follows_the_sources_tokens(tmp_path):
    """At 1.5 and 2: three tokens and the end allow eight, one and the end five."""
    generated = {1: ("a@@ b c", "x " * 8), 0: ("a b c", "x@@ " * 6 + "y"), 2: ("a", "x " * 5)}
    path, decoding = (
        tmp_path / "generated.txt",
        "the best checkpoint, --max-len-a 1.5 --max-len-b 2",
    )
    print_generated(path, generated)
    assert failures.cut_off(path, decoding) == [1, 2]
    print_generated(path, generated, joins_bpe=True)  # then the tokens are not known
    assert failures.cut_off(path, decoding) is None
    assert failures.cut_off(path, "the best checkpoint, --max-len-b 7") == [0, 1]


# --- intervals -----------------------------------------------------------------------------------


def test_the_interval_over_seeds():
    # 50, 52, 57: mean 53, deviation sqrt(13), error sqrt(13 / 3), t 4.3027 for two degrees.
    low, high = intervals.over_seeds([50, 52, 57])
    assert (low + high) / 2 == pytest.approx(53)
    assert (high - low) / 2 == pytest.approx(4.3027 * math.sqrt(13 / 3), abs=1e-3)
    assert intervals.over_seeds([50]) is None


def test_the_interval_over_sentences_is_that_of_a_bootstrap():
    """BLEU of 1,000 drawn sets, from the counts of each sentence."""
    references, system = sentences(), sentences(0.3, 5)
    metric = BLEU()
    counts = [
        (*x.counts, *x.totals, x.sys_len, x.ref_len)
        for x in (metric.corpus_score([a], [[b]]) for a, b in zip(system, references, strict=True))
    ]
    drawn = np.random.default_rng(12345).choice(len(counts), (1000, len(counts)))
    scores = []
    for sums in np.array(counts)[drawn].sum(1):
        precision = np.exp(np.mean(np.log(sums[:4] / sums[4:8])))
        scores.append(100 * precision * min(1, np.exp(1 - sums[9] / sums[8])))
    low, high = np.sort(scores)[[25, 974]]
    recorded = metric.corpus_score(system, [references]).score
    found = intervals.over_sentences(metric, system, references, recorded)
    margin = (high - low) / 2
    assert found == pytest.approx((np.mean(scores) - margin, np.mean(scores) + margin), abs=1e-3)
    assert intervals.over_sentences(metric, system, references, recorded + 1) is None
    assert intervals.over_sentences(metric, ["y"] * 40, references, 0) is None


def test_an_interval_over_sentences_stays_where_scores_can_be():
    few = ["a b c d e f"] * 3
    low, high = intervals.over_sentences(BLEU(), [few[0], "", ""], few, 13.53)
    assert low == 0 and 0 < high <= 100


# --- the verdict ---------------------------------------------------------------------------------


def compared(mean, interval, *seeds, arch="macaron"):
    difference = {"mean": mean, "interval": interval}
    return {"arch": arch, "metric": "BLEU", "seeds": list(seeds), "difference": difference}


def verdicts(*comparisons, tests=("one",)):
    found = [{"name": name, "comparisons": comparisons} for name in tests]
    return verdict.verdicts(found, "base")


def test_of_one_seed_the_verdict_says_that_it_says_nothing():
    (found,) = verdicts(compared(2.58, None, 1))
    assert found["headline"] == "One seed: the difference says nothing about the scheme."
    assert found["details"] == ["`macaron` against `base`: +2.58 BLEU with seed 1."]
    assert "three seeds" in found["advice"]


@pytest.mark.parametrize(
    ("interval", "headline"),
    [
        ((-0.1, 2.1), "No difference is shown: "),
        ((0.1, 1.9), "A difference is shown: "),
    ],
)
def test_over_seeds_the_interval_decides(interval, headline):
    (found,) = verdicts(compared(1.0, interval, 1, 2, 3))
    assert found["headline"].startswith(headline)
    ends = " to ".join(f"{x:+.2f}" for x in interval)
    assert found["details"][0].endswith(f"+1.00 BLEU over 3 seeds, 95 % interval {ends}.")


def test_seeds_with_the_same_difference_have_no_interval():
    assert intervals.over_seeds([0.1 + 0.2, 0.3, 0.3]) is None
    (found,) = verdicts(compared(0.0, None, 1, 2, 3))
    assert found["headline"].startswith("All seeds have the same difference: ")
    assert found["details"] == [
        "`macaron` against `base`: 0.00 BLEU over 3 seeds, the same with each."
    ]


@pytest.mark.parametrize(
    ("interval", "shown"),
    [
        ((0.003, 0.83), "+0.003 to +0.83"),
        ((-0.83, -0.0042), "-0.83 to -0.004"),
        ((0.0, 0.83), "0.00 to +0.83"),
    ],
)
def test_an_interval_that_excludes_0_does_not_end_at_0(interval, shown):
    (found,) = verdicts(compared(0.4, interval, 1, 2, 3))
    assert found["details"][0].endswith(f", 95 % interval {shown}.")


def test_verdicts_of_one_kind_stand_together():
    found = verdicts(compared(1, None, 1), compared(0, None, arch="other"), tests=("one", "two"))
    assert [x["headline"][:7] for x in found] == ["One see", "No seed"]
    assert found[1]["details"] == [
        "`other` against `base` on one: not compared.",
        "`other` against `base` on two: not compared.",
    ]
    assert verdicts()[0]["headline"].startswith("One architecture: ")


def failing(count, without):
    row = {"arch": "macaron", "seed": 1, "failing": count, "bleu": 66.05, "bleu_without": without}
    test = {"name": "one", "sentences": 1000, "decoding": None, "measure": "BLEU"}
    return {**test, "translations": [row] * 8}


def test_failures_are_warned_of_with_the_score_without_them():
    same = {"differing": {}}
    (found,) = verdict.warnings([failing(21, 87.67)], same, [], [])
    assert "`macaron`, seed 1: 21 of 1,000, 66.05 BLEU and 87.67 without them" in found
    assert len(re.findall("without them;", found)) == verdict.NAMED
    assert "and 2 more runs" in found
    assert "a diagnosis, not a result" in found
    assert verdict.warnings([failing(0, None)], same, [], []) == []


def test_several_comparisons_are_warned_of():
    """Of 18 with nothing behind them one interval or more excludes 0 with 1 - 0.95^18."""
    test = {"comparisons": [{"seeds": [1, 2]}] * 6}
    (found,) = verdict.caution([test] * 3)
    assert found.startswith("18 differences are looked at") and "up to 60 % of" in found
    assert verdict.caution([{"comparisons": [{"seeds": [1, 2]}, {"seeds": [1]}]}]) == []


def test_other_flags_and_unfinished_runs_are_warned_of():
    test = failing(0, None) | {"decoding": "the best checkpoint of an unfinished training, --beam"}
    found = verdict.warnings([test], {"differing": {"--lr": {}}}, [], [])
    assert found[0] == "The runs differ in more than the architecture: `--lr`."
    assert found[1].startswith("Scores of unfinished training runs (one): ")


def trained(arch, seed, updates=48, *flags):
    flags = ["--max-update", "48", *flags]
    return {"arch": arch, "seed": seed, "updates": updates, "flags": flags}


def test_runs_that_stopped_before_their_last_update_are_warned_of():
    runs = [trained("base", 1), trained("macaron", 1, 20), trained("other", 1, None)]
    runs.append(trained("patient", 1, 20, "--patience", "3"))
    (found,) = verdict.warnings([failing(0, None)], {"differing": {}}, [], runs)
    assert found == (
        "Training runs that did not reach --max-update: `macaron`, seed 1: 20 of 48 updates."
    )


def test_seeds_without_a_partner_are_warned_of():
    runs = [trained("base", 1), trained("base", 2), trained("macaron", 2)]
    (found,) = verdict.warnings([failing(0, None)], {"differing": {}}, [], runs)
    assert found.startswith("Some runs have no partner of the same seed.")
    assert found.endswith(": `base`, seed 1.")


def test_widths_that_make_sizes_equal_are_not_warned_of():
    """One FFN of 512 is two of 256; where sizes differ it is a warning."""
    flags = {"differing": {"--encoder-ffn-embed-dim": {}, "--macaron-scheme": {}}}
    for sizes, is_warned in (
        ((1_872_384, 1_875_456), False),
        ((1_872_384, 1_892_384), True),
        ((1_872_384, None), True),
    ):
        architectures = [{"parameters": size} for size in sizes]
        found = verdict.warnings([failing(0, None)], flags, architectures, [])
        assert ("--encoder-ffn-embed-dim" in "".join(found)) == is_warned
        assert "--macaron-scheme" not in "".join(found)
