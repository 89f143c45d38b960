"""POST /embed: returns the vectors of the inputs as a plain list of lists.

https://huggingface.github.io/text-embeddings-inference/, for its clients (LlamaIndex, huggingface_hub, Haystack). They
name no model, so the only model for embeddings is used. /v1/embed and /v2/embed are Cohere's.
"""

from __future__ import annotations

from ...api.fields import Field, FieldSet, RouteDoc
from ...api.schemas import all_of
from ...api.services import Services
from ...types import Json, Request, Response
from ..pooling import fields as shared
from ..pooling.api.encoding import FLOATS, bare_list
from ..pooling.api.inputs import read_inputs
from ..pooling.api.request import Inputs, PoolingRequest, dimensions, items_of, parse
from ..pooling.feature import PoolingOptions
from ..pooling.types import EMBED

FIELDS = FieldSet((
    *shared.COMMON,
    Field("inputs", "any",
        "a string, an array of strings or token ids, or an array of arrays of token ids", required=True,
        schema=shared.TEXTS_OR_TOKENS),
    *shared.TEI_TRUNCATION,
    *shared.TRUNCATION,
    shared.USE_ACTIVATION,
    shared.NORMALIZE,
    shared.DIMENSIONS,
    *shared.PROMPTS,
))  # fmt: skip


@RouteDoc("Vectors in the form of text-embeddings-inference", body=FIELDS, rules=all_of("inputs"), answer="array")
async def handle(request: Request, services: Services) -> Response:
    call, inputs = await services.parse_body(request, _read)
    info = call.info((EMBED,))
    params = call.params(info, dimensions=dimensions(call.values["dimensions"], call, info))
    outputs = await call.encode(await items_of(call, inputs, info), params, "inputs")
    return await call.render(outputs, lambda: bare_list(map(FLOATS.json, outputs), call.headers))


def _read(body: Json, services: Services) -> tuple[PoolingRequest, Inputs]:
    call = parse(body, services, fields=FIELDS)
    call = call.with_values(shared.tei_truncation(call.values))
    most = services.config.of(PoolingOptions).max_pooling_inputs
    return call, Inputs(read_inputs(call.values["inputs"], most, "inputs"))
