"""A client's session in any dialect: reads its events, passes audio to the engine, and sends what the engine finds.

The audio between two commits is a Stream, transcribed by one request to the engine. Streams are transcribed one after
the other, while audio of the next one is already read. The audio read ahead of the engine is limited: at the limit the
session receives no further message, and TCP slows the client down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Protocol

import orjson

from ....api.response import new_id
from ....api.services import Services
from ....errors import BadRequest, RequestError, reported
from ....observability.logging import safe
from ....types import Json
from ...speech.model import SpeechModel
from ...speech.params import SpeechEvent, TranscribeParams
from ...websocket.endpoint import read_event
from ...websocket.feature import WebSocketOptions
from ...websocket.types import GOING_AWAY, Close, WebSocket, WebSocketMessage
from ..feature import RealtimeOptions
from .audio import AudioQueue, AudioReader
from .dialect import EVENTS
from .openai_session import rendered
from .settings import Settings


class Stream:
    """A stream of audio that is transcribed as one request."""

    def __init__(
        self,
        dialect: Dialect,
        settings: Settings,
        model: SpeechModel,
        params: TranscribeParams,
        offset_s: float,
        ahead_s: float,
    ) -> None:
        """Creates a stream without audio.

        Args:
            dialect: The dialect in which the client sends it, and gets its text.
            settings: The settings of the client.
            model: The model that transcribes it.
            params: The parameters of the transcription.
            offset_s: The beginning of the stream, in seconds of the session.
            ahead_s: The most seconds of audio that may wait for the engine.
        """
        self.dialect = dialect
        self.settings = settings
        self.model = model
        self.params = params
        self.offset_s = offset_s
        self.item_id = new_id("item")
        self.audio = AudioQueue(ahead_s)
        self.reader = AudioReader(settings.format)
        self.committed = asyncio.Event()
        """Set once the client has asked for the text. Before that the text is computed, but not sent."""
        self.task: asyncio.Task[None] | None = None
        """The task of the transcription; None before it has begun."""
        self.received = False
        """Whether the client has sent audio for it, which the reader may hold back."""
        self.closed = self.cancelled = False

    def close(self) -> None:
        """Ends the audio of the stream; its text may be sent from now on."""
        if not self.closed:
            self.closed = True
            self.audio.put(self.reader.flush())
            self.audio.close()
        self.committed.set()

    def cancel(self) -> None:
        """Drops the audio and the text of the stream."""
        self.closed = self.cancelled = True
        self.audio.end()
        self.audio.close()
        self.committed.set()
        if self.task is not None:
            self.task.cancel()


logger = logging.getLogger("lean_ovms.api")

MAX_WAITING = 4
"""The number of streams waiting for transcription at which no further message is received."""
FINISH_S = 30.0
"""Seconds in which the remaining audio is transcribed before a session ends by itself."""
INLINE_CHARACTERS = 65536
"""Base64 characters beyond which decoding runs in a thread: 1 MiB takes 25 ms at 24 kHz (2026-11)."""

IDLE = Close(reason="Realtime session idle timeout.")
EXPIRED = Close(reason="Realtime session reached its maximum duration.")
STOPPING = Close(GOING_AWAY, "the server is shutting down")


class Dialect(Protocol):
    """The dialect of one client's session. Methods that send wait while the client does not read."""

    def __init__(self, session: TranscriptionSession) -> None: ...

    async def handle(self, event: Json) -> None:
        """Handles a client's event, whose type is in dialect.EVENTS. Raises RequestError."""

    async def refuse(self, error: RequestError, event: Json) -> None:
        """Sends the error for a client's event, which is {} if the message could not be read as one."""

    async def transcribed(self, stream: Stream, event: SpeechEvent) -> None:
        """Sends what an event of the engine adds to the transcript of a stream."""

    async def finished(self, stream: Stream) -> None:
        """Is called when a stream has been transcribed to its end."""

    async def failed(self, stream: Stream, error: RequestError) -> None:
        """Is called when the transcription of a stream has failed."""

    def close(self) -> None:
        """Is called when the session has ended."""


