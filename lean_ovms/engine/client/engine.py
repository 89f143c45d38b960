"""The parent side of the engine: submit, cancel, encode, decode, and an engine that comes back when its child dies.

Knows the child's life (process), who waits for what (mailroom) and when silence is death (watchdog). Knows nothing of
text or HTTP.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
from collections.abc import Sequence

from ...config import Config
from ...errors import BadRequest, RequestError, RequestTimeout, StartError, Unavailable
from ...types import EngineStats, Image, ModelInfo, SamplingParams, Vocabulary
from .. import protocol
from .child import Child
from .prestart import COMMAND
from .replies import ReplyRouter, ReplyStream
from .watchdog import Watchdog

__all__ = ["Engine", "ReplyStream"]

log = logging.getLogger("lean_ovms.engine")

BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Wait before the first, second, ... restart in a row; the last one is repeated."""
HEALTHY_AFTER_S = 60.0
"""A child that lived so long was well: the next death is a first one again."""
FAILED_AFTER = 5
"""So many restarts in a row that did not get ready are called failed (and still tried)."""
WATCHDOG_ID = 0
"""The watchdog's pings; ids of requests start at 1, so that nobody waits for their pongs."""

_SAMPLING = tuple(field.name for field in dataclasses.fields(SamplingParams))


