"""Streams a transcription as server-sent events that clients of OpenAI and of vLLM can both read.

Each event is one JSON object with the members of both APIs:
https://platform.openai.com/docs/api-reference/audio/transcript-text-delta-event and vLLM's transcription.chunk.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ....api.response import new_id, now, usage
from ....api.services import INLINE_BYTES
from ....api.sse import Renderer, event
from ....errors import RequestError
from ....types import Json, Usage
from ....types.push import Sink
from ....util.concurrency import Offload
from ...media_files.audio.decoder import AudioStream
from ...media_files.iterated_source import IteratedSource
from ..params import TRANSLATE, SpeechEvent
from .answers import known, times, token_usage
from .request import AudioRequest
from .transcript import Logprobs, Transcript, entries


class TranscriptionStream(IteratedSource[SpeechEvent]):
    """The events of a running transcription. Closing it also closes the audio."""

    def __init__(self, events: AsyncGenerator[SpeechEvent, None], audio: AudioStream, transcript: Transcript) -> None:
        super().__init__(events)
        self._audio = audio
        self._transcript = transcript

    @property
    def usage(self) -> Usage:  # type: ignore[override]
        """The token counts of the transcription so far."""
        return self._transcript.usage

    async def push_to(self, sink: Sink[list[SpeechEvent]]) -> None:
        def push(events: list[SpeechEvent]) -> None:
            self._transcript.seconds = self._audio.seconds
            sink.push(events)

        await super().push_to(Sink(push, sink.paused))
        self._transcript.seconds = self._audio.seconds  # there are no events of audio at the end in which nobody speaks

    async def aclose(self) -> None:
        try:
            await super().aclose()
        finally:
            await self._audio.aclose()


class TranscriptRenderer(Renderer[SpeechEvent]):
    """Renders the engine's events as server-sent events."""

    def __init__(self, parsed: AudioRequest, transcript: Transcript, offload: Offload) -> None:
        self._parsed = parsed
        self._offload = offload
        self._last = b""
        self._continuous = parsed.values["stream_continuous_usage_stats"]
        self._transcript = transcript
        kind = "translation" if parsed.params.task == TRANSLATE else "transcription"
        self._envelope: Json = {
            "id": new_id("trsc"),
            "object": f"{kind}.chunk",
            "created": now(),
            "model": parsed.model.name,
        }

    def deltas(self, deltas: list[SpeechEvent]) -> bytes:
        return b"".join([self._delta(*found) for one in deltas if any(found := self._transcript.add(one))])

    def _delta(self, text: str, logprobs: Logprobs) -> bytes:
        body = {
            "type": "transcript.text.delta",
            "delta": text,
            "logprobs": entries(logprobs),
            **self._envelope,
            "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
        }
        return event(body | ({"usage": self._counts} if self._continuous else {}))

    @property
    def _counts(self) -> Json:
        """The usage object so far, in vLLM's form."""
        return usage(self._transcript.usage)

    async def before_end(self, error: RequestError | None) -> None:
        """Makes the last events, in the offload thread if they are large: those of two hours take 90 ms."""
        if error is not None:
            return
        try:
            self._last = await self._offload.run(self._transcript.size, self._end, inline_below=INLINE_BYTES)
        except RequestError as refusal:
            self._last = event(refusal.body())

    def end(self, usage: Usage) -> bytes:
        return self._last

    def _end(self) -> bytes:
        found = self._transcript
        details = (
            known(found) if self._parsed.values["response_format"] == "verbose_json" else {"language": found.language}
        )
        done = {
            "type": "transcript.text.done",
            "text": found.text,
            "logprobs": entries(found.logprobs),
            "usage": token_usage(found) | (self._counts if self._continuous else {}),
            **details,
            **times(self._parsed, found),
            **self._envelope,
            "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": found.stopped}],
        }
        last = {**self._envelope, "choices": [], "usage": self._counts}
        return event(done) + (event(last) if self._parsed.include_usage else b"")
