"""Computes the times of words from the decoder's attention to the audio, as openai-whisper's timing.py does."""

from __future__ import annotations

import codecs
import string
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..params import Word
from .whisper_files import HOP, WhisperFiles

if TYPE_CHECKING:
    from .decode_rows import DecodeRow

POSITION_S = 2 * HOP / 16000
"""Seconds between two positions of the encoder's output."""
MEDIAN = 7
WITHOUT_SPACES = ("zh", "ja", "th", "lo", "my", "yue")
"""Languages whose words are cut by character."""
BEFORE = "\"'“¿([{-"
AFTER = "\"'.。,，!！?？:：”)]}、"
"""Punctuation that belongs to the next word, and to the one before."""


def word_times(
    row: DecodeRow, files: WhisperFiles, pieces: Sequence[bytes], attention: Callable[[list[int]], NDArray[np.float32]]
) -> list[Word]:
    """Returns the words of a decoded window, with their times in the request's audio.

    Args:
        row: The decoded window.
        files: The special tokens of the model.
        pieces: The bytes of each token of the vocabulary.
        attention: Returns the attention of the decoder [heads, tokens, positions] for a sequence of tokens.
    """
    tokens = row.text_tokens
    words = _merged(split_words(tokens, pieces, row.language))
    if not words:
        return []
    head = [files.sot, *row.opening(), files.no_timestamps]
    weights = attention([*head, *tokens, files.eot])
    start, end = row.job.start, row.job.end if row.read_to is None else row.read_to
    used = max(1, min(weights.shape[2], round((end - start) / POSITION_S)))
    places, frames = align(weights[:, :, :used], len(head))
    jumps = np.flatnonzero(np.diff(places, prepend=-1))
    times = frames[jumps] * POSITION_S  # the time at which each token begins
    bounds = np.cumsum([0, *(len(ids) for _, ids in words)])
    found: list[Word] = []
    for (text, _), first, last in zip(words, bounds[:-1], bounds[1:], strict=True):
        begin, until = (min(start + float(times[place]), end) for place in (first, last))
        if text.strip():
            found.append(Word(word=text.strip(), start=round(begin, 3), end=round(max(begin, until), 3)))
    return found


def align(weights: NDArray[np.float32], skip: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Aligns tokens with positions in the audio. Returns the tokens and the positions along the best path.

    Args:
        weights: The attention of tokens to positions, before softmax [heads, tokens, positions].
        skip: The number of tokens at the start that have no place in the audio. The last token is the end of the text.
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


def _merged(words: list[tuple[str, list[int]]]) -> list[tuple[str, list[int]]]:
    found: list[tuple[str, list[int]]] = []
    for text, ids in words:
        alone = text.strip()
        if found and alone and (alone in AFTER or (found[-1][0].strip() in BEFORE and found[-1][0].strip())):
            found[-1] = found[-1][0] + text, found[-1][1] + ids
        else:
            found.append((text, ids))
    return found
