"""The marks of what cuts words into tokens, subword-nmt or SentencePiece, and how to join those."""

from collections.abc import Iterable, Sequence

from macaron_fairseq.common.errors import UserError

SUBWORD_NMT = "@@"  # with which it ends a part of a word that goes on
SENTENCEPIECE = "\u2581"  # with which it begins words, or ends them; text may hold that sign, too


def is_sentencepiece(marked: int, lines: int) -> bool:
    """Whether a text is cut by SentencePiece: by how many of its lines have its pieces."""
    return marked > 0 and 2 * marked >= lines


def has_pieces(line: str) -> bool:
    """Whether a line begins with SentencePiece's mark, or many of its tokens have it at an end."""
    if line.startswith(SENTENCEPIECE):
        return True
    tokens = line.split() if SENTENCEPIECE in line else []
    return bool(tokens) and 4 * sum(map(is_piece, tokens)) >= len(tokens)


def is_piece(token: str) -> bool:
    """Whether a token begins or ends with SentencePiece's mark, and is more than that."""
    return is_marked(token) and token.strip(SENTENCEPIECE) != ""


def is_marked(token: str) -> bool:
    """Whether a token begins or ends with SentencePiece's mark."""
    return token.startswith(SENTENCEPIECE) or token.endswith(SENTENCEPIECE)


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
        found[SENTENCEPIECE] += count * is_marked(token)
    mark = max(found, key=found.__getitem__)
    return mark if found[mark] and 1000 * found[mark] >= sum(counts) else ""


def refuse_suffixes(tokens: Iterable[str], way_out: str) -> None:
    """Raise a `UserError` if SentencePiece writes its mark behind words, not before them.

    Args:
        tokens: of a text, or a dictionary's symbols.
        way_out: what can be done about it, as the end of a sentence.
    """
    balance = sum(x.startswith(SENTENCEPIECE) - x.endswith(SENTENCEPIECE) for x in tokens)
    if balance < 0:
        raise UserError(
            f"SentencePiece's marks ({SENTENCEPIECE}) are behind the words, by its option "
            f"--treat_whitespace_as_suffix: {way_out}"
        )


def join_tokens(lines: Sequence[str], mark: str) -> list[str]:
    """Words of tokens that were cut with a mark, see `mark_of`, with spaces between."""
    if mark != SENTENCEPIECE:
        return remove_bpe(lines)
    return [line.replace(" ", "").replace(SENTENCEPIECE, " ").strip(" ") for line in lines]
