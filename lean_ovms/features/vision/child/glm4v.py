"""Encodes images for GLM-4.1V, 4.6V-Flash and GLM-OCR, like Qwen2-VL, in most of them with learned positions, too."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ....media.pixels import Size
from . import pieces
from .family import Files
from .qwen2_vl import SquaresOfPatches


class Glm4V(SquaresOfPatches):
    """A `family.VisionFamily` for these models."""

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
        down, across = (pieces.cubic(count, self._side) for count in grid)
        [places] = self._networks.run("vision_embeddings_pos", {"row_weights": down, "column_weights": across})
        return np.asarray(found + self._by_tokens(places.reshape(*grid, -1)), np.float32)
