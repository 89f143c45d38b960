"""The network of a GGUF file: a decoder in the form of optimum-intel's exports, built of the file's tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from openvino import opset13 as ops

from ....engine.errors import last_line
from ....errors import StartError
from ..architectures import ARCHITECTURES
from ..header import EXPORT, PULL_AGAIN, Header
from . import layers
from .attention import Attend, Projected
from .tensors import Matrix, Order, TensorRows, Tensors

VALUES = 2
"""The place of values behind queries and keys."""
LAYER = re.compile(r"blk\.(\d+)\.(.+)")
WHOLE = {"token_embd.weight", "output.weight", "output_norm.weight", "rope_freqs.weight"}
PARTS = {
    *(f"attn_{name}.{kind}" for name in ("q", "k", "v", "qkv", "output") for kind in ("weight", "bias")),
    *("attn_norm.weight", "attn_q_norm.weight", "attn_k_norm.weight", "post_attention_norm.weight"),
    *("ffn_norm.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight", "post_ffw_norm.weight"),
}
"""The tensors that a decoder has, and those of each of its layers. One with others is of a kind that is not known."""


def builds(header: Header) -> bool:
    """Returns whether a file is of an architecture and of tensors that are known here."""
    if header.architecture not in ARCHITECTURES:
        return False
    scaling = header.metadata.get(f"{header.architecture}.rope.scaling.type", "none")
    return scaling in ("none", "linear") and all(map(_known, header.tensors))


def _known(name: str) -> bool:
    found = LAYER.fullmatch(name)
    return name in WHOLE if found is None else found[2] in PARTS


@contextmanager
def building(path: Path, header: Header, *, adapted: bool = False) -> Iterator[FileDecoder]:
    """Yields the decoder of a file, with the file's tensors open.

    Args:
        path: the GGUF file.
        header: its header.
        adapted: whether layers stay apart that would be computed as one, so that adapters can change each of them.

    Raises:
        StartError: what is built of the file fails, whatever the error.
    """
    try:
        with Tensors(path, header) as tensors:
            yield FileDecoder(header, tensors, adapted)
    except KeyError as error:
        raise StartError(f"{path} is not a whole GGUF file: it has no {error.args[0]}; {PULL_AGAIN}") from error
    except (RuntimeError, ValueError, IndexError, ArithmeticError, OSError) as error:  # of sizes that do not fit
        raise StartError(f"{path} cannot be served: {last_line(error)}; {EXPORT}") from error


class LinearLayer(NamedTuple):
    """A linear layer: a tensor, or a part of its rows."""

    tensor: str
    """The name of the tensor and of its bias, without their ends."""
    name: str
    """The name of the layer in transformers; empty: adapters cannot change it."""
    rows: slice = slice(None)
    """The rows that are taken."""
    order: Order | None = None
    """The order in which these are taken; None: their own."""

    @property
    def matrix(self) -> TensorRows:
        """The rows of the tensor."""
        return TensorRows(f"{self.tensor}.weight", self.rows, self.order)

    @property
    def bias(self) -> str:
        """The name of its bias."""
        return f"{self.tensor}.bias"


class FileDecoder:
    """A decoder while its network is built from the tensors of a file."""

    def __init__(self, header: Header, tensors: Tensors, adapted: bool) -> None:
        """Reads the sizes of the network from the header, and its embeddings from the tensors.

        Args:
            header: the header of the file.
            tensors: the tensors of the file.
            adapted: whether layers stay apart that would be computed as one, so that adapters can change each of them.
        """
        self._header = header
        self._adapted = adapted
        self._tensors = tensors
        self._row = ARCHITECTURES[header.architecture]
        self._width = header.number("embedding_length")
        heads = header.number("attention.head_count")
        keys = header.number("attention.head_count_kv") or heads
        size = header.number("attention.key_length") or self._width // heads
        self._heads = [heads, keys, keys]
        self._sizes = [size, size, header.number("attention.value_length") or size]
        self._epsilon = self._float("attention.layer_norm_rms_epsilon", 1e-5)
        self._logits_scale = 1 / self._float("logit_scale", 1.0)
        self._rotated = min(size, header.number("rope.dimension_count") or size)
        self._embeddings = tensors.matrix(TensorRows("token_embd.weight"))
        self._sums = layers.Sums()
        self._turned: dict[bool, layers.Cosine] = {}

    def hidden(self, tokens: Any, positions: Any, attend: Attend, wanted: Any = None) -> Any:
        """Returns the hidden states [tokens, 1, width] before the last projection.

        Args:
            tokens: The ids of tokens [tokens].
            positions: Their positions.
            attend: Computes the attentions.
            wanted: The places of the tokens whose states are wanted, for which alone all behind the last attention is
                computed; None: of all.
        """
        ids = ops.convert(ops.unsqueeze(tokens, np.int32(1)), "i32")
        x = layers.looked_up(self._embeddings, ids)
        scale = math.sqrt(self._width) if self._row.scaled_embeddings else self._float("embedding_scale", 1.0)
        x = _times(x, scale)
        more = self._float("residual_scale", 1.0)
        for layer in range(count := self._header.number("block_count")):
            result = self._attention(layer, self._norm(x, f"blk.{layer}.attn_norm"), positions, attend)
            if layer == count - 1 and wanted is not None:
                x, result = (ops.gather(each, wanted, np.array([0])) for each in (x, result))
            place = f"model.layers.{layer}.self_attn.o_proj"
            result = self._product(result, LinearLayer(f"blk.{layer}.attn_output", place))
            x = ops.add(x, _times(self._norm(result, f"blk.{layer}.post_attention_norm"), more))
            result = self._forward(layer, self._norm(x, f"blk.{layer}.ffn_norm"))
            x = ops.add(x, _times(self._norm(result, f"blk.{layer}.post_ffw_norm"), more))
        return self._norm(x, "output_norm")

    def logits(self, hidden: Any) -> Any:
        """Returns the logits of hidden states."""
        return _times(layers.product(hidden, self.head(), self._sums, None, "lm_head"), self._logits_scale)

    def head(self) -> Matrix:
        """Returns the matrix that makes logits of hidden states, before they are scaled."""
        return self._tensors.matrix(TensorRows("output.weight")) if self._has("output") else self._embeddings

    def _attention(self, layer: int, x: Any, positions: Any, attend: Attend) -> Any:
        """Returns the result of an attention [tokens, 1, heads * size], before it is projected."""
        window = self._window(layer)
        values = [
            ops.reshape(self._placed(value, layer, place, positions, bool(window)), np.array([0, -1]), True)
            for place, value in enumerate(self._projections(layer, x))
        ]
        by = self._header.number("block_count") == self._row.scales_by_width
        scale = self._float("attention.scale", (self._width / self._heads[0] if by else self._sizes[0]) ** -0.5)
        found = attend(Projected(values, self._heads, self._sizes, np.float32(scale), window))
        width = self._heads[0] * self._sizes[2]
        return ops.reshape(found, np.array([0, 1, width]), True)

    def _placed(self, value: Any, layer: int, place: int, positions: Any, local: bool) -> Any:
        """Returns queries, keys or values with their norm and, but for values, turned by their positions.

        Args:
            value: They themselves [tokens, 1, heads * size].
            layer: The number of the layer.
            place: Which of them they are: 0, 1 or 2.
            positions: The positions of the tokens.
            local: Whether the layer has a sliding window.
        """
        heads, size, name = self._heads[place], self._sizes[place], f"blk.{layer}.attn_{'qkv'[place]}_norm"
        if place == VALUES:
            return value
        for_each = not self._has(name) or self._tensors.shape(f"{name}.weight")[-1] == size
        value = value if for_each else self._norm(value, name)
        value = ops.reshape(value, np.array([0, heads, 1, size]), True)
        value = self._norm(value, name) if for_each else value
        if self._row.unrotated and (layer + 1) % self._row.unrotated == 0:
            return value
        return layers.rotate(value, self._angles(positions, local), size, self._rotated)

    def _projections(self, layer: int, x: Any) -> list[Any]:
        """Returns queries, keys and values [tokens, 1, heads * size]."""
        joined, start, parts = f"blk.{layer}.attn_qkv", 0, list[LinearLayer]()
        for letter, heads, size in zip("qkv", self._heads, self._sizes, strict=True):
            order = _halves(heads, size, self._rotated) if self._row.pairs and letter != "v" else None
            rows = slice(start, start := start + heads * size)
            name = f"blk.{layer}.attn_{letter}"
            name, rows = (joined, rows) if self._has(joined) else (name, slice(None))
            moved = order is not None and not self._row.permuted  # an adapter's rows would be those of other elements
            place = "" if moved else f"model.layers.{layer}.self_attn.{letter}_proj"
            parts.append(LinearLayer(name, place, rows, order))
        return self._products(x, parts)

    def _forward(self, layer: int, x: Any) -> Any:
        gate, up, down = (f"blk.{layer}.ffn_{name}" for name in ("gate", "up", "down"))
        place, rows, more = f"model.layers.{layer}.mlp", slice(None), slice(None)
        if not self._has(gate):
            half = self._tensors.shape(f"{up}.weight")[0] // 2
            gate, rows, more = up, slice(half), slice(half, None)
        # Apart: OpenVINO applies the function of the gate before it rounds to bf16.
        gated = self._product(x, LinearLayer(gate, f"{place}.gate_proj", rows))
        shown = self._product(x, LinearLayer(up, f"{place}.up_proj", more))
        x = ops.multiply(layers.ACTIVATIONS[self._row.activation](gated), shown)
        return self._product(x, LinearLayer(down, f"{place}.down_proj"))

    def _products(self, x: Any, parts: list[LinearLayer]) -> list[Any]:
        """Returns the products of x and layers. Those of one type are one product, unless it takes adapters."""
        found = []
        for _, same in groupby(parts, self._joins):
            together = [*same]
            if self._adapted or len(together) == 1:
                found += [self._product(x, one) for one in together]
            else:
                sizes = [self._tensors.count(one.matrix) for one in together]
                found += ops.variadic_split(self._product(x, *together), np.int64(-1), np.array(sizes)).outputs()
        return found

    def _joins(self, layer: LinearLayer) -> tuple[int, bool]:
        """Returns what layers have in common whose products can be one: their type, and whether they have biases."""
        return self._tensors.kind(layer.matrix.tensor), layer.bias in self._tensors

    def _product(self, x: Any, *together: LinearLayer) -> Any:
        """Returns the product of x and layers that can be one, one after the other, with their biases."""
        matrix = self._tensors.matrix(*(one.matrix for one in together))
        biases = [self._bias(one) for one in together if one.bias in self._tensors]
        name = together[0].name if len(together) == 1 else ""
        return layers.product(x, matrix, self._sums, np.concatenate(biases) if biases else None, name)

    def _bias(self, layer: LinearLayer) -> layers.Floats:
        found = self._tensors.numbers(layer.bias)[layer.rows]
        return found if layer.order is None else found[layer.order]

    def _norm(self, x: Any, name: str) -> Any:
        """Returns the norm of values where the file has one of this name, else the values."""
        if not self._has(name):
            return x
        return layers.norm(x, self._tensors.numbers(f"{name}.weight"), self._epsilon)

    def _has(self, name: str) -> bool:
        return f"{name}.weight" in self._tensors

    def _window(self, layer: int) -> int:
        period = self._row.window_period
        return self._header.number("attention.sliding_window") if period and (layer + 1) % period else 0

    def _angles(self, positions: Any, local: bool) -> layers.Cosine:
        """Returns the cosines and sines of positions. local: of a layer with a sliding window."""
        local = local and bool(self._row.local_base)
        if local not in self._turned:
            base = self._float("rope.freq_base", 10000.0)
            if local:
                base = self._float("rope.freq_base_swa", self._row.local_base)
            numbers = np.arange(0, self._rotated, 2, dtype=np.float64) / self._rotated
            frequencies = base**-numbers
            if not local:
                frequencies = frequencies / (self._float("rope.scaling.factor", 1.0) or 1.0)
                if "rope_freqs.weight" in self._tensors:
                    frequencies = frequencies / self._tensors.numbers("rope_freqs.weight").astype(np.float64)
            self._turned[local] = layers.angles(positions, frequencies.astype(np.float32))
        return self._turned[local]

    def _float(self, name: str, default: float) -> float:
        value = self._header.metadata.get(f"{self._header.architecture}.{name}")
        return float(value) if isinstance(value, int | float) else default


def _times(x: Any, factor: float) -> Any:
    return x if factor == 1 else ops.multiply(x, np.float32(factor))


def _halves(heads: int, size: int, rotated: int) -> Order:
    """Returns the order of rows in which those that are turned together are not neighbours, but half of these apart."""
    order = np.arange(heads * size).reshape(heads, size)
    order[:, :rotated] = order[:, :rotated].reshape(heads, -1, 2).swapaxes(1, 2).reshape(heads, rotated)
    return order.reshape(-1)
