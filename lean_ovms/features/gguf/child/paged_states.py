"""OpenVINO's operations with a state for each sequence, for which its Python package has no functions.

OpenVINO's `paged_attention_transformation` replaces a pattern with a state by such an operation. So a tiny network with
the pattern is transformed, and the operation is taken from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset5, opset6
from openvino import opset13 as ops
from openvino._offline_transformations import paged_attention_transformation

from ....engine.paged.network import network_input
from .layers import END, Floats

STATES = ("la.block_indices", "la.block_indices_begins", "la.past_lens", "la.cache_interval")
"""The inputs with the slots of sequences' states."""
Found = tuple[Any, Any]
"""A result, and the input with its table of states, which has a row for each slot."""


def convolution(values: Any, weights: Floats, bias: Floats | None, begins: Any, slots: list[Any], number: int) -> Found:
    """Returns a causal convolution over tokens.

    Args:
        values: The values [tokens, channels].
        weights: The weights of the kernel [channels, tokens]; the last one is that of the token itself.
        bias: The bias [channels]; None if there is none.
        begins: The input with the index of each sequence's first token.
        slots: The inputs that are named by STATES.
        number: The number of the convolution in the network.
    """
    node = _taken(_with_convolution(*weights.shape), "PagedCausalConv1D")
    table = _named(node.input_value(1).get_node(), f"conv_state_table.{number}")
    given = {0: values, 2: ops.constant(weights[:, None]), 4: begins} | dict(enumerate(slots, 5))
    return _connected(node, given if bias is None else given | {3: ops.constant(bias)}), table


def state_space(rows: list[Any], begins: Any, slots: list[Any], number: int) -> Found:
    """Returns the results of a layer of selective state spaces [tokens, heads, size of a head].

    Args:
        rows: A [heads], dt [tokens, heads], B [tokens, groups, size of the state], x [tokens, heads, size of a head],
            and C, which has the shape of B.
        begins: The input with the index of each sequence's first token.
        slots: The inputs that are named by STATES.
        number: The number of the layer among those with state spaces.
    """
    (groups, state), (heads, size) = (
        [rows[place].get_output_partial_shape(0)[axis].get_length() for axis in (1, 2)] for place in (2, 3)
    )
    node = _taken(_with_state_space(heads, size, groups, state), "PagedSelectiveSSM")
    table = _named(node.input_value(5).get_node(), f"selective_ssm_state_table.{number}")
    return _connected(node, dict(enumerate(rows)) | dict(enumerate([begins, *slots], 6))), table


def delta_net(rows: list[Any], begins: Any, slots: list[Any], number: int) -> Found:
    """Returns the results of a layer of gated delta nets [tokens, heads, size of a head].

    Args:
        rows: Queries, keys and values [tokens, heads, size of a head], and gates and betas [tokens, heads].
        begins: The input with the index of each sequence's first token.
        slots: The inputs that are named by STATES.
        number: The number of the delta net in the network.
    """
    heads, size = (rows[0].get_output_partial_shape(0)[axis].get_length() for axis in (1, 2))
    node = _taken(_with_delta_net(heads, size), "PagedGatedDeltaNet")
    table = _named(node.input_value(3).get_node(), f"gated_delta_state_table.{number}")
    return _connected(node, dict(zip((0, 1, 2, 4, 5), rows, strict=True)) | dict(enumerate([begins, *slots], 6))), table


def _taken(model: Any, kind: str) -> Any:
    """Transforms a network with a pattern, and returns the operation of this type that replaces it."""
    paged_attention_transformation(model)
    [found] = [node for node in model.get_ops() if node.get_type_name() == kind]
    return found


def _named(table: Any, name: str) -> Any:
    """Gives an input this name as its only one, and returns it."""
    table.set_friendly_name(name)
    table.output(0).get_tensor().set_names({name})
    return table


def _connected(node: Any, values: dict[int, Any]) -> Any:
    """Connects inputs of an operation, by their numbers, to values, and returns its result."""
    for place, value in values.items():
        node.input(place).replace_source_output(value if isinstance(value, ov.Output) else value.output(0))
    return node.output(0)


def _tokens(width: int) -> tuple[Any, Any, Any]:
    """Returns an input of token ids, embeddings [texts, tokens, width] of them, and the result of an attention.

    The attention is needed because OpenVINO transforms no network without one.
    """
    tokens = network_input("input_ids", [-1, -1], np.int64)
    rows = ops.gather(np.zeros((1, width), np.float32), ops.convert(tokens, "i32"), np.int32(0))
    heads = ops.unsqueeze(rows, np.int64(1))
    return tokens, rows, ops.scaled_dot_product_attention(heads, heads, heads).output(0)


