"""Audio in a conversation: a model that takes audio gets the samples, and another one a transcript by a speech model.

https://platform.openai.com/docs/guides/audio, and vLLM's audio_url if it is a data URL.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from ...api.services import INLINE_BYTES, Services
from ...errors import BadRequest, RequestError, errors_of
from ...models.text_model import TextModel
from ...types import AUDIO_TAG, ChatPrompt, Json
from ..chat.content import ContentReader, MediaPart, Reads, check_member, parts_of, text_for, with_texts
from ..media_files.audio.decoder import AudioDecoder, AudioStream
from ..media_files.base64_text import decode_base64, where_data_begins
from ..media_files.feature import AudioFileOptions
from .feature import AudioChatOptions

if TYPE_CHECKING:
    from ..media_files.audio_models import Transcriber

TOKENS_PER_S = 12.5
"""The tokens for a second of audio, as in Qwen3-Omni."""
PARTS = {"input_audio": "data", "audio_url": "url"}
"""Content parts with audio, OpenAI's and vLLM's, and the member that has it."""
NO_AUDIO = (
    "this model does not read audio: start the server with --audio_input_model and the name of a speech2text model, "
    "or send the audio to /v1/audio/transcriptions"
)
LEFT_OUT = "[The tool returned audio, which was left out: this model reads text only]"
"""Stands for the audio of a tool in the prompt of a model that reads text only."""
NOTICE = "audio returned by tools was left out: this model reads text only"
NOT_HERE = "this endpoint does not read audio; only endpoints that generate an answer do"


class AudioContent(ContentReader):
    """Reads the audio parts of a conversation. The member `format` is ignored, as the data itself shows its format."""

    def checked(self, part: Json, param: str) -> Json:
        if part["type"] != "audio_url" or not isinstance(part.get("audio_url"), str):
            check_member(part, PARTS[part["type"]], param)
        return part

    def refusal(self, found: MediaPart, place: str, why: str) -> BadRequest:
        return BadRequest(NOT_HERE, param=found.at)

    async def as_text(
        self, prompt: ChatPrompt, model: TextModel, services: Services, salt: str
    ) -> tuple[ChatPrompt, list[str]]:
        if model.takes_audio:
            return prompt, []
        parts, notices = await parts_of(prompt, PARTS, services), list[str]()
        if not model.config.of(AudioChatOptions).audio_input_model:
            return _without(parts, prompt), [NOTICE]
        with errors_of(parts[0].at):
            speech = await _transcriber(model, services)

        async def read(samples: AudioStream, param: str) -> str:
            async with aclosing(samples):
                text = await speech.transcript(samples)
            notices.append(f"{param} is the transcript of {samples.seconds:.1f} s of audio by {speech.name}")
            return text

        texts = iter(await _read_each(parts, services, read, notices))
        return prompt.with_messages([with_texts(message, PARTS, texts) for message in prompt.messages]), notices

    async def load(
        self, prompts: Sequence[ChatPrompt], places: Sequence[str], reads: Reads, services: Services
    ) -> list[ChatPrompt]:
        return [await _heard(prompt, reads, services) for prompt in prompts]


READER = AudioContent()


def _without(parts: list[MediaPart], prompt: ChatPrompt) -> ChatPrompt:
    """Replaces audio in the results of tools by a text. Raises BadRequest for audio of the user."""
    for part in parts:
        if not part.of_tool:
            raise BadRequest(NO_AUDIO, param=part.at, code="not_supported")
    texts = itertools.repeat(LEFT_OUT)
    return prompt.with_messages([with_texts(message, PARTS, texts) for message in prompt.messages])


async def _heard(prompt: ChatPrompt, reads: Reads, services: Services) -> ChatPrompt:
    """Adds the samples of a prompt's audio to it, and puts tags in the place of the parts. Raises RequestError."""
    parts, heard = await parts_of(prompt, PARTS, services), list[bytes]()
    if not parts:
        return prompt
    if not reads.audio:
        raise BadRequest(NOT_HERE, param=parts[0].at)

    async def read(samples: AudioStream, param: str) -> str:
        heard.append(await _read(samples, reads.context / TOKENS_PER_S))
        return AUDIO_TAG.format(len(heard) - 1)

    tags = iter(await _read_each(parts, services, read))
    messages = [with_texts(message, PARTS, tags) for message in prompt.messages]
    return prompt.with_media(messages, prompt.images, tuple(heard))


async def _read_each(
    parts: list[MediaPart],
    services: Services,
    read: Callable[[AudioStream, str], Awaitable[str]],
    notices: list[str] | None = None,
) -> list[str]:
    """Reads audio parts, and returns the text that replaces each.

    Args:
        parts: The parts with audio.
        services: The services of the server.
        read: Returns the text for a part, given its samples, which it closes, and its field.
        notices: Gets a line for each result of a tool that cannot be read; such an error is raised if it is None.

    Raises:
        RequestError: A part cannot be read, or there are more parts or longer ones than the server allows.
    """
    config, total_s, texts = services.config, 0.0, list[str]()
    if len(parts) > (most := config.of(AudioChatOptions).max_audio_parts):
        why = f"{len(parts)} audio parts exceed this server's limit of {most} (--max_audio_parts)"
        raise BadRequest(why, param=parts[most].at)
    longest_s = config.of(AudioFileOptions).max_audio_s
    for part in parts:
        try:
            with errors_of(part.at):
                if total_s <= longest_s:  # otherwise what remains is not read, either
                    samples = await _open(part.part, services)
                    try:
                        text = await read(samples, part.at)
                    finally:
                        total_s += samples.seconds
                if total_s > longest_s:
                    raise BadRequest(
                        f"all audio together is longer than this server's limit of {longest_s:g} s (--max_audio_s)"
                    )
        except RequestError as error:
            if notices is None:
                raise
            text = text_for(part, error, notices)
        texts.append(text)
    return texts


async def _transcriber(model: TextModel, services: Services) -> Transcriber:
    """Returns the model that transcribes for a text model, and loads it if it was never loaded. Raises RequestError."""
    from ..media_files.audio_models import Transcriber

    return await services.when_known(lambda: services.helper("audio_input_model", model, Transcriber))


async def _open(part: Json, services: Services) -> AudioStream:
    """Opens the samples of a part, which the caller has to close. Raises RequestError."""
    audio = part[part["type"]]
    text = audio if isinstance(audio, str) else audio[PARTS[part["type"]]]
    decode = partial(_decoded, text, part["type"] == "audio_url")
    data = await services.offload.run(len(text), decode, inline_below=INLINE_BYTES)
    return await services.get(AudioDecoder).decode(memoryview(data))


async def _read(samples: AudioStream, longest_s: float) -> bytes:
    """Reads all samples of a stream of at most `longest_s` seconds. Raises RequestError if it is longer."""
    blocks: list[bytes] = []
    async with aclosing(samples):
        async for block in samples:
            blocks.append(block)
            if samples.seconds > longest_s:
                raise BadRequest(f"the audio is longer than the {longest_s:.1f} s that this model can read")
    return b"".join(blocks)


def _decoded(text: str, url: bool) -> bytes:
    """Decodes the base64 or the data URL of a part to the bytes of its audio file. Raises BadRequest."""
    if url:
        begin = where_data_begins(text)
        if not begin or text[:5].lower() != "data:":
            raise BadRequest("audio_url must be a data URL in base64; audio is not fetched from other URLs")
        text = text[begin:]
    try:
        return decode_base64(text.encode())
    except ValueError:
        raise BadRequest("Invalid base64 string in request") from None
