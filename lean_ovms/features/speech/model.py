"""The front end's side of a model that transcribes and translates speech. It knows no HTTP and no file formats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial

from ...errors import too_slow
from ...models.model import UsageRecorder
from ...observability.records import current_client
from ...types import Json
from ..media_files.audio_models import Transcriber
from .feature import AUDIO_SECONDS, QUEUE_SECONDS, REAL_TIME_FACTOR, SKIPPED_SECONDS, WINDOW_SECONDS
from .params import SpeechEvent, SpeechInfo, TextDelta, TranscribeParams, WindowDone
from .reply import SpeechReply


class SpeechModel(Transcriber):
    """A served model that transcribes and translates speech.

    A model may be replaced while it is served: each method that serves a request fetches the current one once (`hold`).
    """

    @property
    def speech(self) -> SpeechInfo:
        """The description of the model. Raises RequestError if it is not loaded."""
        return SpeechInfo(**self.serving().info.of_task)

    @property
    def reported(self) -> Json:
        return {"speech": self.info.of_task}

    @property
    def summary(self) -> str:
        info = self.speech
        languages = f"{len(info.languages)} languages" if len(info.languages) > 1 else info.languages[0]
        return f"{self.task}, {languages}, {info.backend}, voice activity by {info.vad}"

    async def transcript(self, audio: AsyncIterator[bytes]) -> str:
        async with aclosing(self.transcribe(audio, TranscribeParams())) as events:
            windows = [event.text async for event in events if isinstance(event, WindowDone)]
        return "".join(windows).strip()

    async def transcribe(
        self, audio: AsyncIterator[bytes], params: TranscribeParams
    ) -> AsyncGenerator[SpeechEvent, None]:
        """Transcribes audio and yields the events in their order. Raises RequestError, and the errors of `audio`.

        Blocks of 16-bit samples (types.audio) are read at the pace of the engine, and their iterator is closed at the
        end, if it can be. Closing the generator cancels the transcription.
        """
        with await self.hold() as model:
            usage = UsageRecorder()
            reply = model.engine.open_lasting(partial(SpeechReply, params=params, client=current_client()))
            reply.begin(audio)
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
                            model._observe(event, reply)
                        yield event
            finally:
                if late is not None:
                    late.cancel()
                await reply.aclose()

    def _observe(self, window: WindowDone, reply: SpeechReply) -> None:
        """Observes the metrics of a window, or of skipped audio without speech."""
        labels = (self.name,)
        seconds = window.end - window.start
        self.metrics.add(AUDIO_SECONDS, labels, seconds + window.skipped)
        self.metrics.add(SKIPPED_SECONDS, labels, window.skipped)
        if seconds:
            self.metrics.observe(QUEUE_SECONDS, labels, reply.queued_s)
            self.metrics.observe(WINDOW_SECONDS, labels, reply.computed_s)
            self.metrics.observe(REAL_TIME_FACTOR, labels, reply.computed_s / seconds)

    def _limit(self, reply: SpeechReply, params: TranscribeParams) -> asyncio.TimerHandle | None:
        """Starts the timer that ends a request after request_timeout_s. A live request has no limit."""
        limit = self.config.request_timeout_s
        if not limit or params.live:
            return None
        return asyncio.get_running_loop().call_later(limit, reply.abort, too_slow())
