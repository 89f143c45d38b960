"""Builds the token mixers of hybrid networks that keep a state for each sequence: convolutions, delta nets, Mamba."""

from __future__ import annotations

from typing import Any

import numpy as np
from openvino import opset13 as ops

from ..architectures import ARCHITECTURES
from . import layers
from .attention import Sequences
from .file_layers import FileLayers, LinearLayer
from .tensors import Order, Tensors

DELTA = {"in_proj_qkv": "attn_qkv", "in_proj_z": "attn_gate", "in_proj_b": "ssm_beta", "in_proj_a": "ssm_alpha"}
"""The layers before a delta net by their names in transformers."""


class StateMixers:
    """Builds the token mixers with states from the tensors of a file."""

    def __init__(self, tensors: Tensors, linear: FileLayers) -> None:
        """Keeps what describes the layers.

        Args:
            tensors: The tensors of the file.
            linear: Builds linear layers and norms.
        """
        self._header = header = tensors.header
        self._tensors = tensors
        self._layers = linear
        self._row = ARCHITECTURES[header.architecture]

    def mixed(self, layer: int, x: Any, sequences: Sequences) -> tuple[Any, LinearLayer] | None:
        """Returns the result of a layer's token mixer, and the linear layer that projects it.

        It returns None if the layer keeps no state.

        Args:
            layer: The number of the layer.
            x: The normalized input of the layer.
            sequences: Builds the operations in which tokens depend on those before them.
        """
        name = f"blk.{layer}"
        if self._layers.has(f"{name}.shortconv.conv"):
            last = LinearLayer(f"{name}.shortconv.out_proj", f"model.layers.{layer}.conv.out_proj")
            return self._convolved(layer, x, sequences), last
        if not self._layers.has(f"{name}.ssm_conv1d"):
            return None
        if self._layers.has(f"{name}.ssm_in") and not self._layers.has(f"{name}.ssm_ba"):
            last = LinearLayer(f"{name}.ssm_out", self._row.path(layer, "mamba.out_proj"))
            scanned = self._selected if self._layers.has(f"{name}.ssm_x") else self._scanned
            return scanned(layer, x, sequences), last
        last = LinearLayer(f"{name}.ssm_out", self._delta_name(layer, "out_proj"))
        return self._remembered(layer, x, sequences), last

    def _convolved(self, layer: int, x: Any, sequences: Sequences) -> Any:
        """Returns the result of LFM2's short convolution between two gates."""
        name = f"blk.{layer}.shortconv"
        x = self._layers.product(x, LinearLayer(f"{name}.in_proj", f"model.layers.{layer}.conv.in_proj"))
        first, second, values = ops.split(x, np.int64(2), 3).outputs()
        rows = ops.squeeze(ops.multiply(first, values), np.array([1]))
        found = sequences.convolve(rows, self._tensors.numbers(f"{name}.conv.weight"))
        return ops.multiply(second, ops.unsqueeze(found, np.array([1])))

    def _remembered(self, layer: int, x: Any, sequences: Sequences) -> Any:
        """Returns the gated result of a layer of delta nets [tokens, 1, heads * size of a head]."""
        name, number = f"blk.{layer}", self._header.number
        shared, heads, size = number("ssm.group_count"), number("ssm.time_step_rank"), number("ssm.state_size")
        joined, gate, beta, alpha = self._delta_inputs(layer, x, [2 * shared * size + heads * size, heads * size])
        weights = self._tensors.numbers(f"{name}.ssm_conv1d.weight")
        rows = ops.swish(sequences.convolve(ops.squeeze(joined, np.array([1])), weights))
        widths = np.array([shared * size, shared * size, heads * size])
        rows = [
            ops.reshape(part, np.array([0, -1, size]), True)
            for part in ops.variadic_split(rows, np.int64(1), widths).outputs()
        ]
        rows[:2] = [self._repeated(layers.unit(part), shared, heads // shared) for part in rows[:2]]
        beta, alpha = (ops.squeeze(value, np.array([1])) for value in (beta, alpha))
        decay = ops.softplus(ops.add(alpha, self._tensors.numbers(f"{name}.ssm_dt.bias")[None]))
        decay = ops.multiply(decay, self._tensors.numbers(f"{name}.ssm_a")[None])
        found = self._layers.norm(sequences.remember([*rows, decay, ops.sigmoid(beta)]), f"{name}.ssm_norm")
        return ops.multiply(ops.reshape(found, np.array([0, 1, heads * size]), True), ops.swish(gate))

    def _delta_inputs(self, layer: int, x: Any, widths: list[int]) -> list[Any]:
        """Returns what a delta net layer computes of its input: queries, keys and values joined, the gate, beta, alpha.

        Args:
            layer: The number of the layer.
            x: The normalized input of the layer.
            widths: The number of elements of the joined queries, keys and values, and of the gate.
        """
        name, shared = f"blk.{layer}", self._header.number("ssm.group_count")
        parts = [LinearLayer(f"{name}.{tensor}", self._delta_name(layer, place)) for place, tensor in DELTA.items()]
        if not self._layers.has(f"{name}.ssm_ba"):
            return self._layers.products(x, parts)
        # The rows are ordered by key heads: each has its own part of all that a tensor joins.
        size, each = self._header.number("ssm.state_size"), widths[1] // shared
        if self._layers.has(f"{name}.ssm_in"):  # in files of older converters
            parts = [LinearLayer(f"{name}.ssm_in", "", order=_by_parts(shared, [size, size, each, each]))]
        joined = LinearLayer(f"{name}.ssm_ba", "", order=_by_parts(shared, [each // size] * 2))
        *found, both = self._layers.products(x, [*parts[:2], joined])
        if len(found) == 1:
            found = ops.variadic_split(found[0], np.int64(-1), np.array(widths)).outputs()
        return [*found, *ops.split(both, np.int64(-1), 2).outputs()]

    def _repeated(self, keys: Any, count: int, times: int) -> Any:
        """Returns the heads of keys or queries for each head of values.

        Args:
            keys: The heads [tokens, count, size].
            count: The number of these heads.
            times: The number of value heads for each of them.
        """
        if self._row.tiled or times == 1:
            return ops.concat([keys] * times, 1)
        return ops.gather(keys, np.repeat(np.arange(count), times), np.int64(1))

    def _scanned(self, layer: int, x: Any, sequences: Sequences) -> Any:
        """Returns the gated result of a layer of state spaces [tokens, 1, heads * size of a head].

        Raises ValueError if the sizes in the header do not fit each other.
        """
        name, number, numbers = f"blk.{layer}", self._header.number, self._tensors.numbers
        inner, heads, groups = number("ssm.inner_size"), number("ssm.time_step_rank"), number("ssm.group_count")
        if not heads or not groups or inner % heads or heads % groups:
            raise ValueError(f"its state spaces have {inner} elements in {heads} heads of {groups} groups")
        shared = groups * number("ssm.state_size")
        projected = LinearLayer(f"{name}.ssm_in", self._row.path(layer, "mamba.in_proj"))
        joined = ops.squeeze(self._layers.product(x, projected), np.array([1]))
        widths = np.array([inner, inner + 2 * shared, heads])
        gate, mixed, step = ops.variadic_split(joined, np.int64(1), widths).outputs()
        weights, bias = (numbers(f"{name}.ssm_conv1d.{kind}") for kind in ("weight", "bias"))
        mixed = ops.swish(sequences.convolve(mixed, weights, bias))
        values, *both = ops.variadic_split(mixed, np.int64(1), np.array([inner, shared, shared])).outputs()
        values = ops.reshape(values, np.array([0, heads, inner // heads]), True)
        given, taken = (ops.reshape(part, np.array([0, groups, shared // groups]), True) for part in both)
        step = ops.softplus(ops.add(step, numbers(f"{name}.ssm_dt.bias")[None]))
        decays = ops.constant(numbers(f"{name}.ssm_a").reshape(-1))
        found = sequences.scan([decays, step, given, values, taken])
        found = ops.add(found, ops.multiply(values, numbers(f"{name}.ssm_d").reshape(1, -1, 1)))
        found = ops.multiply(ops.reshape(found, np.array([0, inner]), True), ops.swish(gate))
        if groups == 1 or not self._layers.has(f"{name}.ssm_norm"):
            return ops.unsqueeze(self._layers.norm(found, f"{name}.ssm_norm"), np.array([1]))
        found = self._layers.unit_norm(ops.reshape(found, np.array([0, groups, inner // groups]), True))
        found = ops.reshape(found, np.array([0, 1, inner]), True)
        return ops.multiply(found, numbers(f"{name}.ssm_norm.weight").reshape(1, 1, -1))

    def _selected(self, layer: int, x: Any, sequences: Sequences) -> Any:
        """Returns the gated result of a layer of Mamba-1's state spaces [tokens, 1, elements].

        Each element has a state of its own, and each number of this state its own decay. So each number is a head of
        one element for OpenVINO's operation, in which a head has one decay: first the first number of all elements.
        """
        name, numbers, first = f"blk.{layer}", self._tensors.numbers, np.array([1])
        inner, size, rank = (
            self._header.number(f"ssm.{key}") for key in ("inner_size", "state_size", "time_step_rank")
        )
        joined = self._layers.product(x, LinearLayer(f"{name}.ssm_in", self._row.path(layer, "mamba.in_proj")))
        values, gate = ops.split(ops.squeeze(joined, first), np.int64(1), 2).outputs()
        weights, bias = (numbers(f"{name}.ssm_conv1d.{kind}") for kind in ("weight", "bias"))
        values = ops.swish(sequences.convolve(values, weights, bias))
        shown = LinearLayer(f"{name}.ssm_x", self._row.path(layer, "mamba.x_proj"))
        shown = self._layers.product(ops.unsqueeze(values, first), shown)
        parts = ops.variadic_split(shown, np.int64(-1), np.array([rank, size, size])).outputs()
        if self._header.metadata.get(f"{self._header.architecture}.ssm.dt_b_c_rms") is True:
            parts = [self._layers.unit_norm(part) for part in parts]
        norms = (f"{name}.ssm_{part}_norm" for part in ("dt", "b", "c"))
        step, *both = (self._layers.norm(part, norm) for part, norm in zip(parts, norms, strict=True))
        step = self._layers.product(step, LinearLayer(f"{name}.ssm_dt", self._row.path(layer, "mamba.dt_proj")))
        step = ops.softplus(ops.squeeze(step, first))
        given, taken = (ops.transpose(part, np.array([0, 2, 1])) for part in both)
        steps, heads = (ops.concat([each] * size, 1) for each in (step, values))
        decays = ops.constant(np.ascontiguousarray(numbers(f"{name}.ssm_a").T).reshape(-1))
        found = sequences.scan([decays, steps, given, ops.unsqueeze(heads, np.array([2])), taken])
        found = ops.reduce_sum(ops.reshape(found, np.array([0, size, inner]), True), first, False)
        found = ops.add(found, ops.multiply(values, numbers(f"{name}.ssm_d").reshape(1, -1)))
        return ops.unsqueeze(ops.multiply(found, ops.swish(gate)), first)

    def _delta_name(self, layer: int, place: str) -> str:
        """Returns the name in transformers of a part of a delta net layer, or "" if its heads have
        another order there."""
        same = self._header.number("ssm.group_count") == self._header.number("ssm.time_step_rank")
        return f"model.layers.{layer}.linear_attn.{place}" if same else ""


def _by_parts(heads: int, sizes: list[int]) -> Order:
    """Returns the order that puts the same part of all heads together, in rows where each head has all of its parts.

    Args:
        heads: The number of heads.
        sizes: The number of rows of each part of a head.
    """
    rows = np.arange(heads * sum(sizes)).reshape(heads, -1)
    return np.concatenate([part.reshape(-1) for part in np.split(rows, np.cumsum(sizes)[:-1], 1)])
