"""Builds the image encoders of Qwen2-VL, 2.5-VL and 3-VL, as the networks that optimum-intel's exports have.

The patches of a square become one token: they follow each other, and are projected together.
"""

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
from .vision_tower import PATCHES, POSITIONS, VisionTower, attention

MERGE, FRAMES = 2, 2
"""The patches in a row that become one token if the file does not say it, and the frames that become the same
patches."""
LEAST, MOST = 8, 4096
"""The fewest and the most tokens of an image, as llama.cpp has them, where the file does not say its pixels."""
WINDOW, PER_SECOND = 112, 2
"""The pixels of a window's sides in Qwen2.5-VL, and the positions that a second of a video takes."""


def qwen2(header: Header) -> tuple[Json, Json]:
    """Returns the members of config.json and preprocessor_config.json of Qwen2-VL."""
    width, patch = header.number("vision.embedding_length"), header.number("vision.patch_size")
    merge = header.number("vision.spatial_merge_size") or MERGE
    token = (patch * merge) ** 2
    vision = {"hidden_size": width, "num_heads": header.number("vision.attention.head_count")}
    processor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": patch,
        "merge_size": merge,
        "temporal_patch_size": FRAMES if f"{PATCHES}.weight.1" in header.tensors else 1,
        "min_pixels": header.number("vision.image_min_pixels") or LEAST * token,
        "max_pixels": header.number("vision.image_max_pixels") or MOST * token,
        "resample": BICUBIC,
    }
    return {"model_type": "qwen2_vl", "vision_config": vision}, processor


def qwen25(header: Header) -> tuple[Json, Json]:
    """Returns the members of config.json and preprocessor_config.json of Qwen2.5-VL."""
    config, processor = qwen2(header)
    window = header.number("vision.window_size") or WINDOW
    vision = config["vision_config"] | {"window_size": window, "tokens_per_second": PER_SECOND}
    return {"model_type": "qwen2_5_vl", "vision_config": vision}, processor


def qwen3(header: Header) -> tuple[Json, Json]:
    """Returns the members of config.json and preprocessor_config.json of Qwen3-VL."""
    config, processor = qwen2(header)
    places = header.tensors[POSITIONS][-1]
    return {
        "model_type": "qwen3_vl",
        "vision_config": config["vision_config"] | {"num_position_embeddings": places},
    }, processor


def deeper(header: Header) -> list[int]:
    """Returns the layers of the encoder whose results are embeddings for deeper layers of the model."""
    found = header.metadata.get("clip.vision.is_deepstack_layers")
    return [layer for layer, used in enumerate(found) if used] if isinstance(found, list) else []


def patches(tensors: Tensors) -> Any:
    """Builds the network that computes the embeddings of patches [patches, RGB x frames x side x side]."""
    names = f"{PATCHES}.weight", f"{PATCHES}.weight.1"
    frames = [tensors.numbers(name) for name in names[: 2 if names[1] in tensors else 1]]
    weights = np.stack(frames, 2).reshape(len(frames[0]), -1)
    values = network_input("hidden_states", [-1, weights.shape[1]], np.float32)
    found = ops.matmul(values, ops.constant(weights), False, True)
    if f"{PATCHES}.bias" in tensors:
        found = ops.add(found, tensors.numbers(f"{PATCHES}.bias")[None])
    found = VisionTower(tensors).norm(found, "v.norm_embd")
    return ov.Model([found.output(0)], [values], "patches")


def positions(tensors: Tensors) -> Any:
    """Builds the network that looks up position embeddings."""
    places = network_input("input", [-1, -1], np.int64)
    found = ops.gather(ops.constant(tensors.numbers(POSITIONS)), places, np.int64(0))
    return ov.Model([found.output(0)], [places], "positions")


def merger(tensors: Tensors) -> Any:
    """Builds the network that encodes the embeddings of patches, and projects them to embeddings of tokens.

    In Qwen2.5-VL, patches are in the order of windows, and only a few layers have attention beyond a window.
    """
    tower = VisionTower(tensors)
    size, square = tower.width // tower.heads, square_of(tower.header)
    values = network_input("hidden_states", [-1, tower.width], np.float32)
    turned = network_input("rotary_pos_emb", [-1, size // 2], np.float32)
    mask = network_input("attention_mask", [1, -1, -1], np.float32)
    period, inputs = tower.header.number("vision.n_wa_pattern"), [values, mask, turned]
    x, angles, windows, order = values, turned, None, None
    if period:
        windows = network_input("window_attention_mask", [1, -1, -1], np.float32)
        order = network_input("window_index", [-1], np.int64)
        inputs += [windows, order]
        x, angles = (_ordered(rows, order, square) for rows in (values, turned))
    cosines = turns(angles)

    def attend(layer: int, parts: list[Any]) -> Any:
        """Returns the result of an attention with RoPE by the positions of patches."""
        rotated = [layers.rotate(part, cosines, size, size) for part in parts[:2]]
        seen = windows if windows is not None and (layer + 1) % period else mask
        return attention([*rotated, parts[2]], ops.unsqueeze(seen, np.int64(1)))

    x, found = ops.unsqueeze(x, np.int64(0)), []
    for layer in range(tower.count):
        x = tower.layer(layer, x, attend)
        if layer in deeper(tower.header):
            found.append(_deepened(tower, layer, joined(x, square * tower.width)))
    merged = joined(tower.norm(x, "v.post_ln"), square * tower.width)
    merged = tower.product(ops.gelu(tower.product(merged, "mm.0"), "erf"), "mm.2")
    if order is not None:
        merged = ops.scatter_update(ops.multiply(merged, np.float32(0)), order, merged, np.int64(0))
    results = [merged, *([ops.concat([ops.unsqueeze(each, np.int64(0)) for each in found], 0)] if found else [])]
    return ov.Model([each.output(0) for each in results], inputs, "merger")


def turns(angles: Any) -> layers.Cosine:
    """Returns the cosines and sines [1, 1, patches, size of a head] of the angles of patches [patches, half a head]."""
    both = ops.concat([angles, angles], -1)
    cosines, sines = (ops.unsqueeze(found, np.array([0, 1])) for found in (ops.cos(both), ops.sin(both)))
    return cosines, sines


def square_of(header: Header) -> int:
    """Returns the number of patches of a square, which become one token."""
    return (header.number("vision.spatial_merge_size") or MERGE) ** 2


def _ordered(rows: Any, order: Any, square: int) -> Any:
    """Reorders rows of patches in groups of `square` rows."""
    width = rows.get_output_partial_shape(0)[-1].get_length()
    together = ops.gather(ops.reshape(rows, np.array([-1, square * width]), False), order, np.int64(0))
    return ops.reshape(together, np.array([-1, width]), False)


def joined(x: Any, width: int) -> Any:
    """Joins the patches of each token to one row [tokens, width]."""
    return ops.reshape(x, np.array([-1, width]), False)


def _deepened(tower: VisionTower, layer: int, x: Any) -> Any:
    """Projects the result of a layer of the encoder to embeddings for a deeper layer of the model."""
    name = f"v.deepstack.{layer}"
    return tower.product(ops.gelu(tower.product(tower.norm(x, f"{name}.norm"), f"{name}.fc1"), "erf"), f"{name}.fc2")


NETWORKS = {"vision_embeddings": patches, "vision_embeddings_merger": merger}
"""The functions that build the networks which all these models have."""
