"""Computes the gated delta rule of prompts, with the short convolution before it, by matrix products (Qwen3.5).

OpenVINO's operation PagedGatedDeltaNet computes token by token. With a head's state S [value, key], it computes for
each token S = exp(gate) S; S = S + beta (v - S k) k^T; output = S q. It is still used for decoding sequences and draft
tokens. Prompts are cut into chunks of CHUNK tokens, each of which is computed at once: the tokens of a chunk depend on
those before them by a triangular matrix A, and (I - A)^-1 gives what they add to the state. A loop passes the state
from chunk to chunk.

Everything is computed in f32, even if the rest of the network is in bf16, in which the decays and the inverse would
have errors of several percent. The outputs leave the loop in f32 as well. Tokens and states enter in their stored type,
since OpenVINO copies them; so a step has parts of at most MOST_PROMPTS prompts (StateCheckpoints).
"""

from __future__ import annotations

from ....engine.loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from ....engine.paged import network
from ....engine.paged.network import CHUNK, MOST_STEPS, STEP_STATES, network_input
from . import delta_steps, prompt_chunks
from .delta_steps import BEGINS, BETA, GATE, KEY, QUERY, TABLE, VALUE, Sizes, normalized
from .exact import exact
from .short_convolution import (
    CONVOLUTION,
    ROW_BEGINS,
    ROW_TABLE,
    ROWS,
    ShortConvolution,
    activate_rows,
    convolution_before,
)

OPERATION = "PagedGatedDeltaNet"
MEMORY = 32 + MOST_STEPS
"""The memory that a layer needs to compute by chunks, as a multiple of its state in f32. openvino keeps separate values
for each layer's loop. Measured with two prompts and 512 tokens in a step it is 32. The states after decoding tokens
are added."""


def compute_in_chunks(model: Any, precision: Callable[[], Any]) -> None:
    """Adds the computation of prompts in chunks to each gated delta rule of a network, if it has any.

    The network, which has paged attention, gets the inputs CHUNK_*, and for each table of states an output with the
    states after the requested chunks. `precision` returns the element type of its tables, in which it computes.
    """
    ordered = model.get_ordered_ops()
    for node in ordered:
        if node.get_type_name() == CONVOLUTION:
            activate_rows(node)
    nodes = [node for node in ordered if node.get_type_name() == OPERATION]
    pairs = [(convolution_before(node, _values(node)), node) for node in nodes]
    tables = [node.input_value(TABLE) for node in nodes]
    if not pairs or not all(convolution for convolution, _ in pairs) or not prompt_chunks.fits(tables, MEMORY):
        model.validate_nodes_and_infer_types()
        return
    inputs = prompt_chunks.new_inputs() | {network.STEP_SLOTS: network_input(network.STEP_SLOTS, [-1], np.int32)}
    places = delta_steps.places(inputs[network.STEP_SLOTS], inputs[network.CHUNK_OTHERS])
    kind, results = precision(), []
    for convolution, node in pairs:
        results += _replace(convolution, node, inputs, places, kind)
    model.add_parameters(list(inputs.values()))
    model.add_results(results)
    model.validate_nodes_and_infer_types()


def _values(node: Any) -> list[Any]:
    """Returns the queries, keys and values of an operation."""
    return [node.input_value(port) for port in (QUERY, KEY, VALUE)]


def _sizes(node: Any) -> Sizes:
    attributes = node.get_attributes()
    key, value = (node.input_value(port).get_partial_shape() for port in (KEY, VALUE))
    heads = key[1].get_length(), value[1].get_length(), key[2].get_length(), value[2].get_length()
    normal = bool(attributes["use_qk_l2norm"])
    return Sizes(*heads, *((attributes["q_l2_norm_eps"], attributes["k_l2_norm_eps"]) if normal else (None, None)))


