"""Connects the network of a head to that of its model: adds outputs of hidden states, and shares weights.

A head for multi-token prediction (MTP) takes the input of the model's last projection. An Eagle-3 head takes the inputs
of three layers of the model, and after that the result of its own layer before the norm. The projection of the three is
moved to the model's network, so that all hidden states have one width. An Eagle-3 head knows only a part of the
vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from ....engine.paged.ir_weights import (
    ELEMENTWISE,
    embedding_edit,
    gather,
    is_constant,
    last_projection,
    paged,
    takes_embeddings,
)
from ....engine.paged.network import ATTENTION, HIDDEN_INPUT, STATES, NotPageable
from ....repository import model_config
from ....repository.model_config import MTP_HEAD, TEXT_EMBEDDINGS

OFFSETS = "d2t"
"""The output of an Eagle-3 head with what is added to the number of each logit to make it the model's token id."""


class HeadTap:
    """An edit of a model's network that adds the hidden states for its head as an output."""

    def __init__(self, head: Path) -> None:
        """Keeps the file of the head."""
        self._head = head

    def __call__(self, core: Any, model: Any) -> None:
        """Adds the output that the head reads to a network. Raises NotPageable if the hidden states cannot be found."""
        hidden = last_projection(model)[0].input_value(0)
        if self._head.name != MTP_HEAD:
            states = _layer_inputs(model, _tapped(self._head))
            projected, joined = _projection_of_three(core.read_model(self._head)), ops.concat(states, -1)
            if (width := joined.get_output_partial_shape(0)[-1]) not in projected.input_value(1).get_partial_shape():
                raise NotPageable(
                    f"the Eagle-3 head belongs to another model: it does not read {width} numbers per token"
                )
            projected.input(0).replace_source_output(joined.output(0))
            hidden = projected.output(0)
        # Before logits are limited to wanted tokens: add_outputs may leave the operations of the output out of
        # openvino's cached order of all, and what is changed behind it makes that anew.
        model.add_outputs([hidden])


class HeadWeights:
    """The source of the network of a head."""

    attention_cap = 0.0

    def __init__(self, file: Path, target: Path) -> None:
        """Keeps the file of the head and the file of its model's network."""
        self._file = file
        self._target = target

    def read(self, core: Any) -> Any:
        """Reads the head's network with paged attention, which computes logits and hidden states of selected tokens.

        Raises NotPageable if the networks are not built as expected.
        """
        model = paged(core, self._file)
        if self._file.parent == self._target.parent:
            embedding_edit(self._file.parent)(core, model)
        elif takes_embeddings(model):
            raise NotPageable("Eagle-3 heads of models with vision are not supported")
        return _finish(core, model, self._file, self._target)


def _finish(core: Any, model: Any, file: Path, target: Path) -> Any:
    """Completes a head's network, so that it computes the logits and its own hidden states of selected tokens.

    Args:
        core: The OpenVINO core.
        model: The network of the head with paged attention, which is changed.
        file: The file of the head.
        target: The file of its model's network. An MTP head takes the last projection from it. An Eagle-3 head takes
            the embeddings from it, since its checkpoint has none, and a file that was made from that has others.

    Raises:
        NotPageable: The networks are not built as expected.
    """
    if file.name == MTP_HEAD:
        projection, axis = last_projection(whole := core.read_model(target))
        projection.input(0).replace_source_output(model.outputs[0].get_node().input_value(0))
        model = ov.Model([whole.outputs[0].get_node()], model.get_parameters())
        hidden = gather(model, projection.input_value(0), [projection.input(0)], axis)
    else:
        for reader in _projection_of_three(model).output(0).get_target_inputs():
            reader.replace_source_output(_input(model, HIDDEN_INPUT).output(0))
        _share_embeddings(core, model, target)
        projection, axis = last_projection(model)
        states = _sum_before(projection.input_value(0))
        hidden = gather(model, states, list(states.get_target_inputs()), axis)
        _widen(model)
    model.add_outputs([hidden])
    model.validate_nodes_and_infer_types()
    return model


# --- Eagle-3


