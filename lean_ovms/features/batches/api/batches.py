"""…/batches: the requests of a file, answered within a day (https://platform.openai.com/docs/api-reference/batch)."""

from __future__ import annotations

from ....api.fields import Field, FieldSet, RouteDoc, read, require
from ....api.queries import read_query
from ....api.response import json
from ....api.services import Services
from ....api.stored_objects import METADATA, PAGE, item_id, page_response
from ....errors import BadRequest
from ....types import Request, Response
from ...deployment.manager import manager_of
from ..fields import expires_after
from ..lines import ENDPOINTS
from ..service import BatchService, batch_body, owner
from ..storage import BATCH, FILE, RETENTION_S, Entry

FIELDS = FieldSet((
    Field("input_file_id", "string",
        "id of a file with the purpose batch, which has one request in each line", required=True),
    Field("endpoint", "string", "path to which all requests are sent", required=True, choices=ENDPOINTS),
    Field("completion_window", "string", "24h", required=True, choices=("24h",)),
    METADATA,
    expires_after("output_expires_after"),
))  # fmt: skip


async def prepare(services: Services) -> None:
    """Continues the batches that are not finished. Raises StartError."""
    manager = manager_of(services)
    pause = manager.model_cache.pause if manager is not None else None
    await services.get(BatchService).open(services.handle, pause)


@RouteDoc("Start a batch; needs --files_path", body=FIELDS, errors=(404, 501))
async def handle_create(request: Request, services: Services) -> Response:
    service = BatchService.of(services)
    values = await services.parse_body(request, lambda body, _: require(FIELDS, read(FIELDS, body)))
    source = service.storage.find(FILE, values["input_file_id"])
    if source.body["purpose"] != BATCH:
        raise BadRequest("input_file_id is not the id of a file with the purpose batch", param="input_file_id")
    own = {name: values[name] for name in ("completion_window", "metadata")}
    body = batch_body(BATCH, item_id(BATCH), values["endpoint"], values["input_file_id"], **own)
    entry = Entry(owner(), body, values["output_expires_after"] or RETENTION_S)
    await service.create(entry)
    return json(body)


@RouteDoc("The batches that this client has created", query=PAGE, errors=(501,))
async def handle_list(request: Request, services: Services) -> Response:
    page = BatchService.of(services).storage.page(BATCH, owner(), read_query(PAGE, request.query))
    return page_response(*page)


@RouteDoc("The state of a batch, with the number of completed requests", errors=(501,))
async def handle_get(request: Request, services: Services) -> Response:
    return json(BatchService.of(services).storage.find(BATCH, request.ids[0]).body)


@RouteDoc("Cancel a batch; completed results are kept", errors=(409, 501))
async def handle_cancel(request: Request, services: Services) -> Response:
    service = BatchService.of(services)
    return json(await service.cancel(service.storage.find(BATCH, request.ids[0])))
