"""A GGUF file as a network with paged attention, by openvino's GGUF frontend: weights stay in 4 or 8 bits.

The frontend makes a network of one sequence, whose keys and values are inputs and outputs, written by ScatterUpdate.
Here PagedAttentionExtension takes the place of each attention and its caches, with the inputs and constants that
`paged_attention_transformation` gives it. The frontend's input `inp_out_ids` is network.LOGITS_INPUT.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.frontend import FrontEndManager
from openvino.op import _PagedAttentionExtension

from ...errors import StartError
from ...repository import gguf, gguf_merge
from ..errors import last_line
from .network import LOGITS_INPUT

TOKENS = {"inp_tokens": "input_ids", "inp_pos": "position_ids", "inp_out_ids": LOGITS_INPUT}
"""The frontend's inputs with a number for each token, and what they are called in paged networks."""
SEQUENCES = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")
WINDOWED = "self_kq_mask_swa"
"""The frontend's mask of layers with a sliding window."""
EXACT_MINIMUMS = "OV_GGUF_Q4_K_ZP_F16", "1"
"""Without it, the frontend rounds the minimums of Q4_K, which changes weights by up to a tenth (root mean square)."""
SINKS = 5
"""The input of ScaledDotProductAttention with the logits of attention sinks."""
QWEN3_MOE = "qwen3moe"
"""The architecture of which the frontend (2026.4.1) rotates neighbours instead of the halves of a head, and does not
let the weights of a token's experts sum to 1."""


def read(path: Path) -> Any:
    """Returns the network of a file. Raises StartError, and RuntimeError from openvino."""
    header = gguf.read(path)
    os.environ.setdefault(*EXACT_MINIMUMS)
    frontend = FrontEndManager().load_by_framework("gguf")
    with gguf_merge.whole(path) as file:
        try:
            model = frontend.convert(frontend.load(str(file)))
        except Exception as error:  # the frontend has classes of its own, without a common one
            raise StartError(f"{path} cannot be served: {last_line(error)}; {gguf.EXPORT}") from error
    if header.architecture == QWEN3_MOE:
        _correct_qwen3_moe(model)
    return _paged(model, header)


def _paged(model: Any, header: gguf.Header) -> Any:
    masks = {node.get_friendly_name(): node for node in model.get_parameters()}
    inputs = []
    for old, new in TOKENS.items():
        inputs.append(_input(new, [-1], np.int64))
        shaped = ops.reshape(ops.convert(inputs[-1], "i32"), np.array([1, 1, 1, -1]), False)
        masks[old].output(0).replace(shaped.output(0))
    sequences = [_input(name, [-1], np.int32) for name in SEQUENCES]
    longest = _input("max_context_len", [], np.int32)
    attentions = [node for node in model.get_ordered_ops() if node.get_type_name() == "ScaledDotProductAttention"]
    caches: list[Any] = []
    for number, attention in enumerate(attentions):
        pair = [_input(f"{kind}_cache.{number}", [-1] * 4, ov.Type.dynamic) for kind in ("key", "value")]
        caches += pair
        mask = _source(attention.input_value(3), "Parameter").get_friendly_name()
        window = header.number("attention.sliding_window") if mask == WINDOWED else 0
        _replace(attention, [*pair, *sequences], longest, window)
    outputs = [node.input_value(0) for node in model.get_results()]
    logits = [port for port in outputs if port.get_node().get_type_name() != "ScatterUpdate"]  # which writes a cache
    paged = ov.Model([ops.convert(logits[0], "f32").output(0)], [*inputs, *sequences, longest, *caches], "gguf")
    _require_paged(paged, {node.get_friendly_name() for node in paged.get_parameters()}, logits)
    return paged


