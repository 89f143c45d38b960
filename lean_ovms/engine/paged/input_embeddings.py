"""Merges a language model that takes embeddings with the network that computes embeddings of token ids.

Exports of models with vision have the two in separate files. After merging, a step needs one inference, whose inputs
are token ids as for text models. The rows of image tokens are replaced by the output of the vision encoder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from openvino import opset13 as ops

from ...repository.model_config import TEXT_EMBEDDINGS
from .network import EMBEDDINGS_INPUT, IMAGE_DEEPER, IMAGE_PLACES, IMAGE_ROWS, find_input, network_input

DEEPER, OF_IMAGES = "deepstack_visual_embeds", "visual_pos_masks"
"""Inputs of Qwen3-VL's language model: embeddings that are added after its first layers, and for which tokens."""
KINDS = "token_type_ids"
"""An input of Gemma's language model that is 1 for image tokens, and 0 for others."""
PER_LAYER, PER_LAYER_EMBEDDINGS = "per_layer_inputs", "openvino_text_embeddings_per_layer_model.xml"
"""An input of Gemma 4 for embeddings of token ids that its layers add, and the file of the network that computes them.
The larger models lack the file, and do not use the input."""


def connect(model: Any, core: Any, folder: Path, *, paged: bool = True) -> None:
    """Puts the embedding networks of a folder in front of a language model.

    Args:
        model: The openvino.Model of the language model, which is changed.
        core: The openvino.Core.
        folder: The folder of the model.
        paged: Whether the attention is paged, with ids of the shape [tokens]. If not, the shape is [batch, tokens], and
            the indices of image tokens count through the whole batch.
    """
    text_embeddings = core.read_model(folder / TEXT_EMBEDDINGS)
    hidden = text_embeddings.outputs[0].get_partial_shape()[-1].get_length()
    deeper = find_input(model, DEEPER)
    layers = len(deeper.output(0).get_target_inputs()) if deeper is not None else 0
    ids = network_input("input_ids", [-1] if paged else [-1, -1], np.int64)
    columns = ops.unsqueeze(ids, np.int64(1)) if paged else ids
    rows = network_input(IMAGE_ROWS, [-1, hidden], np.float32)
    places = network_input(IMAGE_PLACES, [-1], np.int64)
    embeddings = _embedded(text_embeddings, columns)
    flat = ops.reshape(embeddings, np.array([-1, hidden], np.int64), special_zero=False)
    merged = ops.scatter_update(flat, places, rows, np.int64(0))
    _replace(
        model, EMBEDDINGS_INPUT, merged if paged else ops.reshape(merged, ops.shape_of(embeddings), special_zero=False)
    )
    added = [ids, rows, places]
    if layers:
        added.append(network_input(IMAGE_DEEPER, [layers, -1, hidden], np.float32))
        _replace(model, DEEPER, added[-1])
        _replace(model, OF_IMAGES, ops.convert(_marks(columns, places), "boolean"))
    if find_input(model, KINDS) is not None:
        _replace(model, KINDS, _marks(columns, places))
    if (per_layer := find_input(model, PER_LAYER)) is not None:
        if per_layer.output(0).get_target_inputs():
            _replace(model, PER_LAYER, _embedded(core.read_model(folder / PER_LAYER_EMBEDDINGS), columns))
        else:
            model.remove_parameter(per_layer)
    for parameter in added:  # they have the names of the inputs that they replace
        parameter.output(0).get_tensor().set_names({parameter.get_friendly_name()})
    model.add_parameters(added)
    model.validate_nodes_and_infer_types()


def _embedded(network: Any, ids: Any) -> Any:
    """Returns the output of an embedding network for ids [rows, columns], as [rows, columns, embedding size]."""
    network.get_parameters()[0].output(0).replace(ids.output(0))
    return network.outputs[0].get_node().input_value(0).get_node()


def _marks(ids: Any, places: Any) -> Any:
    """Returns an output with the shape of `ids` that is 1 for image tokens, and 0 for others."""
    flat = ops.reshape(ids, np.array([-1], np.int64), special_zero=False)
    zeros, ones = ops.multiply(flat, np.int64(0)), ops.add(ops.multiply(places, np.int64(0)), np.int64(1))
    return ops.reshape(ops.scatter_update(zeros, places, ones, np.int64(0)), ops.shape_of(ids), special_zero=False)


def _replace(model: Any, name: str, values: Any) -> None:
    given = find_input(model, name)
    given.output(0).replace(values.output(0))
    model.remove_parameter(given)
