"""PDF files in messages, in OpenAI's form. The model gets their text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256

from ...api.generation.content import (
    ContentReader,
    MediaPart,
    Reads,
    check_member,
    media_parts,
    named_errors,
    parts_of,
    plain_text,
    text_for,
    with_texts,
)
from ...api.services import INLINE_BYTES, Services
from ...errors import BadRequest, RequestError
from ...models.text_model import TextModel
from ...types import ChatPrompt, Json
from ..media_files.base64_text import decode_base64, where_data_begins
from .reader import PdfReaders, require_library

KINDS = ("file",)
"""The types of content parts with a file."""
MOST = 32
"""The most files in one request."""
NOT_HERE = "this endpoint does not read PDF files; only endpoints that generate an answer do"


class PdfContent(ContentReader):
    """Replaces PDF files by their text, for any model."""

    def checked(self, part: Json, param: str) -> Json:
        check_member(part, "file_data", param)
        return part

    def refusal(self, found: MediaPart, place: str, why: str) -> BadRequest:
        return BadRequest(NOT_HERE, param=found.at)

    async def as_text(self, prompt: ChatPrompt, model: TextModel, services: Services) -> tuple[ChatPrompt, list[str]]:
        parts = await parts_of(prompt, KINDS, services)
        if len(parts) > MOST:
            raise BadRequest(f"{len(parts)} files exceed this server's limit of {MOST}", param=parts[MOST].at)
        found, notices = list[str](), list[str]()
        tokens = model.image_tokens or ()
        for part in parts:
            try:
                with named_errors(part):
                    text = plain_text(await _text(part.part["file"], services), tokens)
            except RequestError as error:
                text = text_for(part, error, notices)
            found.append(text)
        texts = iter(found)
        return prompt.with_messages([with_texts(message, KINDS, texts) for message in prompt.messages]), notices

    async def load(
        self, prompts: Sequence[ChatPrompt], places: Sequence[str], reads: Reads, services: Services
    ) -> list[ChatPrompt]:
        for prompt in prompts:
            for part in media_parts(prompt.messages, KINDS):
                raise BadRequest(NOT_HERE, param=part.at)
        return [*prompts]


READER = PdfContent()


async def _text(file: Json, services: Services) -> str:
    """Returns the text of a file with its name before it. Raises RequestError."""
    require_library()
    given = file["file_data"]
    key, data = await services.offload.run(len(given), partial(_decoded, given), inline_below=INLINE_BYTES)
    text = await services.get(PdfReaders).text(key, data)
    name = file.get("filename")
    return f"{name}\n\n{text}" if isinstance(name, str) and name else text


def _decoded(given: str) -> tuple[bytes, bytes]:
    """Decodes a file from base64 or a data URL; returns a digest of it, and the file. Raises BadRequest."""
    try:
        data = decode_base64(given[where_data_begins(given) :].encode())
    except ValueError:
        raise BadRequest("file_data is not a PDF file in base64") from None
    return sha256(data).digest(), data
