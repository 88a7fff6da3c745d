"""Sentences of Markdown pages, and how long they are."""

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
