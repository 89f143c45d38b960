"""Reads images from regular files below --allowed_local_media_path.

Links are resolved first, and the target must be below the folder. Then each part of the resolved path is opened without
following links, from the folder down, so that it cannot be replaced meanwhile.
"""

from __future__ import annotations

import asyncio
import os

from ....errors import BadRequest
from ....util.files import require_regular
from .source import check_size

DISABLED = "Loading images from local filesystem is disabled."
OUTSIDE = "Given filepath is not subpath of allowed_local_media_path"
FAILED = "Image file parsing failed"


class LocalFiles:
    """Reads files below one folder."""

    def __init__(self, root: str, max_bytes: int) -> None:
        """Keeps the folder, "" if no files are allowed, and the most bytes of a file."""
        self._root = os.path.realpath(root) if root else ""
        self._max_bytes = max_bytes

    async def read(self, path: str) -> bytes:
        """Returns the bytes of a file. Raises BadRequest, which does not reveal whether a path outside exists."""
        if not self._root:
            raise BadRequest(DISABLED)
        if "\0" in path:
            raise BadRequest(FAILED)
        if ".." in path.replace("\\", "/").split("/"):
            raise BadRequest("The path of an image with .. in it is forbidden.")
        try:
            return await asyncio.to_thread(self._read, path)
        except (OSError, ValueError):
            raise BadRequest(FAILED) from None

    def _read(self, path: str) -> bytes:
        resolved = os.path.realpath(os.path.join(self._root, path))
        if os.path.commonpath([resolved, self._root]) != self._root:
            raise BadRequest(OUTSIDE)
        parts = os.path.relpath(resolved, self._root).split(os.sep)
        with os.fdopen(_open(self._root, parts), "rb") as file:
            require_regular(file.fileno(), path)
            data = file.read(self._max_bytes + 1)
        check_size(len(data), self._max_bytes)
        return data


def _open(root: str, parts: list[str]) -> int:
    """Opens root/parts, and returns its descriptor. Raises OSError, also if a part is a link."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            deeper = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = deeper
        # O_NONBLOCK: opening a pipe or a device must not wait for its other end.
        return os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
