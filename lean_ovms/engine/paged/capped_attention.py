"""Attention with a soft cap: products of queries and keys become cap * tanh(product / cap) before the softmax.

PagedAttentionExtension has no input for a cap, and optimum-intel's exports leave it out. An operation in numpy takes
its place: OpenVINO calls `CappedAttention.evaluate` in each layer of a step, with the memory of the caches. It writes
the keys and values of the step's tokens there, and computes each sequence for itself, so that no time goes to padding
and the memory of a step does not grow with the batch. numpy works without the GIL, in several threads.
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

from ...util.resources import cores
from .network import ATTENTION

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

INPUTS = range(11)
"""The inputs of PagedAttentionExtension that are kept: queries, keys, values, both caches, how many tokens of each
sequence are in these, where each begins among the step's tokens, blocks, where each begins among the blocks, the factor
of products, and the sliding window."""
CACHES = (3, 4)
"""Those of the caches of keys and of values."""
BLOCK = 32
"""Tokens of a block of the caches, as many as OpenVINO's CPU plugin has in its own."""
PRODUCTS = 1 << 20
"""Products of queries and keys that a thread has in memory at most, unless those of one token are more."""
SHARED = 1 << 19
"""Elements of keys that the tokens of a step see, counted for each, from which on several threads share the step."""
THREADS = cores()


def insert(model: Any, cap: float) -> None:
    """Puts CappedAttention in the place of each paged attention of a network.

    Args:
        model: The openvino.Model, whose attention is paged.
        cap: The cap of products of queries and keys.
    """
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
    """Attention over a paged KV cache with a soft cap, as an OpenVINO operation that is written in Python."""

    def __init__(self, inputs: list[Any], cap: float) -> None:
        """Makes the operation.

        Args:
            inputs: The outputs that it reads, those of INPUTS.
            cap: The cap of products of queries and keys.
        """
        self._cap = cap
        super().__init__(self, inputs)

    def validate_and_infer_types(self) -> None:
        """Says what the result is: [tokens, heads * size of a value]."""
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
        for part in parts:  # all of them: a sequence may begin with blocks that another one writes in this step
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
    """The tokens of the part among those of the step."""
    start: int
    """The tokens of the sequence before them."""
    blocks: Ints
    """The blocks of the sequence."""

    def write(self, rows: Floats, cache: Floats) -> None:
        """Writes the keys or the values of its tokens into their cache.

        Args:
            rows: Those of all tokens of the step [tokens, heads * size of a head].
            cache: The cache [blocks, BLOCK, heads, size of a head].
        """
        written = rows[self.rows]
        blocks, offsets = np.divmod(np.arange(self.start, self.start + len(written)), BLOCK)
        cache[self.blocks[blocks], offsets] = written.reshape(len(written), *cache.shape[2:])


class LayerAttention(NamedTuple):
    """The attention of one layer in a step."""

    queries: Floats
    """Queries [tokens, heads of keys, queries of each of these, size of a head], multiplied by the factor of products
    and divided by the cap."""
    found: Floats
    """The result is written here, in the same order [tokens, heads of keys, queries of each, size of a value]."""
    caches: tuple[Floats, Floats]
    """The caches of keys and of values [blocks, BLOCK, heads, size of a head]."""
    cap: np.float32
    """The cap of products."""
    window: int
    """The tokens that each token sees at most; 0: all before it."""

    def compute(self, part: SequencePart, first: int, last: int, heads: slice) -> None:
        """Computes some of the tokens of a sequence.

        Args:
            part: The sequence.
            first: The place of the first token in the part.
            last: The place behind the last token.
            heads: The heads of keys that are computed.
        """
        rows = slice(part.rows.start + first, part.rows.start + last)
        begin, end = max(part.start + first + 1 - self.window, 0) if self.window else 0, part.start + last
        keys, values = (_seen(cache[:, :, heads], part.blocks, begin, end) for cache in self.caches)
        queries = self.queries[rows, heads].transpose(1, 2, 0, 3)  # [heads, queries of each, tokens, size]
        groups, shared, tokens, size = queries.shape
        if tokens > 1:  # else each product is one of a vector: of few rows numpy's would take three times as long
            queries = queries.reshape(groups, 1, shared * tokens, size)
        products = np.empty((*queries.shape[:3], len(keys)), np.float32)  # rows side by side, whatever numpy prefers
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
    """Computes the attention of all sequences of a step, by several threads where there is much to compute."""
    groups, shared, size = attention.queries.shape[1:]
    pieces = [piece for part in parts for piece in _pieces(part, groups * shared)]
    elements = sum((last - first) * (part.start + last) for part, first, last in pieces) * groups * size
    threads = THREADS if elements >= SHARED else 1
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
    wait(futures)  # all have ended before anybody may change the caches
    for future in futures:
        future.result()


def _pieces(part: SequencePart, heads: int) -> Iterator[tuple[SequencePart, int, int]]:
    """Yields the tokens of a part that are computed at once, as the places of the first and behind the last one."""
    count = part.rows.stop - part.rows.start
    most = max(1, PRODUCTS // (heads * (part.start + count)))
    for first in range(0, count, most):
        yield part, first, min(first + most, count)


def _seen(cache: Floats, blocks: Ints, begin: int, end: int) -> Floats:
    """Returns the keys or values of a sequence's tokens [tokens, heads, size of a head].

    Args:
        cache: The cache [blocks, BLOCK, heads, size of a head].
        blocks: The blocks of the sequence.
        begin: The place of the first token.
        end: The place behind the last one.
    """
    first = begin // BLOCK
    used = blocks[first : -(-end // BLOCK)]
    side_by_side = (np.diff(used) == 1).all()  # as those of most prompts: nothing is copied
    rows = cache[used[0] : used[-1] + 1] if side_by_side else cache[used]
    return rows.reshape(-1, *cache.shape[2:])[begin - first * BLOCK : end - first * BLOCK]


def _hidden(start: int, tokens: int, begin: int, window: int) -> NDArray[np.bool_]:
    """Returns which keys [tokens, keys] each of some tokens does not see.

    Args:
        start: The place of the first token.
        tokens: How many they are.
        begin: The place of the first key.
        window: The tokens that each token sees at most; 0: all before it.
    """
    own = np.arange(start, start + tokens)[:, None]
    others = np.arange(begin, start + tokens)
    hidden = others > own
    if window:
        hidden |= others <= own - window
    return hidden


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "attention")
