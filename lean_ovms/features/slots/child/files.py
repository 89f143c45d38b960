"""Saves slots to files, as clients of llama.cpp's server expect: a slot's number stands for the text that used it last.

Sequences share the prefix cache here, so a slot is not a part of it. A file has the tokens of the text, and the cached
blocks and states for them, with one checksum over all. It is replaced atomically, and used only with the network that
its fingerprint identifies.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from array import array
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ....engine.paged.block_manager import BlockManager
from ....engine.paged.network import Network
from ....engine.paged.sequence import NO_STATE
from ....engine.paged.state_checkpoints import StateCache
from ....errors import BadRequest, StoreFull, store_failure
from ...disk_cache.child.segment import Bytes, checksum, nbytes, open_file, private_directory, transfer, write_all

MAGIC = b"LOVMSSL1"
HEAD = struct.Struct("<8s32sIIQQ")
"""The header of a file: magic, fingerprint, checksum of the rest, size of the cache salt, number of tokens, number of
states.

It is followed by the salt, the tokens, the number of blocks before each state, the blocks and the states.
"""
NUMBER_BYTES = 8
"""The size in bytes of a token, and of the number of blocks before a state."""
MOST_SLOTS = 64
"""The number of slots whose last text is remembered; those used longest ago are forgotten."""
MOST_SALT = 1 << 16
TEMPORARY = ".part"
WRONG = "the file was saved with another model or other options, or is damaged"
NO_ROOM = "there is no room left in the KV cache"


class SlotUse(NamedTuple):
    """The text that used a slot last."""

    salt: str
    """The cache salt of its blocks."""
    ids: array[int]
    """The tokens of the text, to which generated ones are added."""
    at_s: float
    """The time at which it began to use the slot, in seconds of the machine's monotonic clock."""


UNUSED = SlotUse("", array("q"), 0.0)


class SlotHead(NamedTuple):
    """The header of a file."""

    checksum: int
    """The checksum of everything after it."""
    salt_bytes: int
    """The size of the cache salt in bytes."""
    tokens: int
    """The number of tokens."""
    blocks: int
    """The number of blocks."""
    states: int
    """The number of states."""
    size: int
    """The size of the file in bytes."""

    @property
    def text_bytes(self) -> int:
        """The size in bytes of the part between the header and the blocks."""
        return self.salt_bytes + NUMBER_BYTES * (self.tokens + self.states)

    def parsed(self, text: bytes) -> tuple[str, array[int], array[int]]:
        """Returns the cache salt, the tokens, and the numbers of blocks before the states.

        Raises BadRequest if these are wrong; `text` is the part between the header and the blocks.
        """
        numbers = array("q", text[self.salt_bytes :])
        ids, places = numbers[: self.tokens], numbers[self.tokens :]
        try:
            salt = text[: self.salt_bytes].decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise BadRequest(WRONG, param="filename") from None
        if min(ids, default=0) < 0 or not all(0 < at <= self.blocks for at in places):
            raise BadRequest(WRONG, param="filename")
        return salt, ids, places


