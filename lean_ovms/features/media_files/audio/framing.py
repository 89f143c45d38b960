"""The framing of a decoder process's blocks: a head before each block, and before a JSON object at the end."""

from __future__ import annotations

import struct

HEAD_BYTES = 4
END = 1 << 31
MAX_BLOCK = 1 << 22


def head(size: int, *, end: bool = False) -> bytes:
    """Returns the head of a block, or of the JSON object at the end."""
    return struct.pack("<I", size | END if end else size)


def parse_head(data: bytes) -> tuple[int, bool]:
    """Parses a head. Returns the number of bytes that follow, and whether they are the JSON object at the end."""
    (value,) = struct.unpack("<I", data)
    return value & ~END, bool(value & END)
