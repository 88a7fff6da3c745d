"""Comparisons over tasks and seeds: against formulas, enumeration and other programs."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import sacrebleu
from helpers.evidence import record
from scipy import optimize, stats

from macaron_fairseq.common import markdown
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.evaluation.evidence import (
    estimates,
    evidence_gallery,
    evidence_report,
    records,
)
from macaron_fairseq.evaluation.evidence.estimates import Effect, Overall, TaskDifference
from macaron_fairseq.evaluation.evidence.evidence_gallery import Published
from macaron_fairseq.evaluation.evidence.records import Items
from macaron_fairseq.evaluation.scores import metrics


def difference(values, scheme="s", task="t", metric="BLEU"):
    mean = float(np.mean(values))
    seeds = list(range(1, len(values) + 1))
    return TaskDifference(task, scheme, metric, seeds, [], 0.0, mean, list(values), mean, mean)


# --- Records -------------------------------------------------------------------------------------


def test_records_come_back_as_they_were_written(tmp_path):
    runs = [record(seed=seed, scheme=scheme) for scheme in ("lie-trotter", "p") for seed in (1, 2)]
    runs[1] = replace(runs[1], looping=3)  # which older records lack
    records.write(tmp_path / "all" / "t.json", runs)
    records.write(tmp_path / "all" / "one" / "t.json", runs[:1])  # the same again
    assert records.read([tmp_path / "all"]) == runs
    assert len((tmp_path / "all" / "t.json").read_text().splitlines()) < 15


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"settings": "y"}, "their settings differ"),
        ({"data": "e"}, "their data differ"),
        ({"signatures": {"WER": "other"}}, "their signatures differ"),
        ({"kinds": Items("edits", 4, "other", "2222")}, "their references differ"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(changed, said):
    with pytest.raises(UserError, match=said):
        estimates.of_task([record()], [record(scheme="p", **changed)])


def test_a_run_with_two_results_is_refused(tmp_path):
    records.write(tmp_path / "a.json", [record()])
    records.write(tmp_path / "b.json", [record(edits="0000")])
    with pytest.raises(UserError, match="with other results"):
        records.read([tmp_path])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x["runs"][0].update(items="01"), "2 items instead of 4"),
        (lambda x: x["runs"][0].update(items="0!20"), "is damaged"),
        (lambda x: x["items"].update(reference="22"), "2 references instead of 4"),
        (lambda x: x["items"].update(kind="words"), "items of the kind 'words'"),
        (lambda x: x["runs"][0].update(scores={"test": {}}), "is damaged"),
        (lambda x: x["runs"][0].update(signatures={}), "is damaged"),
        (lambda x: x["environments"][0].pop("gpus"), "is damaged"),
        (lambda x: x.update(environments=[[1]]), "is damaged"),
        (lambda x: x.update(runs=[3]), "is damaged"),
        (lambda x: x["runs"][0].pop("seed"), "no 'seed'"),
        (lambda x: x["runs"][0].update(looping="2"), "'looping', which is not of the right kind"),
        (lambda x: x["runs"][0].update(preparation=2), "'preparation', which is not of the righ"),
        (lambda x: x.update(items={}), "is damaged"),
        (lambda x: x.pop("task"), "task"),
    ],
)
def test_a_damaged_record_is_refused(change, said, tmp_path):
    path = tmp_path / "t.json"
    records.write(path, [record()])
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=said):
        records.read([path])


def test_a_record_whose_ngrams_lack_a_count_is_refused(tmp_path):
    path, rows = tmp_path / "t.json", [[4, 3, 2, 1, 1, 0, 0, 0]] * 2
    scores = {"scores": {"test": {"BLEU": 1.0}}, "signatures": {"BLEU": "s"}}
    of_ngrams = dict(metric="BLEU", kinds=Items("n-grams", 2, "abc", [4, 4]), items=rows, **scores)
    records.write(path, [record(**of_ngrams)])
    assert records.read([path])[0].items == rows
    content = json.loads(path.read_text())
    content["runs"][0]["items"][1].pop()
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="with other than 8 counts"):
        records.read([path])


# --- Metrics -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "edits"),
    [("", "", 0), ("a b", "", 2), ("", "a", 1), ("a b c", "x a b c", 1), ("a b", "b a", 2)],
)
def test_edits_by_hand(one, other, edits):
    assert metrics.edits([one], [other]) == [edits]


def test_edits_are_those_of_the_definition():
    def levenshtein(a, b):
        if not a or not b:
            return len(a) + len(b)
        return min(
            levenshtein(a[1:], b) + 1,
            levenshtein(a, b[1:]) + 1,
            levenshtein(a[1:], b[1:]) + (a[0] != b[0]),
        )

    rng = np.random.default_rng(1)
    for _ in range(40):
        a, b = ("".join(rng.choice(list("xyz"), rng.integers(0, 6))) for _ in range(2))
        assert metrics.edit_distance(a, b) == levenshtein(a, b)


def test_bleu_of_summed_counts_is_that_of_the_corpus():
    hypotheses = ["the cat sat on the mat today .", "a dog barks", "no"]
    references = ["the cat sat on a mat today .", "the dog barks loudly", "no way"]
    counts = metrics.ngram_counts(hypotheses, references, "en", False, False)
    expected = sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert metrics.bleu_of_counts(np.sum(counts, axis=0).tolist(), "BLEU") == pytest.approx(
        expected
    )


def test_the_models_tokens_are_scored_without_smoothing():
    """As multi-bleu.perl does: without a matching 4-gram the score is 0."""
    counts = metrics.ngram_counts(["a b c x e"], ["a b c d e"], "en", True, False)
    assert metrics.bleu_of_counts(counts[0], "tokenised BLEU") == 0
    assert metrics.bleu_of_counts(counts[0], "BLEU") > 0


# --- One task ------------------------------------------------------------------------------------


def test_the_bootstrap_has_the_variance_of_the_formula():
    """Of one seed: that of the mean of the items' differences: the sides draw the same."""
    rng = np.random.default_rng(2)
    wrong = rng.integers(0, 2, 400)
    better = wrong ^ (rng.random(400) < 0.1)
    base, other = records.digits(2 * wrong), records.digits(better)  # two edits are one wrong word
    sides = estimates.bootstrap([(record(edits=base), record(scheme="p", edits=other))], 4000)
    drawn = sides[:, 1] - sides[:, 0]
    items = 100 * (better - wrong)
    assert drawn.mean() == pytest.approx(items.mean(), abs=0.2)
    assert drawn.std() == pytest.approx(items.std() / math.sqrt(400), rel=0.05)


