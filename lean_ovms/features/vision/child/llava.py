"""Encodes images for LLaVA and Gemma 3: an image of any size is scaled to a square with a fixed number of tokens."""

from __future__ import annotations

import numpy as np

from ....engine.paged.network import Rows
from ....media import pixels
from ....media.pixels import Pixels, Size, SquareProcessor
from ....types import Image
from .family import Files, Layout

LONGEST = 8192
"""The most pixels of the side of a square that is made of an image."""


class Llava:
    """A `family.VisionFamily` for LLaVA, and the base class of similar ones."""

    before, after = "", "\n"
    whole = False
    """Whether each token of an image attends to all of its tokens, also to later ones."""

    def __init__(self, files: Files) -> None:
        config, processor = files.config, files.processor
        vision = config["vision_config"]
        self.token_id = files.image_token
        self.side = int(vision["image_size"])
        """The side of the square in pixels."""
        self.patches: int = self.side // int(vision["patch_size"])
        """The number of patches along each side."""
        self._networks = files.networks
        # Whether the class token is kept.
        self._whole = config.get("vision_feature_select_strategy", "default") == "full"
        self._processor = SquareProcessor.read(processor)
        self._padding = tuple(int(255 * mean) for mean in processor["image_mean"]) if processor.get("do_pad") else None

    @property
    def tile_tokens(self) -> int:
        tokens: int = self.patches**2 + self._whole
        return tokens

    def layout(self, size: Size) -> Layout:
        return Layout(self.tile_tokens)

    def encode(self, image: Image) -> Rows:
        whole = pixels.pixels(image)
        if self._padding is not None:
            whole = squared(whole, self._padding, self._processor.resample)
        [rows] = self._features([self._processor.fitted(whole)])
        return np.asarray(rows, np.float32)

    def _features(self, images: list[Pixels]) -> Rows:
        """Returns the embeddings [images, tokens, hidden] of squares."""
        inputs = {"pixel_values": np.stack([self._processor.scale(image) for image in images])}
        return self._networks.run("vision_embeddings", inputs)[0]


class Gemma3(Llava):
    """A `family.VisionFamily` for Gemma 3, whose image tokens attend in both directions: one step computes all."""

    before, after = "\n\n<start_of_image>", "<end_of_image>\n\n"
    whole = True

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self._tokens = int(files.config["mm_tokens_per_image"])
        if files.processor.get("do_pan_and_scan"):
            raise ValueError("its images are cut into parts")

    @property
    def tile_tokens(self) -> int:
        return self._tokens


def squared(image: Pixels, colour: tuple[int, ...], resample: int) -> Pixels:
    """Returns an image in the center of a square of a colour.

    Args:
        image: The image. One that is longer than LONGEST is scaled down first, so that the square fits into memory.
        colour: The values of red, green and blue.
        resample: Pillow's number of the resampling filter.
    """
    height, width = image.shape[:2]
    if (longest := max(height, width)) > LONGEST:
        height, width = (max(1, side * LONGEST // longest) for side in (height, width))
        image, longest = pixels.resized(image, (height, width), resample), LONGEST
    made = np.full((longest, longest, 3), colour, np.uint8)
    top, left = (longest - height) // 2, (longest - width) // 2
    made[top : top + height, left : left + width] = image
    return made
