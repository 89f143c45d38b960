"""OpenAI's dialect of a transcription session (https://platform.openai.com/docs/guides/realtime-transcription).

With server_vad an item is an utterance, with the events speech_started, deltas, speech_stopped, committed, completed.
Without it, an item is the audio between two commits. Text that was sent is never revised: the deltas joined are the
transcript.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ....api.response import new_id
from ....errors import BadRequest, RequestError
from ....types import Json
from ...speech.params import SpeechEvent, TextDelta, TurnStarted, TurnStopped, WindowDone
from . import openai_session
from .dialect import Said, audio_of, logprobs
from .session import Stream, TranscriptionSession


class SilenceTimer:
    """The timer of a session. If it has expired, new audio starts it again."""

    def __init__(self, seconds: Callable[[], float], ended: Callable[[], Awaitable[None]]) -> None:
        """Creates the timer, which awaits `ended` after `seconds()` of silence; with 0 there is no limit."""
        self._seconds = seconds
        self._ended = ended
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Starts the timer unless it is running."""
        if self._timer is None and (seconds := self._seconds()):
            self._timer = asyncio.get_running_loop().call_later(seconds, self._fire)

    def stop(self) -> None:
        """Stops the timer because somebody is speaking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        if self._seconds():  # the timeout is on, and nobody is speaking
            self._task = asyncio.ensure_future(self._ended())

    def close(self) -> None:
        """Stops the timer and the call that it has started."""
        self.stop()
        if self._task is not None:
            self._task.cancel()


EMPTY = "Error committing input audio buffer: the buffer is empty"


@dataclass(slots=True)
class _Item:
    """An utterance."""

    id: str
    """The id of the item."""
    start: float
    """The beginning of the utterance, in seconds of the session."""
    end: float = 0.0
    """The end of the utterance, in seconds of the session."""
    said: Said = field(default_factory=Said)
    """The text that has been sent."""
    logprobs: list[Json] = field(default_factory=list)
    """The log probabilities of the tokens."""
    committed: bool = False
    """Whether the client or voice activity detection has ended it."""
    dropped: bool = False
    """Whether input_audio_buffer.clear has dropped it."""


class OpenAi:
    """One client's session in OpenAI's dialect.

    `items` has the items that are not completed, in order. The engine's text belongs to the first one.
    """

    def __init__(self, session: TranscriptionSession) -> None:
        self._session = session
        self._items: deque[_Item] = deque()
        self._previous: str | None = None
        self._cleared: Stream | None = None  # the stream whose further utterances are dropped
        self._due: Stream | None = None  # a stream that the client has committed, for which an item must be sent
        self._heard_s = 0.0  # the end of the last item in seconds
        self._silence = SilenceTimer(self._idle_s, self._timed_out)
        session.settings = openai_session.defaults(session.model_name)

    async def handle(self, event: Json) -> None:
        session = self._session
        match event["type"]:
            case "session.update":
                await session.configure(openai_session.updated(session.settings, event.get("session")))
                await self._send("session.updated", session=session.described())
            case "input_audio_buffer.append":
                if session.current is None:
                    stream = await session.open()
                    if stream.settings.turns is None:
                        self._items.append(_Item(stream.item_id, stream.offset_s))
                await session.append(audio_of(event), committed=session.settings.turns is not None)
                self._silence.begin()
            case "input_audio_buffer.commit":
                await self._commit()
            case _:
                await self._clear()

    async def _commit(self) -> None:
        stream = self._session.current
        if stream is None or not stream.audio.seconds:
            raise BadRequest(EMPTY, code="input_audio_buffer_commit_empty")
        item = next((item for item in self._items if item.id == stream.item_id), None)
        await self._session.close_stream(stream)
        if stream.settings.turns is not None:
            self._due = stream
        elif item is not None:
            await self._committed(item)
        else:  # the item has failed, and its audio is gone
            raise BadRequest(EMPTY, code="input_audio_buffer_commit_empty")

    def _idle_s(self) -> float:
        """Returns the seconds of silence that are still allowed; 0 for no limit, or while somebody speaks."""
        idle = self._session.current is not None and not self._items
        return self._session.settings.idle_timeout_ms / 1000 if idle else 0.0

    async def _timed_out(self) -> None:
        """Sends an item without text, because nobody has spoken for idle_timeout_ms."""
        item = _Item(new_id("item"), self._heard_s, self._session.written_s)
        if item.end <= item.start:  # no audio was sent
            return
        self._heard_s = item.end
        await self._send(
            "input_audio_buffer.timeout_triggered",
            audio_start_ms=_ms(item.start),
            audio_end_ms=_ms(item.end),
            item_id=item.id,
        )
        await self._committed(item)
        await self._completed(item)

    def close(self) -> None:
        self._silence.close()

    async def _clear(self) -> None:
        """Drops the audio that is not committed. Utterances that have ended are still transcribed."""
        stream = self._session.current
        if stream is not None and stream.settings.turns is None:
            self._items = deque(item for item in self._items if item.id != stream.item_id)
            await self._session.drop_stream(stream)
        elif stream is not None:
            for item in self._items:
                item.dropped |= not item.committed
            self._cleared = stream
            await self._session.close_stream(stream)
        await self._send("input_audio_buffer.cleared")

    async def refuse(self, error: RequestError, event: Json) -> None:
        given = event.get("event_id")
        body = error.body()["error"] | {"event_id": given if isinstance(given, str) else None}
        await self._send("error", error=body)

    # --- of the engine

    async def transcribed(self, stream: Stream, event: SpeechEvent) -> None:
        match event:
            case TurnStarted(at=at):
                await self._started(stream, stream.offset_s + at)
            case TurnStopped(at=at):
                await self._stopped(stream.offset_s + at)
            case TextDelta():
                await self._delta(stream, self._items[0], event)
            case WindowDone():
                await self._window_done(stream, event)

    async def _started(self, stream: Stream, at: float) -> None:
        item = _Item(new_id("item"), at, dropped=self._cleared is stream)
        self._items.append(item)
        self._silence.stop()
        if not item.dropped:
            await self._send("input_audio_buffer.speech_started", audio_start_ms=_ms(at), item_id=item.id)

    async def _stopped(self, at: float) -> None:
        item = self._items[-1]
        item.end = at
        if not item.dropped:
            await self._send("input_audio_buffer.speech_stopped", audio_end_ms=_ms(at), item_id=item.id)
            await self._committed(item)

    async def _committed(self, item: _Item) -> None:
        item.committed = True
        previous, self._previous = self._previous, item.id
        await self._send("input_audio_buffer.committed", item_id=item.id, previous_item_id=previous)

    async def _delta(self, stream: Stream, item: _Item, event: TextDelta) -> None:
        text = item.said.add(event.text, stream.settings.language)
        if not text or item.dropped:
            return
        extra = {}
        if stream.settings.logprobs:
            extra["logprobs"] = known = logprobs(event)
            item.logprobs += known or ()
        await self._transcription("delta", item, delta=text, **extra)

    async def _window_done(self, stream: Stream, event: WindowDone) -> None:
        if not self._items:
            return  # the silence at the end
        item = self._items[0]
        if rest := item.said.rest(event.text):
            await self._delta(stream, item, TextDelta(rest))
        item.said.window = ""
        item.end = max(item.end, stream.offset_s + event.end)
        if stream.settings.turns is not None and item.committed | item.dropped:
            await self._complete(stream)

    async def _complete(self, stream: Stream) -> None:
        item = self._items.popleft()
        self._heard_s = item.end
        if item.dropped:
            return
        self._due = None if self._due is stream else self._due
        await self._completed(item, logprobs=stream.settings.logprobs)

    async def _completed(self, item: _Item, *, logprobs: bool = False) -> None:
        usage = {"type": "duration", "seconds": round(max(0.0, item.end - item.start), 3)}
        extra = {"logprobs": item.logprobs} if logprobs else {}
        await self._transcription("completed", item, transcript=item.said.text, usage=usage, **extra)
        self._silence.begin()

    async def finished(self, stream: Stream) -> None:
        if stream.settings.turns is None:
            self._items[0].end = stream.offset_s + stream.audio.seconds
            await self._complete(stream)
        elif self._due is stream:  # the client has committed the audio, but nobody spoke
            item = _Item(stream.item_id, max(stream.offset_s, self._heard_s), stream.offset_s + stream.audio.seconds)
            self._items.append(item)
            await self._committed(item)
            await self._complete(stream)

    async def failed(self, stream: Stream, error: RequestError) -> None:
        """Sends the error for each item without a transcript, or as a separate event if there is none."""
        waiting = [item for item in self._items if not item.dropped]
        if stream.settings.turns is None:
            waiting = [item for item in waiting if item.id == stream.item_id]
        self._items = deque(item for item in self._items if item not in waiting)
        for item in waiting:
            await self._transcription("failed", item, error=error.body()["error"])
        if not waiting:
            await self.refuse(error, {})

    async def _transcription(self, what: str, item: _Item, **fields: object) -> None:
        kind = f"conversation.item.input_audio_transcription.{what}"
        await self._send(kind, item_id=item.id, content_index=0, **fields)

    async def _send(self, kind: str, **fields: object) -> None:
        await self._session.send({"type": kind, "event_id": new_id("event"), **fields})


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
