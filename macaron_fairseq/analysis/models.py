"""Trained models that can be measured: load them, refuse what does not fit, give them to read."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from fairseq.dataclass.configs import GenerationConfig
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask

from macaron_fairseq.analysis import anatomy, sentences
from macaron_fairseq.analysis.progress import following, progress
from macaron_fairseq.analysis.sentences import Data, Sample, Sentence
from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.schemes import splitting, substeps
from macaron_fairseq.translation import translator
from macaron_fairseq.translation.fairseq_engine import FairseqEngine, load_models

BEAM = 5

# In bits. Models that nothing has been taught are this near to chance, and in both directions.
MARGIN = 1.0


@dataclass(frozen=True)
class TrainedModel:
    """A model to measure, and what is known of it."""

    label: str
    path: Path
    architecture: str
    settings: dict[str, str]  # of a Macaron model: scheme, sub-step
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
            "architecture": self.architecture,
            "settings": self.settings,
            "parameters": sum(p.numel() for p in self.model.parameters()),
        }

    def refuse_long(self, sample: Sample) -> None:
        """Raise a `UserError` if a sentence has more tokens than the model has positions."""
        for sentence in sample.sentences:
            for side, tokens, most in zip(
                ("source", "target"),
                (sentence.source, sentence.target),
                self.positions,
                strict=True,
            ):
                if tokens is not None and len(tokens) > most:
                    raise UserError(
                        f"sentence {sentence.number} has {len(tokens)} {side} tokens, its end "
                        f"included, more than the {most} positions of {self.path}: leave it out"
                    )

    def checked_bits(self, sample: Sample) -> float | None:
        """The `bits_per_token` of the sample's references; None without any.

        Raises:
            UserError: if they say that the model was trained with another dictionary (they are more
                than if all types were as likely), or in the other direction (they are fewer with
                source and target exchanged).
        """
        data = sample.data
        if not sample.has_references or data.target is None:
            return None
        model = self.runnable()
        bits, chance = bits_per_token(model, sample.sentences), math.log2(len(data.target))
        found = f"{self.path} needs {bits:.1f} bits for a token of these sentences"
        if bits > chance + MARGIN:
            raise UserError(
                f"{found}, worse than chance, which needs {chance:.1f}: was it trained with "
                "another dictionary, or in the other direction?"
            )
        exchanged = turned(sample.sentences, min(self.positions))
        if data.source == data.target and exchanged:  # only one dictionary allows to exchange them
            other = bits_per_token(model, exchanged)
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
        batches = list(translator.batches(lengths, max_tokens=4000, batch_size=64))
        symbols = [
            [[source[token] for token in found[i].source.tolist()[:-1]] for i in batch]
            for batch in batches
        ]
        done: list[Sentence] = []
        with progress(f"{self.label}, translating", len(found)) as shown:
            for batch, translations in zip(batches, self.engine.translate(symbols), strict=True):
                for i, translation in zip(batch, translations, strict=True):
                    numbers = [target.index(token) for token in translation]
                    read = sentences.decoder_input(sample.data, numbers)
                    done.append(replace(found[i], target=read))
                    shown.update()
        return sorted(done, key=lambda sentence: sentence.number)


# --- loading -------------------------------------------------------------------------------------


def load(
    paths: Sequence[Path],
    data: Path,
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
            wrong with the data.
    """
    if are_translation(paths):
        opened = sentences.open_translation(data, source, target)
    else:
        opened = sentences.open_monolingual(data)
    refuse_different(paths, opened)
    device = device or torch.device("cpu")
    return [
        load_one(path, name, opened, device)
        for path, name in zip(paths, names or labels(paths), strict=True)
    ], opened


def load_one(path: Path, label: str, data: Data, device: torch.device) -> TrainedModel:
    """Load a model, in evaluation mode and with frozen parameters.

    Raises:
        UserError: if the file is bad or was trained with other dictionaries than the data's.
    """
    name = architecture(path)
    engine = None
    if data.target is None:
        task = MaskedLMTask(MaskedLMConfig(), data.source)  # adds <mask>, as in training
        for types in embedded(path).values():
            if types != len(data.source):
                raise UserError(
                    f"{path} embeds {types} types, but the dictionary in {data.folder} has "
                    f"{len(data.source)} with <mask>: use the data that it was trained with"
                )
        (model,) = load_models(str(path), task)
        model.to(device)
        source, target = model.max_positions(), 0
    else:
        generation = GenerationConfig(beam=BEAM)
        engine = FairseqEngine(str(path), data.source, data.target, generation, device)
        model = engine.models[0]
        source, target = model.max_positions()
    model.eval()
    model.requires_grad_(False)
    return TrainedModel(label, path, name, settings(path), model, (source, target), engine)


def labels(paths: Sequence[Path]) -> list[str]:
    """What tells the checkpoints apart: architectures, schemes and sub-steps, or paths."""
    architectures = [architecture(path) for path in paths]
    described = [
        ", ".join(
            " ".join([*key.split("_")[:-1], value])  # encoder_scheme: the encoder's
            for key, value in settings(path).items()
            if value != substeps.DEFAULT
        )
        or name
        for path, name in zip(paths, architectures, strict=True)
    ]
    for names in (architectures, described):
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def architecture(path: Path) -> str:
    """The name of a checkpoint's architecture, or of its model.

    Raises:
        UserError: if the file is bad or does not say it.
    """
    name = checkpoints.model_arguments(checkpoints.load(path))["arch"]
    if name is None:
        raise UserError(f"{path} does not say which model it holds: use one of fairseq-train")
    return name


