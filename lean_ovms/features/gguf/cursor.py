"""Reads the values of a GGUF file's header one after the other, and checks that each ends before the file does."""

from __future__ import annotations

import struct
from array import array
from typing import Any

from .metadata import LENGTH, StringArray

STRING, ARRAY = 8, 9
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
MAX_STRINGS = 1 << 22
"""Strings of one array: more than any vocabulary has."""
ENDS = "it ends within its header"


class Malformed(Exception):
    """Raised if the bytes are not those of a whole GGUF file."""


class NotRead(Exception):
    """The bytes that were read of a file end before what is parsed does, and the file does not."""

    def __init__(self, end: int) -> None:
        """Keeps the place of the first byte that need not be read."""
        super().__init__(end)
        self.end = end


class Cursor:
    """A position in the data, whose methods read values and check that they do not go beyond the end."""

    def __init__(self, data: bytes, size: int) -> None:
        """Begins at the first byte.

        Args:
            data: The bytes of the file that were read, from its beginning.
            size: The bytes of the whole file.
        """
        self._data = data
        self.size = size
        self.position = 0

    def _require(self, end: int) -> None:
        """Raises Malformed if the file ends before there, and NotRead if what was read of it does."""
        if end > self.size:
            raise Malformed(ENDS)
        if end > len(self._data):
            raise NotRead(end)

    def read(self, size: int) -> bytes:
        """Returns the next `size` bytes. Raises Malformed at the end, and NotRead."""
        end = self.position + size
        self._require(end)
        piece = self._data[self.position : end]
        self.position = end
        return piece

    def strings(self, count: int) -> StringArray:
        """Returns the next `count` strings. Raises Malformed at the end, and NotRead."""
        if count > MAX_STRINGS:
            raise Malformed(f"it claims an array of {count} strings")
        data, start, last, unpack = self._data, self.position, len(self._data) - LENGTH.size, LENGTH.unpack_from
        ends, place = array("Q"), start
        for _ in range(count):
            if place > last:
                self._require(place + LENGTH.size)
            place += LENGTH.size + unpack(data, place)[0]
            if place > len(data):
                self._require(place)
            ends.append(place - start)
        return StringArray(self.read(place - start), ends)

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.read(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        return self.read(self.number("Q")).decode("utf-8", "replace")


def value(cursor: Cursor, kind: int) -> Any:
    """Returns the next value, of the kind with this number. Raises Malformed and NotRead."""
    if kind == STRING:
        return cursor.text()
    if kind in NUMBERS:
        return cursor.number(NUMBERS[kind])
    if kind != ARRAY:
        raise Malformed(f"values of kind {kind} are not supported")
    inner, count = cursor.number("I"), cursor.number("Q")
    if inner in NUMBERS:
        code = NUMBERS[inner].replace("?", "B")
        return array(code, cursor.read(count * struct.calcsize("<" + code))).tolist()
    if inner != STRING:
        raise Malformed(f"arrays of kind {inner} are not supported")
    return cursor.strings(count)
