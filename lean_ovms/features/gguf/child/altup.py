"""Alternating updates (AltUp) of Gemma 3n: several streams of hidden states, of which each layer computes one.

A layer predicts all streams from those before it, computes the active one, and corrects the predictions of all by the
difference between what it computed and what was predicted. (arXiv:2301.13310)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from openvino import opset13 as ops

from . import layers
from .file_layers import FileLayers, LinearLayer
from .tensors import Tensors

SMALLEST = 1e-5
"""The least mean of squares by which a projected stream is divided, as in transformers."""
FIRST, LAST = "altup_proj", "altup_unembd_proj"
"""The names of the projections to the further streams, and of those before the streams are averaged."""


class AltUp:
    """The streams of hidden states [tokens, streams, width] while a network is built, layer by layer."""

    def __init__(self, tensors: Tensors, file_layers: FileLayers, epsilon: float) -> None:
        """Reads the number of streams from the header.

        Args:
            tensors: The tensors of the file.
            file_layers: Builds the projections from these.
            epsilon: The number that norms add to the mean of squares.

        Raises:
            KeyError: The file has no projections of streams.
            ValueError: The header does not have as many streams as these projections, or no such active stream.
        """
        header = tensors.header
        self._tensors, self._layers, self._epsilon = tensors, file_layers, epsilon
        self._width = header.number("embedding_length")
        self._count = tensors.shape(f"{FIRST}.weight")[0] + 1
        self._active = header.number("altup.active_idx")
        if header.number("altup.num_inputs") != self._count or self._active >= self._count:
            raise ValueError(f"its AltUp does not have the {self._count} streams of {FIRST}.weight")
        self._streams: Any = None

    def begin(self, x: Any) -> None:
        """Makes the streams of the embeddings [tokens, 1, width]: these, and projections with the same magnitude."""
        others = ops.reshape(self._layers.product(x, LinearLayer(FIRST, "")), np.array([0, -1, self._width]), True)
        self._streams = ops.concat([x, _scaled(others, _magnitude(x))], 1)

    def predict(self, layer: int) -> Any:
        """Predicts the streams after a layer, and returns the active one [tokens, 1, width], the layer's input."""
        routed = self._routed(layer, self._stream(self._active))
        coefficients = self._product(routed, f"blk.{layer}.altup_predict_coef")
        mixing = ops.reshape(coefficients, np.array([0, self._count, self._count]), True)
        self._streams = ops.add(self._streams, ops.matmul(mixing, self._streams, False, False))
        return self._stream(self._active)

    def keep(self, wanted: Any) -> None:
        """Drops all tokens but those with these indices, unless they are None."""
        if wanted is not None:
            self._streams = ops.gather(self._streams, wanted, np.array([0]))

    def correct(self, layer: int, computed: Any) -> Any:
        """Corrects the predictions by what a layer computed for the active stream.

        Returns the active stream [tokens, 1, width], scaled for the layer's projection of per-layer embeddings.
        """
        coefficients = self._product(self._routed(layer, computed), f"blk.{layer}.altup_correct_coef")
        shares = ops.reshape(ops.add(coefficients, np.float32(1)), np.array([0, self._count, 1]), True)
        innovation = ops.subtract(computed, self._stream(self._active))
        self._streams = ops.add(self._streams, ops.multiply(shares, innovation))
        scale = self._tensors.numbers(f"blk.{layer}.altup_correct_scale.weight").reshape(1, 1, -1)
        return ops.multiply(self._stream(self._active), scale)

    def add(self, x: Any) -> None:
        """Adds x [tokens, 1, width] to all streams but the first."""
        # Not a product with 0 and 1: OpenVINO would join these with the weights of the norm of x, and not fuse it.
        others = np.arange(self._count).astype(bool).reshape(1, -1, 1)
        self._streams = ops.select(others, ops.add(self._streams, x), self._streams)

    def end(self) -> Any:
        """Returns the mean [tokens, 1, width] of the streams, all projected but the first, with its magnitude."""
        first, *others = ops.split(self._streams, np.int64(1), self._count).outputs()
        magnitude, found = _magnitude(first), first
        for number, stream in enumerate(others):
            rows = slice(number * self._width, (number + 1) * self._width)
            found = ops.add(found, _scaled(self._layers.product(stream, LinearLayer(LAST, "", rows)), magnitude))
        return layers.times(found, 1 / self._count)

    def _stream(self, number: int) -> Any:
        """Returns one stream [tokens, 1, width]."""
        return ops.slice(self._streams, *(np.array([value]) for value in (number, number + 1, 1, 1)))

    def _routed(self, layer: int, x: Any) -> Any:
        """Returns the numbers [tokens, 1, streams] between -1 and 1 from which a layer's coefficients are computed."""
        weight = self._tensors.numbers(f"blk.{layer}.altup_router_norm.weight") * np.float32(1 / self._width)
        return ops.tanh(self._product(layers.norm(x, weight, self._epsilon), f"blk.{layer}.altup_router"))

    def _product(self, x: Any, name: str) -> Any:
        return self._layers.product(x, LinearLayer(name, ""))


def _mean_of_squares(x: Any) -> Any:
    return ops.reduce_mean(ops.multiply(x, x), np.array([-1]), True)


def _magnitude(x: Any) -> Any:
    """Returns the root of the mean of squares along the last axis."""
    return ops.sqrt(_mean_of_squares(x))


def _scaled(x: Any, magnitude: Any) -> Any:
    """Returns x with another magnitude."""
    own = ops.sqrt(ops.maximum(_mean_of_squares(x), np.float32(SMALLEST)))
    return ops.multiply(x, ops.divide(magnitude, own))
