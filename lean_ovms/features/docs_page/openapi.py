"""Makes the OpenAPI 3.1 document from the table of routes and the fields that validate requests.

https://spec.openapis.org/oas/v3.1.1. A route under several base paths is listed once, under /v1, with the others in
x-also. The bodies of requests are described exactly. For responses, each operation links to the documentation of its
API (externalDocs).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..._version import ABOUT, __version__
from ...api.fields import Field, RouteDoc, doc_of
from ...api.generation.sampling import GenerationFields
from ...api.router import imported
from ...api.schemas import field_schema, object_of
from ...composition import Composition
from ...manifest import BASES, ErrorForm, Route, named
from ...types import Json, Request

_ERRORS = {
    400: "The request is malformed, or a value is out of range or not supported.",
    401: "The API key is missing or wrong.",
    403: "The web page's origin is not allowed, or the Host header is not a known name of the server.",
    404: "The model, id or path is unknown.",
    405: "The path does not accept this method.",
    409: "It has already finished and cannot be cancelled, or belongs to another server.",
    413: "The body exceeds the server's limit.",
    415: "The media type of the body is not supported.",
    424: "Another server, which this server called, has failed.",
    426: "The path is a WebSocket, but the request does not open one.",
    429: "The queue is full; try again after Retry-After seconds.",
    500: "The engine failed, or data could not be stored.",
    501: "This server lacks a package or an option that the request needs.",
    503: "The model is loading, its engine is restarting, or the server is stopping.",
    507: "The disk, or the client's share of it, is full.",
}
_DESCRIPTION = f"""{ABOUT}

Paths under /v1 are served under /v3 and /v3/v1 as well. In a body `null` means absent, and unknown fields are
ignored. A stream (`stream: true`) is `text/event-stream`: `data:` lines with one JSON object each, then `data:
[DONE]`; an error in it is an event with the error object. A schema cannot say every rule: fields that exclude or need
each other, and limits that are options of the server or properties of the model, are a 400 that names the field.
"""


_TEXT: Json = {"type": "string"}
_EVENT = object_of({"data": _TEXT}, event=_TEXT)
"""The schema of a server-sent event: before OpenAPI 3.2 the schema of an event stream is that of each event."""
_ERROR = object_of({"error": object_of({"message": _TEXT, "type": _TEXT, "param": {}, "code": {}})})
"""The schema of OpenAI's error object."""


def references(composition: Composition) -> dict[str, str]:
    """Returns the address of the documentation of each API, by its name."""
    return {one.name: one.reference for one in composition.features if one.reference}


def document(models: Iterable[str], *, key: bool, composition: Composition, server: str = "/") -> Json:
    """Makes the document, for which every endpoint is imported.

    Args:
        models: The names of the models that are served.
        key: Whether the server asks for an API key.
        composition: The features of the server.
        server: The URL that precedes the paths.
    """
    paths: dict[str, Json] = {}
    known = references(composition)
    for route in composition.routes:
        if route.variant:
            continue  # OpenAPI allows one operation per method and path
        first, *others = (_parameters_named(base + route.path) for base in route.bases)
        item = paths.setdefault(first, {"x-also": others} if others else {})
        item[route.method.lower()] = _operation(
            route, first, sorted(models), known.get(route.api, ""), composition, key=key
        )
    forms = {row.name: named(row.package, row.schema) for row in composition.error_forms.rows}
    components: Json = {"schemas": {"Error": _ERROR} | forms}
    if key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "lean_ovms", "version": __version__, "description": _DESCRIPTION},
        "servers": [{"url": server}],
        "paths": dict(sorted(paths.items())),
        "components": components,
    }


def body_schema(fields: Iterable[Field], models: list[str], *, nullable: bool = True) -> Json:
    """Returns the JSON Schema of a body with these fields.

    Args:
        fields: The fields.
        models: The names of the models that are served.
        nullable: Whether null means that a field is absent.
    """
    fields = list(fields)
    required = [field.name for field in fields if field.required]
    properties = {field.name: field_schema(field, nullable=nullable) for field in fields}
    if "model" in properties and models:
        # An empty name means the default model.
        properties["model"]["enum"] = [*models, "", None] if nullable else [*models, ""]
    return {"type": "object", "properties": properties} | ({"required": required} if required else {})


