"""The front end's client of the engine, which submits requests, and restarts the engine process if it dies.

It uses the process (child.py), the routing of records (replies.py) and the detection of hangs (Watchdog). It knows no
HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from ...composition import records_of
from ...config import Config
from ...errors import BadRequest, RequestError, StartError, Unavailable, retry_after, too_slow
from ...manifest import ENGINE
from ...types import SamplingParams, distinct_pixels
from ...types.engine import EngineRequest, EngineStats, ModelInfo, Vocabulary
from .. import protocol
from ..protocol import changed_fields
from .child import GRACE_S, Child
from .prestart import COMMAND
from .replies import Close, L, OnPartial, ReplyRouter, ReplyStream, Send

if TYPE_CHECKING:
    from .interface import ModelEngine

log = logging.getLogger("lean_ovms.engine")

BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds to wait before the first, second, ... restart in a row; the last value is repeated."""
HEALTHY_AFTER_S = 60.0
"""Seconds after which a running process counts as healthy, so that the count of restarts in a row begins again."""
FIRST_TRIES = 3
"""The number of processes that are tried before a model that was never ready counts as one that cannot be loaded."""
FAILED_AFTER = 5
"""The number of failed restarts in a row after which the state is "failed". Restarts go on nevertheless."""
PARTS_PER_TURN = 16
"""The number of parts of a long prompt that are encoded in one iteration of the event loop; this takes 0.5 ms."""
IDS_PER_TURN = 65536
"""The number of token ids that are made of bytes in one iteration of the event loop; this takes 1 ms."""
INT_BYTES = array("i").itemsize
WATCHDOG_ID = 0
"""The id of the watchdog's pings. The ids of requests start at 1, so replies to pings are dropped."""
JOINED_BYTES = 1 << 18
"""The bytes up to which a record and its attachments are written in one system call, for which they are copied."""

sampling_fields = changed_fields(SamplingParams)
"""A function that returns the sampling fields that differ from the defaults, for protocol.Submit."""


async def _nothing() -> None:
    """Does nothing; called after a restart by default."""


def engine_of(config: Config) -> ModelEngine:
    """Creates the engine of a model with these options, without starting it. Raises StartError for wrong options."""
    make = config.part(ENGINE)
    found: ModelEngine = EngineClient(config) if make is None else make(config)
    return found


