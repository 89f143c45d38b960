"""The network of a pooling model by openvino, with pooling as part of its graph; it takes batches and returns rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from ...config import Config
from ...errors import StartError
from ...options import read_object
from ..errors import last_line
from ..genai import devices
from .pooler import Array, Batch
from .recognize import ALL, MODEL, Shape

OUTPUTS = ("sentence_embedding", "logits", "last_hidden_state", "token_embeddings")
"""Outputs that are used, the first that a network has."""
HIDDEN = ("last_hidden_state", "token_embeddings")
INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids", "position_ids", "beam_idx"})


def new_core() -> ov.Core:
    """openvino's entry, one for each model."""
    return ov.Core()


def version() -> str:
    """Of openvino."""
    return str(ov.get_version())


class Network:
    """One compiled model; `pool` first, then batches. slots: infer requests."""

    def __init__(self, core: ov.Core, config: Config) -> None:
        """Raises StartError."""
        self._core = core
        self._config = config
        self._path = config.model_dir / "openvino_model.xml"
        self._device, self._properties = choose_device(core, config), properties(config)
        try:
            self.model = core.read_model(self._path)
        except RuntimeError as error:
            raise StartError(f"the model does not load: {last_line(error)}") from error
        self._prepare: Callable[[ov.Model], None] = lambda model: None
        self.slots = _streams(self._properties)
        self._pooled: _Requests | None = None
        self._hidden: _Requests | None = None
        self._started: deque[tuple[_Requests, Any]] = deque()

    def shape(self, pooling: str) -> Shape:
        """The network as recognize needs it. pooling: asked for, "" for any. Raises StartError."""
        inputs = frozenset(one.get_any_name() for one in self.model.inputs)
        if "input_ids" not in inputs or not inputs <= INPUTS:
            raise StartError(f"the network's inputs are {', '.join(sorted(inputs))}: not those of a text model")
        names = OUTPUTS if not pooling else (*HIDDEN, *OUTPUTS)
        found = next((name for name in names if name in _names(self.model)), "")
        if not found:
            raise StartError(f"the network has none of the outputs {', '.join(OUTPUTS)}")
        form = self.model.output(found).get_partial_shape()
        width = form[len(form) - 1]
        return Shape(inputs, found, len(form), width.get_length() if width.is_static else 0)

    # --- what it computes

    def pool(self, output: str, mode: str, projection: Array | None = None) -> None:
        """One row per input: that output of the network, pooled by mode; "" or MODEL: as it is; ALL: one per token.

        projection: the last layer, [outputs, inputs].
        """
        if projection is not None:
            self._compile(lambda model: _only(model, _projected(model.output(output), projection)))
        elif mode in ("", MODEL, ALL):
            self._compile(lambda model: _only(model, model.output(output)))
        else:
            self._compile(lambda model: _only(model, _pooled(model, model.output(output), mode)))

    def compare_tokens(self, no: int, yes: int) -> None:
        """One number per input: the logit of the token yes minus that of no, at the input's last position."""
        self._compile(lambda model: _only(model, _difference(model, no, yes)))

    def _compile(self, prepare: Callable[[ov.Model], None]) -> None:
        """Raises StartError."""
        try:
            prepare(self.model)
            compiled = self._core.compile_model(self.model, self._device, self._properties)
        except RuntimeError as error:
            raise StartError(f"the model does not load: {last_line(error)}") from error
        self._pooled = _Requests(compiled, self.slots)

    def _hidden_states(self) -> _Requests:
        """The network with one row per token: compiled when the first request needs it. Raises RuntimeError."""
        if self._hidden is None:
            model = self._core.read_model(self._path)
            found = next((name for name in HIDDEN if name in _names(model)), "")
            if not found:
                raise RuntimeError("the network has no output of one row per token")
            _only(model, model.output(found))
            self._hidden = _Requests(self._core.compile_model(model, self._device, self._properties), self.slots)
        return self._hidden

    # --- batches

    def start(self, batch: Batch, per_token: bool) -> None:
        """Begin a forward pass. Raises RuntimeError."""
        requests = self._hidden_states() if per_token else self._pooled
        assert requests is not None, "pool() comes first"
        self._started.append((requests, requests.start(batch)))

    def wait(self) -> Array:
        """The output of the batch that was started first. Raises RuntimeError."""
        requests, request = self._started.popleft()
        return requests.wait(request)


class _Requests:
    """The infer requests of one compiled model."""

    def __init__(self, compiled: Any, count: int) -> None:
        self._inputs = [one.get_any_name() for one in compiled.inputs]
        self._free = [compiled.create_infer_request() for _ in range(count)]
        self._stateful = bool(self._free[0].query_state())

    def start(self, batch: Batch) -> Any:
        request = self._free.pop()
        if self._stateful:
            request.reset_state()  # without it the next answer is silently another
        try:
            # The arrays are held by the dictionary, and it by the request, until the next start.
            request.start_async({name: _input(name, batch) for name in self._inputs}, share_inputs=True)
        except BaseException:
            self._free.append(request)
            raise
        return request

    def wait(self, request: Any) -> Array:
        try:
            request.wait()
            output: Array = np.array(request.get_output_tensor(0).data, np.float32)
            return output
        finally:
            self._free.append(request)


def _input(name: str, batch: Batch) -> Array:
    match name:
        case "input_ids":
            return batch.ids
        case "attention_mask":
            return batch.mask
        case "token_type_ids":
            return batch.types
        case "beam_idx":
            return np.arange(len(batch.ids), dtype=np.int32)
        case _:
            return np.ascontiguousarray(np.broadcast_to(np.arange(batch.ids.shape[1]), batch.ids.shape))


