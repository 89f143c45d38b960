"""How the memory for a model's cache is divided: blocks for keys and values, and slots for states of hybrid models."""

from __future__ import annotations

from typing import NamedTuple

CHECKPOINTS = 4
"""States of cached prefixes for each sequence that may run, where there is memory for them."""


class Capacity(NamedTuple):
    """What fits into a cache. blocks: of the KV cache. states: slots of the state cache; 0: the model has none."""

    blocks: int
    states: int


def slots_for(sequences: int, caching: bool) -> int:
    """Returns how many states are wanted for so many sequences at once. caching: prefixes are kept."""
    return sequences * 3 // 2 + 1 + caching * CHECKPOINTS * sequences


def rows_of(slots: int) -> int:
    """Returns how many sequences may run at once with so many slots for states.

    The others are for cached prefixes and draft tokens, and for beams with one state, of which each writes its own.
    """
    return max(1, slots * 2 // 3)


def divide(cache_bytes: int, *, blocks: int, block_bytes: int, state_bytes: int, states: int) -> Capacity:
    """Divides the memory of a cache into KV blocks and states.

    blocks: the most wanted; 0: as many as fit. block_bytes: of one block. state_bytes: of one sequence's states; 0: the
    model has none. states: the most wanted.

    States get half of the memory at most, so that there are blocks for their sequences; blocks get the rest. There is
    memory for one state at least.
    """
    slots = 0
    if state_bytes:
        slots = max(1, min(states, cache_bytes // 2 // state_bytes))
        cache_bytes -= slots * state_bytes
    fitting = max(1, cache_bytes // block_bytes)
    return Capacity(min(blocks or fitting, fitting), slots)
