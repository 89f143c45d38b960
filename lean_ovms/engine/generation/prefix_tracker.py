"""Which prompt beginnings are being computed, so that nobody computes them twice. Knows no pipeline.

GenAI looks a prompt up in its prefix cache when the request is added and not later: two requests with the same
2,000-token beginning that are added together are both computed whole (measured: 9.2 s instead of 4.6). So a request
whose next unknown block is being computed right now waits until that prompt is through.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict

from .sequence import Sequence

MOST_KNOWN = 1 << 16
"""Blocks remembered, 8 MB of them; who is forgotten may be computed twice."""


class PrefixTracker:
    """Blocks of prompts in the making (pending) and blocks that the pipeline has seen (known, oldest forgotten)."""

    def __init__(self, block_size: int, most_known: int) -> None:
        self._block_size = block_size
        self._most_known = min(most_known, MOST_KNOWN)
        self._pending: dict[int, Sequence] = {}
        self._known: OrderedDict[int, int] = OrderedDict()  # and how long each is certain to be in the cache

    def must_wait(self, sequence: Sequence) -> bool:
        """Somebody else is computing the first block that this sequence needs and the cache lacks."""
        if not self._pending:
            return False
        for key in self._hashes(sequence):
            if key not in self._known:
                return key in self._pending
        return False

    def cached(self, sequence: Sequence, taken: int) -> int:
        """Prompt tokens that the pipeline has for certain, in whole blocks; at least one token is always computed.

        It may have some more: those of a block that is not full, and those that it happens not to have overwritten.
        taken: kv.Accounts.taken. Before the sequence is added.
        """
        blocks = 0
        for key in self._hashes(sequence)[: (sequence.length - 1) // self._block_size]:
            if taken >= self._known.get(key, -1):
                break
            blocks += 1
        return blocks * self._block_size

    def started(self, sequence: Sequence, certain: int = 0) -> None:
        """The sequence was added to the pipeline. certain: kv.Accounts.certain."""
        sequence.certain = certain
        for key in self._hashes(sequence):
            if key not in self._known:
                self._pending.setdefault(key, sequence)

    def computed(self, sequence: Sequence) -> None:
        """Its prompt is through: others may build on it."""
        self._learn(self._forget(sequence), sequence.certain)

    def left(self, sequence: Sequence) -> None:
        """It leaves the pipeline: what it has generated can be found as well, but for its last token."""
        self._learn(self._chain((sequence.prompt + sequence.generated)[:-1]), sequence.certain)

    def _learn(self, keys: list[int], certain: int) -> None:
        for key in keys:
            self._known[key] = max(certain, self._known.get(key, 0))
            self._known.move_to_end(key)
        while len(self._known) > self._most_known:
            self._known.popitem(last=False)

    def gone(self, sequence: Sequence) -> None:
        """It left before its prompt was through."""
        self._forget(sequence)

    def _forget(self, sequence: Sequence) -> list[int]:
        keys = sequence.hashes or []
        for key in keys:
            if self._pending.get(key) is sequence:
                del self._pending[key]
        sequence.hashes = None
        return keys

    def _hashes(self, sequence: Sequence) -> list[int]:
        """One chained hash per full block; 60 us for 4,000 tokens, once."""
        if sequence.hashes is None:
            sequence.hashes = self._chain(sequence.prompt + sequence.generated)
        return sequence.hashes

    def _chain(self, tokens: list[int]) -> list[int]:
        data, size = array("q", tokens), self._block_size
        hashes, chain = list[int](), 0
        for start in range(0, len(data) - size + 1, size):
            chain = hash((chain, data[start : start + size].tobytes()))
            hashes.append(chain)
        return hashes
