"""Builds the encoder of LFM2-VL, which is SigLIP 2 for images of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from ....engine.paged.network import network_input
from ....media.pixels import BILINEAR
from ....types import Json
from ..header import Header
from .tensors import Tensors
from .vision_tower import FACTOR, POSITIONS, VisionTower, shuffled

SHUFFLED = 2
"""The side in patches of the square that becomes one token, if the file does not say."""
SETTINGS = {
    "min_image_tokens": 64,
    "max_image_tokens": 256,
    "min_tiles": 2,
    "max_tiles": 10,
    "tile_size": 512,
    "max_pixels_tolerance": 2.0,
}
"""Members of preprocessor_config.json in all models of this kind, which files lack."""


def lfm2(header: Header) -> tuple[Json, Json]:
    """Returns the members of config.json and preprocessor_config.json of LFM2-VL."""
    config = {"model_type": "lfm2_vl", "vision_config": {"num_patches": header.tensors[POSITIONS][-1]}}
    processor = {
        "image_processor_type": "Lfm2VlImageProcessor",
        "encoder_patch_size": header.number("vision.patch_size"),
        "downsample_factor": header.number(FACTOR) or SHUFFLED,
        "resample": BILINEAR,
    }
    return config, processor | SETTINGS


def network(tensors: Tensors) -> Any:
    """Builds the network, which computes embeddings [images, tokens, width] of images of one size.

    The places of patches are between those of a square table.
    """
    tower, by = VisionTower(tensors), tensors.header.number(FACTOR) or SHUFFLED
    images = network_input("pixel_values", [-1, 3, -1, -1], np.float32)
    rows, columns = (network_input(f"{name}_weights", [-1, -1], np.float32) for name in ("row", "column"))
    x = ops.add(tower.embedded(images), tower.interpolated(rows, columns))
    counts = (ops.slice(ops.shape_of(each), *map(np.array, ([0], [1], [1], [0]))) for each in (rows, columns))
    down, across = (ops.divide(count, np.int64(by)) for count in counts)
    found = shuffled(tower.norm(tower.encoded(x), "v.post_ln"), (down, across), by)
    found = tower.product(tower.projector_norm(found, "mm.input_norm"), "mm.1")
    found = tower.product(ops.gelu(found, "erf"), "mm.2")
    return ov.Model([found.output(0)], [images, rows, columns], "lfm2")