class TranscriptionSession:
    """One client's WebSocket, with its settings and the streams that are transcribed one after another."""

    def __init__(
        self,
        services: Services,
        socket: WebSocket,
        dialect: type[Dialect],
        model_name: str,
        dialect_of: Callable[[Json], type[Dialect] | None] | None = None,
    ) -> None:
        """Begins a session.

        Args:
            services: The services of the server.
            socket: The WebSocket.
            dialect: The dialect that the URL reveals.
            model_name: The name of the model in the URL.
            dialect_of: Returns the dialect that an event reveals; None if the URL decides.
        """
        self.id = new_id("sess")
        self.services = services
        self.model_name = model_name
        self.settings = Settings(model=model_name)
        """The settings for the next stream."""
        self.current: Stream | None = None
        """The stream to which audio is added; None if there is none."""
        self._dialect_of = dialect_of
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.dialect = dialect(self)
        self._options = services.config.of(RealtimeOptions)
        self._socket = socket
        self._clock = asyncio.get_running_loop().time
        self._ends_at = self._clock() + services.config.of(WebSocketOptions).max_realtime_session_s
        self._fed_s = 0.0
        self._waiting: asyncio.Queue[Stream] = asyncio.Queue(MAX_WAITING)
        self._unfinished: list[Stream] = []
        self._touched = self._clock()
        self._blocked = False  # whether the client is being slowed down
        self._idle = asyncio.Event()  # set while nothing is unfinished
        self._idle.set()

    # --- for the dialects

    async def send(self, event: Json) -> None:
        """Sends an event to the client."""
        await self._socket.send(orjson.dumps(event))

    async def model(self, name: str = "") -> SpeechModel:
        """Returns a model, which is loaded first if it never was. Raises RequestError.

        The name "" stands for the model of the settings, or else for the only one.
        """
        registry = self.services.registry
        name = name or self.settings.model or registry.default_of(SpeechModel)
        if not name:
            raise BadRequest("Missing required field: model", param="model", code="model_not_validated")
        return await self.services.when_known(lambda: registry.get(name, SpeechModel))

    @property
    def written_s(self) -> float:
        """The seconds of audio received so far."""
        return self._fed_s + (self.current.audio.seconds if self.current is not None else 0.0)

    def described(self) -> Json:
        """Returns the current settings as OpenAI's session object."""
        left_s = max(0.0, self._ends_at - self._clock())
        return rendered(self.settings, self.id.replace("-", "_"), int(time.time() + left_s))

    def stop(self) -> None:
        """Closes the session, because the server stops, after the text of the received audio was sent."""
        if not self._stopping.done():
            self._stopping.set_result(None)

    async def configure(self, settings: Settings) -> None:
        """Applies settings to the next stream. Raises RequestError if the model lacks the support.

        The current stream ends if its audio has another format or utterances are detected; otherwise only the client
        says where it ends.
        """
        if settings == self.settings:
            return
        settings.params((await self.model(settings.model)).speech, partials=False)
        self.settings, stream = settings, self.current
        if stream is not None and (stream.settings.turns or settings.turns or stream.reader.format != settings.format):
            await self.close_stream(stream)

    async def append(self, stream: Stream, audio: str) -> None:
        """Adds audio in base64 to the current stream. Raises RequestError."""
        reader = stream.reader
        if not reader.ready:
            await asyncio.to_thread(reader.prepare)
        size = len(audio)
        block = await self.services.offload.run(size, lambda: reader.read(audio), inline_below=INLINE_CHARACTERS)
        stream.received = True
        stream.audio.put(block)
        self._blocked = True
        await stream.audio.room()
        self._blocked = False

    async def open(self) -> Stream:
        """Returns the current stream, or a new one without audio.

        A failed stream remains current until the client commits it, unless the server detects the turns.
        """
        stream = self.current
        if stream is not None and stream.audio.ended and stream.settings.turns is not None:
            self._left(stream)
        if self.current is not None:
            return self.current
        model = await self.model()
        params = self.settings.params(model.require_ready().speech, partials=self._options.realtime_partials)
        ahead_s = self._options.realtime_ahead_s
        stream = Stream(self.dialect, self.settings, model, params, self._fed_s, ahead_s)
        self._blocked = True
        await self._waiting.put(stream)
        self._blocked = False
        self.current = stream
        self._unfinished.append(stream)
        self._idle.clear()
        return stream

    async def close_stream(self, stream: Stream) -> None:
        """Ends the audio of this stream."""
        stream.close()
        self._left(stream)

    async def drop_stream(self, stream: Stream) -> None:
        """Drops a stream with its audio and text."""
        stream.cancel()
        self._left(stream)

    def _left(self, stream: Stream) -> None:
        if self.current is stream:
            self.current = None
        self._fed_s += stream.audio.seconds

    # --- its life

    async def run(self) -> Close:
        """Serves the client until a limit is reached; returns how to close. It is cancelled if the client leaves."""
        transcribing = asyncio.create_task(self._transcribe_all())
        reading = asyncio.create_task(self._read())
        tasks = {transcribing, reading}
        try:
            close = await self._until_end(tasks)
            reading.cancel()
            await self._finish()
            return close
        finally:
            self.dialect.close()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _until_end(self, tasks: set[asyncio.Task[None]]) -> Close:
        ends_at = self._ends_at
        while True:
            idle_at = self._touched + self._options.realtime_idle_timeout_s
            if self._is_busy():
                idle_at = max(idle_at, self._clock() + 1.0)
            timeout = max(0.0, min(idle_at, ends_at) - self._clock())
            await asyncio.wait({*tasks, self._stopping}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()  # raises the error; tasks end only if there is a bug
            if self._stopping.done():
                return STOPPING
            if self._clock() >= ends_at:
                return EXPIRED
            if self._clock() >= self._touched + self._options.realtime_idle_timeout_s and not self._is_busy():
                return IDLE

    def _is_busy(self) -> bool:
        """Returns whether the client is waiting for the server, and so need not send anything."""
        return self._blocked or any(stream.closed for stream in self._unfinished)

    async def _finish(self) -> None:
        """Waits at most FINISH_S seconds until the text of the received audio is sent."""
        if self.current is not None:
            await self.close_stream(self.current)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), FINISH_S)

    # --- events of the client

    async def _read(self) -> None:
        while True:
            message = await self._socket.receive()
            self._touched = self._clock()
            await self._answer(message)
            del message  # frees the message while waiting for the next one

    async def _answer(self, message: WebSocketMessage) -> None:
        event: Json = {}
        try:
            if not message.is_text:
                raise BadRequest("Events must be JSON in text messages, not in binary ones", code="invalid_frame")
            event = await read_event(message, self.services, lambda event: event)
            await self._handle(event)
        except Exception as error:
            self._blocked = False
            await self.dialect.refuse(reported(error, logger, "an event of a realtime session failed"), event)

    async def _handle(self, event: Json) -> None:
        kind = event["type"]
        if self._dialect_of is not None and (shown := self._dialect_of(event)) is not None:
            self._dialect_of = None
            if not isinstance(self.dialect, shown) and self.current is None:
                self.dialect = shown(self)
        if kind not in EVENTS:
            text = f"Unknown event type: {safe(kind, 80)}. Known types: {', '.join(EVENTS)}"
            raise BadRequest(text, param="type", code="unknown_event")
        await self.dialect.handle(event)

    # --- transcription

    async def _transcribe_all(self) -> None:
        while True:
            stream = await self._waiting.get()
            if not stream.cancelled:
                stream.task = asyncio.create_task(self._transcribe(stream))
                try:
                    await asyncio.wait({stream.task})
                finally:
                    stream.task.cancel()
                    await asyncio.wait({stream.task})
                if not stream.task.cancelled():
                    stream.task.result()
            self._unfinished.remove(stream)
            if not self._unfinished:
                self._idle.set()

    async def _transcribe(self, stream: Stream) -> None:
        """Sends the transcription of a stream, beginning when it is committed."""
        dialect = stream.dialect
        pending: list[SpeechEvent] = []
        try:
            async with contextlib.aclosing(stream.model.transcribe(stream.audio, stream.params)) as events:
                async for event in events:
                    pending.append(event)
                    if stream.committed.is_set():
                        await self._send_all(dialect, stream, pending)
            await stream.committed.wait()
            await self._send_all(dialect, stream, pending)
            await dialect.finished(stream)
        except Exception as error:
            stream.audio.end()
            await dialect.failed(stream, reported(error, logger, "a transcription failed"))
        finally:
            stream.audio.end()
            self._touched = self._clock()

    async def _send_all(self, dialect: Dialect, stream: Stream, pending: list[SpeechEvent]) -> None:
        for event in pending:
            await dialect.transcribed(stream, event)
        pending.clear()
