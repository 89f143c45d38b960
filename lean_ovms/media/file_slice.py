"""A file that a client sent, where it is: part of a body that is in a file."""

from __future__ import annotations

from dataclasses import dataclass

from ..types import StoredBody


@dataclass(frozen=True, slots=True)
class FileSlice:
    """`size` bytes of a body from `start` on. Ranges of it are read as those of a memoryview are."""

    body: StoredBody
    start: int
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, place: slice) -> bytes:
        """Returns a copy of these bytes. Raises OSError."""
        start, end, _ = place.indices(self.size)
        return self.body.read(self.start + start, max(0, end - start))
