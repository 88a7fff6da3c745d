"""fairseq as an engine: its models and its beam search.

Import `macaron_fairseq.plugin` first, which makes fairseq know the models.
"""

import functools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.dataclass.configs import FairseqConfig, GenerationConfig
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.models.nat import FairseqNATModel
from fairseq.tasks.translation import TranslationConfig

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.evaluation.training import manifest, training_data
from macaron_fairseq.fast import parallel
from macaron_fairseq.fast.task import MacaronTranslationTask
from macaron_fairseq.model.loading import load_dictionary, load_models
from macaron_fairseq.preflight import checks, command_line
from macaron_fairseq.preflight.batches import SENTENCE as OUT_OF_MEMORY
from macaron_fairseq.text.data_folder import DataFolder, Tokens
from macaron_fairseq.translation.translator import Search

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
NOT_FINITE = (
    "the model's output is not finite: use an earlier checkpoint, or fp32 if this is half precision"
)


class FairseqEngine:
    """fairseq's beam search with one model or an ensemble, as fairseq-generate runs it."""

    def __init__(
        self,
        path: str,
        source: Dictionary,
        target: Dictionary,
        search: Search,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Load the models.

        Args:
            path: checkpoints, with ":" between them, as for fairseq-generate.
            source: the dictionary of the models' input.
            target: that of their output.
            search: how to search.
            device: where to compute.
            dtype: in which precision.

        Raises:
            UserError: if a file is bad or a model was trained with other dictionaries.
        """
        self.task = MacaronTranslationTask(TranslationConfig(), source, target)
        self.device = device
        self.models = load_models(path, self.task)
        for model in self.models:
            goes_by_token = isinstance(model, FairseqEncoderDecoderModel)
            if not goes_by_token or isinstance(model, FairseqNATModel):
                kind = type(model).__name__
                raise UserError(f"{path} holds a {kind}, which does not translate token by token")
            model.to(device=device, dtype=dtype)
            model.prepare_for_inference_(FairseqConfig(generation=fairseqs(search)))
        self.set_search(search)
        positions = utils.resolve_max_positions(*[model.max_positions() for model in self.models])
        self.max_length = positions[0] - 1  # one for the end of the sentence

    def set_search(self, search: Search) -> None:
        """Search so from now on."""
        self.limits = search
        self.generator: Any = self.task.build_generator(self.models, fairseqs(search))

    def longest(self, batch: Sequence[Tokens]) -> int:
        """How many tokens a translation in that batch can have."""
        return min(self.limits.longest(batch), self.generator.max_len - 1)

    def translate(self, batches: Sequence[Sequence[Tokens]]) -> Iterator[list[Tokens]]:
        """The best hypothesis of each sentence, batch by batch; on a CPU several at a time.

        Raises:
            UserError: if the memory does not suffice, or the output is not finite.
        """
        return self.each(self.search, batches)

    def translate_n_best(
        self, batches: Sequence[Sequence[Tokens]], number: int
    ) -> Iterator[list[list[Tokens]]]:
        """As `translate`, of each sentence the best hypotheses: so many at most, the best first."""
        return self.each(functools.partial(self.search_n_best, number=number), batches)

    def each(
        self, function: Callable[[Sequence[Tokens]], list[Any]], batches: Sequence[Sequence[Tokens]]
    ) -> Iterator[list[Any]]:
        """What a function that searches gives of each batch, by several processes on a CPU."""
        count = parallel.count_for(len(batches))
        if count == 1 or not parallel.is_possible(self.generator, self.models):
            yield from map(function, batches)
            return
        rows = max(map(len, batches)) * self.generator.beam_size
        advice = "a smaller OMP_NUM_THREADS"
        with parallel.start(self.generator, function, rows, count, advice) as workers:
            yield from workers.map(batches)

    def search(self, batch: Sequence[Tokens]) -> list[Tokens]:
        """The best hypothesis of each sentence of a batch."""
        return [best[0] for best in self.search_n_best(batch, 1)]

    def search_n_best(
        self, batch: Sequence[Tokens], number: int, length: int = 0
    ) -> list[list[Tokens]]:
        """The best hypotheses of each sentence of a batch, so many at most, the best first.

        What does not fit into a GPU's memory is searched in halves. So is what has no finite
        scores, until it is known which sentence that is.

        Args:
            batch: the sentences.
            number: see above.
            length: of the longest sentence of the whole batch, where this is a part of it:
                `longest` depends on it.
        """
        source, target = self.task.source_dictionary, self.task.target_dictionary
        sentences = [torch.tensor([*map(source.index, x), source.eos()]) for x in batch]
        length = length or max(map(len, sentences))
        data = self.task.build_dataset_for_inference(sentences, [len(x) for x in sentences])
        padded = {"source": length, "target": None}
        sample = data.collater([data[i] for i in range(len(data))], pad_to_length=padded)
        if self.device.type == "cuda":
            sample = utils.move_to_cuda(sample, self.device)
        try:
            found = self.task.inference_step(self.generator, self.models, sample)
        except (torch.OutOfMemoryError, AssertionError) as error:
            if len(batch) == 1:
                is_memory = isinstance(error, torch.OutOfMemoryError)
                # With NaN fairseq's search does not come to an end, which it asserts.
                reason = OUT_OF_MEMORY if is_memory else NOT_FINITE
                raise UserError(f"{reason}; {beginning_of(batch[0])}") from error
            found = None  # not in here, where the error holds on to its memory
        if found is None:
            half = (len(batch) + 1) // 2
            parts = batch[:half], batch[half:]
            return [x for part in parts for x in self.search_n_best(part, number, length)]
        for i, beam in zip(sample["id"].tolist(), found, strict=True):
            if not (beam and math.isfinite(beam[0]["score"])):
                raise UserError(f"{NOT_FINITE}; {beginning_of(batch[i])}")
        best = {
            i: [target.string(x["tokens"].tolist()).split() for x in beam[:number]]
            for i, beam in zip(sample["id"].tolist(), found, strict=True)
        }
        return [best[i] for i in range(len(batch))]


def beginning_of(sentence: Tokens) -> str:
    """Which sentence it is, for a message."""
    return f"the sentence begins {' '.join(sentence[:8])}"


def load(
    path: str, data: DataFolder, search: Search, *, use_gpu: bool = True, precision: str = "fp32"
) -> FairseqEngine:
    """The engine for text that is preprocessed as a data folder says.

    Args:
        path: checkpoints, with ":" between them.
        data: what they were trained with.
        search: how to search.
        use_gpu: whether to, where there is one.
        precision: "fp32", or on a GPU "fp16" or "bf16".

    Raises:
        UserError: if a file is bad, a model was trained with other data, or the precision needs a
            GPU.
    """
    if precision not in PRECISIONS:
        raise UserError(f"there is no precision {precision}: give {', '.join(PRECISIONS)}")
    flags = [] if use_gpu else ["--cpu"]
    if precision != "fp32":
        flags.append(f"--{precision}")
    asked, _ = command_line.parse(flags, "interactive")
    checks.check_devices(asked, "interactive")  # what would be refused there
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # or it reports all that it loads
    source, target = load_dictionaries(data, utils.split_paths(path))
    return FairseqEngine(
        path,
        source,
        target,
        search,
        torch.device("cuda" if torch.cuda.is_available() and use_gpu else "cpu"),
        PRECISIONS[precision],
    )


def fairseqs(search: Search) -> GenerationConfig:
    """fairseq's record of how to search."""
    # The beam may change, and fairseq's convolutional models would keep the first one.
    return GenerationConfig(**asdict(search), no_beamable_mm=True)


def load_dictionaries(data: DataFolder, checkpoints: Sequence[str]) -> tuple[Dictionary, ...]:
    """The dictionaries of source and target that these checkpoints were trained with.

    Raises:
        UserError: if one cannot be read, or a checkpoint's manifest tells of others, or a model
            translates between other languages.
    """
    paths = [data.dictionary(language) for language in (data.source, data.target)]
    for name in checkpoints:
        hashes = manifest.data_hashes(Path(name))
        data.refuse_changed(hashes, f"the manifest.json of {name} says")
        data.refuse_other_direction(
            Path(name), training_data.direction(Path(name), training_data.settings(Path(name)))
        )
    return tuple(map(load_dictionary, paths))
