"""Encodes images for GLM-4.1V, 4.6V-Flash, GLM-OCR and PaddleOCR-VL, like Qwen2-VL; most have learned positions."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ....media.pixels import Size
from . import pieces
from .family import Files
from .qwen2_vl import SquaresOfPatches


class Glm4V(SquaresOfPatches):
    """A `family.VisionFamily` for GLM's models."""

    before, after = "<|begin_of_image|>", "<|end_of_image|>"

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self._side = math.isqrt(int(files.config["vision_config"]["num_position_embeddings"]))

    def resized(self, size: Size) -> Size:
        if min(size) < self.unit:
            larger = max(self.unit / side for side in size)
            size = int(size[0] * larger), int(size[1] * larger)
        return self.fitted(size, self._limits, self.repeat, self.repeat)

    def _embedded(self, values: NDArray[np.float32], grid: Size) -> NDArray[np.float32]:
        found = super()._embedded(values, grid)
        if not self._side:
            return found
        down, across = (self._shares(count) for count in grid)
        [places] = self._networks.run("vision_embeddings_pos", {"row_weights": down, "column_weights": across})
        return np.asarray(found + self._by_tokens(places.reshape(*grid, -1)), np.float32)

    def _shares(self, count: int) -> NDArray[np.float32]:
        """Returns the shares [count, side of the table] of positions in those of a row or column of patches."""
        return pieces.cubic(count, self._side)


class PaddleOcr(Glm4V):
    """A `family.VisionFamily` for PaddleOCR-VL."""

    before, after = "<|IMAGE_START|>", "<|IMAGE_END|>"

    def resized(self, size: Size) -> Size:
        height, width = size
        if height < self.unit:
            height, width = self.unit, round(width * self.unit / height)
        if width < self.unit:
            height, width = round(height * self.unit / width), self.unit
        return self.fitted((height, width), self._limits)

    def _shares(self, count: int) -> NDArray[np.float32]:
        return pieces.linear(count, self._side, smooth=False)
