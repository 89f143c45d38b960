"""Changes a network's graph: adds pooling or a projection, removes the head, keeps one output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from .pooler import Array

POOLED_TOKENS = "pooled_tokens"
"""The name of the input with the tokens that are pooled, of a model that does not pool all of them."""
MOST_DISTANCE = 4096
"""Distances between two tokens that a table of buckets has; those further away are in the bucket of the last one."""
UNCHANGED = "Identity"
"""The activation function that changes nothing."""
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    UNCHANGED: lambda x: x,
    "Tanh": ops.tanh,
    "ReLU": ops.relu,
    "GELU": lambda x: ops.gelu(x, "erf"),
    "Sigmoid": ops.sigmoid,
    "SiLU": ops.swish,
}
"""The supported activation functions, by the names of torch's classes."""
ELEMENTWISE = {"Add", "Convert", "Divide", "Log", "Multiply", "Subtract"}
"""The operations, by openvino's names, with which the bucket of a distance is computed."""


class DenseLayer(NamedTuple):
    """A linear layer with an activation function."""

    weights: Array
    """The weights, float32 [outputs, inputs]."""
    bias: Array | None
    """The bias, float32 [outputs]; None if it has none."""
    activation: str
    """The activation function, a name in ACTIVATIONS."""


def names(model: ov.Model) -> set[str]:
    return {name for output in model.outputs for name in output.get_names()}


def _as_float(output: ov.Output) -> ov.Node:
    """Converts an output of a model to float32, and returns the node."""
    is_result = output.get_node().get_type_name() == "Result"
    return ops.convert(output.get_node().input_value(0) if is_result else output, "f32")


def only(model: ov.Model, output: ov.Output) -> None:
    """Makes `output` the model's only output, converted to float32."""
    old = list(model.get_results())
    model.add_results([ops.result(_as_float(output))])
    for result in old:
        model.remove_result(result)
    model.validate_nodes_and_infer_types()