def test_seeds_that_differ_widen_the_interval():
    """Of seeds that differ in all items: the variance is that of the mean of their differences."""
    pairs = [
        (record(seed=s, edits="01"[s > 3] * 50), record(seed=s, edits="01"[s > 2] * 50))
        for s in range(1, 6)
    ]
    sides = estimates.bootstrap(pairs, 4000)
    drawn = sides[:, 1] - sides[:, 0]  # of seed 3 alone it is not 0
    assert drawn.std() == pytest.approx(100 * math.sqrt(0.2 * 0.8 / 5), rel=0.05)


def test_a_phone_error_rate_is_a_quotient_of_sums():
    base, other = record(metric="PER"), record(scheme="p", edits="0000", metric="PER")
    found = estimates.of_task([base], [other])
    assert found.difference == -37.5 and found.gain == 37.5
    assert found.low < -37.5 < found.high <= 0


def test_the_bootstrap_of_a_phone_error_rate_draws_errors_with_lengths():
    """Of four items: the samples are those of the enumeration."""
    kinds = Items("edits", 4, "abc", "1234")
    pair = [record(edits=x, metric="PER", kinds=kinds) for x in ("0120", "1003")]
    errors, lengths = np.array([[0, 1, 2, 0], [1, 0, 0, 3]]), np.arange(1, 5)
    every = np.array([*itertools.product(range(4), repeat=4)])
    expected = 100 * errors[:, every].sum(axis=2) / lengths[every].sum(axis=1)
    found = estimates.bootstrap([tuple(pair)], 5000).T
    both = [{*zip(*np.round(x, 6).tolist(), strict=True)} for x in (expected, found)]
    assert both[0] == both[1]


