"""Writes vLLM's KV cache events, by which routers send a prompt to the server that has most of it cached.

https://docs.vllm.ai/en/stable/api/vllm/distributed/kv_events/, of vLLM 0.28. The hash of a block covers its tokens and
all tokens before, the cache salt and the adapter, so that servers of one model have the same hashes.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ....engine.paged.block_manager import Parent, next_key
from ....engine.paged.parts import StepHook

if TYPE_CHECKING:
    from .publisher import KvEventPublisher

Event = dict[str, Any]
HASH_BYTES = 8
MEDIUM = "GPU"
"""vLLM's name of the memory in which the model computes, on a CPU, too."""


class KvEvents(StepHook):
    """Collects the events since the last batch. The prefix cache reports its changes to it."""

    def __init__(self, block_size: int, publisher: KvEventPublisher, adapter_name: Callable[[str], str]) -> None:
        """Begins without events.

        Args:
            block_size: The number of tokens in a KV block.
            publisher: Sends the batches.
            adapter_name: Returns the name of an adapter, given its key.
        """
        self._block_size = block_size
        self._publisher = publisher
        self._adapter_name = adapter_name
        self._blocks: dict[int, tuple[bytes, str | None]] = {}  # hash and adapter by serial number
        # Several blocks may have the same text, and only one of them can be found.
        self._cached: Counter[bytes] = Counter()
        self._events: list[Event] = []

    def registered(self, serial: int, parent: Parent, tokens: bytes) -> None:
        ids = array("q", tokens).tolist()
        known = self._blocks.get(parent) if isinstance(parent, int) else self._root(parent)
        # Image tokens are numbers that only this process knows. After a block that has left the cache, none can be
        # found.
        if known is None or min(ids) < 0:
            return
        before, adapter = known
        key = next_key(before, tokens)[:HASH_BYTES]
        self._blocks[serial] = key, adapter
        self._cached[key] += 1
        if self._cached[key] > 1:
            return
        extra = [adapter] if adapter is not None else []
        if not isinstance(parent, int) and (salt := _salt(parent)):
            extra.append(salt.encode("utf-8", "replace").decode())
        hashes = [_number(before)] if isinstance(parent, int) else [None]
        stored = self._events[-1] if self._events and self._events[-1]["type"] == "BlockStored" else None
        if stored is None or stored["block_hashes"][-1:] != hashes:
            stored = self._add(
                "BlockStored",
                parent_block_hash=hashes[0],
                token_ids=[],
                block_size=self._block_size,
                lora_id=None,
                lora_name=adapter,
                extra_keys=[],
                kv_cache_spec_kind="full_attention",
            )
        stored["block_hashes"].append(_number(key))
        stored["token_ids"] += ids
        stored["extra_keys"].append(extra or None)

    def evicted(self, block: int, serial: int) -> None:
        self.spoiled(serial)

    def spoiled(self, serial: int) -> None:
        if (known := self._blocks.pop(serial, None)) is None:
            return
        self._cached[known[0]] -= 1
        if self._cached[known[0]]:
            return
        del self._cached[known[0]]
        removed = self._events[-1] if self._events and self._events[-1]["type"] == "BlockRemoved" else None
        removed = removed or self._add("BlockRemoved")
        removed["block_hashes"].append(_number(known[0]))

    def clearing(self) -> None:
        self._blocks.clear()
        self._cached.clear()
        self._events.append({"type": "AllBlocksCleared"})

    # --- StepHook

    def changed(self) -> None:
        """Publishes the collected events, if there are any."""
        if self._events:
            events, self._events = self._events, []
            self._publisher.publish(time.time(), events)

    def close(self) -> None:
        """Ends the publisher."""
        self._publisher.close()

    # --- parts of events

    def _add(self, kind: str, **members: Any) -> Event:
        event = {"type": kind, "block_hashes": [], "medium": MEDIUM, "group_idx": 0, **members}
        self._events.append(event)
        return event

    def _root(self, parent: str | tuple[str, str]) -> tuple[bytes, str | None]:
        """Returns the hash before a sequence's first block, and the name of its adapter or None."""
        adapter = parent[0] if isinstance(parent, tuple) else ""
        before = next_key(next_key(b"", adapter.encode()), _salt(parent).encode("utf-8", "surrogatepass"))
        return before, self._adapter_name(adapter) if adapter else None


def _salt(parent: str | tuple[str, str]) -> str:
    return parent[1] if isinstance(parent, tuple) else parent


def _number(key: bytes) -> int:
    return int.from_bytes(key, "big")