def _tapped(head: Path) -> list[int] | None:
    """Returns the layers of the model whose inputs a head takes, if its config.json names them as vLLM's does."""
    config = model_config.read(head.parent)
    inner = config.get("eagle_config")
    found = {**(inner if isinstance(inner, dict) else {}), **config}.get("eagle_aux_hidden_state_layer_ids")
    return found if isinstance(found, list) and all(type(layer) is int for layer in found) else None


def _layer_inputs(model: Any, layers: list[int] | None) -> list[Any]:
    """Returns the inputs of layers of a model with paged attention; None for the layers that Eagle-3's code chooses."""
    if any(STATES in node.get_friendly_name() for node in model.get_parameters()):
        raise NotPageable("Eagle-3 heads are not supported for models that have layers without attention")
    attentions = [node for node in model.get_ordered_ops() if node.get_type_name() == ATTENTION]
    count = len(attentions)
    layers = layers or [2, count // 2, count - 3]
    if not all(0 < layer < count for layer in layers):
        raise NotPageable(f"the Eagle-3 head reads the inputs of the layers {layers}, but the model has {count} layers")
    return [_sum_before(attentions[layer].input_value(2)) for layer in layers]


def _sum_before(output: Any) -> Any:
    """Returns the last residual sum from which an output, the values of an attention or logits, is computed.

    Raises NotPageable if there is not exactly one.
    """
    found, waiting, seen = [], [output], set()
    while waiting:
        output = waiting.pop()
        node = output.get_node()
        if node in seen:
            continue
        seen.add(node)
        sources = [source for source in node.input_values() if not is_constant(source)]
        elementwise = node.get_type_name() in (*ELEMENTWISE, "Subtract")
        if node.get_type_name() == "Add" and len(sources) > 1:
            found.append(output)
        else:
            waiting += sources if elementwise else sources[:1]
    if len(found) != 1:
        raise NotPageable("the hidden states between the model's layers, which an Eagle-3 head reads, were not found")
    return found[0]


def _projection_of_three(head: Any) -> Any:
    """Returns the MatMul with which a head projects three hidden states to one."""
    [reader, *others] = _input(head, HIDDEN_INPUT).output(0).get_target_inputs()
    if others or reader.get_node().get_type_name() != "MatMul":
        raise NotPageable("it is not an Eagle-3 head: it has no projection of three hidden states")
    return reader.get_node()


def _share_embeddings(core: Any, head: Any, target: Path) -> None:
    """Gives a head the embeddings of its model, if they have the same width."""
    apart = target.parent / TEXT_EMBEDDINGS
    own, shared = _embedding(head), _embedding(core.read_model(apart if apart.is_file() else target))
    if own.input_value(0).get_partial_shape()[-1] == shared.input_value(0).get_partial_shape()[-1]:
        own.input(0).replace_source_output(shared.input_value(0))


def _embedding(model: Any) -> Any:
    """Returns the operation that reads the embeddings of tokens."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Gather" and node.input_value(0).get_partial_shape().is_static:
            source = node.input_value(1).get_node()
            while source.get_type_name() in ("Convert", "Unsqueeze", "Reshape"):
                source = source.input_value(0).get_node()
            if source.get_type_name() == "Parameter":
                return node
    raise NotPageable("the token embeddings, which an Eagle-3 head shares with its model, were not found")


def _widen(model: Any) -> None:
    """Maps a head's logits to the model's token ids; tokens that the head does not know get minus infinity."""
    offsets = next((output for output in model.outputs if OFFSETS in output.get_names()), None)
    if offsets is None:
        return
    values = offsets.get_node().input_value(0).get_node().data
    model.remove_result(offsets.get_node())
    own = np.arange(len(values))
    ids = own + values
    columns = np.full(ids.max() + 1, len(values))
    columns[ids] = own
    result = model.outputs[0].get_node()
    logits = result.input_value(0)
    before, behind = np.zeros(3, np.int64), np.array([0, 0, 1])
    padded = ops.pad(logits, before, behind, "constant", np.float32(-np.inf))
    result.input(0).replace_source_output(ops.gather(padded, columns, np.int64(-1)).output(0))


def _input(model: Any, name: str) -> Any:
    """Returns the parameter of this name."""
    for node in model.get_parameters():
        if node.get_friendly_name() == name:
            return node
    raise NotPageable(f"it is not a head: it has no input {name}")
