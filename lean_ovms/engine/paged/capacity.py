"""How the memory for a model's cache is divided: blocks for keys and values, and states of hybrid models."""

from __future__ import annotations

from typing import NamedTuple


class Capacity(NamedTuple):
    """blocks: of the KV cache. states: sequences whose states have memory; 0: there are no states."""

    blocks: int
    states: int


def divide(cache_bytes: int, *, blocks: int, block_bytes: int, state_bytes: int, sequences: int) -> Capacity:
    """blocks: at most; 0: as many as fit. state_bytes: of one sequence. sequences: that ever run at once.

    States have half of the memory at most, or there would be no texts for them; keys and values have the rest. At least
    one sequence has a state.
    """
    states = 0
    if state_bytes:
        states = max(1, min(sequences, cache_bytes // 2 // state_bytes))
        cache_bytes -= states * state_bytes
    fitting = max(1, cache_bytes // block_bytes)
    if not state_bytes and blocks:
        return Capacity(blocks, 0)  # from config.json, and from the same memory
    return Capacity(min(blocks or fitting, fitting), states)
