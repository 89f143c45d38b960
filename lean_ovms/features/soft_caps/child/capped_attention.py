"""Attention with a soft cap: the products of queries and keys become cap * tanh(product / cap) before the softmax.

PagedAttentionExtension has no input for a cap, and optimum-intel's exports leave it out. An operation in numpy replaces
it: OpenVINO calls `CappedAttention.evaluate` in each layer of a step, with the memory of the caches. The operation
writes the keys and values of the step's tokens there, and computes each sequence separately, so that no time is spent
on padding and the memory of a step does not grow with the batch. numpy releases the GIL, so several threads work in
parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ....engine.paged.network import ATTENTION
from ....util.resources import cores

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

INPUTS = range(11)
"""The inputs of PagedAttentionExtension that are kept: queries, keys, values, both caches, the number of cached tokens
of each sequence, the index of each sequence's first token in the step, block indices, the index of each sequence's
first block, the scale of the products, and the sliding window."""
CACHES = (3, 4)
"""The positions of the key cache and the value cache among INPUTS."""
BLOCK = 32
"""Tokens per block of the caches, the same as in OpenVINO's CPU plugin."""
PRODUCTS = 1 << 20
"""The most products of queries and keys that a thread keeps in memory, unless one token alone has more."""
SHARED = 1 << 19
"""Work is shared by several threads from this size: the number of key elements that all tokens of a step attend to."""


def insert(model: Any, cap: float) -> None:
    """Replaces each paged attention of a network by CappedAttention with this cap of queries times keys."""
    for node in model.get_ordered_ops():
        if node.get_type_name() != ATTENTION:
            continue
        described = node.get_rt_info()
        heads = int(described["num_k_heads"].astype(int))
        for place, kind in zip(CACHES, "kv", strict=True):
            table, size = node.input_value(place).get_node(), int(described[f"{kind}_head_size"].astype(int))
            table.set_element_type(ov.Type.f32)
            table.set_partial_shape(ov.PartialShape([-1, BLOCK, heads, size]))
            table.validate_and_infer_types()
        capped = CappedAttention([node.input_value(place) for place in INPUTS], cap)
        capped.set_friendly_name(node.get_friendly_name())
        for reader in node.output(0).get_target_inputs():
            reader.replace_source_output(capped.output(0))
    model.validate_nodes_and_infer_types()


