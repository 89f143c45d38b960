"""Uploaded files that messages name by their ids."""

from __future__ import annotations

from ...api.services import Services
from ...errors import BadRequest
from ...manifest import UPLOADED_FILES


async def uploaded(services: Services, file_id: str, most: int, instead: str) -> tuple[str, bytes]:
    """Returns the name and the content of an uploaded file.

    Args:
        services: The options and the state of the server.
        file_id: The id of the file.
        most: The most bytes of the file.
        instead: What the client can send instead of an id, for the error of a server that stores no files.

    Raises:
        RequestError: The server stores no files, or the file does not exist or is too large.
    """
    fetch = services.config.part(UPLOADED_FILES)
    if fetch is None:
        raise BadRequest(f"files by their ids are not supported on this server; send {instead}")
    found: tuple[str, bytes] = await fetch(services, file_id, most)
    return found