def tabulate_buckets(model: ov.Model, core: ov.Core) -> None:
    """Replaces the computation of relative position buckets by a lookup in a table that is computed in f32.

    MPNet, T5 and DeBERTa take the logarithm of the distance between two tokens and round it to an integer. In bf16 many
    distances got a neighbouring bucket, and the vectors differed from those of f32 twice as much as torch's in bf16, or
    DeBERTa's results for 500 tokens three times.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Log":
            continue
        first, last = node, node
        while first.get_type_name() in ELEMENTWISE and not _is_integer(first.input_value(0)):
            first = first.input_value(0).get_node()
        while last.get_type_name() in ELEMENTWISE and not _is_integer(last.output(0)):
            readers = list(last.output(0).get_target_inputs())
            if len(readers) != 1:
                break
            last = readers[0].get_node()
        whole = _is_integer(last.output(0)) if last.get_type_name() == "Convert" else last.get_type_name() == "Ceiling"
        if first.get_type_name() == "Convert" and whole:
            distance, readers = first.input_value(0), list(last.output(0).get_target_inputs())
            every = ops.parameter([MOST_DISTANCE], distance.get_element_type())
            first.input(0).replace_source_output(every.output(0))
            part = ov.Model([ops.result(last.output(0))], [every])
            compiled = core.compile_model(part, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
            table = np.array(compiled([np.arange(MOST_DISTANCE)])[0]).reshape(MOST_DISTANCE)
            most = ops.constant(MOST_DISTANCE - 1, distance.get_element_type())
            bucket = ops.gather(ops.constant(table), ops.minimum(distance, most), ops.constant(0))
            for reader in readers:
                reader.replace_source_output(bucket.output(0))
    model.validate_nodes_and_infer_types()


def _is_integer(value: ov.Output) -> bool:
    return bool(value.get_element_type().is_integral_number())


def tower(model: ov.Model, name: str) -> ov.Model:
    """Returns the part of a network that computes the output `name`, as float32, from the inputs that it depends on."""
    result = ops.result(_as_float(model.output(name)))
    needed, nodes = set[str](), [result]
    while nodes:
        node = nodes.pop()
        if node.get_friendly_name() not in needed:
            needed.add(node.get_friendly_name())
            nodes += [value.get_node() for value in node.input_values()]
    inputs = [one for one in model.get_parameters() if one.get_friendly_name() in needed]
    made = ov.Model([result], inputs, name)
    made.outputs[0].get_tensor().set_names({name})
    return made


def fit(model: ov.Model, window: int, pad_token: int | None) -> None:
    """Makes the network itself truncate each text to `window` tokens, so that batches may be padded to greater lengths.

    Args:
        model: The network, which is changed.
        window: The most tokens that the network reads.
        pad_token: The token with which shorter texts are padded to the window; None if they are not padded.
    """
    for one in model.inputs:
        users = one.get_target_inputs()
        values: Any = one
        if pad_token is not None and one.get_any_name() == "input_ids":
            ends = np.array([[0, 0], [0, window]], np.int64)
            values = ops.pad(one, ends[0], ends[1], "constant", np.int64(pad_token))
        whole, column = np.array([0], np.int64), np.array([1], np.int64)
        values = ops.slice(values, whole, np.array([window], np.int64), column, column)
        for user in users:
            user.replace_source_output(values.output(0))


def projected(output: ov.Output, layers: Sequence[DenseLayer]) -> ov.Output:
    """Returns the rows [..., width] of an output after linear layers with activation functions."""
    found: Any = _as_float(output)
    for layer in layers:
        found = ops.matmul(found, ops.constant(layer.weights), False, True)
        if layer.bias is not None:
            found = ops.add(found, ops.constant(layer.bias))
        found = ACTIVATIONS[layer.activation](found)
    return found.output(0)


def add_pooled_tokens(model: ov.Model) -> None:
    """Adds an input with 1 for each token that `pooled` counts, and 0 for others and padding: int64 [B, S]."""
    added = ops.parameter([-1, -1], np.int64, POOLED_TOKENS)
    added.output(0).get_tensor().set_names({POOLED_TOKENS})
    model.add_parameters([added])


def pooled(model: ov.Model, output: ov.Output, modes: Sequence[str]) -> ov.Output:
    """Pools hidden states [B, S, H] in all modes, one after the other: [B, modes * H]. Padding is at the right."""
    hidden, mask = _as_float(output), model.input("attention_mask")
    counted = model.input(POOLED_TOKENS) if POOLED_TOKENS in {one.get_any_name() for one in model.inputs} else mask
    rows = [_pooled(hidden, mask, counted, mode) for mode in modes]
    return rows[0] if len(rows) == 1 else ops.concat(rows, 1).output(0)


def _pooled(hidden: Any, mask: ov.Output, counted: ov.Output, mode: str) -> ov.Output:
    """Pools the hidden states [B, S, H] to one row per input [B, H].

    Args:
        hidden: The hidden states.
        mask: 1 for each token, 0 for padding [B, S].
        counted: 1 for each token that is pooled: all, or all but the first ones of a text [B, S].
        mode: The pooling mode.
    """
    if mode == "CLS":
        return (_row(hidden, _before(mask, counted)) if counted is not mask else _first(hidden)).output(0)
    if mode == "LAST":
        return _last(hidden, mask).output(0)
    axis = ops.constant(np.array([1], np.int64))
    places = counted
    if mode == "WEIGHTED_MEAN":  # positions as integers, because bf16 can count only to 256
        places = ops.multiply(counted, ops.cum_sum(mask, ops.constant(np.int64(1)))).output(0)
    weights = ops.unsqueeze(ops.convert(places, "f32"), ops.constant(np.int64(2)))
    if mode in ("MAX", "SPLADE"):
        lowest = ops.constant(np.float32(-3e38))
        shown = ops.select(ops.greater(weights, ops.constant(np.float32(0))), hidden, lowest)
        most = ops.reduce_max(shown, axis)
        if mode == "SPLADE":  # which grows with the logit, so it can follow the maximum
            most = ops.log(ops.add(ops.relu(most), ops.constant(np.float32(1))))
        return most.output(0)
    total = ops.reduce_sum(ops.multiply(hidden, weights), axis)
    count = ops.reduce_sum(weights, axis)
    if mode == "MEAN_SQRT_LEN":
        count = ops.sqrt(count)
    if counted is not mask:  # the vector is 0 if no token counts, as in sentence-transformers
        count = ops.maximum(count, ops.constant(np.float32(1e-9)))
    return ops.divide(total, count).output(0)


def _first(rows: Any) -> Any:
    """Selects the row of each input's first token: [B, S, H] to [B, H]."""
    return ops.gather(rows, ops.constant(np.int64(0)), ops.constant(np.int64(1)))


