"""No markup at all: every text is content. Used when a request or a model has no parser."""

from __future__ import annotations

from ...types import Event, Text
from .base import Parser


class PlainText(Parser):
    """Hands text through."""

    def feed(self, text: str) -> list[Event]:
        return [Text(text)] if text else []

    def finish(self, ended_by: str = "") -> list[Event]:
        return []
