"""Encodes images for LFM2-VL: an image keeps its proportions; a large one is also divided into square tiles.

Its tiles come first, row by row, then the image in the size of a small one.
"""

from __future__ import annotations

import math

import numpy as np

from ....engine.paged.network import Rows
from ....media import pixels
from ....media.pixels import Pixels, Size
from ....types import Image
from . import pieces
from .family import Files, ImageFamily, Layout
from .internvl import closest_grid, grids

ROW_WEIGHTS, COLUMN_WEIGHTS = "row_weights", "column_weights"
"""The inputs of the encoder with the shares of the table's rows and columns in the position of each patch."""


class Lfm2Vl(ImageFamily):
    """A `family.VisionFamily` for LFM2-VL."""

    before, after = "<|image_start|>", "<|image_end|>"
    resample = pixels.BILINEAR

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        config, processor = files.config, files.processor
        self._places = math.isqrt(int(config["vision_config"]["num_patches"]))
        self._patch = int(processor["encoder_patch_size"])
        self._unit = self._patch * int(processor["downsample_factor"])
        least, most = (int(processor[f"{end}_image_tokens"]) * self._unit**2 for end in ("min", "max"))
        self._limits = least, most
        self._largest = most * float(processor["max_pixels_tolerance"])
        self._side = int(processor["tile_size"])
        self._grids = grids(int(processor["min_tiles"]), int(processor["max_tiles"]))

    def layout(self, size: Size) -> Layout:
        tokens = math.prod(side // self._unit for side in pieces.fitted(size, self._unit, self._limits))
        rows, columns = self._grid(size)
        if not rows:
            return Layout(tokens)
        tile = (self._side // self._unit) ** 2
        names = [f"<|img_row_{row}_col_{column}|>" for row in range(1, rows + 1) for column in range(1, columns + 1)]
        texts = *((name, tile) for name in names), ("<|img_thumbnail|>", tokens)
        return Layout(rows * columns * tile + tokens, texts=texts)

    def encode(self, image: Image) -> Rows:
        whole, size, side = pixels.pixels(image), (image.height, image.width), self._side
        rows, columns = self._grid(size)
        found = list[Rows]()
        if rows:
            divided = pixels.resized(whole, (rows * side, columns * side), self._resample)
            found.append(self._encoded(pieces.tiles(divided, side)))
        fitted = pieces.fitted(size, self._unit, self._limits)
        found.append(self._encoded([pixels.resized(whole, fitted, self._resample)]))
        return np.concatenate(found)

    def _grid(self, size: Size) -> Size:
        """Returns the number of rows and columns of tiles; (0, 0) if the image is not divided."""
        tall, wide = (max(self._patch, round(side / self._unit) * self._unit) for side in size)
        return closest_grid(size, self._grids, self._side) if tall * wide > self._largest else (0, 0)

    def _encoded(self, images: list[Pixels]) -> Rows:
        """Returns the embeddings of images of one size."""
        values = self._values(images)
        down, across = (pieces.linear(side // self._patch, self._places) for side in values.shape[2:])
        return self._embeddings(values, **{ROW_WEIGHTS: down, COLUMN_WEIGHTS: across})
