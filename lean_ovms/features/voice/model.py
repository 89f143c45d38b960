"""A model that speaks: text in, audio out, sentence by sentence. Knows no HTTP and no file formats."""

from __future__ import annotations

import asyncio
import re
import time
import unicodedata
from collections.abc import AsyncGenerator, Iterator
from dataclasses import asdict
from functools import partial

from ...errors import BadRequest
from ...models.model import UsageRecorder, too_slow
from ...observability.records import current_client
from ...types import Json
from ...types.audio import SpeakParams, VoiceInfo
from ..media_files.audio_models import Speaker
from .records import Speak

SENTENCE = re.compile(r"[.!?…;:]+[\"'”’)\]]*(?=\s)|[。！？；]+[」』”’]*|\n+")
"""Where a sentence may end."""
ABBREVIATION = re.compile(
    r"""(?:^|[\s("'“‘\[-])(?:
    Dr|Mr|Mrs|Ms|Prof|Rev|Hon|St|Sr|Jr|Gen|Col|Maj|Capt|Cmdr|Lt|Sgt|Sen|Rep|Gov|Pres|Mt|Ft|Vol|Figs?|Eq|vs|cf|approx
    |Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec|e\.g|i\.e|(?:[A-Z]\.)*[A-HJ-Z])$""",
    re.VERBOSE,
)
"""Words in front of a full stop that ends no sentence: titles, months, initials."""
ABBREVIATED = 12
"""The most characters of such a word, and of what is in front of it."""
CLAUSE = re.compile(r"[,、，)–—-]+(?=\s|$)|[、，]+")
SPACE = re.compile(r"\s+")
SHORT = 24
"""A piece of fewer characters takes the next sentence with it: "1.", "Oh!" are no pieces."""


class VoiceModel(Speaker):
    """Each method that serves a request resolves the model once (`hold`)."""

    @property
    def reported(self) -> Json:
        return {"voices": asdict(self.voices)}

    @property
    def summary(self) -> str:
        info = self.voices
        return f"{self.task}, {len(info.voices) or 1} voices, {info.sample_rate} Hz"

    def pieces(self, text: str) -> list[str]:
        """Returns what is spoken at once, each in its turn. Raises BadRequest for a text without anything to speak."""
        pieces = split(text, self.serving().info.context_length)
        if not pieces:
            raise BadRequest("input is empty", param="input")
        return pieces

    async def speak(self, text: str | AsyncGenerator[str, None], params: SpeakParams) -> AsyncGenerator[bytes, None]:
        """Yields the audio of a text: a block, as types.audio describes it, for each sentence.

        The next sentence is spoken while the caller has the one before, and no further ones. It ends in the engine,
        after the sentence that is being spoken, when this is closed.

        Args:
            text: The text. It may still be written; then each sentence is spoken once it has ended.
            params: The parameters, of which sample_rate is the audio's rate; without one it is VoiceInfo's.

        Raises:
            RequestError: The engine refuses it, or it makes no sound of a whole text.
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
                    upcoming.exception()  # or asyncio reports one that nobody has taken
                await pieces.aclose()

    async def _pieces_of(
        self, text: str | AsyncGenerator[str, None], usage: UsageRecorder
    ) -> AsyncGenerator[str, None]:
        """Yields what is spoken at once, each in its turn. Counts the characters. Raises as `pieces`."""
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
    """Returns what to say of a text of which a model makes no sound: of an emoji, or of letters of another language."""
    text = "input has nothing that this model can speak"
    return f"{text}; language is one of {', '.join(info.languages)}" if info.languages else text


async def _within(sentence: asyncio.Task[bytes | None], deadline: float | None) -> bytes | None:
    """Returns what the task returns. Raises RequestTimeout after the deadline, and what it raises."""
    if deadline is None:
        return await sentence
    try:
        return await asyncio.wait_for(asyncio.shield(sentence), max(0.0, deadline - time.monotonic()))
    except asyncio.TimeoutError:
        raise too_slow() from None


def split(text: str, most: int) -> list[str]:
    """Returns pieces of at most `most` characters; [] for a text without any character that is visible.

    The text is brought to the normalization form in which tokenizers have it (NFKC), so that a character that becomes
    several counts as several.
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
    """Returns where the last sentence ends that further text does not change; 0 if none has ended.

    Args:
        text: The text so far.
        most: A sentence without an end is cut after so many characters.
    """
    end = 0
    for found in _ends(text):
        if found < len(text) and found - end >= SHORT:
            end = found
    return end if end or len(text) <= most else _last(SPACE, text, most) or most


def _ends(text: str) -> Iterator[int]:
    """Yields where the sentences of a text end."""
    for found in SENTENCE.finditer(text):
        at = found.start()
        if found.group() != "." or not ABBREVIATION.search(text[max(0, at - ABBREVIATED) : at]):
            yield found.end()


def _short_enough(text: str, most: int) -> list[str]:
    """Returns a sentence in pieces: at the last clause that fits, or the last space, or anywhere."""
    text = SPACE.sub(" ", text).strip()
    pieces = []
    while len(text) > most:
        end = _last(CLAUSE, text, most) or _last(SPACE, text, most) or most
        pieces.append(text[:end].strip())
        text = text[end:].strip()
    return [*pieces, text]


def _last(pattern: re.Pattern[str], text: str, most: int) -> int:
    """Returns where the last match in the second half of the first `most` characters ends; 0 if there is none."""
    return max((found.end() for found in pattern.finditer(text, most // 2, most)), default=0)
