"""A speech-to-text engine that plays a script in this process after it has read the audio; no child, no model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from lean_ovms.config import Config
from lean_ovms.errors import BadRequest, RequestError
from lean_ovms.features.media_files.audio.decode import decode
from lean_ovms.features.media_files.audio.formats import AudioLimits, Found
from lean_ovms.features.media_files.helper import Helper
from lean_ovms.features.speech.model import SpeechModel
from lean_ovms.features.speech.params import (
    Segment,
    SpeechEvent,
    SpeechInfo,
    TextDelta,
    TranscribeParams,
    WindowDone,
    Word,
)
from lean_ovms.features.speech.reply import SpeechReply
from lean_ovms.types.engine import ModelInfo, Vocabulary
from tests.engine_client_fakes import FakeEngineClient

SPEECH = SpeechInfo(
    languages=["en", "de", "fr"],
    translates=True,
    max_tokens=224,
    max_prompt_tokens=223,
    capabilities=["logprobs", "words", "timed_stream", "fallback", "beams"],
    backend="script",
    vad="energy",
)
INFO = ModelInfo(
    vocab_size=257,
    context_length=448,
    eos_token_ids=[256],
    eos_token="<eos>",
    versions={"engine": "script"},
    of_task=asdict(SPEECH),
)

Script = list["SpeechEvent | Exception"]


def spoken(*texts: str, start: float = 0.0, **window: Any) -> Script:
    """Returns the events of a window: a delta for each text, and its end with one segment and a word for each text."""
    whole = "".join(texts)
    end = start + len(texts)
    done: dict[str, Any] = {
        "start": start,
        "end": end,
        "text": whole,
        "language": "en",
        "segments": [Segment(start=start, end=end - 0.5, text=whole, tokens=[5, 6], avg_logprob=-0.25)],
        "words": [Word(word=text.strip(), start=start + at, end=start + at + 0.5) for at, text in enumerate(texts)],
        "prompt_tokens": 4,
        "tokens": len(texts),
    }
    return [*(TextDelta(text, [(text.encode(), -0.5)]) for text in texts), WindowDone(**{**done, **window})]


HELLO = spoken(" Three", " one", " four.")


class ScriptedSpeech(FakeEngineClient):
    """The parts of an engine that a SpeechModel needs. `asked` has parameters and audio of every request, `closed` the
    number of closed replies."""

    def __init__(self, script: Script | Callable[[bytes, TranscribeParams], Script] = HELLO) -> None:
        pieces = [bytes([i]) for i in range(256)] + [b"<eos>"]
        super().__init__(INFO, Vocabulary(pieces=pieces, special=frozenset([256])))
        self.script = script
        self.asked: list[tuple[TranscribeParams, bytes]] = []
        self.closed = 0

    def describe(self, **changes: Any) -> None:
        """Changes the SpeechInfo."""
        self.info = replace(self.info, of_task=asdict(SPEECH) | changes)

    def open_lasting(self, make: partial[SpeechReply]) -> _Reply:
        self.refuse()
        return _Reply(self, make.keywords["params"])


class _Reply:
    id = 1
    queued_s = computed_s = 0.0

    def __init__(self, engine: ScriptedSpeech, params: TranscribeParams) -> None:
        self._engine = engine
        self._params = params
        self._left: Script | None = None

    def begin(self, audio: AsyncIterator[bytes]) -> None:
        self._audio = audio

    async def next(self) -> SpeechEvent | None:
        if self._left is None:
            data = b"".join([block async for block in self._audio])
            self._engine.asked.append((self._params, data))
            script = self._engine.script
            self._left = list(script(data, self._params) if callable(script) else script)
        if not self._left:
            return None
        step = self._left.pop(0)
        if isinstance(step, Exception):
            raise step
        if isinstance(step, TextDelta) and not self._params.logprobs:
            return TextDelta(step.text)
        return step

    def abort(self, error: RequestError) -> None:
        self._left = [error]

    async def aclose(self) -> None:
        self._engine.closed += 1


class InlineDecoding(Helper):
    """Replaces decoder._Process, and decodes in this process, which saves starting one and importing everything
    again."""

    _blocks: Iterator[bytes]

    async def begin(self, data: memoryview, found: Found, limits: AudioLimits) -> bytes:
        self._blocks = decode(bytes(data[found.offset :]), found.format, limits)
        return await self.block()

    async def block(self) -> bytes:
        try:
            return next(self._blocks, b"")
        except BadRequest as error:
            error.param = "file"
            raise


async def speech_model(
    script: Script | Callable[[bytes, TranscribeParams], Script] = HELLO, **options: Any
) -> tuple[SpeechModel, ScriptedSpeech]:
    """Returns a loaded model called "w", and its engine."""
    config = Config(**{"fake_engine": True, "model_name": "w", "task": "speech2text", "access_log": False, **options})
    engine = ScriptedSpeech(script)
    model = SpeechModel(config, engine)  # type: ignore[arg-type]
    await model.load()
    return model, engine
