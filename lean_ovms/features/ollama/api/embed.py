"""POST /api/embed: vectors of length 1 for one or several texts. POST /api/embeddings: one vector, not normalized.

https://docs.ollama.com/api/embed. A request without a text only loads the model.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import orjson

from ....api import schemas
from ....api.fields import Field, FieldSet, RouteDoc, Values, read
from ....api.generation import common_fields
from ....api.generation.common_fields import KEEP_ALIVE
from ....api.response import json, json_bytes
from ....api.services import Services
from ....errors import BadRequest
from ....types import Json, Request, Response
from ...pooling import fields as shared
from ...pooling.api.chunks import encode_in_pieces
from ...pooling.api.encoding import FLOATS
from ...pooling.api.inputs import check_count
from ...pooling.api.request import PoolingRequest, dimensions, parse
from ...pooling.feature import PoolingOptions
from ...pooling.model import PoolingModel
from ...pooling.types import EMBED, PooledOutput
from . import names
from .answer import nanoseconds
from .body import parse_body

COMMON = (shared.MODEL, KEEP_ALIVE, Field("options", "object", "accepted without effect"))
EMBED_FIELDS = FieldSet((
    *COMMON,
    Field("input", "any",
        "a string, or an array of strings", schema=schemas.any_of(schemas.STRING, schemas.array(schemas.STRING))),
    Field("truncate", "bool", "cut texts that are too long; false makes them an error", default=True),
    Field("dimensions", "int", shared.DIMENSIONS.help + "; 0 for all", low=0, high=shared.MAX_DIMENSIONS),
))  # fmt: skip
EMBEDDINGS_FIELDS = FieldSet((*COMMON, Field("prompt", "string", "a text", default="")))
AS_EMBEDDINGS = FieldSet((*shared.INPUTS, shared.DIMENSIONS))
FIELDS = EMBED_FIELDS


@dataclass(frozen=True, slots=True)
class OllamaVectors:
    """The parsed body of a request for vectors."""

    name: str
    """The name of the model as the client wrote it."""
    call: PoolingRequest
    """The request to the model."""
    texts: list[str]
    """The texts, each of which gives one vector."""
    param: str
    """The field that has the texts, for errors."""


@RouteDoc("Vectors, in Ollama's form", body=EMBED_FIELDS)
async def handle(request: Request, services: Services) -> Response:
    began = time.monotonic()
    body = await parse_body(request, services, _read_several)
    outputs, loaded_s = await _encoded(body, began)
    counts = {
        "total_duration": nanoseconds(time.monotonic() - began),
        "load_duration": nanoseconds(loaded_s),
        "prompt_eval_count": sum(output.tokens for output in outputs),
    }
    head = orjson.dumps({"model": body.name, **(counts if outputs else {})})

    def full() -> Response:
        vectors = b",".join(FLOATS.json(output) for output in outputs)
        return json_bytes(b'%b,"embeddings":[%b]}' % (head[:-1], vectors), body.call.headers)

    return await body.call.render(outputs, full, numpy=bool(outputs))


@RouteDoc("A vector, in Ollama's older form", body=EMBEDDINGS_FIELDS)
async def handle_one(request: Request, services: Services) -> Response:
    body = await parse_body(request, services, _read_one)
    outputs, _ = await _encoded(body, time.monotonic())
    if not outputs:
        return json({"embedding": []}, body.call.headers)
    work = lambda: json_bytes(b'{"embedding":%b}' % FLOATS.json(outputs[0]), body.call.headers)  # noqa: E731
    return await body.call.render(outputs, work)


async def _encoded(body: OllamaVectors, began: float) -> tuple[list[PooledOutput], float]:
    """Returns the results, and the seconds until the model was loaded. Raises RequestError."""
    call = body.call
    with await call.model.hold():
        loaded_s = time.monotonic() - began
        info = call.info((EMBED,))
        if not body.texts:
            return [], loaded_s
        size = dimensions(call.values["dimensions"], call, info)
        params = call.params(info, dimensions=size, add_special_tokens=True)
        return await encode_in_pieces(call, body.texts, params, info, body.param), loaded_s


def _read_several(body: Json, services: Services) -> OllamaVectors:
    values = read(EMBED_FIELDS, body)
    texts = values["input"] if isinstance(values["input"], list) else [values["input"] or ""]
    if not all(isinstance(text, str) for text in texts):
        raise BadRequest("input must be a string or an array of strings", param="input")
    texts = texts if isinstance(values["input"], list) else [text for text in texts if text]
    if texts:
        check_count(len(texts), services.config.of(PoolingOptions).max_pooling_inputs, "input")
    more: Json = {"dimensions": values["dimensions"] or None, "use_activation": True}
    more |= {"truncate_prompt_tokens": -1} if values["truncate"] else {}
    return _request(EMBED_FIELDS, values, body, services, texts, more)


def _read_one(body: Json, services: Services) -> OllamaVectors:
    values = read(EMBEDDINGS_FIELDS, body)
    return _request(EMBEDDINGS_FIELDS, values, body, services, [values["prompt"]] if values["prompt"] else [], {})


def _request(
    fields: FieldSet, values: Values, body: Json, services: Services, texts: list[str], more: Json
) -> OllamaVectors:
    """Converts a request for Ollama's embeddings to one for OpenAI's.

    Args:
        fields: The fields of Ollama's endpoint. Those without an effect here give a warning.
        values: The values of these fields.
        body: The body as it was sent.
        services: The options, and the state of the server.
        texts: The texts to embed.
        more: Further fields of OpenAI's embeddings, with their values.

    Raises:
        RequestError: The model does not exist, or a field is not valid.
    """
    name = names.find(values, services.registry, PoolingModel)
    given = {"model": name, "keep_alive": body.get(KEEP_ALIVE.name), **more}
    call = parse(given, services, fields=AS_EMBEDDINGS)
    call = replace(call, warnings=call.warnings + common_fields.warnings(fields, body))
    return OllamaVectors(values["model"] or name, call, texts, "input" if "input" in values else "prompt")
