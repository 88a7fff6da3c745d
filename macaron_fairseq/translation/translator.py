"""Raw text through an engine: preprocess, batch, search, join and detokenise."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from macaron_fairseq.common import files, text_lines
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import flag
from macaron_fairseq.common.progress import bar
from macaron_fairseq.common.wording import counted
from macaron_fairseq.text.data_folder import DataFolder, Tokens
from macaron_fairseq.translation import terminal

# Far more than is of use, and far from where numbers overflow.
LIMITS: dict[str, tuple[Any, int, int]] = {
    "beam": (Integral, 1, 1000),
    "lenpen": (Real, -10, 10),
    "max_len_a": (Real, 0, 1000),
    "max_len_b": (Integral, 0, 1_000_000),
}


@dataclass(frozen=True)
class Search:
    """How an engine searches; fairseq-generate's defaults.

    A hypothesis of n tokens, its end included, has the score log P / n ** lenpen. A translation has
    at most max_len_a * x + max_len_b tokens, where x are those of its batch's longest source, its
    end included.

    Raises:
        UserError: if a number is absurd, or is none.
    """

    beam: int = 5
    lenpen: float = 1.0
    max_len_a: float = 0.0
    max_len_b: int = 200

    def __post_init__(self) -> None:
        for name, (kind, least, most) in LIMITS.items():
            value: Any = getattr(self, name)
            is_one = isinstance(value, kind) and not isinstance(value, bool)
            if not is_one or not least <= value <= most:
                whole = "a whole number" if kind is Integral else "a number"
                raise UserError(f"{flag(name)} is {value!r}: give {whole} from {least} to {most}")
        # A whole number's power can be too large for PyTorch where a float's is not.
        object.__setattr__(self, "lenpen", float(self.lenpen))
        if 2 * self.max_len_a + self.max_len_b < 1:  # of one token and the end of the sentence
            raise UserError(
                f"--max-len-a {self.max_len_a} and --max-len-b {self.max_len_b} leave the "
                "translation of a word no token: give more"
            )

    def longest(self, batch: Sequence[Tokens]) -> int:
        """How many tokens a translation in that batch can have, as far as the search limits it."""
        return int(self.max_len_a * (max(map(len, batch)) + 1) + self.max_len_b)


@dataclass(frozen=True)
class Batching:
    """How much is translated at once.

    Raises:
        UserError: if a number is below 1, or is none.
    """

    lines: int = 2000  # read at once, sorted by length, and translated before the first is written
    max_tokens: int = 4096  # source tokens of a batch, padding and ends of sentences included
    batch_size: int = 128  # sentences of a batch

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, Integral) or isinstance(value, bool):
                raise UserError(f"{name} is {value!r}: give a whole number above 0")
        if min(self.max_tokens, self.batch_size) < 1:
            raise UserError(
                f"a batch of {self.batch_size} sentences and {self.max_tokens} tokens holds none: "
                "give numbers above 0"
            )
        if self.lines < 1:
            raise UserError(f"blocks of {self.lines} lines hold none: give a number above 0")

    def batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Indices of sentences in batches of similar length, the longest first; none of empty ones.

        Args:
            lengths: of the sentences, in tokens. One with more than `max_tokens` is a batch alone.
        """
        batch: list[int] = []
        for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            if not lengths[i]:
                break
            longest = lengths[batch[0] if batch else i] + 1
            is_full = len(batch) == self.batch_size or longest * (len(batch) + 1) > self.max_tokens
            if batch and is_full:
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch


USUAL = Batching()


class Engine(Protocol):
    """What turns tokens into tokens; the text work around it does not know which one runs."""

    max_length: int  # of a source sentence, in tokens

    def set_search(self, search: Search) -> None:
        """Search so from now on."""

    def longest(self, batch: Sequence[Tokens]) -> int:
        """How many tokens a translation in that batch can have."""

    def translate(self, batches: Sequence[Sequence[Tokens]]) -> Iterator[list[Tokens]]:
        """Translate batches of sentences, none empty or longer than `max_length`, in their order.

        It may work on several at a time.
        """


class Known:
    """Makes tokens of lines, and counts those that the model does not know."""

    SHOWN = 5  # such tokens

    def __init__(self, encode: Callable[[str], Tokens], symbols: set[str]) -> None:
        self.encode, self.symbols = encode, symbols
        self.tokens = 0
        self.unknown: Counter[str] = Counter()

    def __call__(self, line: str) -> Tokens:
        """The tokens of a line."""
        tokens = self.encode(line)
        self.tokens += len(tokens)
        self.unknown.update(token for token in tokens if token not in self.symbols)
        return tokens

    def warn(self) -> None:
        """Say how many were unknown, if some were."""
        if self.unknown:
            shown = " ".join(token for token, _ in self.unknown.most_common(self.SHOWN))
            warn(
                f"{self.unknown.total():,} of {counted(self.tokens, 'token')} are unknown to the "
                f"model, such as {shown}"
            )


