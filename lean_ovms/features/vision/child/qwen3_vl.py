"""Encodes images for Qwen3-VL and Qwen3.5, like Qwen2-VL, with learned position embeddings besides the rotary angles.

These form a square table in a network of its own ("pos"), and each patch gets a mixture of the four nearest ones. In
Qwen3-VL, some layers of the encoder also produce embeddings for deeper layers of the language model.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ....media.pixels import Size
from ....types import Image
from . import pieces
from .family import Files, Layout, Part
from .qwen2_vl import Qwen2Vl


class Qwen3Vl(Qwen2Vl):
    """A `family.VideoFamily` for Qwen3-VL and Qwen3.5.

    The frames of a video are images after texts with their times. All frames together share the limit of pixels.
    """

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self._side = math.isqrt(int(files.config["vision_config"]["num_position_embeddings"]))

    def split(self, video: Image) -> list[Part]:
        groups = pieces.groups(video, self.repeat)
        frames = max(len(video.times), self.repeat)
        size = video.height, video.width
        if min(size) < self.unit:
            larger = self.unit / min(size)
            size = int(size[0] * larger), int(size[1] * larger)
        fitted = self.fitted(size, self.video_limits, frames, round(frames / self.repeat) * self.repeat)
        height, width = (side // self.unit for side in fitted)
        layout = Layout(height * width, height, width)
        return [
            Part(f"<{(group.times[0] + group.times[-1]) / 2:.1f} seconds>{self.before}", group, layout, self.after)
            for group in groups
        ]

    def _embedded(self, values: NDArray[np.float32], grid: Size) -> NDArray[np.float32]:
        return super()._embedded(values, grid) + self._positions(grid)

    def _positions(self, grid: Size) -> NDArray[np.float32]:
        """Returns the position embeddings of patches, interpolated bilinearly in the table."""
        lines = [np.linspace(0, self._side - 1, count, dtype=np.float32) for count in grid]
        low = [line.astype(np.int64) for line in lines]
        high = [np.minimum(below + 1, self._side - 1) for below in low]
        (down, across) = (line - below for line, below in zip(lines, low, strict=True))
        corners = [
            (rows[:, None] * self._side + columns).ravel()
            for rows in (low[0], high[0])
            for columns in (low[1], high[1])
        ]
        weights = [np.outer(a, b).ravel() for a in (1 - down, down) for b in (1 - across, across)]
        [table] = self._networks.run("vision_embeddings_pos", {"input": np.stack(corners)})
        mixed = np.einsum("cpw,cp->pw", table, np.stack(weights))
        return self._by_tokens(mixed.reshape(*grid, -1))