def test_the_bootstrap_of_bleu_is_of_sacrebleus_scores():
    """Of two seeds and two sentences: the samples are those of the enumeration, side by side."""
    references = ["a b c d e", "f g h i j k l"]
    # Of each seed, the baseline's lines and the scheme's.
    lines = [
        (["a b c d", "f g h i x k l"], ["a b c d e", "x g h i j k"]),
        (["x a b c d e", "f g h i"], ["b c d e", "f g h i j k l"]),
    ]
    kinds = Items("n-grams", 2, "abc", [5, 7])
    pairs = []
    for seed, of_sides in enumerate(lines):
        counts = [metrics.ngram_counts(x, references, "en", True, False) for x in of_sides]
        sides = [[one[1:] for one in side] for side in counts]
        pairs.append(tuple(record(seed=seed, metric="BLEU", kinds=kinds, items=x) for x in sides))
    twos = [*itertools.product((0, 1), repeat=2)]
    expected = {
        tuple(np.mean([bleu(lines[s][side], references, items) for s in seeds]) for side in (0, 1))
        for seeds, items in itertools.product(twos, twos)
    }
    drawn = estimates.bootstrap(pairs, 200)
    assert sorted(set(map(tuple, drawn.round(6)))) == sorted(
        {tuple(np.round(x, 6)) for x in expected}
    )


def bleu(hypotheses, references, items):
    """sacrebleu's, of the sentences of these numbers."""
    drawn = [[x[i] for i in items] for x in (hypotheses, references)]
    return sacrebleu.corpus_bleu(drawn[0], [drawn[1]], tokenize="none", force=True).score


def test_the_interval_of_a_score_has_the_variance_of_the_formula():
    """Of one run's error rate it is the binomial's; its seeds widen it if they differ."""
    digits = records.digits(np.random.default_rng(5).integers(0, 2, 400))
    share = np.mean(np.array(records.numbers(digits)))
    half = 1.96 * 100 * math.sqrt(share * (1 - share) / 400)
    low, high = estimates.score_interval([record(edits=digits)])
    assert (high - low) / 2 == pytest.approx(half, rel=0.05)
    assert (high + low) / 2 == pytest.approx(100 * share, abs=0.5)
    other = record(seed=2, edits="0" * 400)
    low, high = estimates.score_interval([record(edits=digits), other])
    assert low < 1 and high > 100 * share - 1


def test_a_seed_of_one_side_is_left_out():
    found = estimates.of_task(
        [record(seed=1), record(seed=2)], [record(scheme="p", seed=s) for s in (2, 3)]
    )
    assert found.seeds == [2] and found.left_out == [1, 3]
    with pytest.raises(UserError, match="no seed in common"):
        estimates.of_task([record(seed=1)], [record(scheme="p", seed=2)])


# --- Many tasks ----------------------------------------------------------------------------------


def simulated(effect, tasks, seeds, between, within, seed):
    rng = np.random.default_rng(seed)
    means = effect + between * rng.standard_normal(tasks)
    return {f"t{i}": m + within * rng.standard_normal(seeds) for i, m in enumerate(means)}


def test_the_mixed_model_is_the_analysis_of_variance():
    """In a balanced design REML has a closed form: the mean squares of one-way random effects."""
    data = simulated(0.7, 12, 4, 1.5, 0.8, 3)
    values = np.array([*data.values()])
    between = 4 * values.mean(1).var(ddof=1)  # mean square between tasks
    within = values.var(1, ddof=1).mean()
    half = stats.t.ppf(0.975, 11) * math.sqrt(between / 48)
    found = estimates.mixed_effects(data)
    assert found.estimate == pytest.approx(values.mean(), abs=1e-6)
    assert found.high - found.estimate == pytest.approx(half, rel=1e-3)
    assert found.between_tasks == pytest.approx(math.sqrt((between - within) / 4), rel=1e-2)


