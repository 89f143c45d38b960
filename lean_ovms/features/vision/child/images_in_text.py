"""Encodes the images of texts for embedding models, each just before its text, as one is computed at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....config import EngineConfig
from ....engine.generation.image_prompts import TAG
from ....engine.loading.settings import device_of, device_properties
from ....engine.paged.network import IMAGE_DEEPER, IMAGE_PLACES, IMAGE_ROWS
from ....errors import BadRequest, StartError
from ....types import Image
from . import families
from .family import VisionFamily
from .image_cache import KnownImage
from .networks import VisionNetworks
from .prompt_images import PromptImages
from .qwen2_vl import Qwen2Vl


def images_in_text(
    config: EngineConfig, decode: Callable[[list[int], bool], str], shape: tuple[int, int]
) -> ImagesInText:
    """Returns the encoder of the images in a model's texts.

    Args:
        config: The options of the model.
        decode: Returns the text of ids, without special tokens if its second argument says so.
        shape: The number of layers besides the first that get embeddings of images, and the size of an embedding.

    Raises:
        StartError: The model's family is not supported for embeddings, or its files cannot be read.
    """
    networks = VisionNetworks(config.model_dir, device_of(config), device_properties(config))
    try:
        family = families.load(config.model_dir, networks)
    except families.NotReadable as error:
        raise StartError(str(error)) from error
    if not isinstance(family, Qwen2Vl):
        raise StartError("of the models that read images in texts, only Qwen's compute embeddings")
    return ImagesInText(family, decode([family.token_id], False), *shape)


class ImagesInText:
    """Encodes the images of texts, without a cache of images, for a model that computes one text at a time.

    The embeddings are inputs of its network (engine.paged.input_embeddings).
    """

    def __init__(self, family: VisionFamily, token: str, layers: int, hidden: int) -> None:
        """Creates the encoder.

        Args:
            family: Encodes the images.
            token: The text of the family's token_id.
            layers: The number of layers besides the first that get embeddings of images.
            hidden: The size of an embedding.
        """
        self.token_id = family.token_id
        self._family = family
        self._text = f"{family.before}{token}{family.after}"
        self._layers = layers
        self._hidden = hidden

    def text(self, text: str, images: Sequence[Image]) -> str:
        """Returns a text with image tokens instead of the tags. Raises BadRequest for an image that cannot be read."""
        for image in images:
            try:
                self._family.layout((image.height, image.width))
            except BadRequest as error:
                raise BadRequest(f"{image.param}: {error}", param=image.param) from error
        return TAG.sub(lambda tag: self._text, text)

    def ids(self, tokens: list[int], images: Sequence[Image]) -> list[int]:
        """Repeats each image token in the ids of a text, once for each token of its image. Raises BadRequest."""
        if tokens.count(self.token_id) != len(images):
            raise BadRequest("the text contains an image placeholder", param="messages")
        counts = iter(self._family.layout((image.height, image.width)).tokens for image in images)
        return [each for token in tokens for each in [token] * (next(counts) if token == self.token_id else 1)]

    def inputs(self, ids: NDArray[np.int64], images: Sequence[Image]) -> dict[str, NDArray[Any]]:
        """Returns the network's inputs besides ids [batch, tokens].

        A text with images must be the only one of the batch.
        """
        places = np.flatnonzero(ids == self.token_id) if images else np.zeros(0, np.int64)
        found, at = [], 0
        for image in images:
            layout = self._family.layout((image.height, image.width))
            found.append((places[at : at + layout.tokens], KnownImage(0, layout, self._family.encode(image))))
            at += layout.tokens
        length = ids.shape[1]
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
            "position_ids": np.ascontiguousarray(np.broadcast_to(positions, (3, *ids.shape))),
        }
