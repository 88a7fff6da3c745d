"""Trained models that can be measured: load them, refuse what does not fit, give them to read."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.modules import gelu as fairseq_gelu
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask
from torch.nn.functional import gelu

from macaron_fairseq.analysis import anatomy, likelihood, sentences
from macaron_fairseq.analysis.sentences import Data, Sample, Sentence
from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import refuse_labels
from macaron_fairseq.common.progress import bar, following
from macaron_fairseq.common.wording import counted
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.evaluation.training import manifest, training_data
from macaron_fairseq.model.loading import load_models
from macaron_fairseq.schemes import substeps
from macaron_fairseq.translation.fairseq_engine import FairseqEngine
from macaron_fairseq.translation.translator import Batching, Search

# The kinds of models, as one calls them, and which classes are of them.
TRANSLATION, CAUSAL = "translation model", "causal language model"
KINDS = {
    TRANSLATION: anatomy.is_translation,
    "masked language model": anatomy.is_masked_lm,
    CAUSAL: anatomy.is_causal_lm,
}

# In bits. Models that nothing has been taught are this near to chance, and in both directions.
MARGIN = 1.0


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint says of its model and of the data it was trained with."""

    path: Path
    architecture: str
    settings: dict[str, str]  # of a Macaron model: scheme, sub-step
    types: dict[str, int]  # of each embedding
    data: Path | None  # the folder of fairseq-preprocess, where it names one for sure
    hashes: dict[str, str]  # the SHA-256 of the data's files, where its run has a manifest
    arguments: Mapping[str, Any]  # of the model
    sha256: str  # of the file when it was read; empty of a model that no file holds

    @property
    def kind(self) -> str:
        """What kind of model it is of, one of `KINDS`.

        Raises:
            UserError: if it is of none.
        """
        model = ARCH_MODEL_REGISTRY.get(self.architecture) or MODEL_REGISTRY.get(self.architecture)
        for kind, is_of in KINDS.items():
            if model and is_of(model):
                return kind
        raise UserError(anatomy.not_supported(self.path, self.architecture))


@dataclass(frozen=True)
class TrainedModel(Checkpoint):
    """The model of a checkpoint, to measure, and what is known of it."""

    label: str
    model: Any
    positions: tuple[int, int]  # the most tokens that encoder and decoder can read
    engine: FairseqEngine | None  # of a translation model

    def runnable(self) -> Any:
        """The model, ready to read one sentence at a time; beam search leaves it otherwise."""
        if self.engine:
            self.model.decoder.set_beam_size(1)
        return self.model

    def description(self) -> dict[str, Any]:
        """What a JSON file says of the model."""
        return {
            "label": self.label,
            "path": str(self.path),
            "sha256": self.sha256,
            "architecture": self.architecture,
            "settings": self.settings,
            "parameters": sum(p.numel() for p in self.model.parameters()),
        }

    def check(self, sample: Sample) -> float | None:
        """The `bits_per_token` of the sample's references; None without any.

        Raises:
            UserError: if a sentence is too long, or see `checked_bits`.
        """
        self.check_lengths(sample.sentences)
        return self.checked_bits(sample) if sample.has_references else None

    def check_lengths(self, sentences: Sequence[Sentence]) -> None:
        """Raise a `UserError` if the model does not read as many tokens as a sentence has."""
        for sentence in sentences:
            tokens = {"source": sentence.source, "target": sentence.target}
            for (side, found), most in zip(tokens.items(), self.positions, strict=True):
                if found is not None and len(found) > most:
                    raise UserError(
                        f"sentence {sentence.number} has {counted(len(found), f'{side} token')}, "
                        f"its end included, more than the {most} positions of {self.path}: "
                        f"leave it out, as --longest {most} does"
                    )

    def checked_bits(self, sample: Sample) -> float:
        """The `bits_per_token` of a translation model on the sample's references.

        Raises:
            UserError: if they are one bit worse than chance, as with a wrong dictionary. Or, with a
                dictionary of both languages, one bit worse than with source and target swapped, so
                that it was trained in the other direction.
        """
        data, model = sample.data, self.runnable()
        assert data.target is not None

        def needed(sentences: Sequence[Sentence]) -> float:
            read = following(sentences, "likelihood")
            return likelihood.bits_per_token(model, read, data)

        bits, chance = needed(sample.sentences), math.log2(len(data.target))
        found = f"{self.path} needs {bits:.1f} bits for a token of these sentences"
        if bits > chance + MARGIN:
            raise UserError(
                f"{found}, worse than chance, which needs {chance:.1f}: was it trained with "
                "another dictionary, or in the other direction?"
            )
        exchanged = exchange_sides(sample.sentences, min(self.positions))
        if data.source == data.target and exchanged:  # only one dictionary allows to exchange them
            other = needed(exchanged)
            if other + MARGIN < bits:
                raise UserError(
                    f"{found} and {other:.1f} with source and target exchanged: it was trained in "
                    "the other direction, see --source-lang and --target-lang"
                )
        return bits

    def to_read(self, sample: Sample) -> list[Sentence]:
        """The sample's sentences; where they have no target, a translation model's own."""
        found = sample.sentences
        if not self.engine or sample.has_references:
            return found
        source, target = sample.data.source, sample.data.target
        assert target is not None
        lengths = [len(sentence.source) for sentence in found]
        batches = list(Batching(max_tokens=4000, batch_size=64).batches(lengths))
        symbols = [
            [[source[token] for token in found[i].source.tolist()[:-1]] for i in batch]
            for batch in batches
        ]
        done: list[Sentence] = []
        with bar(f"{self.label}, translating", total=len(found), leave=False) as shown:
            for batch, translations in zip(batches, self.engine.translate(symbols), strict=True):
                for i, translation in zip(batch, translations, strict=True):
                    numbers = [target.index(token) for token in translation]
                    read = sample.data.decoder_input(numbers)
                    done.append(replace(found[i], target=read))
                    shown.update()
        return sorted(done, key=lambda sentence: sentence.number)


