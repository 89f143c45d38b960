"""A GGUF file as a network with paged attention.

PagedAttentionExtension takes the place of each attention and its caches, with the inputs and constants that
`paged_attention_transformation` gives it. The frontend's input `inp_out_ids` is network.LOGITS_INPUT.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.op import _PagedAttentionExtension

from ....engine.loading.network_inputs import network_input
from ....engine.paged.network import LOGITS_INPUT
from ....errors import StartError
from ..model_file import header_of
from . import frontend
from .frontend import Attention

TOKENS = {"inp_tokens": "input_ids", "inp_pos": "position_ids", "inp_out_ids": LOGITS_INPUT}
"""The frontend's inputs with a number for each token, and what they are called in paged networks."""
SEQUENCES = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")


class GgufWeights:
    """A network.WeightsSource: the network of a GGUF file."""

    def __init__(self, file: Path) -> None:
        """Keeps the path of the file, of a split one that of its first part."""
        self._file = file

    def read(self, core: Any) -> Any:
        """Implements WeightsSource.read."""
        return read(self._file)


def read(path: Path) -> Any:
    """Returns the network of a file. Raises StartError, and RuntimeError from openvino."""
    header = header_of(path)
    model = frontend.read(path, header)
    inputs = []
    for old, new in TOKENS.items():
        inputs.append(network_input(new, [-1], np.int64))
        frontend.replace_input(model, old, inputs[-1])
    sequences = [network_input(name, [-1], np.int32) for name in SEQUENCES]
    longest = network_input("max_context_len", [], np.int32)
    caches: list[Any] = []
    for number, attention in enumerate(frontend.attentions(model, header)):
        pair = [network_input(f"{kind}_cache.{number}", [-1] * 4, ov.Type.dynamic) for kind in ("key", "value")]
        caches += pair
        _replace(attention, [*pair, *sequences], longest)
    logits = frontend.logits(model)
    paged = ov.Model([ops.convert(logits[0], "f32").output(0)], [*inputs, *sequences, longest, *caches], "gguf")
    _require_paged(paged, {node.get_friendly_name() for node in paged.get_parameters()}, logits)
    return paged


def _replace(attention: Attention, state: list[Any], longest: Any) -> None:
    """Puts PagedAttentionExtension in the place of an attention."""
    sinks = _constant(np.zeros([0, 0, 0, 0]), np.float32) if attention.sinks is None else attention.sinks
    floats, ints = _constant([], np.float32), _constant([], np.int32)
    flags, zero = _constant([], np.uint8), _constant(0, np.int32)
    unused = [ints, ints, ints, floats, floats, zero, zero]  # importance of tokens, rotation, sparse attention
    behind = [zero, ints, ints, ints, ints, flags, ints]  # eviction, types of tokens, trees of draft tokens
    scaled = [_constant(attention.scale, np.float32), _constant(attention.window, np.int32), floats, longest]
    values = [*attention.rows, *state, *scaled, *unused, sinks, *behind]
    paged = _PagedAttentionExtension([value if isinstance(value, ov.Output) else value.output(0) for value in values])
    described = paged.get_rt_info()
    for kind, heads, size in zip("kv", attention.heads[1:], attention.sizes[1:], strict=True):
        described[f"num_{kind}_heads"], described[f"{kind}_head_size"] = heads, size
    attention.replace(paged.output(0))


def _require_paged(model: Any, inputs: set[str], logits: list[Any]) -> None:
    """Raises StartError if anything of a sequence is left that is no paged attention."""
    left = sorted(
        node.get_friendly_name()
        for node in model.get_ordered_ops()
        if node.get_type_name() == "Parameter" and node.get_friendly_name() not in inputs
    )
    if left or len(logits) != 1:
        raise StartError(f"its attention cannot be paged: the network needs {', '.join(left) or 'several outputs'}")


def _constant(value: Any, kind: Any) -> Any:
    return ops.constant(np.array(value, kind))