def _last(rows: Any, mask: ov.Output) -> Any:
    """Selects the row of each input's last token: [B, S, H] to [B, H]."""
    return _row(rows, ops.subtract(_count(mask), ops.constant(np.int64(1))))


def _before(mask: ov.Output, counted: ov.Output) -> Any:
    """Returns the place of each input's first token that counts, or 0 if none does [B]."""
    count = _count(counted)
    return ops.multiply(ops.subtract(_count(mask), count), ops.minimum(count, ops.constant(np.int64(1))))


def _count(mask: ov.Output) -> Any:
    """Returns the number of ones in each row of a mask, as integers [B]."""
    return ops.reduce_sum(ops.convert(mask, "i64"), ops.constant(np.array([1], np.int64)))


def _row(rows: Any, place: Any) -> Any:
    """Selects the row at a place of its own for each input: [B, S, H] and [B] to [B, H]."""
    picked = ops.gather(rows, ops.unsqueeze(place, ops.constant(np.int64(1))), ops.constant(np.int64(1)), 1)
    return ops.squeeze(picked, ops.constant(np.array([1], np.int64)))


def _head(model: ov.Model) -> ov.Node:
    """Returns the matrix product that computes the logits of a causal LM. Raises RuntimeError if there is none."""
    node = model.output("logits").get_node().input_value(0).get_node()
    while node.get_type_name() in ("Convert", "Reshape"):
        node = node.input_value(0).get_node()
    if node.get_type_name() != "MatMul":
        raise RuntimeError(f"the logits are computed by {node.get_type_name()}, not by a matrix product")
    if node.get_attributes().get("transpose_a"):
        raise RuntimeError("the head of the model is transposed")
    return node


def headless(model: ov.Model, name: str) -> None:
    """Makes the hidden states after the last layer of a language model its only output, and names it `name`.

    In exports for feature-extraction the output named logits already has the hidden states. Raises RuntimeError if
    the head cannot be found.
    """
    logits, width = model.output("logits"), model.input("inputs_embeds").get_partial_shape()[-1]
    only(model, logits if logits.get_partial_shape()[-1] == width else _head(model).input_value(0))
    model.outputs[0].get_tensor().set_names({name})


def difference(model: ov.Model, compared: list[int]) -> ov.Output:
    """Returns the logit of the last of one or two tokens, minus that of the other one, at the last token of each input
    of a causal LM.

    Raises RuntimeError.
    """
    node = _head(model)
    axis = 0 if node.get_attributes().get("transpose_b") else 1
    tokens = ops.constant(np.array(compared, np.int64))
    weights = ops.convert(ops.gather(node.input_value(1), tokens, ops.constant(np.int64(axis))), "f32")
    hidden = ops.convert(_last(node.input_value(0), model.input("attention_mask")), "f32")
    pair = ops.matmul(hidden, weights, False, axis == 0)
    if len(compared) == 1:
        return pair.output(0)
    parts = ops.split(pair, ops.constant(np.int64(1)), 2)
    return ops.subtract(parts.output(1), parts.output(0)).output(0)
