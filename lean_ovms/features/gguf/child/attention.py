"""Attention: its inputs, and its two forms, paged attention and attention with a mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from openvino import Output
from openvino import opset13 as ops
from openvino.op import _PagedAttentionExtension

from .layers import Floats


@dataclass(frozen=True, slots=True)
class Projected:
    """The inputs of one attention layer: projected queries, keys and values, and how they are combined."""

    values: list[Any]
    """Queries, keys and values [tokens, heads * size of a head]."""
    heads: list[int]
    """The number of heads of queries, keys and values."""
    sizes: list[int]
    """The size of a head of queries, keys and values."""
    scale: np.float32
    """The factor of the dot products of queries and keys."""
    window: int
    """The size of the sliding window in tokens; 0 if there is none."""
    sinks: Any = None
    """The logits of the attention sinks; None if there are none."""
    cap: float = 0.0
    """The soft cap of the attention logits; 0 if there is none."""
    slopes: tuple[float, ...] = ()
    """By how much the attention logits of each head fall with the distance of two tokens (ALiBi); () if they do not."""


class Sequences(Protocol):
    """Builds the operations in which a token depends on the tokens before it in its sequence."""

    def attend(self, rows: Projected) -> Any:
        """Returns the result of an attention [tokens, heads * size of a value]."""

    def remember(self, rows: list[Any]) -> Any:
        """Returns the results of a layer of gated delta nets [tokens, heads, size of a head].

        Args:
            rows: Queries, keys and values [tokens, heads, size of a head], and gates and betas [tokens, heads].
        """

    def scan(self, rows: list[Any]) -> Any:
        """Returns the results of a layer of selective state spaces, such as Mamba 2 [tokens, heads, size of a head].

        Args:
            rows: A [heads], dt [tokens, heads], B [tokens, groups, size of the state], x [tokens, heads, size of a
                head], and C, which has the shape of B.
        """

    def convolve(self, values: Any, weights: Floats, bias: Floats | None = None) -> Any:
        """Returns a causal convolution over tokens [tokens, channels].

        Args:
            values: The values [tokens, channels].
            weights: The weights of the kernel [channels, tokens]; the last one is that of the token itself.
            bias: The bias [channels]; None if there is none.
        """


def paged(rows: Projected, state: list[Any], longest: Any, marks: Any = None) -> Any:
    """Returns the result of OpenVINO's PagedAttentionExtension [tokens, heads * size of a value].

    The operation has no soft cap; `capped_attention.insert` adds one to the whole network later.

    Args:
        rows: The inputs of the attention.
        state: The caches of keys and of values, and the inputs that describe the sequences.
        longest: The input with the length of the longest sequence.
        marks: 1 for tokens of images, which attend to each other in both directions, 0 for others [tokens, 1]; None if
            there are no such tokens.
    """
    sinks = _constant(np.zeros([0, 0, 0, 0]), np.float32) if rows.sinks is None else rows.sinks
    floats, ints = _constant([], np.float32), _constant([], np.int32)
    flags, zero = _constant([], np.uint8), _constant(0, np.int32)
    unused = [ints, ints, ints, floats, floats, zero, zero]  # importance of tokens, rotation, sparse attention
    types = ints if marks is None else marks
    behind = [zero, ints, ints, ints, types, flags, ints]  # eviction, types of tokens, trees of draft tokens
    slopes = _constant(rows.slopes, np.float32)
    scaled = [_constant(rows.scale, np.float32), _constant(rows.window, np.int32), slopes, longest]
    values = [*rows.values, *state, *scaled, *unused, sinks, *behind]
    found = _PagedAttentionExtension([value if isinstance(value, Output) else value.output(0) for value in values])
    described = found.get_rt_info()
    for kind, heads, size in zip("kv", rows.heads[1:], rows.sizes[1:], strict=True):
        described[f"num_{kind}_heads"], described[f"{kind}_head_size"] = heads, size
    return found.output(0)


def masked(rows: Projected, shape: Any, seen: Any) -> Any:
    """Returns the result of an attention in a batch of padded texts [tokens, heads * size of a value].

    Args:
        rows: The inputs of the attention.
        shape: The number of texts, and the padded number of tokens of each, as an output.
        seen: The mask [texts or 1, 1 or heads, tokens, tokens] of the tokens to which each token attends, or numbers
            that are added to the attention logits.
    """
    parts = []
    for value, heads, size in zip(rows.values, rows.heads, rows.sizes, strict=True):
        sizes = ops.concat([shape, ops.constant(np.array([heads, size]))], 0)
        part = ops.transpose(ops.reshape(value, sizes, False), np.array([0, 2, 1, 3]))
        parts.append(_repeated(part, rows.heads[0] // heads))
    query, key, value = parts
    if rows.cap:
        found = _capped(query, key, value, seen, rows)
    else:
        found = ops.scaled_dot_product_attention(query, key, value, seen, ops.constant(rows.scale))
    width = np.array([-1, rows.heads[0] * rows.sizes[2]])
    return ops.reshape(ops.transpose(found, np.array([0, 2, 1, 3])), width, False)


def slopes_of(heads: int, most: float = 8.0) -> tuple[float, ...]:
    """Returns the slope of each head by ALiBi (arXiv:2108.12409): the powers of a number, and for the heads beyond a
    power of two every second one of the powers for twice as many heads.

    Args:
        heads: The number of heads.
        most: The negative logarithm to base 2 of the smallest slope.
    """
    whole = 1 << heads.bit_length() - 1
    base = 2.0 ** (-most / whole)
    return tuple(base ** (head + 1) if head < whole else base ** (head - whole + 0.5) for head in range(heads))


def _capped(query: Any, key: Any, value: Any, seen: Any, rows: Projected) -> Any:
    """Returns the result of an attention with a soft cap [texts, heads, tokens, size of a value].

    Args:
        query: The queries [texts, heads, tokens, size of a head].
        key: The keys, with as many heads.
        value: The values, with as many heads.
        seen: The mask of the tokens to which each token attends.
        rows: The inputs of the attention, of which the cap and the scale are used.
    """
    products = ops.multiply(ops.matmul(query, key, False, True), np.float32(rows.scale / rows.cap))
    products = ops.multiply(ops.tanh(products), np.float32(rows.cap))
    shown = ops.select(seen, products, np.float32(-np.inf))
    return ops.matmul(ops.softmax(shown, -1), value, False, False)


def _repeated(part: Any, times: int) -> Any:
    """Repeats each head of keys or values [texts, heads, tokens, size of a head] for the query heads that share it."""
    if times == 1:
        return part
    order = np.repeat(np.arange(part.get_output_partial_shape(0)[1].get_length()), times)
    return ops.gather(part, ops.constant(order), np.int64(1))


def _constant(value: Any, kind: Any) -> Any:
    return ops.constant(np.array(value, kind))
