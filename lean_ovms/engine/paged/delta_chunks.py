"""The gated delta rule of prompts as products of matrices (Qwen3.5, Qwen3-Next).

openvino's operation PagedGatedDeltaNet computes token by token: with a head's state S [value, key], for each token
S = exp(gate) S; S = S + beta (v - S k) k^T; output = S q. It still does so for decoding sequences and draft tokens. The
parts of prompts are cut into chunks of CHUNK tokens, each computed at once: what its tokens add to the state depends on
those before them by a triangular matrix A, as (I - A)^-1 says. A loop takes the state from chunk to chunk.

256 tokens of a layer with 16 heads of 128 take 10 ms of CPU time in place of 180. All of it is computed in f32, also
where the rest of the network is in bf16: the decays and the inverse would err by several percent. What goes into the
loop and comes out is f32, too: openvino 2026.4 mixes up the rows of more than two chunks in bf16.
"""

from __future__ import annotations

from ..loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from ...util.resources import free_memory_bytes
from ..loading.exact import exact
from ..loading.network_inputs import network_input
from .network import (
    CHUNK,
    DELTA_BEGINS,
    DELTA_LENGTHS,
    DELTA_OTHERS,
    DELTA_PLACES,
    DELTA_SLOTS,
    DELTA_STARTS,
    DELTA_TOKENS,
    DELTA_WRITES,
    NEW_STATES,
    STATES,
)

log = logging.getLogger(__name__)

OPERATION = "PagedGatedDeltaNet"
CONVOLUTION, ACTIVATION = "PagedCausalConv1D", "Swish"
MEMORY = 54
"""Memory that a layer takes to compute by chunks: so many times that of its state in f32. openvino keeps the values of
each layer's loop for itself. Measured with 512 tokens in a step; with 256 it is 50."""
MEMORY_SHARE = 0.25
"""The part of the free memory that all layers may take."""
QUERY, KEY, VALUE, TABLE, GATE, BETA, BEGINS = range(7)
"""Inputs of the operation, of which BEGINS says where the tokens of each sequence begin."""


def compute_in_chunks(model: Any, precision: Callable[[], Any]) -> None:
    """Adds the computation of prompts by chunks to each gated delta rule of a network that has any.

    The network gets the inputs DELTA_*, and for each table of states an output with the states behind the ends of
    chunks that are wanted.

    Args:
        model: The openvino.Model, with paged attention.
        precision: Returns the element type of its tables of states, in which the network computes.
    """
    ordered = model.get_ordered_ops()
    for node in ordered:
        if node.get_type_name() == CONVOLUTION:
            _activate_rows(node)
    nodes = [node for node in ordered if node.get_type_name() == OPERATION]
    if not nodes or not _fits(nodes):
        model.validate_nodes_and_infer_types()
        return
    names = [DELTA_TOKENS, DELTA_LENGTHS, DELTA_STARTS, DELTA_SLOTS, DELTA_PLACES, DELTA_WRITES, DELTA_OTHERS]
    names.append(DELTA_BEGINS)
    kind = precision().to_string()
    inputs = {name: network_input(name, [-1], np.int32) for name in names}
    count = _count(inputs[DELTA_STARTS])
    parts: dict[tuple[Any, ...], Any] = {}
    results = []
    for node in nodes:
        sizes = _sizes(node)
        if sizes not in parts:
            parts[sizes] = exact(_part(*sizes))
        results.append(_replace(node, parts[sizes].clone(), inputs, count, kind))
    model.add_parameters(list(inputs.values()))
    model.add_results(results)
    model.validate_nodes_and_infer_types()


def _fits(nodes: list[Any]) -> bool:
    """Returns whether there is memory enough to compute prompts by chunks."""
    states = [list(node.input_value(TABLE).get_partial_shape())[1:] for node in nodes]
    needed = sum(MEMORY * 4 * math.prod(size.get_length() for size in state) for state in states)
    if needed <= free_memory_bytes() * MEMORY_SHARE:
        return True
    log.warning("prompts are computed slowly, token by token: to do it by chunks takes %d MB", needed / 1e6)
    return False


