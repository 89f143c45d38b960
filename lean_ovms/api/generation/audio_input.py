"""Audio in a conversation: a model that hears gets its samples, another one the transcript of a speech model.

https://platform.openai.com/docs/guides/audio, and vLLM's audio_url, as far as it is a data URL.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from ...errors import BadRequest, RequestError
from ...models.text_model import TextModel
from ...types import AUDIO_TAG, ChatPrompt, Json
from ...util.base64_text import decode_base64
from ...util.concurrency import INLINE_CHARACTERS
from ..services import INLINE_BYTES, Services

if TYPE_CHECKING:
    from ...media.audio.decoder import AudioStream
    from ...models.transcriber import Transcriber

TOKENS_PER_S = 12.5
"""Tokens of a second of audio for a model that hears: Qwen3-Omni's."""
PARTS = {"input_audio": "data", "audio_url": "url"}
"""Content parts with audio, OpenAI's and vLLM's, and the member that has it."""
BASE64 = ";base64,"
MAX_HEAD = 256
"""Characters of a data URL before its data."""
NO_AUDIO = (
    "this model reads no audio: start the server with --audio_input_model and the name of a speech2text model, which "
    "transcribes it, or POST it to /v1/audio/transcriptions"
)


def check_audio(part: Json, param: str) -> None:
    """Raises BadRequest unless the part is well-formed. Its `format` is not looked at: the data says what it is."""
    kind = part["type"]
    audio, member = part.get(kind), PARTS[kind]
    if kind == "audio_url" and isinstance(audio, str):
        return
    if not isinstance(audio, dict) or not isinstance(audio.get(member), str):
        raise BadRequest(f"Invalid message structure - {kind} does not have {member} field", param=f"{param}.{kind}")


def refuse_audio(messages: list[Json]) -> None:
    """Raises BadRequest if there is audio, where none is transcribed."""
    for _, param in _parts(messages):
        raise BadRequest("audio is not read here, only where an answer is generated", param=param)


async def read_audio(prompt: ChatPrompt, model: TextModel, services: Services) -> tuple[ChatPrompt, list[str]]:
    """The prompt with tags or transcripts in place of its audio, and a line about each transcript. Raises RequestError.

    Cancelling it stops the transcription.
    """
    if not prompt.has_parts:
        return prompt, []
    search = partial(lambda messages: [*_parts(messages)], prompt.messages)
    parts = await model.offload.run(prompt.render_cost, search, inline_below=INLINE_CHARACTERS)
    if not parts:
        return prompt, []
    texts: list[str] = []
    heard: list[bytes] = []
    notices: list[str] = []
    total_s, config, param = 0.0, services.config, parts[0][1]
    try:
        speech = None if model.hears else await _transcriber(model, services)
        if len(parts) > (most := config.max_audio_parts):
            param = parts[most][1]
            raise BadRequest(f"{len(parts)} audio parts are more than this server's limit: {most}")
        for part, param in parts:
            samples = await _open(part, services)
            if speech is None:
                texts.append(AUDIO_TAG.format(len(heard)))
                heard.append(await _read(samples, model.info.context_length / TOKENS_PER_S))
            else:
                texts.append(await _transcript(samples, speech))
                notices.append(f"{param} is the transcript of {samples.seconds:.1f} s of audio by {speech.name}")
            total_s += samples.seconds
            if total_s > config.max_audio_s:
                raise BadRequest(f"all audio together is longer than this server's limit: {config.max_audio_s:g} s")
    except RequestError as error:
        error.param = param
        raise
    left = iter(texts)
    messages = [with_texts(message, PARTS, left) for message in prompt.messages]
    if heard:
        return prompt.with_media(messages, prompt.images, tuple(heard)), notices
    return prompt.with_messages(messages), notices


async def _transcriber(model: TextModel, services: Services) -> Transcriber:
    """Returns the model that transcribes for this one; if nothing is known of it yet it is loaded. Raises
    RequestError."""
    if not model.config.audio_input_model:
        raise BadRequest(NO_AUDIO, code="not_supported")

    from ...models.transcriber import Transcriber

    return await services.when_known(lambda: services.helper("audio_input_model", model, Transcriber))


async def _transcript(samples: AudioStream, speech: Transcriber) -> str:
    """Returns the text of samples, which are closed. Raises RequestError."""
    async with aclosing(samples):
        return await speech.transcript(samples)


async def _open(part: Json, services: Services) -> AudioStream:
    """The samples of a part; close it. Raises RequestError."""
    from ...media.audio.decoder import AudioDecoder

    audio = part[part["type"]]
    text = audio if isinstance(audio, str) else audio[PARTS[part["type"]]]
    decode = partial(_decoded, text, part["type"] == "audio_url")
    data = await services.offload.run(len(text), decode, inline_below=INLINE_BYTES)
    return await services.get(AudioDecoder).decode(memoryview(data))


async def _read(samples: AudioStream, longest_s: float) -> bytes:
    """All samples. longest_s: what fills the model's context. Raises RequestError."""
    blocks: list[bytes] = []
    async with aclosing(samples):
        async for block in samples:
            blocks.append(block)
            if samples.seconds > longest_s:
                raise BadRequest(f"the audio is longer than the {longest_s:.1f} s that this model can read")
    return b"".join(blocks)


def _decoded(text: str, url: bool) -> bytes:
    """Returns the audio of a part's text. Raises BadRequest."""
    if url:
        head = text[:MAX_HEAD].lower()
        start = head.find(BASE64)
        if start < 0 or not head.startswith("data:"):
            raise BadRequest("audio_url must be a data URL in base64: audio is not fetched")
        text = text[start + len(BASE64) :]
    try:
        return decode_base64(text.encode())
    except ValueError:
        raise BadRequest("Invalid base64 string in request") from None


def _parts(messages: list[Json]) -> Iterator[tuple[Json, str]]:
    """The audio parts with their places."""
    for m, message in enumerate(messages):
        content: Any = message.get("content")
        for p, part in enumerate(content if isinstance(content, list) else ()):
            if part["type"] in PARTS:
                yield part, f"messages[{m}].content[{p}]"


def with_texts(message: Json, kinds: Collection[str], texts: Iterator[str]) -> Json:
    """The message with the next texts in place of its parts of these kinds."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = [{"type": "text", "text": next(texts)} if part["type"] in kinds else part for part in content]
    return {**message, "content": parts}
