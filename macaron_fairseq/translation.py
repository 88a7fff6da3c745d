"""Raw text in, raw text out, with trained models (`macaron-fairseq translate`)."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from fairseq import checkpoint_utils, utils
from fairseq.data import Dictionary
from fairseq.dataclass.configs import FairseqConfig, GenerationConfig
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from tqdm import tqdm

from macaron_fairseq import checkpoints, text
from macaron_fairseq.errors import UserError
from macaron_fairseq.scoring import hypotheses

Tokens = list[str]

# --- the data folder -----------------------------------------------------------------------------

EXAMPLE = '{"source": "en", "target": "de", "source_steps": ["normalize", "tokenize"]}'


@dataclass(frozen=True)
class Preprocessing:
    """How a model's training data was made from raw text: languages, and the steps before BPE."""

    source: str
    target: str
    source_steps: list[str]
    target_steps: list[str]


def read_preprocessing(data: Path) -> Preprocessing:
    """What preprocessing.json in a data folder says; target_steps are source_steps by default.

    Raises:
        UserError: if it is missing or lacks something.
    """
    path = data / "preprocessing.json"
    if not path.is_file() and (data.parent / path.name).is_file():
        raise UserError(f"{path} is missing: give {data.parent}, the folder above")
    content: Any = None
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise UserError(
            f"{path} is missing: give the folder that the prepare stage of a recipe made, or "
            f"write the file, like {EXAMPLE}, beside data-bin/ and the BPE merges in code"
        ) from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError:
        pass  # as bad as other JSON, see below
    if not isinstance(content, dict):
        content = {}
    steps = content.get("source_steps")
    values = content.get("source"), content.get("target"), steps, content.get("target_steps", steps)
    if not all(map(isinstance, values, (str, str, list, list))):
        raise UserError(f"{path} should hold a JSON object like {EXAMPLE}")
    return Preprocessing(*values)


def load_dictionary(data: Path, language: str) -> Dictionary:
    """The dictionary of a language that fairseq-preprocess wrote into the data folder.

    Raises:
        UserError: if it cannot be read.
    """
    path = data / "data-bin" / f"dict.{language}.txt"
    try:
        return Dictionary.load(str(path))
    except FileNotFoundError as error:
        raise UserError(
            f"{path} is missing: it is written by fairseq-preprocess and belongs to the model"
        ) from error
    except Exception as error:  # fairseq raises no narrower one for text that is not UTF-8
        raise UserError(f"cannot read the dictionary {path}: {in_a_line(error)}") from error


def in_a_line(error: Exception) -> str:
    """What an error says, without line breaks."""
    return " ".join(str(error).split())


# --- engines -------------------------------------------------------------------------------------


class Engine(Protocol):
    """What turns tokens into tokens; the text work around it does not know which one runs."""

    max_length: int  # of a source sentence, in tokens

    def translate(self, batch: Sequence[Tokens]) -> list[Tokens]:
        """Translate sentences, none of them empty or longer than `max_length`, in their order."""