def _state(tokens: Any, shape: list[int]) -> Any:
    """Returns a state of this shape for each text, which is 0 at first."""
    texts = ops.gather(ops.shape_of(tokens), np.array([0]), np.int64(0))
    none = ops.broadcast(np.float32(0), ops.concat([texts, np.array(shape)], 0))
    return opset6.read_value(none, "past", ov.Type.f32, ov.PartialShape([-1, *shape]))


def _with_convolution(channels: int, length: int) -> Any:
    """Makes a tiny network with a convolution of this size."""
    tokens, rows, attended = _tokens(channels)
    both = ops.concat([_state(tokens, [channels, length]), ops.transpose(rows, np.array([0, 2, 1]))], -1)
    sums = ops.group_convolution(both, np.zeros((channels, 1, 1, length), np.float32), [1], [0], [0], [1])
    newest, kept = (
        ops.slice(value, *(np.array([each]) for each in (start, END, 1, 2)))
        for value, start in ((sums, -1), (both, -length))
    )
    return ov.Model([newest.output(0), attended], [opset6.assign(kept, "past")], [tokens], "convolution")


def _with_delta_net(heads: int, size: int) -> Any:
    """Makes a tiny network with gated delta nets of this size, which compute one token after the other in a loop."""
    tokens, rows, attended = _tokens(heads * size)
    values = ops.transpose(ops.reshape(rows, np.array([0, 0, heads, size]), True), np.array([0, 2, 1, 3]))
    past = _state(tokens, [heads, size, size])
    body, inputs, results = _step_of_delta_net(heads, size)
    width = ops.gather(ops.shape_of(values), np.int64(3), np.int64(0))
    scaled = ops.divide(values, ops.power(ops.convert(width, "f32"), np.float32(0.5)))
    flat = ops.reduce_sum(values, np.array([3]), False)
    none = ops.broadcast(np.float32(0), ops.shape_of(values))
    found = _looped(tokens, body, inputs, results, [scaled, values, values, flat, flat, past, none], 2)
    shown = ops.transpose(found, np.array([0, 2, 1, 3])).output(0)
    return ov.Model([shown, attended], [opset6.assign(past, "past")], [tokens], "delta net")


def _step_of_delta_net(heads: int, size: int) -> tuple[Any, list[Any], list[Any]]:
    """Makes the loop body that computes one token.

    Returns it with its inputs after the token's number, and its results.

    The inputs are query, key, value, gate and beta of the token, the state, and all results so far. State and results
    are also what the body returns.
    """
    number = ops.parameter([], np.int32)
    query, key, value = (ops.parameter(ov.PartialShape([-1, heads, 1, size]), np.float32) for _ in range(3))
    gate, beta = (ops.parameter(ov.PartialShape([-1, heads, 1]), np.float32) for _ in range(2))
    state = ops.parameter(ov.PartialShape([-1, heads, size, size]), np.float32)
    found = ops.parameter(ov.PartialShape([-1, heads, -1, size]), np.float32)
    column, last, second = np.int32(2), np.int32(-1), np.int32(-2)
    left = ops.multiply(state, ops.unsqueeze(ops.exp(gate), last))
    keys = ops.unsqueeze(ops.squeeze(key, column), last)
    known = ops.reduce_sum(ops.multiply(left, keys), second, False)
    change = ops.multiply(ops.subtract(ops.squeeze(value, column), known), beta)
    new = ops.add(left, ops.multiply(keys, ops.unsqueeze(change, second)))
    queries = ops.unsqueeze(ops.squeeze(query, column), last)
    result = ops.reduce_sum(ops.multiply(new, queries), second, True)
    written = ops.scatter_update(found, ops.unsqueeze(number, np.int32(0)), result, column)
    inputs = [query, key, value, gate, beta, state, found]
    outputs = [ops.result(each) for each in (ops.constant(np.array([True])), new, written)]
    return ov.Model(outputs, [number, *inputs], "step"), inputs, outputs


