"""The sentences that trained models run on: a binarised data set or raw text, as token numbers."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice, repeat, zip_longest
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary, data_utils
from torch import Tensor

from macaron_fairseq.analysis import SENTENCES
from macaron_fairseq.common import text_lines
from macaron_fairseq.common.errors import UserError, in_a_line
from macaron_fairseq.common.wording import counted
from macaron_fairseq.model.loading import load_dictionary
from macaron_fairseq.model.released_bert import CLS
from macaron_fairseq.preflight.binarised import refuse_truncated
from macaron_fairseq.text import data_folder

Encode = Callable[[str], data_folder.Tokens]
Numbers = tuple[list[int], list[int] | None]  # of the tokens of a sentence and its translation
Text = Path | Sequence[str]  # a file, "-" for standard input, or the lines themselves


@dataclass(frozen=True)
class Sentence:
    """Token numbers of one sentence, as the model reads them: (time,)."""

    number: int  # in its file, from 1
    source: Tensor
    target: Tensor | None  # what the decoder reads; None if there is none yet

    @property
    def length(self) -> int:
        """The tokens of the longer side."""
        return max(len(self.source), 0 if self.target is None else len(self.target))


@dataclass(frozen=True)
class Data:
    """A folder of fairseq-preprocess, and how raw text becomes its tokens."""

    folder: Path
    pair: tuple[str, str] | None  # the languages; None for a language model's data
    source: Dictionary
    target: Dictionary | None
    encode: tuple[Encode, Encode]
    is_causal: bool = False  # of a causal language model
    tests: Sequence[str] = ()  # names of test sets, where a recipe made the folder

    def subset(self, name: str) -> str:
        """What fairseq calls a set: a recipe's test sets are its test, test1 and so on."""
        return f"test{self.tests.index(name) or ''}" if name in self.tests else name

    @property
    def dictionaries(self) -> list[Path]:
        """Their files."""
        names = [f"dict.{language}.txt" for language in self.pair or ()] or ["dict.txt"]
        return [self.folder / name for name in names]

    def encoder_input(self, tokens: list[int]) -> Tensor:
        """What the encoder or a language model reads of a sentence.

        Masked language models begin with <s>, those of the authors' code with <cls>. Causal ones
        begin with </s>, and predict it at the end.
        """
        if self.is_causal:
            return torch.tensor([self.source.eos(), *tokens])
        first = self.source.index(CLS) if CLS in self.source else self.source.bos()
        start = [] if self.pair else [first]
        return torch.tensor([*start, *tokens, self.source.eos()])

    def decoder_input(self, tokens: list[int]) -> Tensor:
        """What the decoder reads when it is to predict these tokens: fairseq begins with </s>."""
        return torch.tensor([self.source.eos(), *tokens])


@dataclass(frozen=True)
class Sample:
    """Some sentences of a text or a data set; all of them have a target, or none has."""

    data: Data
    where: str
    sentences: list[Sentence]

    @property
    def has_references(self) -> bool:
        """Whether the decoder is to read a given translation."""
        return self.sentences[0].target is not None

    @property
    def has_own_translations(self) -> bool:
        """Whether the decoder is to read what a model translates."""
        return self.data.target is not None and not self.has_references

    def description(self) -> dict[str, Any]:
        """What a JSON file says of them."""
        counts = {"source": count(self.data.source, [x.source for x in self.sentences])}
        if self.data.is_causal:
            decoder = "reads the text, as in training"
        elif self.data.target is None:
            decoder = "none, the models are encoders; no token is masked"
        elif self.has_references:
            targets = [x.target for x in self.sentences if x.target is not None]
            counts["target"] = count(self.data.target, targets)
            decoder = "reads the reference, as in training"
        else:
            decoder = "reads the model's own translation (beam 5), another for each model"
        return {
            "source": "standard input" if self.where == "-" else self.where,
            "sentences": len(self.sentences),
            "tokens": counts,
            "decoder": decoder,
        }


def count(dictionary: Dictionary, found: list[Tensor]) -> dict[str, int]:
    """How many tokens there are, and how many of them are unknown."""
    return {
        "tokens": sum(len(tokens) for tokens in found),
        "unknown": sum(int((tokens == dictionary.unk()).sum()) for tokens in found),
    }


# --- data folders --------------------------------------------------------------------------------


