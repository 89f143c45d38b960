"""Chooses which of several equal engines a prompt goes to: the one that has computed most of it, unless it is busy.

A prefix cache works only where the next turn of a conversation goes to the engine that computed the turns before.
Routers such as SGLang's, vLLM production-stack's and Ray's PrefixCacheAffinityRouter remember which engine saw which
beginnings, and give the load precedence once it is uneven. This one remembers hashes of whole blocks of a prompt, each
with all that is before it: these are the nodes of the tree of all prompts, and none of the text is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import takewhile
from typing import Generic, TypeVar

BLOCK = 64
"""Characters of a text, or bytes, in one block: about as many as the tokens of a block of a KV cache have."""
BLOCK_IDS = 16
"""Token ids in one block: a prompt may be a list of them."""
MAX_BLOCKS = 2048
"""Blocks of one prompt that are looked at (131,072 characters): making their hashes takes half a millisecond."""
KNOWN_BLOCKS = 32768
"""Blocks that are remembered of each replica, two million characters: they take 5 MB."""
MOST_AHEAD = 4
"""Requests by which the replica that knows a prompt may be ahead of the one with the fewest: to wait behind so many
costs less than to compute a conversation anew, and more of them would leave others idle."""
LEAST_SHARE = 0.25
"""A replica that knows a smaller share of a prompt than this is chosen as if it knew nothing: what all prompts of an
application begin with must not bring all of them to one replica."""
AHEAD_SHARE = 0.25
"""The chosen replica may be ahead by this share of the least load, where that is more than its fixed limit: among many
requests a difference of a few is none."""

R = TypeVar("R", bound=Hashable)
Prefixes = Sequence[int]
"""The hashes of a prompt's prefixes, the shortest first."""


def prefixes(namespace: Hashable, prompt: str | bytes | Sequence[int]) -> Prefixes:
    """Returns the hashes of the prefixes of a prompt that end with a whole block; a short prompt has none.

    They hold in this process alone, as Python's hashes of texts do.

    Args:
        namespace: What keeps the caches of equal prompts apart, such as the model, its adapter and a salt.
        prompt: A text, bytes, or token ids.
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
    """Remembers which replica saw which prompts, and chooses one for the next prompt."""

    def __init__(self, most_ahead: float, known_blocks: int = KNOWN_BLOCKS) -> None:
        """Makes a router that knows of no prompt.

        Args:
            most_ahead: By how much the load of the chosen replica may exceed the least load, in the unit of the loads,
                if AHEAD_SHARE of that is not more.
            known_blocks: The most blocks that are remembered of each replica; those used last are kept.
        """
        self._most_ahead = most_ahead
        self._known_blocks = known_blocks
        # By replica, the hash used last at the end. A prefix always stands behind those that it is a prefix of, so that
        # the first one is a leaf of the tree, and can be forgotten.
        self._known: dict[R, OrderedDict[int, None]] = {}

    def known(self, replica: R, prompt: Prefixes) -> int:
        """Returns the number of blocks at the beginning of a prompt that a replica has seen."""
        seen = self._known.get(replica)
        return 0 if seen is None else sum(1 for _ in takewhile(seen.__contains__, prompt))

    def choose(self, prompt: Prefixes, loads: Mapping[R, float], told: Callable[[R], int] = lambda replica: 0) -> R:
        """Returns the replica for a prompt, which is not remembered by this.

        It is the one that knows most of the prompt among those whose load is not too far above the least; where several
        know the same, and where none knows LEAST_SHARE of it, the one with the least load, and of several, the one that
        knows the fewest other prompts.

        Args:
            prompt: The hashes of the prompt's prefixes.
            loads: The load of each replica that can be chosen, at least one.
            told: Returns how many blocks of the prompt a replica has said to know, which may be more than this knows
                of it.
        """
        least_load = min(loads.values())
        limit = least_load + max(self._most_ahead, least_load * AHEAD_SHARE)
        least_known = len(prompt) * LEAST_SHARE

        def rank(replica: R) -> tuple[int, float, int]:
            known = max(self.known(replica, prompt), told(replica))
            return -known if known >= least_known else 0, loads[replica], len(self._known.get(replica, ()))

        return min((one for one, load in loads.items() if load <= limit), key=rank)

    def record(self, prompt: Prefixes, replica: R) -> None:
        """Remembers that a replica computes a prompt; what it has not used for longest may be forgotten."""
        seen = self._known.setdefault(replica, OrderedDict())
        for prefix in reversed(prompt):
            seen[prefix] = None
            seen.move_to_end(prefix)
        while len(seen) > self._known_blocks:
            seen.popitem(last=False)

    def remove(self, replica: R) -> None:
        """Forgets all that a replica saw: it has ended, or its cache is empty."""
        self._known.pop(replica, None)
