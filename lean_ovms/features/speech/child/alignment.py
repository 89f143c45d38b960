"""Computes the times of words from the decoder's attention to the audio, as openai-whisper's timing.py does."""

from __future__ import annotations

import codecs
import itertools
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..languages import WITHOUT_SPACES
from ..params import Segment, Word
from .whisper_files import HOP, WhisperFiles

if TYPE_CHECKING:
    from .decode_rows import DecodeRow

POSITION_S = 2 * HOP / 16000
"""Seconds between two positions of the encoder's output."""
MEDIAN = 7
"""Positions of the median filter over attention."""
BEFORE = "\"'“¿([{-"
AFTER = "\"'.。,，!！?？:：”)]}、"
"""Punctuation that belongs to the next word, and to the one before."""
SENTENCE_ENDS = ".。!！?？"
MAX_USUAL_S = 0.7
"""The most seconds that count as the usual length of a word."""
TRUSTED_S = 0.5
"""Seconds by which a word may exceed its segment; if it is more, the time of the segment is right."""


@dataclass(slots=True)
class TimedWord:
    """A word and its place in the request's audio."""

    text: str
    """The word with its space."""
    tokens: int
    """The number of its tokens."""
    start: float
    """The beginning, in seconds."""
    end: float
    """The end, in seconds."""

    @property
    def length(self) -> float:
        return self.end - self.start


def word_times(
    row: DecodeRow,
    segments: Sequence[Segment],
    files: WhisperFiles,
    pieces: Sequence[bytes],
    attention: Callable[[list[int]], NDArray[np.float32]],
) -> list[Word]:
    """Returns the words of a decoded window, with their times in the request's audio.

    Args:
        row: The decoded window.
        segments: The segments of its text, whose times are set to those of their words.
        files: The special tokens of the model.
        pieces: The bytes of each token of the vocabulary.
        attention: Returns the attention of the decoder [heads, tokens, positions] for a sequence of tokens.
    """
    tokens = row.text_tokens
    split = split_words(tokens, pieces, row.language)
    if not split:
        return []
    head = [files.sot, *row.opening(), files.no_timestamps]
    weights = attention([*head, *tokens, files.eot])
    start, end = row.job.start, row.job.end
    used = max(1, min(weights.shape[2], round((end - start) / POSITION_S)))
    places, frames = align(weights[:, :, :used], len(head))
    jumps = np.flatnonzero(np.diff(places, prepend=-1))
    times = np.minimum(start + frames[jumps] * POSITION_S, end)  # the time at which each token begins
    bounds = np.cumsum([0, *(len(ids) for _, ids in split)])
    words = [
        TimedWord(text, len(ids), float(times[first]), float(times[last]))
        for (text, ids), first, last in zip(split, bounds[:-1], bounds[1:], strict=True)
    ]
    words = shortened(words, segments, start)
    return [
        Word(word=word.text.strip(), start=round(word.start, 3), end=round(word.end, 3))
        for word in words
        if word.text.strip()
    ]


def shortened(words: list[TimedWord], segments: Sequence[Segment], start: float) -> list[TimedWord]:
    """Joins punctuation to words, and takes pauses out of the words beside them.

    The path of attention has no place for silence, so words and punctuation at the ends of sentences and segments last
    as long as the pauses there. As in openai-whisper, punctuation adds no time to a word, a long word at such an end
    becomes at most twice as long as the median, and times of segments limit those of their words or are set to them.

    Args:
        words: The words and the punctuation of a window.
        segments: The segments of the window's text, whose times are changed.
        start: The beginning of the window, in seconds.
    """
    lengths = [word.length for word in words if word.length > 0]
    usual = min(MAX_USUAL_S, float(np.median(lengths))) if lengths else 0.0
    longest = 2 * usual
    for before, word in itertools.pairwise(words):
        if word.length > longest and before.text in SENTENCE_ENDS:
            word.start = word.end - longest
    words = joined(words)
    at, spoken = 0, start
    for segment in segments:
        own: list[TimedWord] = []
        left = len(segment.tokens)
        while at < len(words) and left > 0:
            own.append(words[at])
            left -= words[at].tokens
            at += 1
        if own:
            _fit(own, segment, spoken, usual)
            spoken = segment.end
    return words


