"""The metadata of a GGUF file: values by key, of which vocabularies are decoded late."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from typing import Any

LENGTH = struct.Struct("<Q")
"""The length before a string in a file."""


class Metadata(dict[str, Any]):
    """Values by key. It keeps the keys that were looked up: what nobody uses may change the network."""

    def __init__(self, entries: Iterable[tuple[str, Any]]) -> None:
        super().__init__(entries)
        self.used: set[str] = set()
        """The keys that were looked up, also those that are missing."""

    def __getitem__(self, key: str) -> Any:
        self.used.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.used.add(key)
        return super().get(key, default)


class StringArray:
    """An array of strings that are decoded only when they are needed, as few readers need the vocabulary."""

    def __init__(self, data: bytes, ends: array[int]) -> None:
        """Keeps the array as bytes.

        Args:
            data: The strings as they are in the file, each preceded by its length.
            ends: The end of each string in the data.
        """
        self._data = data
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    def decoded(self) -> list[str]:
        """Returns all strings; bytes that are not UTF-8 are replaced."""
        data, begin, found = self._data, LENGTH.size, []
        for end in self._ends:
            found.append(data[begin:end])
            begin = end + LENGTH.size
        texts = b"\0".join(found).decode("utf-8", "replace").split("\0")  # all at once, in a third of the time
        return texts if len(texts) == len(found) else [each.decode("utf-8", "replace") for each in found]

    def text(self, number: int) -> str:
        """Returns the string with this index."""
        begin = (self._ends[number - 1] if number else 0) + LENGTH.size
        return self._data[begin : self._ends[number]].decode("utf-8", "replace")
