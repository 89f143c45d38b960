"""The responses of one server: stored ones, and those generated in the background.

Finds a response by its id whether it is finished or still running. One that another server generates, which shares the
store, can be read and deleted here; only its own server can cancel or stream it. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from ...api.response import WHOLE_BYTES, PieceStream, in_turns
from ...config import Config
from ...errors import BadRequest, RequestError, StoreFailure, Unavailable
from ...models.generation import DeltaStream
from ...types import ByteStream, Json
from .background import BackgroundResponse, frames_from
from .events import Events
from .feature import ResponseOptions
from .output_items import pieces_of
from .sealing import Sealer
from .store import Context, Store
from .tables import RESPONSE

logger = logging.getLogger("lean_ovms.responses")

RETRY_S = 3.0
"""Seconds after which a finished response that could not be stored is stored again."""


class ResponseService:
    """Open before serving (else the first use opens it), drain while the server stops, close after that."""

    def __init__(self, config: Config) -> None:
        self.store = Store(config)
        self.sealer = Sealer(config.of(ResponseOptions).reasoning_key_file)
        self._ping_s = config.sse_ping_s
        self._background: dict[str, BackgroundResponse] = {}
        self._unsaved: dict[str, Callable[[], Awaitable[None]]] = {}  # finished, but not stored yet
        self._retrying: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Reads the keys, and opens the store. Raises StartError."""
        self.sealer.read_keys()
        await self.store.open()

    async def drain(self, timeout_s: float) -> None:
        """Waits until all background responses have finished, at most timeout_s."""
        if tasks := [run.task for run in self._background.values() if not run.finished]:
            await asyncio.wait(tasks, timeout=timeout_s)

    async def close(self) -> None:
        """Stops running responses as failed, and closes the store. Idempotent."""
        reason = "The server was stopped before this response was finished."
        runs = list(self._background.values())
        await asyncio.gather(*(run.stop(Unavailable(reason)) for run in runs), return_exceptions=True)
        if self._retrying is not None:
            self._retrying.cancel()
            await asyncio.wait([self._retrying])
            await self._retry_saves()
        await self.store.close()

    async def save(self, final: Json, context: Context) -> None:
        """Stores a finished response. If that fails, its `store` is set to false."""
        try:
            await self.store.finish(final, context)
        except StoreFailure as error:
            logger.error("response %s was not stored: %s", final["id"], error.message)
            final["store"] = False

    async def start_background(self, events: Events, generation: DeltaStream, context: Context) -> BackgroundResponse:
        """Continues the generation in the background; takes ownership of it. Raises StoreFailure."""
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
                if self._retrying is None or self._retrying.done():
                    self._retrying = asyncio.get_running_loop().create_task(self._retry())

        run = self._background[events.body.id] = BackgroundResponse(events, opening, generation, save)
        return run

    def _forget(self, response_id: str) -> None:
        self._background.pop(response_id, None)
        self._unsaved.pop(response_id, None)

    async def _retry(self) -> None:
        """Stores what is not stored yet, as soon as that is possible."""
        while self._unsaved:
            await asyncio.sleep(RETRY_S)
            await self._retry_saves()

    async def _retry_saves(self) -> None:
        for write in list(self._unsaved.values()):
            with contextlib.suppress(StoreFailure):
                await write()

    async def get(self, response_id: str) -> Json:
        """Returns the current response object. Raises NotFound."""
        run = self._background.get(response_id)
        return run.events.response() if run is not None else (await self.store.get(response_id))[0]

    async def cancel(self, response_id: str) -> Json:
        """Stops a background response and returns it. A finished one does not change. Raises RequestError."""
        run = self._background.get(response_id)
        if run is not None:
            await run.stop()
            return run.events.response()
        body, running = await self.store.get(response_id)
        if not body["background"]:
            raise BadRequest("Only background responses can be cancelled; close the connection of others instead.")
        if running:
            raise _elsewhere(response_id, "cancel")
        return body

    async def delete(self, response_id: str) -> None:
        """Deletes a response, and stops it if it runs here. Raises NotFound."""
        await self.store.delete(RESPONSE, response_id)
        run = self._background.get(response_id)
        if run is not None:
            await run.stop()

    async def stream(self, response_id: str, start: int) -> ByteStream:
        """Returns the events of a background response from number `start` on. Raises RequestError."""
        run = self._background.get(response_id)
        if run is not None and run.frames:
            return PieceStream(run.follow(start, self._ping_s))
        body, running = await self.store.get(response_id)
        if running and run is None:
            raise _elsewhere(response_id, "stream")
        frames = await self.store.frames(response_id)
        if frames is None:
            reason = "it was not created with background true and stream true"
            reason += ", or its stream was lost" if body["status"] == "failed" else ""
            raise BadRequest(f"Response {response_id!r} cannot be streamed: {reason}.", param="stream")
        return PieceStream(in_turns(await self._cut(frames, start)))

    async def _cut(self, frames: bytes, start: int) -> list[bytes]:
        """Returns the pieces of a stored stream from an event on; a large one is searched in another thread."""
        if len(frames) <= WHOLE_BYTES:
            return frames_from(frames, start)
        return await asyncio.to_thread(frames_from, frames, start)


def _elsewhere(response_id: str, action: str) -> RequestError:
    text = (
        f"Response {response_id!r} is generated by another server: until it is finished only that one can {action} it."
    )
    return RequestError(text, status=409, code="other_server")
