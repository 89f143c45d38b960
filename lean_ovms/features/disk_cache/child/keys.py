"""The keys of blocks on disk, which are hashes of all tokens up to a block's end, the cache salt and the adapter."""

from __future__ import annotations

from ....engine.paged.block_manager import Parent, next_key
from ....engine.paged.network import AdapterWeights


def block_key(before: bytes, tokens: bytes) -> bytes | None:
    """Returns the key of a block, given its tokens as int64 and the key before it, or None if it must not be stored.

    A block with images must not be, and neither must those after it: image tokens have negative numbers, which mean
    other images in another process.
    """
    return None if min(memoryview(tokens).cast("q")) < 0 else next_key(before, tokens)


def state_key(key: bytes) -> bytes:
    """Returns the key of the state after a block, which is stored separately from the block."""
    return next_key(key, b"state")  # no block's key is like this, because its tokens have eight bytes each


class BlockKeys(dict[int, bytes]):
    """The keys of the blocks in memory by their serial numbers, except those that must not be stored."""

    def __init__(self) -> None:
        super().__init__()
        self._adapters: dict[str, bytes] = {}  # AdapterWeights.digest of each adapter, by its key

    def add(self, serial: int, parent: Parent, tokens: bytes) -> None:
        """Adds the key of a block that was added to the prefix cache."""
        before = self.get(parent) if isinstance(parent, int) else self.root_key(parent)
        if before is not None and (key := block_key(before, tokens)) is not None:
            self[serial] = key

    def root_key(self, parent: Parent) -> bytes | None:
        """Returns the key before a sequence's first block, or None if its blocks must not be stored."""
        adapter, salt = parent if isinstance(parent, tuple) else ("", str(parent))
        known = self._adapters.get(adapter) if adapter else b""
        return None if known is None else next_key(known, salt.encode("utf-8", "surrogatepass"))

    def know(self, adapter: AdapterWeights) -> None:
        """Adds an adapter, whose weights are part of its keys, since its name may mean another one after a restart."""
        if adapter.key not in self._adapters:
            self._adapters[adapter.key] = adapter.digest
