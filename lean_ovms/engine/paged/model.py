"""A compiled decoder with paged attention, and the tensors of its KV cache.

The plugin decides the type and shape of the caches when it compiles the network.
"""

from __future__ import annotations

from ..loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
import math
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import cached_property, partial
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops
from openvino.op import _PagedAttentionExtension

from ..generation.worker_thread import in_thread
from ..loading import weight_pages
from .network import (
    ATTENTION,
    IMAGE_DEEPER,
    IMAGE_ROWS,
    NEW_STATES,
    STATES,
    STEP_STATES,
    AdapterInputs,
    HybridEdit,
    NetworkCompiler,
    NotPageable,
    Part,
    SoftCaps,
    WeightsSource,
    compile_new,
    has_states,
)

CACHES = ("key_cache.", "value_cache.")
CACHE = "CACHE_DIR"
"""OpenVINO's property for a directory of compiled networks. OpenVINO (2026.4) writes those with paged attention there
at each start, but cannot read them, since the head sizes are missing."""

Kinds = tuple[tuple[bool, bool], ...]
"""Kinds of steps as (has a row with an adapter, has parts of prompts or draft tokens)."""
ALL: Kinds = ((False, False), (False, True), (True, False), (True, True))


class PagedModel:
    """A Network run by openvino: one infer request for each kind of step, all with the same inputs and caches."""

    def __init__(
        self,
        source: WeightsSource,
        device: str,
        properties: dict[str, Any],
        *,
        adapters: AdapterInputs | None = None,
        keep_base_model: bool = True,
        separate_prefill_model: bool = False,
        hybrid_edit: Callable[[], HybridEdit | None] = lambda: None,
        soft_caps: Callable[[], SoftCaps | None] = lambda: None,
        compiler: NetworkCompiler = compile_new,
        while_compiling: Callable[[], None] = lambda: None,
    ) -> None:
        """Compiles a network.

        Each additional compiled network takes the memory of the weights once more. Adapters add many small operations,
        whatever their ranks, even 0: the 35 layers of the demo model get 140 of them and 71 weight conversions, which
        double the time of a step. Moreover, openvino prepares each layer again if the number of tokens differs from
        that of the previous step, which takes 2 to 3 ms with the demo model before a prompt, and again after it. The
        networks are compiled in threads, in which openvino releases the GIL.

        Args:
            source: The source of the network.
            device: The name of OpenVINO's device.
            properties: OpenVINO's properties of the network.
            adapters: Adds inputs for adapters; None for a network without adapters.
            keep_base_model: Whether a network without adapters is compiled, too, for steps in which no row has one.
            separate_prefill_model: Whether another network without adapters is compiled for steps with prompts.
            hybrid_edit: Returns the edit of a hybrid network; called only for such a network.
            soft_caps: Returns the function that adds soft caps to attention; called only for a network that needs one.
            compiler: Compiles the network if only one is needed.
            while_compiling: Called while the networks are compiled.

        Raises:
            NotPageable: This engine cannot compute the network.
            RuntimeError: OpenVINO cannot compile the network.
        """
        core = ov.Core()
        properties = {name: value for name, value in properties.items() if name != CACHE}
        precision = partial(_precision, core, device, properties)

        def read() -> Any:
            model = source.read(core)
            if source.attention_cap:
                if (add_caps := soft_caps()) is None:
                    raise NotPageable("its attention has a soft cap, which needs the feature soft_caps")
                add_caps(model, source.attention_cap)
            weight_pages.keep(model)
            pad_heads(model)
            if any(STATES in _name(port) for port in model.inputs) and (edit := hybrid_edit()) is not None:
                edit(model, precision)
            choose_quantization_group(model)
            return model

        compiling: list[tuple[Future[Any], Kinds]] = []  # networks for fewer kinds of steps are last
        if adapters is None and not separate_prefill_model:
            compiling.append((in_thread("compile", partial(compiler, core, read, device, properties)), ALL))
        else:
            compile_network = partial(core.compile_model, device_name=device, config=properties)
            networks: list[tuple[Any, Kinds]] = []
            if adapters is not None:
                model = read()
                adapters.insert(model, precision())
                networks.append((model, ALL))
            if keep_base_model or adapters is None:
                model = read()
                networks.append((model, ALL[:2] if adapters is not None else ALL))
                if separate_prefill_model:
                    networks.append((model.clone(), ALL[1:2]))
            compiling += [(in_thread("compile", partial(compile_network, model)), kinds) for model, kinds in networks]
        try:
            while_compiling()
        finally:  # an error of the network is raised before one of the concurrent work
            self._compiled = [(future.result(), kinds) for future, kinds in compiling]
        self._describe(self._compiled[0][0])
        self.soft_caps = soft_caps
        self._head: PagedModel | None = None
        self._caches: list[Any] = []
        self._states: list[Any] = []
        self._cache_rows: list[NDArray[np.uint8]] = []
        self._state_rows: list[NDArray[np.uint8]] = []
        self._running: Any = None
        self.adapting = False
        self.new_states: list[int] = []
        self.step_states: list[int] = []

    def _describe(self, compiled: Any) -> None:
        """Reads the inputs and outputs of a compiled network. Raises NotPageable if it has no KV cache."""
        self._ports = {_name(port): port for port in compiled.inputs}
        self._values = [port for port, each in enumerate(compiled.outputs) if not has_states(each.get_names())]
        self.vocab_size = int(compiled.outputs[self._values[0]].get_partial_shape()[-1].get_length())
        self.threads = int(compiled.get_property("INFERENCE_NUM_THREADS"))
        self._cache_names = [name for name in self._ports if name.startswith(CACHES)]
        self._state_names = [name for name in self._ports if STATES in name]
        self.hybrid = bool(self._state_names)
        self.image_shape = self._image_shape()
        position_shape = self._ports["position_ids"].get_partial_shape()
        self.position_rows = position_shape[0].get_length() if position_shape.rank == 2 else 1
        if not self._cache_names:
            raise NotPageable("none of its attention layers could be converted to paged attention")
        self.block_bytes: int = sum(map(self._bytes, self._cache_names))
        self.state_bytes = sum(map(self._bytes, self._state_names))

    @cached_property
    def _requests(self) -> list[tuple[Any, frozenset[str], Kinds]]:
        """The infer requests, with the names of their inputs and their kinds of steps. Raises RuntimeError."""
        return [
            (compiled.create_infer_request(), frozenset(map(_name, compiled.inputs)), kinds)
            for compiled, kinds in self._compiled
        ]

    @cached_property
    def _networks(self) -> dict[tuple[bool, bool], Any]:
        """The infer request of each kind of step."""
        return {kind: request for request, _, kinds in self._requests for kind in kinds}

    def share_blocks(self, head: PagedModel) -> None:
        """Makes the blocks of a draft head's KV cache a part of this network's blocks; called before allocation."""
        self._head = head
        self.block_bytes += head.block_bytes

    @property
    def inputs(self) -> frozenset[str]:
        return frozenset(self._ports).difference(self._cache_names, self._state_names)

    @property
    def layout(self) -> dict[str, str]:
        """The types and shapes of the caches, by the names of their inputs."""
        names = self._cache_names + self._state_names
        found = {name: f"{self._ports[name].get_element_type()} {self._row(name)}" for name in names}
        return found | ({f"head.{name}": row for name, row in self._head.layout.items()} if self._head else {})

    @property
    def precision(self) -> str:
        """The element type in which the network computes."""
        return str(self._compiled[0][0].get_property("INFERENCE_PRECISION_HINT"))

    def allocate(self, blocks: int, states: int) -> None:
        """Allocates the KV cache, and the slots for states. Memory is committed only when it is used."""
        self._caches = [self._table(name, blocks) for name in self._cache_names]
        self._states = [self._table(name, states) for name in self._state_names]
        self._cache_rows, self._state_rows = _rows(self._caches), _rows(self._states)
        if self._head is not None:
            self._head.allocate(blocks, 0)
            self._cache_rows += self._head._cache_rows

    def copy_block(self, source: int, target: int) -> None:
        for rows in self._cache_rows:
            rows[target] = rows[source]

    def block_buffers(self, block: int) -> list[NDArray[np.uint8]]:
        return [rows[block] for rows in self._cache_rows]

    def state_buffers(self, slot: int) -> list[NDArray[np.uint8]]:
        return [rows[slot] for rows in self._state_rows]

    def clear_state(self, slot: int) -> None:
        for tensor in self._states:
            tensor.data[slot] = 0

    def tensor(self, name: str, shape: list[int]) -> Any:
        """Creates a tensor for an input of all requests. The caller may write to it, and shrink its shape."""
        tensor = ov.Tensor(self._ports[name].get_element_type(), ov.Shape(shape))
        for request, names, _ in self._requests:
            if name in names:
                request.set_tensor(name, tensor)
        return tensor

    def write(self, name: str, shape: tuple[int, int], parts: Iterable[Part]) -> None:
        from ..loading.weights import rounded_to_bf16  # few models have adapters, whose weights are written

        data, short = self.tensor(name, list(shape)).data, self._ports[name].get_element_type() == ov.Type.bf16
        data = data.view(np.uint16) if short else data
        data[...] = 0
        for row, column, values in parts:
            rows, columns = values.shape
            data[row : row + rows, column : column + columns] = rounded_to_bf16(values) if short else values

    def infer(self, prompts: bool) -> NDArray[np.float32]:
        """Computes a step and waits for it, with one thread less than `start` and `wait` need. Releases the GIL."""
        self._running = self._networks[self.adapting, prompts]
        self._running.infer(share_outputs=True)
        self._write_states()
        return self._logits()

    def start(self, prompts: bool) -> None:
        self._running = self._networks[self.adapting, prompts]
        self._running.start_async()

    def wait(self) -> NDArray[np.float32]:
        """Waits for the step; returns the logits [selected tokens, vocab]. Releases the GIL. Raises RuntimeError.

        The logits are the plugin's memory, which is valid and writable until the next start.
        """
        self._running.wait()
        self._write_states()
        return self._logits()

    @property
    def hidden(self) -> NDArray[np.float32]:
        data: NDArray[np.float32] = self._running.get_output_tensor(self._values[1]).data
        return data.reshape(-1, data.shape[-1])

    def _write_states(self) -> None:
        """Copies the states that the network has returned to their slots."""
        for kind, slots in ((NEW_STATES, self.new_states), (STEP_STATES, self.step_states)):
            for port, table in self._written[kind] if slots else ():
                states = self._running.get_output_tensor(port).data
                self._state_rows[table][slots] = states.reshape(len(states), -1).view(np.uint8)

    @cached_property
    def _written(self) -> dict[str, list[tuple[int, int]]]:
        """The outputs of each kind of new states, each with the index of its table among the state tables."""
        names, tables = [_name(port) for port in self._compiled[0][0].outputs], self._state_names
        return {
            kind: [(port, tables.index(name.replace(kind, STATES))) for port, name in enumerate(names) if kind in name]
            for kind in (NEW_STATES, STEP_STATES)
        }

    def _logits(self) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = self._running.get_output_tensor(self._values[0]).data
        return logits.reshape(-1, self.vocab_size)

    def _image_shape(self) -> tuple[int, int]:
        rows, deeper = self._ports.get(IMAGE_ROWS), self._ports.get(IMAGE_DEEPER)
        layers = deeper.get_partial_shape()[0].get_length() if deeper is not None else 0
        return layers, rows.get_partial_shape()[1].get_length() if rows is not None else 0

    def _table(self, name: str, rows: int) -> Any:
        return self.tensor(name, [rows, *self._row(name)])

    def _row(self, name: str) -> list[int]:
        return [dimension.get_length() for dimension in list(self._ports[name].get_partial_shape())[1:]]

    def _bytes(self, name: str) -> int:
        return int(np.prod(self._row(name))) * int(self._ports[name].get_element_type().bitwidth) // 8


