"""POST /api/embed: vectors of length 1 for one or several texts; POST /api/embeddings: one vector as it is computed.

https://docs.ollama.com/api/embed. Without a text the model is loaded.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import orjson

from ...errors import BadRequest
from ...models.pooling_model import PoolingModel
from ...pooling_types import EMBED, PooledOutput
from ...types import Json, Request, Response
from .. import schemas
from ..fields import Field, FieldSet, Values, read
from ..generation.common_fields import KEEP_ALIVE
from ..pooling import fields as shared
from ..pooling.encoding import FLOATS
from ..pooling.inputs import check_count
from ..pooling.long_inputs import encode_in_pieces
from ..pooling.request import PoolingRequest, dimensions, parse
from ..response import json, json_bytes
from ..route_doc import RouteDoc
from ..services import Services
from . import names
from .answer import nanoseconds

monotonic = time.monotonic
COMMON = (
    shared.MODEL,
    KEEP_ALIVE,
    Field(name="options", kind="object", help="accepted, without effect"),
)
EMBED_FIELDS = FieldSet((
    *COMMON,
    Field(name="input", kind="any", help="a text, or several", schema=schemas.any_of(schemas.STRING, schemas.array(
        schemas.STRING))),
    Field(name="truncate", kind="bool", default=True, help="false: a text that is too long is an error"),
    Field(name="dimensions", kind="int", low=0, high=shared.MAX_DIMENSIONS, help=shared.DIMENSIONS.help + "; 0: all"),
))  # fmt: skip
EMBEDDINGS_FIELDS = FieldSet((*COMMON, Field(name="prompt", kind="string", help="a text", default="")))
AS_EMBEDDINGS = FieldSet((*shared.INPUTS, shared.DIMENSIONS))
FIELDS = EMBED_FIELDS


@dataclass(frozen=True, slots=True)
class OllamaVectors:
    """A body. name: of the model, as the client wrote it. texts: each becomes one vector."""

    name: str
    call: PoolingRequest
    texts: list[str]


@RouteDoc("Vectors, in Ollama's form", body=EMBED_FIELDS)
async def handle(request: Request, services: Services) -> Response:
    began = monotonic()
    asked = await services.parse_body(request, _read_several)
    outputs, loaded_s = await _encoded(asked, began)
    counts = {
        "total_duration": nanoseconds(monotonic() - began),
        "load_duration": nanoseconds(loaded_s),
        "prompt_eval_count": sum(output.tokens for output in outputs),
    }
    head = orjson.dumps({"model": asked.name, **(counts if outputs else {})})

    def full() -> Response:
        vectors = b",".join(FLOATS.json(output) for output in outputs)
        return json_bytes(b'%b,"embeddings":[%b]}' % (head[:-1], vectors), asked.call.headers)

    return await asked.call.render(outputs, full)


@RouteDoc("A vector, in Ollama's older form", body=EMBEDDINGS_FIELDS)
async def handle_one(request: Request, services: Services) -> Response:
    asked = await services.parse_body(request, _read_one)
    outputs, _ = await _encoded(asked, monotonic())
    if not outputs:
        return json({"embedding": []}, asked.call.headers)
    return json_bytes(b'{"embedding":%b}' % FLOATS.json(outputs[0]), asked.call.headers)


async def _encoded(asked: OllamaVectors, began: float) -> tuple[list[PooledOutput], float]:
    """The results, and the seconds until the model was loaded. Raises RequestError."""
    call = asked.call
    with await call.model.hold():
        loaded_s = monotonic() - began
        info = call.info((EMBED,))
        if not asked.texts:
            return [], loaded_s
        size = dimensions(call.values["dimensions"], call, info)
        params = call.params(info, dimensions=size, add_special_tokens=True)
        outputs = await encode_in_pieces(call, list(asked.texts), params, info)
    await call.load_numpy()
    return outputs, loaded_s


def _read_several(body: Json, services: Services) -> OllamaVectors:
    values = read(EMBED_FIELDS, body)
    texts = values["input"] if isinstance(values["input"], list) else [values["input"] or ""]
    if not all(isinstance(text, str) for text in texts):
        raise BadRequest("input must be a text or an array of texts", param="input")
    texts = texts if isinstance(values["input"], list) else [text for text in texts if text]
    if texts:
        check_count(len(texts), services.config.max_pooling_inputs, "input")
    more = {"dimensions": values["dimensions"] or None, "use_activation": True}
    return _request(
        values, body, services, texts, more | ({"truncate_prompt_tokens": -1} if values["truncate"] else {})
    )


def _read_one(body: Json, services: Services) -> OllamaVectors:
    values = read(EMBEDDINGS_FIELDS, body)
    return _request(values, body, services, [values["prompt"]] if values["prompt"] else [], {})


def _request(values: Values, body: Json, services: Services, texts: list[str], more: dict[str, Any]) -> OllamaVectors:
    name = names.find(values, services.registry, PoolingModel)
    given = {"model": name, "keep_alive": body.get(KEEP_ALIVE.name), **more}
    return OllamaVectors(values["model"] or name, parse(given, services, fields=AS_EMBEDDINGS), texts)
