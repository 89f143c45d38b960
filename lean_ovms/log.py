"""Logging: one logger per room under "lean_ovms", one line per event, nothing that a client can break.

Values that came from outside are printed through `safe`, so a header or a model name cannot forge a line.
"""

from __future__ import annotations

import logging
import sys

TRACE = 5


def setup(level: str) -> None:
    """Send our loggers to stderr at this level; other libraries' loggers are left alone."""
    logging.addLevelName(TRACE, "TRACE")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("lean_ovms")
    root.handlers[:] = [handler]
    root.setLevel(level)
    root.propagate = False


def safe(text: str, limit: int = 200) -> str:
    """text in one line of printable characters, cut at limit."""
    cut = text if len(text) <= limit else text[:limit] + "…"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)
