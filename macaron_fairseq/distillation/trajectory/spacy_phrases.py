"""Phrases of tokenised text, by a pipeline of spaCy: noun chunks and verb phrases.

These are MTA's spans (arXiv 2605.01374): a verb phrase is a row of AUX* ADV* VERB+ ADV*, and of
phrases within one another the longest counts. `text_spans.Phrases` reads the file.
"""

import html
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from macaron_fairseq.common import files, text_lines
from macaron_fairseq.common.errors import UserError, explain_missing
from macaron_fairseq.common.progress import bar
from macaron_fairseq.text.marks import SENTENCEPIECE, mark_of, refuse_suffixes, remove_bpe

Span = tuple[int, int]  # the first word and the last, from 0

BEGIN = 1000  # lines that tell what has cut a text into tokens

VERB_PHRASE = [
    {"POS": "AUX", "OP": "*"},
    {"POS": "ADV", "OP": "*"},
    {"POS": "VERB", "OP": "+"},
    {"POS": "ADV", "OP": "*"},
]


def load(model: str) -> Any:
    """A pipeline that tags and parses.

    Args:
        model: the name of an installed package, or a folder.

    Raises:
        UserError: if spaCy or the pipeline is missing, or its language has no noun chunks.
    """
    try:
        import spacy
    except ImportError as error:
        explain_missing(error, "spacy", "spacy")
    try:
        pipeline = spacy.load(model)
    except (OSError, ValueError) as error:  # what spaCy raises for both
        reason = str(error).splitlines()[0]
        raise UserError(
            f"--spacy {model} is not an installed pipeline of spaCy ({reason}): install one, as by "
            "python -m spacy download en_core_web_sm, or give its folder"
        ) from error
    if pipeline.vocab.get_noun_chunks is None:
        raise UserError(f"--spacy {model}: spaCy finds no noun chunks in {pipeline.lang}")
    return pipeline


def phrases(doc: Any) -> list[Span]:
    """The phrases of a tagged and parsed sentence, from left to right.

    Args:
        doc: spaCy's `Doc`, with the parts of speech and the dependencies.
    """
    from spacy.matcher import Matcher

    matcher = Matcher(doc.vocab)
    matcher.add("verb phrase", [VERB_PHRASE])
    found = [(start, end - 1) for _, start, end in matcher(doc)]
    return longest([*found, *((chunk.start, chunk.end - 1) for chunk in doc.noun_chunks)])


def longest(spans: Iterable[Span]) -> list[Span]:
    """Those that lie in no other, each once, from left to right."""
    kept: list[Span] = []
    for first, last in sorted({*spans}, key=lambda x: (x[0], -x[1])):
        if not kept or last > kept[-1][1]:
            kept.append((first, last))
    return kept


def lines(texts: Iterable[str], pipeline: Any, model: str) -> Iterator[str]:
    """A line for each sentence with its phrases, as FIRST-LAST with spaces between.

    Args:
        texts: sentences of tokens, with the marks of subword-nmt, of SentencePiece, or of none.
        pipeline: see `load`.
        model: its name.

    Raises:
        UserError: if the pipeline does not tag and parse.
    """
    from spacy.tokens import Doc

    texts = iter(texts)
    begin = [*islice(texts, BEGIN)]
    tokens = [token for text in begin for token in text.split()]
    mark = mark_of(tokens)
    if mark == SENTENCEPIECE:
        refuse_suffixes(tokens, "give text with marks before them")

    def docs() -> Iterator[Any]:
        for text in chain(begin, texts):
            yield Doc(pipeline.vocab, words=words(text, mark))

    for doc in pipeline.pipe(docs()):
        if len(doc) and not (doc.has_annotation("POS") and doc.has_annotation("DEP")):
            raise UserError(
                f"--spacy {model} does not tag and parse: give a pipeline that does, such as "
                "en_core_web_sm"
            )
        yield " ".join(f"{first}-{last}" for first, last in (phrases(doc) if len(doc) else ()))


def words(text: str, mark: str) -> list[str]:
    """The words of a tokenised sentence, as in training, and what Moses escapes as it was.

    Args:
        text: the sentence.
        mark: of the whole text, see `mark_of`.
    """
    if mark != SENTENCEPIECE:
        return [html.unescape(word) for word in remove_bpe([text])[0].split()]
    found: list[str] = []
    for piece in text.split():
        if piece.startswith(SENTENCEPIECE) or not found:
            found.append(piece.removeprefix(SENTENCEPIECE))
        else:
            found[-1] += piece
    return [html.unescape(word) or SENTENCEPIECE for word in found]  # a mark may be all of a word


def write(text: Path, output: Path, model: str) -> int:
    """Write the phrases of each line of a text, and return how many lines that are.

    Args:
        text: tokenised, a sentence a line; or "-".
        output: the file to write; or "-".
        model: see `load`.

    Raises:
        UserError: as `load` and `lines` do, or if a file cannot be read or written.
    """
    files.refuse_output([text], output)
    text_lines.refuse_other_encodings(text)
    pipeline = load(model)
    found = lines(text_lines.read_lines(text), pipeline, model)
    with bar("finding phrases", " lines", items=found) as shown:
        files.write_lines(output, shown)
        return shown.n