def _replace(convolution: Any, node: Any, inputs: dict[str, Any], places: delta_steps.Places, kind: Any) -> list[Any]:
    """Makes a network use the results of chunks instead of an operation's results for the tokens of prompts.

    Args:
        convolution: The convolution before the operation.
        node: The operation.
        inputs: The inputs CHUNK_*, and STEP_SLOTS.
        places: The places of the tokens before those of prompts.
        kind: The element type in which states are kept.

    Returns:
        The results with the states of convolution and operation.
    """
    readers, step_slots = list(node.output(0).get_target_inputs()), inputs[network.STEP_SLOTS]
    part = exact(_part(_sizes(node), ShortConvolution(convolution, _values(node)), kind))
    tables = convolution.input_value(ROW_TABLE), node.input_value(TABLE)
    given = [convolution.input_value(ROWS), node.input_value(GATE), node.input_value(BETA)]
    tokens = ops.reshape(inputs[network.CHUNK_TOKENS], _int64([-1, CHUNK]), False)
    values = [ops.convert(ops.gather(each, tokens, _int64(0)), kind.to_string()) for each in given[:1]]
    values += [ops.convert(ops.gather(each, tokens, _int64(0)), "f32") for each in given[1:]]
    values += [inputs[name] for name in (network.CHUNK_LENGTHS, network.CHUNK_STARTS, network.CHUNK_WRITES)]
    values += [
        ops.convert(ops.gather(each, inputs[network.CHUNK_SLOTS], _int64(0)), kind.to_string()) for each in tables
    ]
    count = prompt_chunks.first_size(inputs[network.CHUNK_STARTS])
    outputs, *states = prompt_chunks.in_branch(count, part, values, sliced=len(values) - 2, states=2)
    others = [ops.gather(each, inputs[network.CHUNK_OTHERS], _int64(0)) for each in given]
    for user, port, value in zip((convolution, node, node), (ROWS, GATE, BETA), others, strict=True):
        user.input(port).replace_source_output(value.output(0))
    convolution.input(ROW_BEGINS).replace_source_output(inputs[network.CHUNK_BEGINS].output(0))
    node.input(BEGINS).replace_source_output(inputs[network.CHUNK_BEGINS].output(0))
    found, stepped = delta_steps.computed(node, _sizes(node), step_slots, places, kind)
    prompt_chunks.join(readers, found, outputs, inputs[network.CHUNK_PLACES])
    results = [prompt_chunks.states_result(*pair) for pair in zip(tables, states, strict=True)]
    results.append(prompt_chunks.own_memory(tables[-1], outputs))
    return [*results, prompt_chunks.states_result(tables[-1], stepped, STEP_STATES)]


def _part(sizes: Sizes, convolution: ShortConvolution, kind: Any) -> Any:
    """Makes the loop body, a network that computes one chunk.

    Args:
        sizes: The sizes of the delta rule.
        convolution: The convolution before it.
        kind: The element type of tokens and states outside of the loop.

    Returns:
        An openvino.Model. Its parameters are the inputs of the convolution, the gates and the betas of CHUNK tokens,
        the number of these that are not padding, the sequence that begins with the chunk or -1, and whether the states
        after the chunk are requested; then, each for the convolution and the delta rule, the states of sequences, the
        states after the chunk before, and the requested states so far. Its results are True, the outputs, the states
        after the chunk, and the requested states.
    """
    rows = ops.parameter([1, CHUNK, convolution.channels], kind)
    gate, beta = (ops.parameter([1, CHUNK, sizes.heads], np.float32) for _ in range(2))
    length, start, write = (ops.parameter([1], np.int32) for _ in range(3))
    shapes = [convolution.channels, convolution.length], [sizes.heads, sizes.size, sizes.key_size]
    tables = [ops.parameter([-1, *shape], kind) for shape in shapes]
    last = [ops.parameter([1, *shape], np.float32) for shape in shapes]
    kept_states = [ops.parameter([-1, *shape], kind) for shape in shapes]
    parameters = [rows, gate, beta, length, start, write, *tables, *last, *kept_states]
    begins = ops.greater_equal(start, _int32(0))
    first = ops.maximum(start, _int32(0))
    begun = [ops.convert(ops.gather(table, first, _int64(0)), "f32") for table in tables]
    row_state, state = (ops.select(begins, new, old) for new, old in zip(begun, last, strict=True))
    values, row_after = convolution.computed(ops.convert(rows, "f32"), row_state, length)
    real = ops.convert(ops.less(_int32(np.arange(CHUNK)[:, None]), length), "f32")
    outputs, state_after = _delta_rule(sizes, values, ops.multiply(gate, real), ops.multiply(beta, real), state)
    after = row_after, state_after
    chosen = ops.reshape(ops.non_zero(write), _int64([-1]), False)
    written = [ops.convert(ops.gather(each, chosen, _int64(0)), kind.to_string()) for each in after]
    written = [ops.concat(pair, 0) for pair in zip(kept_states, written, strict=True)]
    return ov.Model([ops.constant(np.array([True])), outputs, *after, *written], parameters)


