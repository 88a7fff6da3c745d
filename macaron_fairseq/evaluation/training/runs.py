"""The trained and scored models that a report sets side by side."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.text_lines import read_lines
from macaron_fairseq.evaluation.training import manifest, training_flags, training_log
from macaron_fairseq.evaluation.training.training_flags import (
    CACHES,
    CHECKPOINTS,
    DEVICES,
    PLACES,
    SAVING,
    SCHEME,
)
from macaron_fairseq.evaluation.training.training_log import Training
from macaron_fairseq.schemes import splitting, substeps

Key = tuple[str, int]  # of a run in a report: architecture and seed

SCORES = {"sentences": int, "reference": str, "reference_sha256": str, "scores": list}
# Files in which a recipe says what it translated with, and what was there then.
NOTES = "checkpoint.sha256", "decoding", "last.sha256"
# What a recipe writes down where it scores a training that has not reached its end.
UNFINISHED = "an unfinished training"


# In which seeds of one setting may differ.
MAY_DIFFER = (*PLACES, *DEVICES, *CHECKPOINTS, *SAVING, *CACHES, *SCHEME, "--seed")


@dataclass
class Scored:
    """The translation of one test set: scores and signatures by metric, and where the text is."""

    hypotheses: Path
    generated: Path | None  # what fairseq-generate printed, if it is there and was scored
    reference: Path
    reference_sha256: str
    sentences: int
    scores: dict[str, float]
    signatures: dict[str, str]
    checkpoint_sha256: str | None
    decoding: str | None  # which checkpoint, and the flags of fairseq-generate
    of_tokens: bool  # whether the translations are no text but tokens, such as phonemes

    @property
    def lowercase(self) -> bool:
        """Whether case was ignored."""
        return any("|case:lc|" in signature for signature in self.signatures.values())


@dataclass
class Run:
    """One training run of one architecture with one seed, and its scores by test set."""

    folder: Path
    arch: str  # with its scheme and sub-step, as `name_of` gives it
    seed: int
    manifest: dict[str, Any]
    training: Training
    tests: dict[str, Scored]
    batch: str | None = None  # tokens of an update at most, where a recipe wrote it down

    @property
    def key(self) -> Key:
        """What tells it from the other runs of a report."""
        return self.arch, self.seed


@dataclass(frozen=True)
class Texts:
    """The lines of a test set, as raw text."""

    sources: list[str] | None  # None where no such file is next to the reference
    references: list[str]
    hypotheses: dict[Key, list[str]]


def name_of(arch: str, scheme: str = splitting.DEFAULT, substep: str = substeps.DEFAULT) -> str:
    """What a report calls an architecture: ARCH, ARCH/SCHEME or ARCH/SCHEME/SUBSTEP.

    Defaults are left out, those of Macaron's architectures for translation.
    """
    if substep != substeps.DEFAULT:
        return f"{arch}/{scheme}/{substep}"
    return arch if scheme == splitting.DEFAULT else f"{arch}/{scheme}"


def read(folder: Path) -> Run:
    """Read a run's folder.

    Raises:
        UserError: if it is not trained and scored, was trained on since, or its texts are not
            what was scored.
    """
    hint = f"is {folder} a folder that the stage train made?"
    found = manifest.read(folder, hint)
    log = folder / "train.log"
    if not log.is_file():
        raise UserError(f"{folder} has no train.log: run the stage train first")
    tests = {name: read_scored(folder / name) for name in found["data"]["tests"]}
    if not tests:
        raise UserError(f"{folder} was trained with data that has no test set: a report needs one")
    batch = read_note(folder, "batch")
    flags = training_flags.parse(found["flags"])
    valid = " ".join(flags.get("--valid-subset", ("valid",))).split(",")[0]
    told = training_log.read(log, valid)
    return Run(folder, trained_arch(found), found["seed"], found, told, tests, batch)


def trained_arch(found: Mapping[str, Any]) -> str:
    """What a report calls the architecture that a manifest tells of."""
    flags = training_flags.parse(found["flags"])
    substep = [*flags.get("--macaron-substep", ()), substeps.DEFAULT][0]
    return name_of(found["arch"], training_flags.scheme_of(flags), substep)


def read_scored(folder: Path) -> Scored:
    """Read the folder of one test set in a run's."""
    path = folder / "scores.json"
    if not path.is_file():
        raise UserError(
            f"{folder.parent} has no scores for {folder.name} ({path} is missing): run the stage "
            "evaluate first"
        )
    again = f"score {folder} again, with the stage evaluate or `macaron-fairseq score`"
    found = files.read_json(path, SCORES, again)
    of_notes = read_note(folder, "generated.sha256")  # not there before version 0.2
    # A recipe's notes are not of what was decoded and scored since.
    are_of_it = of_notes in (None, found.get("generated_sha256"))
    notes = {name: read_note(folder, name) if are_of_it else None for name in NOTES}
    last, scored_after = folder.parent / "checkpoint_last.pt", notes["last.sha256"]
    if last.is_file() and (
        files.sha256(last) != scored_after
        if scored_after
        else last.stat().st_mtime > path.stat().st_mtime
    ):
        raise UserError(
            f"{folder.parent} was trained on after {folder.name} was scored: translate it, and "
            f"{again}"
        )
    try:
        scores = {str(x["metric"]): float(x["score"]) for x in found["scores"]}
        signatures = {str(x["metric"]): str(x["signature"]) for x in found["scores"]}
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} names no metric, score or signature: {again}") from error
    if not scores or not all(map(math.isfinite, scores.values())):
        raise UserError(f"{path} holds no scores: {again}")
    generated = folder / "generated.txt"
    is_scored = generated.is_file() and files.sha256(generated) == found.get("generated_sha256")
    scored = Scored(
        hypotheses=folder / "hypotheses.txt",
        generated=generated if is_scored else None,
        reference=folder / found["reference"],
        reference_sha256=found["reference_sha256"],
        sentences=found["sentences"],
        scores=scores,
        signatures=signatures,
        checkpoint_sha256=notes["checkpoint.sha256"],
        decoding=notes["decoding"],
        # Not said before version 0.2, where tokens had error rates alone.
        of_tokens=found.get("tokens", {*scores} <= {"WER", "PER"}),
    )
    refuse_other_texts(scored, again)
    known = found.get("hypotheses_sha256")  # since version 0.2
    if known and files.sha256(scored.hypotheses) != known:
        raise UserError(f"{scored.hypotheses} has changed since it was scored: {again}")
    return scored