def _with_state_space(heads: int, size: int, groups: int, state: int) -> Any:
    """Makes a tiny network with state spaces of this size, which compute one token after the other in a loop.

    Args:
        heads: The number of heads.
        size: The size of a head.
        groups: The number of groups of heads that share B and C.
        state: The size of the state for each element of a head.
    """
    widths = [heads, groups * state, groups * state, heads * size]
    tokens, rows, attended = _tokens(sum(widths))
    order = network_input("beam_idx", [-1], np.int32)
    past = ops.gather(_state(tokens, [heads, size, state]), order, np.int64(0))
    step, *shared, values = ops.variadic_split(rows, np.int64(-1), np.array(widths)).outputs()
    step, values = ops.softplus(step), ops.reshape(values, np.array([0, 0, heads, size]), True)
    given, taken = (_for_heads(part, heads, groups, state) for part in shared)
    last, second = np.int32(-1), np.int32(-2)
    left = ops.reshape(ops.exp(ops.multiply(np.zeros(heads, np.float32), step)), np.array([0, 0, 0, 1, 1]), True)
    weighted = ops.unsqueeze(ops.multiply(ops.unsqueeze(step, last), given), second)
    added = ops.multiply(weighted, ops.unsqueeze(values, last))
    shapes = [[-1, 1, heads, 1, 1], [-1, 1, heads, size, state], [-1, 1, heads, 1, state]]
    body, inputs, results = _step_of_state_space(shapes, [-1, heads, size, state], [-1, -1, heads, size])
    none = ops.broadcast(np.float32(0), ops.shape_of(values))
    found = _looped(tokens, body, inputs, results, [left, added, ops.unsqueeze(taken, second), past, none], 1)
    shown = ops.reshape(found, np.array([0, 0, heads * size]), True).output(0)
    return ov.Model([shown, attended], [opset6.assign(past, "past")], [tokens, order], "state space")


def _for_heads(shared: Any, heads: int, groups: int, state: int) -> Any:
    """Repeats B or C, which the heads of a group share, for all heads [texts, tokens, heads, state].

    Args:
        shared: B or C [texts, tokens, groups * state].
        heads: The number of heads.
        groups: The number of groups.
        state: The size of the state for each element of a head.
    """
    each = ops.unsqueeze(ops.reshape(shared, np.array([0, 0, groups, state]), True), np.int32(3))
    repeated = ops.tile(each, np.array([1, 1, 1, heads // groups, 1]))
    return ops.reshape(repeated, np.array([0, 0, heads, state]), True)


def _step_of_state_space(
    shapes: list[list[int]], past: list[int], all_found: list[int]
) -> tuple[Any, list[Any], list[Any]]:
    """Makes the loop body that computes one token.

    Returns it with its inputs after the token's number, and its results.

    Args:
        shapes: The shapes of the state's decay, of what is added to it, and of C.
        past: The shape of the state.
        all_found: The shape of the results of all tokens.
    """
    number = ops.parameter([], np.int32)
    inputs = [ops.parameter(ov.PartialShape(shape), np.float32) for shape in (*shapes, past, all_found)]
    one = np.int32(1)
    left, added, taken = (ops.squeeze(each, one) for each in inputs[:3])
    new = ops.add(ops.multiply(inputs[3], left), added)
    result = ops.unsqueeze(ops.reduce_sum(ops.multiply(new, taken), np.int32(-1), False), one)
    written = ops.scatter_update(inputs[4], ops.unsqueeze(number, np.int32(0)), result, one)
    outputs = [ops.result(each) for each in (ops.constant(np.array([True])), new, written)]
    return ov.Model(outputs, [number, *inputs], "step"), inputs, outputs


def _looped(tokens: Any, body: Any, inputs: list[Any], results: list[Any], values: list[Any], axis: int) -> Any:
    """Returns the results of a loop over the tokens of texts.

    Args:
        tokens: The input of token ids.
        body: The loop body, which computes one token.
        inputs: The inputs of the body after the token's number; the last two are the state and all results so far.
        results: The results of the body: whether the loop goes on, the state, and all results so far.
        values: The values of the inputs: the rows of all tokens, and the first state and results.
        axis: The axis of tokens in the rows.
    """
    count = ops.gather(ops.shape_of(tokens), np.int64(1), np.int64(0))
    loop = opset5.loop(ops.convert(count, "i32"), ops.constant(np.array(True)))
    loop.set_function(body)
    loop.set_special_body_ports([0, 0])
    *each, past, none = (value.output(0) for value in values)
    for part, value in zip(inputs, each, strict=False):
        loop.set_sliced_input(part, value, 0, 1, 1, -1, axis)
    for part, value, result in zip(inputs[-2:], (past, none), results[1:], strict=True):
        loop.set_merged_input(part, value, result.output(0))
    found, _ = (loop.get_iter_value(result.output(0), -1) for result in results[:0:-1])
    return found
