"""From the tokens of a window to text, segments and quality. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from ...speech_types import Segment
from .whisper_files import TIME_STEP, WhisperFiles


def text_of(pieces: Sequence[bytes], tokens: Sequence[int]) -> str:
    """Returns the text of text tokens; what is not UTF-8 shows as U+FFFD."""
    return b"".join([pieces[token] for token in tokens]).decode("utf-8", "replace")


def compression_ratio(text: str) -> float:
    """Returns how much a text repeats itself: its bytes by those of its compressed form."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 1.0


def segments_of(
    tokens: Sequence[int], files: WhisperFiles, pieces: Sequence[bytes], start: float, end: float
) -> list[Segment]:
    """Returns the texts between timestamps, within [start, end] of the audio. An open one ends with the window."""
    found: list[Segment] = []
    begin: float | None = None
    words: list[int] = []

    def close(until: float) -> None:
        nonlocal begin, words
        text = text_of(pieces, words)
        first = start if begin is None else begin
        if text.strip() and first < end:
            found.append(Segment(start=first, end=max(first, min(until, end)), text=text, tokens=words))
        begin, words = None, []

    for token in tokens:
        if token >= files.first_time:
            at = start + (token - files.first_time) * TIME_STEP
            if words:
                close(at)
            else:
                begin = at
        elif token < files.eot:
            words.append(token)
    if words:
        close(end)
    for segment in found:
        segment.start, segment.end = round(segment.start, 3), round(segment.end, 3)
    return found
