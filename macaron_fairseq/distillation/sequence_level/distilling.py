"""Sequence-level distillation: a new training set whose targets are a teacher's translations.

Kim & Rush 2016 (arXiv 1606.07947), section 3.2: the student learns from the mode of the teacher's
distribution, which beam search approximates. Section 3.3, `Choice.best_of`: of the beam the
translation that is most similar to the reference, by sentence BLEU.

The teacher translates the binarised training set of a data folder (`text.data_folder`), part by
part (`translation.parts`). Then a new data folder is written, which fairseq-train and the recipes
take like any other.

Import `macaron_fairseq.plugin` first, which makes fairseq know the models.
"""

import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairseq.tasks.translation import TranslationConfig, TranslationTask
from sacrebleu.metrics import BLEU

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.distillation import teacher_fit
from macaron_fairseq.distillation.sequence_level import translated_pairs
from macaron_fairseq.distillation.sequence_level.training_set import TrainingSet
from macaron_fairseq.distillation.sequence_level.translated_pairs import (
    CUT,
    TOO_LONG,
    Choice,
    Result,
)
from macaron_fairseq.evaluation.scores import metrics
from macaron_fairseq.text.data_folder import DataFolder, Tokens
from macaron_fairseq.translation import parts, translator
from macaron_fairseq.translation.fairseq_engine import FairseqEngine
from macaron_fairseq.translation.parts import IS_THERE, Parts, Shard
from macaron_fairseq.translation.translator import Batching, Search


def distill(
    teacher: str,
    data: DataFolder,
    out: Path,
    search: Search,
    batching: Batching,
    choice: Choice,
    load: Callable[[], FairseqEngine],
    *,
    shard: Shard | None = None,
    join: bool = False,
    keep_parts: bool = False,
    precision: str = "fp32",
) -> Result | str:
    """Translate a training set, or what is left of it, and write a data folder of the translations.

    Args:
        teacher: checkpoints with ":" between them.
        data: the data folder that they were trained with.
        out: the new folder. OUT.parts holds what is done until then.
        search: how to search.
        batching: how much at once; a part has as many lines.
        choice: which translations to keep.
        load: loads the teacher; it is called if there is something to translate.
        shard: translate this job's share alone, and write no folder.
        join: translate nothing; all parts must be there.
        keep_parts: leave OUT.parts, to be joined again by another choice.
        precision: in which the teacher computes.

    Returns:
        what the folder holds; of a shard, how far it is.

    Raises:
        UserError: if the folder is there, something does not fit the teacher, parts were made with
            other settings, another process is making them, or with `join` one is missing.
    """
    is_there = out.exists() and not (out.is_dir() and not any(out.iterdir()))
    if is_there and not parts.folder_of(out).is_dir():
        raise UserError(f"{out} {IS_THERE}")
    if choice.best_of > search.beam:
        raise UserError(
            f"--best-of {choice.best_of} needs as many hypotheses: give --beam {choice.best_of}"
        )
    training = TrainingSet(data)
    refuse_other_teacher(teacher, training)
    settings = {
        **parts.settings_of(teacher, data, search),
        "training set": training.hashes(),
        "best of": choice.best_of,
        "precision": precision,
        "batches": f"{batching.lines} {batching.max_tokens} {batching.batch_size}",
    }
    work = Parts(parts.folder_of(out), settings, len(training), batching.lines)
    work.refuse_others()
    mine = shard or Shard()
    described = translated_pairs.described(teacher)
    about = {"teacher": described, **asdict(search), "precision": precision}
    if shard and is_there and not work.left(mine):  # it is started again after the others' --join
        return work.said(shard)
    if is_there:  # with its parts, as where this was killed when it had written the whole
        if not (found := translated_pairs.stored(out, training, choice, about)):
            raise UserError(f"{out} {IS_THERE}")
        with work.held(mine):
            if not keep_parts:
                work.remove()
        return found
    if join:
        work.refuse_incomplete()
    with work.held(mine):
        if work.left(mine):
            translate(training, work, mine, load(), choice.best_of, batching)
        if shard:
            return work.said(shard)
        result = translated_pairs.write(training, work, out, choice, about)
        if not keep_parts:
            work.remove()
        return result


def translate(
    training: TrainingSet,
    work: Parts,
    shard: Shard,
    engine: FairseqEngine,
    best_of: int,
    batching: Batching,
) -> None:
    """Translate the parts of a shard that are not done; a line of a part is a JSON object."""
    metric = None
    if best_of > 1:
        metric = metrics.detokenised_bleu(training.data.target, effective_order=True)
    unknown = training.dictionaries[1].unk_word

    def block(
        before: int, sources: Sequence[Tokens], done: Collection[int]
    ) -> Iterator[dict[int, str]]:
        fits = [0 if len(x) > engine.max_length else len(x) for x in sources]
        yield {
            i: entry(source, [], **({"dropped": TOO_LONG} if source else {}))
            for i, source in enumerate(sources)
            if not fits[i] and i not in done
        }
        todo = translator.left_of(batching.batches(fits), done)
        found = engine.translate_n_best([[sources[i] for i in some] for some in todo], best_of)
        for some, translations in zip(todo, found, strict=True):
            longest = engine.longest([sources[i] for i in some])
            entries = {}
            for i, hypotheses in zip(some, translations, strict=True):
                best, more = hypotheses[0], dict[str, Any]()
                if metric:
                    # One that is cut or has an unknown token is dropped, however similar it is.
                    ranks = [
                        k for k, x in enumerate(hypotheses) if len(x) < longest and unknown not in x
                    ]
                    ranks = ranks or [*range(len(hypotheses))]
                    candidates = [hypotheses[k] for k in ranks]
                    reference = training.words(1, before + i)
                    chosen, bleu = most_similar(metric, candidates, reference, training)
                    best = candidates[chosen]
                    more = {"rank": ranks[chosen] + 1, "bleu": round(bleu, 2)}
                if len(best) >= longest:
                    more["dropped"] = CUT
                entries[i] = entry(sources[i], best, **more)
            yield entries

    title = f"shard {shard}" if shard.count > 1 else "translating"
    work.fill(lambda lines: [training.words(0, i) for i in lines], block, shard, title)


def entry(source: Tokens, target: Tokens, **more: Any) -> str:
    """What a part keeps of a sentence: a JSON object."""
    content = {"source": " ".join(source), "target": " ".join(target), **more}
    return json.dumps(content, ensure_ascii=False)


def most_similar(
    metric: BLEU, hypotheses: Sequence[Tokens], reference: Tokens, training: TrainingSet
) -> tuple[int, float]:
    """Which hypothesis has the highest sentence BLEU, the first of equal ones, and that BLEU.

    Both are compared as detokenised text.
    """
    *texts, of_reference = training.text(1, [*hypotheses, reference])
    scores = [metric.sentence_score(text, [of_reference]).score for text in texts]
    best = max(range(len(scores)), key=scores.__getitem__)
    return best, scores[best]


def refuse_other_teacher(path: str, training: TrainingSet) -> None:
    """Raise a `UserError` if a teacher is missing, or is of another direction or dictionaries."""
    translator.refuse_missing(path, "checkpoint")
    data = training.data
    config = TranslationConfig(
        data=str(data.path / "data-bin"), source_lang=data.source, target_lang=data.target
    )
    task = TranslationTask(config, *training.dictionaries)
    for name in path.split(os.pathsep):
        teacher_fit.refuse_other_training(Path(name), task, f"--data {data.path}")