@pytest.mark.slow
def test_intervals_hold_the_true_effect_as_often_as_they_say():
    found = [estimates.mixed_effects(simulated(0.3, 15, 3, 0.5, 1.0, seed)) for seed in range(200)]
    covered = sum(x.low < 0.3 < x.high for x in found)
    assert stats.binomtest(covered, 200, 0.95).pvalue > 0.001


def test_it_is_so_of_every_draw_where_the_variance_between_tasks_is_small():
    """There it is often at its bound, 0: each value then counts by itself."""
    for seed in range(12):
        data = simulated(0.3, 15, 5, 0.2, 1.0, seed)
        values = np.array([*data.values()])
        between = 5 * values.mean(1).var(ddof=1)
        within = values.var(1, ddof=1).mean()
        if between < within:
            between = values.var(ddof=1)
        half = stats.t.ppf(0.975, 14) * math.sqrt(between / 75)
        found = estimates.mixed_effects(data)
        assert found.high - found.estimate == pytest.approx(half, rel=5e-3), seed


def test_seeds_that_do_not_differ_have_the_interval_of_the_means():
    found = estimates.mixed_effects({"a": [1.0, 1.0], "b": [2.0], "c": [4.0, 4.0]})
    low, high = stats.t.interval(0.95, 2, loc=7 / 3, scale=stats.sem([1, 2, 4]))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.estimate == pytest.approx(7 / 3) and found.between_tasks is None


def restricted_likelihood(variances, tasks):
    """Of a random intercept for each task, REML, written out by its matrices."""
    within, between = np.exp(variances)
    values = np.concatenate(tasks)
    groups = np.repeat(np.arange(len(tasks)), [len(x) for x in tasks])
    covariance = within * np.eye(len(values)) + between * (groups[:, None] == groups)
    inverse = np.linalg.inv(covariance)
    precision = inverse.sum()
    mean = inverse.sum(0) @ values / precision
    residual = values - mean
    logs = np.linalg.slogdet(covariance)[1] + np.log(precision)
    return (logs + residual @ inverse @ residual) / 2, mean, 1 / math.sqrt(precision)


@pytest.mark.parametrize("seed", range(6))
def test_tasks_with_different_numbers_of_seeds(seed):
    """The estimate and its standard error are those of generalised least squares."""
    rng = np.random.default_rng(seed)
    tasks = [rng.normal(rng.normal(0.3, 0.8), 0.4, n) for n in (5, 1, 2, 3, 1, 4, 2)]
    start = np.log([0.2, 0.5])
    best = optimize.minimize(
        lambda x: restricted_likelihood(x, tasks)[0], start, method="Nelder-Mead"
    )
    _, mean, error = restricted_likelihood(best.x, tasks)
    found = estimates.mixed_effects({str(i): x for i, x in enumerate(tasks)})
    half = stats.t.ppf(0.975, 6) * error
    assert found.estimate == pytest.approx(mean, abs=1e-3)
    assert found.high - found.estimate == pytest.approx(half, rel=5e-3)


def test_no_variance_between_tasks_is_a_fit(recwarn):
    """Each value counts by itself, also where tasks have different numbers of seeds."""
    data = {"a": [0.78, 0.53, -0.28], "b": [0.7, 0.21, 0.77], "c": [0.52, 0.39], "d": [0.04]}
    data["e"] = [0.03]
    values = np.concatenate([*data.values()])
    found = estimates.mixed_effects(data)
    low, high = stats.t.interval(0.95, 4, values.mean(), stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high), abs=2e-3)
    assert found.between_tasks == pytest.approx(0, abs=1e-2) and not recwarn.list


def test_few_tasks_have_a_fit():
    found = estimates.mixed_effects(
        {"a": [1.0, 1.1, 0.9, 1.0, 1.0], "b": [1.0, 1.0, 1.1, 0.9, 1.0]}
    )
    assert found.estimate == pytest.approx(1.0) and found.low < 1.0 < found.high < math.inf


