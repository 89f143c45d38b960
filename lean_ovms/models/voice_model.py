"""A model that speaks: text in, audio out, sentence by sentence. Knows no HTTP and no file formats."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field

from ..errors import BadRequest, RequestError, RequestTimeout
from ..observability.records import GenerationRecord, current_record
from ..speech_types import SpeakParams, VoiceInfo
from .model import Model
from .sentences import split


@dataclass(slots=True)
class _Progress:
    """What is recorded of one request. client: as in protocol.Submit."""

    characters: int
    client: str = ""
    started: float = field(default_factory=time.monotonic)
    first: float | None = None
    reason: str = "abort"
    error: str = ""

    def record(self) -> GenerationRecord:
        now = time.monotonic()
        return GenerationRecord(
            engine_id=0,
            prompt_tokens=self.characters,
            completion_tokens=0,
            ttft_s=None if self.first is None else self.first - self.started,
            seconds=now - self.started,
            decode_s=0.0 if self.first is None else now - self.first,
            finish_reasons=(self.reason,),
            error=self.error,
        )


class VoiceModel(Model):
    """Each method that serves a request resolves the model once (`hold`)."""

    task = "text to speech"
    endpoints = "/v1/audio/speech"
    wrong_task_status = 404
    output_modalities = ("audio",)

    @property
    def voices(self) -> VoiceInfo:
        """What the model can do. Raises RequestError if it is not loaded."""
        info = self.serving().info.voices
        assert info is not None
        return info

    @property
    def summary(self) -> str:
        info = self.voices
        return f"{self.task}, {len(info.voices) or 1} voices, {info.sample_rate} Hz"

    def pieces(self, text: str) -> list[str]:
        """What is spoken at once, each in its turn. Raises BadRequest for a text without anything to speak."""
        pieces = split(text, self.serving().info.context_length)
        if not pieces:
            raise BadRequest("input is empty", param="input")
        return pieces

    async def speak(self, text: str, params: SpeakParams) -> AsyncGenerator[bytes, None]:
        """The audio of a text, as in speech_types, at params.sample_rate or VoiceInfo's: a block for each sentence.

        The next sentence is spoken while the caller has the one before, and no further ones. Stopped in the engine,
        after the sentence that is being spoken, when this is closed. Raises RequestError.
        """
        with await self.hold() as model, model._recorded(len(text)) as progress:
            deadline = progress.started + self.config.request_timeout_s if self.config.request_timeout_s else None
            first, *others = model.pieces(text)
            upcoming: asyncio.Task[bytes] | None = asyncio.create_task(
                model.engine.speak(first, params, client=progress.client)
            )
            try:
                for piece in [*others, None]:
                    assert upcoming is not None
                    block = await _within(upcoming, deadline)
                    upcoming = None
                    if piece is not None:
                        upcoming = asyncio.create_task(
                            model.engine.speak(piece, params, begun=True, client=progress.client)
                        )
                    if block:
                        progress.first = progress.first or time.monotonic()
                        yield block
            finally:
                if upcoming is not None:
                    upcoming.cancel()
                    await asyncio.wait([upcoming])
                    if not upcoming.cancelled():
                        upcoming.exception()  # or asyncio reports one that nobody has taken

    @contextlib.contextmanager
    def _recorded(self, characters: int) -> Iterator[_Progress]:
        """For the access line and the metrics: like a generation whose prompt has these characters."""
        record = current_record.get()  # now: a stream is read when the handler has returned
        progress = _Progress(characters, client=record.client if record is not None else "")
        try:
            yield progress
            progress.reason = "stop"
        except RequestError as error:
            progress.reason, progress.error = "error", error.code or error.kind
            raise
        finally:
            done = progress.record()
            if record is not None:
                record.generations.append(done)
            self.metrics.generation_finished(self.name, done, None)


async def _within(sentence: asyncio.Task[bytes], deadline: float | None) -> bytes:
    """What the task returns. Raises RequestTimeout after the deadline, and what it raises."""
    if deadline is None:
        return await sentence
    try:
        return await asyncio.wait_for(asyncio.shield(sentence), max(0.0, deadline - time.monotonic()))
    except asyncio.TimeoutError:
        raise RequestTimeout("the request took longer than this server lets a request take") from None