class FairseqEngine:
    """fairseq's beam search with one model or an ensemble, as fairseq-generate runs it."""

    def __init__(
        self,
        path: str,
        source: Dictionary,
        target: Dictionary,
        generation: GenerationConfig,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Load the models.

        Args:
            path: checkpoints, with ":" between them, as for fairseq-generate.
            source: the dictionary of the models' input.
            target: that of their output.
            generation: the beam, the length penalty and all else that fairseq-generate offers.
            device: where to compute.
            dtype: in which precision.

        Raises:
            UserError: if a file is bad or a model was trained with other dictionaries.
        """
        self.task = TranslationTask(TranslationConfig(), source, target)
        self.device = device
        paths = utils.split_paths(path)
        for name in paths:
            refuse_unfit(name, source, target)
        try:
            self.models, _ = checkpoint_utils.load_model_ensemble(paths, task=self.task)
        except RuntimeError as error:  # PyTorch's or fairseq's word on what is in the file
            raise UserError(f"fairseq cannot load {path}: {in_a_line(error)}") from error
        for model in self.models:
            model.to(device=device, dtype=dtype)
            model.prepare_for_inference_(FairseqConfig(generation=generation))
        self.generator = self.task.build_generator(self.models, generation)
        positions = utils.resolve_max_positions(*[model.max_positions() for model in self.models])
        self.max_length = positions[0] - 1  # one for the end of the sentence

    def translate(self, batch: Sequence[Tokens]) -> list[Tokens]:
        """The best hypothesis of each sentence.

        Raises:
            UserError: if the GPU's memory does not suffice.
        """
        source, target = self.task.source_dictionary, self.task.target_dictionary
        sentences = [torch.tensor([*map(source.index, x), source.eos()]) for x in batch]
        data = self.task.build_dataset_for_inference(sentences, [len(x) for x in sentences])
        sample = data.collater([data[i] for i in range(len(data))])
        if self.device.type == "cuda":
            sample = utils.move_to_cuda(sample, self.device)
        try:
            found = self.task.inference_step(self.generator, self.models, sample)
        except torch.OutOfMemoryError as error:
            raise UserError(
                "the GPU's memory does not suffice: lower --batch-size or --max-tokens"
            ) from error
        best = {
            i: target.string(beam[0]["tokens"].tolist()).split()
            for i, beam in zip(sample["id"].tolist(), found, strict=True)
        }
        return [best[i] for i in range(len(batch))]


def refuse_unfit(path: str, source: Dictionary, target: Dictionary) -> None:
    """Raise a `UserError` if a checkpoint is bad or its embeddings are of other sizes."""
    state = checkpoints.load(Path(path))
    if not state.get("args") and not state.get("cfg"):
        raise UserError(
            f"{path} does not say which model it holds: use a checkpoint that fairseq-train or "
            "macaron-fairseq average wrote"
        )
    for side, language, dictionary in (
        ("encoder", "source", source),
        ("decoder", "target", target),
    ):
        embedding = state["model"].get(f"{side}.embed_tokens.weight")
        if embedding is not None and len(embedding) != len(dictionary):
            raise UserError(
                f"{path} embeds {len(embedding)} {language} types, but the {language} dictionary "
                f"has {len(dictionary)}: use the data folder that the model was trained with"
            )


# --- text ----------------------------------------------------------------------------------------


def encoder(data: Path, preprocessing: Preprocessing) -> Callable[[str], Tokens]:
    """What makes the models' tokens of a line of raw text.

    Raises:
        UserError: if a step is not known or the BPE merges in the data folder cannot be read.
    """
    steps = [*preprocessing.source_steps, "bpe"]
    pipeline = text.Pipeline(steps, preprocessing.source, data / "code")
    return lambda line: pipeline(line).split()


def decoder(preprocessing: Preprocessing) -> Callable[[Sequence[Tokens]], list[str]]:
    """What makes raw text of the models' tokens; lower case stays so."""
    is_tokenized = any(step.startswith("tokenize") for step in preprocessing.target_steps)

    def decode(sentences: Sequence[Tokens]) -> list[str]:
        lines = hypotheses.remove_bpe([" ".join(tokens) for tokens in sentences])
        return hypotheses.detokenize(lines, preprocessing.target) if is_tokenized else lines

    return decode


def translate(
    lines: Iterable[str],
    engine: Engine,
    encode: Callable[[str], Tokens],
    decode: Callable[[Sequence[Tokens]], list[str]],
    *,
    block_lines: int = 2000,
    max_tokens: int = 4096,
    batch_size: int = 128,
    progress: Callable[[int], object] = lambda lines: None,
) -> Iterator[list[str]]:
    """The translations of lines, block by block: each is done before the next is read.

    A line without tokens gives an empty one. Of a line that is too long for the engine the
    beginning is translated, with a warning on stderr.

    Args:
        lines: raw text.
        engine: what translates tokens.
        encode: a line to tokens.
        decode: tokens to lines.
        block_lines: lines that are read at once, and then sorted by length.
        max_tokens: see `batches`.
        batch_size: see `batches`.
        progress: called with the number of lines whenever some are done.
    """
    before = 0
    for block in blocks(lines, block_lines):
        sentences = [encode(line) for line in block]
        for number, sentence in enumerate(sentences, before + 1):
            if len(sentence) > engine.max_length:
                tqdm.write(
                    f"warning: line {number} has {len(sentence)} tokens, of which the model takes "
                    f"the first {engine.max_length}: the rest is not translated",
                    file=sys.stderr,
                )
                del sentence[engine.max_length :]
        translations: list[Tokens] = [[] for _ in block]
        progress(sum(not sentence for sentence in sentences))
        for batch in batches([len(sentence) for sentence in sentences], max_tokens, batch_size):
            translated = engine.translate([sentences[i] for i in batch])
            for i, translation in zip(batch, translated, strict=True):
                translations[i] = translation
            progress(len(batch))
        yield decode(translations)
        before += len(block)


def blocks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    """Lists of `size` lines, the last one shorter or empty; also of those before a bad line."""
    block: list[str] = []
    try:
        for line in lines:
            block.append(line)
            if len(block) == size:
                yield block
                block = []
    except UserError:
        yield block
        raise
    yield block


def batches(lengths: Sequence[int], max_tokens: int, batch_size: int) -> Iterator[list[int]]:
    """Indices of sentences in batches of similar length, the longest first; none of empty ones.

    Args:
        lengths: of the sentences, in tokens.
        max_tokens: of a batch, padding and ends of sentences included; a sentence that has more
            is a batch of its own.
        batch_size: the most sentences of a batch.
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not lengths[i]:
            break
        longest = lengths[batch[0] if batch else i] + 1
        if batch and (len(batch) == batch_size or longest * (len(batch) + 1) > max_tokens):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