def _activate_rows(convolution: Any) -> None:
    """Applies the activation behind a short convolution to rows, [tokens, channels].

    Exports have it behind an Unsqueeze to [tokens, channels, 1], where openvino takes ten times as long.
    """
    found = [convolution]
    for kind in ("Unsqueeze", ACTIVATION):
        readers = [reader.get_node() for reader in found[-1].output(0).get_target_inputs()]
        if [reader.get_type_name() for reader in readers] != [kind]:
            return
        found += readers
    _, unsqueezed, activated = found
    readers = list(activated.output(0).get_target_inputs())
    activated.input(0).replace_source_output(convolution.output(0))
    unsqueezed.input(0).replace_source_output(activated.output(0))
    for reader in readers:
        reader.replace_source_output(unsqueezed.output(0))


def _sizes(node: Any) -> tuple[Any, ...]:
    """Returns the arguments of `_part` for an operation."""
    attributes = node.get_attributes()
    key, value = (node.input_value(port).get_partial_shape() for port in (KEY, VALUE))
    heads = key[1].get_length(), value[1].get_length(), key[2].get_length(), value[2].get_length()
    normal = bool(attributes["use_qk_l2norm"])
    return (*heads, *((attributes["q_l2_norm_eps"], attributes["k_l2_norm_eps"]) if normal else (None, None)))


def _replace(node: Any, part: Any, inputs: dict[str, Any], count: Any, kind: str) -> Any:
    """Lets a network read what is computed by chunks in the place of an operation's values for the tokens of prompts.

    Args:
        node: The operation.
        part: The network of one chunk, as of `_part`.
        inputs: The inputs DELTA_*.
        count: The number of chunks.
        kind: The element type in which states are kept.

    Returns:
        The result with the states.
    """
    readers = list(node.output(0).get_target_inputs())
    table = node.input_value(TABLE)
    node.input(BEGINS).replace_source_output(inputs[DELTA_BEGINS].output(0))
    tokens = ops.reshape(inputs[DELTA_TOKENS], _int64([-1, CHUNK]), False)
    values = [ops.gather(node.input_value(port), tokens, _int64(0)) for port in (QUERY, KEY, VALUE, GATE, BETA)]
    values = [ops.convert(value, "f32") for value in values]
    values += [inputs[name] for name in (DELTA_LENGTHS, DELTA_STARTS, DELTA_WRITES)]
    values.append(ops.convert(ops.gather(table, inputs[DELTA_SLOTS], _int64(0)), "f32"))
    outputs, states = _if_any(count, part, values)
    shape = [-1, *list(node.output(0).get_partial_shape().get_max_shape())[1:]]
    outputs = ops.gather(ops.reshape(outputs, _int64(shape), False), inputs[DELTA_PLACES], _int64(0))
    others = ops.gather(node, inputs[DELTA_OTHERS], _int64(0))
    joined = ops.concat([others, ops.convert(outputs, node.get_output_element_type(0).to_string())], 0)
    for reader in readers:
        reader.replace_source_output(joined.output(0))
    [name] = [name for name in table.get_names() if STATES in name]
    new_states = ops.convert(states, kind)
    new_states.output(0).get_tensor().set_names({name.replace(STATES, NEW_STATES)})
    return ops.result(new_states)


