"""Builds the encoder of MiniCPM-V: SigLIP for images of any size, and a resampler to a fixed number of tokens."""

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
from .vision_tower import POSITIONS, VisionTower, attention, for_each

HEAD = 128
"""The elements of a head of the resampler."""
QUERY = "resampler.query"
"""The tensor with the queries, one for each token."""
VERSION, OLDEST = "clip.minicpmv_version", 3
"""The key of the version, and that of MiniCPM-V 2.6; older models have other texts around slices."""
SLICES = 9
"""The most slices of an image, which files do not state."""


def minicpmv(header: Header) -> tuple[Json, Json]:
    """Returns the members of config.json and preprocessor_config.json of MiniCPM-V.

    Raises KeyError for versions before 2.6.
    """
    if header.number_at(VERSION) < OLDEST:
        raise KeyError(f"{VERSION} of {OLDEST} or more")
    width, tokens = header.tensors[QUERY]
    header.metadata.get("clip.minicpmv_query_num")  # the tensor has as many rows
    config = {
        "model_type": "minicpmv",
        "query_num": tokens,
        "hidden_size": width,
        "num_positions": header.tensors[POSITIONS][-1],
    }
    processor = {
        "image_processor_type": "MiniCPMVImageProcessor",
        "scale_resolution": header.number("vision.image_size"),
        "patch_size": header.number("vision.patch_size"),
        "max_slice_nums": SLICES,
        "resample": BICUBIC,
    }
    return config, processor


def network(tensors: Tensors) -> Any:
    """Builds the network, which computes embeddings [images, tokens, width] of images of one size.

    Its other inputs are the places of patches in the table of positions, and the resampler's embeddings of positions.
    """
    tower = VisionTower(tensors)
    query = tensors.numbers(QUERY)
    width = query.shape[-1]
    images = network_input("pixel_values", [-1, 3, -1, -1], np.float32)
    places = network_input("position_ids", [-1], np.int64)
    waves = network_input("position_embeddings", [-1, width], np.float32)
    x = ops.add(tower.embedded(images), ops.gather(ops.constant(tensors.numbers(POSITIONS)), places, np.int64(0)))
    found = tower.norm(tower.encoded(x), "v.post_ln")
    values = tower.norm(tower.product(found, "resampler.kv"), "resampler.ln_kv")
    queries = tower.norm(for_each(values, query), "resampler.ln_q")
    parts = []
    for part, letter in ((queries, "q"), (ops.add(values, waves), "k"), (values, "v")):
        part = tower.product(part, f"resampler.attn.{letter}")
        heads = ops.reshape(part, np.array([0, 0, width // HEAD, HEAD]), True)
        parts.append(ops.transpose(heads, np.array([0, 2, 1, 3])))
    found = ops.transpose(attention(parts), np.array([0, 2, 1, 3]))
    found = tower.product(ops.reshape(found, np.array([0, 0, width]), True), "resampler.attn.out")
    found = tower.product(tower.norm(found, "resampler.ln_post"), "resampler.proj")
    return ov.Model([found.output(0)], [images, places, waves], "minicpmv")