def _parameters_named(path: str) -> str:
    """Gives each {id} in a path a name of its own."""
    names = iter(["{id}", "{item_id}"])
    return re.sub(r"\{id\}", lambda _: next(names), path)


def _operation(
    route: Route, path: str, models: list[str], reference: str, composition: Composition, *, key: bool
) -> Json:
    doc = doc_of(imported(route))
    form = composition.error_forms.of(Request(route.method, path))
    authenticated = key and route.auth not in ("open", "metrics")
    operation: Json = {
        "operationId": _operation_id(route, path),
        "summary": doc.summary,
        "tags": [re.findall(r"\w+", route.path)[0] if BASES[0] in route.bases else "server"],
        "responses": _responses(doc, form, _errors(doc, path, authenticated=authenticated)),
    }
    if reference:
        operation["externalDocs"] = {"url": reference}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"\{(\w+)\}", path)
    ]
    parameters += [
        {"name": r.name, "in": "query", "schema": field_schema(r, nullable=False), "description": r.help}
        for r in doc.query
    ]
    if parameters:
        operation["parameters"] = parameters
    if doc.body or doc.rules:
        media = "multipart/form-data" if doc.form else "application/json"
        read = [field for field in fields_of(doc, composition) if not field.seam or field.seam in composition.parts]
        schema = body_schema(read, models, nullable=not doc.form) if read else {}
        content = {media: {"schema": schema | (doc.rules or {})}}
        operation["requestBody"] = {"required": not doc.body_optional, "content": content}
    if authenticated:
        operation["security"] = [{"key": []}]
    return operation


def fields_of(doc: RouteDoc, composition: Composition) -> list[Field]:
    """Returns the fields of a body, including those that clients of other APIs send."""
    generates = isinstance(doc.body, GenerationFields)
    rows = [row for row in composition.bodies if doc.other_clients or (generates and row.everywhere)]
    return [*doc.body, *(field for row in rows for field in named(row.package, row.fields))]


def _operation_id(route: Route, path: str) -> str:
    """Returns a unique operation id for a route."""
    words = re.findall(r"\w+|(?<=\w/)$", path.removeprefix(BASES[0] + "/"))
    return "_".join([route.method.lower(), *([route.api] if BASES[0] not in route.bases else []), *words])


def _errors(doc: RouteDoc, path: str, *, authenticated: bool) -> list[int]:
    found = {403, 500, 503} | ({401, 429} if authenticated else set())
    if "{" in path:
        found.add(404)
    if doc.body or doc.rules:
        found |= {400, 404, 413, 415, 429}
    if doc.query:
        found.add(400)
    found |= set(doc.errors)
    return sorted(found)


def _responses(doc: RouteDoc, form: ErrorForm | None, errors: list[int]) -> Json:
    content: Json = {}
    if "/" in doc.answer:
        content[doc.answer] = {"schema": _TEXT}
    elif doc.answer and not doc.upgrade:
        content["application/json"] = {"schema": {"type": doc.answer.split(" or ")}}
    for media in doc.media:
        content[media] = {"schema": {"type": "string", "format": "binary"}}
    if doc.stream:
        content["text/event-stream"] = {"schema": _EVENT}
    ok: Json = {"description": "The request succeeded.", "headers": {"X-Request-Id": {"schema": _TEXT}}}
    if content:
        ok["content"] = content
    name, statuses = (form.name, form.statuses) if form is not None else ("Error", {})
    failed = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    found: Json = {"101": ok | {"description": "The WebSocket was opened."}} if doc.upgrade else {"200": ok}
    for status in errors:
        row = found[str(statuses.get(status, status))] = {"description": _ERRORS[status], "content": failed}
        if status in (429, 503):
            row["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    return found
