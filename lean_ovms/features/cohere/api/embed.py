"""POST /v2/embed and /v1/embed: Cohere's embeddings, in several number types at once.

https://docs.cohere.com/reference/embed, with vLLM's fields of the same endpoint. /v1/embed, which langchain-cohere
uses, returns plain floats unless the request names types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from ....api.fields import INT64_MAX, Field, FieldSet, RouteDoc, Values
from ....api.response import json_bytes
from ....api.schemas import IMAGE_PART, TEXT_PART, any_of, array, object_of, one_of
from ....api.services import Services
from ....composition import Composition
from ....errors import BadRequest
from ....types import ChatPrompt, Json, Request, Response
from ...pooling import fields as shared
from ...pooling.api.encoding import NUMBERS, Encoding, check_bits
from ...pooling.api.inputs import check_count, content_text
from ...pooling.api.pair_fields import TEXT_OF_PAIR
from ...pooling.api.request import Inputs, PoolingRequest, dimensions, items_of, parse, read_conversation
from ...pooling.feature import PoolingOptions
from ...pooling.types import EMBED, INTEGERS, PooledOutput, PoolingInfo, PoolingParams, TextWithImages

TYPES = (*NUMBERS, "base64")
NONE_GIVEN = "Exactly one of texts, images, or inputs must be provided, and it must be non-empty"


def _types(value: list[Any]) -> list[str]:
    if not value:
        raise BadRequest("embedding_types should not be empty", param="embedding_types")
    for name in value:
        if name not in TYPES:
            raise BadRequest(f"embedding_types should be of: {', '.join(TYPES)}", param="embedding_types")
    return list(dict.fromkeys(value))


_TEXT_AND_IMAGES = any_of(TEXT_OF_PAIR, object_of({"content": array(any_of(TEXT_PART, IMAGE_PART), 1)}))
FIELDS = FieldSet((
    *shared.COMMON,
    Field("texts", "array", "strings", schema={"items": {"type": "string"}}),
    Field("images", "array", "URLs of images, for models that read images", schema={"items": {"type": "string"}}),
    Field("inputs", "array", 'objects with content: parts of type text or image_url',
        schema={"items": _TEXT_AND_IMAGES}),
    Field("input_type", "string", "name of the model's prompt that is put before each text"),
    Field("output_dimension", "int", shared.DIMENSIONS.help, low=1, high=shared.MAX_DIMENSIONS),
    Field("embedding_types", "array", f"any of {', '.join(TYPES)}; default: float", read=_types,
        schema={"items": {"enum": list(TYPES)}, "minItems": 1}),
    Field("truncate", "string", "side on which texts that are too long are cut: END or START; NONE makes them an error",
        default="END", choices=("END", "START", "NONE")),
    Field("max_tokens", "int", "maximum number of tokens of a text; the others are cut", low=1, high=INT64_MAX),
))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """A parsed request for Cohere's embeddings."""

    call: PoolingRequest
    """The fields of the request, and its model."""
    inputs: Inputs
    """The texts, or the conversations with images."""
    echo: list[str]
    """The texts that the response repeats."""
    types: list[str]
    """The requested number types of the vectors, such as "float" and "int8"."""
    plain: bool
    """Whether the response has one list of float vectors, instead of a list for each type."""
    version: str
    """The version of Cohere's API: "1" or "2"."""


@RouteDoc("Cohere's embeddings, by type of number", body=FIELDS, rules=one_of("texts", "images", "inputs"))
async def handle(request: Request, services: Services) -> Response:
    version = "2" if request.path.rstrip("/").endswith("/v2/embed") else "1"  # the version of Cohere's API
    embed = await services.parse_body(request, partial(_read, version=version))
    call = embed.call
    info = call.info((EMBED,))
    params = _params(call, info, embed.inputs)
    check_bits(embed.types, params.dimensions or info.dimensions, "embedding_types")
    items = await items_of(call, embed.inputs, info)
    outputs = await call.encode(items, params, embed.inputs.param)
    _check_tokens(call.values, outputs, embed.inputs.param)
    images = [isinstance(item, TextWithImages) for item in items]
    return await call.render(outputs, lambda: full(embed, outputs, images))


def _read(body: Json, services: Services, *, version: str) -> EmbedRequest:
    call = parse(body, services, fields=FIELDS)
    values = call.values
    given = [name for name in ("texts", "images", "inputs") if values[name]]
    if len(given) != 1:
        raise BadRequest(NONE_GIVEN, param="texts")
    [name] = given
    check_count(len(values[name]), services.config.of(PoolingOptions).max_pooling_inputs, name)
    types = values["embedding_types"]
    return EmbedRequest(
        call=call,
        inputs=_inputs(values, name, services.config.composition),
        echo=values["texts"] or [],
        types=types or ["float"],
        plain=version == "1" and types is None,
        version=version,
    )


