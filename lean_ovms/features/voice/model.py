"""A text-to-speech model as requests use it: text in, audio out, by sentences. No HTTP and no file formats."""

from __future__ import annotations

import asyncio
import re
import time
import unicodedata
from collections.abc import AsyncGenerator, Iterator
from dataclasses import asdict
from functools import partial

from ...errors import BadRequest, too_slow
from ...models.model import UsageRecorder
from ...observability.records import current_client
from ...types import Json
from ...types.audio import SpeakParams, VoiceInfo
from ..media_files.audio_models import Speaker
from .records import Speak

SENTENCE = re.compile(r"(?<![.!?…;:])[.!?…;:]+[\"'”’)\]]*(?=\s)|[。！？；]+[」』”’]*|\n+")
"""Matches a possible end of a sentence."""
ABBREVIATION = re.compile(
    r"""(?:^|[\s("'“‘\[-])(?:
    Dr|Mr|Mrs|Ms|Prof|Rev|Hon|St|Sr|Jr|Gen|Col|Maj|Capt|Cmdr|Lt|Sgt|Sen|Rep|Gov|Pres|Mt|Ft|Vol|Figs?|Eq|vs|cf|approx
    |Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec|e\.g|i\.e|(?:[A-Z]\.)*[A-HJ-Z])$""",
    re.VERBOSE,
)
"""Matches words before a full stop that does not end a sentence: titles, months, initials."""
ABBREVIATED = 12
"""The most characters of such a word together with what precedes it."""
CLAUSE = re.compile(r"(?<![,、，)–—-])[,、，)–—-]+(?=\s|$)|[、，]+")
SPACE = re.compile(r"\s+")
SHORT = 24
"""The number of characters below which a piece is joined with the next sentence, such as "1." or "Oh!"."""


class VoiceModel(Speaker):
    """A text-to-speech model. Each method that serves a request resolves the model once, with `hold`."""

    @property
    def reported(self) -> Json:
        return {"voices": asdict(self.voices)}

    @property
    def summary(self) -> str:
        info = self.voices
        return f"{self.task}, {len(info.voices) or 1} voices, {info.sample_rate} Hz"

    def pieces(self, text: str) -> list[str]:
        """Divides a text into the pieces that are spoken one by one. Raises BadRequest if there is nothing to speak."""
        pieces = split(text, self.serving().info.context_length)
        if not pieces:
            raise BadRequest("input is empty", param="input")
        return pieces

    async def speak(self, text: str | AsyncGenerator[str, None], params: SpeakParams) -> AsyncGenerator[bytes, None]:
        """Yields the audio of a text, one block for each sentence, in the form of types.audio. Raises RequestError.

        A text may still be generated. The next sentence is spoken while the caller processes the one before, but no
        further ones. If this generator is closed, the engine stops after the current sentence. The parameters'
        sample_rate 0 is the model's.
        """
        with await self.hold() as model, model.recorded(UsageRecorder()) as usage:
            client, fields = current_client(), asdict(params)
            deadline = usage.started + self.config.request_timeout_s if self.config.request_timeout_s else None
            pieces = model._pieces_of(text, usage)

            async def spoken(begun: bool) -> bytes | None:
                piece = await anext(pieces, None)
                if piece is None:
                    return None
                record = partial(Speak, text=piece, params=fields, begun=begun, client=client)
                speech: bytes = await model.engine.call(record)
                return speech

            upcoming = asyncio.create_task(spoken(False))
            try:
                while (block := await _within(upcoming, deadline)) is not None:
                    upcoming = asyncio.create_task(spoken(True))
                    if block:
                        usage.first = usage.first or time.monotonic()
                        yield block
                if isinstance(text, str) and usage.first is None:
                    raise BadRequest(_without_sound(model.voices), param="input")
            finally:
                upcoming.cancel()
                await asyncio.wait([upcoming])
                if not upcoming.cancelled():
                    upcoming.exception()  # otherwise asyncio would report an error that nobody has retrieved
                await pieces.aclose()

    async def _pieces_of(
        self, text: str | AsyncGenerator[str, None], usage: UsageRecorder
    ) -> AsyncGenerator[str, None]:
        """Yields the pieces of a text that are spoken one by one, and counts its characters. Raises BadRequest."""
        if isinstance(text, str):
            usage.prompt_tokens = len(text)
            for piece in self.pieces(text):
                yield piece
            return
        rest, most = "", self.info.context_length
        async for new in text:
            usage.prompt_tokens += len(new)
            rest += new
            end = ended(rest, most)
            for piece in split(rest[:end], most):
                yield piece
            rest = rest[end:]
        for piece in split(rest, most):
            yield piece


def _without_sound(info: VoiceInfo) -> str:
    """Returns the error message for a text without any sound, such as an emoji or another language's letters."""
    text = "input contains nothing that this model can speak"
    return f"{text}; language must be one of: {', '.join(info.languages)}" if info.languages else text


async def _within(sentence: asyncio.Task[bytes | None], deadline: float | None) -> bytes | None:
    """Returns the result of the task, or raises its exception. Raises RequestTimeout after the deadline."""
    if deadline is None:
        return await sentence
    try:
        return await asyncio.wait_for(asyncio.shield(sentence), max(0.0, deadline - time.monotonic()))
    except asyncio.TimeoutError:
        raise too_slow() from None


def split(text: str, most: int) -> list[str]:
    """Divides a text into pieces of at most `most` characters; returns [] for a text without visible characters.

    The text is first brought to the normalization form NFKC that tokenizers use, so that a character that becomes
    several is counted as several.
    """
    text = unicodedata.normalize("NFKC", text)
    pieces: list[str] = []
    start = 0
    for end in _ends(text):
        if end - start >= SHORT:
            pieces += _short_enough(text[start:end], most)
            start = end
    pieces += _short_enough(text[start:], most)
    return [piece for piece in pieces if piece]


def ended(text: str, most: int) -> int:
    """Returns the end of the last sentence that further text cannot change; 0 if no sentence has ended.

    A sentence without an end is cut after `most` characters.
    """
    end = 0
    for found in _ends(text):
        if found < len(text) and found - end >= SHORT:
            end = found
    return end if end or len(text) <= most else _last(SPACE, text, most) or most


def _ends(text: str) -> Iterator[int]:
    """Yields the index of the end of each sentence in a text."""
    for found in SENTENCE.finditer(text):
        at = found.start()
        if found.group() != "." or not ABBREVIATION.search(text[max(0, at - ABBREVIATED) : at]):
            yield found.end()


def _short_enough(text: str, most: int) -> list[str]:
    """Divides a sentence into pieces: at the last clause that fits, or the last space, or anywhere."""
    text = SPACE.sub(" ", text).strip()
    pieces = []
    while len(text) > most:
        end = _last(CLAUSE, text, most) or _last(SPACE, text, most) or most
        pieces.append(text[:end].strip())
        text = text[end:].strip()
    return [*pieces, text]


def _last(pattern: re.Pattern[str], text: str, most: int) -> int:
    """Returns the end of the last match in the second half of the first `most` characters; 0 if there is none."""
    return max((found.end() for found in pattern.finditer(text, most // 2, most)), default=0)
