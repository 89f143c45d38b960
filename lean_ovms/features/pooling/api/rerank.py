"""POST /rerank, /v1/rerank, /v2/rerank, …: documents in the order of their relevance to a query.

The fields are those of OVMS's /v3/rerank, https://docs.cohere.com/reference/rerank, https://jina.ai/reranker and vLLM.
Where these differ, paths under /v3 follow OVMS and the others vLLM. A body with `texts` has the form of llama.cpp and
of https://huggingface.github.io/text-embeddings-inference (not under /v3).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from ....api.fields import INT64_MAX, Field, FieldSet, RouteDoc
from ....api.response import written
from ....api.router import follows_ovms
from ....api.schemas import all_of, any_of, array
from ....api.services import Services
from ....errors import BadRequest
from ....types import Json, Request, Response
from .. import fields as shared
from .chunks import ChunkLimits
from .encoding import ENTRY_BYTES, shortest
from .inputs import content_text
from .pair_fields import DOCUMENT, PAIR_FIELDS, TEXT_OF_PAIR, limits
from .request import parse
from .scoring import ScoreRequest, Scores, score


def _rank_fields(value: list[Any]) -> list[str]:
    if not all(isinstance(name, str) for name in value):
        raise BadRequest("rank_fields array element is not a string", param="rank_fields")
    return value


_DOCUMENTS = any_of(DOCUMENT, array(DOCUMENT, 1))
FIELDS = FieldSet((
    *PAIR_FIELDS,
    Field("query", "any", "a string, or an object with content: text parts", required=True, schema=TEXT_OF_PAIR),
    Field("documents", "any", 'strings, objects with "text" (and "title"), or objects with content: text parts',
        schema=_DOCUMENTS),
    Field("texts", "any",
        "(text-embeddings-inference) other name of documents, with which the response has its form (not under /v3)",
        schema=_DOCUMENTS),
    Field("raw_scores", "bool", "(text-embeddings-inference) return scores before the sigmoid"),
    Field("return_text", "bool", "(text-embeddings-inference) return the texts with the results"),
    *shared.TEI_TRUNCATION,
    Field("top_n", "int", "maximum number of results; 0 for all", low=0, high=INT64_MAX,
        wrong="top_n accepts integer values"),
    Field("return_documents", "bool", "return the texts with the results (default true; false under /v3)",
        wrong="return_documents accepts boolean values"),
    Field("rank_fields", "array", "accepted without effect", wrong="rank_fields is not an array", read=_rank_fields,
        schema={"items": {"type": "string"}}),
    Field("max_chunks_per_doc", "int",
        "maximum number of chunks of a long document that a cross-encoder scores; the best score counts; 0 for all",
        low=0,
        high=INT64_MAX, wrong="max_chunks_per_doc accepts integer values"),
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class RerankRequest:
    """The body of a request to rank documents."""

    score: ScoreRequest
    """The query and the documents that are scored."""
    shown: bool
    """Whether each result contains its document."""
    bare: bool = False
    """Whether the response is just the list of results, as with text-embeddings-inference and llama.cpp."""


@RouteDoc(
    "Rank documents by their relevance for a query",
    body=FIELDS,
    rules=all_of("query") | {"oneOf": [all_of("documents"), all_of("texts")]},
    answer="object or array",
)
async def handle(request: Request, services: Services) -> Response:
    cohere = request.path.rstrip("/").endswith("/v2/rerank")
    rerank = await services.parse_body(request, partial(_read, ovms=follows_ovms(request), cohere=cohere))
    scores = await score(rerank.score)
    size = ENTRY_BYTES * len(scores.values) + (sum(map(len, rerank.score.documents)) if rerank.shown else 0)
    make = partial(bare if rerank.bare else full, rerank, scores)
    return await written(services.offload, size, make, rerank.score.call.headers)


def _read(body: Json, services: Services, *, ovms: bool, cohere: bool) -> RerankRequest:
    call = parse(body, services, fields=FIELDS)
    values = call.values
    call = call.with_values(shared.tei_truncation(values) | ({"use_activation": False} if values["raw_scores"] else {}))
    query = _query(values["query"], ovms=ovms)
    if values["documents"] is not None and values["texts"] is not None:
        raise BadRequest("documents and texts cannot be used together", param="texts")
    name = "documents" if values["documents"] is not None else "texts"
    documents = _documents(values[name], name, ovms=ovms)
    most = call.model.options.max_allowed_chunks
    if len(documents) > most:
        raise BadRequest("Number of documents exceeds max_allowed_chunks", param=name, code="too_many_inputs")
    pieces = values["max_chunks_per_doc"]
    in_pieces = pieces is not None or (ovms and values["truncate_prompt_tokens"] is None)
    of_tei = name == "texts" and not ovms
    shown = bool(values["return_text"]) if of_tei else values["return_documents"]
    parsed = ScoreRequest(
        call=call,
        queries=[query],
        documents=documents,
        query_param="query",
        document_param=name,
        chunks=ChunkLimits(pieces=most, pieces_per_document=pieces or 0) if in_pieces else None,
        cuts=cohere,
        ovms=ovms,
        **limits(values),
    )
    return RerankRequest(parsed, not ovms if shown is None else shown, of_tei)


def _query(value: Any, *, ovms: bool) -> str:
    if value is None:
        raise BadRequest("query field is missing in request", param="query")
    if not isinstance(value, (str, dict)) or (ovms and not isinstance(value, str)):
        raise BadRequest("query is not a string", param="query")
    return content_text(value, "query")


def _documents(given: Any, name: str, *, ovms: bool) -> list[str]:
    if given is None:
        raise BadRequest("documents field is missing in request", param="documents")
    if isinstance(given, (str, dict)) and not ovms:
        given = [given]
    if not isinstance(given, list):
        raise BadRequest(f"{name} is not an array", param=name)
    if not given:
        raise BadRequest(f"{name} array should not be empty", param=name)
    kinds = {type(document) for document in given}
    if not kinds <= {str, dict}:
        raise BadRequest(f"{name} array element is neither string nor object", param=name)
    if ovms and len(kinds) > 1:
        raise BadRequest(f"all {name} have to be the same type (string or objects)", param=name)
    return [
        document if isinstance(document, str) else _object(document, f"{name}[{i}]") for i, document in enumerate(given)
    ]


def _object(document: Json, param: str) -> str:
    """Returns the text of a document that is an object: its content, or its text with its title as the first line."""
    if "content" in document and "text" not in document:
        return content_text(document, param)
    title, text = document.get("title"), document.get("text")
    if title is not None and not isinstance(title, str):
        raise BadRequest("document title field have to be string", param=param)
    if text is None:
        raise BadRequest("document text field is missing", param=param)
    if not isinstance(text, str):
        raise BadRequest("document text field have to be string", param=param)
    return f"{title}\n{text}" if title else text


def bare(rerank: RerankRequest, scores: Scores) -> list[Json]:
    """Returns the list of results, best first; results of equal scores keep the order of their documents."""
    order = sorted(enumerate(scores.values), key=lambda scored: -scored[1])
    return [_result(rerank, index, value) for index, value in order[: rerank.score.call.values["top_n"] or None]]


def full(rerank: RerankRequest, scores: Scores) -> Json:
    """Returns the response object: the results, id, model and usage."""
    call = rerank.score.call
    envelope = call.envelope("rerank")
    return {
        "id": envelope["id"],
        "model": envelope["model"],
        "usage": {"prompt_tokens": scores.tokens, "total_tokens": scores.tokens},
        "results": bare(rerank, scores),
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    }


def _result(rerank: RerankRequest, index: int, value: float) -> Json:
    text = rerank.score.documents[index]
    if rerank.bare:
        return {"index": index, "score": shortest(value), **({"text": text} if rerank.shown else {})}
    document = {"document": {"text": text}} if rerank.shown else {}
    return {"index": index, "relevance_score": shortest(value), **document}
