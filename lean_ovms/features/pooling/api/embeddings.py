"""POST …/embeddings: a vector for each input.

https://platform.openai.com/docs/api-reference/embeddings, OVMS's /v3/embeddings and vLLM's fields of the same endpoint,
whose messages may have images.
"""

from __future__ import annotations

from functools import partial

from ....api.fields import Field, FieldSet
from ....api.services import Services
from ....types import Json, Request, Response
from .. import fields as shared
from ..types import EMBED, PooledOutput
from .chunks import encode_in_pieces
from .encoding import ENCODING, Encoding, results_response
from .request import Inputs, PoolingRequest, dimensions, items_of, parse_with_inputs

TASK = Field("task", "string", "(Jina) other name of prompt_name; no effect if the model has no prompts")
FIELDS = FieldSet((*shared.INPUTS, shared.NORMALIZE, *ENCODING, shared.DIMENSIONS, *shared.PROMPTS, TASK))


@shared.vectors_doc("A vector for each input", FIELDS)
async def handle(request: Request, services: Services) -> Response:
    call, inputs, encoding = await services.parse_body(request, parse_embeddings)
    outputs = await embed(call, inputs)
    return await call.render(outputs, partial(respond, call, encoding, outputs), numpy=encoding.needs_numpy)


respond = partial(results_response, prefix="embd", kind=b"embedding", member=b"embedding")


async def embed(call: PoolingRequest, inputs: Inputs) -> list[PooledOutput]:
    """Returns the vector of each input. Raises RequestError."""
    info = call.info((EMBED,))
    if info.prompts:
        call = call.with_values({"jina_task": call.values["task"]})
    size = dimensions(call.values["dimensions"], call, info)
    params = call.params(info, dimensions=size, add_special_tokens=inputs.adds_special(info))
    return await encode_in_pieces(call, await items_of(call, inputs, info), params, info, inputs.param)


def parse_embeddings(body: Json, services: Services) -> tuple[PoolingRequest, Inputs, Encoding]:
    """Reads the body of a request for embeddings. Raises RequestError."""
    call, inputs = parse_with_inputs(body, services, fields=FIELDS)
    return call, inputs, Encoding.of(call.values)
