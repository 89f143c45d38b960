"""Builds SigLIP, which encodes square images, with the projectors of Gemma 3, and of Idefics 3 and SmolVLM."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from ....engine.paged.network import network_input
from ....media.pixels import BILINEAR, LANCZOS
from ....types import Json
from ..header import Header
from .tensors import Tensors
from .vision_tower import FACTOR, VisionTower, shuffled

POOLED, SHUFFLED = 4, 3
"""The side in patches of the square that becomes one token, if the file does not say: in Gemma 3 and Idefics 3."""


def gemma3(header: Header) -> tuple[Json, Json]:
    """Returns the members of config.json and preprocessor_config.json of Gemma 3."""
    side, patch = header.number("vision.image_size"), header.number("vision.patch_size")
    tokens = (side // patch // (header.number(FACTOR) or POOLED)) ** 2
    config = {
        "model_type": "gemma3",
        "vision_config": {"image_size": side, "patch_size": patch},
        "mm_tokens_per_image": tokens,
    }
    size = {"height": side, "width": side}
    return config, {"image_processor_type": "Gemma3ImageProcessor", "size": size, "resample": BILINEAR}


def gemma3_network(tensors: Tensors) -> Any:
    """Builds the network of Gemma 3, which computes embeddings [images, tokens, width] of images."""
    tower, images, found = _encoded(tensors)
    side, by = tower.side // tower.patch, tower.header.number(FACTOR) or POOLED
    squares = ops.reshape(ops.transpose(found, np.array([0, 2, 1])), np.array([0, 0, side, side]), True)
    squares = ops.avg_pool(squares, [by, by], [0, 0], [0, 0], [by, by], True, "floor")
    found = ops.transpose(ops.reshape(squares, np.array([0, 0, -1]), True), np.array([0, 2, 1]))
    found = tower.layers.norm(found, "mm.soft_emb_norm")
    found = ops.matmul(found, ops.constant(tensors.numbers("mm.input_projection.weight")), False, False)
    return ov.Model([found.output(0)], [images], "siglip")


def idefics3(header: Header) -> tuple[Json, Json]:
    """Returns the members of config.json and preprocessor_config.json of Idefics 3 and SmolVLM."""
    side, patch = header.number("vision.image_size"), header.number("vision.patch_size")
    config = {
        "model_type": "idefics3",
        "vision_config": {"image_size": side, "patch_size": patch},
        "scale_factor": header.number(FACTOR) or SHUFFLED,
    }
    longest = header.number("vision.preproc_image_size") or side
    processor = {
        "image_processor_type": "Idefics3ImageProcessor",
        "max_image_size": {"longest_edge": side},
        "size": {"longest_edge": longest},
        "do_image_splitting": longest > side,
        "resample": LANCZOS,
    }
    return config, processor


def idefics3_network(tensors: Tensors) -> Any:
    """Builds the network of Idefics 3 and SmolVLM, which computes embeddings [images, tokens, width] of images.

    Each token is made of a square of adjacent patches.
    """
    tower, images, found = _encoded(tensors)
    by = tower.header.number(FACTOR) or SHUFFLED
    side = np.array([tower.side // tower.patch // by])
    found = shuffled(found, (side, side), by)
    return ov.Model([tower.product(found, "mm.model.fc").output(0)], [images, *_unused()], "siglip")


def _unused() -> list[Any]:
    """Returns inputs that the exports have to mark padding of images, which tiles do not have."""
    mask = network_input("patch_attention_mask", [-1, -1, -1], bool)
    return [mask, network_input("patch_position_ids", [-1, -1], np.int64)]


def _encoded(tensors: Tensors) -> tuple[VisionTower, Any, Any]:
    """Returns an encoder, its input of images [images, RGB, side, side] and its result [images, patches, width]."""
    tower = VisionTower(tensors)
    images = network_input("pixel_values", [-1, 3, tower.side, tower.side], np.float32)
    return tower, images, tower.norm(tower.encoded(tower.placed(tower.embedded(images))), "v.post_ln")