class EngineClient:
    """A ModelEngine that consists of one process."""

    info: ModelInfo
    vocabulary: Vocabulary
    processes = 1

    def __init__(self, config: Config, command: Sequence[str] | None = None) -> None:
        """Prepares a client; `start` starts the process.

        Args:
            config: All options.
            command: The command that starts the process; the file descriptor of the process's end of the pipe is
                appended to it.
        """
        self._config = config
        self._command = command or COMMAND
        self._features = config.engine_rows
        self._grace_s = GRACE_S + sum(row.close_s for row in self._features)
        self.state = "loading"
        self.restarts = 0
        self.on_restart: Callable[[], Awaitable[None]] = _nothing
        self._child: Child | None = None
        self._replies = ReplyRouter(self._send)
        ping = partial(self._send, protocol.Ping(WATCHDOG_ID))
        self._watchdog = Watchdog(config.engine_watchdog_s, lambda: self._replies.busy, ping, self._on_timeout)
        # restarting
        self._restart_task: asyncio.Task[None] | None = None
        self._unready = 0  # restarts in a row without a healthy life
        self._ready_at = 0.0
        self._expected_at = 0.0
        self._clock = time.monotonic  # the loop's clock from the first child on; threads, too, read it
        self._load_s = 1.0

    @property
    def busy(self) -> bool:
        """Whether any requests or calls are in flight."""
        return self._replies.busy

    @property
    def in_flight(self) -> int:
        """The number of requests and calls in flight."""
        return len(self._replies)

    @property
    def pid(self) -> int | None:
        """The id of the engine process; None while there is none."""
        return self._child.pid if self._child and self._child.alive else None

    @property
    def pids(self) -> list[int]:
        """The id of the engine process, in a list that is empty if there is none."""
        return [] if self.pid is None else [self.pid]

    # --- life ---

    async def start(self) -> ModelInfo:
        """Starts the engine process, and waits until its model is loaded. It may be called once.

        Raises StartError if the model cannot be loaded. A process that is killed while it loads, for instance because
        the memory is exhausted, is replaced up to FIRST_TRIES - 1 times.
        """
        assert self._child is None, "an engine can only be started once"
        while True:
            try:
                await self._launch()
            except StartError as error:
                if self.state == "stopped":
                    raise
                if not error.temporary or self._unready == FIRST_TRIES - 1:
                    self.state = "failed"
                    raise
                log.error("%s; trying again", error)
                await self._back_off()
            else:
                return self.info

    async def stop(self) -> None:
        """Stops the process, and fails all requests in flight. Idempotent."""
        self.state = "stopped"
        self._watchdog.stop()
        self._replies.fail_all(lambda: Unavailable(_STOPPED, code="shutting_down"))
        if self._restart_task is not None:
            self._restart_task.cancel()
            await asyncio.wait([self._restart_task])
        if self._child is not None:
            await self._child.stop()

    async def _launch(self) -> None:
        if self.state == "stopped":
            raise StartError("the engine was stopped before it was started")
        loop = asyncio.get_running_loop()
        self._clock = loop.time
        started_at = loop.time()
        self._expected_at = started_at + self._load_s
        child = self._child = Child(self._deliver, self._on_lost, self._grace_s)
        try:
            row = self._config.composition.task(self._config.task)
            features = self._config.engine_features(row)
            child.know(records_of(row, *self._features))
            load = protocol.Load(self._config.for_engine(features), row.name, features)
            ready = await child.start(self._command, load, self._config.engine_load_timeout_s)
            self._update_model(ready)
            if self._ready_at:
                await self.on_restart()
            if child.ended or self.state == "stopped":
                raise StartError("the engine ended just after the model was loaded", temporary=self.state != "stopped")
        except StartError:
            await child.stop()
            raise
        except BaseException:
            child.kill("stopped while loading")
            raise
        self._ready_at = loop.time()
        self._load_s = self._ready_at - started_at
        self.state = "ready"
        log.info("engine %d is ready after %.2f s", child.pid, self._load_s)

    def _update_model(self, ready: protocol.Ready) -> None:
        try:
            self.info = ModelInfo.from_json(ready.info)
            vocabulary = Vocabulary.from_wire(ready.vocabulary)
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            raise StartError(f"the engine's ready record is invalid: {error}") from error
        if vocabulary != getattr(self, "vocabulary", None):
            self.vocabulary = vocabulary  # otherwise the old object is kept, and everything built from it

    def _on_lost(self, child: Child) -> None:
        """Fails all requests after the engine process was lost, and starts a new process."""
        self._watchdog.stop()
        if self.state != "ready" or child is not self._child:
            return
        now = asyncio.get_running_loop().time()
        if now - self._ready_at >= HEALTHY_AFTER_S:
            self._unready = 0
        self.state = "restarting"
        self._expected_at = now + self._backoff_s() + self._load_s
        log.error("engine %d died%s; restarting it", child.pid, f": {child.why}" if child.why else "")
        self._replies.fail_lost(self._lost_error)
        self._restart_task = asyncio.get_running_loop().create_task(self._restart(child))

    async def _restart(self, old: Child) -> None:
        await old.stop()  # its memory is free before the next one loads
        while True:
            await self._back_off()
            try:
                await self._launch()
            except Exception as error:
                fault = not isinstance(error, StartError)
                log.error("restarting the engine failed %d times in a row: %s", self._unready, error, exc_info=fault)
                if self._unready >= FAILED_AFTER:
                    self.state = "failed"
                    self._replies.fail_all(self.unavailable)
                self._expected_at = asyncio.get_running_loop().time() + self._backoff_s() + self._load_s
                continue
            if self._replies.busy:
                self._watchdog.start()
                self._replies.resume()
            return

    async def _back_off(self) -> None:
        """Waits for the back-off time before the next restart, and counts the restart."""
        await asyncio.sleep(self._backoff_s())
        self._unready += 1
        self.restarts += 1

    def _backoff_s(self) -> float:
        return BACKOFF_S[min(self._unready, len(BACKOFF_S) - 1)]

    # --- requests (interface.ModelEngine) ---

    async def submit(self, request: EngineRequest) -> ReplyStream:
        prompt = request.prompt
        texts = await text_parts(prompt) if isinstance(prompt, str) and len(prompt) > protocol.TEXT_PART else []
        self._begin()
        reply = self._replies.open(request.sampling.n)
        try:
            self._send(_record(reply.id, request, texts))
        except RequestError:
            self._replies.close(reply.id)
            raise
        late = None
        if request.timeout_s:
            late = asyncio.get_running_loop().call_later(request.timeout_s, reply.abort, too_slow())
        try:
            await reply.wait_accepted()
        except asyncio.CancelledError:
            reply.cancel()
            raise
        finally:
            if late is not None:
                late.cancel()
        return reply

    def open_lasting(self, make: Callable[[int, Send, Close], L]) -> L:
        self._begin()
        return self._replies.add_lasting(lambda number: make(number, self._send_if_ready, self._replies.close))

    async def encode(self, texts: list[str], add_special_tokens: bool, client: str = "") -> list[list[int]]:
        parts = await text_parts(texts[0]) if len(texts) == 1 and len(texts[0]) > protocol.TEXT_PART else []
        answer: protocol.Encoded = await self.call(
            lambda n: protocol.Encode(n, [] if parts else texts, add_special_tokens, client, len(parts), parts)
        )
        return await unpacked(answer)

    async def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        answer: str = await self.call(lambda n: protocol.Decode(n, tokens, skip_special_tokens))
        return answer

    async def stats(self) -> EngineStats:
        return EngineStats(**await self.call(protocol.Ping))

    async def call(self, make: Callable[[int], protocol.Record], on_partial: OnPartial = None) -> Any:
        self._begin()
        return await self._replies.call(make, on_partial)

    async def call_each(self, make: Callable[[int], protocol.Record]) -> list[Any]:
        """Sends a record to the only process, and returns its reply in a list. Raises RequestError."""
        return [await self.call(make)]

    def only(self, process: int) -> AbstractContextManager[None]:
        """Returns a context manager without effect, since there is only one process."""
        return nullcontext()

    def unavailable(self) -> Unavailable:
        if self.state == "stopped":
            return Unavailable(_STOPPED, code="shutting_down")
        return self._with_retry(Unavailable(_NOT_READY.get(self.state, "The model is not ready.")))

    def _begin(self) -> None:
        """Prepares for a request or call. Raises Unavailable if the engine cannot take it."""
        if self.state != "ready":
            raise self.unavailable()
        self._watchdog.start()

    def _lost_error(self) -> RequestError:
        text = "The engine stopped unexpectedly during this request, and is being restarted; please try again."
        return self._with_retry(Unavailable(text, code="engine_restarted"))

    def _with_retry(self, error: Unavailable) -> Unavailable:
        error.retry_after_s = retry_after(self._expected_at - self._clock())
        return error

    # --- the pipe ---

    def _send(self, record: protocol.Record) -> None:
        try:
            frame = protocol.encode([record])
        except TypeError as error:  # orjson: a lone surrogate, or an integer beyond 64 bits; both come from a client
            raise BadRequest(f"The request cannot be passed to the model: {error}") from error
        parts = [*protocol.attachments([record]), frame]
        if max(map(len, parts)) > protocol.MAX_FRAME_BYTES:
            raise BadRequest("The request is too large.")
        if self._child is not None:
            if len(parts) > 1 and sum(map(len, parts)) <= JOINED_BYTES:
                parts = [b"".join(parts)]
            for part in parts:
                self._child.write(part)

    def _send_if_ready(self, record: protocol.Record) -> None:
        """Sends a record of a request that survives restarts. It is dropped while the engine is loading."""
        if self.state == "ready":
            self._send(record)

    def _deliver(self, records: list[protocol.Record]) -> None:
        self._watchdog.record_received(asyncio.get_running_loop().time())
        self._replies.deliver(records)

    def _on_timeout(self) -> None:
        if self._child is not None:
            self._child.kill(f"it had work, but did not respond for {self._config.engine_watchdog_s:g} s")


