"""POST /embed, /embed_all and /embed_sparse: the vectors of the inputs, or of each of their tokens, as plain lists.

https://huggingface.github.io/text-embeddings-inference/, for its clients (LlamaIndex, huggingface_hub, Haystack). They
name no model, so the only model for embeddings is used. /v1/embed and /v2/embed are Cohere's.
"""

from __future__ import annotations

from functools import partial

from ...api.fields import Field, FieldSet, RouteDoc
from ...api.schemas import all_of
from ...api.services import Services
from ...types import Json, Request, Response
from ..pooling import fields as shared
from ..pooling.api.encoding import FLOATS, FLOATS_OF_TOKENS, bare_list
from ..pooling.api.inputs import read_inputs
from ..pooling.api.request import Inputs, PoolingRequest, dimensions, items_of, parse
from ..pooling.feature import PoolingOptions
from ..pooling.types import EMBED, PER_TOKEN, SPARSE, TOKEN_EMBED

_BOTH = (
    *shared.COMMON,
    Field("inputs", "any",
        "a string, an array of strings or token ids, or an array of arrays of token ids", required=True,
        schema=shared.TEXTS_OR_TOKENS),
    *shared.TEI_TRUNCATION,
    *shared.TRUNCATION,
    shared.USE_ACTIVATION,
    shared.NORMALIZE,
    *shared.PROMPTS,
)  # fmt: skip
"""The fields of all three endpoints."""
FIELDS = FieldSet((*_BOTH, shared.DIMENSIONS))
FIELDS_OF_ALL = FieldSet(_BOTH)


@RouteDoc("Vectors of texts as plain lists", body=FIELDS, rules=all_of("inputs"), answer="array")
async def handle(request: Request, services: Services) -> Response:
    call, inputs = await services.parse_body(request, partial(_read, fields=FIELDS))
    info = call.info((EMBED,))
    params = call.params(info, dimensions=dimensions(call.values["dimensions"], call, info))
    outputs = await call.encode(await items_of(call, inputs, info), params, inputs.param)
    return await call.render(outputs, lambda: bare_list(map(FLOATS.json, outputs), call.headers))


@RouteDoc(
    "The vectors of all tokens",
    body=FIELDS_OF_ALL,
    rules=all_of("inputs"),
    answer="array",
)
async def handle_all(request: Request, services: Services) -> Response:
    call, inputs = await services.parse_body(request, partial(_read, fields=FIELDS_OF_ALL))
    info = call.info((EMBED, TOKEN_EMBED))
    raw = info.kind == EMBED and shared.activation(call.values) is None  # as there, unless the request says otherwise
    params = call.params(info, output=PER_TOKEN, **({"normalize": False} if raw else {}))
    outputs = await call.encode(await items_of(call, inputs, info), params, inputs.param)
    return await call.render(outputs, lambda: bare_list(map(FLOATS_OF_TOKENS.json, outputs), call.headers))


@RouteDoc(
    "The weights of tokens in texts, by a SPLADE model", body=FIELDS_OF_ALL, rules=all_of("inputs"), answer="array"
)
async def handle_sparse(request: Request, services: Services) -> Response:
    call, inputs = await services.parse_body(request, partial(_read, fields=FIELDS_OF_ALL))
    info = call.info((SPARSE,))
    outputs = await call.encode(await items_of(call, inputs, info), call.params(info), inputs.param)

    def work() -> Response:
        from ..pooling import vectors

        return bare_list([vectors.sparse_json(output.data) for output in outputs], call.headers)

    return await call.render(outputs, work)


def _read(body: Json, services: Services, *, fields: FieldSet) -> tuple[PoolingRequest, Inputs]:
    call = parse(body, services, fields=fields)
    call = call.with_values(shared.tei_truncation(call.values))
    most = services.config.of(PoolingOptions).max_pooling_inputs
    return call, Inputs(items=read_inputs(call.values["inputs"], most, "inputs"), param="inputs")