def _precision(core: Any, device: str, properties: dict[str, Any]) -> Any:
    """Returns the element type in which a network computes if compiled with these properties."""
    value = ops.parameter([1], np.float32)
    compiled = core.compile_model(ov.Model([ops.relu(value)], [value]), device, properties)
    hint = compiled.get_property("INFERENCE_PRECISION_HINT")
    return hint if hint in (ov.Type.bf16, ov.Type.f16) else ov.Type.f32


def _rows(tensors: list[Any]) -> list[NDArray[np.uint8]]:
    """Returns the bytes of tensors as [blocks or slots, bytes], for which openvino has no shape with u4."""
    return [tensor.data.reshape(tensor.shape[0], -1).view(np.uint8) for tensor in tensors if tensor.shape[0]]


def pad_heads(model: Any) -> None:
    """Makes the heads of keys and of values equally large by appending zeros to the smaller ones.

    If they differ, OpenVINO (2026.4.1) reads wrong numbers from an 8-bit KV cache. They differ, for instance, in
    multi-head latent attention, whose values are a part of the keys.
    """
    for node in model.get_ordered_ops():
        described = node.get_rt_info() if node.get_type_name() == ATTENTION else {}
        if "k_head_size" not in described:
            continue
        keys, values = (described[f"{kind}_head_size"].astype(int) for kind in "kv")
        if keys == values:
            continue
        size, readers = max(keys, values), node.output(0).get_target_inputs()
        inputs = node.input_values()
        inputs[:3] = [_padded(rows, own, size) for rows, own in zip(inputs[:3], (keys, keys, values), strict=True)]
        padded = _PagedAttentionExtension(inputs)
        padded.set_friendly_name(node.get_friendly_name())
        for kind in "kv":
            padded.get_rt_info()[f"num_{kind}_heads"] = described[f"num_{kind}_heads"].astype(int)
            padded.get_rt_info()[f"{kind}_head_size"] = size
        found = _padded(padded.output(0), size, values)
        for reader in readers:
            reader.replace_source_output(found)


