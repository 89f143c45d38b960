"""Builds the encoder of InternVL, whose tiles are squares; each token is made of a square of adjacent patches."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from ....engine.paged.network import network_input
from ....media.pixels import BICUBIC
from ....types import Json
from ..header import Header
from .tensors import Tensors
from .vision_tower import FACTOR, VisionTower, shuffled, without_class

SHUFFLED = 2
"""The side in patches of the square that becomes one token, if the file does not say."""
TILES = 1, 12
"""The fewest and the most tiles of an image, if the file does not say."""


def internvl(header: Header) -> tuple[Json, Json]:
    """Returns the members of config.json and preprocessor_config.json of InternVL."""
    side = header.number("vision.image_size")
    least, most = (header.number(f"vision.preproc_{end}_tiles") for end in ("min", "max"))
    config = {
        "model_type": "internvl",
        "vision_config": {"image_size": side, "patch_size": header.number("vision.patch_size")},
        "downsample_ratio": 1 / (header.number(FACTOR) or SHUFFLED),
    }
    processor = {
        "image_processor_type": "GotOcr2ImageProcessor",
        "size": {"height": side, "width": side},
        "crop_to_patches": True,
        "min_patches": least or TILES[0],
        "max_patches": most or TILES[1],
        "resample": BICUBIC,
    }
    return config, processor


def network(tensors: Tensors) -> Any:
    """Builds the network, which computes embeddings [images, tokens, width] of tiles."""
    tower, by = _Tower(tensors), tensors.header.number(FACTOR) or SHUFFLED
    images = network_input("pixel_values", [-1, 3, tower.side, tower.side], np.float32)
    found = without_class(tower.norm(tower.encoded(tower.placed(tower.embedded(images))), "v.post_ln"))
    tokens = np.array([tower.side // tower.patch // by])
    found = shuffled(found, (tokens, tokens), by)
    found = tower.projector_norm(found, "mm.model.mlp.0")
    found = tower.product(ops.gelu(tower.product(found, "mm.model.mlp.1"), "erf"), "mm.model.mlp.3")
    return ov.Model([found.output(0)], [images], "internvl")


class _Tower(VisionTower):
    """The encoder's layers: the large encoder normalizes all queries of a patch together, and all keys."""

    gelu = "erf"

    def _projected(self, name: str, x: Any) -> list[Any]:
        query, key, value = super()._projected(name, x)
        return [self.norm(query, f"{name}.attn_q_norm"), self.norm(key, f"{name}.attn_k_norm"), value]
