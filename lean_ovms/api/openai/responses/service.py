"""The responses of one server: what is kept, and what is being made in the background.

Everything that asks for a response by its id comes here, so that it makes no difference whether it is still running,
nor, as far as that is possible, on which of the servers that share a store. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from ....config import Config
from ....errors import BadRequest, EngineFailure, StoreFailure, Unavailable
from ....models.generation import DeltaStream
from ....types import ByteStream, Json
from .background import BackgroundResponse, EventFollower, ResponsePoller, frames_from
from .events import Events
from .store import LEASE_S, Context, Store

logger = logging.getLogger("lean_ovms.responses")

POLL_INTERVAL_S = 0.5
"""While something runs in the background: look so often whether another server wants it to stop."""

HEARTBEAT_INTERVAL_S = LEASE_S / 5
"""And tell the other servers so often that this one is there."""

CANCEL_TIMEOUT_S = 10.0
"""Wait so long for another server to stop a response; then it is a 503."""


class ResponseService:
    """Open it before serving (or it opens itself at the first use), drain it while the server stops, close it after."""

    def __init__(self, config: Config) -> None:
        self.store = Store(config)
        self._ping_s = config.sse_ping_s
        self._background: dict[str, BackgroundResponse] = {}
        self._unsaved: dict[str, Callable[[], Awaitable[None]]] = {}  # what is over, but not kept yet
        self._monitor_task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the store. Raises StartError."""
        await self.store.open()

    async def drain(self, timeout_s: float) -> None:
        """Let background responses finish for so long."""
        if tasks := [run.task for run in self._background.values() if not run.finished]:
            await asyncio.wait(tasks, timeout=timeout_s)

    async def close(self) -> None:
        """End what still runs, as failed, and let go of the store. Idempotent."""
        reason = "The server was stopped before this response was finished."
        running = list(self._background.values())
        await asyncio.gather(*(run.stop(Unavailable(reason)) for run in running), return_exceptions=True)
        if self._monitor_task is not None:
            self._monitor_task.cancel()
            await asyncio.wait([self._monitor_task])
            await self._retry_saves()
        await self.store.close()

    async def save(self, final: Json, context: Context) -> None:
        """Keep a response that is over. When that fails the answer says so: its `store` is false."""
        try:
            await self.store.finish(final, context)
        except StoreFailure as error:
            logger.error("response %s is not kept: %s", final["id"], error.message)
            final["store"] = False

    async def start_background(self, events: Events, generation: DeltaStream, context: Context) -> BackgroundResponse:
        """Generate on in the background; the generation is ours from here on. Raises StoreFailure."""
        try:
            await self.store.start(events.response(), context)
        except BaseException:
            await generation.aclose()
            raise

        async def save(final: Json, frames: bytes) -> None:
            async def write() -> None:
                await self.store.finish(final, context, started=True, frames=frames)
                self._forget(final["id"])

            try:
                await write()
            except StoreFailure as error:
                logger.error("response %s is not kept yet: %s", final["id"], error.message)
                self._unsaved[final["id"]] = write

        run = self._background[events.body.id] = BackgroundResponse(events, generation, save)
        if self._monitor_task is None or self._monitor_task.done():
            self._monitor_task = asyncio.get_running_loop().create_task(self._monitor())
        return run

    def _forget(self, response_id: str) -> None:
        self._background.pop(response_id, None)
        self._unsaved.pop(response_id, None)

    async def _monitor(self) -> None:
        """While something runs: show the other servers that we are there, and do what they ask of us."""
        shown = 0.0
        while self._background:
            await asyncio.sleep(POLL_INTERVAL_S)
            see = time.monotonic() > shown + HEARTBEAT_INTERVAL_S
            try:
                stopped = await self.store.attend(see)
            except StoreFailure:  # it is in the log; when the store is back, this goes on
                continue
            runs = [self._background[response_id] for response_id in stopped if response_id in self._background]
            await asyncio.gather(*(run.stop() for run in runs))
            if see:
                shown = time.monotonic()
                await self._retry_saves()
            for response_id in stopped:
                if response_id in self._unsaved:  # it was deleted or given up while the store was away
                    self._forget(response_id)

    async def _retry_saves(self) -> None:
        for write in list(self._unsaved.values()):
            with contextlib.suppress(StoreFailure):
                await write()

    async def get(self, response_id: str) -> Json:
        """The response object as it is now. Raises NotFound."""
        run = self._background.get(response_id)
        if run is not None:
            return run.events.response()
        return (await self._get_stored(response_id))[0]

    async def _get_stored(self, response_id: str) -> tuple[Json, bool]:
        """(a response that does not run here, whether it runs on another server). Raises NotFound."""
        body, live = await self.store.get(response_id)
        return ({**body, "status": "in_progress"} if live else body), live

    async def cancel(self, response_id: str) -> Json:
        """Stop a background response; the response object. One that is over stays as it is. Raises NotFound."""
        run = self._background.get(response_id)
        if run is not None:
            await run.stop()
            return run.events.response()
        body, live = await self._get_stored(response_id)
        if not body["background"]:
            raise BadRequest("Only background responses can be cancelled; close the connection of others instead.")
        if live:
            await self.store.request_stop(response_id)
            deadline = time.monotonic() + CANCEL_TIMEOUT_S
            while live:
                if time.monotonic() > deadline:
                    raise Unavailable("The server that makes this response does not answer; it was asked to stop.")
                await asyncio.sleep(POLL_INTERVAL_S / 2)
                body, live = await self._get_stored(response_id)
        return body

    async def delete(self, response_id: str) -> None:
        """Forget a response, and stop it if it runs, here or elsewhere. Raises NotFound."""
        await self.store.delete(response_id)
        run = self._background.get(response_id)
        if run is not None:
            await run.stop()

    async def stream(self, response_id: str, start: int) -> bytes | ByteStream:
        """The events of a background response from number `start` on. Raises NotFound and BadRequest."""
        run = self._background.get(response_id)
        if run is not None:
            return EventFollower(run, start, self._ping_s)
        body, live = await self._get_stored(response_id)
        if live:
            return ResponsePoller(lambda: self._stored_frames(response_id), start, self._ping_s, POLL_INTERVAL_S)
        frames = await self.store.frames(response_id)
        if frames is None:
            reason = "its stream was lost" if body["background"] else "it was not created with background true"
            raise BadRequest(f"Response {response_id!r} cannot be streamed: {reason}.", param="stream")
        return frames_from(frames, start)

    async def _stored_frames(self, response_id: str) -> bytes | None:
        """The stream of a response that runs on another server, once it is over. Raises NotFound and EngineFailure."""
        body, live = await self._get_stored(response_id)
        if live:
            return None
        frames = await self.store.frames(response_id)
        if frames is None:
            raise EngineFailure((body.get("error") or {}).get("message") or "its stream was lost")
        return frames