def test_one_seed_or_one_task():
    means = estimates.mixed_effects({"a": [1.0], "b": [2.0], "c": [4.0]})
    low, high = stats.t.interval(0.95, 2, 7 / 3, stats.sem([1, 2, 4]))
    assert (means.low, means.high) == pytest.approx((low, high)) and means.between_tasks is None
    assert estimates.mixed_effects({"a": [1.0]}).high == math.inf
    assert estimates.mixed_effects({"a": [1.0, 3.0]}).estimate == 2
    assert estimates.mixed_effects({"a": [1.0, 1.0]}).high == math.inf
    assert estimates.mixed_effects({"a": [0.0, 0.0]}).high == math.inf
    assert np.std([0.7] * 3, ddof=1) > 0  # by rounding
    assert estimates.mixed_effects({"a": [0.7] * 3}).high == math.inf


def test_the_sign_test_by_enumeration():
    values = [0.5, -0.1, 0.9, 1.3, 0.2, 2.0, -0.3]
    _, sign = estimates.tests_over_tasks([difference([value]) for value in values])
    signs = [*itertools.product((-1, 1), repeat=7)]
    assert sign == pytest.approx(np.mean([abs(sum(s)) >= 3 for s in signs]))


@pytest.mark.parametrize(
    "values", [[0, 0.5, -1, 2, 0, 3], [0, 0, 0], [0, -1, -1, 4], [0, *range(1, 16)]]
)
def test_differences_of_zero_are_left_out_of_both_tests(values):
    wilcoxon, sign = estimates.tests_over_tasks([difference([value]) for value in values])
    unequal = np.array([value for value in values if value])
    signs = np.array([*itertools.product((-1, 1), repeat=len(unequal))])
    ranks = stats.rankdata(np.abs(unequal))
    observed = abs(np.sign(unequal) @ ranks) - 1e-9
    assert wilcoxon == pytest.approx(np.mean(np.abs(signs @ ranks) >= observed))
    assert sign == pytest.approx(np.mean(abs(signs.sum(1)) >= abs(np.sign(unequal).sum())))


def test_seeds_that_tie_count_as_ties():
    """-6, -1, -2 and -3 words of 450 with both seeds: no rounding makes seeds differ."""
    data = {}
    for i, (wrong, less) in enumerate(((120, 6), (123, 1), (40, 2), (77, 3))):
        sides = [
            [
                record(f"t{i}", name, seed, "1" * n + "0" * (450 - n))
                for seed, n in enumerate(counts)
            ]
            for name, counts in (
                ("lie-trotter", (wrong, wrong + 7)),
                ("p", (wrong - less, wrong + 7 - less)),
            )
        ]
        data[f"t{i}"] = estimates.of_task(*sides).by_seed
    found = estimates.mixed_effects(data)
    assert found.estimate == pytest.approx(-12 / 4 / 4.5) and found.between_tasks is None


def test_equal_differences_are_equal_whatever_their_scores_rounding():
    """Of 450 words 120 and 114, and 123 and 117, are wrong: 6 less, whose rounded rates differ."""
    found, recorded = [], []
    for base, other in ((120, 114), (123, 117)):
        sides = []
        for scheme, wrong in (("lie-trotter", base), ("p", other)):
            edits = "1" * wrong + "0" * (450 - wrong)
            scores = {"test": {"WER": round(100 * wrong / 450, 4)}}
            sides.append([record(scheme=scheme, edits=edits, scores=scores)])
        recorded.append(round(sides[1][0].score - sides[0][0].score, 9))
        found.append(estimates.of_task(*sides).difference)
    assert found == pytest.approx([-6 / 4.5] * 2, abs=1e-12) and recorded[0] != recorded[1]


def test_the_detectable_difference_has_the_power():
    differences = [0.1, 0.9, -0.4, 1.2, 0.3, 0.8]
    found = estimates.detectable(differences)
    shift = found / (np.std(differences, ddof=1) / math.sqrt(6))
    limit = stats.t.ppf(0.975, 5)
    power = stats.nct.sf(limit, 5, shift) + stats.nct.cdf(-limit, 5, shift)
    assert power == pytest.approx(0.8, abs=1e-3)