def _padded(rows: Any, own: int, size: int) -> Any:
    """Returns an output with each head padded with zeros, or cut, to another size.

    Args:
        rows: The output [tokens, heads * own].
        own: The current size of a head.
        size: The new size of a head.
    """
    if own == size:
        return rows
    heads = ops.reshape(rows, np.array([0, -1, own]), True)
    if own < size:
        heads = ops.pad(heads, np.zeros(3, np.int64), np.array([0, 0, size - own]), "constant", np.float32(0))
    else:
        heads = ops.variadic_split(heads, np.int64(2), np.array([size, own - size])).output(0)
    return ops.reshape(heads, np.array([0, -1]), True).output(0)


def _name(port: Any) -> str:
    """Returns the port's own name. Transformations may have added numbers as further names."""
    return str(max(port.get_names(), key=lambda name: (not name.isdigit(), name)))


# --- dynamic quantization: how many values get one scale where OpenVINO rounds the inputs of products to 8 bits
#
# These are the products with compressed weights, and by default it is 32 values, whatever the weights are. A product
# takes less time with more of them, but only if they divide the elements that have one scale in the weights: where they
# do not, OpenVINO (2026.4) rounds nothing, and a step of eight sequences takes twice as long. A row of weights with one
# scale may have any width.

GROUP_OPTION = ("runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE")
"""The path of the group size in a network's own settings; OpenVINO's property of the second name precedes it."""
GROUP_SIZES = (128, 64)
"""The group sizes that are tried, largest first, before OpenVINO's default."""
LEAST_ELEMENTS = 1 << 30
"""The number of compressed weight elements from which a network may get a group size other than OpenVINO's default.

Smaller models gain less and lose more: the perplexity of SmolLM2-135M in int8 grows by 0.6 % with 64 and by 1 % with
128; that of Qwen2.5-Coder 1.5B with weights of the same form does not change measurably.
"""
NEARLY_ALL = 0.95
"""The share of all compressed weight elements that must suit a group size."""
COMPRESSED_BITS = 8
"""The most bits of an element of compressed weights."""
DECOMPRESSION = ("Convert", "Subtract", "Multiply", "Reshape")
"""The operations that convert compressed weights to floats."""


