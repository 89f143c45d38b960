"""Adds an attention window: in every layer, a token attends to itself and the WINDOW - 1 tokens before it.

The model is trained on texts of up to 512 tokens, so it has never attended to more tokens, or to tokens further away.
Without a window it writes nonsense after 2,000 tokens and does not end. With one, only the end of a prompt of 131,072
tokens matters.

The window is put into the mask of the exported graph, in the form that OpenVINO's conversion to paged attention
recognizes (its pattern for GPT-OSS: window, causality, padding, then a slice of the mask). So it applies in both kinds
of pipelines, and the paged kernel skips the tokens outside.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as op

WINDOW = 512


def add_window(folder: Path, tokens: int = WINDOW) -> None:
    """Adds the window to the model and the config.json of a folder.

    The files are read into memory first, because OpenVINO would otherwise keep the weights open while they are written.
    """
    path = folder / "openvino_model.xml"
    model = ov.Core().read_model(path.read_bytes(), (folder / "openvino_model.bin").read_bytes())
    narrow(model, tokens)
    ov.save_model(model, path, compress_to_fp16=False)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config |= {
        "layer_types": ["sliding_attention"] * config["num_hidden_layers"],
        "max_window_layers": 0,
        "sliding_window": tokens,
        "use_sliding_window": True,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def narrow(model: ov.Model, tokens: int) -> None:
    attentions = [node for node in model.get_ops() if node.get_type_name() == "ScaledDotProductAttention"]
    mask = attentions[0].input_value(3).get_node()
    padded = mask.input_value(0).get_node().input_value(0).get_node()  # under Select and Broadcast
    causal = padded.input_value(0).get_node()
    always, ordered = (causal.input_value(i) for i in (0, 1))
    key, query = (ordered.get_node().input_value(i) for i in (0, 1))
    near = op.greater(key, op.add(query, op.constant(np.int64(-tokens))))
    seen = op.bitwise_and(always, op.bitwise_and(op.bitwise_and(always, near), ordered))
    padded.input(0).replace_source_output(seen.output(0))
    length = op.gather(op.shape_of(mask), op.constant(np.array([3])), op.constant(np.int64(0)))
    start, step, axis = (op.constant(np.array([number])) for number in (0, 1, 3))
    whole = op.slice(mask, start, length, step, axis)
    for attention in attentions:
        attention.input(3).replace_source_output(whole.output(0))
    model.validate_nodes_and_infer_types()
