"""Selects the frames of a video that are decoded, as vLLM does."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    """The limits by which frames of a video are decoded."""

    num_frames: int
    """The most frames."""
    fps: float
    """The most frames per second, 0 for no limit; for a list of images, its frames per second, 0 for one."""
    total_pixels: int
    """The most pixels of all frames together."""
    max_s: float
    """The longest video, in seconds."""
    images: bool
    """Whether the file is a list of images in base64, with a comma between them."""

    def sampled(self, total: int, seconds: float) -> list[int]:
        """Returns the numbers of the frames to decode: as many as allowed, evenly spaced, from first to last."""
        count = min(self.num_frames, total)
        if self.fps:
            count = min(count, math.floor(seconds * self.fps))
        return [number * (total - 1) // (count - 1) for number in range(count)] if count > 1 else [0]
