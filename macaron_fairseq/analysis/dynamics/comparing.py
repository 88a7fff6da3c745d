"""Several models on the same sentences."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from macaron_fairseq.analysis.dynamics import likelihood, loading, measuring, sentences
from macaron_fairseq.analysis.dynamics.loading import Loaded
from macaron_fairseq.analysis.dynamics.measuring import Settings
from macaron_fairseq.analysis.dynamics.sentences import Data, Sentence


def open_data(paths: Sequence[Path], data: Path, source: str | None, target: str | None) -> Data:
    """The data of these checkpoints.

    Args:
        paths: the checkpoints.
        data: see `sentences.open_translation`, as for the languages `source` and `target`.
        source: see there.
        target: see there.

    Raises:
        UserError: if a checkpoint is not supported, they do not go together, or something is wrong
            with the data.
    """
    if loading.are_translation(paths):
        opened = sentences.open_translation(data, source, target)
    else:
        opened = sentences.open_monolingual(data)
    loading.refuse_different(paths, opened)
    return opened


def measure(
    models: Sequence[Loaded], data: Data, found: Sequence[Sentence], settings: Settings
) -> list[dict[str, Any]]:
    """The models' parts of the JSON file.

    Raises:
        UserError: if a sentence is too long for a model, the data are not what it was trained for
            (see `likelihood.checked`), or `measuring.measure` raises it.
    """
    for loaded in models:
        loading.refuse_long(loaded, found)
    has_references = found[0].target is not None
    bits = [likelihood.checked(x, data, found) if has_references else None for x in models]
    summaries = []
    for loaded, bits_per_token in zip(models, bits, strict=True):
        of_model = list(found)
        if loaded.engine and not has_references:
            of_model = translated(loaded, loaded.engine, data, found)
        total = len(of_model) + min(settings.jacobian_sentences, len(of_model))
        with tqdm(total=total, desc=loaded.label, unit="sentence", disable=None) as bar:
            sides = measuring.measure(loaded.runnable(), of_model, settings, bar.update)
        summaries.append({**loaded.description(), "bits_per_token": bits_per_token, "sides": sides})
    return summaries


def translated(
    loaded: Loaded, engine: Any, data: Data, found: Sequence[Sentence]
) -> list[Sentence]:
    """The sentences with the model's own translations as what the decoder reads."""
    with tqdm(total=len(found), desc=f"{loaded.label}, translating", disable=None) as bar:
        done = []
        for sentence in sentences.with_translations(found, data, engine):
            done.append(sentence)
            bar.update()
    return sorted(done, key=lambda sentence: sentence.number)
