"""PDF and text files in messages, in OpenAI's form. The model gets their text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256

from ...api.services import INLINE_BYTES, Services
from ...errors import BadRequest, RequestError, errors_of
from ...models.text_model import TextModel
from ...observability.records import current_client
from ...types import ChatPrompt, Json
from ..chat.content import (
    ContentReader,
    MediaPart,
    Reads,
    check_member,
    media_parts,
    parts_of,
    plain_text,
    text_for,
    with_texts,
)
from ..media_files.base64_text import decode_base64, where_data_begins
from .limits import MAX_TEXT
from .reader import PdfReaders, require_library
from .sources import FileFetcher, content_of

KINDS = ("file",)
"""The types of content parts with a file."""
NAMES = ("file_id", "file_url")
"""The members of a file that name it, in place of `file_data`."""
MOST = 32
"""The most files in one request."""
PDF_MARK, MARK_WITHIN = b"%PDF-", 1024
"""The bytes that a PDF file has among its first ones."""
NOT_HERE = "this endpoint does not read files; only endpoints that generate an answer do"


class PdfContent(ContentReader):
    """Replaces files by their text, for any model."""

    def checked(self, part: Json, param: str) -> Json:
        file = part.get("file")
        if not isinstance(file, dict) or not any(isinstance(file.get(name), str) for name in NAMES):
            check_member(part, "file_data", param)
        return part

    def refusal(self, found: MediaPart, place: str, why: str) -> BadRequest:
        return BadRequest(NOT_HERE, param=found.at)

    async def as_text(
        self, prompt: ChatPrompt, model: TextModel, services: Services, salt: str
    ) -> tuple[ChatPrompt, list[str]]:
        parts = await parts_of(prompt, KINDS, services)
        if len(parts) > MOST:
            raise BadRequest(f"{len(parts)} files exceed this server's limit of {MOST}", param=parts[MOST].at)
        found, notices = list[str](), list[str]()
        tokens = model.image_tokens or ()
        for part in parts:
            try:
                with errors_of(part.at):
                    text = plain_text(await _text(part.part["file"], services, salt), tokens)
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


async def _text(file: Json, services: Services, salt: str) -> str:
    """Returns the text of a file with its name before it. Raises RequestError.

    Args:
        file: The member of the part that has the file, or names it.
        services: The services of the server.
        salt: The request's cache_salt.
    """
    given, name = file.get("file_data"), file.get("filename")
    if isinstance(given, str):
        text = await _text_of(given, None, services, salt)
    else:
        with await services.get(FileFetcher).slots.acquire(1, current_client()):
            known, content = await content_of(file, services)
            name, text = name or known, await _text_of("", content, services, salt)
    return f"{name}\n\n{text}" if isinstance(name, str) and name else text


async def _text_of(given: str, content: bytes | None, services: Services, salt: str) -> str:
    """Returns the text of a file.

    Args:
        given: The file in base64, or as a data URL; not read if there are bytes.
        content: The bytes of the file; None if it is in `given`.
        services: The services of the server.
        salt: The request's cache_salt.

    Raises:
        RequestError: The file is neither text nor PDF, or cannot be read.
    """
    size = len(given) if content is None else len(content)
    text, digest, data = await services.offload.run(size, partial(_read, given, content), inline_below=INLINE_BYTES)
    if text is None:
        require_library()
        text = await services.get(PdfReaders).text(digest, data, salt)
    return text


def _read(given: str, content: bytes | None) -> tuple[str | None, bytes, bytes]:
    """Reads a file, in base64 or a data URL, or its bytes. Raises BadRequest if it is neither text nor PDF.

    Returns its text if it is a text in UTF-8, or None if it is a PDF file; a digest of it; and its bytes.
    """
    head = where_data_begins(given)
    if content is None:
        try:
            content = decode_base64(given[head:].encode())
        except ValueError:
            raise BadRequest("file_data is not a file in base64") from None
    if b"pdf" in given[:head].lower().encode() or PDF_MARK in content[:MARK_WITHIN]:
        return None, sha256(content).digest(), content
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise BadRequest("the file is neither a PDF file nor a text in UTF-8")
    if len(text) > MAX_TEXT:
        raise BadRequest(f"the file has more than {MAX_TEXT} characters")
    return text, b"", content
