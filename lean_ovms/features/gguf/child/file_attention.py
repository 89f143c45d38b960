"""Builds the attention of a decoder from the tensors of a file: its projections, positions, windows and gates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from openvino import opset13 as ops

from ..architectures import ARCHITECTURES, MANY, Architecture
from ..header import Header
from . import layers
from .attention import Projected, Sequences, slopes_of
from .file_layers import FileLayers, LinearLayer, halves
from .positions import frequencies, unscaled
from .tensors import Tensors

VALUES = 2
"""The index of the values, after queries and keys."""
GATES: dict[str, Callable[[Any], Any]] = {"sigmoid": ops.sigmoid, "softplus": ops.softplus}
"""The functions of the gates of the attention's results, by name."""


class Heads(NamedTuple):
    """The attention heads of a layer."""

    counts: list[int]
    """The number of heads of queries, keys and values."""
    sizes: list[int]
    """The size of a head of queries, keys and values."""
    rotated: int
    """The number of a head's elements that RoPE rotates."""


def attention_cap(header: Header) -> float:
    """Returns the soft cap of the attention logits of a file's network; 0 if there is none."""
    return _cap(header, "attn_logit_softcapping", ARCHITECTURES[header.architecture].attention_cap)


def logits_cap(header: Header) -> float:
    """Returns the soft cap of the final logits of a file's network; 0 if there is none."""
    return _cap(header, "final_logit_softcapping", ARCHITECTURES[header.architecture].logits_cap)


def _cap(header: Header, name: str, usual: float | None) -> float:
    """Returns a soft cap, or 0 if there is none.

    Args:
        header: The header of the file.
        name: The key of the cap, without the name of the architecture.
        usual: The cap if the file has none; None if networks of the architecture have no cap, whatever the file says.
    """
    return 0.0 if usual is None else header.real(name, usual)


