"""Computes the selective state spaces of prompts by matrix products (Mamba-2, as in Granite 4's hybrids and Nemotron).

OpenVINO's operation PagedSelectiveSSM computes token by token. With a head's state S [size of the head, size of the
state], it computes for each token S = exp(a d) S + d x b^T; output = S c, where the decay a belongs to the head, and
the step d to the head and the token. It is still used for decoding sequences. Prompts are cut into chunks
(prompt_chunks). In a chunk, the output of a token is the decayed sum of (c b) d x over the tokens up to itself, plus
what has not decayed of the state before the chunk (arXiv:2405.21060, section 6). A loop passes the state from chunk to
chunk.

Everything is computed in f32, even if the rest of the network is in bf16.
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
from ....engine.paged.network import CHUNK
from . import prompt_chunks
from .exact import exact
from .prompt_chunks import ZERO, sizes

OPERATION = "PagedSelectiveSSM"
DECAYS, STEPS, GIVEN, VALUES, TAKEN, TABLE, BEGINS = range(7)
"""Inputs of the operation, of which BEGINS says where the tokens of each sequence begin."""
ROWS = (STEPS, GIVEN, VALUES, TAKEN)
"""The inputs with a row for each token."""
MEMORY = 45
"""The memory that a layer needs to compute by chunks, as a multiple of its state in f32. Measured with 256 tokens in a
step and the sizes of Granite-4.0-H-350M (36) and 1B (42)."""


def compute_in_chunks(model: Any, precision: Callable[[], Any]) -> None:
    """Adds the computation of prompts in chunks to each state space of a network, if it has any.

    The network, which has paged attention, gets the inputs CHUNK_*, and for each table of states an output with the
    states after the requested chunks. `precision` returns the element type of its tables, in which it computes.
    """
    nodes = [node for node in model.get_ordered_ops() if node.get_type_name() == OPERATION]
    tables = [node.input_value(TABLE) for node in nodes]
    if not nodes or sizes(tables[0])[1:] == [1, 1] or not prompt_chunks.fits(tables, MEMORY):
        return  # Mamba-1: each number of a state is a head, which would need a matrix of all pairs of tokens
    inputs, kind = prompt_chunks.new_inputs(), precision()
    model.add_results([result for node in nodes for result in _replace(node, exact(_part(node, kind)), inputs)])
    model.add_parameters(list(inputs.values()))
    model.validate_nodes_and_infer_types()


def _replace(node: Any, part: Any, inputs: dict[str, Any]) -> list[Any]:
    """Makes a network use the results of chunks instead of an operation's results for the tokens of prompts.

    Args:
        node: The operation.
        part: The network of one chunk, which `_part` makes.
        inputs: The inputs CHUNK_*.

    Returns:
        The results of the network: the states, and the outputs of chunks for the sake of their memory.
    """
    table, readers = node.input_value(TABLE), list(node.output(0).get_target_inputs())
    rows = [node.input_value(port) for port in ROWS]
    for port, row in zip(ROWS, rows, strict=True):  # the operation rejects tokens that belong to none of its sequences
        node.input(port).replace_source_output(ops.gather(row, inputs[network.CHUNK_OTHERS], ZERO).output(0))
    node.input(BEGINS).replace_source_output(inputs[network.CHUNK_BEGINS].output(0))
    tokens = ops.reshape(inputs[network.CHUNK_TOKENS], np.array([-1, CHUNK]), False)
    values = [ops.convert(ops.gather(row, tokens, ZERO), "f32") for row in rows]
    values += [inputs[name] for name in (network.CHUNK_LENGTHS, network.CHUNK_STARTS, network.CHUNK_WRITES)]
    values.append(ops.convert(node.input_value(DECAYS), "f32"))
    values.append(ops.convert(ops.gather(table, inputs[network.CHUNK_SLOTS], ZERO), "f32"))
    count = prompt_chunks.first_size(inputs[network.CHUNK_STARTS])
    outputs, states = prompt_chunks.in_branch(count, part, values, sliced=len(values) - 2, states=1)
    prompt_chunks.join(readers, [node.output(0)], outputs, inputs[network.CHUNK_PLACES])
    return [prompt_chunks.states_result(table, states), prompt_chunks.own_memory(table, outputs)]


def _part(node: Any, kind: Any) -> Any:
    """Makes the loop body, a network that computes one chunk for an operation.

    Args:
        node: The operation.
        kind: The element type in which states are kept.

    Returns:
        An openvino.Model. Its parameters are the operation's ROWS of CHUNK tokens, the number of these that are not
        padding, the sequence that begins with the chunk or -1, whether the state after the chunk is requested, the
        decays, the states of sequences, the state after the chunk before, and the requested states so far. Its results
        are True, the outputs, the state after the chunk, and the requested states.
    """
    rows = [ops.parameter([1, CHUNK, *sizes(node.input_value(port))], np.float32) for port in ROWS]
    length, start, write = (ops.parameter([1], np.int32) for _ in range(3))
    shape = [-1, *sizes(node.input_value(TABLE))]
    decays = ops.parameter([shape[1]], np.float32)
    sequences, state = (ops.parameter(shape, np.float32) for _ in range(2))
    kept = ops.parameter(shape, kind)
    real = ops.convert(ops.less(np.arange(CHUNK, dtype=np.int32)[:, None], length), "f32")
    begun = ops.gather(sequences, ops.maximum(start, np.int32(0)), ZERO)
    before = ops.select(ops.greater_equal(start, np.int32(0)), begun, ops.gather(state, np.array([0]), ZERO))
    outputs, after = scan(rows, decays, before, real)
    chosen = ops.reshape(ops.non_zero(write), np.array([-1]), False)
    written = ops.concat([kept, ops.convert(ops.gather(after, chosen, ZERO), kind.to_string())], 0)
    parameters = [*rows, length, start, write, decays, sequences, state, kept]
    return ov.Model([ops.constant(np.array([True])), outputs, after, written], parameters)


def scan(rows: list[Any], decays: Any, before: Any, real: Any) -> tuple[Any, Any]:
    """Returns the outputs of a chunk [1, CHUNK, heads, size], and the state after it.

    Args:
        rows: The steps d [1, CHUNK, heads], b [1, CHUNK, groups, size of the state], x [1, CHUNK, heads, size], and c,
            which has the shape of b.
        decays: The decays a [heads].
        before: The state before the chunk [1, heads, size, size of the state].
        real: The mask of the tokens that are not padding [CHUNK, 1].
    """
    step, given, value, taken = rows
    _, _, groups, width = given.get_output_shape(0)
    _, _, heads, size = value.get_output_shape(0)
    each, ones = heads // groups, np.ones((CHUNK, CHUNK), np.float32)

    # Some operations lose the mark of `exact` when openvino replaces them: Unsqueeze, a Transpose that moves an axis of
    # size one, a Reshape behind another one, and a product with a constant on the right.
    def shaped(values: Any, *shape: int) -> Any:
        return ops.reshape(values, np.array([1, *shape]), False)

    def turned(values: Any, *shape: int) -> Any:
        """Exchanges the second and the third axis of values, and reshapes them if a shape is given."""
        _, first, second, *others = values.get_output_shape(0)
        if 1 in (first, second):
            return shaped(values, *(shape or (second, first, *others)))
        found = ops.transpose(values, np.array([0, 2, 1, *range(3, 3 + len(others))]))
        return shaped(found, *shape) if shape else found

    step = ops.multiply(step, real)
    logarithms = turned(ops.multiply(step, decays), heads, CHUNK, 1)
    sums, negative, rest = (  # sums from the chunk's beginning to each token, and from after it to the end
        ops.matmul(matrix, logarithms, False, False) for matrix in (np.tril(ones), -np.tril(ones), np.triu(ones, 1))
    )
    between = ops.minimum(ops.add(sums, shaped(negative, heads, 1, CHUNK)), np.float32(0))
    left = ops.multiply(ops.exp(between), np.tril(ones))
    given, taken = turned(given), turned(taken)
    products = ops.matmul(taken, given, False, True)
    if groups > 1:
        products = ops.gather(products, np.arange(heads) // each, np.int64(1))
    weights = ops.multiply(products, left)
    added = ops.multiply(value, shaped(step, CHUNK, heads, 1))
    among = turned(ops.matmul(weights, turned(added), False, False))
    known = ops.matmul(taken, shaped(before, groups, each * size, width), False, True)
    known = turned(known, CHUNK, heads, size)
    outputs = ops.add(among, ops.multiply(known, turned(ops.exp(sums))))
    kept = ops.multiply(added, turned(ops.exp(rest)))
    kept = shaped(kept, 1, CHUNK, -1) if groups == 1 else turned(shaped(kept, CHUNK, groups, -1))
    new = shaped(ops.matmul(kept, given, True, False), heads, size, width)
    end = ops.exp(ops.gather(sums, np.array([CHUNK - 1]), np.int64(2)))
    return outputs, ops.add(ops.multiply(before, end), new)