def choose_quantization_group(model: Any) -> None:
    """Stores the group size that suits a network's weights in it, unless the network's file or options have one."""
    if not model.has_rt_info([*GROUP_OPTION]) and (group := group_size_of(model)):
        model.set_rt_info(str(group), [*GROUP_OPTION])


def group_size_of(model: Any) -> int:
    """Returns the largest of GROUP_SIZES that suits the weights of a network; 0 if OpenVINO's default is best."""
    elements = Counter[int]()  # by how many have one scale; 0: a whole row
    for node in model.get_ops():
        if node.get_type_name() == "MatMul":
            size, count = _scaled(node)
            elements[size] += count
    if elements.total() < LEAST_ELEMENTS:
        return 0
    for group in GROUP_SIZES:
        suited = sum(count for size, count in elements.items() if size % group == 0)
        if suited >= NEARLY_ALL * elements.total():
            return group
    return 0


def _scaled(product: Any) -> tuple[int, int]:
    """Returns how many weights of a matrix product have one scale, 0 for a whole row, and how many there are.

    The total is 0 if the weights are not compressed.
    """
    weights = node = product.input_value(1).get_node()
    while node.get_type_name() in DECOMPRESSION:
        node = node.input_value(0).get_node()
    kind = node.get_output_element_type(0)
    if node.get_type_name() != "Constant" or node is weights or kind.is_real() or kind.bitwidth > COMPRESSED_BITS:
        return 0, 0
    axis = -1 if product.get_attributes()["transpose_b"] else -2
    shape, width = node.get_output_shape(0), weights.get_output_shape(0)[axis]
    return 0 if shape[axis] == width else shape[axis], math.prod(shape)
