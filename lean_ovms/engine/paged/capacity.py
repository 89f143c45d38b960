"""How the memory for a model's cache is divided: blocks for keys and values, and states of hybrid models."""

from __future__ import annotations

from typing import NamedTuple


class Capacity(NamedTuple):
    """What fits into a cache. blocks: of the KV cache. states: sequences whose states fit; 0: the model has none."""

    blocks: int
    states: int


def divide(cache_bytes: int, *, blocks: int, block_bytes: int, state_bytes: int, sequences: int) -> Capacity:
    """Divides the memory of a cache into KV blocks and states.

    blocks: the most wanted; 0: as many as fit. block_bytes: of one block. state_bytes: of one sequence's states; 0: the
    model has none. sequences: the most that run at once.

    States get half of the memory at most, so that there are blocks for their sequences; blocks get the rest. At least
    one sequence has states.
    """
    states = 0
    if state_bytes:
        states = max(1, min(sequences, cache_bytes // 2 // state_bytes))
        cache_bytes -= states * state_bytes
    fitting = max(1, cache_bytes // block_bytes)
    if not state_bytes and blocks:
        return Capacity(blocks, 0)  # from config.json, and from the same memory
    return Capacity(min(blocks or fitting, fitting), states)
