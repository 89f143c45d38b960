"""Reads PDF files in separate processes, since they are not trusted, and reading one may take long or never end."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

from ...config import Config
from ...errors import RequestError, install_command
from ...media.file_slice import FileSlice
from ...observability.records import own_salt
from ...types import Json
from ...util.concurrency import Budget
from ..media_files.helper import Helper, HelperPool
from .limits import MAX_TEXT

COMMAND = (sys.executable, "-m", "lean_ovms.features.pdf.reader_process")
TIMEOUT_S = 60.0
"""The most seconds that reading a file may take."""
AT_ONCE = 2
"""The number of files that are read at the same time; others wait."""
KEPT = 8
"""The number of files in conversations whose texts are cached; each text has at most a million characters."""
WAITING_FILES = 256
"""The number of requests that may wait for a process; further ones get a 503."""
MAX_BYTES = 4 * MAX_TEXT
"""The most bytes of a file's text in UTF-8."""


def require_library() -> None:
    """Raises RequestError if the library that reads PDF files is not installed."""
    if importlib.util.find_spec("pypdf") is None:
        text = f"PDF files need pypdf, which is not installed on this server: {install_command('pdf')}"
        raise RequestError(text, status=501, code="not_supported")


class _Reader(Helper):
    """A process that reads files."""

    name, work, invalid = "reader of PDF files", "reading the PDF file", "Invalid PDF file"
    unavailable = "PDF files cannot be read at the moment.", "reader_unavailable"
    param = "file"

    async def read(self, data: memoryview | FileSlice, timeout_s: float) -> Json:
        """Returns the result of the process for a file. Raises RequestError."""
        return await self.answered(self._exchange(data, timeout_s), timeout_s)

    async def _exchange(self, data: memoryview | FileSlice, timeout_s: float) -> Json:
        await self.send({"seconds": timeout_s}, data)
        answer = await self.read_answer()
        text = (await self.read_bytes(answer.pop("bytes", None), MAX_BYTES)).decode(errors="replace")
        self.reusable = True
        return {"text": text, **answer}


class PdfReaders(HelperPool[_Reader]):
    """The processes of a server that read files. They must be closed at the end."""

    def __init__(self, config: Config, command: Sequence[str] = COMMAND, timeout_s: float = TIMEOUT_S) -> None:
        """Prepares the pool; processes are started when they are needed.

        Args:
            config: The options.
            command: The command that starts a process.
            timeout_s: The seconds that reading a file may take.
        """
        slots = Budget(
            AT_ONCE,
            WAITING_FILES,
            "too many PDF files are being read; please try again later",
            "too_many_pdf_files",
            most_of_client=AT_ONCE - 1,  # a file may take a minute, and the requests of others wait for half of that
        )
        super().__init__(_Reader, command, slots, kept=AT_ONCE)
        self._timeout_s = timeout_s
        self._caching = config.enable_prefix_caching
        self._known: dict[tuple[bytes, str], str] = {}

    async def read(self, data: memoryview | FileSlice) -> Json:
        """Returns the text of a file, and its number of pages. Raises RequestError."""
        async with self.lent() as process:
            return await process.read(data, self._timeout_s)

    async def text(self, digest: bytes, data: bytes, salt: str) -> str:
        """Returns the text of a file, cached as clients resend it with each turn.

        Like a cached prompt, it serves the requests of one API key, or those that share its scope: the time that an
        answer takes must not tell what others have sent.

        Args:
            digest: The digest of the file.
            data: The file.
            salt: The request's cache_salt.

        Raises:
            RequestError: The file cannot be read.
        """
        key = digest, own_salt(salt)
        text = self._known.pop(key, None)
        if text is None:
            text = (await self.read(memoryview(data)))["text"]
        if self._caching:
            self._known[key] = text
        if len(self._known) > KEPT:
            del self._known[next(iter(self._known))]  # the least recently used text
        return text