# --- loading -------------------------------------------------------------------------------------


def read(path: Path) -> Checkpoint:
    """What a checkpoint says.

    Raises:
        UserError: if the file is bad or does not say which model it holds.
    """
    state = checkpoints.load(path)
    model = checkpoints.model_arguments(state)
    if model["arch"] is None:
        raise UserError(f"{path} does not say which model it holds: use one of fairseq-train")
    return Checkpoint(
        path,
        model["arch"],
        {
            key.removeprefix("macaron_"): model[key]
            for key in sorted(model)
            if re.fullmatch("macaron_.*(scheme|substep)", key) and model[key]
        },
        {k: len(x) for k, x in state["model"].items() if k.endswith("embed_tokens.weight")},
        training_data.folder(checkpoints.options(state, "task")),
        manifest.data_hashes(path),
        model,
        files.sha256(path),
    )


def load(
    paths: Sequence[Path | str],
    data: Path | str,
    source: str | None = None,
    target: str | None = None,
    names: Sequence[str] | None = None,
    device: torch.device | None = None,
) -> tuple[list[TrainedModel], Data]:
    """Load models that go together, in evaluation mode and with frozen parameters.

    Args:
        paths: their checkpoints.
        data: what they were trained with, see `sentences.open_translation`.
        source: the language that they translate, where the data do not tell it.
        target: that into which.
        names: what to call them; otherwise see `labels`.
        device: where they are to run; None for the CPU.

    Returns:
        The models, and what raw text and data sets are read with.

    Raises:
        UserError: if a checkpoint is bad or not supported, they do not go together, or something is
            wrong with the data or the names.
    """
    if isinstance(paths, str | Path):
        raise UserError("the checkpoints are one path: give a list of them")
    refuse_labels(names, paths, may_repeat=True)
    data = Path(data)
    found = [read(Path(path)) for path in paths]
    kinds = list(dict.fromkeys(checkpoint.kind for checkpoint in found))
    if len(kinds) > 1:
        raise UserError(
            f"the checkpoints are of {'s and of '.join(kinds)}s: compare models of one kind"
        )
    if kinds == [TRANSLATION]:
        opened = sentences.open_translation(data, source, target)
    elif source or target:
        raise UserError("--source-lang and --target-lang are for translation: leave them out")
    else:
        opened = sentences.open_monolingual(data, is_causal=kinds == [CAUSAL])
    refuse_different(found, opened)
    device = device or torch.device("cpu")
    return [
        # The bytes of a name that is no UTF-8 are shown as escapes: no picture can draw them.
        load_one(checkpoint, name.encode(errors="backslashreplace").decode(), opened, device)
        for checkpoint, name in zip(found, names or labels(found), strict=True)
    ], opened


def load_one(checkpoint: Checkpoint, label: str, data: Data, device: torch.device) -> TrainedModel:
    """Load a model, in evaluation mode and with frozen parameters.

    Raises:
        UserError: if it was trained with other dictionaries than the data's.
    """
    path, engine = checkpoint.path, None
    if data.target is None:
        task = language_task(data)
        with_mask = "" if data.is_causal else " with <mask>"
        for types in checkpoint.types.values():
            if types != len(data.source):
                raise UserError(
                    f"{path} embeds {types} types, but the dictionary in {data.folder} has "
                    f"{len(data.source)}{with_mask}: use the data that it was trained with"
                )
        (model,) = load_models(str(path), task)
        model.to(device)
        positions = model.max_positions(), 0
    else:
        engine = FairseqEngine(str(path), data.source, data.target, Search(), device)
        model = engine.models[0]
        positions = model.max_positions()
    model.eval()
    model.requires_grad_(False)
    return TrainedModel(
        **vars(checkpoint), label=label, model=model, positions=positions, engine=engine
    )


