"""How models for embeddings read images: as inputs of their own, or in places of a text. Knows no openvino."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....engine.generation.image_prompts import TAG
from ....engine.paged.network import IMAGE_DEEPER, IMAGE_PLACES, IMAGE_ROWS
from ....engine.paged.vision import pixels
from ....engine.paged.vision.family import VisionFamily
from ....engine.paged.vision.image_cache import KnownImage
from ....engine.paged.vision.pixels import SquareProcessor
from ....engine.paged.vision.prompt_images import PromptImages
from ....errors import BadRequest
from ....types import IMAGE_TAG, Image
from ..types import TextWithImages
from .pooler import Array, Batch

TRIAL = Image(64, 64, bytes(3 * 64 * 64))
"""An image that is computed before the model is ready."""


class ImagesAlone:
    """A PoolingVision of two towers. As in vLLM an image counts as one token."""

    token_id = 0

    def __init__(self, processor: SquareProcessor) -> None:
        self._processor = processor

    def text(self, one: TextWithImages) -> str:
        if len(one.images) > 1:
            raise BadRequest("This model takes one image for each vector", param=one.images[1].param)
        if one.text.strip() != IMAGE_TAG.format(0):
            raise BadRequest("This model takes a text or an image for each vector, not both", param=one.images[0].param)
        return ""

    def ids(self, tokens: list[int], images: Sequence[Image]) -> list[int]:
        return [self.token_id]

    def inputs(self, batch: Batch) -> dict[str, Array]:
        scaled = [self._processor.scale(self._processor.fitted(pixels.pixels(image))) for image in batch.images]
        return {"pixel_values": np.stack(scaled)} if scaled else {}


class ImagesInText:
    """A PoolingVision of a language model whose network takes rows of images (paged/vision/input_embeddings.py)."""

    def __init__(self, family: VisionFamily, token: str, layers: int, hidden: int) -> None:
        """token: the text of token_id. layers: beyond the first that get embeddings of images. hidden: their length."""
        self.token_id = family.token_id
        self._family = family
        self._text = f"{family.before}{token}{family.after}"
        self._layers = layers
        self._hidden = hidden

    def text(self, one: TextWithImages) -> str:
        for image in one.images:
            try:
                self._family.layout((image.height, image.width))
            except BadRequest as error:
                raise BadRequest(f"{image.param}: {error}", param=image.param) from error
        return TAG.sub(lambda tag: self._text, one.text)

    def ids(self, tokens: list[int], images: Sequence[Image]) -> list[int]:
        if tokens.count(self.token_id) != len(images):
            raise BadRequest("the text holds what stands for an image", param="messages")
        counts = iter(self._family.layout((image.height, image.width)).tokens for image in images)
        return [each for token in tokens for each in [token] * (next(counts) if token == self.token_id else 1)]

    def inputs(self, batch: Batch) -> dict[str, Array]:
        places = np.flatnonzero(batch.ids == self.token_id) if batch.images else np.zeros(0, np.int64)
        found, at = [], 0
        for image in batch.images:
            layout = self._family.layout((image.height, image.width))
            found.append((places[at : at + layout.tokens], KnownImage(0, layout, self._family.encode(image))))
            at += layout.tokens
        length = batch.ids.shape[1]
        prompt = PromptImages(found, length, self.token_id)
        parts = [known.rows for _, known in found if known.rows is not None]
        rows = np.concatenate([np.zeros((0, (1 + self._layers) * self._hidden), np.float32), *parts])
        rows = rows.reshape(-1, 1 + self._layers, self._hidden)
        deeper = np.zeros((self._layers, len(rows) + 1, self._hidden), np.float32)
        deeper[:, : len(rows)] = rows[:, 1:].transpose(1, 0, 2)
        positions = prompt.positions(0, length)[:, None]
        return {
            IMAGE_PLACES: places.astype(np.int64),
            IMAGE_ROWS: np.ascontiguousarray(rows[:, 0]),
            IMAGE_DEEPER: deeper,
            "position_ids": np.ascontiguousarray(np.broadcast_to(positions, (3, *batch.ids.shape))),
        }
