"""Encodes images for Mistral 3: an image of any size has a token for each square of patches, and a text after each row.

The encoder returns an embedding for each patch. Those of a square are joined here for the projector.
"""

from __future__ import annotations

import math

import numpy as np

from ....engine.paged.network import Rows
from ....media import pixels
from ....media.pixels import Size
from ....types import Image
from .family import Files, ImageFamily, Layout


class Mistral3(ImageFamily):
    """A `family.VisionFamily` for Mistral 3."""

    after = "[IMG_END]"
    line = "[IMG_BREAK]"
    """The text between two rows of tokens."""
    language = "mistral"
    """The model_type of the language model."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        config, processor = files.config, files.processor
        if config["text_config"]["model_type"] != self.language:
            raise ValueError(f"its language model is {config['text_config']['model_type']}")
        self._patch, self._merge = int(config["vision_config"]["patch_size"]), int(config["spatial_merge_size"])
        self._longest = int(processor["size"]["longest_edge"])

    def layout(self, size: Size) -> Layout:
        height, width = (side // (self._patch * self._merge) for side in self._resized(size))
        rows = (("", width), *[(self.line, width)] * (height - 1)) if self.line else ()
        return Layout(height * width, texts=rows)

    def encode(self, image: Image) -> Rows:
        size = self._resized((image.height, image.width))
        features = self._embeddings(self._values([pixels.resized(pixels.pixels(image), size, self._resample)]))
        rows, columns, merge = size[0] // self._patch, size[1] // self._patch, self._merge
        squares = features.reshape(rows // merge, merge, columns // merge, merge, -1).transpose(0, 2, 4, 1, 3)
        joined = np.ascontiguousarray(squares.reshape(rows * columns // merge**2, -1))
        return self._networks.run("multi_modal_projector", {"image_features": joined})[0]

    def _resized(self, size: Size) -> Size:
        """Returns the height and width to which an image is scaled: multiples of a token's side, within the limit."""
        ratio, unit = max(size) / self._longest, self._patch * self._merge
        height, width = (max(1, math.floor(side / ratio)) if ratio > 1 else side for side in size)
        return (height - 1) // unit * unit + unit, (width - 1) // unit * unit + unit


class LightOnOcr(Mistral3):
    """A `family.VisionFamily` for LightOnOCR, whose tokens of an image have no texts between or around them."""

    after = line = ""
    language = "qwen3"
