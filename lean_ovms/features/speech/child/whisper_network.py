"""The encoder and the decoder of a Whisper model in OpenVINO: windows in, logits out, several windows at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ....engine.loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

from ....config import EngineConfig
from ....engine.loading import weight_pages
from ....engine.loading.pipeline_choice import as_start_error
from ....engine.loading.settings import device_of, device_properties
from ....errors import StartError

Array = NDArray[np.float32]
DECODER = "openvino_decoder_model.xml"
ENCODER = "openvino_encoder_model.xml"
INPUTS = {"input_ids", "encoder_hidden_states", "beam_idx"}


class Decoding:
    """The decoder's state for some rows, all of which have the same number of tokens."""

    def __init__(self, request: Any, hidden: Array, release: Any) -> None:
        """Begins without any token.

        Args:
            request: The infer request of the decoder; its state is reset.
            hidden: The encoder's output for each row [rows, positions, width].
            release: Is called with the infer request at the end, so that it can be used again.
        """
        self._request = request
        self._release = release
        self._hidden: Array | None = hidden
        request.reset_state()

    def step(self, ids: NDArray[np.int64], beams: NDArray[np.int32] | None = None) -> Array:
        """Computes tokens [rows, tokens]. Returns the logits [rows, tokens, vocabulary], valid until the next step.

        `beams` has for each row the row whose state it continues; None if each continues its own.
        """
        if beams is None:
            beams = np.arange(len(ids), dtype=np.int32)
        inputs = {"input_ids": ids, "beam_idx": beams}
        if self._hidden is not None:
            # Copied into the request's own tensor. With another tensor, openvino (2026.4) computes the keys and values
            # of the audio from the content of the last tensor of this shape. Later steps have them in the state.
            inputs["encoder_hidden_states"], self._hidden = self._hidden, None
        self._request.infer(inputs)
        found: Array = self._request.get_tensor("logits").data
        return found

    def close(self) -> None:
        self._release(self._request)


class WhisperNetwork:
    """The compiled encoder and decoder of a Whisper model.

    The decoder is compiled once for each state that exists at the same time: if infer requests of one compiled network
    take turns, openvino (2026.4) computes with the shapes and tensors of another one's state, and overwrites memory.
    """

    def __init__(self, config: EngineConfig, path: Path) -> None:
        """Compiles the networks of a Whisper model. Raises StartError."""
        self.version = str(ov.get_version())
        self._core = ov.Core()
        self._device = device_of(config)
        self._properties = device_properties(config)
        self._path = path
        with as_start_error(config):
            encoder = self._core.read_model(path / ENCODER)
            decoder = self._core.read_model(path / DECODER)
            names = {one.get_any_name() for one in decoder.inputs}
            if names != INPUTS or not decoder.get_sinks():
                raise StartError(f"the decoder's inputs are {', '.join(sorted(names))}, not those of a stateful export")
            for model in (encoder, decoder):
                weight_pages.keep(model)
            self._encoder = self._compiled(encoder)
            self._free = [self._compiled(decoder)]
        frames = encoder.inputs[0].get_partial_shape()[2]
        self.frames: int = frames.get_length() if frames.is_static else 0
        self._aligner: Any = None

    def _compiled(self, model: ov.Model) -> Any:
        """Compiles a network, and returns an infer request of it."""
        return self._core.compile_model(model, self._device, self._properties).create_infer_request()

    def encode(self, features: Array) -> Array:
        """Encodes the features of a window [1, mels, frames] to hidden states [1, positions, width]."""
        self._encoder.infer([features], share_inputs=True)
        return np.array(self._encoder.get_output_tensor(0).data, np.float32)

    def begin(self, hidden: Array) -> Decoding:
        """Returns a new state of the decoder for rows of the encoder's output.

        If all compiled decoders are in use, one more is compiled. Raises RuntimeError.
        """
        request = self._free.pop() if self._free else self._compiled(self._core.read_model(self._path / DECODER))
        return Decoding(request, np.ascontiguousarray(hidden), self._free.append)

    def prepare_attention(self, heads: list[tuple[int, int]]) -> None:
        """Compiles a second decoder for `attention`, unless that was done before. Raises RuntimeError."""
        if self._aligner is None:
            model = _with_attention(self._core.read_model(self._path / DECODER), {layer for layer, _ in heads})
            self._aligner = self._compiled(model)

    def attention(self, hidden: Array, ids: list[int], heads: list[tuple[int, int]]) -> Array:
        """Returns the attention of tokens to the positions of the window, before softmax [heads, tokens, positions]."""
        self.prepare_attention(heads)
        request = self._aligner
        request.reset_state()
        inputs = {"input_ids": np.array([ids], np.int64), "beam_idx": np.zeros(1, np.int32)}
        request.infer({**inputs, "encoder_hidden_states": hidden})
        layers = sorted({layer for layer, _ in heads})
        outputs = {layer: request.get_output_tensor(1 + at).data[0] for at, layer in enumerate(layers)}
        return np.stack([outputs[layer][head] for layer, head in heads]).astype(np.float32)


def _with_attention(model: ov.Model, layers: set[int]) -> ov.Model:
    """Adds outputs to the decoder: the products of queries and keys in the cross-attention of these layers.

    Raises RuntimeError if they cannot be found.
    """
    found: dict[int, Any] = {}
    for op in model.get_ordered_ops():
        if op.get_type_name() != "ScaledDotProductAttention" or not _is_cross(op):
            continue
        layer = len(found)
        query, key = op.input_value(0), op.input_value(1)
        scores = ops.matmul(query, key, False, True)
        if op.get_input_size() > 4:  # otherwise queries are scaled by the width of a head
            scores = ops.multiply(scores, ops.convert_like(op.input_value(4), scores))
        else:
            width = query.get_partial_shape()[3].get_length()
            scores = ops.multiply(scores, ops.constant(np.float32(width**-0.5)))
        found[layer] = ops.result(ops.convert(scores, "f32"))
    missing = layers - set(found)
    if missing:
        raise RuntimeError(f"the decoder has {len(found)} layers of cross-attention that can be read")
    model.add_results([found[layer] for layer in sorted(layers)])
    model.validate_nodes_and_infer_types()
    return model


def _is_cross(op: Any) -> bool:
    """Returns whether an operation is a cross-attention, whose keys are a state to which no tokens are added."""
    node = op.input_value(1).get_node()
    while node.get_type_name() in ("Reshape", "Transpose", "Convert", "Gather"):
        node = node.input_value(0).get_node()
    return bool(node.get_type_name() == "ReadValue")
