"""Reads PDF files in separate processes, since they are not trusted, and reading one may take long or never end."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence

from ...config import Config
from ...errors import BadRequest, RequestError, install_command
from ...media.file_slice import FileSlice
from ...observability.records import current_client
from ...types import Json
from ...util.concurrency import Budget
from ..media_files.helper import Helper, IdleHelpers

COMMAND = (sys.executable, "-m", "lean_ovms.features.pdf.reader_process")
TIMEOUT_S = 60.0
"""The most seconds that reading a file may take."""
IDLE_S = 120.0
"""Seconds after which idle processes end."""
AT_ONCE = 2
"""The number of files that are read at the same time; others wait."""
KEPT = 8
"""The number of files in conversations whose texts are cached; each has at most a million characters."""
WAITING_FILES = 256
"""The number of requests that may wait for a process; further ones get a 503."""
PIECE = 1 << 18
"""The number of bytes of a file that are sent to a process at once."""
MAX_ANSWER = 1 << 24
"""The most bytes of a process's answer, four times what `limits.MAX_TEXT` can take."""


def require_library() -> None:
    """Raises RequestError if the library that reads PDF files is not installed."""
    if importlib.util.find_spec("pypdf") is None:
        text = f"PDF files need pypdf, which is not installed on this server: {install_command('pdf')}"
        raise RequestError(text, status=501, code="not_supported")


class PdfReaders:
    """The processes of a server that read files. They must be closed at the end."""

    def __init__(self, config: Config, command: Sequence[str] = COMMAND, timeout_s: float = TIMEOUT_S) -> None:
        """Prepares the pool; processes are started when they are needed.

        Args:
            config: The options, which are not used.
            command: The command that starts a process.
            timeout_s: The seconds that reading a file may take.
        """
        self._command = command
        self._timeout_s = timeout_s
        self._known: dict[bytes, str] = {}
        self._slots = Budget(
            AT_ONCE, WAITING_FILES, "too many PDF files are being read; please try again later", "too_many_pdf_files"
        )
        self.idle = IdleHelpers[_Reader](IDLE_S, AT_ONCE)

    async def read(self, data: memoryview | FileSlice) -> Json:
        """Returns the text of a file, and its number of pages. Raises RequestError."""
        lease = await self._slots.acquire(1, current_client())
        process = self.idle.acquire() or _Reader(self._command)
        try:
            return await process.read(data, self._timeout_s)
        finally:
            self.idle.release(process)
            lease.release()

    async def text(self, key: bytes, data: bytes) -> str:
        """Returns the text of a file by its digest, cached as clients resend it with each turn. Raises RequestError."""
        text = self._known.pop(key, None)
        if text is None:
            text = (await self.read(memoryview(data)))["text"]
        self._known[key] = text
        if len(self._known) > KEPT:
            del self._known[next(iter(self._known))]  # the least recently used text
        return text

    async def drain(self, timeout_s: float) -> None:
        """Does nothing, since files are read for requests, for which the server waits."""

    async def close(self) -> None:
        """Ends the idle processes. Idempotent."""
        self.idle.stop()


class _Reader(Helper):
    """A process that reads files."""

    name, work, invalid = "reader of PDF files", "reading the PDF file", "Invalid PDF file"
    unavailable = "PDF files cannot be read at the moment.", "reader_unavailable"
    param = "file"

    async def read(self, data: memoryview | FileSlice, timeout_s: float) -> Json:
        """Returns the result of the process for a file. Raises RequestError."""
        self.reusable = False
        answer = await self.answered(self._exchange(data, timeout_s), timeout_s)
        self.reusable = True
        if "error" in answer:
            raise BadRequest(str(answer["error"]), param=self.param)
        return answer

    async def _exchange(self, data: memoryview | FileSlice, timeout_s: float) -> Json:
        pieces = (data[at : at + PIECE] for at in range(0, len(data), PIECE))
        await self.send({"bytes": len(data), "seconds": timeout_s}, pieces)
        reader, _ = await self.streams()
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size > MAX_ANSWER:
            raise OSError("the answer has a wrong size")
        found: Json = json.loads(await reader.readexactly(size))
        return found
