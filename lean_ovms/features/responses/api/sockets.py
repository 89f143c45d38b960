"""GET …/responses: a WebSocket on which a client creates one response after the other.

https://platform.openai.com/docs/guides/websocket-mode. Each `response.create` is handled as a POST …/responses with
stream true, and each event of its stream is sent as a message. If a response is not stored, the WebSocket keeps its
items, so that the next one can continue it with previous_response_id.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from typing import Any, NamedTuple

import orjson

from ....api.fields import Field, FieldSet, RouteDoc, read
from ....api.response import whole_body
from ....api.services import Services
from ....api.stored_objects import item_id
from ....config import Config
from ....errors import BadRequest, PayloadTooLarge, RequestError
from ....manifest import BASES
from ....types import Json, Request, Response, Usage
from ....types.push import StreamIterator
from ....util import chunked_json
from ....util.concurrency import INLINE_CHARACTERS
from ...websocket.endpoint import OpenWebSockets, no_upgrade, read_event
from ...websocket.feature import WebSocketOptions
from ...websocket.types import GOING_AWAY, NORMAL, Close, WebSocket, WebSocketMessage
from ..feature import ResponseSocketOptions
from ..items import is_usable, read_input, without_logprobs
from ..response import counts

PATH = BASES[0] + "/responses"
CREATE, STEER = "response.create", "response.steer"
STOPPING = Close(GOING_AWAY, "the server is shutting down")
EXPIRED = Close(NORMAL, "the connection reached its maximum duration (--max_realtime_session_s)")
OF_EVENT = ("type", "stream_id", "generate", "stream", "background")
"""Members of an event that are not those of a POST."""
KEPT_SHARE = 4
"""The divisor of --max_body_memory_mb for the memory of kept conversations, in addition to the bodies of requests."""
MAX_STREAM_ID_CHARS = 256
"""The limit of a stream_id, which every event repeats."""
MAX_ECHOED_BYTES = 1 << 16
"""The limit for the members of a refused steer event that the error event repeats."""
FIELDS = FieldSet((
    Field("generate", "bool", "false only computes the prompt, and generates nothing", default=True),
    Field("stream_id", "string", "id that is returned with the events of the answer"),
))  # fmt: skip
OF_CONNECTION = ("connection", "upgrade", "origin", "x-request-id")
"""Headers of the handshake that its responses do not have, besides those of the body and of WebSockets."""


class ResponseSockets(OpenWebSockets["ResponseSocket"]):
    """The open WebSockets of responses, and the limits of their number and of the conversations that they keep."""

    def __init__(self, config: Config) -> None:
        super().__init__(
            config.of(ResponseSocketOptions).max_response_websockets,
            "too many WebSockets of /responses are open (--max_response_websockets)",
        )
        self._most_kept = (config.max_body_memory_mb << 20) // KEPT_SHARE

    def limit_kept(self) -> None:
        """Drops the longest kept conversations until the limit is met; their clients get an error, and resend them."""
        kept = sum(socket.kept.size for socket in self.sessions)
        for socket in sorted(self.sessions, key=lambda socket: -socket.kept.size):
            if kept <= self._most_kept:
                break
            kept -= socket.kept.size
            socket.kept = Kept()


@RouteDoc("Responses over a WebSocket", errors=(426, 429, 501), upgrade=True)
async def handle(request: Request, services: Services) -> Response:
    if not request.upgrade:
        raise no_upgrade(request)
    sockets = services.get(ResponseSockets)

    async def serve(websocket: WebSocket) -> Close:
        socket = ResponseSocket(services, websocket, request)
        with sockets.opened(socket):
            return await socket.run(sockets.stopping)

    return sockets.upgrade(serve, max_message_bytes=services.config.max_body_bytes)


@dataclass(frozen=True, slots=True)
class Kept:
    """The conversation of a WebSocket up to its last response, if the store does not have that response."""

    id: str = ""
    """The id of the last response; "" if there is none."""
    before: str | None = None
    """The id of the stored response that the kept turns continue; None if they continue none."""
    turns: tuple[bytes, ...] = ()
    """The items as JSON: for each turn the members of an array, without its brackets."""
    size: int = 0
    """The size of all turns in bytes."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The parsed `response.create` event."""

    body: Json
    """The body of the equivalent POST, without its input."""
    items: bytes
    """The input as JSON: the members of an array, without its brackets."""
    kept: Kept
    """The kept conversation that it continues."""
    generate: bool
    """Whether tokens are generated; otherwise only the prompt is computed, for the prefix cache."""
    max_output_tokens: Any
    """The value of max_output_tokens in the event."""

    def post(self, most: int) -> bytes:
        """Returns the body of the equivalent POST, kept turns included. Raises PayloadTooLarge beyond `most` bytes."""
        parts = [part for part in (*self.kept.turns, self.items) if part]
        out = BytesIO()
        out.write(chunked_json.dumps(self.body)[:-1])
        for number, part in enumerate(parts):
            out.write(b"," if number else b',"input":[')
            for start in range(0, len(part), chunked_json.PIECE_BYTES):
                out.write(part[start : start + chunked_json.PIECE_BYTES])
        out.write(b"]}" if parts else b"}")
        if out.tell() > most:
            raise PayloadTooLarge(f"the conversation has more than {most} bytes")
        return out.getvalue()


