"""POST /mcp: this server as an MCP server, whose tools are its models, over streamable HTTP without sessions.

https://modelcontextprotocol.io/specification/2025-11-25/basic/transports. A message is one JSON-RPC request, and its
response is JSON, never a stream. A call of a tool is passed on to the endpoint of the OpenAI API that does the same,
with the API key, limits and place in the queue of this request; its errors are results that the calling model can read.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable
from dataclasses import dataclass, field
from os import urandom
from typing import Any

import orjson

from ..._version import __version__
from ...api.fields import Field, FieldSet, RouteDoc, read
from ...api.response import any_size, whole_body
from ...api.schemas import NULL, NUMBER, SOME_TEXT, STRING, all_of, any_of, array, const, object_of
from ...api.services import INLINE_BYTES, Services
from ...errors import BadRequest, RequestError, with_param
from ...observability.records import current_record
from ...types import Json, Request, Response

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The versions of the protocol that a client may ask for, the newest first."""
INVALID_REQUEST, UNKNOWN_METHOD, WRONG_PARAMS, INTERNAL, PARSE_ERROR = -32600, -32601, -32602, -32603, -32700
"""JSON-RPC's codes of errors."""
INSTRUCTIONS = "Tools to use the models of this server: text, vectors, ranking, speech and images."
SLICE = 1 << 18
"""The characters of base64 that are decoded in one call, a multiple of 4."""
INTEGER: Json = {"type": "integer", "minimum": 1}
ERROR_SCHEMA = object_of(
    {"jsonrpc": const("2.0"), "error": object_of({"code": {"type": "integer"}, "message": STRING})},
    id=any_of(STRING, {"type": "integer"}, NULL),
)
"""The JSON Schema of errors."""


def _id(value: Any) -> str | int:
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise BadRequest("id must be a string or an integer", param="id")
    return value


FIELDS = FieldSet((
    Field("jsonrpc", "string", "2.0", schema=const("2.0")),
    Field("id", "any", "id of the request; absent for notifications", read=_id,
        schema=any_of(STRING, {"type": "integer"})),
    Field("method", "string", "initialize, ping, tools/list, tools/call, or a notification", required=True),
    Field("params", "object", "parameters of the method"),
))  # fmt: skip


# --- tools


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTool:
    """A tool that does what an endpoint of the OpenAI API does."""

    name: str
    """The name of the tool."""
    path: str
    """The path of the endpoint, which is also among the endpoints of the models that the tool can use."""
    description: str
    """What the tool does, for the model that may call it."""
    required: Json
    """The JSON Schemas of the arguments that must be given, by name."""
    optional: Json = field(default_factory=dict)
    """The JSON Schemas of the other arguments, besides `model`."""
    body: Callable[[Json], Json]
    """Makes the body of the endpoint's request from the arguments. It may raise BadRequest."""
    content: Callable[[bytes], Json]
    """Makes the members of the tool's result from the body of the response."""
    form: bool = False
    """Whether the endpoint reads a form, in which the member `file` of the body is a file."""


def _chat(given: Json) -> Json:
    system = [{"role": "system", "content": given.pop("system")}] if given.get("system") else []
    return {**given, "messages": [*system, {"role": "user", "content": given.pop("prompt")}]}


def _answer(data: bytes) -> Json:
    return {"content": [_text(orjson.loads(data)["choices"][0]["message"]["content"] or "")]}


def _vectors(data: bytes) -> Json:
    return _structured({"embeddings": [one["embedding"] for one in orjson.loads(data)["data"]]})


def _ranks(data: bytes) -> Json:
    return _structured({"results": orjson.loads(data)["results"]})


def _audio_file(given: Json) -> Json:
    text = given.pop("audio")
    if not isinstance(text, str):
        raise BadRequest("audio is not a string", param="audio")
    slices = (text[at : at + SLICE] for at in range(0, len(text), SLICE))
    try:
        return {**given, "file": b"".join(b64decode(part, validate=True) for part in slices)}
    except (Base64Error, ValueError):
        raise BadRequest("audio is not base64", param="audio") from None


def _sound(data: bytes) -> Json:
    return {"content": [{"type": "audio", "data": b64encode(data).decode(), "mimeType": "audio/wav"}]}


