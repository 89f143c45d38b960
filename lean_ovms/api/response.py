"""JSON responses: headers, ids, and the objects that several endpoints share."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import orjson

from ..errors import BadRequest
from ..observability.logging import safe
from ..types import ByteStream, Json, Response, Usage
from ..types.push import Sink
from ..util import chunked_json
from ..util.concurrency import Offload
from .fields import Values

MAX_WARNINGS = 16
MAX_WARNING = 400
MAX_REQUEST_ID = 128
WHOLE_BYTES = 262_144
"""Above this size, in bytes, a body is sent in chunks."""


def json(body: Any, headers: list[tuple[str, str]] | None = None, status: int = 200) -> Response:
    """Returns a JSON response."""
    return json_bytes(orjson.dumps(body), headers, status)


def json_bytes(body: bytes | ByteStream, headers: list[tuple[str, str]] | None = None, status: int = 200) -> Response:
    """Returns a JSON response for a body that is serialized already."""
    return Response(status, [("Content-Type", "application/json"), *(headers or [])], body)


async def written(
    offload: Offload, size: int, make: Callable[[], Json | list[Any]], headers: Sequence[tuple[str, str]] = ()
) -> Response:
    """Returns a JSON response made by a function, in the offload thread if it is large.

    Args:
        offload: Runs long work outside the event loop.
        size: The estimated size of the body in bytes.
        make: Makes the body.
        headers: Additional headers.
    """

    def work() -> list[bytes]:
        return chunked_json.pieces(make())

    response = json_in_pieces(await offload.run(size, work, inline_below=chunked_json.PIECE_BYTES))
    response.headers += headers
    return response


async def any_size(offload: Offload, body: Json, headers: Sequence[tuple[str, str]] = ()) -> Response:
    """Returns a JSON response. A large body is serialized in the offload thread."""
    return await written(offload, 0 if chunked_json.is_small(body) else WHOLE_BYTES, lambda: body, headers)


def json_in_pieces(pieces: list[bytes]) -> Response:
    """Returns a JSON response whose body is given in pieces, which are sent one by one if they are large."""
    whole = sum(map(len, pieces)) <= WHOLE_BYTES
    return json_bytes(b"".join(pieces) if whole else PieceStream(in_turns(pieces)))


async def in_turns(pieces: list[bytes]) -> AsyncGenerator[bytes, None]:
    """Yields the pieces, one in each iteration of the event loop, and frees each after it."""
    pieces.reverse()
    while pieces:
        await asyncio.sleep(0)  # others have their turn
        yield pieces.pop()


async def whole_body(response: Response) -> bytes:
    """Reads the whole body of a response, and closes it."""
    try:
        if isinstance(response.body, bytes):
            return response.body
        pieces: list[bytes] = []
        await response.body.push_to(Sink(pieces.append))
        return b"".join(pieces)
    finally:
        await response.aclose()


class PieceStream:
    """A ByteStream that sends the pieces of an asynchronous iterator. Closing it closes the iterator only."""

    def __init__(self, pieces: AsyncGenerator[bytes, None]) -> None:
        self._pieces = pieces

    async def push_to(self, sink: Sink[bytes]) -> None:
        async for piece in self._pieces:
            await sink.send(piece)

    async def aclose(self) -> None:
        await self._pieces.aclose()


def model_name(values: Values) -> str:
    """Returns the value of the field `model`. Raises BadRequest if it is missing and there is no default model."""
    name = values["model"]
    if not name:
        raise BadRequest("model field is missing in JSON body", param="model")
    return str(name)


def warning_headers(texts: list[str]) -> list[tuple[str, str]]:
    """Returns a Warning header for each text. Characters outside ASCII are escaped, and long texts are cut."""
    if not texts:
        return []
    plain = [safe(text, MAX_WARNING).encode("ascii", "backslashreplace").decode() for text in texts[:MAX_WARNINGS]]
    return [("Warning", '299 lean_ovms "{}"'.format(text[:MAX_WARNING].replace('"', "'"))) for text in plain]


def usage(counts: Usage) -> Json:
    """Returns the usage object of chat and completions, without the cached prompt tokens if they are unknown."""
    body: Json = {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.completion_tokens,
        "total_tokens": counts.prompt_tokens + counts.completion_tokens,
    }
    if counts.cached_tokens is not None:
        body["prompt_tokens_details"] = {"cached_tokens": counts.cached_tokens}
    if counts.reasoning_tokens:
        body["completion_tokens_details"] = {"reasoning_tokens": counts.reasoning_tokens}
    return body


def new_id(prefix: str, end: str | None = None) -> str:
    """Returns an id that consists of the prefix and either the end chosen by a client or 96 random bits."""
    return f"{prefix}-{end or os.urandom(12).hex()}"


def is_safe_id(text: str) -> bool:
    """Returns whether a client's text is safe to use as an id in a header, a log line and a JSON body."""
    return 0 < len(text) <= MAX_REQUEST_ID and text.isascii() and text.isprintable()


def now() -> int:
    """Returns the Unix time in whole seconds, for `created`."""
    return int(time.time())
