"""The encoder of Gemma 4 in the network of optimum-intel's exports: patches of any image with their places."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from ....engine.paged.network import network_input
from ....media.pixels import BICUBIC
from ....types import Json
from ..header import Header
from . import layers
from .tensors import Tensors
from .vision_tower import FACTOR, PATCHES, POSITIONS, VisionTower, attention

POOLED, TOKENS = 3, 280
"""The patches in a row that become one token if the file does not say it, and the most tokens of an image in
transformers."""
BASE = 100.0
"""The base of RoPE."""
AXES = 2
"""The column and the row of a patch: each turns a half of the vectors of heads."""


def gemma4(header: Header) -> tuple[Json, Json]:
    """Returns the members of config.json and preprocessor_config.json of Gemma 4."""
    processor = {
        "image_processor_type": "Gemma4ImageProcessor",
        "patch_size": header.number("vision.patch_size"),
        "pooling_kernel_size": header.number(FACTOR) or POOLED,
        "max_soft_tokens": TOKENS,
        "resample": BICUBIC,
        "do_normalize": False,
    }
    return {"model_type": "gemma4"}, processor


def network(tensors: Tensors) -> Any:
    """Builds the network: embeddings of the tokens of an image of its patches [1, patches, side x side x RGB].

    Exports have as many patches for each image, of which those behind the last have a position below 0.
    """
    tower = _Tower(tensors)
    weights = tensors.numbers(f"{PATCHES}.weight")
    weights = weights.transpose(0, 2, 3, 1).reshape(len(weights), -1)
    pixels = network_input("pixel_values", [1, -1, weights.shape[1]], np.float32)
    places = network_input("image_position_ids", [1, -1, AXES], np.int64)
    shown = ops.convert(ops.greater_equal(layers.part(places, 0, 1), np.int64(0)), np.int64)
    count = ops.reshape(ops.reduce_sum(shown, np.array([0, 1, 2]), False), np.array([1]), False)
    values, axes = (ops.slice(each, np.array([0]), count, np.array([1]), np.array([1])) for each in (pixels, places))
    x = ops.matmul(ops.subtract(ops.multiply(values, np.float32(2)), np.float32(1)), weights, False, True)
    columns, rows = (ops.squeeze(each, np.array([2])) for each in ops.split(axes, np.int64(2), AXES).outputs())
    for table, axis in zip(tensors.numbers(POSITIONS), (columns, rows), strict=True):
        x = ops.add(x, ops.gather(ops.constant(table), axis, np.int64(0)))
    tower.turn(columns, rows)
    found = _pooled(tower.encoded(x, tower.attend), columns, tower.header.number(FACTOR) or POOLED, tower.width)
    found = ops.multiply(found, np.float32(tower.width**0.5))
    if "v.std_bias" in tensors:
        found = ops.multiply(ops.subtract(found, tensors.numbers("v.std_bias")), tensors.numbers("v.std_scale"))
    found = tower.product(tower.layers.unit_norm(found), "mm.input_projection")
    return ov.Model([found.output(0)], [pixels, places], "gemma4")


def _pooled(x: Any, columns: Any, by: int, width: int) -> Any:
    """Returns the mean of each square of patches [tokens, width].

    Args:
        x: The patches, row by row [1, patches, width].
        columns: The column of each patch [1, patches].
        by: The patches in a row of a square.
        width: The elements of a patch.
    """
    last = ops.reshape(ops.reduce_max(columns, np.array([0, 1]), False), np.array([1]), False)
    across = ops.divide(ops.add(last, np.int64(1)), np.int64(by))
    shape = ops.concat([np.array([-1, by]), across, np.array([by, width])], 0)
    found = ops.reduce_mean(ops.reshape(x, shape, False), np.array([1, 3]), False)
    return ops.reshape(found, np.array([-1, width]), False)


class _Tower(VisionTower):
    """The encoder's layers: heads are normalized and turned, and what enters and leaves a matrix may be clamped."""

    activation = "gelu"

    def turn(self, columns: Any, rows: Any) -> None:
        """Computes the angles by which the heads of patches are turned.

        Args:
            columns: The column of each patch [1, patches].
            rows: The row of each patch.
        """
        self._size = self.width // self.heads
        half, places = self._size // AXES, self.tensors.shape(POSITIONS)[1]
        angles = np.outer(np.arange(places), 1.0 / BASE ** (np.arange(0, half, 2) / half))
        tables = [np.tile(find(angles), 2).astype(np.float32) for find in (np.cos, np.sin)]
        self._turned = [
            tuple(ops.unsqueeze(ops.gather(ops.constant(table), axis, np.int64(0)), np.int64(1)) for table in tables)
            for axis in (columns, rows)
        ]

    def attend(self, layer: int, values: list[Any]) -> Any:
        """Returns the result of a layer's attention of its queries, keys and values."""
        name, half = f"v.blk.{layer}", self._size // AXES
        parts = []
        for value, letter in zip(values[:2], "qk", strict=True):
            head = self.norm(value, f"{name}.attn_{letter}_norm")
            halves = [layers.part(head, start, start + half) for start in (0, half)]
            turned = [layers.rotate(*each, half, half) for each in zip(halves, self._turned, strict=True)]
            parts.append(ops.concat(turned, -1))
        return attention([*parts, self.layers.unit_norm(values[2])], scale=1.0)

    def product(self, x: Any, name: str) -> Any:
        """Returns the result of the linear layer of this name, between its limits."""
        return self._clamped(super().product(self._clamped(x, f"{name}.input"), name), f"{name}.output")

    def _projected(self, name: str, x: Any) -> list[Any]:
        return [self.product(x, f"{name}.attn_{letter}") for letter in "qkv"]

    def _clamped(self, x: Any, name: str) -> Any:
        """Returns values between the limits of this name, where the file has some."""
        if f"{name}_min" not in self.tensors:
            return x
        least, most = (float(self.tensors.numbers(f"{name}_{end}")[0]) for end in ("min", "max"))
        return x if least == -np.inf and most == np.inf else ops.clamp(x, least, most)
