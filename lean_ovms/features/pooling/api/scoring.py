"""Scores of queries and documents, for rerank and score.

A cross-encoder or a generating reranker reads a query and a document together. With an embedding model, the score is
the cosine of the two vectors, and equal texts are computed once. With a model that has a vector for each token
(ColBERT), the score is MaxSim, as in vLLM: for each token of the query the largest dot product with a token of the
document, summed over the query. https://arxiv.org/abs/2004.12832
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ....errors import BadRequest
from ....types import ChatPrompt, Json
from ..model import FLOAT_BYTES
from ..types import (
    EMBED,
    IN_PROMPT,
    IN_TEMPLATE,
    PER_TOKEN,
    SCORE,
    TOKEN_EMBED,
    PoolingInfo,
    PoolingInput,
    PoolingParams,
    TextOrTokens,
)
from .chunks import ChunkLimits, Tokens, chunked, cut_texts, tokens_of
from .request import INLINE_RESULT, PoolingRequest, rendered

KINDS = (SCORE, EMBED, TOKEN_EMBED)
"""Kinds of models that score."""
NUMBERS_AT_ONCE = 1 << 22
"""The numbers of documents' tokens that are in memory at once: 17 MB, as of 64 documents of 512 tokens of 128 numbers.
Only a single document may have more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """A request for scores: documents, and either one query for all of them or one for each."""

    call: PoolingRequest
    """The fields of the request, and its model."""
    queries: Sequence[str]
    """One query for all documents, or one for each."""
    documents: Sequence[str]
    """The documents."""
    query_param: str
    """The field that has the queries, for errors."""
    document_param: str
    """The field that has the documents, for errors."""
    max_query: int = 0
    """The most tokens of a query that are used; 0 if all are used."""
    max_document: int = 0
    """The most tokens of a document that are used; 0 if all are used."""
    instruction: str = ""
    """The instruction in the prompt of a generating reranker; "" for the model's default instruction."""
    template_kwargs: Json = field(default_factory=dict)
    """Further variables of the model's prompt template."""
    chunks: ChunkLimits | None = None
    """The limits of the pieces into which long documents are cut; None if documents are not cut into pieces."""
    cuts: bool = False
    """Whether a limit beyond the window means to cut at the window, as with Cohere; otherwise it is an error."""
    ovms: bool
    """Whether the path is one of OVMS's, whose rules hold where they differ from those of vLLM and Cohere."""


@dataclass(frozen=True, slots=True)
class Scores:
    """One score for each document, and the number of tokens that were computed for them."""

    values: list[float]
    """The score of each document, in the order of the request."""
    tokens: int
    """The number of tokens that were computed for all of them."""


async def score(request: ScoreRequest) -> Scores:
    """Computes the score of each document with its query. Raises RequestError."""
    info = request.call.info(KINDS)
    _warn(request, info)
    if request.cuts and request.max_document >= info.window:
        request = _cut_at_the_window(request)
    for name, limit in (("max_tokens_per_query", request.max_query), ("max_tokens_per_doc", request.max_document)):
        if limit >= info.window:
            raise BadRequest(f"{name} ({limit}) must be less than max_model_len ({info.window}).", param=name)
    if info.kind == EMBED:
        return await _by_vectors(request, info)
    return await (_by_tokens(request, info) if info.kind == TOKEN_EMBED else _by_pairs(request, info))


def _warn(request: ScoreRequest, info: PoolingInfo) -> None:
    """Adds warnings for fields of the request that have no effect on a model of this kind."""
    by_template = info.kind == SCORE and bool(request.call.model.config.chat_template)
    if request.instruction and not by_template and info.pair != IN_PROMPT:
        request.call.warnings.append("instruction has no effect on this model")
    in_pieces = info.pair == IN_TEMPLATE and not by_template
    if request.call.values.get("max_chunks_per_doc") is not None and not in_pieces:
        request.call.warnings.append("max_chunks_per_doc has no effect on this model")


def _cut_at_the_window(request: ScoreRequest) -> ScoreRequest:
    """Returns a copy of the request that truncates documents at the window instead of at its own limit."""
    truncate = request.call.values["truncate_prompt_tokens"]
    call = request.call.with_values({"truncate_prompt_tokens": -1 if truncate is None else truncate})
    return replace(request, call=call, max_document=0)


# --- two vectors


async def _by_vectors(request: ScoreRequest, info: PoolingInfo) -> Scores:
    await request.call.load_numpy()
    from .. import vectors

    base = request.call.params(info)
    sides = [
        asyncio.ensure_future(_vectors(request, texts, _cut(base, most, info), param))
        for texts, most, param in (
            (request.queries, request.max_query, request.query_param),
            (request.documents, request.max_document, request.document_param),
        )
    ]
    try:
        (left, left_tokens), (right, right_tokens) = await asyncio.gather(*sides)
    finally:
        for side in sides:
            side.cancel()  # if the other one was refused, it would be computed for nobody
    size = sum(map(len, right))
    work = partial(vectors.cosines, left, right)
    values = await request.call.services.offload.run(size, work, inline_below=INLINE_RESULT)
    return Scores(values, left_tokens + right_tokens)


def _cut(params: PoolingParams, limit: int, info: PoolingInfo) -> PoolingParams:
    """Returns parameters that truncate a text to a number of tokens.

    Args:
        params: The parameters of the request.
        limit: The most tokens of the text, without special tokens; 0 if the request has no limit.
        info: The description of the model, with its window and its special tokens.
    """
    if not limit:
        return params
    most = min(limit + info.special_single, info.window)
    return replace(params, truncate=most if params.truncate in (None, -1) else min(params.truncate or 0, most))


