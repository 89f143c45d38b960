"""The responses of one server: what is kept, and what is being made in the background.

Everything that asks for a response by its id comes here, so that it makes no difference whether it is still running.
Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import logging

from ....config import Config
from ....errors import BadRequest, StoreFailure, Unavailable
from ....models.generation import DeltaStream
from ....types import ByteStream, Json
from .background import BackgroundResponse, EventFollower, frames_from
from .events import Events
from .store import Context, Store, interrupted

logger = logging.getLogger("lean_ovms.responses")


class ResponseService:
    """Open it before serving (or it opens itself at the first use), drain it while the server stops, close it after."""

    def __init__(self, config: Config) -> None:
        self.store = Store(config)
        self._ping_s = config.sse_ping_s
        self._runs: dict[str, BackgroundResponse] = {}

    async def open(self) -> None:
        """Open the store's file. Raises StartError."""
        await self.store.open()

    async def drain(self, timeout_s: float) -> None:
        """Let background responses finish for so long."""
        if tasks := [run.task for run in self._runs.values()]:
            await asyncio.wait(tasks, timeout=timeout_s)

    async def close(self) -> None:
        """End what still runs, as failed, and let go of the store. Idempotent."""
        reason = "The server was stopped before this response was finished."
        running = list(self._runs.values())
        await asyncio.gather(*(run.stop(Unavailable(reason)) for run in running), return_exceptions=True)
        await self.store.close()

    async def keep(self, final: Json, context: Context) -> None:
        """Keep a response that is over. When that fails the answer says so: its `store` is false."""
        try:
            await self.store.finish(final, context)
        except StoreFailure as error:
            logger.error("response %s is not kept: %s", final["id"], error.message)
            final["store"] = False

    async def launch(self, events: Events, generation: DeltaStream, context: Context) -> BackgroundResponse:
        """Generate on in the background; the generation is ours from here on. Raises StoreFailure."""
        try:
            await self.store.begin(events.response(), context)
        except BaseException:
            await generation.aclose()
            raise

        async def keep(final: Json, frames: bytes) -> None:
            try:
                await self.store.finish(final, context, begun=True, frames=frames)
            except StoreFailure as error:
                logger.error("response %s is not kept: %s", final["id"], error.message)
            finally:
                del self._runs[final["id"]]

        run = self._runs[events.body.id] = BackgroundResponse(events, generation, keep)
        return run

    async def get(self, response_id: str) -> Json:
        """The response object as it is now. Raises NotFound."""
        run = self._runs.get(response_id)
        if run is not None:
            return run.events.response()
        body, live = await self.store.get(response_id)
        return interrupted(body) if live and response_id not in self._runs else body

    async def cancel(self, response_id: str) -> Json:
        """Stop a background response; the response object. One that is over stays as it is. Raises NotFound."""
        run = self._runs.get(response_id)
        if run is not None:
            await run.stop()
            return run.events.response()
        body = await self.get(response_id)
        if not body["background"]:
            raise BadRequest("Only background responses can be cancelled; close the connection of others instead.")
        return body

    async def delete(self, response_id: str) -> None:
        """Forget a response, and stop it if it runs. Raises NotFound."""
        await self.store.delete(response_id)
        run = self._runs.get(response_id)
        if run is not None:
            await run.stop()

    async def stream(self, response_id: str, start: int) -> bytes | ByteStream:
        """The events of a background response from number `start` on. Raises NotFound and BadRequest."""
        run = self._runs.get(response_id)
        if run is not None:
            return EventFollower(run, start, self._ping_s)
        body = await self.get(response_id)
        frames = await self.store.frames(response_id)
        if frames is None:
            reason = "its stream was lost" if body["background"] else "it was not created with background true"
            raise BadRequest(f"Response {response_id!r} cannot be streamed: {reason}.", param="stream")
        return frames_from(frames, start)