def test_differences_that_are_the_same_by_chance_have_no_interval():
    found = estimates.mixed_effects({"a": [0.22], "b": [0.22]})
    assert found.estimate == 0.22 and (found.low, found.high) == (-math.inf, math.inf)
    found = estimates.mixed_effects({"a": [0.0, 0.0], "b": [0.0, 0.0]})
    assert found.estimate == 0 and (found.low, found.high) == (-math.inf, math.inf)
    assert estimates.detectable([0.22, 0.22]) is None


def test_empty_groups_of_sentences_are_not_drawn():
    """Of 100 groups two have a sentence; a sample of empty ones alone would score 0."""
    rows = [[4, 3, 2, 1, 4, 3, 2, 1]] * 2 + [[0] * 8] * 98
    kinds = Items("n-grams", 2, "abc", [4, 4] + [0] * 98)
    of_ngrams = dict(metric="BLEU", kinds=kinds, items=rows)
    scores = {"scores": {"test": {"BLEU": 100.0}}, "signatures": {"BLEU": "s"}}
    found = estimates.score_interval([record(**of_ngrams, **scores)])
    assert found == pytest.approx((100, 100))
    one = dict(metric="BLEU", kinds=replace(kinds, count=1, reference=[4] + [0] * 99))
    alone = record(**one, items=rows[:1] + rows[2:] + rows[2:3], **scores)
    assert all(map(math.isnan, estimates.score_interval([alone])))
    assert "| 100.00 | - |" in evidence_gallery.gallery([alone], "lie-trotter")


# --- The report ----------------------------------------------------------------------------------


def test_a_report_says_what_is_left_out(tmp_path):
    rng = np.random.default_rng(4)
    runs = []
    for task in ("a", "b", "c"):
        for seed in (1, 2):
            for scheme, errors in (("lie-trotter", 0.4), ("p", 0.1)):
                digits = records.digits(rng.random(60) < errors)
                runs.append(
                    record(task, scheme, seed, digits, kinds=Items("edits", 60, task, "2" * 60))
                )
    alone = replace(runs[1], seed=3)
    other = replace(runs[1], scheme="q", seed=4)
    base = replace(runs[0], seed=5)
    families = dict.fromkeys("abc", "g2p")
    every = [*runs, alone, other, base]
    some = evidence_report.compare(
        every, families, "lie-trotter", is_missed=lambda key: key == ("a", "p", 5)
    )
    assert [note for note in some.notes if "of seed" in note] == [
        "left out of a: lie-trotter without p of seed 5"
    ]
    comparison = evidence_report.compare(every, families, "lie-trotter")
    text = evidence_report.write(comparison, tmp_path)
    content = json.loads((tmp_path / "report.json").read_text())
    assert "left out of a: p without lie-trotter of seed 3" in text
    assert "left out of a: lie-trotter without p of seed 5" in text
    assert "left out of a: q, which has no seed in common with lie-trotter" in text
    overall = content["overall"][0]
    assert overall["tasks"] == overall["better"] == 3 and overall["effect"]["high"] < 0
    assert (tmp_path / "forest.png").read_bytes().startswith(b"\x89PNG")
    assert "Translations that loop" not in text  # these records do not say


