"""The responses of one server: stored ones, and those generated in the background.

Finds a response by its id whether it is finished or still running, on this server or on another one that shares the
store. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

from ...api.response import WHOLE_BYTES, PieceStream, in_turns
from ...api.sse import PING
from ...config import Config
from ...errors import BadRequest, EngineFailure, RequestError, StoreFailure, Unavailable
from ...models.generation import DeltaStream
from ...types import ByteStream, Json
from .background import BackgroundResponse, error_frame, frames_from
from .events import Events
from .options import ResponseOptions
from .output_items import pieces_of
from .sealing import Sealer
from .store import LEASE_S, Context, Store
from .tables import RESPONSE

logger = logging.getLogger("lean_ovms.responses")

POLL_INTERVAL_S = 0.5
"""While a background response runs: time between checks for stop requests of other servers."""

HEARTBEAT_INTERVAL_S = LEASE_S / 5
"""While a background response runs: time between heartbeats for the other servers."""

CANCEL_TIMEOUT_S = 10.0
"""Longest wait for another server to stop a response; then the request fails with 503."""


class ResponseService:
    """Open before serving (else the first use opens it), drain while the server stops, close after that."""

    def __init__(self, config: Config) -> None:
        self.store = Store(config)
        self.sealer = Sealer(config.of(ResponseOptions).reasoning_key_file)
        self._ping_s = config.sse_ping_s
        self._background: dict[str, BackgroundResponse] = {}
        self._unsaved: dict[str, Callable[[], Awaitable[None]]] = {}  # finished, but not stored yet
        self._monitor_task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Read the keys, and open the store. Raises StartError."""
        self.sealer.read_keys()
        await self.store.open()

    async def drain(self, timeout_s: float) -> None:
        """Wait until all background responses have finished, at most timeout_s."""
        if tasks := [run.task for run in self._background.values() if not run.finished]:
            await asyncio.wait(tasks, timeout=timeout_s)

    async def close(self) -> None:
        """Stop running responses as failed, and close the store. Idempotent."""
        reason = "The server was stopped before this response was finished."
        runs = list(self._background.values())
        await asyncio.gather(*(run.stop(Unavailable(reason)) for run in runs), return_exceptions=True)
        if self._monitor_task is not None:
            self._monitor_task.cancel()
            await asyncio.wait([self._monitor_task])
            await self._retry_saves()
        await self.store.close()

    async def save(self, final: Json, context: Context) -> None:
        """Store a finished response. If that fails, its `store` is set to false."""
        try:
            await self.store.finish(final, context)
        except StoreFailure as error:
            logger.error("response %s was not stored: %s", final["id"], error.message)
            final["store"] = False

    async def start_background(self, events: Events, generation: DeltaStream, context: Context) -> BackgroundResponse:
        """Continue the generation in the background; takes ownership of it. Raises StoreFailure."""
        try:
            opening = events.start()
            await self.store.start(events.response(), context, pieces_of(opening))
        except BaseException:
            await generation.aclose()
            raise

        async def save(final: Json, frames: list[bytes]) -> None:
            async def write() -> None:
                await self.store.finish_started(final, context, frames)
                self._forget(final["id"])

            try:
                await write()
            except StoreFailure as error:
                logger.error("response %s is not stored yet: %s", final["id"], error.message)
                self._unsaved[final["id"]] = write

        run = self._background[events.body.id] = BackgroundResponse(events, opening, generation, save)
        if self._monitor_task is None or self._monitor_task.done():
            self._monitor_task = asyncio.get_running_loop().create_task(self._monitor())
        return run

    def _forget(self, response_id: str) -> None:
        self._background.pop(response_id, None)
        self._unsaved.pop(response_id, None)

    async def _monitor(self) -> None:
        """While a background response runs: send heartbeats to the other servers, and obey their stop requests."""
        last_heartbeat = 0.0
        while self._background:
            await asyncio.sleep(POLL_INTERVAL_S)
            with contextlib.suppress(StoreFailure):  # already logged; tried again at the next poll
                if time.monotonic() > last_heartbeat + HEARTBEAT_INTERVAL_S:
                    await self.store.heartbeat()
                    last_heartbeat = time.monotonic()
                    await self._retry_saves()
                await self._stop_requested()

    async def _stop_requested(self) -> None:
        """Stops what other servers want to stop, and forgets what they have deleted or failed."""
        stopped = await self.store.poll_stops(list(self._background))
        runs = [self._background[response_id] for response_id in stopped if response_id in self._background]
        await asyncio.gather(*(run.stop() for run in runs))
        for response_id in set(stopped) & set(self._unsaved):
            self._forget(response_id)

    async def _retry_saves(self) -> None:
        for write in list(self._unsaved.values()):
            with contextlib.suppress(StoreFailure):
                await write()

    async def get(self, response_id: str) -> Json:
        """The current response object. Raises NotFound."""
        run = self._background.get(response_id)
        return run.events.response() if run is not None else (await self.store.get(response_id))[0]

    async def cancel(self, response_id: str) -> Json:
        """Stop a background response and return it. A finished one does not change. Raises NotFound."""
        run = self._background.get(response_id)
        if run is not None:
            await run.stop()
            return run.events.response()
        body, running = await self.store.get(response_id)
        if not body["background"]:
            raise BadRequest("Only background responses can be cancelled; close the connection of others instead.")
        if running:
            await self.store.request_stop(response_id)
            deadline = time.monotonic() + CANCEL_TIMEOUT_S
            while running:
                if time.monotonic() > deadline:
                    raise Unavailable("The server of this response did not react to the cancellation in time.")
                await asyncio.sleep(POLL_INTERVAL_S / 2)
                body, running = await self.store.get(response_id)
        return body

    async def delete(self, response_id: str) -> None:
        """Delete a response, and stop it if it runs on any server. Raises NotFound."""
        await self.store.delete(RESPONSE, response_id)
        run = self._background.get(response_id)
        if run is not None:
            await run.stop()

    async def stream(self, response_id: str, start: int) -> ByteStream:
        """The events of a background response from number `start` on. Raises NotFound and BadRequest."""
        run = self._background.get(response_id)
        if run is not None and run.frames:
            return PieceStream(run.follow(start, self._ping_s))
        body, running = await self.store.get(response_id)
        frames = await self.store.frames(response_id)
        if frames is None:
            reason = "it was not created with background true and stream true"
            reason += ", or its stream was lost" if body["status"] == "failed" else ""
            raise BadRequest(f"Response {response_id!r} cannot be streamed: {reason}.", param="stream")
        return PieceStream(self._poll(response_id, start) if running else in_turns(await self._cut(frames, start)))

    async def _poll(self, response_id: str, start: int) -> AsyncGenerator[bytes, None]:
        """The stream of a response that another server generates: pings until it has finished, then all its events.

        It ends with an error if the response is deleted, or fails without a stream.
        """
        waited = 0.0
        try:
            while (frames := await self._stored_frames(response_id)) is None:
                await asyncio.sleep(POLL_INTERVAL_S)
                waited += POLL_INTERVAL_S
                if self._ping_s and waited >= self._ping_s:
                    waited = 0.0
                    yield PING
            async for piece in in_turns(await self._cut(frames, start)):
                yield piece
        except RequestError as error:
            yield error_frame(error, start)

    async def _cut(self, frames: bytes, start: int) -> list[bytes]:
        """The pieces of a stored stream from an event on; a large one is searched in another thread."""
        if len(frames) <= WHOLE_BYTES:
            return frames_from(frames, start)
        return await asyncio.to_thread(frames_from, frames, start)

    async def _stored_frames(self, response_id: str) -> bytes | None:
        """The stream of another server's response; None while it runs. Raises NotFound and EngineFailure."""
        body, running = await self.store.get(response_id)
        if running:
            return None
        frames = await self.store.frames(response_id)
        if frames is None:
            raise EngineFailure((body.get("error") or {}).get("message") or "its stream was lost")
        return frames
