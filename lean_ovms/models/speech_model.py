"""A model that transcribes and translates speech: audio in, events with text out. Knows no HTTP and no file formats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field

from ..engine.client.speech_reply import SpeechReply
from ..errors import RequestError, RequestTimeout
from ..observability.records import GenerationRecord, RequestRecord, current_record
from ..speech_types import SpeechEvent, SpeechInfo, TextDelta, TranscribeParams, WindowDone
from .model import Model


@dataclass(slots=True)
class _Progress:
    """What is recorded of one transcription."""

    started: float = field(default_factory=time.monotonic)
    first_text: float | None = None
    prompt_tokens: int = 0
    tokens: int = 0
    reason: str = "abort"
    error: str = ""

    def note(self, event: SpeechEvent) -> None:
        if isinstance(event, (TextDelta, WindowDone)) and event.text and self.first_text is None:
            self.first_text = time.monotonic()
        if isinstance(event, WindowDone):
            self.prompt_tokens += event.prompt_tokens
            self.tokens += event.tokens

    def record(self, number: int) -> GenerationRecord:
        now = time.monotonic()
        first = self.first_text
        return GenerationRecord(
            engine_id=number,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.tokens,
            ttft_s=None if first is None else first - self.started,
            seconds=now - self.started,
            decode_s=0.0 if first is None else now - first,
            finish_reasons=(self.reason,),
            error=self.error,
        )


class SpeechModel(Model):
    """Each method that serves a request resolves the model once (`hold`)."""

    task = "speech to text"
    endpoints = "/v1/audio/transcriptions, /v1/audio/translations and /v1/realtime"
    wrong_task_status = 404
    input_modalities = ("audio",)

    @property
    def speech(self) -> SpeechInfo:
        """What the model can do. Raises RequestError if it is not loaded."""
        info = self.serving().info.speech
        assert info is not None
        return info

    @property
    def summary(self) -> str:
        info = self.speech
        languages = f"{len(info.languages)} languages" if len(info.languages) > 1 else info.languages[0]
        return f"{self.task}, {languages}, {info.backend}, voice activity by {info.vad}"

    async def transcribe(
        self, audio: AsyncIterator[bytes], params: TranscribeParams
    ) -> AsyncGenerator[SpeechEvent, None]:
        """The events of this audio, in order. audio: as in speech_types; blocks are taken as the engine gets on, and it
        is closed at the end, if it can be.

        Cancelled in the engine when this is closed. Raises RequestError, and what `audio` raises.
        """
        with await self.hold() as model:
            record = current_record.get()
            progress = _Progress()
            reply = await model.engine.transcribe(audio, params, record.client if record is not None else "")
            late = self._limit(reply, params)
            try:
                while (event := await reply.next()) is not None:
                    progress.note(event)
                    if isinstance(event, WindowDone):
                        model.metrics.window_transcribed(
                            model.name, event, reply.times.queued_s, reply.times.computed_s
                        )
                    yield event
                progress.reason = "stop"
            except RequestError as error:
                progress.reason, progress.error = "error", error.code or error.kind
                raise
            finally:
                if late is not None:
                    late.cancel()
                model._finished(progress.record(reply.id), record)
                await reply.aclose()

    def _limit(self, reply: SpeechReply, params: TranscribeParams) -> asyncio.TimerHandle | None:
        """Ends a request after request_timeout_s; a live one lasts as long as its speaker speaks."""
        limit = self.config.request_timeout_s
        if not limit or params.live:
            return None
        error = RequestTimeout("the request took longer than this server lets a request take")
        return asyncio.get_running_loop().call_later(limit, reply.abort, error)

    def _finished(self, done: GenerationRecord, record: RequestRecord | None) -> None:
        """For the access line and the metrics: like a generation. record: the request's, from its beginning, as a
        stream ends in another task."""
        if record is not None:
            record.generations.append(done)
        self.metrics.generation_finished(self.name, done, None)