class SlotFiles:
    """The slots of one engine, and their files. Only the engine's thread calls it, and no step begins meanwhile."""

    def __init__(
        self,
        directory: Path,
        fingerprint: bytes,
        limit: int,
        network: Network,
        blocks: BlockManager,
        states: StateCache,
    ) -> None:
        """Creates the object, with no slot used.

        Args:
            directory: The directory of the files.
            fingerprint: Identifies the network for which a file is valid.
            limit: The most bytes of all files in the directory.
            network: The network, with its cache.
            blocks: The blocks of the KV cache.
            states: The states of a hybrid network.

        Raises:
            StartError: The directory cannot be used.
        """
        private_directory(directory, "--slot_save_path")
        self._directory = directory
        self._fingerprint = fingerprint
        self._limit = limit
        self._network = network
        self._blocks = blocks
        self._states = states
        self._used: OrderedDict[int, SlotUse] = OrderedDict()

    def use(self, slot: int, salt: str, ids: array[int]) -> None:
        """Notes that a text uses a slot.

        Args:
            slot: The number of the slot.
            salt: The cache salt of the text's blocks.
            ids: The tokens of the text. Tokens that are added to the array later belong to the text, too.
        """
        self._used[slot] = SlotUse(salt, ids, time.monotonic())
        self._used.move_to_end(slot)
        if len(self._used) > MOST_SLOTS:
            self._used.popitem(last=False)

    def used_s(self, slot: int) -> float:
        """Returns when a text used a slot last, in seconds of the machine's monotonic clock; 0 if none has."""
        return self._used.get(slot, UNUSED).at_s

    def save(self, slot: int, name: str, process: int = 0) -> tuple[int, int]:
        """Writes the cached blocks and states of a slot's text to a file.

        Args:
            slot: The number of the slot.
            name: The name of the file.
            process: The number of this process among those that write to the directory.

        Returns:
            The number of saved tokens, and the size of the file in bytes.

        Raises:
            RequestError: The file cannot be written.
        """
        use = self._used.get(slot, UNUSED)
        salt = use.salt.encode("utf-8", "surrogatepass")
        if len(salt) > MOST_SALT:
            raise BadRequest(
                f"the cache_salt of the slot's text has {len(salt)} bytes; the limit for files is {MOST_SALT}"
            )
        found = self._cached(use)
        try:
            serials = [serial for _, serial in found]
            usable = self._states.matched(serials)
            slots = [self._states.checkpoint(serial) for serial in serials[:usable]]
            places = array("q", [at for at, slot in enumerate(slots, 1) if slot != NO_STATE])
            buffers = [buffer for block, _ in found[:usable] for buffer in self._network.block_buffers(block)]
            buffers += [buffer for at in places for buffer in self._network.state_buffers(slots[at - 1])]
            tokens = use.ids[: usable * self._blocks.block_size]
            text = salt + tokens.tobytes() + places.tobytes()
            check = checksum(text, buffers)
            head = HEAD.pack(MAGIC, self._fingerprint, check, len(salt), len(tokens), len(places))
            return len(tokens), self._write(name, f".{name}.{process}{TEMPORARY}", head + text, buffers)
        finally:
            self._blocks.release([block for block, _ in found])

    def restore(self, slot: int, name: str) -> tuple[int, int]:
        """Reads a file into the prefix cache, and notes that its text uses the slot. Raises RequestError.

        Returns the number of tokens, and the size of the file in bytes.
        """
        try:
            file = open_file(self._directory / name, os.O_RDONLY)
            try:
                return self._read(slot, file)
            finally:
                os.close(file)
        except OSError as error:
            raise BadRequest(f"the file cannot be read: {error.strerror}", param="filename") from None

    def erase(self, slot: int) -> int:
        """Removes a slot's blocks that no sequence uses from the prefix cache. Returns the number of their tokens."""
        found = [block for block, _ in self._cached(self._used.pop(slot, UNUSED))]
        self._blocks.release(found)
        return self._blocks.drop(found) * self._blocks.block_size

    def _cached(self, use: SlotUse) -> list[tuple[int, int]]:
        """Returns the cached blocks of a text with their serial numbers, and adds a reference to each.

        It stops at images: their tokens are negative, and have other numbers in another process.
        """
        ids = use.ids
        images = np.flatnonzero(np.frombuffer(ids.tobytes(), np.int64) < 0)
        return self._blocks.match(ids, 0, int(images[0]) if len(images) else len(ids), use.salt)

    def _write(self, name: str, part: str, head: bytes, buffers: list[Bytes]) -> int:
        size = len(head) + nbytes(buffers)
        temporary = self._directory / part
        replaced = name, part  # the second exists after a crash
        try:
            with os.scandir(self._directory) as files:
                others = sum(one.stat(follow_symlinks=False).st_size for one in files if one.name not in replaced)
            if others + size > self._limit:
                why = f"all files of slots together may have {self._limit} bytes, but this one would have {size}"
                raise StoreFull(f"{why}, and the others have {others}")
            file = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                write_all(file, head)
                if not transfer(os.pwritev, file, buffers, len(head)):
                    raise OSError(0, "no bytes could be written")
            finally:
                os.close(file)
            os.replace(temporary, self._directory / name)
        except OSError as error:
            with contextlib.suppress(OSError):  # the file system may be read-only here too
                temporary.unlink(missing_ok=True)
            why = f"the file cannot be written: {error.strerror}"
            raise store_failure(error, why, why) from None
        return size

    def _read(self, slot: int, file: int) -> tuple[int, int]:
        head, blocks, states = self._head(file), self._blocks, self._states
        if head.blocks > blocks.available or head.states > states.available:
            raise BadRequest(NO_ROOM, param="filename")
        text = os.pread(file, head.text_bytes, HEAD.size)
        allocated = [blocks.allocate() for _ in range(head.blocks)]
        slots = [states.allocate() for _ in range(head.states)]
        try:
            buffers = [buffer for block in allocated for buffer in self._network.block_buffers(block)]
            buffers += [buffer for one in slots for buffer in self._network.state_buffers(one)]
            whole = transfer(os.preadv, file, buffers, HEAD.size + len(text))
            if not whole or checksum(text, buffers) != head.checksum:
                raise BadRequest(WRONG, param="filename")
            salt, ids, places = head.parsed(text)  # before anything is added to the prefix cache
            chain: list[int] = []
            blocks.register_all(allocated, ids, len(ids), chain, salt)
            for state, at in zip(slots, places, strict=True):
                if blocks.has(chain[at - 1]):
                    states.add(chain[:at], state, "shared")
        finally:
            for state in slots:
                states.release(state)
            blocks.release(allocated)
        self.use(slot, salt, ids)
        return head.tokens, head.size

    def _head(self, file: int) -> SlotHead:
        """Reads the header of a file. Raises BadRequest if the file is not for this network, or not complete."""
        size, data = os.fstat(file).st_size, os.pread(file, HEAD.size, 0)
        if len(data) < HEAD.size:
            raise BadRequest(WRONG, param="filename")
        magic, fingerprint, check, salt_bytes, tokens, stored = HEAD.unpack(data)
        count, left = divmod(tokens, self._blocks.block_size)
        head = SlotHead(check, salt_bytes, tokens, count, stored, size)
        wanted = HEAD.size + head.text_bytes + count * nbytes(self._network.block_buffers(0))
        wanted += stored * nbytes(self._network.state_buffers(0)) if self._states.total else 0
        known = (magic, fingerprint, size, left) == (MAGIC, self._fingerprint, wanted, 0)
        if not known or salt_bytes > MOST_SALT or stored > (count if self._states.total else 0):
            raise BadRequest(WRONG, param="filename")
        return head
