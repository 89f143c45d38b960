"""POST …/audio/speech, which speaks a text, and GET …/audio/voices.

https://platform.openai.com/docs/api-reference/audio/createSpeech and OVMS's /v3/audio/speech. The audio is sent
sentence by sentence. Under OVMS's paths a request without stream_format gets the whole file, with its length.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial
from math import ceil

from ...api.fields import Field, FieldSet, RouteDoc, read
from ...api.generation import common_fields
from ...api.response import json, warning_headers
from ...api.router import follows_ovms
from ...api.schemas import VOICE
from ...api.services import Services
from ...api.sse import HEADERS as SSE_HEADERS
from ...api.sse import event
from ...errors import BadRequest, RequestError
from ...observability.logging import safe
from ...observability.records import current_record
from ...types import Json, Request, Response
from ...types.audio import SAMPLE_BYTES, SpeakParams, VoiceInfo
from ...types.push import Sink
from ..media_files.audio.encoder import FORMATS, open_encoder
from ..media_files.audio_models import PCM_RATE, read_voice, voice_of
from ..media_files.feature import SpokenTextOptions
from .feature import VoiceOptions
from .model import VoiceModel

TOKENS_PER_S = 100
"""The tokens that a second of audio counts as in the usage, as for transcriptions."""
INLINE_SAMPLES = 1 << 14
"""The most bytes of samples that are encoded on the event loop."""
PIECE_BYTES = 24_000
"""The most bytes of the file that are sent at once: some clients read lines of 64 KiB at most."""


def _read_format(value: str) -> str:
    if value not in FORMATS:
        problem = "aac is not supported" if value == "aac" else f"response_format {safe(value, 40)!r} is unknown"
        raise BadRequest(f"{problem}; it must be one of: {', '.join(FORMATS)}", param="response_format")
    return value


FIELDS = FieldSet((
    Field("model", "string", "name of a text-to-speech model; optional if only one is served"),
    Field("input", "string", "text to speak, with at most --max_speech_characters characters", required=True,
        schema={"minLength": 1}),
    Field("voice", "any", "name of one of the model's voices; its first one if absent", read=read_voice, schema=VOICE),
    Field("response_format", "string",
        "wav, pcm (24 kHz, 16 bit), flac, opus or mp3; the last three need the extra audio", read=_read_format,
        default="wav", schema={"enum": list(FORMATS)}),
    Field("speed", "number", "speed of the speech, from --speed_min to --speed_max; without effect for SpeechT5",
        default=1.0),
    Field("stream_format", "string", "audio streams the file; sse sends events with pieces of it in base64",
        choices=("audio", "sse"), outside="stream_format must be audio or sse"),
    Field("language", "string", "(OVMS) language of the text, for models with several languages"),
    Field("instructions", "string", "(OpenAI) how to speak; ignored with a warning"),
))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechRequest:
    """The parsed body of a request."""

    model: VoiceModel
    """The model that speaks."""
    text: str
    """The text to speak."""
    params: SpeakParams
    """The parameters of the speech."""
    format: str
    """The format of the file, one of FORMATS."""
    sse: bool
    """Whether the file is sent as events."""
    whole: bool
    """Whether the file is sent when it is complete, instead of while it is made."""
    headers: list[tuple[str, str]]
    """The Warning headers of the response."""

    @property
    def rate(self) -> int:
        """The samples per second of the audio."""
        return self.params.sample_rate or self.model.voices.sample_rate


@RouteDoc("Speak a text", body=FIELDS, media=tuple(FORMATS.values()), answer="", stream=True)
async def handle(request: Request, services: Services) -> Response:
    parsed = await services.parse_body(request, parse)
    alone = len(parsed.model.pieces(parsed.text)) == 1
    # Raises an error if there is no encoder.
    await services.offload.run(0, lambda: open_encoder(parsed.format, parsed.rate).finish())
    blocks = parsed.model.speak(parsed.text, parsed.params)
    if not parsed.sse and (alone or (parsed.whole and follows_ovms(request))):
        data = await whole_file(parsed, services, blocks)
        return Response(200, [("Content-Type", FORMATS[parsed.format]), *parsed.headers], data)
    stream = SpokenAnswer(services, parsed, blocks)
    await stream.start()
    headers = SSE_HEADERS if parsed.sse else [("Content-Type", FORMATS[parsed.format])]
    return Response(200, headers + parsed.headers, stream)


def parse(body: Json, services: Services) -> SpeechRequest:
    """Parses the body of a request for speech. Raises RequestError."""
    values = read(FIELDS, body)
    text = _text(values["input"], services)
    model = services.named_model(values, VoiceModel)
    info, notices = model.voices, common_fields.warnings(FIELDS, body)
    options = model.config.of(VoiceOptions)
    low, high = options.speed_min, options.speed_max
    if not low <= values["speed"] <= high:
        raise BadRequest(f"speed must be between speed_min ({low:g}) and speed_max ({high:g})", param="speed")
    params = SpeakParams(
        voice=voice_of(values["voice"], info, notices),
        language=_language(values["language"], info, notices),
        speed=_speed(values["speed"], info, notices),
        sample_rate=PCM_RATE if values["response_format"] == "pcm" else 0,
    )
    if values["instructions"]:
        notices.append("instructions are not supported and were ignored")
    return SpeechRequest(
        model=model,
        text=text,
        params=params,
        format=values["response_format"],
        sse=values["stream_format"] == "sse",
        whole=values["stream_format"] is None,
        headers=warning_headers(notices),
    )


def _text(value: str | None, services: Services) -> str:
    if value is None:
        raise BadRequest("input field is missing in JSON body", param="input")
    most = services.config.of(SpokenTextOptions).max_speech_characters
    if len(value) > most:
        raise BadRequest(
            f"input has {len(value)} characters, more than this server's limit of {most} (--max_speech_characters)",
            param="input",
        )
    if not value.strip():
        raise BadRequest("input is empty", param="input")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRequest("input is not valid Unicode (lone surrogates)", param="input") from None
    return value


def _language(code: str | None, info: VoiceInfo, notices: list[str]) -> str:
    if not code:
        return ""
    if not info.languages:
        notices.append("language has no effect: this model has only one language")
        return ""
    if code.lower() not in info.languages:
        raise BadRequest(f"language must be one of: {', '.join(info.languages)}", param="language")
    return code.lower()


def _speed(value: float, info: VoiceInfo, notices: list[str]) -> float:
    if info.speed[0] == info.speed[1] and value != 1:
        notices.append("speed has no effect on this model")
        return 1.0
    return float(value)


# --- answers


async def whole_file(parsed: SpeechRequest, services: Services, blocks: AsyncGenerator[bytes, None]) -> bytes:
    """Returns the complete file for these blocks of samples. Raises RequestError."""
    samples = b"".join([block async for block in blocks])
    encoder = open_encoder(parsed.format, parsed.rate, len(samples) // SAMPLE_BYTES)
    return await _encode(services, len(samples), lambda: encoder.encode(samples) + encoder.finish())


async def _encode(services: Services, size: int, work: Callable[[], bytes]) -> bytes:
    """Encodes `size` bytes of samples, in the offload thread if it takes long: a second of MP3 takes 5 ms."""
    return await services.offload.run(size, work, inline_below=INLINE_SAMPLES)


class SpokenAnswer:
    """The ByteStream of an answer: pieces of the file, unchanged or as events.

    `start` must be called first, so that an error before the first sound has its own status.
    """

    def __init__(self, services: Services, parsed: SpeechRequest, blocks: AsyncGenerator[bytes, None]) -> None:
        self._services = services
        self._parsed = parsed
        self._blocks = blocks
        self._encoder = open_encoder(parsed.format, parsed.rate)
        self._samples = 0
        self._first = b""
        self._record = current_record.get()
        if self._record is not None:
            self._record.stream = True

    async def start(self) -> None:
        """Waits for the audio of the first sentence. Raises RequestError."""
        try:
            self._first = await anext(self._blocks, b"")
        except BaseException:
            await self._blocks.aclose()
            raise

    async def push_to(self, sink: Sink[bytes]) -> None:
        try:
            while samples := self._first or await anext(self._blocks, b""):
                self._first = b""
                self._samples += len(samples) // SAMPLE_BYTES
                work = partial(self._encoder.encode, samples)
                await self._send(sink, await _encode(self._services, len(samples), work))
            await self._send(sink, await _encode(self._services, self._samples * SAMPLE_BYTES, self._encoder.finish))
            if data := self._end():
                sink.push(data)
        except RequestError as error:
            sink.push(self._failed(error))

    async def _send(self, sink: Sink[bytes], data: bytes) -> None:
        """Sends a part of the file piece by piece, and lets others run in between."""
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            if self._parsed.sse:
                piece = event({"type": "speech.audio.delta", "audio": b64encode(piece).decode()})
            await sink.send(piece)
            await asyncio.sleep(0)

    def _end(self) -> bytes:
        if not self._parsed.sse:
            return b""
        read, spoken = len(self._parsed.text), ceil(self._samples / self._parsed.rate * TOKENS_PER_S)
        usage = {"input_tokens": read, "output_tokens": spoken, "total_tokens": read + spoken}
        return event({"type": "speech.audio.done", "usage": usage})

    def _failed(self, error: RequestError) -> bytes:
        """Returns an event with the error.

        In a file there is no place for an error, so the body is truncated, and cannot be taken for complete.
        """
        if self._record is not None:
            self._record.error = error.code or error.kind
        if not self._parsed.sse:
            raise error
        return event(error.body())

    async def aclose(self) -> None:
        await self._blocks.aclose()


# --- voices


@RouteDoc("The voices of a text-to-speech model")
async def handle_voices(request: Request, services: Services) -> Response:
    found = [model for model in services.registry.served if isinstance(model, VoiceModel) and model.ready]
    data = [{"id": name, "name": name, "model": model.name} for model in found for name in model.voices.voices]
    return json({"voices": list(dict.fromkeys(row["name"] for row in data)), "object": "list", "data": data})
