"""POST …/embeddings: a vector for each input.

https://platform.openai.com/docs/api-reference/embeddings, OVMS's /v3/embeddings and vLLM's fields of the same endpoint,
whose messages may have images.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ....api.fields import Field, FieldSet, Values
from ....api.services import Services
from ....errors import BadRequest
from ....types import Json, Request, Response
from .. import fields as shared
from ..types import BITS, EMBED, PooledOutput
from .chunks import encode_in_pieces
from .encoding import ENCODING, NUMBER_TYPES, Encoding, check_bits, results_response
from .request import Inputs, PoolingRequest, dimensions, items_of, parse_with_inputs

TASK = Field("task", "string", "(Jina) other name of prompt_name; no effect if the model has no prompts")
SIDES = {"NONE": None, "END": "right", "START": "left"}
"""NVIDIA's values of truncate, and the side that each cuts off."""


def _truncate(value: Any) -> bool | str:
    if isinstance(value, bool) or (isinstance(value, str) and value in SIDES):
        return value
    raise BadRequest(f"truncate must be a boolean or one of: {', '.join(SIDES)}", param="truncate")


OTHER_NAMES = (
    Field("normalized", "bool", "(Jina) another name of use_activation"),
    Field("output_dimension", "int", "(Voyage, Mistral) another name of dimensions", low=1, high=shared.MAX_DIMENSIONS),
    Field("truncate", "any", "(Jina, NVIDIA) cut inputs that are too long: true, or the side END or START",
        read=_truncate, schema={"enum": [True, False, *SIDES]}),
    Field("truncation", "bool", "(Voyage) cut inputs that are too long"),
)  # fmt: skip
"""Fields of other servers' endpoints of this name, which have the same effect as others."""
FIELDS = FieldSet((
    *shared.INPUTS, shared.NORMALIZE, *ENCODING, *NUMBER_TYPES, shared.DIMENSIONS, *shared.PROMPTS, TASK, *OTHER_NAMES
))  # fmt: skip


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
    wanted = shared.agreed(call.values, "dimensions", "output_dimension")
    size = dimensions(wanted, call, info, "dimensions" if call.values["dimensions"] else "output_dimension")
    types = {name: call.values[name] for name in ("output_dtype", "embedding_type") if call.values[name] in BITS}
    check_bits(types.values(), size or info.dimensions, next(iter(types), ""))
    params = call.params(info, dimensions=size, add_special_tokens=inputs.adds_special(info))
    return await encode_in_pieces(call, await items_of(call, inputs, info), params, info, inputs.param)


def parse_embeddings(body: Json, services: Services) -> tuple[PoolingRequest, Inputs, Encoding]:
    """Reads the body of a request for embeddings. Raises RequestError."""
    call, inputs = parse_with_inputs(body, services, fields=FIELDS)
    return call.with_values(_truncation(call.values)), inputs, Encoding.of(call.values)


def _truncation(values: Values) -> Json:
    """Translates truncate and truncation to vLLM's fields."""
    truncate = values["truncate"]
    side = SIDES.get(truncate) if isinstance(truncate, str) else None
    return shared.truncation(values, truncate is True or bool(side or values["truncation"]), side)