class Engine:
    """One model's engine child, whichever life it is in.

    state: "loading", "ready", "restarting", "failed" (restarts do not get ready; still tried) or "stopped".
    info, vocabulary: as the last Ready said; they exist once start() has returned. restarts: children after the first.
    """

    info: ModelInfo
    vocabulary: Vocabulary

    def __init__(self, config: Config, command: Sequence[str] | None = None) -> None:
        """command: what starts a child; the number of its end of the pipe is appended."""
        self._config = config
        self._command = command or COMMAND
        self.state = "loading"
        self.restarts = 0
        self._child: Child | None = None
        self._mail = ReplyRouter(self._send)
        self._dog = Watchdog(config.engine_watchdog_s, lambda: self._mail.busy, self._ping, self._bite)
        # restarting
        self._reviving: asyncio.Task[None] | None = None
        self._unready = 0  # restarts in a row without a healthy life
        self._ready_at = 0.0
        self._expected_at = 0.0
        self._load_s = 1.0

    @property
    def busy(self) -> bool:
        """Somebody waits for something from it."""
        return self._mail.busy

    @property
    def pid(self) -> int | None:
        """The child's process id, None while there is none."""
        return self._child.pid if self._child and self._child.alive else None

    # --- life ---

    async def start(self) -> ModelInfo:
        """Start the first child and wait until its model is loaded. Raises StartError: never served. Call it once."""
        assert self._child is None, "an engine is started once"
        try:
            await self._launch()
        except StartError:
            if self.state != "stopped":
                self.state = "failed"
            raise
        return self.info

    async def stop(self) -> None:
        """End the child, and everything in flight with an error. Idempotent."""
        self.state = "stopped"
        self._dog.sleep()
        self._mail.fail_all(lambda: Unavailable(_STOPPED, code="shutting_down"))
        if self._reviving is not None:
            self._reviving.cancel()
            await asyncio.wait([self._reviving])
        if self._child is not None:
            await self._child.stop()

    async def _launch(self) -> None:
        if self.state == "stopped":
            raise StartError("the engine was stopped before it was started")
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._expected_at = began + self._load_s
        child = self._child = Child(self._deliver, self._on_lost)
        try:
            load = protocol.Load(self._config.for_engine(), self._config.task or protocol.TEXT_GENERATION)
            ready = await child.start(self._command, load, self._config.engine_load_timeout_s)
            if child.ended:
                raise StartError("the engine died as soon as the model was loaded")
            self._take(ready)
        except StartError:
            await child.stop()
            raise
        except BaseException:
            child.kill("given up while loading")
            raise
        self._ready_at = loop.time()
        self._load_s = self._ready_at - began
        self.state = "ready"
        log.info("engine %d is ready after %.2f s", child.pid, self._load_s)

    def _take(self, ready: protocol.Ready) -> None:
        try:
            self.info = ModelInfo(**ready.info)
            pieces = [piece.encode("latin-1") for piece in ready.pieces]
            fresh = Vocabulary(
                pieces=pieces,
                special=frozenset(ready.special),
                strip_leading_space=ready.strip_leading_space,
                exact=ready.exact,
                clean_up=ready.clean_up,
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise StartError(f"the engine's greeting cannot be understood: {error}") from error
        if fresh != getattr(self, "vocabulary", None):
            self.vocabulary = fresh  # else the old object stays, and with it what others have built from it

    def _on_lost(self, child: Child) -> None:
        """The child's pipe has ended: answer everybody now, then bring a new child up."""
        self._dog.sleep()
        if self.state != "ready" or child is not self._child:
            return
        now = asyncio.get_running_loop().time()
        if now - self._ready_at >= HEALTHY_AFTER_S:
            self._unready = 0
        self.state = "restarting"
        self._expected_at = now + self._backoff_s() + self._load_s
        log.error("engine %d is lost%s; restarting", child.pid, f": {child.why}" if child.why else "")
        self._mail.fail_all(self._lost_error)
        self._reviving = asyncio.get_running_loop().create_task(self._revive(child))

    async def _revive(self, old: Child) -> None:
        await old.stop()  # its memory is free before the next one loads
        while True:
            await asyncio.sleep(self._backoff_s())
            self._unready += 1
            self.restarts += 1
            try:
                return await self._launch()
            except StartError as error:
                log.error("engine restart %d in a row failed: %s", self._unready, error)
                if self._unready >= FAILED_AFTER:
                    self.state = "failed"
                self._expected_at = asyncio.get_running_loop().time() + self._backoff_s() + self._load_s

    def _backoff_s(self) -> float:
        return BACKOFF_S[min(self._unready, len(BACKOFF_S) - 1)]

    # --- requests ---

    async def submit(
        self,
        prompt: str | list[int],
        *,
        add_special_tokens: bool,
        truncate: int | None,
        want_tokens: bool,
        sampling: SamplingParams,
        constraint: str = "",
        images: Sequence[Image] = (),
        timeout_s: float = 0.0,
    ) -> ReplyStream:
        """Start a generation and wait until the engine has accepted it; the caller closes what it gets.

        truncate: keep only that many last prompt tokens. constraint: as in messages.Submit. images: what the tags of
        the prompt's text stand for. timeout_s: most time to wait, then RequestTimeout; 0: any.
        Raises RequestError: the engine's refusal, or Unavailable.
        When the waiting task is cancelled the generation is, too.
        """
        self._require_ready()
        self._dog.watch()
        reply = self._mail.open(sampling.n)
        try:
            fields = {name: getattr(sampling, name) for name in _SAMPLING}
            record = protocol.Submit(reply.id, prompt, add_special_tokens, truncate, want_tokens, fields, constraint)
            record.images = [[image.height, image.width] for image in images]
            self._send(record, [image.pixels for image in images])
        except RequestError:
            self._mail.forget(reply.id)
            raise
        late = None
        if timeout_s:
            error = RequestTimeout("the request waited longer than this server lets a request take")
            late = asyncio.get_running_loop().call_later(timeout_s, reply.abort, error)
        try:
            await reply.admitted()
        except asyncio.CancelledError:
            reply.close()
            raise
        finally:
            if late is not None:
                late.cancel()
        return reply

    async def encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        """Tokenize. Raises RequestError."""
        self._require_ready()
        self._dog.watch()
        answer: list[list[int]] = await self._mail.call(lambda n: protocol.Encode(n, texts, add_special_tokens))
        return answer

    async def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Detokenize with the model's own detokenizer. Raises RequestError."""
        self._require_ready()
        self._dog.watch()
        answer: str = await self._mail.call(lambda n: protocol.Decode(n, tokens, skip_special_tokens))
        return answer

    async def stats(self) -> EngineStats:
        """The engine's own accounts, taken between two steps. Raises Unavailable."""
        self._require_ready()
        self._dog.watch()
        return EngineStats(**await self._mail.call(protocol.Ping))

    def unavailable(self) -> Unavailable:
        """The error for a request that comes while the engine is not ready, with the time when it should be."""
        if self.state == "stopped":
            return Unavailable(_STOPPED, code="shutting_down")
        return self._with_retry(Unavailable(_NOT_READY.get(self.state, "The model is not ready.")))

    def _require_ready(self) -> None:
        if self.state != "ready":
            raise self.unavailable()

    def _lost_error(self) -> RequestError:
        text = "The engine stopped unexpectedly while it worked on this request, and is being restarted."
        return self._with_retry(Unavailable(text, code="engine_restarted"))

    def _with_retry(self, error: Unavailable) -> Unavailable:
        left_s = self._expected_at - asyncio.get_running_loop().time()
        error.retry_after_s = max(1, min(60, math.ceil(left_s)))
        return error

    # --- the pipe ---

    def _send(self, record: protocol.Record, pixels: Sequence[bytes] = ()) -> None:
        try:
            frame = protocol.encode([record])
        except TypeError as error:  # orjson: a lone surrogate, or an integer beyond 64 bits; both come from a client
            raise BadRequest(f"The request cannot be passed to the model: {error}") from error
        if len(frame) > protocol.MAX_FRAME_BYTES:
            raise BadRequest("The request is too large.")
        if self._child is not None:
            for part in protocol.attachments(pixels) if pixels else ():
                self._child.write(part)
            self._child.write(frame)

    def _deliver(self, records: list[protocol.Record]) -> None:
        self._dog.heard(asyncio.get_running_loop().time())
        self._mail.deliver(records)

    def _ping(self) -> None:
        self._send(protocol.Ping(WATCHDOG_ID))

    def _bite(self) -> None:
        if self._child is not None:
            self._child.kill(f"silent for {self._config.engine_watchdog_s:g} s with work to do")


_STOPPED = "The server is shutting down."
_NOT_READY = {
    "loading": "The model is being loaded.",
    "restarting": "The engine is being restarted.",
    "failed": "The model could not be loaded again after its engine stopped; the server keeps trying.",
}
