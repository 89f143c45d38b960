"""The files of messages from where clients keep them: uploads, which have ids, and web servers."""

from __future__ import annotations

from ...api.services import Service, Services
from ...config import Config
from ...errors import BadRequest
from ...types import Json
from ...util.concurrency import Budget
from ..media_files.feature import ImageFileOptions
from ..media_files.images.fetch import HttpFetcher
from ..media_files.images.source import about, parse_url
from ..media_files.uploaded import uploaded

MOST_BYTES = 64 << 20
"""The most bytes of a file."""
TIMEOUT_S = 30.0
"""The most seconds for fetching a file."""
AT_ONCE = 8
"""The number of files by ids and URLs that are in memory at once; their names are short, so no other limit holds."""
WAITING = 256
"""The number of files that may wait for that; a further one gets a 503."""


class FileFetcher(Service):
    """Fetches files from the web servers that --allowed_media_domains lists."""

    def __init__(self, config: Config) -> None:
        self._fetcher = HttpFetcher(config.of(ImageFileOptions), "*", MOST_BYTES, TIMEOUT_S)
        self.slots = Budget(AT_ONCE, WAITING, "too many files are being read; please try again later", "too_many_files")
        """One for each file by its id or URL that is in memory."""

    async def fetch(self, url: str) -> bytes:
        """Returns the content of a file. Raises BadRequest and Unavailable."""
        try:
            return await self._fetcher.fetch(parse_url(url))
        except BadRequest as error:
            raise BadRequest(about(error.message, "file")) from None


async def content_of(file: Json, services: Services) -> tuple[str | None, bytes]:
    """Returns the name, if it is known, and the content of a file that is named by `file_id` or `file_url`.

    Raises RequestError.
    """
    if not isinstance(file.get("file_id"), str):
        return None, await services.get(FileFetcher).fetch(file["file_url"])
    return await uploaded(services, file["file_id"], MOST_BYTES, "the file in file_data")
