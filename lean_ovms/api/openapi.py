"""The OpenAPI 3.1 document, made from the table of routes and the fields that validate requests.

https://spec.openapis.org/oas/v3.1.1. A route under several bases is listed once, under /v1, with the others in x-also.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .. import __version__
from ..errors import ANTHROPIC_PATHS, OVERLOADED
from ..types import Json
from .fields import Field
from .router import BASES, Route, RouteDoc
from .schemas import ANSWERS, ref

_TYPES = {
    "bool": "boolean",
    "number": "number",
    "int": "integer",
    "uint": "integer",
    "string": "string",
    "object": "object",
    "array": "array",
}
_BOUNDS = {"low": "minimum", "high": "maximum", "above": "exclusiveMinimum", "below": "exclusiveMaximum"}
_ERRORS = {
    400: "The request is malformed, out of range or impossible.",
    401: "No API key, or the wrong one.",
    403: "Not for pages of this origin, or Host is no known name of the server.",
    404: "Unknown model, id or path.",
    405: "The path does not answer this method.",
    413: "The body is larger than this server takes.",
    415: "The body is of another media type.",
    426: "The path is a WebSocket, and the request does not open one.",
    429: "The queue is full: try again after Retry-After seconds.",
    500: "The engine failed, or what should be kept could not be.",
    501: "A package is not installed on this server.",
    503: "The model is loading or restarting, or the server is stopping.",
    OVERLOADED: "The model is loading or restarting, or the server is stopping.",
}
_DESCRIPTION = """Generative REST API of OpenVINO Model Server and vLLM. Paths under /v1 are served under /v3 and /v3/v1
as well. In a body `null` means absent, and unknown fields are ignored. A stream (`stream: true`) is
`text/event-stream`: `data:` lines with one JSON object each, then `data: [DONE]`; an error in it is an event with the
error object. A schema cannot say every rule: fields that exclude or need each other, and limits that are options of the
server or properties of the model, are a 400 that names the field.
"""


def document(routes: Iterable[Route], models: Iterable[str], *, key: bool, server: str = "/") -> Json:
    """The document. models: names of those served. key: the server asks for an API key. server: what precedes paths."""
    paths: dict[str, Json] = {}
    for path, also, of_path in _grouped(routes):
        shown = _parameters_named(path)
        item: Json = {"x-also": also} if also else {}
        for route in of_path:
            item[route.method.lower()] = _operation(route, shown, sorted(models), key=key)
        paths[shown] = item
    components: Json = {"schemas": ANSWERS}
    if key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "lean_ovms", "version": __version__, "description": _DESCRIPTION},
        "servers": [{"url": server}],
        "paths": dict(sorted(paths.items())),
        "components": components,
    }


def schema(field: Field, *, nullable: bool = True) -> Json:
    """The JSON Schema (2020-12) of a field. nullable: null means absent."""
    found: Json = dict(field.schema or {})
    if field.kind in _TYPES:
        found["type"] = _TYPES[field.kind]
    for ours, theirs in _BOUNDS.items():
        if (bound := getattr(field, ours)) is not None:
            found[theirs] = bound
    if field.kind == "uint":
        found.setdefault("minimum", 0)
    if field.fields and field.kind == "object":
        found["properties"] = {member.name: schema(member) for member in field.fields}
        found["additionalProperties"] = False
    if nullable and not field.required:
        found = _or_null(found)
    default = field.default if field.builtin is None else field.builtin
    return found | {"description": field.help} | ({} if default is None else {"default": default})


def _or_null(found: Json) -> Json:
    if "type" in found:
        nullable = {"type": [found["type"], "null"]}
        return found | nullable | ({"enum": [*found["enum"], None]} if "enum" in found else {})
    return {"anyOf": [*found["anyOf"], {"type": "null"}]} if "anyOf" in found else found


def body_schema(fields: Iterable[Field], models: list[str], *, nullable: bool = True) -> Json:
    """The JSON Schema of a body with these fields. models: names of the models served. nullable: null means absent."""
    fields = list(fields)
    required = [field.name for field in fields if field.required]
    properties = {field.name: schema(field, nullable=nullable) for field in fields}
    if "model" in properties and models:
        properties["model"]["enum"] = [*models, None] if nullable else models
    return {"type": "object", "properties": properties} | ({"required": required} if required else {})


def _grouped(routes: Iterable[Route]) -> Iterable[tuple[str, list[str], list[Route]]]:
    """(path, the same under other bases, its routes)."""
    by_path: dict[str, list[Route]] = {}
    for route in routes:
        if not route.header:  # OpenAPI has one operation for a method and path
            by_path.setdefault(route.path, []).append(route)
    first, *others = BASES
    for path, found in by_path.items():
        bare = _without_base(path)
        if path.startswith(first + "/"):
            also = [base + bare for base in others if base + bare in by_path]
            yield path, [*also, *([bare] if bare in by_path else [])], found
        elif first + bare not in by_path:
            yield path, [], found


def _without_base(path: str) -> str:
    base = next((b for b in sorted(BASES, key=len, reverse=True) if path.startswith(b + "/")), "")
    return path[len(base) :]


def _parameters_named(path: str) -> str:
    """Every {id} of a path with a name of its own."""
    names = iter(["{id}", "{item_id}"])
    return re.sub(r"\{id\}", lambda _: next(names), path)


def _operation(route: Route, path: str, models: list[str], *, key: bool) -> Json:
    doc = route.doc or RouteDoc(summary=_first_line(route))
    authenticated = key and route.auth != "open"
    operation: Json = {
        "operationId": _operation_id(route.method, path),
        "summary": doc.summary,
        "tags": [_tag(path)],
        "responses": _responses(doc, path, _errors(route, path, authenticated=authenticated)),
    }
    parameters = [_path_parameter(name) for name in re.findall(r"\{(\w+)\}", path)]
    parameters += [
        {"name": r.name, "in": "query", "schema": schema(r, nullable=False), "description": r.help} for r in doc.query
    ]
    if parameters:
        operation["parameters"] = parameters
    if doc.body:
        media = "multipart/form-data" if doc.form else "application/json"
        content = {media: {"schema": body_schema(doc.body, models, nullable=not doc.form) | (doc.rules or {})}}
        operation["requestBody"] = {"required": not doc.body_optional, "content": content}
    if authenticated:
        operation["security"] = [{"key": []}]
    return operation


def _path_parameter(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _operation_id(method: str, path: str) -> str:
    words = re.findall(r"\w+", path.removeprefix(BASES[0] + "/"))
    return "_".join([method.lower(), *words])


def _tag(path: str) -> str:
    return re.findall(r"\w+", _without_base(path))[0] if _without_base(path) != path else "server"


def _first_line(route: Route) -> str:
    """The first line of the handler's docstring."""
    text = route.handle.__doc__ or f"{route.method} {route.path}"
    return text.strip().splitlines()[0]