class Finished(NamedTuple):
    """A finished response, as the WebSocket keeps it."""

    id: str
    """The id of the response."""
    stored: bool
    """Whether the store has the response."""
    output: bytes
    """The items of the response as JSON, for a request that continues it."""


class ResponseSocket:
    """One WebSocket, whose events are handled one after the other, in the order in which they arrive."""

    def __init__(self, services: Services, websocket: WebSocket, handshake: Request) -> None:
        self._services = services
        self._service = services.get(ResponseSockets)
        self._websocket = websocket
        headers = _of_requests(handshake)
        self._request = replace(handshake, method="POST", path=PATH, query="", upgrade="", api_key="", headers=headers)
        self._lane: str | None = None  # the lane of the event that is being handled
        self.kept = Kept()

    async def run(self, stopping: asyncio.Event) -> Close:
        """Serves the client until the server stops or time is up. It is cancelled if the client leaves."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._services.config.of(WebSocketOptions).max_realtime_session_s
        stopped = asyncio.ensure_future(stopping.wait())
        try:
            while True:
                message = asyncio.ensure_future(self._websocket.receive())
                try:
                    timeout = max(0.0, ends_at - loop.time())
                    await asyncio.wait({message, stopped}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                    if stopped.done():
                        return STOPPING
                    if not message.done():
                        return EXPIRED
                finally:
                    message.cancel()
                received = [message.result()]
                del message  # frees the bytes while the event is answered
                await self._answer(received)
        finally:
            stopped.cancel()

    async def _answer(self, received: list[WebSocketMessage]) -> None:
        """Handles one message of the client: the only element of a list.

        It is removed from the list once it is read, so that its memory is free while the response is generated.
        """
        self._lane = None
        try:
            turn = await read_event(received.pop(), self._services, self._read)
            if isinstance(turn, Turn):
                await self._create(turn)
            else:
                await self._send(turn)
        except RequestError as error:
            await self._refuse(error.status, error.body()["error"])

    def _read(self, event: Json) -> Turn | Json:
        """Reads an event. Returns a Turn if it creates a response, else the event to reply with. Raises BadRequest."""
        kind, lane = event["type"], event.get("stream_id")
        if isinstance(lane, str) and len(lane) > MAX_STREAM_ID_CHARS:
            raise BadRequest(f"stream_id has more than {MAX_STREAM_ID_CHARS} characters", param="stream_id")
        self._lane = lane if isinstance(lane, str) else None
        if kind == STEER:
            return _not_steered(event)
        if kind != CREATE:
            raise BadRequest(f"event type must be {CREATE} or {STEER}", param="type", code="invalid_event")
        body = {name: value for name, value in event.items() if name not in OF_EVENT}
        generate = read(FIELDS, event)["generate"]
        body |= {"stream": True} if generate else {"max_output_tokens": 1, "store": False}
        kept = self.kept if body.get("previous_response_id") == self.kept.id else Kept()
        if kept.id:
            body["previous_response_id"] = kept.before
        given = body.pop("input", None)
        items = [] if given is None else read_input(given)
        if body.get("store") is False:
            items = without_logprobs(items)
        written = chunked_json.dumps(items)[1:-1]
        chunked_json.free(given)
        return Turn(body, written, kept, generate, event.get("max_output_tokens"))

    async def _create(self, turn: Turn) -> None:
        most = self._services.config.max_body_bytes
        size = turn.kept.size + len(turn.items)
        data = await self._services.offload.run(size, partial(turn.post, most), inline_below=INLINE_CHARACTERS)
        response = await self._services.handle(replace(self._request, body=data))
        del data
        final = await (self._generated(response) if turn.generate else self._prepared(response, turn))
        if final is not None and not final.stored:
            turns = (*turn.kept.turns, turn.items, final.output)
            before = turn.body.get("previous_response_id")
            self.kept = Kept(final.id, before, turns, sum(map(len, turns)))
            self._service.limit_kept()

    async def _generated(self, response: Response) -> Finished | None:
        """Sends the events of a response as messages. Returns the finished response, or None if it failed."""
        try:
            if isinstance(response.body, bytes):
                await self._refuse(response.status, orjson.loads(response.body)["error"])
                return None
            begun, final = list[bytes](), None  # the pieces of the current event
            async with contextlib.aclosing(StreamIterator(response.body)) as pieces:
                async for part in pieces:
                    *ends, rest = part.split(b"\n\n")  # a blank line is never split between two pieces
                    for end in ends:
                        first, *others = [*begun, end]
                        begun = []
                        _, found, text = first.partition(b"data: ")
                        if found and text != b"[DONE]":
                            final = await self._send_frame([text, *others])
                    begun += [rest] if rest else []
            return final
        finally:
            await response.aclose()

    async def _send_frame(self, text: list[bytes]) -> Finished | None:
        """Sends an event, given in pieces. Returns the finished response if this is the last event, else None."""
        if self._lane is not None:
            text[-1] = text[-1][:-1] + b',"stream_id":%b}' % orjson.dumps(self._lane)
        await self._websocket.send(*text)
        if not text[0].startswith((b'{"type":"response.completed"', b'{"type":"response.incomplete"')):
            return None
        size = sum(map(len, text))
        return await self._services.offload.run(size, partial(_finished, text), inline_below=chunked_json.PIECE_BYTES)

    async def _prepared(self, response: Response, turn: Turn) -> Finished | None:
        """Sends the events of a response with generate false, whose prompt is only computed for the prefix cache.

        Returns the finished response, or None if it failed.
        """
        found: Json = orjson.loads(await whole_body(response))
        if response.status != 200:
            await self._refuse(response.status, found["error"])
            return None
        usage = counts(Usage(prompt_tokens=found["usage"]["input_tokens"]))
        final = found | {"id": item_id("resp"), "output": [], "status": "completed", "incomplete_details": None}
        final |= {"usage": usage, "completed_at": found["created_at"], "max_output_tokens": turn.max_output_tokens}
        started = final | {"status": "in_progress", "usage": None}
        del started["completed_at"]
        for number, (kind, shown) in enumerate((("created", started), ("completed", final))):
            await self._send({"type": f"response.{kind}", "sequence_number": number, "response": shown})
        return Finished(final["id"], bool(final["store"]), b"")

    async def _refuse(self, status: int, error: Json) -> None:
        await self._send({"type": "error", "status": status, "error": error})

    async def _send(self, event: Json) -> None:
        lane = {} if self._lane is None else {"stream_id": self._lane}
        await self._websocket.send(orjson.dumps(event | lane))


def _finished(pieces: list[bytes]) -> Finished:
    """Reads the finished response from the pieces of the JSON of its last event."""
    text = BytesIO()
    for piece in pieces:
        text.write(piece)
    event = chunked_json.loads(text.getvalue())
    response = event["response"]
    output = chunked_json.dumps(without_logprobs(list(filter(is_usable, response["output"]))))[1:-1]
    found = Finished(response["id"], bool(response.get("store")), output)
    chunked_json.free(event)
    return found


def _of_requests(handshake: Request) -> Mapping[str, str]:
    """Returns the headers for the POST of each response, from those of the WebSocket's handshake.

    A browser sends its API key in another header of the handshake; it becomes an Authorization header.
    """
    headers = {
        name: value
        for name, value in handshake.headers.items()
        if name not in OF_CONNECTION and not name.startswith(("sec-websocket-", "content-"))
    }
    if handshake.api_key:
        headers.setdefault("authorization", f"Bearer {handshake.api_key}")
    return headers | {"content-type": "application/json"}


def _not_steered(event: Json) -> Json:
    error = {
        "code": "steering_not_supported",
        "message": "steering a running response is not supported; send the input with the next response.create",
        "type": "invalid_request_error",
    }
    steer = {name: event.get(name) for name in ("input", "previous_response_id")}
    if len(chunked_json.dumps(steer)) > MAX_ECHOED_BYTES:
        steer = dict.fromkeys(steer, "")
    return {"type": "response.steer.failed", "sequence_number": 0, "error": error, "steer": steer}
