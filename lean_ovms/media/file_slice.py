"""A file that a client uploaded, left in place as a part of a body that is stored on disk."""

from __future__ import annotations

from dataclasses import dataclass

from ..types import StoredBody


@dataclass(frozen=True, slots=True)
class FileSlice:
    """`size` bytes of a stored body, beginning at `start`. Ranges are read by slicing, as with a memoryview."""

    body: StoredBody
    """The stored body."""
    start: int
    """The offset of the file in the body, in bytes."""
    size: int
    """The size of the file in bytes."""

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, place: slice) -> bytes:
        """Returns a copy of the bytes in a range. Raises OSError."""
        start, end, _ = place.indices(self.size)
        return self.body.read(self.start + start, max(0, end - start))