def _images(data: bytes) -> Json:
    found = [one["b64_json"] for one in orjson.loads(data)["data"]]
    return {"content": [{"type": "image", "data": one, "mimeType": "image/png"} for one in found]}


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _structured(content: Json) -> Json:
    return {"content": [_text(orjson.dumps(content).decode())], "structuredContent": content}


def _described(text: str, schema: Json) -> Json:
    return {**schema, "description": text}


TOOLS = (
    ModelTool(
        name="chat",
        path="/v1/chat/completions",
        description="Ask a language model of this server, and return its answer.",
        required={"prompt": _described("The question or the task.", SOME_TEXT)},
        optional={
            "system": _described("Instructions for the model.", STRING),
            "max_tokens": _described("The most tokens of the answer.", INTEGER),
            "temperature": _described("Randomness of the answer, from 0.", {**NUMBER, "minimum": 0}),
        },
        body=_chat,
        content=_answer,
    ),
    ModelTool(
        name="embed",
        path="/v1/embeddings",
        description="Compute a vector for each text.",
        required={"input": _described("The texts.", array(SOME_TEXT, 1))},
        optional={"dimensions": _described("The length of the vectors, if the model allows it.", INTEGER)},
        body=lambda given: {**given, "encoding_format": "float"},
        content=_vectors,
    ),
    ModelTool(
        name="rerank",
        path="/rerank",
        description="Rank documents by their relevance for a query, the most relevant first.",
        required={
            "query": _described("The query.", SOME_TEXT),
            "documents": _described("The documents.", array(STRING, 1)),
        },
        optional={"top_n": _described("The most results.", INTEGER)},
        body=lambda given: given,
        content=_ranks,
    ),
    ModelTool(
        name="transcribe",
        path="/v1/audio/transcriptions",
        description="Return the text that is spoken in an audio file.",
        required={"audio": _described("The file, such as WAV or MP3, in base64.", SOME_TEXT)},
        optional={"language": _described("The language as ISO 639-1, such as en.", STRING)},
        body=lambda given: {**_audio_file(given), "response_format": "text"},
        content=lambda data: {"content": [_text(data.decode().strip())]},
        form=True,
    ),
    ModelTool(
        name="speak",
        path="/v1/audio/speech",
        description="Speak a text, and return the audio as a WAV file.",
        required={"input": _described("The text.", SOME_TEXT)},
        optional={
            "voice": _described("The name of the voice.", STRING),
            "speed": _described("The speed; 1 is normal.", NUMBER),
        },
        body=lambda given: {**given, "response_format": "wav"},
        content=_sound,
    ),
    ModelTool(
        name="generate_image",
        path="/v1/images/generations",
        description="Generate an image from a description.",
        required={"prompt": _described("The description.", SOME_TEXT)},
        optional={
            "size": _described("Width and height, such as 512x512.", STRING),
            "n": _described("The number of images.", INTEGER),
        },
        body=lambda given: {**given, "output_format": "png"},
        content=_images,
    ),
)


def _offered(services: Services) -> dict[str, tuple[ModelTool, list[str]]]:
    """Returns each tool that a served model can do, with the names of these models, those made for it first."""
    found: dict[str, tuple[ModelTool, list[str]]] = {}
    for tool in TOOLS:
        models = {
            name: model.endpoints.index(tool.path)
            for name, model in services.registry.visible.items()
            if tool.path in model.endpoints
        }
        if models:
            found[tool.name] = tool, sorted(models, key=models.__getitem__)
    return found


def _listed(tool: ModelTool, models: list[str]) -> Json:
    one = _described(f"The model; {models[0]} if absent.", {"type": "string", "enum": models})
    schema = object_of(tool.required, **tool.optional, model=one) | {"additionalProperties": False}
    hints = {"readOnlyHint": True, "openWorldHint": False}
    return {"name": tool.name, "description": tool.description, "inputSchema": schema, "annotations": hints}


# --- messages