def _record(number: int, request: EngineRequest, texts: list[bytes]) -> protocol.Submit:
    """Returns the record of a request.

    Args:
        number: The id of its reply.
        request: The request.
        texts: A long prompt in parts; [] if the prompt is short.
    """
    images = request.images
    return protocol.Submit(
        number,
        "" if texts else request.prompt,
        request.add_special_tokens,
        request.truncate,
        request.want_tokens,
        sampling_fields(request.sampling),
        request.constraint,
        images=[[image.height, image.width] for image in images],
        image_times=[[image.seconds, *image.times] if image.times else [] for image in images],
        image_params=[image.param for image in images],
        image_digests=[image.digest for image in images],
        client=request.client,
        group=request.group,
        priority=request.priority,
        adapter=request.adapter,
        truncation_side=request.truncation_side,
        parts=len(texts),
        num_audio=len(request.audio),
        texts=texts,
        pixels=distinct_pixels(images),
        audio=list(request.audio),
    )


async def text_parts(text: str) -> list[bytes]:
    """Splits a long text into encoded parts for protocol.Submit, with pauses for other tasks. Raises BadRequest."""
    parts: list[bytes] = []
    try:
        for start in range(0, len(text), protocol.TEXT_PART):
            parts.append(text[start : start + protocol.TEXT_PART].encode())
            if len(parts) % PARTS_PER_TURN == 0:
                await asyncio.sleep(0)
    except UnicodeEncodeError as error:
        raise BadRequest("The request cannot be passed to the model: the prompt is not valid Unicode") from error
    return parts