def _if_any(count: Any, part: Any, values: list[Any]) -> tuple[Any, Any]:
    """Returns the outputs of all chunks, and the states behind those where they are wanted.

    The loop is in a branch: without any chunk it would still take 8 % of the time of a decode step with 8 sequences.

    Args:
        count: The number of chunks.
        part: The network of one chunk, as of `_part`.
        values: For each of its parameters but the last two, the values of all chunks.
    """
    *given, sequences, last, kept = part.get_parameters()
    inner = [
        ops.parameter(value.output(0).get_partial_shape(), each.get_element_type())
        for value, each in zip(values, (*given, sequences), strict=True)
    ]
    loop = ops.loop(_count(inner[0]), ops.constant(True))
    loop.set_function(part)
    loop.set_special_body_ports([-1, 0])
    for parameter, value in zip(given, inner[:-1], strict=True):
        loop.set_sliced_input(parameter, value.output(0), 0, 1, 1, -1, 0)
    loop.set_invariant_input(sequences, inner[-1].output(0))
    _, outputs, after, states = (result.input_value(0) for result in part.get_results())
    loop.set_merged_input(last, inner[-1].output(0), after)
    loop.set_merged_input(kept, _nothing(kept), states)
    some = ov.Model([loop.get_concatenated_slices(outputs, 0, 1, 1, -1, 0), loop.get_iter_value(states, -1)], inner)
    none = ov.Model([_nothing(value) for value in (outputs, states)], [])
    branches = ops.if_op(ops.greater(count, _int32(0)).output(0))
    branches.set_then_body(some)
    branches.set_else_body(none)
    for parameter, value in zip(inner, values, strict=True):
        branches.set_input(value.output(0), parameter, None)
    found = [branches.set_output(*pair) for pair in zip(some.results, none.results, strict=True)]
    return found[0], found[1]


def _count(values: Any) -> Any:
    """Returns the size of the first axis."""
    return ops.gather(ops.shape_of(values, "i32"), _int64(0), _int64(0))


def _nothing(value: Any) -> Any:
    """Returns values of no chunk, like those of one."""
    sizes = [size.get_length() for size in list(value.get_partial_shape())[1:]]
    return ops.constant(np.zeros([0, *sizes], np.float32)).output(0)