def open_translation(data: Path, source: str | None, target: str | None) -> Data:
    """The data of a translation model.

    Args:
        data: what a recipe's prepare stage made, or a folder of fairseq-preprocess alone; of the
            latter raw text is taken as tokens with spaces between them.
        source: its language; None to find it out.
        target: the same.

    Raises:
        UserError: if something is missing, or the languages cannot be told.
    """
    made = data_folder.read(data) if (data / data_folder.NAME).is_file() else None
    folder = binarised(data)
    pair = (made.source, made.target) if made else data_utils.infer_language_pair(str(folder))
    source, target = completed((source, target), pair)
    if source is None or target is None:
        raise UserError(
            f"{folder} does not tell its languages: name them with --source-lang and --target-lang"
        )
    encode: tuple[Encode, Encode] = (str.split, str.split)
    tests: Sequence[str] = ()
    if made:
        encode, tests = (when_used(made, source), when_used(made, target)), made.tests
    ours, theirs = (read_dictionary(folder / f"dict.{x}.txt") for x in (source, target))
    return Data(folder, (source, target), ours, theirs, encode, tests=tests)


def when_used(made: data_folder.DataFolder, language: str) -> Encode:
    """A folder's encoder, which reads the merges at the first line: binarised sets need none."""
    encoder = cache(lambda: made.encoder(language))
    return lambda line: encoder()(line)


def completed(
    named: tuple[str | None, str | None], pair: Sequence[str | None]
) -> tuple[str | None, str | None]:
    """Source and target as they were named, and what was not as the folder's pair says.

    Raises:
        UserError: if both are one language.
    """
    (source, target), (one, other) = named, pair
    if source and not target:
        target = one if source == other else other
    elif target and not source:
        source = other if target == one else one
    elif not source:
        return one, other
    if source and source == target:
        raise UserError(f"--source-lang and --target-lang are both {source}: name two languages")
    return source, target


def open_monolingual(data: Path, is_causal: bool) -> Data:
    """The data of a language model.

    Args:
        data: see `open_translation`.
        is_causal: of a causal one, or else of a masked one.

    Raises:
        UserError: if its dict.txt, or what its preprocessing.json names, cannot be read.
    """
    encode: Encode = str.split
    tests: Sequence[str] = ()
    if (data / data_folder.NAME).is_file():
        made = data_folder.read(data)
        encode, tests = when_used(made, made.source), made.tests
    folder = binarised(data)
    dictionary = read_dictionary(folder / "dict.txt")
    return Data(folder, None, dictionary, None, (encode, encode), is_causal, tests)


def binarised(data: Path) -> Path:
    """The folder of fairseq-preprocess that `data` is or holds."""
    if not data.is_dir():
        raise UserError(f"{data}: no such folder")
    return data / "data-bin" if (data / "data-bin").is_dir() else data


def read_dictionary(path: Path) -> Dictionary:
    """A dictionary that fairseq-preprocess wrote."""
    if not path.is_file():
        raise UserError(
            f"{path} is missing: give --data the folder, with the dictionary, that the model was "
            "trained with"
        )
    return load_dictionary(path)


# --- sentences -----------------------------------------------------------------------------------


def read(
    data: Data,
    text: Text | None = None,
    target: Text | None = None,
    subset: str = "test",
    limit: int = SENTENCES,
    longest: int | None = None,
) -> Sample:
    """The first sentences of raw text or, without one, of a binarised data set; no empty ones.

    Args:
        data: the models' data.
        text: a file, "-" for standard input, or lines.
        target: its translation, line by line; None if there is none.
        subset: the name of the data set, as fairseq or the recipe calls it.
        limit: the most sentences.
        longest: the most tokens that a model reads of one, its beginning and end included, or of
            its translation; sentences with more are left out.

    Raises:
        UserError: if a file is bad or holds no sentence that fits, or the two have not the same
            lines.
    """
    if text is not None:
        found = from_text(data, text, target)
        where = name = name_of(text, "the text")
    else:
        known = data.subset(subset)
        found = from_data_set(data, known)
        subset += f", which is {known}" * (known != subset)
        where, name = f"{data.folder}, set {subset}", f"the set {subset} of {data.folder}"
    sentences = (
        Sentence(number, data.encoder_input(x), None if y is None else data.decoder_input(y))
        for number, (x, y) in enumerate(found, 1)
        if x and y != []
    )
    fitting = (x for x in sentences if longest is None or x.length <= longest)
    sample = Sample(data, where, list(islice(fitting, limit)))
    refuse_padding(sample)
    if not sample.sentences:
        name = "standard input" if name == "-" else name
        if longest is not None:
            raise UserError(f"{name} holds no sentence of up to {counted(longest, 'token')}")
        raise UserError(f"{name} holds no sentence: give text that is not empty")
    if text is not None and data.encode[0] is str.split:
        warn_of_unknown_tokens(sample)
    return sample


