"""Which frames of a video are decoded: sampled as vLLM samples them. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    """Which frames are decoded. num_frames: at most; fps: of them in a second, 0: any. total_pixels: of all together.

    images: the file is a list of images in base64, with a comma between them, fps of them a second, 0: one.
    """

    num_frames: int
    fps: float
    total_pixels: int
    max_s: float
    images: bool

    def sampled(self, total: int, seconds: float) -> list[int]:
        """Returns the numbers of the frames: as many as allowed, the first and the last among them."""
        count = min(self.num_frames, total)
        if self.fps:
            count = min(count, math.floor(seconds * self.fps))
        return [number * (total - 1) // (count - 1) for number in range(count)] if count > 1 else [0]