def _part(key_heads: int, heads: int, key_size: int, size: int, query_eps: float | None, key_eps: float | None) -> Any:
    """Returns the network that computes one chunk.

    Args:
        key_heads: The heads of queries and keys.
        heads: The heads of values and states; each key head is for as many of them.
        key_size: The numbers of a key.
        size: The numbers of a value.
        query_eps: What is added to the squares of queries when they are normalized; None: they are not.
        key_eps: The same of keys.

    Returns:
        An openvino.Model. Its parameters are the queries, keys, values, gates and betas of CHUNK tokens, how many of
        these are tokens and no padding, the sequence that begins with the chunk or -1, whether its state is wanted, the
        states of sequences, the state behind the chunk before, and the states that were wanted until now. Its results
        are True, the outputs, the state behind the chunk, and the states that were wanted.
    """
    query, key = (ops.parameter([1, CHUNK, key_heads, key_size], np.float32) for _ in range(2))
    value = ops.parameter([1, CHUNK, heads, size], np.float32)
    gate, beta = (ops.parameter([1, CHUNK, heads], np.float32) for _ in range(2))
    length, start, write = (ops.parameter([1], np.int32) for _ in range(3))
    sequences, state, kept_states = (ops.parameter([-1, heads, size, key_size], np.float32) for _ in range(3))
    parameters = [query, key, value, gate, beta, length, start, write, sequences, state, kept_states]
    real = ops.convert(ops.less(_int32(np.arange(CHUNK)[:, None]), length), "f32")
    owners = np.arange(heads) // (heads // key_heads)

    def turned(values: Any) -> Any:
        """Returns values as [1, heads, CHUNK, numbers]."""
        return ops.transpose(values, _int64([0, 2, 1, 3]))

    def scalars(values: Any, axis: int) -> Any:
        """Returns a number of each head and token, [1, heads, CHUNK] and one more axis, with zero for padding."""
        return ops.unsqueeze(ops.transpose(ops.multiply(values, real), _int64([0, 2, 1])), _int64(axis))

    def repeated(values: Any) -> Any:
        """Returns values of key heads for each head."""
        return values if heads == key_heads else ops.gather(values, _int64(owners), _int64(1))

    q = ops.multiply(_normalized(turned(query), query_eps), _float32(key_size**-0.5))
    k = _normalized(turned(key), key_eps)
    v, b, g, ones = turned(value), scalars(beta, 3), scalars(gate, 3), np.ones((CHUNK, CHUNK))
    decayed = ops.matmul(_float32(np.tril(ones)), g, False, False)  # logarithms, from the beginning of the chunk on
    before_each = ops.matmul(scalars(gate, 2), _float32(-np.triu(ones)), False, False)
    between = ops.exp(ops.minimum(ops.add(decayed, before_each), _float32(0)))
    products = repeated(ops.matmul(k, k, False, True))
    seen = ops.multiply(repeated(ops.matmul(q, k, False, True)), ops.multiply(between, _float32(np.tril(ones))))
    q, k = repeated(q), repeated(k)
    inverse = _inverse(ops.multiply(ops.multiply(products, b), ops.multiply(between, _float32(-np.tril(ones, -1)))))
    decay = ops.exp(decayed)
    added = ops.matmul(inverse, ops.multiply(v, b), False, False)
    read = ops.matmul(inverse, ops.multiply(ops.multiply(k, ops.multiply(b, _float32(-1))), decay), False, False)
    kept = ops.multiply(k, ops.exp(ops.matmul(_float32(np.triu(ones, 1)), g, False, False)))
    end = ops.exp(ops.gather(decayed, _int64([CHUNK - 1]), _int64(2)))
    begun = ops.gather(sequences, ops.maximum(start, _int32(0)), _int64(0))
    before = ops.select(ops.greater_equal(start, _int32(0)), begun, ops.gather(state, _int64([0]), _int64(0)))
    from_state = ops.split(ops.matmul(ops.concat([read, ops.multiply(q, decay)], 2), before, False, True), _int64(2), 2)
    additions = ops.add(added, from_state.output(0))
    outputs = ops.add(from_state.output(1), ops.matmul(seen, additions, False, False))
    after = ops.add(ops.multiply(before, end), ops.matmul(additions, kept, True, False))
    chosen = ops.reshape(ops.non_zero(write), _int64([-1]), False)
    written = ops.concat([kept_states, ops.gather(after, chosen, _int64(0))], 0)
    results = [ops.constant(np.array([True])), turned(outputs), after, written]
    return ov.Model(results, parameters)


def _inverse(lower: Any) -> Any:
    """Returns (I - A)^-1 of matrices A [CHUNK, CHUNK] with numbers below the diagonal alone.

    It is known for blocks of one on the diagonal. From two neighbours on it, D and E, and the block B of A beside them
    follows the inverse of both together: its parts are D^-1, E^-1 and E^-1 B D^-1. As a sum of powers of A it would be
    lost among numbers of 10^18 where keys are alike.
    """
    at = np.arange(CHUNK)
    inverse = _float32(np.eye(CHUNK))
    for size in (1 << level for level in range(CHUNK.bit_length() - 1)):
        block = at // size
        below = (block[:, None] == block + 1) & (block[:, None] % 2 == 1)
        part = ops.multiply(lower, _float32(below))
        if size > 1:
            part = ops.matmul(ops.matmul(inverse, part, False, False), inverse, False, False)
        inverse = ops.add(inverse, part)
    return inverse


def _normalized(values: Any, eps: float | None) -> Any:
    """Returns values whose last axis has length 1."""
    if eps is None:
        return values
    squares = ops.reduce_sum(ops.multiply(values, values), _int64([3]), True)
    return ops.multiply(values, ops.power(ops.add(squares, _float32(eps)), _float32(-0.5)))


def _int32(values: Any) -> Any:
    return ops.constant(np.array(values, np.int32))


def _int64(values: Any) -> Any:
    return ops.constant(np.array(values, np.int64))


def _float32(values: Any) -> Any:
    return ops.constant(np.array(values, np.float32))