async def _vectors(
    request: ScoreRequest, texts: Sequence[str], params: PoolingParams, param: str, first: int = 0
) -> tuple[list[bytes], int]:
    """Returns the vectors of each text, and the number of tokens computed. Equal texts are computed once.

    Args:
        request: The request.
        texts: The texts.
        params: How they are encoded.
        param: The field that has them, for errors.
        first: The index of the first of them in that field.

    Raises:
        RequestError: The model refuses a text, or fails.
    """
    numbers: dict[str, int] = {}
    for number, text in enumerate(texts, first):
        numbers.setdefault(text, number)
    of_field = [*numbers.values()] if first or len(texts) > 1 else []
    outputs = await request.call.encode([*numbers], params, param, of_field)
    found = dict(zip(numbers, outputs, strict=True))
    return [found[text].data for text in texts], sum(output.tokens for output in outputs)


# --- vectors of tokens


async def _by_tokens(request: ScoreRequest, info: PoolingInfo) -> Scores:
    await request.call.load_numpy()
    from .. import vectors

    base, most = request.call.params(info, output=PER_TOKEN), request.call.model.options.max_pooling_tokens
    queries, tokens = await _vectors(request, request.queries, _cut(base, request.max_query, info), request.query_param)
    of_documents = _cut(base, request.max_document, info)
    values: list[float] = []
    for some in _groups(request.documents, info):
        start = len(values)
        documents, added = await _vectors(request, some, of_documents, request.document_param, start)
        tokens += added
        if tokens > most:
            raise BadRequest(
                f"the inputs together have more than {most} tokens, this server's limit (--max_pooling_tokens)",
                param=request.document_param,
            )
        left = queries * len(documents) if len(queries) == 1 else queries[start : start + len(documents)]
        pairs = list(zip(left, documents, strict=True))
        size = sum(map(len, documents))
        values += await request.call.services.offload.run(size, partial(vectors.max_sims, pairs, info.dimensions))
    return Scores(values, tokens)


def _groups(texts: Sequence[str], info: PoolingInfo) -> Iterator[list[str]]:
    """Yields the texts in order, in groups of about NUMBERS_AT_ONCE numbers; a byte counts as a token."""
    group: list[str] = []
    most = left = NUMBERS_AT_ONCE // max(1, info.dimensions)
    for text in texts:
        size = min(len(text.encode()) + info.special_single, info.window)
        if group and size > left:
            yield group
            group, left = [], most
        group.append(text)
        left -= size
    yield group


# --- pairs


async def _by_pairs(request: ScoreRequest, info: PoolingInfo) -> Scores:
    fields = request.call.values
    raw = request.ovms and info.pair == IN_TEMPLATE and fields["use_activation"] is not False
    params = request.call.params(info, instruction=request.instruction, **({"activation": False} if raw else {}))
    pairs, numbers = await _pairs(request, info)
    several = numbers if len(request.documents) > 1 else []
    outputs = await request.call.encode(pairs, params, request.document_param, several)
    best = [float("-inf")] * len(request.documents)
    values = array("f", b"".join([output.data[-FLOAT_BYTES:] for output in outputs]))  # the last number of each
    for number, value in zip(numbers, values, strict=True):
        best[number] = max(best[number], value)
    return Scores([_sigmoid(one) for one in best] if raw else best, sum([output.tokens for output in outputs]))


def _sigmoid(value: float) -> float:
    power = math.exp(-abs(value))
    return 1 / (1 + power) if value >= 0 else power / (1 + power)


async def _pairs(request: ScoreRequest, info: PoolingInfo) -> tuple[list[PoolingInput], list[int]]:
    """Returns the pairs to compute, and each one's document number; a document cut into pieces has several pairs."""
    if request.call.model.config.chat_template:
        return await _rendered(request), list(range(len(request.documents)))
    if info.pair != IN_TEMPLATE:
        left = await cut_texts(request.call, request.queries, request.max_query, request.query_param)
        right = await cut_texts(request.call, request.documents, request.max_document, request.document_param)
        return _joined(left, right)
    if request.chunks is None and not request.max_query and not request.max_document:
        return _joined(request.queries, request.documents)
    queries = _kept(await tokens_of(request.call, request.queries, request.query_param), request.max_query)
    if request.chunks is None:
        documents = _kept(
            await tokens_of(request.call, request.documents, request.document_param), request.max_document
        )
        return _joined(queries, documents)
    return await chunked(request.call, queries[0], request.documents, info, request.chunks, request.max_document)


async def _rendered(request: ScoreRequest) -> list[PoolingInput]:
    """Renders each pair as a text with the operator's score template.

    The template has vLLM's form: messages of the roles query and document, and the variable instruction. Raises
    RequestError if a pair cannot be rendered.
    """
    left = await cut_texts(request.call, request.queries, request.max_query, request.query_param)
    right = await cut_texts(request.call, request.documents, request.max_document, request.document_param)
    kwargs = {**request.template_kwargs, **({"instruction": request.instruction} if request.instruction else {})}
    roles = frozenset(("query", "document"))
    base = ChatPrompt(messages=[], template_kwargs=kwargs, add_generation_prompt=False, own_roles=roles)
    prompts = (
        base.with_messages([{"role": "query", "content": query}, {"role": "document", "content": document}])
        for query, document in zip(left * len(right) if len(left) == 1 else left, right, strict=True)
    )
    return [*await rendered(request.call, prompts)]


def _kept(tokens: list[Tokens], most: int) -> list[Tokens]:
    return [ids[:most] for ids in tokens] if most else tokens


def _joined(queries: Sequence[TextOrTokens], documents: Sequence[TextOrTokens]) -> tuple[list[PoolingInput], list[int]]:
    one = len(queries) == 1
    pairs: list[PoolingInput] = [(queries[0 if one else i], document) for i, document in enumerate(documents)]
    return pairs, list(range(len(pairs)))