def translate_file(
    source: Path,
    output: Path,
    engine: Engine,
    data: DataFolder,
    batching: Batching = USUAL,
) -> None:
    """Translate a file to another, each block written before the next is read.

    The output is named OUTPUT.part until all of it is there. "-" is standard input or output; what
    is typed on a terminal is asked for, and answered line by line.

    Args:
        source: UTF-8 text.
        output: where to write.
        engine: what translates tokens.
        data: how its training data was made.
        batching: how much at once; what is typed is translated line by line.

    Raises:
        UserError: if a file cannot be read or written, or they are one.
    """
    refuse_unreadable(source, output)
    encode = Known(data.encoder(data.source), data.symbols(data.source))
    is_typed = terminal.is_typed(source)
    if is_typed:
        lines = terminal.typed_lines(data.source, data.target)
        batching = replace(batching, lines=1)
    else:
        lines = text_lines.read_lines(source)
    on_terminal = files.is_stdout(output) and files.is_terminal(sys.stdout)
    with bar("translating", " lines", disable=is_typed) as shown:
        blocks = translate(
            lines,
            engine,
            encode,
            data.decode,
            batching,
            progress=shown.update,
        )
        with files.written(output, keep_partial=True) as file:
            for block in blocks:
                if on_terminal:  # where the bar stands, too
                    shown.clear()
                file.writelines(line.encode() + b"\n" for line in block)
                file.flush()
    encode.warn()


def refuse_unreadable(source: Path, output: Path) -> None:
    """Raise a `UserError` now, before models are loaded, for no input or one to be replaced."""
    if str(source) != "-" and not source.exists():
        raise UserError(f"{source}: no such file")
    if source.is_dir():
        raise UserError(f"{source} is a folder: name a file")
    files.refuse_output([source], output)


def refuse_missing(paths: str, what: str) -> None:
    """Raise a `UserError` if one of the models is not there, now rather than after long imports.

    Args:
        paths: of the models, with ":" between them.
        what: what each of them is.
    """
    if files.is_remote(paths):
        raise UserError(f"{paths} is an address: download the {what}, and name its file")
    try:
        names = paths.split(os.pathsep)
        if "" in names:
            raise UserError(f"{paths!r} names a {what} that is empty: was a variable not set?")
        missing = [path for path in names if not files.is_there(path)]
        if missing and not files.is_there(paths):
            raise UserError(f"{missing[0]}: no such {what}")
    except OSError as error:  # a folder that may not be searched
        raise UserError(f"cannot use {error.filename}: {error.strerror}") from error


def translate(
    lines: Iterable[str],
    engine: Engine,
    encode: Callable[[str], Tokens],
    decode: Callable[[Sequence[Tokens]], list[str]],
    batching: Batching = USUAL,
    *,
    progress: Callable[[int], object] = lambda lines: None,
) -> Iterator[list[str]]:
    """The translations of lines, block by block: each is done before the next is read.

    A line without tokens gives an empty one. If a line is too long for the engine, its beginning is
    translated, with a warning on stderr. Another warning tells of a translation that reached its
    maximum length.

    Args:
        lines: raw text.
        engine: what translates tokens.
        encode: a line to tokens.
        decode: tokens to lines.
        batching: how much at once.
        progress: called with the number of lines whenever some are done.
    """
    before = 0
    for block in blocks(lines, batching.lines):
        translations: list[Tokens] = [[] for _ in block]
        for found in translate_block(
            [encode(line) for line in block], engine, batching, before=before
        ):
            for i, translation in found.items():
                translations[i] = translation
            progress(len(found))
        yield decode(translations)
        before += len(block)


def translate_block(
    sentences: Sequence[Tokens],
    engine: Engine,
    batching: Batching,
    *,
    before: int = 0,
    done: Collection[int] = (),
) -> Iterator[dict[int, Tokens]]:
    """The translations of a block of sentences by their places in it, batch by batch.

    Empty sentences come first. Warnings are as of `translate`.

    Args:
        sentences: tokens; what is too long for the engine is cut off there.
        engine: what translates.
        batching: how much at once.
        before: lines of the text that are not among these, for warnings that number them.
        done: a batch of which all are done is left out. The others stay as they would be.
    """
    limit = engine.max_length
    for i, sentence in enumerate(sentences):
        if len(sentence) > limit and i not in done:
            warn(
                f"line {before + i + 1} has {len(sentence)} tokens, of which the model takes the "
                f"first {limit}: the rest is not translated"
            )
    kept = [sentence[:limit] for sentence in sentences]
    yield {i: [] for i, sentence in enumerate(kept) if not sentence and i not in done}
    todo = left_of(batching.batches([*map(len, kept)]), done)
    found = engine.translate([[kept[i] for i in batch] for batch in todo])
    for batch, translations in zip(todo, found, strict=True):
        longest = engine.longest([kept[i] for i in batch])
        for i, translation in zip(batch, translations, strict=True):
            if len(translation) >= longest:
                end = counted(longest, "token")
                warn(
                    f"the translation of line {before + i + 1} ends at {end}, the most that it may "
                    "have: it may be cut short"
                )
        yield dict(zip(batch, translations, strict=True))


def left_of(batches: Iterable[list[int]], done: Collection[int]) -> list[list[int]]:
    """The batches that are not done.

    A batch is done as a whole, or not at all: what is translated depends on the batch.
    """
    return [batch for batch in batches if not all(i in done for i in batch)]


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