class FileAttention:
    """Builds the attention of a decoder's layers from the tensors of a file."""

    def __init__(self, tensors: Tensors, linear: FileLayers, row: Architecture) -> None:
        """Keeps what the attention is built from.

        Args:
            tensors: The tensors of the file.
            linear: Builds linear layers and norms.
            row: The differences of the architecture.
        """
        self._header = header = tensors.header
        self._tensors = tensors
        self._layers = linear
        self._row = row
        self._width = header.number("embedding_length")
        self._listed = range(len(header.numbers("attention.head_count")))
        """The layers that have a number of heads of their own."""
        self._sharing = header.layers - header.number("attention.shared_kv_layers")
        self._shared: dict[bool, list[Any]] = {}
        """The keys and values of the last layer with a sliding window, and of the last one without."""
        self._turned: dict[bool, layers.Cosine] = {}
        self._temperature: Any = None
        # Where images have positions by axes, llama.cpp's converter has put the pairs apart already.
        self._moves_pairs = self._row.pairs and not header.sections
        row, depth = self._row, header.number("block_count")
        usual = 0.0 if row.sloped_depth and row.sloped_depth != depth else row.slope
        self._slope = header.real("attention.max_alibi_bias", usual)
        """The negative logarithm to base 2 of the smallest slope of ALiBi; 0 without ALiBi."""
        self._trained = f"{header.architecture}.rope.scaling.finetuned"

    def attended(self, layer: int, x: Any, positions: Any, sequences: Sequences) -> Any:
        """Returns the result of a layer's attention [tokens, 1, elements], before it is projected.

        Args:
            layer: The number of the layer.
            x: The normalized input of the layer.
            positions: The positions of the tokens.
            sequences: Builds the attention.
        """
        attention = self._latent if self._layers.has(f"blk.{layer}.attn_kv_a_mqa") else self._multi_head
        return attention(layer, x, positions, sequences)

    def _heads(self, layer: int) -> Heads:
        header, local = self._header, "_swa" if self._window(layer) else ""
        heads = header.number_of("attention.head_count", layer)
        keys = header.number_of("attention.head_count_kv", layer) or heads

        def number(name: str) -> int:
            return header.number(f"{name}{local}") or header.number(name)

        size = number("attention.key_length") or self._width // heads
        sizes = [size, size, number("attention.value_length") or size]
        rotated = number("rope.dimension_count") or size
        halved = self._row.half_rotated and not local
        return Heads([heads, keys, keys], sizes, min(size, rotated // 2 if halved else rotated))

    def _multi_head(self, layer: int, x: Any, positions: Any, sequences: Sequences) -> Any:
        """Returns the result of a layer's attention [tokens, 1, heads * size], before it is projected."""
        window, heads = self._window(layer), self._heads(layer)
        projected, gate = self._projections(layer, x, heads), None
        width = heads.counts[0] * heads.sizes[2]
        if self._is_gated(layer, heads):
            both = ops.reshape(projected[0], np.array([0, heads.counts[0], 2, heads.sizes[0]]), True)
            projected[0], gate = (
                ops.reshape(part, np.array([0, 1, width]), True) for part in ops.split(both, np.int64(2), 2).outputs()
            )
        elif self._layers.has(f"blk.{layer}.attn_gate"):
            gate = LinearLayer(f"blk.{layer}.attn_gate", self._row.path(layer, "self_attn.gate_proj"))
            gate = self._layers.product(x, gate)
        values = [
            ops.reshape(self._placed(value, layer, place, positions, heads), np.array([0, -1]), True)
            for place, value in enumerate(projected)
        ]
        if layer < self._sharing:
            self._shared[bool(window)] = values[1:]
        elif (shared := self._shared.get(bool(window))) is None:
            raise ValueError(f"layer {layer} shares keys and values with a layer that does not exist")
        else:
            values += shared
        depth = self._header.number("block_count")
        size = self._width / heads.counts[0] if depth == self._row.scales_by_width else heads.sizes[0]
        scale = self._header.real("attention.scale", self._row.attention_scale or size**self._row.attention_power)
        sinks = None
        if (name := f"blk.{layer}.attn_sinks.weight") in self._tensors:
            sinks = ops.constant(self._tensors.numbers(name).reshape(1, -1, 1, 1))
        cap, slopes = attention_cap(self._header), slopes_of(heads.counts[0], self._slope) if self._slope else ()
        counts, group, more = self._evened(heads, sinks is not None)
        values[0] = _grouped(values[0], counts[1], group, heads.sizes[0], more)
        attention = Projected(values, counts, heads.sizes, np.float32(scale), window, sinks, cap, slopes)
        found = _grouped(sequences.attend(attention), counts[1], group + more, heads.sizes[2], -more)
        found = ops.reshape(found, np.array([0, 1, width]), True)
        found = layers.times(found, self._header.real("attention.value_scale", 1.0))
        if gate is None:
            return found
        gate = GATES[self._row.gate](gate)
        if layers.partial_shape(gate)[-1].get_length() == width:
            return ops.multiply(found, gate)
        by_head = np.array([0, heads.counts[0], heads.sizes[2]])  # and a gate for each head
        found = ops.multiply(ops.reshape(found, by_head, True), ops.reshape(gate, np.array([0, -1, 1]), True))
        return ops.reshape(found, np.array([0, 1, width]), True)

    def _evened(self, heads: Heads, sunk: bool) -> tuple[list[int], int, int]:
        """Returns the numbers of heads with which OpenVINO computes a layer, those of queries for each head of keys,
        and how many of them are added.

        OpenVINO (2026.4.1) computes all layers with one object, which writes beyond its memory if layers have as many
        heads of keys but not of queries.

        Args:
            heads: The heads of the layer.
            sunk: Whether the layer has attention sinks.
        """
        keys, group = heads.counts[1], heads.counts[0] // heads.counts[1]
        name = "attention.head_count"
        each = [[self._header.number_of(part, layer) for part in (name, f"{name}_kv")] for layer in self._listed]
        most = max((other for other, groups in each if groups == keys), default=heads.counts[0])
        more = max(most // keys - group, 0)
        if more and (sunk or most % keys):
            raise ValueError(f"its layers have {heads.counts[0]} and {most} heads of queries, which is not supported")
        return [keys * (group + more), keys, keys], group, more

    def _latent(self, layer: int, x: Any, positions: Any, sequences: Sequences) -> Any:
        """Returns the result of DeepSeek's multi-head latent attention [tokens, 1, heads * size of a value].

        All heads share one key, which is a latent vector and a part with RoPE, and the latent vector as their value.
        Only these are in the KV cache. Queries are projected to the latent space, and results are projected back.
        """
        name, number = f"blk.{layer}", self._header.number
        heads, rank = number("attention.head_count"), number("attention.kv_lora_rank")
        turned = number("rope.dimension_count")
        plain = (number("attention.key_length_mla") or number("attention.key_length")) - turned
        if self._layers.has(f"{name}.attn_q_a"):
            queries = self._layers.product(x, LinearLayer(f"{name}.attn_q_a", ""))
            queries, last = self._layers.norm(queries, f"{name}.attn_q_a_norm"), "attn_q_b"
        else:
            queries, last = x, "attn_q"
        if plain <= 0 or self._tensors.rows(f"{name}.{last}.weight") != heads * (plain + turned):
            raise ValueError(f"the rows of {name}.{last}.weight are not {heads} heads of {plain + turned} elements")
        if self._tensors.rows(f"{name}.attn_kv_a_mqa.weight") != rank + turned:
            raise ValueError(f"the rows of {name}.attn_kv_a_mqa.weight are not {rank} and {turned}")
        order = halves(heads, plain + turned, turned, plain) if self._row.pairs else None
        queries = self._layers.product(queries, LinearLayer(f"{name}.{last}", "", order=order))
        rest, query = _split(ops.reshape(queries, np.array([0, heads, 1, plain + turned]), True), plain, turned)
        order = halves(1, rank + turned, turned, rank) if self._row.pairs else None
        both = LinearLayer(f"{name}.attn_kv_a_mqa", "", order=order)
        latent, key = _split(ops.unsqueeze(self._layers.product(x, both), np.array([2])), rank, turned)
        latent = self._layers.norm(latent, f"{name}.attn_kv_a_norm")
        angles = self._angles(positions, turned, False)
        if self._row.unrotated != 1:
            query, key = (layers.rotate(each, angles, turned, turned) for each in (query, key))
        if self._layers.has(f"{name}.attn_kv_b"):  # in files of older converters
            joined = self._tensors.numbers(f"{name}.attn_kv_b.weight").reshape(heads, -1, rank)
            keys, results = joined[:, :plain].swapaxes(1, 2), joined[:, plain:]
        else:
            keys, results = (self._tensors.numbers(f"{name}.attn_{letter}_b.weight") for letter in "kv")
        rest = _by_heads(rest, keys)
        values = [self._heated(ops.concat([rest, query], -1), positions), ops.concat([latent, key], -1), latent]
        rows = [ops.reshape(value, np.array([0, -1]), True) for value in values]
        sizes = [rank + turned, rank + turned, rank]
        scale = np.float32(self._latent_scale(plain + turned))
        found = sequences.attend(Projected(rows, [heads, 1, 1], sizes, scale, 0))
        found = _by_heads(ops.reshape(found, np.array([0, heads, 1, rank]), True), results)
        return ops.reshape(found, np.array([0, 1, -1]), True)

    def _latent_scale(self, size: int) -> float:
        """Returns the attention scale of latent attention, which YaRN increases.

        Args:
            size: The number of elements of a head's query.
        """
        more = self._header.real("rope.scaling.yarn_log_multiplier", 0.0)
        factor = self._header.real("rope.scaling.factor", 1.0) if self._header.scaling == "yarn" else 1.0
        growth = 1 + more * math.log(factor)
        return growth * growth / math.sqrt(size)

    def _is_gated(self, layer: int, heads: Heads) -> bool:
        """Returns whether the query projection also has the gates of the attention's results, head by head."""
        name = f"blk.{layer}.attn_q"
        rows = heads.counts[0] * heads.sizes[0]
        return self._layers.has(name) and self._tensors.rows(f"{name}.weight") == 2 * rows

    def _placed(self, value: Any, layer: int, place: int, positions: Any, heads: Heads) -> Any:
        """Applies norm and RoPE to queries or keys, and the norm to values.

        Args:
            value: The queries, keys or values [tokens, 1, heads * size].
            layer: The number of the layer.
            place: 0 for queries, 1 for keys, 2 for values.
            positions: The positions of the tokens.
            heads: The heads of the layer.
        """
        count, size, name = heads.counts[place], heads.sizes[place], f"blk.{layer}.attn_{'qkv'[place]}_norm"
        if place == VALUES:
            apart = np.array([0, count, 1, size])
            return self._layers.unit_norm(ops.reshape(value, apart, True)) if self._row.unit_values else value
        shape = self._tensors.shape(f"{name}.weight") if self._layers.has(name) else [size]
        if len(shape) > 1:
            raise ValueError(f"{name} has other weights for each head, which is not supported")
        for_each = shape[-1] == size
        value = value if for_each else self._layers.norm(value, name)
        value = ops.reshape(value, np.array([0, count, 1, size]), True)
        order = halves(1, size, heads.rotated) if self._moves_pairs and not self._row.permuted else None
        value = self._layers.norm(value, name, order) if for_each and not self._row.late_norms else value
        if not self._is_rotated(layer):
            return value
        angles = self._angles(positions, heads.rotated, bool(self._window(layer)))
        found = layers.rotate(value, angles, size, heads.rotated)
        found = self._layers.norm(found, name, order) if self._row.late_norms else found
        if self._row.unit_keys and self._header.number("expert_count") < MANY:
            found = self._layers.unit_norm(found)
        return found if place else self._heated(found, positions)

    def _is_rotated(self, layer: int) -> bool:
        """Returns whether queries and keys of a layer are rotated by RoPE."""
        row, get = self._row, self._header.metadata.get
        if self._slope:
            return False
        if row.rotated_windows:
            return self._window(layer) > 0 or layer < self._header.number("leading_dense_block_count")
        listed = get(f"{self._header.architecture}.attention.rope_pattern")
        if isinstance(listed, list) and layer < len(listed):
            return bool(listed[layer])
        if row.unrotated and (not row.windowed or self._header.number("attention.sliding_window")):
            return self._in_period(layer, row.unrotated) > 0
        return not row.switched or get(self._trained) is not False

    def _in_period(self, layer: int, period: int) -> int:
        """Returns the place of a layer in its period; 0 for the one that differs from the others."""
        return (layer + (not self._row.first)) % period

    def _heated(self, queries: Any, positions: Any) -> Any:
        """Multiplies queries by a factor that grows with their positions, if the file has its temperature scale."""
        growth, period = self._header.real("attention.temperature_scale", 0.0), 0
        if not growth:
            return queries
        for key in ("attention.temperature_length", "rope.scaling.original_context_length"):
            period = period or self._header.number(key)
        if not period:
            raise KeyError(f"{self._header.architecture}.rope.scaling.original_context_length")
        if self._temperature is None:
            self._temperature = layers.temperature(positions, growth, period)
        return ops.multiply(queries, self._temperature)

    def _projections(self, layer: int, x: Any, heads: Heads) -> list[Any]:
        """Returns queries, keys and values [tokens, 1, heads * size]; only queries if the layer shares keys and values.

        Args:
            layer: The number of the layer.
            x: The normalized input of the layer.
            heads: The heads of the layer.
        """
        joined, start, parts = f"blk.{layer}.attn_qkv", 0, list[LinearLayer]()
        for letter, count, size in zip("qkv", heads.counts, heads.sizes, strict=True):
            if letter != "q" and layer >= self._sharing:
                break
            turned = size if self._row.permuted else heads.rotated  # the converter permutes all rows of a head
            order = halves(count, size, turned) if self._moves_pairs and letter != "v" else None
            rows = slice(start, start := start + count * size)
            name = f"blk.{layer}.attn_{letter}"
            name, rows = (joined, rows) if self._layers.has(joined) else (name, slice(None))
            # If rows are reordered, an adapter's rows would not match.
            moved = order is not None and not self._row.permuted
            place = "" if moved else self._row.path(layer, f"self_attn.{letter}_proj")
            if letter != "v" or not self._row.unit_values or self._layers.has(name):
                parts.append(LinearLayer(name, place, rows, order))
        found = self._layers.products(x, parts)
        if limit := self._header.real("attention.clamp_kqv", 0.0):
            found = [ops.clamp(each, -limit, limit) for each in found]
        return found if layer >= self._sharing or len(found) > VALUES else [*found, found[-1]]

    def _window(self, layer: int) -> int:
        pattern = self._header.metadata.get(f"{self._header.architecture}.attention.sliding_window_pattern")
        period = pattern if type(pattern) is int else self._row.window_period
        listed = isinstance(pattern, list) and layer < len(pattern)
        local = bool(pattern[layer]) if listed else bool(period and self._in_period(layer, period))
        return self._header.number("attention.sliding_window") or self._row.window if local else 0

    def _angles(self, positions: Any, rotated: int, local: bool) -> layers.Cosine:
        """Returns the cosines and sines of RoPE for positions.

        Args:
            positions: The positions of the tokens [tokens], or [3, tokens] by time, row and column.
            rotated: The number of a head's elements that RoPE rotates.
            local: Whether the layer has a sliding window.
        """
        local = local and (self._row.unscaled_windows or bool(self._row.local_base))
        if local not in self._turned:
            if local:
                usual = self._row.local_base or self._header.real("rope.freq_base", 10000.0)
                base = self._header.real("rope.freq_base_swa", usual)
                found, factor = unscaled(base, rotated), 1.0
            else:
                whole = self._row.whole_ramp
                found, factor = frequencies(self._header, self._tensors, rotated, whole_ramp=whole)
            numbers = found.astype(np.float32)
            if positions.get_output_partial_shape(0).rank.get_length() > 1:
                numbers = self._by_axes(numbers)
            self._turned[local] = layers.angles(positions, numbers, factor)
        return self._turned[local]

    def _by_axes(self, numbers: layers.Floats) -> layers.Floats:
        """Returns frequencies [pairs, 3], each in the column of the axis whose positions rotate the pair, 0 in the
        others."""
        sections, axes = self._header.sections[:3], np.zeros(len(numbers), np.int64)
        if self._row.interleaved:
            for axis in (1, 2):
                axes[axis : 3 * sections[axis] : 3] = axis
        else:
            behind = np.repeat(np.arange(3), sections)[: len(axes)]
            axes[: len(behind)] = behind
        found: layers.Floats = np.where(axes[:, None] == np.arange(3), numbers[:, None], np.float32(0))
        return found


def _grouped(x: Any, keys: int, group: int, size: int, more: int) -> Any:
    """Returns rows of heads [tokens, heads * size], with heads of zeros added to each group, or without its last ones.

    Args:
        x: The rows.
        keys: The number of groups.
        group: The number of heads in a group.
        size: The number of elements of a head.
        more: The number of heads that are added to each group, or if negative removed from it.
    """
    if not more:
        return x
    x = ops.reshape(x, np.array([0, keys, group * size]), True)
    if more > 0:
        x = ops.pad(x, np.array([0, 0, 0]), np.array([0, 0, more * size]), "constant", np.float32(0))
    else:
        x = layers.part(x, 0, (group + more) * size)
    return ops.reshape(x, np.array([0, -1]), True)


def _by_heads(x: Any, matrices: layers.Floats) -> Any:
    """Multiplies the vectors of each head [tokens, heads, 1, columns] by the head's own matrix [rows, columns]."""
    order = np.array([1, 0, 2])
    by_heads = ops.transpose(ops.squeeze(x, np.array([2])), order)
    found = ops.matmul(by_heads, ops.constant(np.ascontiguousarray(matrices)), False, True)
    return ops.unsqueeze(ops.transpose(found, order), np.array([2]))


def _split(x: Any, *sizes: int) -> list[Any]:
    """Splits vectors in parts of these sizes."""
    found: list[Any] = ops.variadic_split(x, np.int64(-1), np.array(sizes)).outputs()
    return found
