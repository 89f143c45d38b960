"""Files as the body of a response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import BinaryIO

from ....push_types import Sink


class FileStream:
    """A ByteStream of files, which it closes. read: the next piece of one, b"" at its end; called in a thread."""

    def __init__(self, files: Sequence[BinaryIO], read: Callable[[BinaryIO], bytes]) -> None:
        self._files = files
        self._read = read

    async def push_to(self, sink: Sink[bytes]) -> None:
        for file in self._files:
            while piece := await asyncio.to_thread(self._read, file):
                await sink.send(piece)

    async def aclose(self) -> None:
        for file in self._files:
            file.close()