def read_texts(runs: Sequence[Run], test: str) -> Texts:
    """Read a test set's texts and all translations of it.

    Raises:
        UserError: if one cannot be read.
    """
    reference = runs[0].tests[test].reference
    references = list(read_lines(reference))
    source = reference.with_suffix(f".{runs[0].manifest['data']['source']}")
    sources = list(read_lines(source)) if source != reference and source.is_file() else []
    return Texts(
        sources if len(sources) == len(references) else None,
        references,
        {run.key: list(read_lines(run.tests[test].hypotheses)) for run in runs},
    )


def read_note(folder: Path, name: str) -> str | None:
    """What recipes put in a file of that name next to the scores, if they did."""
    path = folder / name
    return "\n".join(read_lines(path)).strip() if path.is_file() else None


def refuse_other_texts(scored: Scored, again: str) -> None:
    """Raise a `UserError` unless reference and hypotheses are there and fit each other."""
    if not scored.reference.is_file():
        raise UserError(f"the reference {scored.reference} is gone: put it back, or {again}")
    if files.sha256(scored.reference) != scored.reference_sha256:
        raise UserError(f"the reference {scored.reference} has changed since it was used: {again}")
    hypotheses, references = (
        sum(1 for _ in read_lines(path)) for path in (scored.hypotheses, scored.reference)
    )
    if hypotheses != references:
        raise UserError(
            f"{scored.hypotheses} holds {hypotheses} hypotheses for {references} references: "
            "translate all sentences, with --required-batch-size-multiple 1, in the stage evaluate"
        )


def refuse_different(runs: Sequence[Run]) -> None:
    """Raise a `UserError` if no table can hold these runs."""
    for one, other in combinations(runs, 2):  # each pair, as some do not say all of it
        if difference := data_difference(one, other) or score_difference(one, other):
            raise UserError(
                f"{one.folder} and {other.folder} cannot be compared, {difference}: make a "
                "report of each"
            )
    for one, other in combinations(runs, 2):
        if one.arch != other.arch:
            continue
        if one.seed == other.seed:
            raise UserError(
                f"{one.folder} and {other.folder} are both {one.arch} with seed {one.seed}: name "
                "one of them"
            )
        was, now = (training_flags.parse(run.manifest["flags"]) for run in (one, other))
        for name in [*was, *now]:
            is_same = name in MAY_DIFFER or training_flags.is_same(was.get(name), now.get(name))
            hashes = manifest.hashes_of(name, one.manifest, other.manifest)
            if all(hashes):  # a teacher may have moved, and another one have its name
                is_same = hashes[0] == hashes[1]
            if not is_same:
                both = [training_flags.show(name, x) for x in (was, now)]
                if both[0] == both[1]:
                    both[1] = "the same with another content"
                raise UserError(
                    f"{one.folder} and {other.folder} are both {one.arch} but not one setting with "
                    f"two seeds, {' and '.join(both)}: make a report of each"
                )


def data_difference(one: Run, other: Run) -> str | None:
    """What differs in what two runs were trained on, in words; None if nothing does."""
    tests, other_tests = (run.manifest["data"]["tests"] for run in (one, other))
    if tests != other_tests:
        return f"their test sets are {', '.join(tests)} and {', '.join(other_tests)}"
    if one.batch and other.batch and one.batch != other.batch:
        return f"their updates are of {one.batch} and {other.batch} tokens"
    difference = manifest.first_difference(one.manifest["data"], other.manifest["data"])
    return f"they were trained on different data ({difference} differs)" if difference else None


def score_difference(one: Run, other: Run) -> str | None:
    """What differs in how two runs were scored, in words; None if nothing does."""
    for name, scored in one.tests.items():
        theirs = other.tests[name]
        if scored.reference_sha256 != theirs.reference_sha256:
            return f"their references of {name} are different texts"
        if scored.decoding and theirs.decoding and scored.decoding != theirs.decoding:
            return f"their {name} was translated with {scored.decoding}; and {theirs.decoding}"
        if {*scored.scores} != {*theirs.scores}:
            both = (", ".join(x.scores) for x in (scored, theirs))
            return f"their metrics of {name} are {' and '.join(both)}"
        for metric, signature in scored.signatures.items():
            if signature != theirs.signatures[metric]:
                return f"their {metric} of {name} is {signature} and {theirs.signatures[metric]}"
    return None