def settings(path: Path) -> dict[str, str]:
    """The scheme and the sub-step of a checkpoint's Macaron model; empty for other models."""
    given = dict(checkpoints.model_arguments(checkpoints.load(path)))
    if given.get("macaron"):  # of the authors' code
        given["macaron_scheme"] = splitting.DEFAULT
    return {
        key.removeprefix("macaron_"): given[key]
        for key in sorted(given)
        if re.fullmatch("macaron_.*(scheme|substep)", key) and given[key]
    }


def are_translation(paths: Sequence[Path]) -> bool:
    """Whether the checkpoints are of translation models; if not, of masked language models.

    Raises:
        UserError: if one is of neither, or not all are of the same.
    """
    kinds = {}
    for path in paths:
        name = architecture(path)
        model = ARCH_MODEL_REGISTRY.get(name) or MODEL_REGISTRY.get(name)
        if model and anatomy.is_translation(model):
            kinds[path] = True
        elif model and anatomy.is_masked_lm(model):
            kinds[path] = False
        else:
            raise UserError(
                f"{path} holds a model of the architecture {name}, which is not supported: "
                "supported are macaron_transformer, fairseq's transformer, roberta and masked_lm"
            )
    if len(set(kinds.values())) > 1:
        raise UserError(
            "the checkpoints are of translation models and of masked language models: compare "
            "models of one kind"
        )
    return kinds[paths[0]]


def refuse_different(paths: Sequence[Path], data: Data) -> None:
    """Raise a `UserError` if the checkpoints were trained with different dictionaries.

    Their sizes tell, the manifest that a recipe's run has beside its checkpoints, and the data
    folder that a checkpoint names, as long as it is there.
    """
    sizes = [embedded(path) for path in paths]
    for path, size in zip(paths, sizes, strict=True):
        for name in size:
            if sizes[0].get(name, size[name]) != size[name]:
                raise UserError(
                    f"{paths[0]} and {path} were trained with different dictionaries, of "
                    f"{sizes[0][name]} and {size[name]} types: compare models of the same data"
                )
        trained_with, folder = manifest_hashes(path), data_folder(path)
        for dictionary in data.dictionaries:
            expected = trained_with.get(dictionary.name)
            if expected and expected != files.sha256(dictionary):
                raise UserError(
                    f"{path} was trained with another dictionary than {dictionary}, as its run's "
                    "manifest.json says: compare models of the same data, and give its folder"
                )
            own = folder and folder / dictionary.name
            if own and own.is_file() and files.sha256(own) != files.sha256(dictionary):
                raise UserError(
                    f"{path} was trained with the dictionary {own}, and {dictionary} is another: "
                    "compare models of the same data, and give its folder"
                )


def embedded(path: Path) -> dict[str, int]:
    """How many types each embedding of a checkpoint has."""
    return {
        name: len(tensor)
        for name, tensor in checkpoints.load(path)["model"].items()
        if name.endswith("embed_tokens.weight")
    }


def manifest_hashes(path: Path) -> dict[str, str]:
    """The SHA-256 of the data files that a checkpoint's run was trained with, by name."""
    for folder in (path.parent, path.parent.parent):
        with suppress(OSError, ValueError, KeyError, TypeError):
            return dict(json.loads((folder / "manifest.json").read_text("utf-8"))["data"]["sha256"])
    return {}


def data_folder(path: Path) -> Path | None:
    """The folder of fairseq-preprocess that a checkpoint names; None if it names none for sure."""
    state = checkpoints.load(path)
    task = (state.get("cfg") or {}).get("task") or state.get("args") or {}
    given = task if isinstance(task, Mapping) else vars(task)
    folder = Path(str(given.get("data") or "").partition(":")[0])  # of shards, the first
    # A relative path is of the folder that the training ran in, which nothing tells.
    return folder if folder.is_absolute() else None


# --- likelihood ----------------------------------------------------------------------------------


def bits_per_token(model: Any, sentences: Sequence[Sentence]) -> float:
    """The mean of -log2 p over the tokens that the decoder is to predict, each sentence's end too.

    Args:
        model: an encoder-decoder in evaluation mode.
        sentences: with targets, which the decoder reads as in training.
    """
    device = next(model.parameters()).device
    nats, tokens = 0.0, 0
    for sentence in following(sentences, "likelihood", len(sentences)):
        assert sentence.target is not None
        source, target = sentence.source.to(device), sentence.target.to(device)
        with torch.no_grad():
            output = model(source[None], torch.tensor([len(source)], device=device), target[None])
            log_p = model.get_normalized_probs(output, log_probs=True)[0]
        expected = target.roll(-1)  # </s> from the beginning to the end
        nats -= log_p.gather(1, expected[:, None]).sum().item()
        tokens += len(expected)
    return nats / tokens / math.log(2)


def turned(sentences: Sequence[Sentence], most: int) -> list[Sentence]:
    """The sentences of at most so many tokens with source and target exchanged."""
    return [
        replace(sentence, source=sentence.target.roll(-1), target=sentence.source.roll(1))
        for sentence in sentences
        if sentence.target is not None and max(len(sentence.source), len(sentence.target)) <= most
    ]