def warn_of_unknown_tokens(sample: Sample) -> None:
    """Say how many tokens are unknown, if some are, of text that nothing has split."""
    found = count(sample.data.source, [x.source for x in sample.sentences])
    if found["unknown"]:
        print(
            f"warning: {sample.data.folder} has no {data_folder.NAME}, so text is read as tokens "
            f"with spaces between: {found['unknown']} of {found['tokens']} are unknown",
            file=sys.stderr,
        )


def refuse_padding(sample: Sample) -> None:
    """Raise a `UserError` if a sentence holds the symbol of padding, which models leave out."""
    for sentence in sample.sentences:
        for tokens, dictionary in (
            (sentence.source, sample.data.source),
            (sentence.target, sample.data.target),
        ):
            if tokens is not None and dictionary and (tokens == dictionary.pad()).any():
                raise UserError(
                    f"{sample.where}: sentence {sentence.number} holds {dictionary.pad_word}, the "
                    "symbol of padding, which models leave out: remove it"
                )


def lines_of(text: Text) -> Iterable[str]:
    """The lines of a text.

    Raises:
        UserError: if it is one `str`, whose letters would be taken for lines.
    """
    if isinstance(text, str):
        raise UserError("the text is one str: give a list of lines, or the pathlib.Path of a file")
    return text_lines.read_lines(text) if isinstance(text, Path) else text


def name_of(text: Text | None, otherwise: str) -> str:
    """The name of a text's file, or what to call one without a file."""
    return str(text) if isinstance(text, Path) else otherwise


def from_text(data: Data, source: Text, target: Text | None) -> Iterator[Numbers]:
    """The lines of raw text and of its translation, which are empty without one."""
    if target is not None and data.target is None:
        raise UserError("--target is for translation models, not for language models")
    if source == target == Path("-"):
        raise UserError("INPUT and --target cannot both be standard input: give a file for one")
    translations = repeat("") if target is None else lines_of(target)
    for number, (line, translated) in enumerate(zip_longest(lines_of(source), translations), 1):
        if line is None and target is None:
            return
        if line is None or translated is None:
            names = [name_of(source, "the text"), name_of(target, "its translation")]
            short, long = names if line is None else names[::-1]
            raise UserError(
                f"{short} ends after {counted(number - 1, 'line')}, and {long} has more: line N of "
                "one must be the translation of line N of the other"
            )
        tokens = [data.source.index(token) for token in data.encode[0](line)]
        if target is not None and data.target:
            yield tokens, [data.target.index(token) for token in data.encode[1](translated)]
        else:
            yield tokens, None


def from_data_set(data: Data, subset: str) -> Iterator[Numbers]:
    """The sentences of a binarised data set."""
    where = f"the set {subset} of {data.folder}"
    names = [subset] * 2
    if data.pair:
        orders = ["-".join(data.pair), "-".join(reversed(data.pair))]
        found = [o for o in orders if (data.folder / f"{subset}.{o}.{data.pair[0]}.idx").is_file()]
        names = [f"{subset}.{(found or orders)[0]}.{language}" for language in data.pair]
    if not (data.folder / f"{names[0]}.idx").is_file():
        raise UserError(
            f"{data.folder} has no file {names[0]}.idx: choose a set with --gen-subset"
            + f" ({', '.join(data.tests)})" * bool(data.tests)
            + ", or give a file of raw text"
        )
    # fairseq would complain of a truncated index while it is being thrown away, too.
    refuse_truncated(data.folder, {subset})
    try:
        sources, targets = (
            data_utils.load_indexed_dataset(str(data.folder / name), dictionary)
            for name, dictionary in zip(names, (data.source, data.target), strict=True)
        )
        for i in range(len(sources)):
            source = sources[i].tolist()
            target = targets[i].tolist() if data.target and targets else None
            for tokens, dictionary in ((source, data.source), (target or [], data.target)):
                if any(token >= len(dictionary or ()) for token in tokens):
                    raise UserError(f"{where} was made with another dictionary than is there")
                if tokens[-1:] == [data.source.eos()]:
                    tokens.pop()
            yield source, target
    except UserError:
        raise
    except Exception as error:  # of fairseq, numpy or struct, by what is wrong with the file
        raise UserError(f"cannot read {where}: {in_a_line(error)}") from error
