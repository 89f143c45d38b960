"""The inputs of a network for images: embeddings, their places among the tokens, and embeddings for deeper layers."""

from __future__ import annotations

from typing import Any

import numpy as np
from openvino import opset13 as ops

from ....engine.paged.network import IMAGE_DEEPER, IMAGE_PLACES, IMAGE_ROWS, network_input
from ..header import Header

DEEPSTACK = "n_deepstack_layers"
"""The key of the number of first layers that get embeddings of images."""


class ImageInputs:
    """Connects a decoder to the inputs for images while its network is built."""

    def __init__(self, header: Header, tokens: Any) -> None:
        """Makes the inputs.

        Args:
            header: The header of the model's file.
            tokens: The input with ids of tokens [tokens].

        Raises:
            ValueError: By the file, all layers or more get embeddings of images.
        """
        self._tokens = tokens
        self._padding = header.padding
        self._width, self._layers = header.number("embedding_length"), header.number(DEEPSTACK)
        if self._layers >= header.layers:
            raise ValueError(f"embeddings of images for {self._layers} of {header.layers} layers are not supported")
        self._rows = network_input(IMAGE_ROWS, [-1, self._width], np.float32)
        self._places = network_input(IMAGE_PLACES, [-1], np.int64)
        self._deeper: list[Any] = []
        if self._layers:
            self._deeper.append(network_input(IMAGE_DEEPER, [self._layers, -1, self._width], np.float32))

    @property
    def inputs(self) -> list[Any]:
        """The inputs for images."""
        return [self._rows, self._places, *self._deeper]

    def embedded(self, x: Any) -> Any:
        """Replaces the embeddings of image tokens among those of all tokens [tokens, 1, width] by those
        of the images."""
        return ops.scatter_update(x, self._places, ops.unsqueeze(self._rows, np.int64(1)), np.int64(0))

    def padded(self, ids: Any) -> Any:
        """Returns ids of tokens [tokens, 1] with the padding's in the places of images."""
        zeros = ops.unsqueeze(ops.multiply(self._places, np.int64(0)), np.int64(1))
        padding = ops.add(ops.convert(zeros, "i32"), np.int32(self._padding))
        return ops.scatter_update(ids, self._places, padding, np.int64(0))

    def deepened(self, layer: int, x: Any) -> Any:
        """Adds the embeddings of images for a deeper layer to the result of a layer [tokens, 1, width]."""
        if layer >= self._layers:
            return x
        [deeper] = self._deeper
        count = ops.shape_of(self._places)  # the input has one more row than there are tokens
        rows = ops.gather(deeper, np.int64(layer), np.int64(0))
        rows = ops.unsqueeze(ops.slice(rows, np.array([0]), count, np.array([1]), np.array([0])), np.int64(1))
        found = ops.add(ops.gather(x, self._places, np.int64(0)), rows)
        return ops.scatter_update(x, self._places, found, np.int64(0))

    def marks(self) -> Any:
        """Returns a mask with 1 for tokens of images and 0 for others [tokens, 1]."""
        zeros = ops.multiply(self._tokens, np.int64(0))
        ones = ops.add(ops.multiply(self._places, np.int64(0)), np.int64(1))
        found = ops.scatter_update(zeros, self._places, ones, np.int64(0))
        return ops.convert(ops.unsqueeze(found, np.int64(1)), "i32").output(0)