def _fit(words: list[TimedWord], segment: Segment, spoken: float, usual: float) -> None:
    """Makes the times of a segment and of its words fit together.

    Args:
        words: The words of the segment.
        segment: The segment.
        spoken: The end of the words before, in seconds.
        usual: The usual length of a word, in seconds.
    """
    first, last, longest = words[0], words[-1], 2 * usual
    pair = words[1].end - first.start if len(words) > 1 else 0.0
    if first.end - spoken > 4 * usual and (first.length > longest or pair > 2 * longest):
        if len(words) > 1 and words[1].length > longest:
            first.end = words[1].start = words[1].end - longest
        first.start = max(first.start, first.end - longest)
    if first.start + TRUSTED_S < segment.start < first.end:
        first.start = max(first.start, min(first.end - usual, segment.start))
    else:
        segment.start = round(first.start, 3)
    if last.start < segment.end < last.end - TRUSTED_S:
        last.end = min(last.end, max(last.start + usual, segment.end))
    else:
        segment.end = round(last.end, 3)


def align(weights: NDArray[np.float32], skip: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Aligns tokens with positions in the audio. Returns both along the best path.

    The weights [heads, tokens, positions] are attention before softmax. The first `skip` tokens have no place in the
    audio; the last one is the end of the text.
    """
    scaled = np.exp(weights - weights.max(axis=-1, keepdims=True))
    scaled /= scaled.sum(axis=-1, keepdims=True)
    deviation = scaled.std(axis=-2, keepdims=True)
    scaled = (scaled - scaled.mean(axis=-2, keepdims=True)) / np.maximum(deviation, 1e-8)
    matrix = _median(scaled).mean(axis=0)[skip - 1 : -1]
    return warp(-matrix.astype(np.float64))


def _median(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Applies a median filter of width MEDIAN along the last axis."""
    half = MEDIAN // 2
    if values.shape[-1] <= half:
        return values
    padded = np.pad(values, ((0, 0), (0, 0), (half, half)), mode="reflect")
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, MEDIAN, axis=-1), axis=-1)


def warp(cost: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the rows and columns of the cheapest monotonic path by dynamic time warping of costs [rows, columns].

    It computes one anti-diagonal after the other, each in a few numpy operations.
    """
    rows, columns = cost.shape
    total = np.full((rows + 1, columns + 1), np.inf)
    total[0, 0] = 0
    trace = np.zeros((rows + 1, columns + 1), np.int8)
    trace[0, :], trace[:, 0] = 2, 1
    for diagonal in range(2, rows + columns + 1):
        i = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        j = diagonal - i
        steps = np.stack((total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]))
        best = steps.argmin(axis=0)
        total[i, j] = cost[i - 1, j - 1] + steps[best, np.arange(len(i))]
        trace[i, j] = best
    row, column = rows, columns
    path: list[tuple[int, int]] = []
    while row > 0 or column > 0:
        path.append((row - 1, column - 1))
        step = trace[row, column]
        row, column = row - (step != 2), column - (step != 1)
    path.reverse()
    found = np.array(path, np.int64)
    return found[:, 0], found[:, 1]


def split_words(tokens: Sequence[int], pieces: Sequence[bytes], language: str) -> list[tuple[str, list[int]]]:
    """Splits tokens into words, and returns text and tokens of each word.

    A word begins with a space, or is a single character in languages that are written without spaces.
    """
    found: list[tuple[str, list[int]]] = []
    for text, ids in _characters(tokens, pieces):
        stuck = language not in WITHOUT_SPACES and not text.startswith(" ") and text not in string.punctuation
        if found and stuck:
            found[-1] = found[-1][0] + text, found[-1][1] + ids
        else:
            found.append((text, ids))
    return found


def _characters(tokens: Sequence[int], pieces: Sequence[bytes]) -> list[tuple[str, list[int]]]:
    """Splits tokens into the shortest runs whose bytes are valid UTF-8, and returns text and tokens of each."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    found: list[tuple[str, list[int]]] = []
    text, ids = "", list[int]()
    for token in tokens:
        text += decoder.decode(pieces[token])
        ids.append(token)
        if not decoder.getstate()[0]:
            found.append((text, ids))
            text, ids = "", []
    if ids:
        found.append((text + decoder.decode(b"", final=True), ids))
    return found


def joined(words: Sequence[TimedWord]) -> list[TimedWord]:
    """Joins punctuation to the word that it belongs to, whose times do not change."""
    found: list[TimedWord] = []
    for word in words:
        alone = word.text.strip()
        before = found[-1] if found else None
        if before is not None and alone and alone in AFTER:
            before.text, before.tokens = before.text + word.text, before.tokens + word.tokens
        elif before is not None and before.text.strip() and before.text.strip() in BEFORE:
            found[-1] = TimedWord(before.text + word.text, before.tokens + word.tokens, word.start, word.end)
        else:
            found.append(word)
    return found
