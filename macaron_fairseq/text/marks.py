"""The marks of what cuts words into tokens, subword-nmt or SentencePiece, and how to join those."""

from collections.abc import Sequence

SUBWORD_NMT = "@@"  # with which it ends a part of a word that goes on
SENTENCEPIECE = "\u2581"  # with which it begins words; text may hold that sign, too


def is_sentencepiece(marked: int, lines: int) -> bool:
    """Whether a text is cut by SentencePiece: by how many of its lines begin with its mark."""
    return marked > 0 and 2 * marked >= lines


def remove_bpe(lines: Sequence[str]) -> list[str]:
    """Join what subword-nmt split; a mark at the end of a line has no partner and goes too."""
    return [(line + " ").replace("@@ ", "").rstrip(" ") for line in lines]


def mark_of(tokens: Sequence[str], counts: Sequence[int] | None = None) -> str:
    """Which mark tokens have: `SUBWORD_NMT`, `SENTENCEPIECE` or "".

    A text may hold either sign for another reason. So the more frequent one counts, and only if one
    token of a thousand has it.

    Args:
        tokens: of a text, or a dictionary's symbols.
        counts: how often each occurs; None: once.
    """
    counts = counts or [1] * len(tokens)
    found = dict.fromkeys((SUBWORD_NMT, SENTENCEPIECE), 0)
    for token, count in zip(tokens, counts, strict=True):
        found[SUBWORD_NMT] += count * token.endswith(SUBWORD_NMT)
        found[SENTENCEPIECE] += count * token.startswith(SENTENCEPIECE)
    mark = max(found, key=found.__getitem__)
    return mark if found[mark] and 1000 * found[mark] >= sum(counts) else ""


def join_tokens(lines: Sequence[str], mark: str) -> list[str]:
    """Words of tokens that were cut with a mark, see `mark_of`, with spaces between."""
    if mark != SENTENCEPIECE:
        return remove_bpe(lines)
    return [line.replace(" ", "").replace(SENTENCEPIECE, " ").strip(" ") for line in lines]
