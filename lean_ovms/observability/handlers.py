"""What our log handlers have in common: a record as a line of bytes, and records of the log about itself."""

from __future__ import annotations

import logging


class LineHandler(logging.Handler):
    """Hands each record on as a line, its end included."""

    def emit(self, record: logging.LogRecord) -> None:
        """Make the line and write it."""
        try:
            line = self.line(record)
        except Exception:  # a message that does not fit its arguments: as all handlers do
            self.handleError(record)
            return
        self.write(line, record.created)

    def line(self, record: logging.LogRecord) -> bytes:
        """What a record is written as."""
        return f"{self.format(record)}\n".encode("utf-8", "backslashreplace")

    def write(self, line: bytes, at: float) -> None:
        """Let the reader have it; raises nothing. at: when it was logged, in Unix time."""
        raise NotImplementedError


def own_record(level: int, message: str, *args: object) -> logging.LogRecord:
    """What the log has to say of itself."""
    said = {"name": "lean_ovms.observability.logging", "levelno": level, "levelname": logging.getLevelName(level)}
    return logging.makeLogRecord(said | {"msg": message, "args": args})
