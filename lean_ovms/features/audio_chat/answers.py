"""Spoken answers of chats and responses, for `modalities: ["text", "audio"]`.

A text-to-speech model speaks the answer while it is generated, or the generating model can speak itself.
https://platform.openai.com/docs/guides/audio. The answer's text is the transcript of the audio, and the `content` of a
chat is null.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial

import orjson

from ...api.fields import Values
from ...api.response import new_id, now
from ...api.services import Services
from ...errors import BadRequest, errors_of
from ...models.generation import DeltaStream, WrappedStream
from ...types import Delta, Json, Text
from ...types.audio import SpeakParams
from ...types.push import Sink
from ..chat.generation import GenerationBody
from ..media_files.audio.encoder import SAMPLE_BYTES, open_encoder
from ..media_files.audio_models import PCM_RATE, Speaker, read_voice, voice_of
from ..media_files.feature import SpokenTextOptions
from .feature import AudioChatOptions

STREAMED = "pcm16"
"""The format of streamed audio, which is the encoder's "pcm"."""
PIECE_BYTES = 24_000
"""Bytes of samples in one chunk, half a second: some clients read lines of 64 KiB at most."""
WHOLE = 6
"""Chunks are multiples of 6 bytes. They are whole samples, and their base64 may be joined before it is decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioAnswer:
    """The settings of a spoken answer: its speaker, voice and format."""

    model: Speaker | None
    """The text-to-speech model; None if the model that answers speaks itself."""
    params: SpeakParams
    """The parameters of the speech."""
    format: str
    """The format of the audio file, one of FORMATS in features.media_files.audio.encoder."""
    rate: int
    """The sample rate in Hz."""
    most: int
    """The most characters that are spoken."""

    def with_speech(self, deltas: DeltaStream) -> DeltaStream:
        return deltas if self.model is None else SpokenStream(deltas, self, self.model)

    def message(self, transcript: str, samples: bytes) -> Json:
        """Returns the member `audio` of a chat's message, given the text and the samples of the answer."""
        data = b64encode(self.file(samples)).decode()
        return {"id": new_id("audio"), "data": data, "expires_at": now(), "transcript": transcript}

    def with_audio(self, response: Json, samples: bytes) -> Json:
        """Adds the audio to the message of a response object, as in OVMS, and returns the object."""
        output = list(response["output"])
        for place, item in enumerate(output):
            if item["type"] == "message":
                transcript = "".join(part["text"] for part in item["content"])
                part = {
                    "type": "output_audio",
                    "data": b64encode(self.file(samples)).decode(),
                    "transcript": transcript,
                }
                output[place] = item | {"content": [*item["content"], part]}
        return response | {"output": output}

    @staticmethod
    def deltas() -> AudioDeltas:
        """Returns the renderer of audio deltas in the chunks of a chat."""
        return AudioDeltas()

    @staticmethod
    def pieces() -> Base64Pieces:
        """Returns the encoder of samples for the audio events of a response."""
        return Base64Pieces()

    def file(self, samples: bytes) -> bytes:
        """Encodes all samples as a file. Raises BadRequest if the format is not available."""
        with errors_of("audio.format"):
            encoder = open_encoder(self.format, self.rate, len(samples) // SAMPLE_BYTES)
        return encoder.encode(samples) + encoder.finish()


def read_answer(
    values: Values, generation: GenerationBody, services: Services
) -> tuple[GenerationBody, AudioAnswer | None]:
    """Reads how the answer is spoken. Returns None for that if it is text only.

    The returned generation has the voice if the model speaks itself; otherwise it is the given one. Raises
    RequestError.
    """
    answer = _read(values, generation, services)
    if answer is not None and answer.model is None:
        generation = replace(generation, sampling=replace(generation.sampling, speaker=answer.params.voice))
    return generation, answer


def _read(values: Values, generation: GenerationBody, services: Services) -> AudioAnswer | None:
    """Reads how the answer is spoken, or returns None if it is text only. Raises RequestError."""
    audio, text_model = values["audio"], generation.model
    if not values["modalities"]:
        if audio:
            generation.notices.append('audio has no effect without modalities ["text", "audio"]')
        return None
    _check(values, generation)
    own = text_model.voices
    model = services.helper("audio_output_model", text_model, Speaker) if own is None else None
    voices = own if model is None else model.voices
    assert voices is not None
    with errors_of("audio.voice"):
        voice = "" if audio.get("voice") is None else read_voice(audio["voice"])
        voice = voice_of(voice if own is None else voice.lower(), voices, generation.notices)
    raw = audio["format"] == STREAMED
    params = SpeakParams(voice=voice, sample_rate=PCM_RATE if raw else 0)
    rate = params.sample_rate or voices.sample_rate
    most = (model or text_model).config.of(SpokenTextOptions).max_speech_characters
    return AudioAnswer(model=model, params=params, format="pcm" if raw else audio["format"], rate=rate, most=most)


def _check(values: Values, generation: GenerationBody) -> None:
    """Raises BadRequest if an answer with these modalities cannot be spoken."""
    audio, own = values["audio"], generation.model.voices
    if values["modalities"] != ["audio"]:
        raise BadRequest('modalities must be ["text"] or ["text", "audio"]', param="modalities")
    if own is None and not generation.model.config.of(AudioChatOptions).audio_output_model:
        why = (
            "this model does not generate audio; start the server with "
            "--audio_output_model and the name of a text2speech model"
        )
        raise BadRequest(why, param="modalities", code="not_supported")
    if audio is None or audio.get("format") is None:
        missing = "audio" if audio is None else "audio.format"
        raise BadRequest(f"Missing required parameter: '{missing}'.", param=missing, code="missing_required_parameter")
    if generation.stream and audio["format"] != STREAMED:
        raise BadRequest(
            f"Unsupported value: 'audio.format' does not support '{audio['format']}' when stream=true. Supported "
            f"values are: '{STREAMED}'.",
            param="audio.format",
            code="unsupported_value",
        )
    if generation.sampling.n > 1:
        raise BadRequest("n must be 1 for a spoken answer", param="n")
    if own is not None and generation.output.stop:
        raise BadRequest("stop is not supported for spoken answers of this model", param="stop")


class SpokenStream(WrappedStream):
    """A stream of one choice's deltas to which audio is added, sentence by sentence.

    The end of the choice comes after its last audio. If the text reaches the limit of spoken characters, the answer
    ends with "length".
    """

    def __init__(self, stream: DeltaStream, output: AudioAnswer, model: Speaker) -> None:
        super().__init__(stream)
        self._output = output
        self._model = model
        self._texts: asyncio.Queue[str | None] = asyncio.Queue()  # None marks the end
        self._left = output.most
        self._end: Delta | None = None
        self._context = copy_context()  # the handler's context, with its client and its request record

    async def push_to(self, sink: Sink[list[Delta]]) -> None:
        works = (self._push_text(sink), self._push_audio(sink))
        tasks = [self._context.run(asyncio.ensure_future, work) for work in works]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if self._end is not None:
            sink.push([self._end])

    async def _push_text(self, sink: Sink[list[Delta]]) -> None:
        await self._stream.push_to(Sink(partial(self._push, sink), sink.paused))
        # If memory is short, the text model must be unloaded before the speech model is loaded.
        await self._stream.aclose()
        self._texts.put_nowait(None)

    def _push(self, sink: Sink[list[Delta]], deltas: list[Delta]) -> None:
        for place, delta in enumerate(deltas):
            for event in delta.events:
                if isinstance(event, Text):
                    self._add(event, delta)
            if delta.finish is not None:
                self._end = Delta(delta.index, finish=delta.finish, stop=delta.stop, broken_call=delta.broken_call)
                delta.finish = delta.stop = None
                del deltas[place + 1 :]
        sink.push(deltas)

    def _add(self, event: Text, delta: Delta) -> None:
        if len(event.text) > self._left:
            event.text = event.text[: self._left]
            delta.finish = "length"
            self._stream.finish("length")
        self._left -= len(event.text)
        self._texts.put_nowait(event.text)

    async def _push_audio(self, sink: Sink[list[Delta]]) -> None:
        async with aclosing(self._model.speak(self._written(), self._output.params)) as blocks:
            try:
                async for samples in blocks:
                    for start in range(0, len(samples), PIECE_BYTES):
                        await sink.send([Delta(0, audio=samples[start : start + PIECE_BYTES])])
            except BadRequest as error:  # the engine cannot speak at the sample rate of the format
                error.param = "audio.format"
                raise

    async def _written(self) -> AsyncGenerator[str, None]:
        while (text := await self._texts.get()) is not None:
            yield text


class Base64Pieces:
    """Encodes samples in base64, in pieces that clients may concatenate before they decode them."""

    def __init__(self) -> None:
        self._left = b""

    def add(self, samples: bytes) -> Iterator[str]:
        """Adds samples and yields whole pieces of base64; an incomplete piece at the end is kept."""
        samples = self._left + samples
        end = len(samples) - len(samples) % WHOLE
        self._left = samples[end:]
        for start in range(0, end, PIECE_BYTES):
            yield b64encode(samples[start : min(start + PIECE_BYTES, end)]).decode()

    def rest(self) -> str:
        """Returns the last piece with the remaining samples, or ""."""
        return b64encode(self._left).decode()


class AudioDeltas:
    """Makes the member `delta` of a spoken answer's chunks. Clients join its strings, so only the first has the id."""

    def __init__(self) -> None:
        self._head: Json = {"id": new_id("audio")}
        self._pieces = Base64Pieces()

    def transcript(self, text: str) -> bytes:
        """Returns the delta of new text."""
        return self._with({"transcript": text})

    def of(self, delta: Delta) -> Iterator[bytes]:
        """Yields the deltas of new samples. The last has a past expires_at, as later turns cannot name the audio."""
        for piece in self._pieces.add(delta.audio):
            yield self._with({"data": piece})
        if delta.finish and not self._head:
            rest = self._pieces.rest()
            yield self._with({**({"data": rest} if rest else {}), "expires_at": now()})

    def _with(self, members: Json) -> bytes:
        head, self._head = self._head, {}
        return orjson.dumps({"audio": head | members})
