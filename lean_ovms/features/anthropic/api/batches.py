"""…/messages/batches: batches of requests that are answered within a day.

https://docs.anthropic.com/en/api/creating-message-batches. They are run as batches of OpenAI's API: the requests become
the lines of a file.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any, BinaryIO

import orjson

from ....api.fields import Field, FieldSet, RouteDoc, read, require
from ....api.response import json
from ....api.services import Services
from ....errors import BadRequest, InternalError
from ....types import Json, Request, Response
from ....util import chunked_json
from ...batches.feature import BatchOptions
from ...batches.lines import check
from ...batches.service import KINDS, BatchService, batch_body, file_body, owner
from ...batches.storage import FILE, PIECE, RETENTION_S, Entry, FileStream
from ..errors import anthropic_error
from .pages import PAGE, page, written_time

URL = "/v1/messages"
BATCH = "message_batch"
ENDED = ("completed", "failed", "expired", "cancelled")
UNSENT = {"batch_cancelled": "canceled", "batch_expired": "expired"}
"""The type of a result by the code of its error."""
FIELDS = FieldSet((
    Field("requests", "array", "the requests, each with a custom_id, and with the body of a message as params",
        required=True, schema={"minItems": 1, "items": {"type": "object", "required": ["custom_id", "params"]}}),
))  # fmt: skip


@RouteDoc("Start a batch of messages; needs --files_path", body=FIELDS, errors=(404, 501))
async def handle_create(request: Request, services: Services) -> Response:
    service = BatchService.of(services)
    total, data = await services.parse_body(request, _lines)
    file = file_body(f"{FILE}-{secrets.token_hex(24)}", "requests.jsonl", "batch", len(data), RETENTION_S)
    await service.in_thread(partial(service.storage.add, Entry(owner(), file), memoryview(data)))
    body = batch_body(BATCH, f"msgbatch_{secrets.token_hex(24)}", URL, file["id"])
    body["request_counts"] |= {"total": total, "unsent": 0}
    try:
        await service.create(Entry(owner(), body))
    except Exception:
        await service.in_thread(partial(service.storage.delete, file["id"]))
        raise
    return json(_shown(body))


def _lines(body: Json, services: Services) -> tuple[int, bytes]:
    """Returns the number of requests in a body, and the requests as lines of a batch file. Raises BadRequest."""
    requests = require(FIELDS, read(FIELDS, body))["requests"]
    lines = [chunked_json.dumps(_line(one)) + b"\n" for one in requests]
    total, errors = check(lines, (URL,), services.config.of(BatchOptions).max_batch_lines)
    if errors:
        line, message = errors[0]["line"], errors[0]["message"]
        raise BadRequest(message, param="requests" if line is None else f"requests[{line - 1}]")
    return total, b"".join(lines)


def _line(request: Any) -> Json:
    given = request if isinstance(request, dict) else {}
    return {"custom_id": given.get("custom_id"), "method": "POST", "url": URL, "body": given.get("params")}


@RouteDoc("The batches of messages that this client has created", query=PAGE, errors=(501,))
async def handle_list(request: Request, services: Services) -> Response:
    bodies = BatchService.of(services).storage.of_client(BATCH, owner())
    return json(page([_shown(body) for body in bodies], request.query))


@RouteDoc("The state of a batch of messages, with the number of completed requests", errors=(501,))
async def handle_get(request: Request, services: Services) -> Response:
    return json(_shown(BatchService.of(services).storage.find(BATCH, request.ids[0]).body))


@RouteDoc("Cancel a batch of messages; completed results are kept", errors=(409, 501))
async def handle_cancel(request: Request, services: Services) -> Response:
    service = BatchService.of(services)
    return json(_shown(await service.cancel(service.storage.find(BATCH, request.ids[0]))))


@RouteDoc("Delete a batch of messages that has ended, with its results", errors=(400, 501))
async def handle_delete(request: Request, services: Services) -> Response:
    service, name = BatchService.of(services), request.ids[0]
    await service.delete(service.storage.find(BATCH, name))
    return json({"id": name, "type": "message_batch_deleted"})


@RouteDoc(
    "The results of a batch of messages, one line for each request", answer="application/x-jsonl", errors=(400, 501)
)
async def handle_results(request: Request, services: Services) -> Response:
    service = BatchService.of(services)
    body = service.storage.find(BATCH, request.ids[0]).body
    if body["status"] not in ENDED:
        raise BadRequest("The batch has no results until its processing_status is ended.")
    names = [body[f"{kind}_file_id"] for kind in KINDS]
    if body["status"] == "failed":
        names.append(body["input_file_id"])  # the input, for the requests without an outcome
    files = await service.in_thread(lambda: [service.storage.open_data(name) for name in names if name])
    stream = FileStream(files, partial(_results, set()))
    return Response(200, [("Content-Type", "application/x-jsonl"), ("X-Content-Type-Options", "nosniff")], stream)


def _results(known: set[str], file: BinaryIO) -> bytes:
    """Returns the next results in a file of outcomes or errors as JSON lines, b"" at the end.

    Those whose custom_id is in `known` were returned before; the new ones are added to it.
    """
    found: list[bytes] = []
    while not found and (rows := file.readlines(PIECE)):
        for row in map(orjson.loads, rows):
            if row["custom_id"] not in known:
                known.add(row["custom_id"])
                result = {"custom_id": row["custom_id"], "result": _result(row)}
                found.append(orjson.dumps(result, option=orjson.OPT_APPEND_NEWLINE))
    return b"".join(found)


def _result(row: Json) -> Json:
    if row.get("error"):
        return {"type": UNSENT[row["error"]["code"]]}
    response = row.get("response") or {"status_code": 500, "body": anthropic_error(InternalError())}
    if response["status_code"] >= 400:
        return {"type": "errored", "error": response["body"]}
    return {"type": "succeeded", "message": response["body"]}


def _shown(body: Json) -> Json:
    """Returns a batch in Anthropic's form. The counts of results are 0 until the batch has ended."""
    status, counts = body["status"], body["request_counts"]
    found = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    ended = status in ENDED
    if ended:
        found["succeeded"] = counts["completed"]
        found["canceled" if status == "cancelled" else "expired"] = counts["unsent"]
        found["errored"] = counts["total"] - counts["completed"] - counts["unsent"]
    else:
        found["processing"] = counts["total"]
    times = {
        "created_at": body["created_at"],
        "expires_at": body["expires_at"],
        "ended_at": body[f"{status}_at"] if ended else None,
        "cancel_initiated_at": body["cancelling_at"],
        "archived_at": None,
    }
    return {
        "id": body["id"],
        "type": BATCH,
        "processing_status": "ended" if ended else "canceling" if status == "cancelling" else "in_progress",
        "request_counts": found,
        **{name: None if seconds is None else written_time(seconds) for name, seconds in times.items()},
        "results_url": f"{URL}/batches/{body['id']}/results" if ended else None,
    }
