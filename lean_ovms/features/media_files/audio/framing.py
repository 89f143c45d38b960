"""Frames the blocks that a decoder's process sends: each after a head, and at the end of a file a JSON object after
one."""

from __future__ import annotations

import struct

HEAD_BYTES = 4
END = 1 << 31
MAX_BLOCK = 1 << 22


def head(size: int, *, end: bool = False) -> bytes:
    """Returns the head of a block, or of the object at the end."""
    return struct.pack("<I", size | END if end else size)


def parse_head(data: bytes) -> tuple[int, bool]:
    """Returns the size of what follows, and whether it is the object at the end."""
    (value,) = struct.unpack("<I", data)
    return value & ~END, bool(value & END)