class CappedAttention(ov.Op):  # type: ignore[misc]
    """Attention with a soft cap over a paged KV cache: an OpenVINO operation written in Python."""

    def __init__(self, inputs: list[Any], cap: float) -> None:
        """Creates the operation with its inputs, in the order of INPUTS, and the cap of queries times keys."""
        self._cap = cap
        super().__init__(self, inputs)

    def validate_and_infer_types(self) -> None:
        """Sets the shape of the result: [tokens, heads * size of a value]."""
        tokens, width = self.get_input_partial_shape(0)
        key_size, value_size = (self.get_input_partial_shape(place)[3].get_length() for place in CACHES)
        known = width.get_length() // key_size * value_size if width.is_static else -1
        self.set_output_type(0, ov.Type.f32, ov.PartialShape([tokens, ov.Dimension(known)]))

    def clone_with_new_inputs(self, inputs: list[Any]) -> CappedAttention:
        return CappedAttention(inputs, self._cap)

    def visit_attributes(self, visitor: Any) -> bool:
        return True

    def has_evaluate(self) -> bool:
        return True

    def evaluate(self, outputs: list[Any], inputs: list[Any]) -> bool:
        """Computes the layer for the tokens of a step."""
        queries, keys, values, *caches, past, begins, blocks, first_blocks, scale, window = (
            tensor.data for tensor in inputs
        )
        (groups, key_size), value_size = caches[0].shape[2:], caches[1].shape[3]
        outputs[0].shape = [len(queries), queries.shape[1] // key_size * value_size]
        parts = [
            SequencePart(slice(begin, end), int(computed), blocks[first:last])
            for (begin, end), computed, (first, last) in zip(
                pairwise(begins.tolist()), past.tolist(), pairwise(first_blocks.tolist()), strict=True
            )
        ]
        # All are written first, because a sequence may begin with blocks that another writes in this step.
        for part in parts:
            part.write(keys, caches[0])
            part.write(values, caches[1])
        by_heads = queries.reshape(len(queries), groups, -1, key_size) * np.float32(scale.item() / self._cap)
        found = outputs[0].data.reshape(*by_heads.shape[:3], -1)
        attention = LayerAttention(by_heads, found, (caches[0], caches[1]), np.float32(self._cap), window.item())
        _compute(attention, parts)
        return True


class SequencePart(NamedTuple):
    """The part of a sequence that a step computes."""

    rows: slice
    """The indices of the part's tokens among those of the step."""
    start: int
    """The number of the sequence's tokens before this part."""
    blocks: Ints
    """The blocks of the sequence."""

    def write(self, rows: Floats, cache: Floats) -> None:
        """Writes rows [tokens, heads * size of a head] of the part's keys or values to the cache.

        The cache is [blocks, BLOCK, heads, size of a head]; the rows are those of all tokens of the step.
        """
        written = rows[self.rows]
        blocks, offsets = np.divmod(np.arange(self.start, self.start + len(written)), BLOCK)
        cache[self.blocks[blocks], offsets] = written.reshape(len(written), *cache.shape[2:])


class LayerAttention(NamedTuple):
    """The attention of one layer in one step."""

    queries: Floats
    """The queries [tokens, key heads, queries per key head, size of a head], times the scale, divided by the cap."""
    found: Floats
    """The array for the result, [tokens, key heads, queries per key head, size of a value]."""
    caches: tuple[Floats, Floats]
    """The caches of keys and of values [blocks, BLOCK, heads, size of a head]."""
    cap: np.float32
    """The cap of products."""
    window: int
    """The most tokens that a token attends to; 0 for all tokens before it."""

    def compute(self, part: SequencePart, first: int, last: int, heads: slice) -> None:
        """Computes the attention of some tokens of a sequence.

        Args:
            part: The sequence.
            first: The index of the first token in the part.
            last: The index after the last token.
            heads: The key heads to compute.
        """
        rows = slice(part.rows.start + first, part.rows.start + last)
        begin, end = max(part.start + first + 1 - self.window, 0) if self.window else 0, part.start + last
        keys, values = (_seen(cache[:, :, heads], part.blocks, begin, end) for cache in self.caches)
        queries = self.queries[rows, heads].transpose(1, 2, 0, 3)  # [heads, queries of each, tokens, size]
        groups, shared, tokens, size = queries.shape
        if tokens > 1:  # otherwise numpy's product of a few rows takes three times as long as one of vectors
            queries = queries.reshape(groups, 1, shared * tokens, size)
        # With contiguous rows, whatever layout numpy prefers.
        products = np.empty((*queries.shape[:3], len(keys)), np.float32)
        np.matmul(queries, keys.transpose(1, 2, 0)[:, None], out=products)
        np.tanh(products, out=products)
        products *= self.cap
        if tokens > 1:
            hidden = _hidden(part.start + first, tokens, begin, self.window)
            by_token = products.reshape(groups, shared, tokens, -1)
            np.copyto(by_token, -np.inf, where=hidden)
        products -= products.max(-1, keepdims=True)
        np.exp(products, out=products)
        found = (products @ values.transpose(1, 0, 2)[:, None]) / products.sum(-1, keepdims=True)
        self.found[rows, heads] = found.reshape(groups, shared, tokens, -1).transpose(2, 0, 1, 3)


def _compute(attention: LayerAttention, parts: list[SequencePart]) -> None:
    """Computes the attention of all sequences of a step, in several threads if there is much to compute."""
    groups, shared, size = attention.queries.shape[1:]
    pieces = [piece for part in parts for piece in _pieces(part, groups * shared)]
    elements = sum((last - first) * (part.start + last) for part, first, last in pieces) * groups * size
    threads = most_threads() if elements >= SHARED else 1
    slices = min(groups, -(-threads // max(len(pieces), 1)))
    edges = [groups * number // slices for number in range(slices + 1)]
    tasks: list[Callable[[], None]] = [
        partial(attention.compute, *piece, slice(*heads)) for piece in pieces for heads in pairwise(edges)
    ]
    if threads == 1:
        for task in tasks:
            task()
        return
    futures = [_pool().submit(task) for task in tasks]
    wait(futures)  # all must end before anything may change the caches
    for future in futures:
        future.result()


def _pieces(part: SequencePart, heads: int) -> Iterator[tuple[SequencePart, int, int]]:
    """Divides a part into ranges of tokens that fit into memory, and yields it with each range's two indices."""
    count = part.rows.stop - part.rows.start
    most = max(1, PRODUCTS // (heads * (part.start + count)))
    for first in range(0, count, most):
        yield part, first, min(first + most, count)


def _seen(cache: Floats, blocks: Ints, begin: int, end: int) -> Floats:
    """Returns the keys or values of a range of a sequence's tokens, [tokens, heads, size of a head].

    Args:
        cache: The cache [blocks, BLOCK, heads, size of a head].
        blocks: The blocks of the sequence.
        begin: The index of the first token.
        end: The index after the last token.
    """
    first = begin // BLOCK
    used = blocks[first : -(-end // BLOCK)]
    side_by_side = (np.diff(used) == 1).all()  # as in most prompts, for which nothing is copied
    rows = cache[used[0] : used[-1] + 1] if side_by_side else cache[used]
    return rows.reshape(-1, *cache.shape[2:])[begin - first * BLOCK : end - first * BLOCK]


def _hidden(start: int, tokens: int, begin: int, window: int) -> NDArray[np.bool_]:
    """Returns a mask [tokens, keys] that is true where a token must not attend to a key.

    Args:
        start: The index of the first token.
        tokens: The number of tokens.
        begin: The index of the first key.
        window: The most tokens that a token attends to; 0 for all tokens before it.
    """
    own = np.arange(start, start + tokens)[:, None]
    others = np.arange(begin, start + tokens)
    hidden = others > own
    if window:
        hidden |= others <= own - window
    return hidden


@cache
def most_threads() -> int:
    """Returns the number of threads that share the work of a step."""
    return cores()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(most_threads(), "attention")
