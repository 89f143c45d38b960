"""The front end's side of a transcription: it sends audio at the engine's pace, and collects the events.

The audio that is not transcribed yet is kept, at most AHEAD_S seconds and a block. If the engine dies, it is sent again
to the next engine process, together with the state of the last finished window.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import asdict

from ...engine import protocol
from ...engine.client.replies import Close, Send
from ...errors import EngineFailure, RequestError
from ...types.audio import SAMPLE_BYTES, SAMPLE_RATE
from ...types.push import wake
from . import records
from .params import (
    AHEAD_S,
    Segment,
    SpeechEvent,
    TextDelta,
    TranscribeParams,
    TurnStarted,
    TurnStopped,
    WindowDone,
    Word,
)

AHEAD_BYTES = int(AHEAD_S * SAMPLE_RATE) * SAMPLE_BYTES
BLOCK_BYTES = 4 * SAMPLE_RATE * SAMPLE_BYTES
"""The most bytes of one Audio record: a block of the decoder of files. Each costs the same, whatever its size."""
MAX_RESTARTS = 4
"""The most restarts of the engine while a request makes no progress, whatever caused them."""


class SpeechReply:
    """One running transcription, with the events of its request in order, for one reader."""

    def __init__(self, number: int, send: Send, close: Close, params: TranscribeParams, client: str) -> None:
        """Begins without any audio.

        Args:
            number: The number of the request, which is the id of its records.
            send: Sends a record to the engine; if there is no engine, the record is dropped.
            close: Is called with the number when the request has ended.
            params: The parameters of the request.
            client: The name of the client.
        """
        self.id = number
        self.queued_s = self.computed_s = 0.0
        """How long, in seconds, the last finished window waited in the engine, and how long it was computed."""
        self._params = params
        self._client = client
        self._send = send
        self._close = close
        self._pump: asyncio.Task[None] | None = None
        # Audio that the engine may still need, and its position in the request's audio.
        self._audio: deque[bytes] = deque()
        self._start = self._end = 0  # positions in bytes
        self._last = False
        self._credit: asyncio.Future[None] | None = None
        # Events.
        self._events: asyncio.Queue[SpeechEvent | None] = asyncio.Queue()  # None marks the end
        self._error: BaseException | None = None
        self._ended = False
        # State of the window that is being read.
        self._state: dict[str, object] = {}
        self._text = ""
        self._turns: list[bool] = []
        self._repeated_text = 0
        self._repeated_turns = 0
        # What tells whether this request makes the engine crash.
        self.in_window = False
        self._care = 0
        self._crashes = 0

    @property
    def seconds(self) -> float:
        """The length of the audio received so far, in seconds."""
        return self._end / SAMPLE_BYTES / SAMPLE_RATE

    # --- the reader

    def begin(self, audio: AsyncIterator[bytes]) -> None:
        """Starts the request and a task that sends its audio. Raises RequestError."""
        try:
            self._send(self._request())
        except RequestError:
            self._close(self.id)
            raise
        self._pump = asyncio.get_running_loop().create_task(self._send_all(audio))

    async def next(self) -> SpeechEvent | None:
        """Waits for the next event, and returns it, or None after the last one.

        After the last event it raises the error of the request or of the audio, if there was one.
        """
        event = await self._events.get()
        if event is None:
            self._events.put_nowait(None)  # further calls end as well
            if self._error is not None:
                raise self._error
        return event

    async def aclose(self) -> None:
        """Cancels the request if it has not finished. Idempotent."""
        if not self._ended:
            self._end_with(None)
            self._send(protocol.Cancel(self.id))
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait([self._pump])

    def abort(self, error: RequestError) -> None:
        """Ends the request with an error, which the reader gets. It has no effect on a finished request."""
        if not self._ended:
            self._send(protocol.Cancel(self.id))
            self._end_with(error)

    # --- the audio

    async def _send_all(self, audio: AsyncIterator[bytes]) -> None:
        try:
            odd = b""
            async for block in audio:
                block = odd + block if odd else block
                whole = len(block) - len(block) % SAMPLE_BYTES
                odd = bytes(block[whole:])
                for at in range(0, whole, BLOCK_BYTES):  # if the slice is the whole block, it is not copied
                    await self._send_block(bytes(block[at : min(at + BLOCK_BYTES, whole)]))
            self._last = True
            self._send(records.Audio(self.id, True, b""))
        except Exception as error:  # any error of the source is raised at the reader
            if not self._ended:
                self._send(protocol.Cancel(self.id))
                self._end_with(error)
        finally:
            close = getattr(audio, "aclose", None)
            if close is not None:
                with contextlib.suppress(Exception):
                    await close()

    async def _send_block(self, block: bytes) -> None:
        while self._end - self._start >= AHEAD_BYTES:
            self._credit = asyncio.get_running_loop().create_future()
            await self._credit
        self._audio.append(block)
        self._end += len(block)
        self._send(records.Audio(self.id, False, block))

    def _used(self, samples: int) -> None:
        """Drops the kept audio before a sample."""
        start = min(samples * SAMPLE_BYTES, self._end)
        if start > self._start:
            self._crashes = 0  # also of a session in which nobody speaks
        while self._start < start and self._audio:
            block = self._audio.popleft()
            if self._start + len(block) > start:
                self._audio.appendleft(block[start - self._start :])
                self._start = start
            else:
                self._start += len(block)
        wake(self._credit)

    # --- for the router

    def receive(self, record: protocol.Record) -> None:
        """Handles a record of the engine for this request. Raises FrameError if it does not fit."""
        if self._ended:
            return
        match record:
            case records.SpeechText():
                self._add_text(record)
            case records.WindowTranscribed():
                self._add_window(record)
            case records.SpeechTurn():
                self._add_turn(record)
            case records.AudioUsed(samples=samples):
                self._used(samples)
            case records.WindowStarted():
                self.in_window = True
            case records.Transcribed():
                self._end_with(None)
            case _:
                raise protocol.FrameError(f"{record.kind} is no answer to a transcription")

    def _add_text(self, record: records.SpeechText) -> None:
        repeated = min(self._repeated_text, len(record.text))
        self._repeated_text -= repeated
        text = record.text[repeated:]
        if text:
            self._text += text
            logprobs = record.logprobs if not repeated else None
            known = None if logprobs is None else [(token.encode("latin-1"), value) for token, value in logprobs]
            self._events.put_nowait(TextDelta(text, known))

    def _add_turn(self, record: records.SpeechTurn) -> None:
        if self._repeated_turns:
            self._repeated_turns -= 1
            return
        self._turns.append(record.started)
        self._events.put_nowait(TurnStarted(record.at) if record.started else TurnStopped(record.at))

    def _add_window(self, record: records.WindowTranscribed) -> None:
        values = dict(record.window)
        values["segments"] = [Segment(**one) for one in values.get("segments", ())]
        values["words"] = [Word(**one) for one in values.get("words", ())]
        window = WindowDone(**values)
        # The window was computed again, with a different result.
        if self._text and not window.text.startswith(self._text):
            window.text = self._text + window.text[len(self._text) :]
        self._text, self._repeated_text = "", 0
        if False in self._turns:
            del self._turns[: self._turns.index(False) + 1]
        self._state = record.state
        self.in_window, self._care, self._crashes = False, 0, 0
        self.queued_s, self.computed_s = record.queued_s, record.computed_s
        self._used(record.samples)
        self._events.put_nowait(window)

    def fail(self, error: RequestError) -> None:
        if not self._ended:
            self._end_with(error)

    # --- a new engine

    def lost(self) -> RequestError | None:
        """Notes that the engine has died. Returns the error of the request, or None if the next engine continues it."""
        self._crashes += 1
        care = self._next_care() if self.in_window else self._care
        self.in_window = False
        if care is None:
            return EngineFailure("The engine stopped each time it transcribed this part of the audio.")
        if self._crashes > MAX_RESTARTS:
            return EngineFailure("The engine stopped several times while this audio was transcribed.")
        self._care = care
        return None

    def _next_care(self) -> int | None:
        """Returns how to repeat the window in which the engine has died (ALONE or PLAIN), or None to give up."""
        if not self._care:  # another request's window may have been the cause, or something else than audio
            return records.Transcribe.ALONE
        timed = self._params.segments or self._params.words
        return records.Transcribe.PLAIN if self._care == records.Transcribe.ALONE and timed else None

    def resume(self) -> None:
        """Sends the request and the audio that is not transcribed yet to a new engine."""
        self._repeated_text = len(self._text)
        self._repeated_turns = len(self._turns)
        self._send(self._request())
        for block in self._audio:
            self._send(records.Audio(self.id, False, block))
        if self._last:
            self._send(records.Audio(self.id, True, b""))

    def _request(self) -> records.Transcribe:
        start = self._start // SAMPLE_BYTES
        return records.Transcribe(self.id, asdict(self._params), self._client, start, dict(self._state), self._care)

    # --- internals

    def _end_with(self, error: BaseException | None) -> None:
        self._ended = True
        self._error = error
        self._close(self.id)
        self._audio.clear()
        if self._pump is not None and self._pump is not asyncio.current_task():
            self._pump.cancel()
        self._events.put_nowait(None)
