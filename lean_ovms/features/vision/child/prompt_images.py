"""Holds the images of one prompt: the indices of their tokens, their embeddings, and the positions of all tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ....engine.paged.network import Places, Rows
from .image_cache import KnownImage


class PromptImages:
    """The images of one prompt, with the indices of their tokens."""

    def __init__(
        self, images: Sequence[tuple[Places, KnownImage]], length: int, token_id: int = 0, *, whole: bool = False
    ) -> None:
        """Computes the positions of the prompt's tokens.

        Args:
            images: The images in the order of the prompt, each with the indices of its tokens.
            length: The number of tokens in the prompt.
            token_id: The token that stands for an image token in the input of the network.
            whole: Whether the tokens of an image attend to each other in both directions, so that one step must compute
                them all.
        """
        self._whole = whole
        self.images = images
        """The images in the order of the prompt, each with the indices of its tokens."""
        self.token_id = token_id
        """The token that stands for an image token in the input of the network."""
        self._ends = [int(places[-1]) + 1 for places, _ in images]
        self._rows: dict[KnownImage, Rows] = {}
        self._positions = _positions(images, length)
        self.shift = int(self._positions.max(initial=-1)) + 1 - length
        """The difference between the position of a token after the prompt and its index."""

    def missing(self) -> list[KnownImage]:
        """Returns the images that are not encoded yet. The embeddings of the others are kept from now on."""
        for _, known in self.images:
            if known.rows is not None:
                self._rows[known] = known.rows
        return [known for _, known in self.images if known not in self._rows]

    def keep(self, known: KnownImage, rows: Rows) -> None:
        """Keeps the embeddings of one of the images."""
        self._rows[known] = rows

    def chunk(self, start: int, count: int) -> int:
        """Returns how many of `count` tokens, or somewhat more, a step should compute, so that no image is divided."""
        first, end = self._around(start + count)
        return first - start if first > start else end - start

    def cached(self, blocks: int, size: int) -> int:
        """Returns how many of the first `blocks` blocks may come from the prefix cache without dividing an image."""
        while (fewer := self._around(blocks * size)[0] // size) < blocks:
            blocks = fewer
        return blocks

    def _around(self, end: int) -> tuple[int, int]:
        """Returns the nearest indices around `end` where the prompt may be divided; `end` twice if it is one."""
        number = bisect_right(self._ends, end)
        if self._whole and number < len(self.images) and (first := int(self.images[number][0][0])) < end:
            return first, self._ends[number]
        return end, end

    def rows(self, start: int, count: int) -> Iterator[tuple[Places, Rows]]:
        """Yields the embeddings of the image tokens in a chunk, each array with the indices of its tokens in the chunk.

        They are in the order of the prompt. The network relies on that order, since it counts image tokens.
        """
        for places, known in islice(self.images, bisect_right(self._ends, start), None):
            first, end = np.searchsorted(places, (start, start + count))
            if first == end:
                return
            if known in self._rows:
                yield places[first:end] - start, self._rows[known][first:end]

    def positions(self, start: int, count: int) -> NDArray[np.int64]:
        """Returns the positions [3, count] (time, row, column) of the tokens from `start` on."""
        known = self._positions[:, start : start + count]
        behind = np.arange(start + known.shape[1], start + count, dtype=np.int64) + self.shift
        return np.concatenate([known, np.broadcast_to(behind, (3, len(behind)))], axis=1)


def _positions(images: Sequence[tuple[Places, KnownImage]], length: int) -> NDArray[np.int64]:
    """Returns the positions [3, length] (time, row, column) of a prompt's tokens.

    The images are in the order of the prompt, with the indices of their tokens. In an image with rows and columns, all
    tokens have the same time; in a video, each frame has its own. The text after it continues with the largest of these
    numbers plus 1.
    """
    made = np.empty((3, length), np.int64)
    at, position, start = 0, 0, 0
    for places, known in images:
        tokens, height, width, _, time, _ = known.layout
        if not height:
            continue
        place = int(places[0])
        made[:, at:place] = np.arange(position, position + place - at)
        position += place - at
        at = place + tokens
        start = position if time is None else start
        made[0, place:at] = start + (time or 0)
        made[1, place:at], made[2, place:at] = np.divmod(np.arange(tokens), width)
        made[1:, place:at] += start
        position = start + max(height, width, (time or 0) + 1)
    made[:, at:] = np.arange(position, position + length - at)
    return made
