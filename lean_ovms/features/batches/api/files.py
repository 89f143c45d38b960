"""…/files: uploaded files, such as those of batches (https://platform.openai.com/docs/api-reference/files)."""

from __future__ import annotations

import secrets
from functools import partial

from ....api.fields import Field, FieldSet, RouteDoc, read, require
from ....api.queries import read_query
from ....api.response import json
from ....api.services import INLINE_BYTES, Services
from ....api.stored_objects import page_fields, page_response
from ....observability.logging import safe
from ....types import Request, Response
from ...uploads.forms import body_of, read_file, read_form
from ..fields import expires_after
from ..service import BatchService, file_body, owner
from ..storage import FILE, PIECE, RETENTION_S, Entry, FileStream

MAX_NAME = 255
PURPOSES = ("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
MAX_PAGE = 10000


FIELDS = FieldSet((
    Field("file", "any", "the file", required=True, read=read_file, schema={"type": "string", "format": "binary"}),
    Field("purpose", "string",
        "purpose of the file: batch for the requests of a batch, any other for a file of a message", required=True,
        choices=PURPOSES),
    expires_after("expires_after"),
))  # fmt: skip
PAGE = FieldSet((*page_fields(MAX_PAGE, MAX_PAGE), Field("purpose", "string", "list only the files with this purpose")))


@RouteDoc("Upload a file; needs --files_path", body=FIELDS, form=True, errors=(413, 501))
async def handle_upload(request: Request, services: Services) -> Response:
    service = BatchService.of(services)
    body = await services.offload.run(
        request.size, lambda: body_of(FIELDS, read_form(request)), inline_below=INLINE_BYTES
    )
    values = require(FIELDS, read(FIELDS, body))
    file, purpose = values["file"], values["purpose"]
    keep_s = values["expires_after"] or (RETENTION_S if purpose == "batch" else None)
    made = file_body(f"{FILE}-{secrets.token_hex(24)}", safe(file.name, MAX_NAME), purpose, len(file.data), keep_s)
    await service.in_thread(partial(service.storage.add, Entry(owner(), made), file.data))
    request.drop_body()
    return json(made)


@RouteDoc("The files that this client has uploaded or received from batches", query=PAGE, errors=(501,))
async def handle_list(request: Request, services: Services) -> Response:
    storage, query = BatchService.of(services).storage, read_query(PAGE, request.query)
    return page_response(*storage.page(FILE, owner(), query, query["purpose"]))


@RouteDoc("The properties of a file", errors=(501,))
async def handle_get(request: Request, services: Services) -> Response:
    return json(BatchService.of(services).storage.find(FILE, request.ids[0]).body)


@RouteDoc("Delete a file", errors=(400, 501))
async def handle_delete(request: Request, services: Services) -> Response:
    service, name = BatchService.of(services), request.ids[0]
    service.storage.find(FILE, name)
    await service.in_thread(partial(service.storage.delete, name))
    return json({"id": name, "object": FILE, "deleted": True})


@RouteDoc("The content of a file", answer="application/octet-stream", errors=(501,))
async def handle_content(request: Request, services: Services) -> Response:
    service, name = BatchService.of(services), request.ids[0]
    service.storage.find(FILE, name)
    file = await service.in_thread(partial(service.storage.open_data, name))
    headers = [
        ("Content-Type", "application/octet-stream"),
        ("Content-Disposition", "attachment"),
        ("X-Content-Type-Options", "nosniff"),
    ]
    return Response(200, headers, FileStream([file], lambda file: file.read(PIECE)))
