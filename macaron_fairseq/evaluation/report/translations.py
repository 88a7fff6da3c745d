"""A test set and all runs' translations of it, as a part of a report's summary."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.progress import bar
from macaron_fairseq.common.text_lines import read_lines
from macaron_fairseq.evaluation.report import comparison
from macaron_fairseq.evaluation.report.comparison import Group, Words
from macaron_fairseq.evaluation.scores import failures, intervals, metrics
from macaron_fairseq.evaluation.training import runs
from macaron_fairseq.evaluation.training.runs import Key, Run, Scored, Texts
from macaron_fairseq.text.languages import has_spaces

Part = dict[str, Any]
BLEU_OF_TOKENS = "BLEU of tokens"


@dataclass(frozen=True)
class TestSet:
    """A test set, the runs that translated it, and its texts in lines and in words."""

    name: str
    archs: dict[str, list[Run]]
    texts: Texts
    references: list[Words]
    hypotheses: dict[Key, list[Words]]
    bleu: BLEU
    sentence_bleu: BLEU  # with effective order, as a single sentence needs

    @property
    def runs(self) -> list[Run]:
        """All of them, one architecture after the other."""
        return [run for theirs in self.archs.values() for run in theirs]

    @property
    def scored(self) -> Scored:
        """What is the same for all runs: the reference and how it was scored."""
        return self.runs[0].tests[self.name]

    @property
    def measure(self) -> str:
        """What `bleu` measures."""
        return BLEU_OF_TOKENS if self.scored.of_tokens else "BLEU"


def read(name: str, archs: dict[str, list[Run]]) -> TestSet:
    """Read the texts of a test set.

    Raises:
        UserError: if one cannot be read.
    """
    found = [run for theirs in archs.values() for run in theirs]
    scored, target = found[0].tests[name], found[0].manifest["data"]["target"]
    texts = runs.read_texts(found, name)

    def words(lines: Sequence[str]) -> list[Words]:
        if scored.of_tokens:
            return [*map(comparison.interned, lines)]
        return comparison.words_of(lines, target, scored.lowercase)

    def bleu(effective_order: bool) -> BLEU:
        if scored.of_tokens:
            return metrics.bleu_of_tokens(scored.lowercase, effective_order)
        return metrics.detokenised_bleu(target, scored.lowercase, effective_order)

    return TestSet(
        name,
        archs,
        texts,
        words(texts.references),
        {key: words(lines) for key, lines in texts.hypotheses.items()},
        bleu(effective_order=False),
        bleu(effective_order=True),
    )


def summarize(
    test: TestSet,
    baseline: str,
    published: Sequence[Part],
    counts: Counter[str] | None,
    examples: int,
) -> Part:
    """Scores, published ones, failures, and where the translations differ.

    Args:
        test: the test set.
        baseline: the architecture that all others are compared with.
        published: entries of a file of published scores.
        counts: see `frequencies`; None if the training data is not known.
        examples: sentences to show of each comparison, at most.
    """
    scored = test.scored
    lengths = [len(words) for words in test.references]
    systems = [test.texts.hypotheses[run.key] for run in test.runs]
    said = (run.tests[test.name].decoding for run in test.runs)
    decoding = next(filter(None, said), None)  # of the runs that say it, which are all the same
    maximum = failures.maximum_length(decoding)
    return {
        "name": test.name,
        "sentences": scored.sentences,
        "reference_sha256": scored.reference_sha256,
        "decoding": decoding,
        "signatures": scored.signatures,
        "lowercase": scored.lowercase,
        "architectures": [
            {
                "arch": arch,
                "seeds": [run.seed for run in theirs],
                "scores": {metric: score(test, theirs, metric) for metric in scored.scores},
                "published": [
                    entry
                    for entry in published
                    if (entry["arch"], entry["test"]) == (arch, test.name)
                    and entry["metric"] in scored.scores
                ],
            }
            for arch, theirs in test.archs.items()
        ],
        "measure": test.measure,
        "maximum_length": maximum and str(maximum),
        "translations": [lengths_and_failures(test, run) for run in test.runs],
        "by_length": over_seeds(
            test,
            comparison.by_length(test.texts.references, lengths, systems, test.bleu),
            "sentences",
            baseline,
        ),
        "by_frequency": by_frequency(test, counts, baseline) if counts is not None else None,
        "comparisons": [
            compare(test, arch, baseline, examples) for arch in test.archs if arch != baseline
        ],
    }


def spread(scores: Sequence[float]) -> Part:
    """Mean, sample standard deviation and 95 % interval over seeds; of one score only the mean."""
    interval = intervals.over_seeds(scores)
    return {
        "mean": statistics.mean(scores),
        "standard_deviation": statistics.stdev(scores) if len(scores) > 1 else None,
        "interval": interval,
        "interval_over": "seeds" if interval else None,
    }


def score(test: TestSet, theirs: Sequence[Run], metric: str) -> Part:
    """A metric over the seeds of one architecture; of one seed, its interval over sentences."""
    found = spread([run.tests[test.name].scores[metric] for run in theirs])
    known: dict[str, Metric] = {
        "BLEU": test.bleu,
        "chrF": CHRF(lowercase=test.scored.lowercase),
    }
    if len(theirs) == 1 and metric in known:
        lines, recorded = test.texts.hypotheses[theirs[0].key], found["mean"]
        found["interval"] = intervals.over_sentences(
            known[metric], lines, test.texts.references, recorded
        )
        found["interval_over"] = "sentences" if found["interval"] else None
    return found


def lengths_and_failures(test: TestSet, run: Run) -> Part:
    """How long one run's translations are, how many fail, and BLEU without those."""
    lines, references = test.texts.hypotheses[run.key], test.texts.references
    scored = run.tests[test.name]
    whole = test.bleu.corpus_score(lines, [references])
    looping = failures.looping(lines, references)
    cut_off = None
    if scored.generated:
        cut_off = failures.cut_off(scored.generated, scored.decoding)
    failing = {*looping, *(cut_off or ())}
    kept = [i for i in range(len(lines)) if i not in failing]
    without = None
    if failing and kept:
        some, their_references = [lines[i] for i in kept], [references[i] for i in kept]
        without = test.bleu.corpus_score(some, [their_references]).score
    return {
        "arch": run.arch,
        "seed": run.seed,
        "scores": scored.scores,
        "length_ratio": whole.ratio,
        "looping": len(looping),
        "cut_off": None if cut_off is None else len(cut_off),
        "failing": len(failing),
        "failing_lines": sorted(i + 1 for i in failing),
        "bleu": whole.score,
        "bleu_without": without,
    }


