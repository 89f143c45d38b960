"""Encodes images for Gemma 4: an image of any size is scaled so that its tokens, squares of patches, are within a
limit.

The network takes the same number of patches for every image; padding has the position -1. The unified models have no
encoder, but a projection of patches that are as large as a token.
"""

from __future__ import annotations

import math

import numpy as np

from ....engine.paged.network import Rows
from ....errors import BadRequest
from ....media import pixels
from ....media.pixels import Size
from ....types import Image
from . import pieces
from .family import Files, ImageFamily, Layout, Part, clock

FRAME_TOKENS = 70
"""The most tokens of a frame if the model's files do not say."""


class Gemma4(ImageFamily):
    """A `family.VideoFamily` for Gemma 4. In a prompt, each frame of a video is an image after its time."""

    before, after = "<|image>", "<image|>"

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        config, processor = files.config, files.processor
        self.whole = config["text_config"].get("use_bidirectional_attention") == "vision"
        """Whether the tokens of an image attend to all others of it, as in the larger models."""
        self._patch, self._merge = int(processor["patch_size"]), int(processor["pooling_kernel_size"])
        self._tokens = int(processor["max_soft_tokens"])
        of_videos = files.video if files.video is not processor else {}
        self._frame_tokens = int(of_videos.get("max_soft_tokens", FRAME_TOKENS))

    def layout(self, size: Size) -> Layout:
        return self._layout(size, self._tokens)

    def encode(self, image: Image) -> Rows:
        return self._encoded(image, self._tokens)

    def split(self, video: Image) -> list[Part]:
        layout = self._layout((video.height, video.width), self._frame_tokens)
        return [
            Part(f"{' ' * (number > 0)}{clock(frame.times[0])} {self.before}", frame, layout, self.after)
            for number, frame in enumerate(pieces.groups(video, 1))
        ]

    def encode_frames(self, frames: Image, layout: Layout) -> Rows:
        return self._encoded(frames, self._frame_tokens)

    def _layout(self, size: Size, most: int) -> Layout:
        """Returns the layout of an image that takes at most `most` tokens."""
        height, width = (side // (self._patch * self._merge) for side in self._resized(size, most))
        return Layout(height * width)

    def _encoded(self, image: Image, most: int) -> Rows:
        size, side = self._resized((image.height, image.width), most), self._patch
        values = self._scale(pixels.resized(pixels.pixels(image), size, self._resample))
        rows, columns = size[0] // side, size[1] // side
        patches = values.reshape(3, rows, side, columns, side).transpose(1, 3, 2, 4, 0).reshape(rows * columns, -1)
        row, column = np.divmod(np.arange(len(patches)), columns)
        behind = ((0, most * self._merge**2 - len(patches)), (0, 0))
        places = np.pad(np.stack([column, row], axis=1), behind, constant_values=-1)[None]
        found = self._embeddings(np.pad(patches, behind)[None], image_position_ids=places)
        return found[: len(patches) // self._merge**2]

    def _resized(self, size: Size, most: int) -> Size:
        """Returns the scaled height and width: multiples of a token's side, within the limit. Raises BadRequest."""
        unit = self._patch * self._merge
        scale = math.sqrt(most * unit**2 / (size[0] * size[1]))
        height, width = (math.floor(scale * side / unit) for side in size)
        if not height and not width:
            raise BadRequest("an image cannot be scaled to the model's size")
        if not height:
            height, width = 1, min(size[1] // size[0], most)
        elif not width:
            height, width = min(size[0] // size[1], most), 1
        return height * unit, width * unit


class Gemma4Unified(Gemma4):
    """A `family.VideoFamily` for Gemma 4 models in which each patch is as large as a token."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self._patch, self._merge = self._patch * self._merge, 1
