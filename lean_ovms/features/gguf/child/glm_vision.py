"""Builds the encoders of GLM-4.1V, 4.6V-Flash, GLM-OCR and PaddleOCR-VL in the networks of Qwen's encoders."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from ....engine.paged.network import network_input
from ....types import Json
from ..header import Header
from . import layers, qwen_vision
from .tensors import Tensors
from .vision_tower import POSITIONS, VisionTower, attention

LEAST, MOST = 112 * 112, 9_633_792
"""The fewest and the most pixels of an image in transformers, where an image counts as two equal frames."""


def glm4v(header: Header) -> tuple[Json, Json]:
    """Returns the members of config.json and preprocessor_config.json of GLM-4.1V."""
    config, processor = qwen_vision.qwen2(header)
    places = header.tensors[POSITIONS][-1] if POSITIONS in header.tensors else 0
    config |= {"model_type": "glm4v", "vision_config": config["vision_config"] | {"num_position_embeddings": places}}
    limits = {"min_pixels": LEAST, "max_pixels": MOST}
    return config, {**processor, **limits, "image_processor_type": "Glm4vImageProcessor"}


def positions(tensors: Tensors) -> Any:
    """Builds the network that computes embeddings of positions between those of a square table."""
    weights = [network_input(f"{name}_weights", [-1, -1], np.float32) for name in ("row", "column")]
    found = VisionTower(tensors).interpolated(*weights)
    return ov.Model([found.output(0)], weights, "positions")


def paddleocr(header: Header) -> tuple[Json, Json]:
    """Returns the members of config.json and preprocessor_config.json of PaddleOCR-VL."""
    config, processor = glm4v(header)
    limits = {f"{end}_pixels": header.number(f"vision.image_{end}_pixels") for end in ("min", "max")}
    processor |= {**limits, "image_processor_type": "PaddleOCRVLImageProcessor"}
    return {**config, "model_type": "paddleocr_vl"}, processor


def _encoded(tower: VisionTower) -> tuple[list[Any], Any]:
    """Returns the inputs of an encoder of patches, and its result [1, patches, width]."""
    size = tower.width // tower.heads
    values = network_input("hidden_states", [-1, tower.width], np.float32)
    angles = network_input("rotary_pos_emb", [-1, size // 2], np.float32)
    mask = network_input("attention_mask", [1, -1, -1], np.float32)
    cosines = qwen_vision.turns(angles)

    def attend(layer: int, parts: list[Any]) -> Any:
        """Returns the result of an attention with RoPE by the positions of patches."""
        normed = [tower.norm(part, f"v.blk.{layer}.attn_{name}_norm") for part, name in zip(parts, "qk", strict=False)]
        rotated = [layers.rotate(part, cosines, size, size) for part in normed]
        return attention([*rotated, parts[2]], ops.unsqueeze(mask, np.int64(1)))

    found = tower.norm(tower.encoded(ops.unsqueeze(values, np.int64(0)), attend), "v.post_ln")
    return [values, mask, angles], found


def merger(tensors: Tensors) -> Any:
    """Builds the network that encodes the embeddings of patches, and projects them to embeddings of tokens."""
    tower = VisionTower(tensors)
    inputs, found = _encoded(tower)
    # The convolution that merges the patches of a token is a product, since these follow each other.
    weights = tensors.numbers("mm.patch_merger.weight").transpose(0, 2, 3, 1)
    found = qwen_vision.joined(found, weights[0].size)
    found = ops.matmul(found, ops.constant(weights.reshape(len(weights), -1)), False, True)
    found = tower.product(ops.add(found, tensors.numbers("mm.patch_merger.bias")[None]), "mm.model.fc")
    found = ops.gelu(tower.projector_norm(found, "mm.post_norm"), "erf")
    found = tower.gated(found, "mm.up", "mm.gate", "mm.down")
    return ov.Model([found.output(0)], inputs, "merger")


def paddleocr_merger(tensors: Tensors) -> Any:
    """Builds this network of PaddleOCR-VL."""
    tower = VisionTower(tensors)
    inputs, found = _encoded(tower)
    found = qwen_vision.joined(
        tower.projector_norm(found, "mm.input_norm"), qwen_vision.square_of(tower.header) * tower.width
    )
    found = tower.product(ops.gelu(tower.product(found, "mm.1"), "erf"), "mm.2")
    return ov.Model([found.output(0)], inputs, "merger")


NETWORKS = {
    "vision_embeddings": qwen_vision.patches,
    "vision_embeddings_merger": merger,
    "vision_embeddings_pos": positions,
}
"""The functions that build the networks of GLM's models."""