class RpcError(Exception):
    """An error of a message, which has a code of JSON-RPC."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@RouteDoc(
    "The models as tools of an MCP server, by streamable HTTP without sessions",
    body=FIELDS,
    rules=all_of("id", "method"),  # of requests; notifications and responses have an empty answer of status 202
)
async def handle(request: Request, services: Services) -> Response:
    size = request.size
    message = await services.parse_body(request, lambda body, _: {**body, **read(FIELDS, body)})
    number, method, params = message["id"], message["method"], message["params"] or {}
    if number is None if method is not None else "result" in message or "error" in message:
        return Response(202)  # a response, or a notification, none of which this server needs
    version = request.headers.get("mcp-protocol-version", VERSIONS[0])
    if version not in VERSIONS and method != "initialize":
        raise BadRequest(f"protocol version {version[:40]!r} is not one of {', '.join(VERSIONS)}")
    if method is None or number is None:
        raise BadRequest("a message must have a method and an id", param="method" if method is None else "id")
    try:
        answer = {"result": await _result(method, params, request, services, size)}
    except RpcError as error:
        answer = {"error": {"code": error.code, "message": str(error)}}
    return await any_size(services.offload, {"jsonrpc": "2.0", "id": number, **answer})


async def _result(method: str, params: Json, request: Request, services: Services, size: int) -> Json:
    """Returns the result of a request, whose body had `size` bytes. Raises RpcError."""
    if method == "initialize":
        asked = params.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "lean_ovms", "version": __version__},
            "instructions": INSTRUCTIONS,
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": [_listed(tool, models) for tool, models in _offered(services).values()]}
    if method != "tools/call":
        raise RpcError(UNKNOWN_METHOD, f"unknown method {method[:80]!r}")
    found = _offered(services).get(str(params.get("name")))
    if found is None:
        raise RpcError(WRONG_PARAMS, f"unknown tool {str(params.get('name'))[:80]!r}")
    try:
        return await _call(*found, params.get("arguments") or {}, request, services, size)
    except RequestError as error:
        if record := current_record.get():
            record.error = error.code or error.kind
        return {"content": [_text(with_param(error))], "isError": True}


async def _call(
    tool: ModelTool, models: list[str], given: Any, request: Request, services: Services, size: int
) -> Json:
    """Calls a tool.

    Args:
        tool: The tool.
        models: The models that can do it, the first of which is the default.
        given: The arguments of the call.
        request: The request, which becomes that of the endpoint.
        services: The options and the state of the server.
        size: The bytes of the request's body.

    Returns:
        The result, which the tool's endpoint has computed.

    Raises:
        RequestError: The arguments are not valid, or the endpoint refuses the request or fails.
    """
    if not isinstance(given, dict):
        raise BadRequest("arguments must be an object", param="arguments")
    known = {"model", *tool.required, *tool.optional}
    if wrong := next((name for name in given if name not in known), None):
        raise BadRequest(f"unknown argument {wrong[:80]!r}; {tool.name} has {', '.join(sorted(known))}")
    if missing := next((name for name in tool.required if not given.get(name)), None):
        raise BadRequest(f"{missing} is required", param=missing)

    def work() -> bytes:
        body = tool.body({"model": models[0], **{name: one for name, one in given.items() if one is not None}})
        return _form(body, boundary) if tool.form else orjson.dumps(body)

    boundary = urandom(16).hex()
    request.body = await services.offload.run(size, work, inline_below=INLINE_BYTES)
    media = f"multipart/form-data; boundary={boundary}" if tool.form else "application/json"
    request.headers = {**request.headers, "content-type": media}
    data = await whole_body(await services.forward(request, tool.path))
    return await services.offload.run(len(data), lambda: tool.content(data), inline_below=INLINE_BYTES)


def _form(body: Json, boundary: str) -> bytes:
    """Returns a body as a form, whose members are texts, but for the member `file`."""
    parts = []
    for name, value in body.items():
        file = '; filename="audio"\r\nContent-Type: application/octet-stream' if name == "file" else ""
        data = value if isinstance(value, bytes) else str(value).encode()
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
        parts += [head.encode(), data, b"\r\n"]
    return b"".join([*parts, f"--{boundary}--\r\n".encode()])


def rpc_error(error: RequestError, request_id: str = "") -> Json:
    """Returns an error of HTTP, such as a missing API key, in the form of JSON-RPC."""
    code = PARSE_ERROR if error.code == "invalid_json" else INTERNAL if error.status >= 500 else INVALID_REQUEST
    return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": with_param(error)}}
