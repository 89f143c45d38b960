"""A model that transcribes and translates speech: audio in, events with text out. Knows no HTTP and no file formats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import asdict

from ..engine.client.speech_reply import SpeechReply
from ..observability.records import current_client
from ..speech_types import SpeechEvent, SpeechInfo, TextDelta, TranscribeParams, WindowDone
from ..types import Json
from .model import Model, UsageRecorder, too_slow


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
    def reported(self) -> Json:
        return {"speech": asdict(self.speech)}

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
            usage = UsageRecorder()
            reply = await model.engine.transcribe(audio, params, current_client())
            usage.engine_id = reply.id
            late = self._limit(reply, params)
            try:
                with model.recorded(usage):
                    while (event := await reply.next()) is not None:
                        if isinstance(event, (TextDelta, WindowDone)) and event.text and usage.first is None:
                            usage.first = time.monotonic()
                        if isinstance(event, WindowDone):
                            usage.prompt_tokens += event.prompt_tokens
                            usage.tokens += event.tokens
                            model.metrics.window_transcribed(model.name, event, reply.queued_s, reply.computed_s)
                        yield event
            finally:
                if late is not None:
                    late.cancel()
                await reply.aclose()

    def _limit(self, reply: SpeechReply, params: TranscribeParams) -> asyncio.TimerHandle | None:
        """Ends a request after request_timeout_s; a live one lasts as long as its speaker speaks."""
        limit = self.config.request_timeout_s
        if not limit or params.live:
            return None
        return asyncio.get_running_loop().call_later(limit, reply.abort, too_slow())