def test_cells_stand_in_their_columns(monkeypatch):
    """Of four words each: two wrong in the baseline, and one, one and three in the other."""
    drawn = []
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda self, *_, **__: drawn.append(self)
    )
    runs = [record(task) for task in "abc"]
    edits = dict(a="0100", b="0100", c="1110")
    runs += [record(task, "p", edits=text) for task, text in edits.items()]
    found = evidence_report.compare(runs, dict.fromkeys("abc", "g2p"), "lie-trotter")
    rows = evidence_report.task_table(found.tasks).split("\n")
    assert rows[0].startswith("| task | scheme | metric | seeds | baseline | score | difference |")
    assert rows[2].startswith("| a | p | WER | 1 | 50.00 | 25.00 | -25.00 |")
    table = evidence_report.over_table(found.overall, has_rule=False)
    assert "| better, worse, equal |" in table and "| 2, 1, 0 |" in table
    evidence_report.forest(found)
    (axis,) = drawn[0].axes
    of_one = [line for line in axis.lines if len(line.get_xdata()) == 1]
    points = {line.get_ydata()[0]: line.get_xdata()[0] for line in of_one}
    assert points == {0: found.overall[0].effect.estimate, 1: -25, 2: -25, 3: 25}
    assert axis.get_title() == "p: difference in WER (left: better)"
    assert [text.get_text() for text in axis.get_yticklabels()] == ["over tasks", *"abc"]


def test_figures_over_tasks_stand_in_their_columns():
    effect = Effect(1.25, -0.5, 3.0, 0.75)
    p = {"wilcoxon": 0.01, "wilcoxon_holm": 0.02, "sign": 0.03, "sign_holm": 0.04}
    counts = {"tasks": 6, "runs": 18, "better": 3, "worse": 2}
    one = Overall("words", "p", "BLEU", **counts, effect=effect, **p, detectable=2.5)
    head, _, row, *_ = evidence_report.over_table([one], has_rule=False).split("\n")
    assert head == (
        "| family | scheme | metric | difference | 95 % interval | between tasks | "
        "better, worse, equal | pairs | Wilcoxon p | Holm | sign p | Holm | detectable |"
    )
    assert row == (
        "| words | p | BLEU | +1.25 | -0.50 to +3.00 | 0.75 | 3, 2, 1 | 18 | 0.010 | 0.020 | 0.030 "
        "| 0.040 | 2.50 |"
    )


def test_families_are_judged_apart_each_by_how_many_schemes_it_is_to_have():
    """Five words of five are better and three texts of three worse, by a quarter of the items."""
    families = {**dict.fromkeys("abcde", "words"), **dict.fromkeys("xyz", "texts")}
    runs = [record(task) for task in families]
    runs += [record(task, "p", edits="0100" if task < "x" else "1120") for task in families]
    words, texts = evidence_report.compare(
        runs, families, "lie-trotter", schemes={"words": {"q", "r"}}
    ).overall
    assert (words.family, words.tasks, words.better, words.worse) == ("words", 5, 5, 0)
    assert (texts.family, texts.tasks, texts.better, texts.worse) == ("texts", 3, 0, 3)
    assert (words.effect.estimate, texts.effect.estimate) == pytest.approx((-25, 25))
    # Of 2^5 signs two are as extreme; two more schemes are to come.
    assert words.sign_holm == words.wilcoxon_holm == pytest.approx(3 * 2 / 2**5)
    assert texts.sign_holm == texts.wilcoxon_holm == pytest.approx(2 / 2**3)


def test_scores_of_others_stand_next_to_the_baselines():
    runs = [record(seed=1), record(seed=2, edits="0000"), record(scheme="p", edits="1111")]
    others = [
        Published("t", "test", "WER", 20.5, "a model", "who"),
        Published("u", "test", "WER", 1, "a", "b"),
    ]
    rows = evidence_gallery.published_table(runs, others, "lie-trotter").split("\n")[2:]
    assert rows[0] == "| t | test | WER | 20.5 | 25.00 ± 35.36 | +4.50 | a model: who |"
    assert rows[1] == "| u | test | WER | 1 | - | - | a: b |"


def test_loops_are_counted_for_each_scheme():
    runs = [
        record(seed=1, looping=1, cut_off=2),
        record(seed=2, looping=0, cut_off=1),
        record(seed=3),
    ]
    runs += [record(scheme="p", looping=0)]
    rows = evidence_gallery.loops(runs, {"t": "g2p"}, "lie-trotter").split("\n")[2:4]
    assert rows[0] == "| g2p | lie-trotter | 2 | 8 | 1 | 125.00 | 3 | - |"
    assert rows[1] == "| g2p | p | 1 | 4 | 0 | 0.00 | - | 1 |"  # of the baseline's seed 1
    assert evidence_gallery.loops([record()], {"t": "g2p"}, "lie-trotter") == ""


