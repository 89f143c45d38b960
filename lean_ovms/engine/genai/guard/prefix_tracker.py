"""Tracks which prompt prefixes are being computed, so that none is computed twice. Knows no pipeline.

GenAI looks a prompt up in its prefix cache when the request is added and not later: two requests with the same
2,000-token beginning that are added together are both computed whole (measured: 9.2 s instead of 4.6). So a request
whose next unknown block is being computed right now waits until that prompt is computed.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict

from .sequence import GuardedSequence

MAX_KNOWN = 1 << 16
"""Blocks remembered, 8 MB in all; a prefix that is no longer remembered may be computed twice."""


class PrefixTracker:
    """Blocks of prompts being computed (pending) and blocks that the pipeline has computed (known, in LRU order)."""

    def __init__(self, block_size: int, max_known: int) -> None:
        self._block_size = block_size
        self._max_known = min(max_known, MAX_KNOWN)
        self._pending: dict[int, GuardedSequence] = {}
        self._known: OrderedDict[int, int] = OrderedDict()  # block hash -> GuardedSequence.cached_until

    def must_wait(self, sequence: GuardedSequence) -> bool:
        """The first block that this sequence needs and the cache lacks is being computed for another one."""
        if not self._pending:
            return False
        for key in self._hashes(sequence):
            if key not in self._known:
                return key in self._pending
        return False

    def cached_tokens(self, sequence: GuardedSequence, allocated: int) -> int:
        """Prompt tokens certainly in the cache, in whole blocks; at least one token is always computed.

        There may be more: those of a block that is not full, and those that happen not to be overwritten yet.
        allocated: KvBudget.allocated, before the sequence is added.
        """
        blocks = 0
        for key in self._hashes(sequence)[: (sequence.length - 1) // self._block_size]:
            if allocated >= self._known.get(key, -1):
                break
            blocks += 1
        return blocks * self._block_size

    def add(self, sequence: GuardedSequence, cached_until: int = 0) -> None:
        """The sequence was added to the pipeline. cached_until: KvBudget.reused_after."""
        sequence.cached_until = cached_until
        for key in self._hashes(sequence):
            if key not in self._known:
                self._pending.setdefault(key, sequence)

    def prompt_computed(self, sequence: GuardedSequence) -> None:
        """The blocks of its prompt are in the cache."""
        self._learn(self._take_pending(sequence), sequence.cached_until)

    def answer_computed(self, sequence: GuardedSequence) -> None:
        """It leaves the pipeline: its generated tokens are in the cache as well, except the last."""
        self._learn(self._chain(sequence, (sequence.prompt + sequence.generated)[:-1]), sequence.cached_until)

    def remove(self, sequence: GuardedSequence) -> None:
        """It has left the pipeline, possibly before its prompt was computed."""
        self._take_pending(sequence)

    def _learn(self, keys: list[int], cached_until: int) -> None:
        for key in keys:
            self._known[key] = max(cached_until, self._known.get(key, 0))
            self._known.move_to_end(key)
        while len(self._known) > self._max_known:
            self._known.popitem(last=False)

    def _take_pending(self, sequence: GuardedSequence) -> list[int]:
        """Its hashes, no longer pending."""
        keys = sequence.block_hashes or []
        for key in keys:
            if self._pending.get(key) is sequence:
                del self._pending[key]
        sequence.block_hashes = None
        return keys

    def _hashes(self, sequence: GuardedSequence) -> list[int]:
        """One chained hash per full block; 60 us for 4,000 tokens, once."""
        if sequence.block_hashes is None:
            sequence.block_hashes = self._chain(sequence, sequence.prompt + sequence.generated)
        return sequence.block_hashes

    def _chain(self, sequence: GuardedSequence, tokens: list[int]) -> list[int]:
        data, size = array("q", tokens), self._block_size
        hashes, chain = list[int](), 0
        for start in range(0, len(data) - size + 1, size):
            chain = hash((chain, data[start : start + size].tobytes()))
            hashes.append(chain)
        return hashes
