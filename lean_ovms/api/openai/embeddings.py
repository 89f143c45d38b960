"""POST …/embeddings: a vector for each input.

https://platform.openai.com/docs/api-reference/embeddings, OVMS's /v3/embeddings and vLLM's fields of the same endpoint,
whose messages may have images.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ...pooling_types import EMBED, PooledOutput
from ...types import Json, Request, Response
from ..fields import FieldSet
from ..pooling import fields as shared
from ..pooling.encoding import ENCODING, Encoding, results_response
from ..pooling.long_inputs import encode_in_pieces
from ..pooling.request import (
    Inputs,
    PoolingRequest,
    dimensions,
    items_of,
    parse,
    parse_inputs,
)
from ..routes import follows_ovms
from ..services import Services

FIELDS = FieldSet((*shared.INPUTS, shared.NORMALIZE, *ENCODING, shared.DIMENSIONS, *shared.PROMPTS))


@dataclass(slots=True)
class EmbeddingRequest:
    """A body. Not changed once it is built."""

    call: PoolingRequest
    inputs: Inputs
    encoding: Encoding


@shared.vectors_doc("A vector for each input", FIELDS)
async def handle(request: Request, services: Services) -> Response:
    parsed = await services.parse_body(request, partial(parse_embeddings, ovms=follows_ovms(request)))
    outputs = await embed(parsed)
    if parsed.encoding.needs_numpy:
        await parsed.call.load_numpy()
    return await parsed.call.render(outputs, lambda: full(parsed, outputs))


async def embed(parsed: EmbeddingRequest) -> list[PooledOutput]:
    """The vector of each input. Raises RequestError."""
    call, inputs = parsed.call, parsed.inputs
    info = call.info((EMBED,))
    size = dimensions(call.values["dimensions"], call, info)
    params = call.params(info, dimensions=size, add_special_tokens=inputs.adds_special(info))
    return await encode_in_pieces(call, await items_of(call, inputs, info), params, info)


def parse_embeddings(body: Json, services: Services, *, ovms: bool = False) -> EmbeddingRequest:
    """Raises RequestError."""
    call = parse(body, services, fields=FIELDS, ovms=ovms)
    return EmbeddingRequest(call, parse_inputs(call.values, call.config), Encoding.of(call.values))


def full(parsed: EmbeddingRequest, outputs: list[PooledOutput]) -> Response:
    """The list of embeddings, or their bytes."""
    call, encoding = parsed.call, parsed.encoding
    envelope = call.envelope("embd")
    return results_response(encoding, outputs, envelope, call.headers, kind=b"embedding", member=b"embedding")
