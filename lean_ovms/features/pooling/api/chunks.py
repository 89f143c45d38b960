"""Long pairs: texts that are cut, and documents in pieces of which the best one counts (OVMS's rerank).

A query takes at most half of the window, and a piece of a document the rest of it, less the special tokens of a pair.
Pieces are token ids; a document that is certainly short enough stays a text, which the engine tokenizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....errors import BadRequest
from ..types import PoolingInfo, PoolingInput
from .request import PoolingRequest

Tokens = list[int]

CALL_CHARACTERS = 1 << 18
"""Characters tokenized in one call, about 60 ms of the engine; a longer text is a call of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkLimits:
    """The limits of the pieces into which the documents of a request are cut."""

    pieces: int
    """The most pieces of all documents together."""
    pieces_per_document: int = 0
    """The most pieces of a document, whose other pieces are dropped; 0: all are kept."""


async def tokens_of(call: PoolingRequest, texts: Sequence[str], param: str) -> list[Tokens]:
    """Returns the token ids of each text, without special tokens. Raises RequestError."""
    found: list[Tokens] = []
    count = 0
    for group in _groups(texts):
        try:
            found += await call.model.encode(group, False)
        except BadRequest as error:
            error.param = error.param or param
            raise
        count += sum(map(len, found[-len(group) :]))
        if count > call.model.options.max_pooling_tokens:
            text = f"{param} has more tokens than the {call.model.options.max_pooling_tokens} that a request may have"
            raise BadRequest(text, param=param)
    return found


def _groups(texts: Sequence[str]) -> list[list[str]]:
    """Returns the texts in calls of CALL_CHARACTERS."""
    groups: list[list[str]] = []
    space = 0
    for text in texts:
        if not groups or len(text) > space:
            groups.append([])
            space = CALL_CHARACTERS
        groups[-1].append(text)
        space -= len(text)
    return groups


async def cut_texts(call: PoolingRequest, texts: Sequence[str], most: int, param: str) -> list[str]:
    """Returns the texts, each cut to its first tokens.

    Args:
        call: The request.
        texts: The texts.
        most: The most tokens of a text, without special ones; 0: no text is cut.
        param: The field that has the texts, for errors.

    Raises:
        RequestError: The texts cannot be tokenized, or have too many tokens in all.
    """
    if not most:
        return [*texts]
    tokens = await tokens_of(call, texts, param)
    return [
        text if len(ids) <= most else await call.model.decode(ids[:most], False)
        for text, ids in zip(texts, tokens, strict=True)
    ]


async def chunked(
    call: PoolingRequest, query: Tokens, documents: Sequence[str], info: PoolingInfo, limits: ChunkLimits, most: int = 0
) -> tuple[list[PoolingInput], list[int]]:
    """Pairs a query with every piece of every document.

    Args:
        call: The request.
        query: The tokens of the query, of which at most half of the window is used.
        documents: The texts of the documents.
        info: The description of the model, with its window.
        limits: The most pieces.
        most: The most tokens of a document that are used; 0: all.

    Returns:
        The pairs, and for each pair the number of its document.

    Raises:
        RequestError: There are too many pieces, or the window has no place for any.
    """
    if info.window <= 2 * info.special_pair:
        raise BadRequest(
            "max_position_embeddings should be larger than 2 * NUMBER_OF_SPECIAL_TOKENS: "
            f"it is {info.window}, and there are {info.special_pair} special tokens"
        )
    query = query[: info.window // 2]
    space = info.window - len(query) - info.special_pair
    long = [i for i, text in enumerate(documents) if most or len(text.encode()) > space]
    tokens = dict(zip(long, await tokens_of(call, [documents[i] for i in long], "documents"), strict=True))
    pairs: list[PoolingInput] = []
    numbers: list[int] = []
    for number, text in enumerate(documents):
        pieces = _pieces(tokens[number][: most or None], space, limits) if number in tokens else [text]
        pairs.extend((query, piece) for piece in pieces)
        numbers.extend([number] * len(pieces))
    if len(pairs) > limits.pieces:
        raise BadRequest(
            "Chunking failed: exceeding max_allowed_chunks after chunking limit: "
            f"{limits.pieces}; actual: {len(pairs)}",
            param="documents",
        )
    return pairs, numbers


def _pieces(tokens: Tokens, space: int, limits: ChunkLimits) -> list[Tokens]:
    starts = range(0, max(len(tokens), 1), space)[: limits.pieces_per_document or None]
    return [tokens[start : start + space] for start in starts]
