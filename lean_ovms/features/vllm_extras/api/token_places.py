"""Finds the places of tokens in their text, as text-embeddings-inference's /tokenize returns them.

Exported tokenizers do not report places, so the text of each token is looked for after that of the token before it.
Case and accents may differ, because many tokenizers remove them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache

from ....types import Json


def placed(text: str, tokens: Iterable[tuple[int, bytes]], special: Collection[int]) -> Iterator[Json]:
    """Yields the tokens of a text as objects with id, text, special, start and stop.

    Args:
        text: The text.
        tokens: The id and the bytes of each token.
        special: The ids of special tokens, which have no place in the text.

    Yields:
        The objects; start and stop are offsets in the text's UTF-8 bytes, and null for special tokens, for parts of a
        character, and from the first token on whose text is not the next one in the text.
    """
    at = offset = 0
    part, lost = b"", False
    for number, data in tokens:
        one: Json = {"id": number, "text": data.decode("utf-8", "replace"), "special": number in special}
        one |= {"start": None, "stop": None}
        if one["special"]:
            one["text"] = one["text"].strip()  # the piece is that of the middle of a text
        if one["special"] or lost:
            yield one
            continue
        whole = not part
        part += data
        try:
            piece = part.decode()
        except UnicodeDecodeError:
            yield one
            continue
        part = b""
        if not (piece.isspace() and text.startswith(piece, at)):
            piece = piece.lstrip()
        start = at
        while start < len(text) and text[start].isspace() and not piece[:1].isspace():
            start += 1
        stop = start + len(piece)
        lost = _plain(text[start:stop]) != _plain(piece)
        if piece and not lost:
            begin = offset + len(text[at:start].encode("utf-8", "replace"))
            end = begin + len(text[start:stop].encode("utf-8", "replace"))
            at, offset = stop, end
            if whole:
                one |= {"text": text[start:stop], "start": begin, "stop": end}
        yield one


@lru_cache(maxsize=1024)
def _plain(text: str) -> str:
    """Returns a text in lower case without accents."""
    return "".join(c for c in unicodedata.normalize("NFD", text.lower()) if not unicodedata.combining(c))
