"""Chooses a replica for a prompt: the one that has computed the longest prefix of it, unless that replica is busy.

A prefix cache works only if the next turn of a conversation goes to the engine that computed the previous turns.
Routers such as SGLang's, vLLM production-stack's and Ray's PrefixCacheAffinityRouter remember which engine saw which
prefixes, and prefer the load once it is uneven. This router remembers hashes of a prompt's blocks, each including all
text before it. They are the nodes of a tree of all prompts; the text itself is not kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import takewhile
from typing import Generic, TypeVar

BLOCK = 64
"""The number of characters or bytes in a block, about as many as the tokens in a block of a KV cache have."""
BLOCK_IDS = 16
"""The number of token ids in a block, for prompts that are lists of ids."""
MAX_BLOCKS = 2048
"""The number of blocks of a prompt that are considered (131,072 characters). Their hashes take 0.5 ms."""
KNOWN_BLOCKS = 32768
"""The number of blocks remembered for each replica: two million characters, which take 5 MB."""
MOST_AHEAD = 4
"""The number of requests by which the replica that knows a prompt may exceed the least loaded one. Waiting for this
many costs less than computing a conversation again; with more, others would be idle."""
LEAST_SHARE = 0.25
"""A replica that knows a smaller share of a prompt than this counts as knowing nothing, since the common beginning of
all prompts of an application must not send all of them to one replica."""
AHEAD_SHARE = 0.25
"""The load of the chosen replica may exceed the least load by this fraction of it, if that is more than the fixed
limit: among many requests a difference of a few does not matter."""

R = TypeVar("R", bound=Hashable)
Prefixes = Sequence[int]
"""The hashes of a prompt's prefixes, the shortest first."""


def prefixes(namespace: Hashable, prompt: str | bytes | Sequence[int]) -> Prefixes:
    """Returns the hashes of the prefixes of a prompt that end at a block boundary; none for a short prompt.

    A prompt is a text, bytes or token ids. Equal ones of different namespaces (model, adapter, salt) are cached apart.
    Like Python's hashes of strings, they are valid in this process only.
    """
    size = BLOCK if isinstance(prompt, str | bytes) else BLOCK_IDS
    found: list[int] = []
    last = hash(namespace)
    for end in range(size, min(len(prompt), size * MAX_BLOCKS) + 1, size):
        block = prompt[end - size : end]
        last = hash((last, block if isinstance(block, str | bytes) else tuple(block)))
        found.append(last)
    return found


class PrefixRouter(Generic[R]):
    """Remembers which replica has seen which prompts, and chooses one for the next prompt."""

    def __init__(self, most_ahead: float, known_blocks: int = KNOWN_BLOCKS) -> None:
        """Creates a router that knows no prompts.

        Args:
            most_ahead: How much the load of the chosen replica may exceed the least load, in the unit of the loads,
                unless AHEAD_SHARE of the least load is more.
            known_blocks: The most blocks remembered for each replica; the most recently used are kept.
        """
        self._most_ahead = most_ahead
        self._known_blocks = known_blocks
        # For each replica, the last used hash is at the end. A longer prefix always precedes the prefixes of itself, so
        # the first one is a leaf of the tree and can be forgotten.
        self._known: dict[R, OrderedDict[int, None]] = {}

    def known(self, replica: R, prompt: Prefixes) -> int:
        """Returns the number of blocks at the beginning of a prompt that a replica has seen."""
        seen = self._known.get(replica)
        return 0 if seen is None else sum(1 for _ in takewhile(seen.__contains__, prompt))

    def choose(self, prompt: Prefixes, loads: Mapping[R, float], told: Callable[[R], int] = lambda replica: 0) -> R:
        """Returns the replica for a prompt. `record` must be called to remember the choice.

        Among the replicas whose load is not too far above the least one, it is the one that knows most of the prompt.
        If several know the same, or none knows LEAST_SHARE of it, it is the one with the least load, and among several
        the one that knows the fewest other prompts.

        Args:
            prompt: The hashes of the prompt's prefixes.
            loads: The load of each available replica, of which there must be at least one.
            told: Returns how many blocks of the prompt a replica has reported, which may be more than are known here.
        """
        least_load = min(loads.values())
        limit = least_load + max(self._most_ahead, least_load * AHEAD_SHARE)
        least_known = len(prompt) * LEAST_SHARE

        def rank(replica: R) -> tuple[int, float, int]:
            known = max(self.known(replica, prompt), told(replica))
            return -known if known >= least_known else 0, loads[replica], len(self._known.get(replica, ()))

        return min((one for one, load in loads.items() if load <= limit), key=rank)

    def record(self, prompt: Prefixes, replica: R) -> None:
        """Records that a replica computes a prompt. The least recently used blocks may be forgotten."""
        seen = self._known.setdefault(replica, OrderedDict())
        for prefix in reversed(prompt):
            seen[prefix] = None
            seen.move_to_end(prefix)
        while len(seen) > self._known_blocks:
            seen.popitem(last=False)

    def remove(self, replica: R) -> None:
        """Forgets everything about a replica that has ended, or whose cache is empty."""
        self._known.pop(replica, None)
