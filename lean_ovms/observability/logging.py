"""Logging: one logger per package under "lean_ovms", one line per event, text or JSON.

Values from clients are printed through `safe` (text) or as JSON strings (--log_format json), so a header or a model
name cannot forge a line. The access line costs 10 us in either format.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import orjson

from .handlers import NonBlockingHandler, ReopeningFileHandler
from .records import RequestRecord

TRACE = 5
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
PLAIN = "%(message)s"
"""The format of lines for a person who waits for a command."""
PRINTED = "[%(levelname)s] %(name)s: %(message)s"
"""The format of lines in an engine whose log the front end reads with what is printed; engine/client/output.py reads
it."""


def setup(level: str, form: str = "text", path: str = "", fd: int | None = None, *, text: str = "") -> None:
    """Send our loggers to stderr at this level, form text or json; other libraries' loggers are left alone.

    path: a file that gets the lines, too; it may be moved away at any time (logrotate). Raises OSError when it cannot
    be written now; logging is set up nevertheless, and the file gets lines once it can be written.
    fd: gets the lines instead of stderr. text: the format of those in form text to stderr; "": TEXT.
    """
    logging.addLevelName(TRACE, "TRACE")
    stderr = _to_stderr() if fd is None else NonBlockingHandler(fd)
    root = logging.getLogger("lean_ovms")
    for old in root.handlers:
        old.close()
    root.handlers[:] = [stderr]
    root.setLevel(level)
    root.propagate = False
    formatter = JsonLines() if form == "json" else logging.Formatter(TEXT)
    stderr.setFormatter(logging.Formatter(text) if text else formatter)
    if path:
        _add_file(root, path, formatter)


def is_set_up() -> bool:
    """Returns whether `setup` decides where our loggers write; otherwise the program around us does."""
    return any(isinstance(handler, NonBlockingHandler) for handler in logging.getLogger("lean_ovms").handlers)


def _add_file(root: logging.Logger, path: str, formatter: logging.Formatter) -> None:
    """Add the handler of a file. Raises OSError, after the handler is added."""
    file: logging.Handler
    if Path(path).is_fifo():  # such as /dev/stdout: may be slow; without a reader os.open raises
        file = NonBlockingHandler(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    else:
        file = ReopeningFileHandler(path, root.handlers[0].handle)
    file.setFormatter(formatter)
    root.addHandler(file)
    if isinstance(file, ReopeningFileHandler):
        file.open()


def _to_stderr() -> logging.Handler:
    try:
        return NonBlockingHandler(sys.stderr.fileno())
    except (AttributeError, OSError):  # an embedding program has replaced or removed sys.stderr
        return logging.StreamHandler()


def safe(text: str, limit: int = 200) -> str:
    """Returns text in one line of printable characters, cut at limit."""
    cut = text if len(text) <= limit else text[:limit] + "…"
    if cut.isprintable():
        return cut
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


class JsonLines(logging.Formatter):
    """One JSON object a line: time (RFC 3339, UTC), level, logger, message, or an access line's fields instead."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        shown: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
        }
        if isinstance(record.msg, Access):
            shown |= record.msg.fields()
        else:
            shown["message"] = record.getMessage()
        if record.exc_info:
            shown["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(shown, default=str).decode()


class Access:
    """The access line: a request and its response. It is the message for a logger, formatted only if it is written."""

    __slots__ = ("_record",)

    def __init__(self, record: RequestRecord) -> None:
        self._record = record

    def log(self, logger: logging.Logger, level: int = logging.INFO) -> None:
        """Logs as logger.log does, but does not search the line of code that logs: each access line has the same."""
        if logger.isEnabledFor(level):
            logger.handle(logger.makeRecord(logger.name, level, __file__, 0, self, (), None))

    def fields(self) -> dict[str, Any]:
        record = self._record
        shown: dict[str, Any] = {
            "request_id": _encodable(record.request_id),
            "peer": record.peer,
            "method": _encodable(record.method),
            "path": _encodable(record.path[:MAX_PATH]),
            "status": record.status,
            "bytes": record.bytes,
            "ms": round(record.seconds * 1e3, 2),
        }
        if record.model:
            shown |= {"model": record.model, "stream": record.stream}
        if record.key is not None and record.key.name:
            shown["api_key_name"] = record.key.name
        if record.trace_id:
            shown["trace_id"] = record.trace_id
        if record.error:
            shown["error"] = record.error
        if record.generations:
            shown |= self._generated()
        return shown

    def _generated(self) -> dict[str, Any]:
        record = self._record
        ttft_s = record.ttft_s
        return {
            "prompt_tokens": record.prompt_tokens,
            "completion_tokens": record.completion_tokens,
            "ttft_ms": None if ttft_s is None else round(ttft_s * 1e3, 2),
            "finish": record.finish_reasons,
            "engine_ids": [g.engine_id for g in record.generations],
        }

    def __str__(self) -> str:
        record = self._record
        kind = f" {record.model}{' stream' if record.stream else ''}" if record.model else ""
        tail = self._generated_text() if record.generations else ""
        key = f" key={record.key.name}" if record.key is not None and record.key.name else ""
        error = f" error={record.error}" if record.error else ""
        trace = f" trace={record.trace_id}" if record.trace_id else ""
        return (
            f"{record.peer or '-'} {safe(record.method)} {safe(record.path)} {record.status} {record.bytes} B "
            f"{record.seconds * 1e3:.1f} ms{kind}{tail}{key}{error}{trace} id={safe(record.request_id)}"
        )

    def _generated_text(self) -> str:
        shown = self._generated()
        ttft = "-" if shown["ttft_ms"] is None else f"{shown['ttft_ms']:.1f} ms"
        return (
            f" prompt={shown['prompt_tokens']} completion={shown['completion_tokens']} ttft={ttft}"
            f" finish={','.join(shown['finish'])} engine={','.join(map(str, shown['engine_ids']))}"
        )


MAX_PATH = 2000


def _encodable(text: str) -> str:
    """Returns text without lone surrogates, which a percent-decoded path may contain and JSON may not."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