def _replace(attention: Any, state: list[Any], longest: Any, window: int) -> None:
    """Puts PagedAttentionExtension in the place of an attention."""
    written = [_source(attention.input_value(port), "ScatterUpdate") for port in (1, 2)]
    shapes = [list(node.get_output_partial_shape(0)) for node in written]  # [1, tokens, heads, size of a head]
    sizes = [(shape[2].get_length(), shape[3].get_length()) for shape in shapes]
    query = attention.input_value(0)  # [1, heads, tokens, size of a head]
    heads, size = (query.get_partial_shape()[axis].get_length() for axis in (1, 3))
    by_token = ops.transpose(ops.convert(query, "f32"), np.array([0, 2, 1, 3]))
    rows = [ops.reshape(by_token, np.array([-1, heads * size]), False)]
    for node, (kv_heads, kv_size) in zip(written, sizes, strict=True):
        if not _source(node.input_value(2), "Convert").get_output_partial_shape(0)[2].is_static:
            raise StartError("its keys have one head, which openvino's GGUF frontend mistakes for the tokens")
        flat = np.array([-1, kv_heads * kv_size])
        rows.append(ops.reshape(ops.convert(node.input_value(2), "f32"), flat, False))
    scale = np.float32(attention.input_value(4).get_node().data.item())
    has_sinks = attention.get_input_size() > SINKS
    sinks = attention.input_value(SINKS) if has_sinks else _constant(np.zeros([0, 0, 0, 0]), np.float32)
    floats, ints = _constant([], np.float32), _constant([], np.int32)
    flags, zero = _constant([], np.uint8), _constant(0, np.int32)
    unused = [ints, ints, ints, floats, floats, zero, zero]  # importance of tokens, rotation, sparse attention
    behind = [zero, ints, ints, ints, ints, flags, ints]  # eviction, types of tokens, trees of draft tokens
    scaled = [_constant(scale, np.float32), _constant(window, np.int32), floats, longest]
    values = [*rows, *state, *scaled, *unused, sinks, *behind]
    paged = _PagedAttentionExtension([value if isinstance(value, ov.Output) else value.output(0) for value in values])
    described = paged.get_rt_info()
    for kind, (kv_heads, kv_size) in zip("kv", sizes, strict=True):
        described[f"num_{kind}_heads"], described[f"{kind}_head_size"] = kv_heads, kv_size
    result = ops.reshape(paged.output(0), np.array([1, -1, heads, sizes[1][1]]), False)
    attention.output(0).replace(ops.transpose(result, np.array([0, 2, 1, 3])).output(0))


def _require_paged(model: Any, inputs: set[str], logits: list[Any]) -> None:
    """Raises StartError if anything of a sequence is left that is no paged attention."""
    left = sorted(
        node.get_friendly_name()
        for node in model.get_ordered_ops()
        if node.get_type_name() == "Parameter" and node.get_friendly_name() not in inputs
    )
    if left or len(logits) != 1:
        raise StartError(f"its attention cannot be paged: the network needs {', '.join(left) or 'several outputs'}")


def _correct_qwen3_moe(model: Any) -> None:
    """Puts what a rotation of neighbours takes for neighbours side by side, and lets weights of experts sum to 1."""
    for node in model.get_ordered_ops():
        readers = list(node.output(0).get_target_inputs()) if node.get_output_size() else []
        if node.get_friendly_name().endswith(("Qcur_normed", "Kcur_normed")):
            half = node.get_output_partial_shape(0)[-1].get_length() // 2
            changed = ops.gather(node, np.arange(2 * half).reshape(2, half).T.reshape(-1), np.int64(-1))
        elif node.get_type_name() == "GatherElements":
            changed = ops.divide(node, ops.reduce_sum(node, np.int64(-1), True))
        else:
            continue
        for reader in readers:
            reader.replace_source_output(changed.output(0))


def _source(port: Any, kind: str) -> Any:
    """Returns the next node of a kind along the first inputs. Raises StartError."""
    node = port.get_node()
    while node.get_type_name() != kind:
        if not node.get_input_size():
            raise StartError(f"its attention cannot be paged: there is no {kind} before {port.get_node().get_name()}")
        node = node.input_value(0).get_node()
    return node


def _input(name: str, shape: list[int], kind: Any) -> Any:
    node = ops.parameter(ov.PartialShape(shape), kind, name=name)
    node.output(0).get_tensor().set_names({name})
    return node


def _constant(value: Any, kind: Any) -> Any:
    return ops.constant(np.array(value, kind))
