"""Encodes images for LLaVA-NeXT: the whole image, followed by its tiles in a higher resolution.

The grid of tiles is the one of `image_grid_pinpoints` that keeps the most pixels of the image. Patches that show only
padding are dropped, and each row of patches ends with the embedding `image_newline`.
"""

from __future__ import annotations

import math

import numpy as np

from ....engine.paged.network import Rows
from ....media import pixels
from ....media.pixels import Pixels, Size
from ....types import Image
from . import pieces
from .family import Files, Layout
from .llava import Llava


class LlavaNext(Llava):
    """A `family.VisionFamily` for LLaVA-NeXT."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self._grids: list[Size] = [(int(h), int(w)) for h, w in files.config["image_grid_pinpoints"]]
        self._newline = np.array(files.config["image_newline"], np.float32)[None]
        if self._whole:
            raise ValueError("its images have class tokens")

    def layout(self, size: Size) -> Layout:
        rows, columns = self._kept(size)
        height, width = (part.stop - part.start for part in (rows, columns))
        return Layout(self.tile_tokens + height * (width + 1))

    def encode(self, image: Image) -> Rows:
        whole, size = pixels.pixels(image), (image.height, image.width)
        grid = self._grid(size)
        tiles = pieces.tiles(self._padded(whole, grid), self.side)
        square = pixels.resized(whole, self._processor.square, self._processor.resample)
        features = self._features([self._processor.fitted(part) for part in (square, *tiles)])
        down, across, side = grid[0] // self.side, grid[1] // self.side, self.patches
        joined = features[1:].reshape(down, across, side, side, -1).transpose(0, 2, 1, 3, 4)
        joined = joined.reshape(down * side, across * side, -1)[self._kept(size)]
        ends = np.broadcast_to(self._newline, (len(joined), 1, joined.shape[-1]))
        rows = np.concatenate([joined, ends], axis=1)
        return np.concatenate([features[0], rows.reshape(-1, joined.shape[-1])])

    def _grid(self, size: Size) -> Size:
        """Returns the size of the grid that keeps the most pixels of an image, with the least padding if several do."""
        height, width = size

        def rank(grid: Size) -> tuple[int, int]:
            scale = min(grid[1] / width, grid[0] / height)
            used = min(int(width * scale) * int(height * scale), width * height)
            return used, used - grid[0] * grid[1]

        return max(self._grids, key=rank)

    def _kept(self, size: Size) -> tuple[slice, slice]:
        """Returns the rows and columns of patches that show the image, not padding."""
        grid = self._grid(size)
        high, wide = (side // self.side * self.patches for side in grid)
        height, width = size
        if width / height > wide / high:
            margin = (high - int(round(height * (wide / width), 7))) // 2
            return slice(margin, high - margin), slice(0, wide)
        margin = (wide - int(round(width * (high / height), 7))) // 2
        return slice(0, high), slice(margin, wide - margin)

    def _padded(self, image: Pixels, grid: Size) -> Pixels:
        """Returns an image scaled to fit a grid, and centered in it on a black background."""
        height, width = image.shape[:2]
        down, across = grid[0] / height, grid[1] / width
        if across < down:
            size = (min(math.ceil(height * across), grid[0]), grid[1])
        else:
            size = (grid[0], min(math.ceil(width * down), grid[1]))
        made = np.zeros((*grid, 3), np.uint8)
        top, left = (grid[0] - size[0]) // 2, (grid[1] - size[1]) // 2
        made[top : top + size[0], left : left + size[1]] = pixels.resized(image, size, self._processor.resample)
        return made