def language_task(data: Data) -> Any:
    """fairseq's task of a language model with these data."""
    if data.is_causal:
        return LanguageModelingTask(LanguageModelingConfig(), data.source)
    return MaskedLMTask(MaskedLMConfig(), data.source)  # adds <mask>, as in training


def labels(found: Sequence[Checkpoint]) -> list[str]:
    """What tells the checkpoints apart: architectures, schemes and sub-steps, or paths."""
    architectures = [checkpoint.architecture for checkpoint in found]
    described = [
        ", ".join(
            " ".join([*key.split("_")[:-1], value])  # encoder_scheme: the encoder's
            for key, value in checkpoint.settings.items()
            if value != substeps.DEFAULT
        )
        or checkpoint.architecture
        for checkpoint in found
    ]
    for names in (architectures, described):
        if len(set(names)) == len(names):
            return names
    return what_differs([checkpoint.path for checkpoint in found])


def what_differs(paths: Sequence[Path]) -> list[str]:
    """Paths without the folders with which all of them begin, and those with which all end."""
    parts = [path.parts for path in paths]
    while min(map(len, parts)) > 1 and len({x[0] for x in parts}) == 1:
        parts = [x[1:] for x in parts]
    while min(map(len, parts)) > 1 and len({x[-1] for x in parts}) == 1:
        parts = [x[:-1] for x in parts]
    return [str(Path(*x)) for x in parts]


def refuse_different(found: Sequence[Checkpoint], data: Data) -> None:
    """Raise a `UserError` if the checkpoints were trained with different dictionaries.

    Their sizes tell, and the manifest that a recipe's run has next to its checkpoints. So does the
    data folder that a checkpoint names, as long as it is there.
    """
    first = found[0]
    for one in found:
        for name, types in one.types.items():
            if first.types.get(name, types) != types:
                raise UserError(
                    f"{first.path} and {one.path} were trained with different dictionaries, of "
                    f"{first.types[name]} and {types} types: compare models of the same data"
                )
        for dictionary in data.dictionaries:
            expected, own = one.hashes.get(dictionary.name), one.data and one.data / dictionary.name
            if expected and expected != files.sha256(dictionary):
                raise UserError(
                    f"{one.path} was trained with another dictionary than {dictionary}, as its "
                    "run's manifest.json says: compare models of the same data, and give its folder"
                )
            if own and is_readable(own) and files.sha256(own) != files.sha256(dictionary):
                raise UserError(
                    f"{one.path} was trained with the dictionary {own}, and {dictionary} is "
                    "another: compare models of the same data, and give its folder"
                )


def is_readable(path: Path) -> bool:
    """Whether there is a file that may be read; a folder that a checkpoint names may be private."""
    try:
        return path.is_file() and os.access(path, os.R_OK)
    except OSError:
        return False


def refuse_other_sides(found: Sequence[TrainedModel]) -> None:
    """Raise a `UserError` unless all models have layers on the same sides."""
    for model in found[1:]:
        (first, theirs), (other, ours) = ((x, sides_of(x.model)) for x in (found[0], model))
        if theirs != ours:
            raise UserError(
                f"{first.path} has layers in its {' and '.join(theirs)}, and {other.path} in its "
                f"{' and '.join(ours)}: compare models with the same sides"
            )


def sides_of(model: Any) -> list[str]:
    """The sides of a model that have layers."""
    stacks = anatomy.stacks(model).items()
    return [side for side, name in stacks if len(model.get_submodule(name))]


def in_double(model: Any) -> Any:
    """A copy of a model, in fp64 and in evaluation mode, with frozen parameters."""
    copy = deepcopy(model).double()
    copy.eval()  # which some of fairseq's models return None from
    copy.requires_grad_(False)
    for module in copy.modules():
        if getattr(module, "activation_fn", None) is fairseq_gelu:  # which computes in fp32
            module.activation_fn = gelu
    return copy


def exchange_sides(sentences: Sequence[Sentence], most: int) -> list[Sentence]:
    """The sentences of at most so many tokens with source and target exchanged."""
    return [
        replace(sentence, source=sentence.target.roll(-1), target=sentence.source.roll(1))
        for sentence in sentences
        if sentence.target is not None and max(len(sentence.source), len(sentence.target)) <= most
    ]
