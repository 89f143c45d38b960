"""Deltas of a generation to the content blocks of a message: what begins, grows and ends, in order.

Blocks is the one state machine; a sink writes its steps as events of a stream (events.py) or adds them up to the
content of a message (Content here). Knows no request and no transport.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Iterable
from typing import Protocol

from ...types import Delta, Event, Json, Reasoning, Text, ToolCallStart
from ..fields import parsed

TEXT, THINKING, TOOL_USE = "text", "thinking", "tool_use"


class BlockSink(Protocol):
    """Takes the steps of Blocks. index: of the block, from 0. kind: text, thinking or tool_use."""

    def begin(self, index: int, block: Json) -> None:
        """A block begins; block: its object without content."""

    def add(self, index: int, kind: str, text: str) -> None:
        """A block grows by this text; that of a tool_use is JSON."""

    def sign(self, index: int, signature: str) -> None:
        """The signature of a thinking block, which ends then."""

    def end(self, index: int) -> None:
        """A block ends."""


class Blocks:
    """Feed it deltas, then `close`. omit_thinking: the text of the reasoning is left out.

    has_calls: there was a tool call. finish, stop: of the answer, as in Delta.
    """

    def __init__(self, sink: BlockSink, *, omit_thinking: bool = False) -> None:
        self.has_calls = False
        self.finish = "stop"
        self.stop: str | int | None = None
        self._sink = sink
        self._omit_thinking = omit_thinking
        self._index = -1
        self._open = ""
        self._signed = hashlib.sha256()

    def feed(self, deltas: Iterable[Delta]) -> None:
        """The next deltas."""
        for delta in deltas:
            for event in delta.events:
                self._event(event)
            if delta.finish:
                self.finish, self.stop = delta.finish, delta.stop

    def close(self) -> None:
        """End the open block."""
        if self._open == THINKING:
            # Clients send thinking blocks back with their signature. It is not checked; that of Anthropic is opaque.
            self._sink.sign(self._index, b64encode(self._signed.digest()).decode())
        if self._open:
            self._sink.end(self._index)
        self._open = ""

    def _event(self, event: Event) -> None:
        if isinstance(event, Text):
            self._text(TEXT, event.text)
        elif isinstance(event, Reasoning):
            self._text(THINKING, event.text)
            self._signed.update(event.text.encode("utf-8", "replace"))
        elif isinstance(event, ToolCallStart):
            self.has_calls = True
            call_id = re.sub("^call_", "toolu_", event.id)
            self._begin(TOOL_USE, {"type": TOOL_USE, "id": call_id, "name": event.name, "input": {}})
        elif event.text and self._open == TOOL_USE:
            self._sink.add(self._index, TOOL_USE, event.text)

    def _text(self, kind: str, text: str) -> None:
        if self._open != kind:
            signature = {} if kind == TEXT else {"signature": ""}
            self._begin(kind, {"type": kind, kind: "", **signature})
        if not (self._omit_thinking and kind == THINKING):
            self._sink.add(self._index, kind, text)

    def _begin(self, kind: str, block: Json) -> None:
        self.close()
        self._index += 1
        self._open = kind
        if kind == THINKING:
            self._signed = hashlib.sha256()
        self._sink.begin(self._index, block)


class Content:
    """A BlockSink that adds the steps up to `blocks`, the content of a message."""

    def __init__(self) -> None:
        self.blocks: list[Json] = []
        self._texts: list[str] = []

    def begin(self, index: int, block: Json) -> None:
        self.blocks.append(block)
        self._texts = []

    def add(self, index: int, kind: str, text: str) -> None:
        self._texts.append(text)

    def sign(self, index: int, signature: str) -> None:
        self.blocks[index]["signature"] = signature

    def end(self, index: int) -> None:
        block, text = self.blocks[index], "".join(self._texts)
        if block["type"] == TOOL_USE:
            block["input"] = _input(text)
        else:
            block[block["type"]] = text


def _input(text: str) -> Json:
    """The arguments of a call; {} for those that are cut off, which the stop reason max_tokens says."""
    try:
        value = parsed(text) if text else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
