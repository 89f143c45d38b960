"""GET …/responses: a WebSocket on which one response after the other is created.

https://platform.openai.com/docs/guides/websocket-mode. Each `response.create` is handled as a POST …/responses with
stream true, and each of its events is a message. Of a response that is not stored, the WebSocket keeps the items, so
that the next one can name it as its previous response.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from ....config import Config
from ....errors import BadRequest, PayloadTooLarge, RequestError, Unavailable
from ....observability.records import current_record
from ....types import Json, Request, Response, Usage
from ....websocket_types import GOING_AWAY, NORMAL, Close, Upgrade, WebSocket
from ...app import App
from ...fields import Field, FieldSet, read
from ...middleware import keys_in_subprotocols
from ...router import BASES, RouteDoc, for_each_prefix
from ...websockets import Places, event_in, no_upgrade
from .output_items import item_id
from .response import counts
from .service import ResponseService

PATH = BASES[0] + "/responses"
CREATE, STEER = "response.create", "response.steer"
STOPPING = Close(GOING_AWAY, "the server is shutting down")
EXPIRED = Close(NORMAL, "--max_realtime_session_s is over")
OF_EVENT = ("type", "stream_id", "generate", "stream", "background")
"""Members of an event that are not those of a POST."""
FIELDS = FieldSet(
    (
        Field(name="generate", kind="bool", help="false: only the prompt is computed", default=True),
        Field(name="stream_id", kind="string", help="of the events that answer"),
    )
)
OF_CONNECTION = ("connection", "upgrade", "origin", "x-request-id")
"""Headers of the handshake that its responses do not have, beside those of the body and of WebSockets."""


class ResponseSockets:
    """The open WebSockets of a server: their number is limited; at shutdown each is closed after its response."""

    def __init__(self, config: Config) -> None:
        most = config.max_response_websockets
        self.places = Places(most, "too many WebSockets of /responses: --max_response_websockets")
        self.stopping = asyncio.Event()
        self._open = 0
        self._ended = asyncio.Event()
        self._ended.set()

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """While a WebSocket is served."""
        self._open += 1
        self._ended.clear()
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self._ended.set()

    async def drain(self, timeout_s: float) -> None:
        """Let what runs finish, within timeout_s; the transport ends what is left."""
        self.stopping.set()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended.wait(), timeout_s)

    async def close(self) -> None:
        """Take no more."""
        self.stopping.set()


async def handle(request: Request, app: App) -> Response:
    """Opens the WebSocket."""
    if not request.websocket:
        raise no_upgrade(request)
    service, record = app.service(ResponseSockets), current_record.get()
    if service.stopping.is_set():
        raise Unavailable("the server is shutting down", code="shutting_down")
    client = record.client if record is not None else ""

    async def serve(websocket: WebSocket) -> Close:
        with service.opened():
            return await ResponseSocket(app, websocket, request).run(service.stopping)

    upgrade = Upgrade(serve, max_message_bytes=app.config.max_body_bytes)
    service.places.reserve(client)
    upgrade.on_close.append(lambda: service.places.release(client))
    return upgrade


DOC = RouteDoc(summary="Responses over a WebSocket", errors=(426, 429, 501), upgrade=True)
ROUTES = for_each_prefix("GET", "/responses", handle, doc=DOC, bare=True)


@dataclass(frozen=True, slots=True)
class Kept:
    """The conversation up to the last response, if the store does not have it."""

    id: str = ""
    items: tuple[Json, ...] = ()


class ResponseSocket:
    """One WebSocket. Events are handled in the order in which they come."""

    def __init__(self, app: App, websocket: WebSocket, handshake: Request) -> None:
        self._app = app
        self._websocket = websocket
        headers = _of_requests(handshake)
        self._request = replace(handshake, method="POST", path=PATH, query="", websocket=False, headers=headers)
        self._kept = Kept()

    async def run(self, stopping: asyncio.Event) -> Close:
        """Serve the client until it leaves (then this is cancelled), the server stops or the time is over."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._app.config.max_realtime_session_s
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
                await self._answer(message.result())
        finally:
            stopped.cancel()

    async def _answer(self, message: str | bytes) -> None:
        event: Json = {}
        try:
            event = event_in(message)
            if event["type"] == STEER:
                await self._send(_not_steered(event), None)
            elif event["type"] == CREATE:
                await self._create(event)
            else:
                raise BadRequest(f"event type must be {CREATE} or {STEER}", param="type", code="invalid_event")
        except RequestError as error:
            await self._refuse(error.status, error.body()["error"], _lane(event))

    async def _create(self, event: Json) -> None:
        generate = read(FIELDS, event)["generate"]
        body = {name: value for name, value in event.items() if name not in OF_EVENT}
        known = self._kept.id != "" and body.get("previous_response_id") == self._kept.id
        if known:
            del body["previous_response_id"]
            body["input"] = [*self._kept.items, *_items(body.get("input"))]
        final = await (self._generated if generate else self._prepared)(body, _lane(event))
        if final is not None and not final.get("store"):
            self._kept = Kept()
            with contextlib.suppress(RequestError):  # the previous one may have been deleted since
                before = await self._stored(body.get("previous_response_id"))
                self._kept = Kept(final["id"], (*before, *_items(body.get("input")), *final["output"]))

    async def _stored(self, previous: str | None) -> list[Json]:
        """The items up to the end of a stored response. Raises RequestError."""
        if not previous:
            return []
        return (await self._app.service(ResponseService).store.context(previous, None, [])).items

    async def _generated(self, body: Json, lane: str | None) -> Json | None:
        """Send the events of a response; the finished response object, None for an error."""
        response = await self._post(body | {"stream": True})
        try:
            if isinstance(response.body, bytes):
                await self._refuse(response.status, orjson.loads(response.body)["error"], lane)
                return None
            data, final = b"", None
            async for part in response.body:
                *frames, data = (data + part).split(b"\n\n")
                for frame in frames:
                    _, found, text = frame.partition(b"data: ")
                    if found and text != b"[DONE]":
                        final = await self._send_frame(text, lane)
            return final
        finally:
            await response.aclose()

    async def _send_frame(self, text: bytes, lane: str | None) -> Json | None:
        """The response object of a last event."""
        last = text.startswith((b'{"type":"response.completed"', b'{"type":"response.incomplete"'))
        event = orjson.loads(text) if last or lane is not None else {}
        await (self._websocket.send(text) if lane is None else self._send(event, lane))
        found: Json | None = event["response"] if last else None
        return found

    async def _prepared(self, body: Json, lane: str | None) -> Json | None:
        """As _generated, but only the prompt is computed, for the prefix cache."""
        response = await self._post(body | {"max_output_tokens": 1, "store": False})
        try:
            assert isinstance(response.body, bytes)
            found: Json = orjson.loads(response.body)
        finally:
            await response.aclose()
        if response.status != 200:
            await self._refuse(response.status, found["error"], lane)
            return None
        usage = counts(Usage(prompt_tokens=found["usage"]["input_tokens"]))
        final = found | {"id": item_id("resp"), "output": [], "status": "completed", "incomplete_details": None}
        final |= {
            "usage": usage,
            "completed_at": found["created_at"],
            "max_output_tokens": body.get("max_output_tokens"),
        }
        started = final | {"status": "in_progress", "usage": None}
        del started["completed_at"]
        for number, (kind, shown) in enumerate((("created", started), ("completed", final))):
            await self._send({"type": f"response.{kind}", "sequence_number": number, "response": shown}, lane)
        return final

    async def _post(self, body: Json) -> Response:
        """The answer of POST …/responses, with all that belongs to a request of its own: its record, its limits."""
        data = orjson.dumps(body)
        if len(data) > self._app.config.max_body_bytes:
            raise PayloadTooLarge(f"the conversation has more than {self._app.config.max_body_bytes} bytes")
        return await self._app.handle(replace(self._request, body=data))

    async def _refuse(self, status: int, error: Json, lane: str | None) -> None:
        await self._send({"type": "error", "status": status, "error": error}, lane)

    async def _send(self, event: Json, lane: str | None) -> None:
        await self._websocket.send(orjson.dumps(event if lane is None else event | {"stream_id": lane}))


def _of_requests(handshake: Request) -> Mapping[str, str]:
    """The headers of each response's request, with the key of a browser's WebSocket as other clients send it."""
    headers = {
        name: value
        for name, value in handshake.headers.items()
        if name not in OF_CONNECTION and not name.startswith(("sec-websocket-", "content-"))
    }
    if keys := keys_in_subprotocols(handshake):
        headers.setdefault("authorization", f"Bearer {keys[0]}")
    return headers | {"content-type": "application/json"}


def _lane(event: Json) -> str | None:
    found = event.get("stream_id")
    return found if isinstance(found, str) else None


def _items(value: Any) -> list[Any]:
    """The input of a response as items; what is neither is refused later."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    return value if isinstance(value, list) else []


def _not_steered(event: Json) -> Json:
    error = {
        "code": "steering_not_supported",
        "message": "responses are not steered here: send the input with the next response.create",
        "type": "invalid_request_error",
    }
    steer = {name: event.get(name) for name in ("input", "previous_response_id")}
    return {"type": "response.steer.failed", "sequence_number": 0, "error": error, "steer": steer}
