"""Reads images for models with two towers (text and images, as CLIP), in which an image is an input of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....errors import BadRequest
from ....media import pixels
from ....media.pixels import SquareProcessor
from ....types import IMAGE_TAG, Image
from .pooler import Array

TRIAL = Image(64, 64, bytes(3 * 64 * 64))
"""An image that is computed before the model is ready."""


class ImagesAlone:
    """Prepares images for a model with two towers. An image counts as one token, as in vLLM."""

    token_id = 0

    def __init__(self, processor: SquareProcessor) -> None:
        self._processor = processor

    def text(self, text: str, images: Sequence[Image]) -> str:
        if len(images) > 1:
            raise BadRequest("This model reads one image for each vector", param=images[1].param)
        if text.strip() != IMAGE_TAG.format(0):
            raise BadRequest(
                "This model reads either a text or an image for each vector, not both", param=images[0].param
            )
        return ""

    def ids(self, tokens: list[int], images: Sequence[Image]) -> list[int]:
        return [self.token_id]

    def inputs(self, ids: Array, images: Sequence[Image]) -> dict[str, Array]:
        scaled = [self._processor.scale(self._processor.fitted(pixels.pixels(image))) for image in images]
        return {"pixel_values": np.stack(scaled)} if scaled else {}