def choose_device(core: ov.Core, config: Config) -> str:
    """The device of the options. Raises StartError."""
    asked = config.target_device
    if asked == "CPU":
        return asked
    available = core.available_devices
    device = devices.choose(asked, available, lambda _: 0)
    if missing := devices.missing([device], available):
        raise StartError(f"--target_device {missing}: there is no such device here, only {', '.join(available)}")
    return device


def properties(config: Config) -> dict[str, Any]:
    """openvino's properties of the options. Raises StartError."""
    found = read_object("plugin_config", config.plugin_config)
    if "NUM_STREAMS" in found and config.num_streams > 1:
        raise StartError("--num_streams and --plugin_config disagree about NUM_STREAMS")
    found.setdefault("NUM_STREAMS", config.num_streams)
    if config.target_device == "CPU":
        found.setdefault("ENABLE_CPU_PINNING", False)  # pinned threads wait for each other beside a busy front end
    if config.cache_dir:
        found.setdefault("CACHE_DIR", config.cache_dir)
    return found


def _streams(properties: dict[str, Any]) -> int:
    """Batches that can be computed at once. Raises StartError."""
    try:
        return max(1, int(properties["NUM_STREAMS"]))
    except (TypeError, ValueError):
        raise StartError(f"--plugin_config: NUM_STREAMS is {properties['NUM_STREAMS']!r}, not a number") from None


# --- the graph


def _names(model: ov.Model) -> set[str]:
    return {name for output in model.outputs for name in output.get_names()}


def _only(model: ov.Model, output: ov.Output) -> None:
    """Make this the model's only output, as float32."""
    source = output.get_node().input_value(0) if output.get_node().get_type_name() == "Result" else output
    old = list(model.get_results())
    model.add_results([ops.result(ops.convert(source, "f32"))])
    for result in old:
        model.remove_result(result)
    model.validate_nodes_and_infer_types()


def _projected(output: ov.Output, weights: Array) -> ov.Output:
    hidden = output.get_node().input_value(0) if output.get_node().get_type_name() == "Result" else output
    return ops.matmul(ops.convert(hidden, "f32"), ops.constant(weights), False, True).output(0)


def _pooled(model: ov.Model, output: ov.Output, mode: str) -> ov.Output:
    """The hidden states [B, S, H] as one row per input. Padding is at the right."""
    hidden = output.get_node().input_value(0) if output.get_node().get_type_name() == "Result" else output
    hidden = ops.convert(hidden, "f32")
    mask = _mask(model)
    if mode == "CLS":
        return ops.gather(hidden, ops.constant(np.int64(0)), ops.constant(np.int64(1))).output(0)
    if mode == "LAST":
        return _last(hidden, mask).output(0)
    axis = ops.constant(np.array([1], np.int64))
    weights = ops.unsqueeze(ops.convert(mask, "f32"), ops.constant(np.int64(2)))
    if mode == "MAX":
        lowest = ops.constant(np.float32(-3e38))
        shown = ops.select(ops.greater(weights, ops.constant(np.float32(0))), hidden, lowest)
        return ops.reduce_max(shown, axis).output(0)
    if mode == "WEIGHTED_MEAN":
        weights = ops.multiply(weights, ops.cum_sum(weights, ops.constant(np.int64(1))))
    total = ops.reduce_sum(ops.multiply(hidden, weights), axis)
    count = ops.reduce_sum(weights, axis)
    if mode == "MEAN_SQRT_LEN":
        count = ops.sqrt(count)
    return ops.divide(total, count).output(0)


def _mask(model: ov.Model) -> ov.Output:
    found: ov.Output = model.input("attention_mask")
    return found


def _last(rows: Any, mask: ov.Output) -> Any:
    """The row of the last token of each input: [B, S, H] to [B, H]."""
    count = ops.reduce_sum(ops.convert(mask, "i64"), ops.constant(np.array([1], np.int64)))
    place = ops.subtract(count, ops.constant(np.int64(1)))
    picked = ops.gather(rows, ops.unsqueeze(place, ops.constant(np.int64(1))), ops.constant(np.int64(1)), 1)
    return ops.squeeze(picked, ops.constant(np.array([1], np.int64)))


def _difference(model: ov.Model, no: int, yes: int) -> ov.Output:
    """The head of a causal LM for two tokens and the last position only. Raises RuntimeError."""
    node = model.output("logits").get_node().input_value(0).get_node()
    while node.get_type_name() in ("Convert", "Reshape"):
        node = node.input_value(0).get_node()
    if node.get_type_name() != "MatMul":
        raise RuntimeError(f"the logits are computed by {node.get_type_name()}, not by a matrix product")
    if node.get_attributes().get("transpose_a"):
        raise RuntimeError("the head of the model is transposed")
    axis = 0 if node.get_attributes().get("transpose_b") else 1
    tokens = ops.constant(np.array([no, yes], np.int64))
    weights = ops.convert(ops.gather(node.input_value(1), tokens, ops.constant(np.int64(axis))), "f32")
    hidden = ops.convert(_last(node.input_value(0), _mask(model)), "f32")
    pair = ops.matmul(hidden, weights, False, axis == 0)
    parts = ops.split(pair, ops.constant(np.int64(1)), 2)
    return ops.subtract(parts.output(1), parts.output(0)).output(0)
