"""…/files: the files of batches, and others that clients keep here (https://platform.openai.com/docs/api-reference/files)."""

from __future__ import annotations

import asyncio
import secrets
from functools import partial
from typing import BinaryIO

from ....errors import BadRequest, RequestError
from ....observability.logging import safe
from ....observability.records import current_record
from ....push_types import Sink
from ....types import Json, Request, Response
from ...fields import Field, FieldSet, read
from ...forms import FilePart, body_of, read_form
from ...response import json
from ...route_doc import RouteDoc
from ...routes import id_in
from ...services import INLINE_BYTES, Services
from ..responses.pages import PAGE, PageQuery, page_response, parameters
from .service import BatchService, file_body
from .storage import FILE, PIECE, RETENTION_S, Entry

ONE = "/files/{id}"
CONTENT = "/files/{id}/content"
PURPOSES = ("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
MAX_NAME = 255
MAX_PAGE = 10000


def _file(value: object) -> FilePart:
    if not isinstance(value, FilePart):
        raise BadRequest("file must be a file, not a text: a part with a file name", param="file")
    return value


def expires_after(name: str) -> Field:
    """Returns the field that says how long a file stays."""
    anchor = Field("anchor", "string", "from when on", choices=("created_at",))
    return Field(
        name, "object", "how long the file, or the files of results, stay", fields=(anchor, SECONDS), read=_seconds
    )


SECONDS = Field("seconds", "uint", "an hour to 30 days", low=3600, high=RETENTION_S, required=True)


def _seconds(value: Json) -> int:
    found = read(FieldSet((SECONDS,)), value)["seconds"]
    if found is None:
        raise BadRequest("expires_after has no seconds", param="expires_after")
    return int(found)


FIELDS = FieldSet((
    Field("file", "any", "the file", required=True, read=_file, schema={"type": "string", "format": "binary"}),
    Field("purpose", "string", "what it is for: only batch has a use here", required=True, choices=PURPOSES),
    expires_after("expires_after"),
))  # fmt: skip


def service_of(services: Services) -> BatchService:
    """Raises RequestError where the server keeps no files."""
    if not services.config.files_path:
        raise RequestError("this server keeps no files: it has no --files_path", status=501, code="no_files")
    service = services.get(BatchService)
    service.require_open()
    return service


def owner() -> str:
    """Returns the name of the client of this request."""
    record = current_record.get()
    return record.client if record else ""


@RouteDoc("Upload a file, with --files_path", body=FIELDS, form=True, errors=(413, 501))
async def handle_upload(request: Request, services: Services) -> Response:
    service = service_of(services)
    body = await services.offload.run(
        request.size, lambda: body_of(FIELDS, read_form(request)), inline_below=INLINE_BYTES
    )
    values = read(FIELDS, body)
    for name in ("file", "purpose"):
        if values[name] is None:
            raise BadRequest(f"{name} is missing", param=name)
    file, purpose = values["file"], values["purpose"]
    keep_s = values["expires_after"] or (RETENTION_S if purpose == "batch" else None)
    made = file_body(f"{FILE}-{secrets.token_hex(24)}", safe(file.name, MAX_NAME), purpose, len(file.data), keep_s)
    await service.in_thread(partial(service.storage.add, Entry(owner(), made), file.data))
    request.drop_body()
    return json(made)


@RouteDoc("The files that this client has made", query=(*PAGE, Field("purpose", "string", "of these files only")))
async def handle_list(request: Request, services: Services) -> Response:
    storage = service_of(services).storage
    query = PageQuery.of(request.query, MAX_PAGE, MAX_PAGE)
    return page_response(*storage.page(FILE, owner(), query, parameters(request.query).get("purpose")))


@RouteDoc("A file's object", errors=(501,))
async def handle_get(request: Request, services: Services) -> Response:
    return json(service_of(services).storage.find(FILE, id_in(request.path, ONE)).body)


@RouteDoc("Delete a file", errors=(400, 501))
async def handle_delete(request: Request, services: Services) -> Response:
    service, name = service_of(services), id_in(request.path, ONE)
    service.storage.find(FILE, name)
    await service.in_thread(partial(service.storage.drop, name))
    return json({"id": name, "object": FILE, "deleted": True})


@RouteDoc("A file's content", answer="application/octet-stream", errors=(501,))
async def handle_content(request: Request, services: Services) -> Response:
    service, name = service_of(services), id_in(request.path, CONTENT)
    service.storage.find(FILE, name)
    file = await service.in_thread(partial(service.storage.open_data, name))
    headers = [
        ("Content-Type", "application/octet-stream"),
        ("Content-Disposition", "attachment"),
        ("X-Content-Type-Options", "nosniff"),
    ]
    return Response(200, headers, _FileStream(file))


class _FileStream:
    """A ByteStream of a file, which it closes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    async def push_to(self, sink: Sink[bytes]) -> None:
        while piece := await asyncio.to_thread(self._file.read, PIECE):
            await sink.send(piece)

    async def aclose(self) -> None:
        self._file.close()