def _inputs(values: Values, name: str, composition: Composition) -> Inputs:
    """Returns the inputs as texts, or as conversations if one has images. Raises BadRequest."""
    given: list[Any] = values[name]
    place = "inputs[{}].content[{{part}}].{{kind}}.url"
    if name != "inputs":
        for index, text in enumerate(given):
            if not isinstance(text, str):
                raise BadRequest(f"{name}[{index}] is not a string", param=f"{name}[{index}]")
        if name == "texts":
            return Inputs(items=given, param=name)
        given = [{"content": [{"type": "image_url", "image_url": {"url": url}}]} for url in given]
        place = "images[{}]"
    if not any(map(_has_image, given)):
        return Inputs(items=[content_text(item, f"inputs[{i}]") for i, item in enumerate(given)], param=name)
    return Inputs(
        param=name,
        prompts=[_conversation(item, f"{name}[{i}]", composition) for i, item in enumerate(given)],
        places=[place.format(i) for i in range(len(given))],
    )


def _has_image(item: Any) -> bool:
    """Returns whether an input has an image."""
    content = item.get("content") if isinstance(item, dict) else None
    parts = content if isinstance(content, list) else ()
    return any(isinstance(part, dict) and part.get("type") == "image_url" for part in parts)


def _conversation(item: Any, param: str, composition: Composition) -> ChatPrompt:
    """Converts an input with texts and images to a conversation of one message. Raises BadRequest."""
    content = item.get("content") if isinstance(item, dict) else item
    messages = read_conversation([{"role": "user", "content": content}], composition, param, "messages[0]")
    return ChatPrompt(messages, add_generation_prompt=False)


def _params(call: PoolingRequest, info: PoolingInfo, inputs: Inputs) -> PoolingParams:
    """Returns the parameters for the engine, which truncates texts to max_tokens unless truncate is NONE."""
    values = call.values
    limit, side = values["max_tokens"], values["truncate"]
    kept = dimensions(values["output_dimension"], call, info, "output_dimension")
    same: Json = {
        "truncate_prompt_tokens": None,
        "truncation_side": "left" if side == "START" else "right",
        "use_activation": None,
    }
    return call.with_values(same).params(
        info,
        dimensions=kept,
        truncate=None if side == "NONE" else min(limit or info.window, info.window),
        add_special_tokens=inputs.adds_special(info),
    )


def _check_tokens(values: Values, outputs: list[PooledOutput], name: str) -> None:
    """Raises BadRequest if truncate is NONE and an input, in the field of this name, has more than max_tokens."""
    limit = values["max_tokens"]
    for index, output in enumerate(outputs if limit and values["truncate"] == "NONE" else ()):
        if output.tokens > limit:
            text = f"{name}[{index}] has {output.tokens} tokens, more than max_tokens {limit}"
            raise BadRequest(text, param=f"{name}[{index}]")


def full(embed: EmbedRequest, outputs: list[PooledOutput], images: Sequence[bool]) -> Response:
    """Returns Cohere's response: an object of the type embeddings_by_type, or embeddings_floats.

    Args:
        embed: The request.
        outputs: The vector of each input.
        images: For each input whether it has an image, in which case its tokens are counted as those of images.
    """
    envelope = embed.call.envelope("embd")
    tokens = [0, 0]
    for output, image in zip(outputs, images, strict=True):
        tokens[image] += output.tokens
    units = {"input_tokens": tokens[False], "image_tokens": tokens[True]}
    rest = {
        "texts": embed.echo,
        "meta": {"api_version": {"version": embed.version}, "billed_units": units},
        "response_type": "embeddings_floats" if embed.plain else "embeddings_by_type",
    }
    lists = [(name, b"[%b]" % b",".join(_one(name, output) for output in outputs)) for name in embed.types]
    vectors = lists[0][1] if embed.plain else b"{%b}" % b",".join(b'"%b":%b' % (n.encode(), v) for n, v in lists)
    body = b'{"id":%b,"embeddings":%b,%b' % (orjson.dumps(envelope["id"]), vectors, orjson.dumps(rest)[1:])
    return json_bytes(body, embed.call.headers)


def _one(name: str, output: PooledOutput) -> bytes:
    in_base64, dtype = name == "base64", name if name in INTEGERS else "float32"
    return Encoding("base64" if in_base64 else "float", dtype, "little").json(output)
