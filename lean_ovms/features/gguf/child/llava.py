"""Builds the encoder of LLaVA 1.5 and 1.6, which is CLIP without its last layer, and with the projector of Yi-VL."""

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
from .vision_tower import CLASS, VisionTower, without_class

PINPOINTS = "clip.vision.image_grid_pinpoints"
"""The key of the sides of all grids of tiles, in a row; models without it have no tiles."""
NEWLINES = "model.image_newline", "v.image_newline"
"""The names that the tensor of the embedding after each row of patches has in files."""
FEATURE_LAYER = "clip.vision.feature_layer"
"""The key with the numbers of the layers whose results are projected."""


def llava(header: Header) -> tuple[Json, Json]:
    """Returns the members of config.json and preprocessor_config.json of LLaVA, or of LLaVA-NeXT if there are tiles.

    Raises KeyError if the file lacks what a model with tiles needs.
    """
    side, metadata = header.number("vision.image_size"), header.metadata
    config: Json = {"vision_config": {"image_size": side, "patch_size": header.number("vision.patch_size")}}
    sizes = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
    padded = metadata.get("clip.vision.image_aspect_ratio") != "square"
    processor = {**sizes, "do_pad": padded, "resample": BICUBIC}
    grids = metadata.get(PINPOINTS)
    if not isinstance(grids, list) or not grids:
        return {**config, "model_type": "llava"}, {**processor, "image_processor_type": "LlavaImageProcessor"}
    if not any(name in header.tensors for name in NEWLINES):
        raise KeyError(NEWLINES[0])
    config |= {"model_type": "llava_next", "image_grid_pinpoints": [*zip(grids[::2], grids[1::2], strict=True)]}
    return config, {**processor, "image_processor_type": "LlavaNextImageProcessor"}


def network(tensors: Tensors) -> Any:
    """Builds the network, which computes embeddings [images, patches, width] of squares.

    Raises ValueError if the file projects the results of several layers.
    """
    tower = _Tower(tensors)
    images = network_input("pixel_values", [-1, 3, tower.side, tower.side], np.float32)
    x = tower.norm(tower.placed(tower.embedded(images)), "v.pre_ln")
    found = tower.norm(tower.encoded(x), "v.post_ln")
    found = tower.product(without_class(found) if CLASS in tensors else found, "mm.0")
    if tower.layers.has("mm.3"):  # Yi-VL
        found = tower.product(ops.gelu(tower.projector_norm(found, "mm.1"), "erf"), "mm.3")
        found = tower.projector_norm(found, "mm.4")
    else:
        found = tower.product(ops.gelu(found, "erf"), "mm.2")
    return ov.Model([found.output(0)], [images], "llava")


class _Tower(VisionTower):
    """The encoder's layers up to the one whose result is projected."""

    gelu = "erf"

    def __init__(self, tensors: Tensors) -> None:
        super().__init__(tensors)
        while self.count and f"v.blk.{self.count - 1}.ln1.weight" not in tensors:
            self.count -= 1  # some files state one layer more than they have, since llama.cpp leaves out the last
        layers = tensors.header.metadata.get(FEATURE_LAYER)
        if isinstance(layers, list) and layers:
            if len(layers) > 1:
                raise ValueError("the results of several layers are projected")
            [self.count] = layers
