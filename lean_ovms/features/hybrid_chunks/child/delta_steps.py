"""Computes decoding tokens of gated delta rules by matrix products (Qwen3.5, Qwen3-Next).

OpenVINO's operation PagedGatedDeltaNet prepares query and key again for each column of a state. Here both are
multiplied by the state at once, and the new state is one sum. It is an output of the network, since no operation of
OpenVINO writes into a table, and PagedModel copies it; there is memory for MOST_STEPS sequences.

Everything is computed in f32, even if the rest of the network is in bf16, as the decay is too near to 1 to be rounded.
"""

from __future__ import annotations

from ....engine.loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from .exact import exact
from .prompt_chunks import ZERO, first_size

QUERY, KEY, VALUE, TABLE, GATE, BETA, BEGINS, SLOTS, *BY_SEQUENCE = range(11)
"""Inputs of the operation: BEGINS says where the tokens of each sequence begin, BY_SEQUENCE where its slots begin in
SLOTS, and which states are written into these."""
LEAST_GATE = -60.0
"""The logarithm of the smallest decay. It leaves nothing of a state that shows, and its inverse is still finite."""


class Sizes(NamedTuple):
    """The sizes of a delta rule."""

    key_heads: int
    """The number of heads of queries and keys."""
    heads: int
    """The number of heads of values and states; equally many of them share a key head."""
    key_size: int
    """The size of a key."""
    size: int
    """The size of a value."""
    query_eps: float | None
    """The epsilon of normalizing queries; None if they are not normalized."""
    key_eps: float | None
    """The epsilon of normalizing keys; None if they are not normalized."""


class Places(NamedTuple):
    """The places in a step of the tokens that come before those of prompts, the same for all layers.

    A layer gathers by them: where it cuts by a number, openvino waits for the number before it knows the shapes behind
    it, and keeps the values on both sides apart.
    """

    steps: Any
    """The places of the tokens that are computed as products."""
    others: Any
    """The places of those that the operation computes."""


def places(slots: Any, tokens: Any) -> Places:
    """Returns the places of tokens, given the inputs STEP_SLOTS and CHUNK_OTHERS."""
    first, count, end, one = np.int32(0), first_size(slots), first_size(tokens), np.int32(1)
    return Places(ops.range(first, count, one, "i32"), ops.range(count, end, one, "i32"))


def computed(node: Any, sizes: Sizes, slots: Any, tokens: Places, kind: Any) -> tuple[list[Any], Any]:
    """Computes the tokens of sequences with slots by products, and leaves other tokens to the operation.

    Returns the results of both kinds of tokens, and the new states of the sequences with slots.

    Args:
        node: The operation.
        sizes: The sizes of its delta rule.
        slots: The input STEP_SLOTS.
        tokens: The places of both kinds of tokens.
        kind: The element type in which states are kept.
    """
    count = ops.reshape(first_size(slots), np.array([1]), False)
    part = exact(_part(sizes))
    values = [ops.gather(node.input_value(port), tokens.steps, ZERO) for port in (QUERY, KEY, VALUE, GATE, BETA)]
    values.append(ops.gather(node.input_value(TABLE), slots, ZERO))
    for parameter, value in zip(part.get_parameters(), values, strict=True):
        given = ops.convert(value, "f32").output(0)
        for reader in parameter.output(0).get_target_inputs():
            reader.replace_source_output(given)
    seen, share, states = (result.input_value(0) for result in part.get_results())
    # This sum is joined with the outputs of chunks and must not be marked as f32: openvino 2026.4 would mix up rows in
    # bf16.
    outputs = ops.add(seen, ops.multiply(share, values[2]))
    end = np.array([np.iinfo(np.int32).max], np.int32)
    for port in (BEGINS, *BY_SEQUENCE):  # the operation also reads the state of a sequence without tokens
        node.input(port).replace_source_output(_rows(node.input_value(port), count, end).output(0))
    others = ops.gather(node.output(0), tokens.others, ZERO)
    return [outputs.output(0), others.output(0)], ops.convert(states, kind.to_string()).output(0)


def normalized(values: Any, eps: float | None) -> Any:
    """Normalizes vectors along the last axis to length 1.

    `eps` is added to the sum of squares, so that it is not 0; with None the vectors are returned unchanged.
    """
    if eps is None:
        return values
    squares = ops.reduce_sum(ops.multiply(values, values), np.array([-1]), True)
    return ops.multiply(values, ops.power(ops.add(squares, np.float32(eps)), np.float32(-0.5)))


def _rows(values: Any, start: Any, end: Any) -> Any:
    """Slices rows of values from `start` to `end`."""
    return ops.slice(values, start, end, np.array([1], np.int32), np.array([0], np.int32))


def _part(sizes: Sizes) -> Any:
    """Makes the network that computes one token of each sequence.

    Returns:
        An openvino.Model. Its parameters are the queries and keys [sequences, key heads, key size], values
        [sequences, heads, size], gates and betas [sequences, heads], and states [sequences, heads, size, key size].
        Its results are the part of the outputs from the old states, the factor of the value in the outputs
        [sequences, heads, 1], and the new states.
    """
    key_heads, heads, key_size, size, query_eps, key_eps = sizes
    shapes = [[key_heads, key_size]] * 2 + [[heads, size], [heads], [heads], [heads, size, key_size]]
    parameters = [ops.parameter([-1, *shape], np.float32) for shape in shapes]
    query, key, value, gate, beta, state = parameters

    def shaped(values: Any, *shape: int) -> Any:
        return ops.reshape(values, np.array([-1, heads, *shape]), False)

    def repeated(values: Any) -> Any:
        """Returns values of key heads for each head."""
        owners = np.arange(heads) // (heads // key_heads)
        return values if heads == key_heads else ops.gather(values, owners, np.int64(1))

    q = repeated(ops.multiply(np.float32(key_size**-0.5), normalized(query, query_eps)))
    k = repeated(normalized(key, key_eps))
    gate = ops.maximum(gate, np.float32(LEAST_GATE))
    # A product with -1 keeps the mark of `exact`; Negative and Subtract do not.
    growth = ops.exp(ops.multiply(gate, np.float32(-1)))
    decay, growth, beta = (shaped(each, 1) for each in (ops.exp(gate), growth, beta))
    both = ops.concat([shaped(ops.multiply(k, np.float32(-1)), 1, key_size), shaped(q, 1, key_size)], 2)
    read = ops.split(ops.matmul(both, state, False, True), np.int64(2), 2).outputs()
    unknown, seen = (ops.multiply(shaped(each, size), decay) for each in read)
    change = ops.multiply(ops.add(value, unknown), beta)
    share = ops.multiply(ops.reduce_sum(ops.multiply(k, q), np.array([-1]), True), beta)
    seen = ops.add(seen, ops.multiply(unknown, share))
    added = ops.multiply(shaped(ops.multiply(change, growth), size, 1), shaped(k, 1, key_size))
    after = ops.multiply(ops.add(added, state), shaped(decay, 1, 1))  # one fused operation in openvino
    return ov.Model([seen, share, after], parameters)