def test_the_gallery_has_a_row_for_each_task_and_scheme():
    other = {"cpu": "c", "gpus": ["H"], "threads": 1}
    runs = [
        record(seed=1, seconds=7200),
        record(seed=2, updates=9, seconds=3600, environment=other),
    ]
    runs += [record(scheme="p")]
    text = evidence_gallery.gallery(runs, "lie-trotter")
    rows = [line for line in text.split("\n") if line.startswith("| t |")]
    assert len(rows) == 2 and "| 50.00 ± 0.00 |" in rows[0] and "| 5 to 9 | 3.0 |" in rows[0]
    assert "1 thread, c; H" in rows[0] and rows[0].endswith("| a |")
    said = "- command a, with a row's task, scheme and seeds: `reproduce.sh --tasks TASK --schemes "
    assert f'{said}SCHEME --seeds "SEEDS" --cpu`' in text
    assert "- 3 runs with PyTorch of an unknown version; code unknown." in text
    assert "- (1) WER: `s`" in text and "| PER 37.50 | 1 2 |" in rows[0]


def test_the_gallery_names_any_number_of_commands():
    """Of which each may end with its seed."""
    runs = [
        record(seed=i, command=f"reproduce.sh --tasks t --jobs {i // 2} --seeds {i}")
        for i in range(60)
    ]
    text = evidence_gallery.gallery(runs, "lie-trotter")
    notes = [line for line in text.split("\n") if line.startswith("- command ")]
    assert len(notes) == 30 and notes[29].startswith("- command d2, ")
    assert notes[29].endswith('`reproduce.sh --tasks TASK --jobs 29 --seeds "SEEDS"`')


def test_the_gallery_counts_pairs_that_were_made_otherwise():
    machine = {"cpu": "c", "gpus": [], "threads": 1, "revision": "1"}
    runs = [record(seed=seed, environment=machine) for seed in (1, 2, 3)]
    for seed, other in ((1, {}), (2, {"revision": "2"}), (3, {"revision": "2", "cpu": "d"})):
        runs.append(record(scheme="p", seed=seed, environment={**machine, **other}))
    text = evidence_gallery.gallery([*runs, record(scheme="p", seed=4)], "lie-trotter")
    said = "- Of 3 pairs of p and lie-trotter, 2 have two versions of the code, and 1 two kinds of"
    assert text.endswith(f"{said} machine.")
    assert "pairs of" not in evidence_gallery.gallery(runs[:4], "lie-trotter")


def test_the_gallery_counts_runs_of_code_that_nobody_can_get():
    environment = {"cpu": "c", "gpus": [], "threads": 1}
    runs = [record(seed=1, environment={**environment, "revision": "a1+"})]
    runs.append(record(seed=2, environment={**environment, "revision": "a1"}))
    text = evidence_gallery.gallery(runs, "lie-trotter")
    assert text.endswith("which the records name. 1 run had changes that nobody committed.")


def test_small_p_values_are_not_zero():
    found = [*map(markdown.p_value, (None, 0.0004, 0.0006, 0.25))]
    assert found == ["-", "<0.001", "<0.001", "0.250"]


def test_a_task_without_a_family_is_refused():
    with pytest.raises(UserError, match=r"^the task t is in no family: leave out its records$"):
        evidence_report.compare([record()], {"u": "g2p"}, "lie-trotter")


def test_nothing_to_compare_is_no_error():
    comparison = evidence_report.compare([], {"t": "g2p"}, "lie-trotter")
    assert evidence_report.body(comparison).strip() == ""
    assert evidence_report.forest(comparison) is None


@pytest.mark.parametrize("numbers", [[0, 35, 7], [0, 36, 7]])
def test_numbers_are_kept_however_large(numbers):
    kept = records.digits(numbers)
    assert records.numbers(kept) == numbers and isinstance(kept, str) == (max(numbers) < 36)