def _errors(route: Route, path: str, *, authenticated: bool) -> list[int]:
    doc = route.doc
    found = {403, 500, 503} | ({401} if authenticated else set())
    if "{" in path:
        found.add(404)
    if doc is not None and doc.body:
        found |= {400, 404, 413, 415, 429}
    if doc is not None and doc.query:
        found.add(400)
    if doc is not None:
        found |= set(doc.errors)
    if path.startswith(ANTHROPIC_PATHS):
        found = found - {503} | {OVERLOADED}
    return sorted(found)


def _responses(doc: RouteDoc, path: str, errors: list[int]) -> Json:
    content: Json = {}
    if "/" in doc.answer:
        content[doc.answer] = {"schema": {"type": "string"}}
    elif doc.answer:
        content["application/json"] = {"schema": ref(doc.answer)}
    for media in doc.media:
        content[media] = {"schema": {"type": "string", "format": "binary"}}
    if doc.chunks:
        content["text/event-stream"] = {"schema": {"type": "string"}, "x-event-schema": ref(doc.chunks)}
    ok: Json = {"description": "It worked.", "headers": {"X-Request-Id": {"schema": {"type": "string"}}}}
    if content:
        ok["content"] = content
    form = "AnthropicError" if path.startswith(ANTHROPIC_PATHS) else "Error"
    failed = {"application/json": {"schema": ref(form)}}
    found: Json = {"101": ok | {"description": "The WebSocket is open."}} if doc.upgrade else {"200": ok}
    for status in errors:
        found[str(status)] = {"description": _ERRORS[status], "content": failed}
        if status in (429, 503, OVERLOADED):
            found[str(status)]["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    return found
