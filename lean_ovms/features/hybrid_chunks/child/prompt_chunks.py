"""The common part of layers with states that compute prompts in chunks of CHUNK tokens.

The parts of prompts in a step are cut into chunks, which the inputs CHUNK_* describe. Each layer has a network that
computes one chunk, and a loop that passes its states from chunk to chunk. OpenVINO's operation of the layer, which
computes token by token, only gets the tokens of decoding sequences.

OpenVINO keeps copies of the inputs and outputs of each layer's loop, for which there must be memory.
"""

from __future__ import annotations

from ....engine.loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from ....engine.paged import network
from ....engine.paged.network import CHUNK_OUTPUTS, NEW_STATES, STATES, network_input
from ....util.resources import free_memory_bytes

log = logging.getLogger(__name__)

INPUTS = (
    network.CHUNK_TOKENS,
    network.CHUNK_LENGTHS,
    network.CHUNK_STARTS,
    network.CHUNK_SLOTS,
    network.CHUNK_PLACES,
    network.CHUNK_WRITES,
    network.CHUNK_OTHERS,
    network.CHUNK_BEGINS,
)
"""The names of the inputs that a network gets."""
MEMORY_SHARE = 0.25
"""The part of the free memory that all layers may take."""
ZERO = np.int64(0)


def new_inputs() -> dict[str, Any]:
    """Returns new parameters for the inputs CHUNK_*, by their names."""
    return {name: network_input(name, [-1], np.int32) for name in INPUTS}


def fits(tables: Sequence[Any], times: int) -> bool:
    """Returns whether memory suffices to compute prompts in chunks, and logs if it does not.

    A layer with a table of states [slots, ...] needs `times` the size of one state in f32.
    """
    needed = sum(times * 4 * math.prod(sizes(table)) for table in tables)
    if needed <= free_memory_bytes() * MEMORY_SHARE:
        return True
    log.warning(
        "prompts are computed slowly, token by token: computing them in chunks would need %d MB of memory", needed / 1e6
    )
    return False


def in_branch(count: Any, part: Any, values: Sequence[Any], *, sliced: int, states: int) -> list[Any]:
    """Returns the outputs of all chunks, and for each kind of state the requested states after chunks.

    The loop is inside a conditional branch, since in a step without chunks it would still take time to copy its last
    results.

    Args:
        count: The number of chunks.
        part: The network of one chunk. Its parameters are the values of a chunk, the values that all chunks share, of
            which the last ones are the states of sequences, the states after the chunk before, and the requested states
            so far. Its results are True, the outputs, the states after the chunk, and the requested states. The first
            chunk begins a sequence, so its states before are ignored.
        values: The values of all chunks, and the values that all chunks share.
        sliced: The number of values that have a part for each chunk.
        states: The number of kinds of states.

    Returns:
        The outputs, which need `own_memory`, and the states, which must be results of the network.
    """
    parameters = part.get_parameters()
    given, last, kept = parameters[: -2 * states], parameters[-2 * states : -states], parameters[-states:]
    inner = [
        ops.parameter(value.output(0).get_partial_shape(), each.get_element_type())
        for value, each in zip(values, given, strict=True)
    ]
    loop = ops.loop(first_size(inner[0]), ops.constant(True))
    loop.set_function(part)
    loop.set_special_body_ports([-1, 0])
    for parameter, value in zip(given[:sliced], inner[:sliced], strict=True):
        loop.set_sliced_input(parameter, value.output(0), 0, 1, 1, -1, 0)
    for parameter, value in zip(given[sliced:], inner[sliced:], strict=True):
        loop.set_invariant_input(parameter, value.output(0))
    _, outputs, *after = (result.input_value(0) for result in part.get_results())
    for parameter, result, table in zip(last, after[:states], inner[-states:], strict=True):
        any_state = ops.convert(ops.gather(table, np.array([0]), ZERO), "f32")
        loop.set_merged_input(parameter, any_state.output(0), result)
    for parameter, result in zip(kept, after[states:], strict=True):
        loop.set_merged_input(parameter, _nothing(parameter), result)
    written = [loop.get_iter_value(result, -1) for result in after[states:]]
    some = ov.Model([loop.get_concatenated_slices(outputs, 0, 1, 1, -1, 0), *written], inner)
    none = ov.Model([_nothing(value) for value in (outputs, *after[states:])], [])
    branches = ops.if_op(ops.greater(count, np.int32(0)).output(0))
    branches.set_then_body(some)
    branches.set_else_body(none)
    for parameter, value in zip(inner, values, strict=True):
        branches.set_input(value.output(0), parameter, None)
    return [branches.set_output(*pair) for pair in zip(some.results, none.results, strict=True)]


def join(readers: Sequence[Any], others: Sequence[Any], outputs: Any, places: Any) -> None:
    """Concatenates the results of other tokens and those of chunks.

    Args:
        readers: The inputs of operations that read the results.
        others: The results of other tokens, in their order, each [tokens, ...].
        outputs: The outputs of all chunks.
        places: The indices of the prompts' tokens in these outputs.
    """
    outputs = ops.reshape(outputs, np.array([-1, *sizes(others[0])]), False)
    outputs = ops.gather(outputs, places, ZERO)
    joined = ops.concat([*others, ops.convert(outputs, others[0].get_element_type().to_string())], 0)
    for reader in readers:
        reader.replace_source_output(joined.output(0))


def own_memory(table: Any, outputs: Any) -> Any:
    """Returns a result of a network that nobody reads, by which the outputs of chunks get memory of their own.

    OpenVINO gives tensors that are not needed at the same time a common memory, and allocates it anew when one of them
    outgrows it. Before the operations behind a branch or a loop are computed, it determines the sizes of all their
    tensors, and forgets that the values of the branch are needed until then (2026.4.1): when a prompt is larger than
    all before it, they are lost, and its tokens are wrong. Results of the network share no memory.

    In its CPU plugin, Graph::RegisterToAllocationContext places the synchronization at the first index of a node with
    an inner graph, but the node's outputs live from its last index on, and so do not seem to cross it.

    Args:
        table: The table of states of the layer, whose name distinguishes the results of layers.
        outputs: The outputs of all chunks.
    """
    return states_result(table, outputs, CHUNK_OUTPUTS)


def states_result(table: Any, states: Any, kind: str = NEW_STATES) -> Any:
    """Returns a result of a network from which the engine copies states into a table.

    Args:
        table: The table.
        states: The requested states.
        kind: The text in the result's name that replaces STATES in the table's name.
    """
    [name] = [name for name in table.get_names() if STATES in name]
    states.get_tensor().set_names({name.replace(STATES, kind)})
    return ops.result(states)


def first_size(values: Any) -> Any:
    """Returns the size of the first axis, as a value of the network."""
    return ops.gather(ops.shape_of(values, "i32"), ZERO, ZERO)


def sizes(value: Any) -> list[int]:
    """Returns the sizes of all axes but the first."""
    return list(value.get_partial_shape().get_max_shape())[1:]


def _nothing(value: Any) -> Any:
    """Returns an empty value with the type and the other sizes of a value, for no chunk or sequence."""
    return ops.constant(np.zeros([0, *sizes(value)], np.float32), value.get_element_type()).output(0)