async def unpacked(answer: protocol.Encoded) -> list[list[int]]:
    """Returns the token ids in an Encoded record, letting other tasks run in between if there are many."""
    if not answer.sizes:
        return answer.tokens
    texts: list[list[int]] = []
    start = 0
    for size in answer.sizes:
        ids: list[int] = []
        for begin in range(start, start + size, IDS_PER_TURN):
            end = min(begin + IDS_PER_TURN, start + size)
            ids += array("i", answer.data[begin * INT_BYTES : end * INT_BYTES])
            await asyncio.sleep(0)
        start += size
        texts.append(ids)
    return texts


_STOPPED = "The server is shutting down."
_NOT_READY = {
    "loading": "The model is being loaded.",
    "restarting": "The engine is being restarted.",
    "failed": "The engine stopped, and the model could not be loaded again; the server keeps trying.",
}


class Watchdog:
    """Distinguishes an engine that hangs from a busy one.

    It calls `ping` if the engine has sent no record for half of the time limit, and `on_timeout` after the whole limit.
    Its timer runs only while requests are in flight, so an idle server has no timer.
    """

    def __init__(
        self, limit_s: float, busy: Callable[[], bool], ping: Callable[[], None], on_timeout: Callable[[], None]
    ) -> None:
        self._limit = limit_s
        self._busy = busy
        self._ping = ping
        self._on_timeout = on_timeout
        self._last_record_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts the timer; called before a request is in flight. Silence counts from this call on."""
        if self._timer is not None and self._busy():
            return
        loop = asyncio.get_running_loop()
        self._last_record_at = loop.time()
        if self._timer is None:
            self._check_at(self._last_record_at + self._limit / 2, loop)

    def record_received(self, now: float) -> None:
        """Notes the loop time at which a record came from the engine."""
        self._last_record_at = now

    def stop(self) -> None:
        """Cancels the timer until the next `start`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_at(self, when: float, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_at(when, self._check, when, loop)

    def _check(self, due: float, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if not self._busy():
            return
        now = loop.time()
        if now - due > self._limit / 4:
            self._last_record_at = now  # this process stood still (SIGSTOP, a blocked loop): that proves nothing
        silent_s = now - self._last_record_at
        if silent_s >= self._limit:
            self._on_timeout()
        elif silent_s >= self._limit / 2:
            self._ping()
            self._check_at(self._last_record_at + self._limit, loop)
        else:
            self._check_at(self._last_record_at + self._limit / 2, loop)
