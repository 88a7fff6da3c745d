"""Sentences of Markdown pages, and how long they are."""

import ast
import inspect
import re

# Ends with a full stop and ends no sentence.
ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|et al|vs|cf|eq|No)\.")


def sentences(markdown):
    """The sentences of a page's prose, without tables, code, headings and pictures."""
    text = re.sub(r"<!--.*?-->", "", markdown, flags=re.S)
    text = re.sub(r"^(```+|~~~+).*?^\s*\1\s*$", "\n\n", text, flags=re.S | re.M)
    text = re.sub(r"^ *(```+)[^`]*?^ *\1\s*$", "\n\n", text, flags=re.S | re.M)
    text = re.sub(r"^(    .*|\|.*|#.*|\(.*\)=|<.*>)$", "\n", text, flags=re.M)
    text = re.sub(r"!\[[^]]*\]\([^)]*\)", "", text)
    text = re.sub(r"`+[^`]+`+", "code", text)  # a word, however long
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^\s*([-*:]|\d+\.) ", "\n\n", text, flags=re.M)
    text = ABBREVIATIONS.sub(r"\1", text)
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in re.split(r"(?<=[.!?])[\"'*)]*\s+(?=\S)", " ".join(paragraph.split())):
            if count(sentence):
                yield sentence


def count(sentence):
    """Its words: what has a letter or a digit in it."""
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


PROSE = re.compile(r"\b[a-z]+,? [a-z]+,? [a-z]+\b")
# A line of a shell's, which is no sentence.
COMMAND = re.compile(
    r"^\s*(macaron-fairseq|fairseq-\w+|python3?|echo|zcat|tail|source|mkdir|examples/|#|--)\S* .*$",
    re.M,
)


def of_python(source):
    """The sentences of a program's docstrings, help texts and messages; a value stands for a word.

    Of a string that is no docstring only what reads as prose: three small words in a row.
    """
    parts = set()  # of f-strings, which are read as a whole
    for node in ast.walk(ast.parse(source)):
        if id(node) in parts:
            continue
        if isinstance(node, ast.JoinedStr):
            parts |= {id(part) for part in ast.walk(node)}
            values = (x.value if isinstance(x, ast.Constant) else "X" for x in node.values)
            yield from of_text("".join(values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from of_text(node.value)


def of_text(text):
    """The sentences of plain text, in which lists have a line each and examples are indented.

    What stands before a colon is a sentence, too, and HTML's elements part sentences.
    """
    if not PROSE.search(text):
        return
    text = COMMAND.sub("\n", re.sub(r"<[^>]*>", "\n\n", inspect.cleandoc(text)))
    text = ABBREVIATIONS.sub(r"\1", re.sub(r"`+[^`]+`+", "code", text))
    text = re.sub(r"^.*\S {3,}\S.*$", "\n", text, flags=re.M)  # of a table
    text = re.sub(r"^( +|(?=\S))(?=[\w.*-]+(:|  )|    )", "\n\n", text, flags=re.M)
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in re.split(r"(?<=[.!?:])[\"'*)]*\s+(?=\S)", " ".join(paragraph.split())):
            if count(sentence):
                yield sentence
