"""The lines of a batch: each is a request, and gets one outcome (https://platform.openai.com/docs/guides/batch)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import orjson

from ...api.fields import INT64_MAX, parsed_body
from ...api.response import whole_body
from ...composition import ErrorForms
from ...errors import BadRequest
from ...types import Handle, Json, Request
from ...util import chunked_json

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
MAX_ERRORS = 100
"""Errors that a batch reports of its input."""
MAX_CUSTOM_ID = 512
BUSY = (429, 503, 529)
"""Statuses after which a line is sent again: the queue is full, or the model is not loaded yet."""
WAIT_S = 2.0


@dataclass(frozen=True, slots=True)
class Line:
    """One request of a batch."""

    custom_id: str
    """The client's name for the request."""
    url: str
    """The path of the request."""
    body: bytes
    """The body of the request, as JSON."""
    unsupported: str
    """The name of a field that is not allowed in a batch, such as stream; "" if there is none."""


def read_lines(file: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a file that are not blank, with their numbers."""
    return ((number, raw) for number, raw in enumerate(file, 1) if not raw.isspace())


def read_line(raw: bytes, urls: Collection[str]) -> Line:
    """Reads a line of a batch, sent to one of these URLs. Raises BadRequest.

    Its request gets the lowest priority, unless it sets one itself. Large lines are read in pieces, so that other
    threads get turns.
    """
    try:
        row = parsed_body(raw)
    except ValueError:
        raise BadRequest("This line is not valid JSON.", code="invalid_json_line") from None
    if not isinstance(row, dict):
        raise BadRequest("This line is not a JSON object.", code="invalid_json_line")
    for name, kind in (("custom_id", str), ("method", str), ("url", str), ("body", dict)):
        if not isinstance(row.get(name), kind) or not row[name]:
            raise BadRequest(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
    if len(row["custom_id"]) > MAX_CUSTOM_ID:
        text = f"custom_id has more than {MAX_CUSTOM_ID} characters."
        raise BadRequest(text, param="custom_id", code="invalid_custom_id")
    if row["method"] != "POST":
        raise BadRequest("The method of a line must be POST.", param="method", code="invalid_method")
    if row["url"] not in urls:
        text = f"The url of this line must be {' or '.join(urls)}, the endpoint of the batch."
        raise BadRequest(text, param="url", code="invalid_url")
    if not isinstance(row["body"].get("model"), str):
        raise BadRequest("Missing required parameter: 'model'.", param="body.model", code="missing_required_parameter")
    unsupported = next((name for name in ("stream", "background") if row["body"].get(name)), "")
    body = chunked_json.dumps({"priority": INT64_MAX, **row["body"]})
    return Line(row["custom_id"], row["url"], body, unsupported)


def check(file: Iterable[bytes], urls: Collection[str], most: int) -> tuple[int, list[Json]]:
    """Checks the lines of a file. Returns their number and the errors, in the form of a batch's `errors`."""
    known: set[str] = set()
    errors: list[Json] = []
    total = 0
    for number, raw in read_lines(file):
        total += 1
        if total > most:
            return total, [_error(None, "too_many_requests", f"The file has more requests than the limit of {most}.")]
        try:
            custom_id = read_line(raw, urls).custom_id
            if custom_id in known:
                text = f"The custom_id '{custom_id}' is used by another line, too."
                raise BadRequest(text, param="custom_id", code="duplicate_custom_id")
            known.add(custom_id)
        except BadRequest as error:
            errors.append(_error(number, error.code, error.message, error.param))
            if len(errors) == MAX_ERRORS:
                break
    if not total:
        errors.append(_error(None, "empty_file", "The file has no requests."))
    return total, errors


def _error(line: int | None, code: str | None, message: str, param: str | None = None) -> Json:
    return {"code": code, "message": message, "param": param, "line": line}


class Busy(Exception):
    """Raised if the server is too busy for a line of a batch."""

    def __init__(self, retry_after_s: float) -> None:
        """Keeps the seconds to wait before the line is sent again."""
        super().__init__()
        self.retry_after_s = retry_after_s


async def attempt(handle: Handle, line: Line, client: str, error_forms: ErrorForms) -> tuple[Json, bool]:
    """Sends the request of a line once.

    Args:
        handle: Returns the response to a request.
        line: The line.
        client: The name of the client that sent the batch.
        error_forms: The forms of errors by path.

    Returns:
        The outcome of the line, and whether the request failed.

    Raises:
        Busy: The server is too busy.
    """
    request = Request("POST", line.url, body=line.body, on_behalf_of=client)
    if line.unsupported:
        error = BadRequest(f"{line.unsupported} is not supported in a batch", param=line.unsupported)
        response = error_forms.response(error, request=request)
    else:
        response = await handle(request)
    data = await whole_body(response)
    named = dict(response.headers)
    if response.status in BUSY:
        raise Busy(float(named.get("Retry-After", WAIT_S)))
    request_id = named.get("X-Request-Id", "")
    sent = {"status_code": response.status, "request_id": request_id, "body": orjson.Fragment(data)}
    return row(line.custom_id, response=sent), response.status >= 400


async def answer(handle: Handle, line: Line, client: str, error_forms: ErrorForms) -> tuple[Json, bool]:
    """Sends the request of a line, again while the server is too busy. Returns the outcome, and whether it failed."""
    while True:
        try:
            return await attempt(handle, line, client, error_forms)
        except Busy as busy:
            await asyncio.sleep(busy.retry_after_s)


def row(custom_id: str | None, response: Json | None = None, error: Json | None = None) -> Json:
    """Returns the outcome of a line as the JSON object of an output file."""
    return {"id": f"batch_req_{os.urandom(12).hex()}", "custom_id": custom_id, "response": response, "error": error}
