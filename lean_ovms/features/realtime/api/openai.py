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
"""The error for a commit without audio, which begins like OpenAI's."""


@dataclass(slots=True)
class _Item:
    """An utterance, or without voice activity detection the audio between two commits."""

    id: str
    """The id of the item."""
    start: float
    """The beginning, in seconds of the session."""
    end: float = 0.0
    """The end, in seconds of the session."""
    said: Said = field(default_factory=Said)
    """The text that has been sent."""
    logprobs: list[Json] = field(default_factory=list)
    """The log probabilities of the tokens."""
    committed: bool = False
    """Whether the client or voice activity detection has ended it."""
    dropped: bool = False
    """Whether input_audio_buffer.clear has dropped it."""


@dataclass(slots=True)
class _Items:
    """The items of one stream."""

    waiting: deque[_Item] = field(default_factory=deque)
    """The items that are not completed, in order. The engine's text belongs to the first one."""
    due: bool = False
    """Whether the client has committed the stream, so that an item must follow even if nobody spoke."""
    cleared: bool = False
    """Whether the client has cleared the buffer, so that utterances that the engine finds later are dropped."""


class OpenAi:
    """One client's session in OpenAI's dialect."""

    def __init__(self, session: TranscriptionSession) -> None:
        self._session = session
        self._streams: dict[Stream, _Items] = {}  # of the streams that are not transcribed to their end
        self._previous: str | None = None
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
                await self._append(audio_of(event))
            case "input_audio_buffer.commit":
                await self._commit()
            case _:
                await self._clear()

    async def _append(self, audio: str) -> None:
        known, stream = self._session.current, await self._session.open()
        if stream is not known:
            items = self._streams[stream] = _Items()
            if stream.settings.turns is None:
                items.waiting.append(_Item(stream.item_id, stream.offset_s))
            else:
                stream.committed.set()
        await self._session.append(stream, audio)
        self._silence.begin()

    async def _commit(self) -> None:
        stream = self._session.current
        if stream is None or not stream.received:
            raise BadRequest(EMPTY, code="input_audio_buffer_commit_empty")
        await self._session.close_stream(stream)
        items = self._streams.get(stream)
        if items is None:  # the stream has failed, and its audio is gone
            raise BadRequest(EMPTY, code="input_audio_buffer_commit_empty")
        if stream.settings.turns is not None:
            items.due = True
        else:
            await self._committed(items.waiting[0])

    def _idle_s(self) -> float:
        """Returns the seconds of silence that are still allowed; 0 for no limit, or while somebody speaks."""
        speaks = any(items.waiting for items in self._streams.values())
        return 0.0 if speaks or self._session.current is None else self._session.settings.idle_timeout_ms / 1000

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
            self._streams.pop(stream, None)
            await self._session.drop_stream(stream)
        elif stream is not None:
            if (items := self._streams.get(stream)) is not None:
                items.cleared = True
                for item in items.waiting:
                    item.dropped |= not item.committed
            await self._session.close_stream(stream)
        await self._send("input_audio_buffer.cleared")

    async def refuse(self, error: RequestError, event: Json) -> None:
        given = event.get("event_id")
        body = error.body()["error"] | {"event_id": given if isinstance(given, str) else None}
        await self._send("error", error=body)

    # --- of the engine

    async def transcribed(self, stream: Stream, event: SpeechEvent) -> None:
        items = await self._ended_items(stream)
        match event:
            case TurnStarted(at=at):
                await self._started(items, stream.offset_s + at)
            case TurnStopped(at=at):
                await self._stopped(items.waiting[-1], stream.offset_s + at)
            case TextDelta():
                await self._delta(stream, items.waiting[0], event)
            case WindowDone():
                await self._window_done(stream, items, event)

    async def _ended_items(self, stream: Stream) -> _Items:
        """Returns the items of a stream. If a session.update has ended the only one, it is committed first."""
        items = self._streams[stream]
        if stream.settings.turns is None and stream.received and not items.waiting[0].committed:
            await self._committed(items.waiting[0])
        return items

    async def _started(self, items: _Items, at: float) -> None:
        item = _Item(new_id("item"), at, dropped=items.cleared)
        items.waiting.append(item)
        self._silence.stop()
        if not item.dropped:
            await self._send("input_audio_buffer.speech_started", audio_start_ms=_ms(at), item_id=item.id)

    async def _stopped(self, item: _Item, at: float) -> None:
        item.end = at
        if not item.dropped:
            await self._send("input_audio_buffer.speech_stopped", audio_end_ms=_ms(at), item_id=item.id)
            await self._committed(item)

    async def _committed(self, item: _Item) -> None:
        item.committed = True
        previous, self._previous = self._previous, item.id
        await self._send("input_audio_buffer.committed", item_id=item.id, previous_item_id=previous)

    async def _delta(self, stream: Stream, item: _Item, event: TextDelta) -> None:
        text = item.said.add(event.text)
        if not text or item.dropped:
            return
        extra = {}
        if stream.settings.logprobs:
            extra["logprobs"] = known = logprobs(event)
            item.logprobs += known or ()
        await self._transcription("delta", item, delta=text, **extra)

    async def _window_done(self, stream: Stream, items: _Items, event: WindowDone) -> None:
        if not items.waiting:
            return  # the silence at the end
        item = items.waiting[0]
        if rest := item.said.rest(event.text):
            await self._delta(stream, item, TextDelta(rest))
        item.said.window = ""
        item.end = max(item.end, stream.offset_s + event.end)
        if stream.settings.turns is not None and item.committed | item.dropped:
            await self._complete(stream, items)

    async def _complete(self, stream: Stream, items: _Items) -> None:
        """Sends the transcript of the first item, unless it is dropped."""
        item = items.waiting.popleft()
        self._heard_s = item.end
        if not item.dropped:
            items.due = False
            await self._completed(item, logprobs=stream.settings.logprobs)

    async def _completed(self, item: _Item, *, logprobs: bool = False) -> None:
        usage = {"type": "duration", "seconds": round(max(0.0, item.end - item.start), 3)}
        extra = {"logprobs": item.logprobs} if logprobs else {}
        await self._transcription("completed", item, transcript=item.said.text, usage=usage, **extra)
        self._silence.begin()

    async def finished(self, stream: Stream) -> None:
        items = await self._ended_items(stream)
        del self._streams[stream]
        if items.due:  # the client has committed the audio, but nobody spoke
            items.waiting.append(_Item(stream.item_id, max(stream.offset_s, self._heard_s)))
            await self._committed(items.waiting[0])
        elif stream.settings.turns is not None or not stream.received:
            return
        items.waiting[0].end = stream.offset_s + stream.audio.seconds
        await self._complete(stream, items)

    async def failed(self, stream: Stream, error: RequestError) -> None:
        """Sends the error for each item without a transcript, or as a separate event if there is none."""
        items = self._streams.pop(stream, None) or _Items()
        waiting = [item for item in items.waiting if not item.dropped]
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