def frequencies(tests: Sequence[TestSet], train_text: Path) -> Counter[str]:
    """How often the words of test sets occur in the training data, which is read once.

    Args:
        tests: the test sets.
        train_text: the target side of the training data in words, or "-" for standard input.

    Raises:
        UserError: if it cannot be read, or one test set was scored with regard to case, and another
            without.
    """
    lowercase = {test.scored.lowercase for test in tests}
    if len(lowercase) > 1:
        raise UserError(
            f"{', '.join(test.name for test in tests)} were scored partly with and partly without "
            "regard to case: leave out --train-text, or score them again"
        )
    texts = (text for test in tests for text in (test.references, *test.hypotheses.values()))
    words = {word for text in texts for sentence in text for word in sentence}
    lines = bar("counting words", " lines", items=read_lines(train_text))
    target = tests[0].runs[0].manifest["data"]["target"]
    by_character = not has_spaces(target)
    return comparison.count_in(lines, words, lowercase.pop(), by_character)


def by_frequency(test: TestSet, counts: Counter[str], baseline: str) -> list[Part]:
    """F1 by the frequency of words in the training data."""
    systems = [test.hypotheses[run.key] for run in test.runs]
    rows = comparison.by_frequency(test.references, systems, counts)
    return over_seeds(test, rows, "words", baseline)


def over_seeds(
    test: TestSet, rows: Sequence[tuple[Group, int, list[float]]], counted: str, baseline: str
) -> list[Part]:
    """Rows of groups: each architecture's mean over its seeds, and differences to the baseline."""
    return [
        {
            "from": start,
            "to": end,
            counted: size,
            "scores": {
                arch: spread([x for (one, _), x in found.items() if one == arch])
                for arch in test.archs
            },
            "differences": {
                arch: mean_difference(test, found, arch, baseline)
                for arch in test.archs
                if arch != baseline
            },
        }
        for (start, end), size, scores in rows
        for found in [{run.key: x for run, x in zip(test.runs, scores, strict=True)}]
    ]


def mean_difference(
    test: TestSet, scores: Mapping[Key, float], arch: str, baseline: str
) -> float | None:
    """Of an architecture and the baseline, over the seeds that both have; None without any."""
    found = [
        scores[arch, seed] - scores[baseline, seed]
        for seed in (run.seed for run in test.archs[arch])
        if (baseline, seed) in scores
    ]
    return statistics.mean(found) if found else None


def compare(test: TestSet, arch: str, baseline: str, examples: int) -> Part:
    """One architecture against the baseline, over the seeds that both have."""
    ours, theirs = ({run.seed: run for run in test.archs[x]} for x in (arch, baseline))
    pairs = [(theirs[seed], run) for seed, run in ours.items() if seed in theirs]
    metric = next(iter(test.scored.scores))  # which published scores are of
    found = {"arch": arch, "seeds": [run.seed for _, run in pairs], "metric": metric}
    if not pairs:
        return found | {"difference": None, "ngrams": None, "sentences": None}
    differences = [
        other.tests[test.name].scores[metric] - base.tests[test.name].scores[metric]
        for base, other in pairs
    ]
    base_matches, matches = (
        sum(
            (comparison.matches(test.references, test.hypotheses[run.key]) for run in side),
            Counter(),
        )
        for side in zip(*pairs, strict=True)
    )
    better, worse = comparison.salient_ngrams(test.references, base_matches, matches)
    base, other = pairs[0]
    sentences = comparison.by_sentence(
        test.texts.sources,
        test.texts.references,
        test.texts.hypotheses[base.key],
        test.texts.hypotheses[other.key],
        test.sentence_bleu,
        examples,
    )
    return found | {
        "difference": spread(differences),
        "ngrams": {"better": [asdict(x) for x in better], "worse": [asdict(x) for x in worse]},
        "sentences": {"seed": other.seed, **asdict(sentences)},
    }
