"""POST /score and /v1/score, vLLM's endpoint: the similarity or relevance of each pair of texts.

A request has one text on each side, one on the first side and several on the second, or equally many on both. The
fields of the two sides have several names. The scores are in the order of the pairs.
"""

from __future__ import annotations

from functools import partial

from ....api.fields import Field, FieldSet, RouteDoc
from ....api.response import written
from ....api.router import follows_ovms
from ....api.schemas import all_of, any_of, array
from ....api.services import Services
from ....errors import BadRequest
from ....types import Json, Request, Response
from ..feature import PoolingOptions
from .encoding import ENTRY_BYTES, shortest, usage
from .pair_fields import PAIR_FIELDS, TEXT_OF_PAIR, limits, side
from .request import PoolingRequest, parse
from .scoring import ScoreRequest, Scores, score

SIDES = (("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2"))
"""Names of the two sides."""
_SIDE = any_of(TEXT_OF_PAIR, array(TEXT_OF_PAIR, 1))
_NAMES = tuple(dict.fromkeys(name for pair in SIDES for name in pair))


def _field(name: str, help: str) -> Field:  # noqa: A002 - as in Field
    return Field(name, "any", help, schema=_SIDE)


FIELDS = FieldSet(
    (
        *PAIR_FIELDS,
        _field("queries", "a text or an array of texts: strings, or objects with content"),
        _field("documents", "text or array of texts with which each query is compared"),
        *(_field(name, f"another name of {'queries' if name.endswith('1') else 'documents'}") for name in
          ("items", "text_1", "text_2", "data_1", "data_2")),
    )
)  # fmt: skip


def _only(*names: str) -> Json:
    """Returns a JSON Schema for bodies that name the two sides in this way, and in no other of the possible ways."""
    return all_of(*names) | {"not": any_of(*(all_of(name) for name in _NAMES if name not in names))}


@RouteDoc("A score for each pair of texts", body=FIELDS, rules=any_of(*(_only(*names) for names in SIDES)))
async def handle(request: Request, services: Services) -> Response:
    parsed = await services.parse_body(request, partial(parse_score, ovms=follows_ovms(request)))
    scores = await score(parsed)
    size = ENTRY_BYTES * len(scores.values)
    return await written(services.offload, size, lambda: full(parsed.call, scores), parsed.call.headers)


def parse_score(body: Json, services: Services, *, ovms: bool = False) -> ScoreRequest:
    """Reads the body of a score request. Raises RequestError."""
    call = parse(body, services, fields=FIELDS)
    values, most = call.values, services.config.of(PoolingOptions).max_pooling_inputs
    names = next((pair for pair in SIDES if all(values[name] is not None for name in pair)), None)
    if names is None:
        given = next((name for name in _NAMES if values[name] is not None), "queries")
        ways = ", ".join(" and ".join(pair) for pair in SIDES)
        raise BadRequest(f"two sides to compare are needed, under one of these pairs of names: {ways}", param=given)
    if other := next((name for name in _NAMES if values[name] is not None and name not in names), ""):
        raise BadRequest(
            f"{' and '.join(names)} cannot be used together with {other}: exactly two sides are compared", param=other
        )
    first, second = (side(values[name], name, most) for name in names)
    if not first:
        raise BadRequest("At least one text element must be given", param=names[0])
    if not second:
        raise BadRequest("At least one text_pair element must be given", param=names[1])
    if len(first) not in (1, len(second)):
        raise BadRequest("Input lengths must be either 1:1, 1:N or N:N", param=names[0])
    return ScoreRequest(
        call=call,
        queries=first,
        documents=second,
        query_param=names[0],
        document_param=names[1],
        ovms=ovms,
        **limits(values),
    )


def full(call: PoolingRequest, scores: Scores) -> Json:
    """Returns the response object with the list of scores."""
    data = [{"index": i, "object": "score", "score": shortest(value)} for i, value in enumerate(scores.values)]
    return {**call.envelope("score"), "object": "list", "data": data, "usage": usage(scores.tokens)}
