"""Encodes images for MiniCPM-V: the whole image, followed by its slices, row by row, if it is large.

Each part keeps its proportions, and has the same number of tokens.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ....engine.paged.network import Rows
from ....media import pixels
from ....media.pixels import Pixels, Size
from ....types import Image
from .family import Files, ImageFamily, Layout

BASE = 10000.0
"""The base of the frequencies of the resampler's embeddings of positions."""


class MiniCpmV(ImageFamily):
    """A `family.VisionFamily` for MiniCPM-V 2.6 to 4.5."""

    before, after = "<image>", "\n"

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        config, processor = files.config, files.processor
        self._tokens, self._width = int(config["query_num"]), int(config["hidden_size"])
        self._places = math.isqrt(int(config["num_positions"]))
        self._side, self._patch = int(processor["scale_resolution"]), int(processor["patch_size"])
        self._most = int(processor["max_slice_nums"])

    def layout(self, size: Size) -> Layout:
        rows, columns = self._grid(size)
        texts, end = [("", self._tokens)], "</image>"
        for number in range(rows * columns):
            line = "\n" if number and number % columns == 0 else ""
            texts.append((f"{end}{line}<slice>", self._tokens))
            end = "</slice>"
        return Layout(self._tokens * len(texts), texts=tuple(texts), end=end)

    def encode(self, image: Image) -> Rows:
        whole, size = pixels.pixels(image), (image.height, image.width)
        rows, columns = self._grid(size)
        found = [self._encoded([pixels.resized(whole, self._resized(size, enlarged=not rows), self._resample)])]
        if rows:
            cell = self._cell(size, (rows, columns))
            refined = pixels.resized(whole, (rows * cell[0], columns * cell[1]), self._resample)
            parts = refined.reshape(rows, cell[0], columns, cell[1], 3).transpose(0, 2, 1, 3, 4)
            found.append(self._encoded([*parts.reshape(-1, *cell, 3)]))
        return np.concatenate(found)

    def _grid(self, size: Size) -> Size:
        """Returns the rows and columns of slices; (0, 0) if the image has none."""
        height, width = size
        count = min(math.ceil(height * width / self._side**2), self._most)
        if count <= 1:
            return 0, 0
        best, least = (1, 1), math.inf
        for slices in (count - 1, count, count + 1):
            if 1 < slices <= self._most:
                for columns in (number for number in range(1, slices + 1) if slices % number == 0):
                    error = abs(math.log(width / height) - math.log(columns / (slices // columns)))
                    if error < least:
                        best, least = (slices // columns, columns), error
        return best

    def _resized(self, size: tuple[float, float], *, enlarged: bool) -> Size:
        """Returns the height and width of a part: multiples of a patch's side with about as many pixels as a square.

        Args:
            size: The height and width of this part of the image.
            enlarged: Whether a small part becomes larger.
        """
        height, width = size
        if enlarged or height * width > self._side**2:
            ratio = width / height
            height = int(self._side / math.sqrt(ratio))
            width = int(height * ratio)
        return _multiple(height, self._patch), _multiple(width, self._patch)

    def _cell(self, size: Size, grid: Size) -> Size:
        """Returns the height and width of a slice, after the image was scaled for this grid of slices."""
        cell = _multiple(size[0], grid[0]) / grid[0], _multiple(size[1], grid[1]) / grid[1]
        return self._resized(cell, enlarged=True)

    def _encoded(self, images: list[Pixels]) -> Rows:
        """Returns the embeddings of images of one size."""
        values = self._values(images)
        grid = [side // self._patch for side in values.shape[2:]]
        down, across = (np.arange(count) * self._places // count for count in grid)
        return self._embeddings(
            values,
            position_ids=(down[:, None] * self._places + across).ravel(),
            position_embeddings=self._waves(grid[0], grid[1]),
        )

    def _waves(self, rows: int, columns: int) -> NDArray[np.float32]:
        """Returns the resampler's embeddings of the columns and rows of patches [patches, width]."""
        quarter = self._width // 4
        frequencies = 1.0 / BASE ** (np.arange(quarter) / quarter)
        places = np.divmod(np.arange(rows * columns), columns)
        angles = [np.outer(place, frequencies) for place in reversed(places)]
        return np.concatenate([turn(angle) for angle in angles for turn in (np.sin, np.cos)], 1).astype(np.float32)


def _multiple(length: float, unit: int) -> int:
    """Returns the multiple of a unit that is closest to a length, and not 0."""
    return max(round(length / unit) * unit, unit)
