"""Lines of text through an engine: preprocess, batch, translate, join and detokenise."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from tqdm import tqdm

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.evaluation import hypotheses
from macaron_fairseq.text import pipeline
from macaron_fairseq.translation.data_folder import Preprocessing

Tokens = list[str]


class Engine(Protocol):
    """What turns tokens into tokens; the text work around it does not know which one runs."""

    max_length: int  # of a source sentence, in tokens

    def longest(self, batch: Sequence[Tokens]) -> int:
        """How many tokens a translation in that batch can have."""

    def translate(self, batches: Sequence[Sequence[Tokens]]) -> Iterator[list[Tokens]]:
        """Translate batches of sentences, none empty or longer than `max_length`, in their order.

        It may work on several at a time.
        """


def preprocessor(data: Path, preprocessing: Preprocessing) -> Callable[[str], Tokens]:
    """What makes the models' tokens of a line of raw text.

    Raises:
        UserError: if a step is not known or the BPE merges in the data folder cannot be read.
    """
    steps = [*preprocessing.source_steps, "bpe"]
    apply = pipeline.Pipeline(steps, preprocessing.source, data / "code")
    return lambda line: apply(line).split()


def postprocessor(preprocessing: Preprocessing) -> Callable[[Sequence[Tokens]], list[str]]:
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
    beginning is translated, with a warning on stderr; another tells of a translation that ends
    where the search had to.

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
                warn(
                    f"line {number} has {len(sentence)} tokens, of which the model takes the first "
                    f"{engine.max_length}: the rest is not translated"
                )
                del sentence[engine.max_length :]
        translations: list[Tokens] = [[] for _ in block]
        progress(sum(not sentence for sentence in sentences))
        todo = list(batches([len(sentence) for sentence in sentences], max_tokens, batch_size))
        done = engine.translate([[sentences[i] for i in batch] for batch in todo])
        for batch, translated in zip(todo, done, strict=True):
            longest = engine.longest([sentences[i] for i in batch])
            for i, translation in zip(batch, translated, strict=True):
                translations[i] = translation
                if len(translation) >= longest:
                    warn(
                        f"the translation of line {before + i + 1} ends at {longest} tokens, "
                        "the most that it may have: it may be cut short"
                    )
            progress(len(batch))
        yield decode(translations)
        before += len(block)


def warn(sentence: str) -> None:
    """A warning on stderr, above a progress bar."""
    tqdm.write(f"warning: {sentence}", file=sys.stderr)


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
