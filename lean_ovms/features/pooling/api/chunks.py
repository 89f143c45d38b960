"""Long inputs: texts that are cut, and texts that are computed in pieces, each of which fits the window.

The score of a long document is that of its best piece, as in OVMS's rerank. The query takes at most half of the window,
and a piece takes the rest of it, less the special tokens of a pair. Pieces are token ids. A document that is certainly
short enough stays a text, which the engine tokenizes.

With --embed_long_inputs mean, the vector of a long input of embeddings is the mean of the vectors of its pieces,
weighted by their tokens and normalized again, as in vLLM's chunked processing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter

from ....errors import BadRequest
from ..types import PooledOutput, PoolingInfo, PoolingInput, PoolingParams
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
    """The most pieces of one document; further pieces are dropped. 0 if all are kept."""


async def tokens_of(call: PoolingRequest, texts: Sequence[str], param: str) -> list[Tokens]:
    """Returns the token ids of each text, without special tokens. Raises RequestError if they are too many in all."""
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
            text = (
                f"{param} has more than {call.model.options.max_pooling_tokens} tokens, this server's limit "
                "(--max_pooling_tokens)"
            )
            raise BadRequest(text, param=param)
    return found


def _groups(texts: Sequence[str]) -> list[list[str]]:
    """Groups the texts, in order, by about CALL_CHARACTERS characters: each group is one call of the tokenizer."""
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
        most: The most tokens of a text, without special tokens; 0 if no text is cut.
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
        limits: The limits of the number of pieces.
        most: The most tokens of a document that are used; 0 if all are used.

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
    kept = limits.pieces_per_document
    pairs: list[PoolingInput] = []
    numbers: list[int] = []
    for number, text in enumerate(documents):
        pieces = _pieces(tokens[number][: most or None], space, kept) if number in tokens else [text]
        pairs.extend((query, piece) for piece in pieces)
        numbers.extend([number] * len(pieces))
    if len(pairs) > limits.pieces:
        raise BadRequest(
            "Chunking failed: exceeding max_allowed_chunks after chunking limit: "
            f"{limits.pieces}; actual: {len(pairs)}",
            param="documents",
        )
    return pairs, numbers


def _pieces(tokens: Tokens, size: int, most: int = 0) -> list[Tokens]:
    """Splits tokens into pieces of `size` tokens, and returns the first `most` pieces (0 for all), at least one."""
    starts = range(0, max(len(tokens), 1), size)[: most or None]
    return [tokens[start : start + size] for start in starts]


# --- embeddings


async def encode_in_pieces(
    call: PoolingRequest, inputs: Sequence[PoolingInput], params: PoolingParams, info: PoolingInfo, param: str
) -> list[PooledOutput]:
    """Returns one result for each input. With --embed_long_inputs mean, long inputs are computed in pieces.

    Args:
        call: The request.
        inputs: The inputs.
        params: How the inputs are encoded.
        info: The description of the model.
        param: The field that has the inputs, for errors.

    Raises:
        RequestError: The model refuses an input, or fails.
    """
    if params.truncate is not None or call.model.options.embed_long_inputs != "mean":
        return await call.encode(inputs, params, param)
    long = await _long(call, inputs, params, info, param)
    if not long:
        return await call.encode(inputs, params, param)
    parts: list[PoolingInput] = []
    numbers: list[int] = []
    for number, one in enumerate(inputs):
        pieces = long.get(number, [one])
        parts += pieces
        numbers += [number] * len(pieces)
    outputs = await call.encode(parts, params, param, numbers)
    await call.load_numpy()
    normalize = info.normalize if params.normalize is None else params.normalize
    work = partial(_joined, outputs, numbers, normalize=normalize)
    return await call.services.offload.run(sum(len(output.data) for output in outputs), work)


def _joined(outputs: list[PooledOutput], numbers: list[int], *, normalize: bool) -> list[PooledOutput]:
    """Returns the result of each input, given those of its pieces and for each piece the number of its input."""
    from .. import vectors

    found = []
    for _, group in groupby(zip(numbers, outputs, strict=True), key=itemgetter(0)):
        pieces = [output for _, output in group]
        if len(pieces) == 1:
            found += pieces
            continue
        tokens = [piece.tokens for piece in pieces]
        data = vectors.mean([piece.data for piece in pieces], tokens, normalize=normalize)
        found.append(PooledOutput(data, 1, pieces[0].width, sum(tokens)))
    return found


async def _long(
    call: PoolingRequest, inputs: Sequence[PoolingInput], params: PoolingParams, info: PoolingInfo, param: str
) -> dict[int, list[PoolingInput]]:
    """Returns the pieces of each input that does not fit the window, by the input's number. Raises RequestError."""
    space = info.window - (info.special_single if params.add_special_tokens else 0)
    found: dict[int, list[PoolingInput]] = {}
    for number, one in enumerate(inputs):
        if isinstance(one, list) and len(one) > info.window:
            found[number] = [*_pieces(one, info.window)]
    suspects = {i: one for i, one in enumerate(inputs) if isinstance(one, str) and len(one.encode()) > space}
    texts = dict(zip(suspects, await tokens_of(call, list(suspects.values()), param), strict=True))
    long = {number: tokens for number, tokens in texts.items() if len(tokens) > space}
    before, after = await _around(call) if long and params.add_special_tokens else ([], [])
    for number, tokens in long.items():
        found[number] = [[*before, *piece, *after] for piece in _pieces(tokens, space)]
    return found


async def _around(call: PoolingRequest) -> tuple[Tokens, Tokens]:
    """Returns the special tokens that the model's tokenizer puts before and after a text."""
    [plain] = await call.model.encode(["a"], False)
    [whole] = await call.model.encode(["a"], True)
    at = next(i for i in range(len(whole)) if whole[i : i + len(plain)] == plain)
    return whole[:at], whole[at + len(plain) :]