def _delta_rule(sizes: Sizes, values: list[Any], gate: Any, beta: Any, state: Any) -> tuple[Any, Any]:
    """Applies the delta rule to the tokens of one chunk.

    Args:
        sizes: The sizes of the delta rule.
        values: The queries, keys and values, each [1, CHUNK, heads, numbers].
        gate: The logarithm of each head's decay at each token [1, CHUNK, heads]; 0 for padding.
        beta: The weight of each token for each head [1, CHUNK, heads]; 0 for padding.
        state: The state before the chunk [1, heads, size, key_size].

    Returns:
        The outputs [1, CHUNK, heads, size], and the state after the chunk.
    """
    owners = np.arange(sizes.heads) // (sizes.heads // sizes.key_heads)

    def turned(values: Any) -> Any:
        """Transposes values to [1, heads, CHUNK, numbers]."""
        return ops.transpose(values, _int64([0, 2, 1, 3]))

    def scalars(values: Any, axis: int) -> Any:
        """Returns a number for each head and token [1, heads, CHUNK] with one more axis."""
        return ops.unsqueeze(ops.transpose(values, _int64([0, 2, 1])), _int64(axis))

    def repeated(values: Any) -> Any:
        """Repeats the values of each key head for the heads that share it."""
        return values if sizes.heads == sizes.key_heads else ops.gather(values, _int64(owners), _int64(1))

    query, key, v = map(turned, values)
    q = ops.multiply(normalized(query, sizes.query_eps), _float32(sizes.key_size**-0.5))
    k = normalized(key, sizes.key_eps)
    b, g, ones = scalars(beta, 3), scalars(gate, 3), np.ones((CHUNK, CHUNK))
    # Cumulative logarithms from the beginning of the chunk.
    decayed = ops.matmul(_float32(np.tril(ones)), g, False, False)
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
    from_state = ops.split(ops.matmul(ops.concat([read, ops.multiply(q, decay)], 2), state, False, True), _int64(2), 2)
    additions = ops.add(added, from_state.output(0))
    outputs = ops.add(from_state.output(1), ops.matmul(seen, additions, False, False))
    return turned(outputs), ops.add(ops.multiply(state, end), ops.matmul(additions, kept, True, False))


def _inverse(lower: Any) -> Any:
    """Returns (I - A)^-1 for strictly lower triangular matrices A [CHUNK, CHUNK].

    It is computed by blocks. For diagonal blocks of size 1 the inverse is known. For two adjacent diagonal blocks D and
    E, and the block B of A below D, the inverse of both together has the parts D^-1, E^-1 and E^-1 B D^-1. A sum of
    powers of A would lose its precision among numbers of 10^18 if keys are similar.
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


def _int32(values: Any) -> Any:
    return ops.constant(np.array(values, np.int32))


def _int64(values: Any) -> Any:
    return ops.constant(np.array(values, np.int64))


def _float32(values: Any) -> Any:
    return ops.constant(np.array(values, np.float32))
