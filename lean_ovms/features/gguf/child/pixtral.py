"""The encoder of Pixtral and Mistral 3 in the two networks of optimum-intel's exports: one encodes, one projects."""

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
from .file_layers import LinearLayer, halves
from .tensors import Tensors
from .vision_tower import VisionTower, attention

BASE = 10000.0
"""The base of RoPE."""


def pixtral(header: Header) -> tuple[Json, Json]:
    """Returns the members of config.json and preprocessor_config.json of Mistral 3, and of Pixtral in its form."""
    config = {
        "model_type": "mistral3",
        "vision_config": {"patch_size": header.number("vision.patch_size")},
        "spatial_merge_size": _merge(header),
        "text_config": {"model_type": "mistral"},
    }
    size = {"longest_edge": header.number("vision.image_size")}
    return config, {"image_processor_type": "PixtralImageProcessor", "size": size, "resample": BICUBIC}


def lighton_ocr(header: Header) -> tuple[Json, Json]:
    """Returns the members of config.json and preprocessor_config.json of LightOnOCR."""
    config, processor = pixtral(header)
    longest = header.number("vision.preproc_image_size") or processor["size"]["longest_edge"]
    config |= {"model_type": "lighton_ocr", "text_config": {"model_type": "qwen3"}}
    return config, {**processor, "size": {"longest_edge": longest}}


def encoder(tensors: Tensors) -> Any:
    """Builds the network that encodes the patches [patches, width] of an image [1, RGB, height, width]."""
    tower, images = _Tower(tensors), network_input("pixel_values", [1, 3, -1, -1], np.float32)
    tower.turn(images)
    found = tower.encoded(tower.norm(tower.embedded(images), "v.pre_ln"), tower.attend)
    found = ops.squeeze(tower.norm(found, "mm.input_norm"), np.array([0]))
    return ov.Model([found.output(0)], [images], "pixtral")


def projector(tensors: Tensors) -> Any:
    """Builds the network that makes embeddings of tokens of the joined patches of each."""
    tower = VisionTower(tensors)
    rows = network_input("image_features", [-1, tower.width * _merge(tower.header) ** 2], np.float32)
    found = tower.product(rows, "mm.patch_merger") if tower.layers.has("mm.patch_merger") else rows
    found = tower.product(ops.gelu(tower.product(found, "mm.1"), "erf"), "mm.2")
    return ov.Model([found.output(0)], [rows], "projector")


NETWORKS = {"vision_embeddings": encoder, "multi_modal_projector": projector}
"""What builds the networks, by what tells them apart in an export."""


def _merge(header: Header) -> int:
    """Returns how many patches in a row become one token."""
    return header.number("vision.spatial_merge_size") or 1


class _Tower(VisionTower):
    """The encoder's layers: the rows and columns of patches turn pairs of elements of queries and keys by turns."""

    def turn(self, images: Any) -> None:
        """Computes the angles by which the heads of patches are turned.

        Args:
            images: The input with an image [1, RGB, height, width].
        """
        self._size, places = self.width // self.heads, -(-self.side // self.patch)
        frequencies = 1.0 / BASE ** (np.arange(0, self._size, 2) / self._size)
        grid = ops.divide(ops.slice(ops.shape_of(images), *map(np.array, ([2], [4], [1], [0]))), np.int64(self.patch))
        counts = ops.split(grid, np.int64(0), 2).outputs()
        self._turned = []
        for find in (np.cos, np.sin):
            parts = []
            for axis, count in enumerate(counts):  # rows use even frequencies, columns odd ones
                table = find(np.outer(np.arange(places), frequencies[axis::2])).astype(np.float32)
                lines = ops.slice(table, np.array([0]), count, np.array([1]), np.array([0]))
                shape = ops.concat([grid, np.array([table.shape[1]])], 0)
                parts.append(ops.broadcast(ops.unsqueeze(lines, np.int64(1 - axis)), shape))
            flat = ops.reshape(ops.concat(parts, -1), np.array([1, 1, -1, self._size // 2]), False)
            self._turned.append(ops.concat([flat, flat], -1))

    def attend(self, layer: int, values: list[Any]) -> Any:
        """Returns the result of a layer's attention of its queries, keys and values."""
        cosines, sines = self._turned
        turned = [layers.rotate(value, (cosines, sines), self._size, self._size) for value in values[:2]]
        return attention([*turned, values[2]])

    def _projected(self, name: str, x: Any) -> list[Any]:
        """Returns queries, keys and values; llama.cpp's converter made the pairs of the first two adjacent."""
        order = halves(self.heads, self._size, self._size)
        parts = [LinearLayer(f"{name}.attn_{letter}", "", order=order if letter != "v" else None) for letter in "qkv"]
        return self.layers.products(x, parts)
