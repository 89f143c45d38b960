"""Turns the deltas of a generation into the content blocks of a message.

Blocks is the state machine that begins, extends and ends blocks in order. Its subclasses write these steps as events of
a stream (events.py), or collect them as the content of a message (Content).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ....api.fields import parsed_object
from ....types import Delta, Event, Json, Reasoning, Text, ToolCallStart
from .signatures import signature

TEXT, THINKING, TOOL_USE = "text", "thinking", "tool_use"


class Blocks:
    """Turns deltas into blocks; subclasses handle the steps. A caller feeds it all deltas, then calls `close`."""

    def __init__(self, *, omit_thinking: bool = False) -> None:
        """Begins an answer, whose thinking blocks lack the text of the reasoning if `omit_thinking` is set."""
        self.index = -1
        """The number of the last block that has begun."""
        self.has_calls = False
        """Whether there was a tool call."""
        self.broken_call = False
        """Whether the input of a tool call is no JSON object, since the answer ended inside of it."""
        self.finish = "stop"
        """How the answer ends, as Delta.finish has it."""
        self.stop: str | int | None = None
        """The stop string or the id that ended it, if one did."""
        self._omit_thinking = omit_thinking
        self._open = ""
        self._thought: list[str] = []

    def begin_block(self, block: Json) -> None:
        """Begins a block, which is given without its content."""

    def add_text(self, text: str) -> None:
        """Adds text to the open block; a tool_use block gets parts of the JSON of its input."""

    def sign_block(self, signature: str) -> None:
        """Adds the signature of a thinking block, after which it ends."""

    def end_block(self) -> None:
        """Ends the open block."""

    def feed(self, deltas: Iterable[Delta]) -> None:
        """Handles the next deltas."""
        for delta in deltas:
            for event in delta.events:
                self._event(event)
            if delta.finish:
                self.finish, self.stop, self.broken_call = delta.finish, delta.stop, delta.broken_call

    def close(self) -> None:
        """Ends the open block."""
        if self._open == THINKING:
            self.sign_block(signature("".join(self._thought), omitted=self._omit_thinking))
        if self._open:
            self.end_block()
        self._open = ""

    def _event(self, event: Event) -> None:
        if isinstance(event, Text):
            self._text(TEXT, event.text)
        elif isinstance(event, Reasoning):
            self._text(THINKING, event.text)
            self._thought.append(event.text)
        elif isinstance(event, ToolCallStart):
            self.has_calls = True
            call_id = re.sub("^call_", "toolu_", event.id)
            self._begin(TOOL_USE, {"type": TOOL_USE, "id": call_id, "name": event.name, "input": {}})
        elif event.text and self._open == TOOL_USE:
            self.add_text(event.text)

    def _text(self, kind: str, text: str) -> None:
        if self._open != kind:
            unsigned = {} if kind == TEXT else {"signature": ""}
            self._begin(kind, {"type": kind, kind: "", **unsigned})
        if not (self._omit_thinking and kind == THINKING):
            self.add_text(text)

    def _begin(self, kind: str, block: Json) -> None:
        self.close()
        self.index += 1
        self._open = kind
        self._thought = []
        self.begin_block(block)


class Content(Blocks):
    """Collects the steps in `blocks`, the content of a message."""

    def __init__(self, *, omit_thinking: bool = False) -> None:
        super().__init__(omit_thinking=omit_thinking)
        self.blocks: list[Json] = []
        self._texts: list[str] = []

    def begin_block(self, block: Json) -> None:
        self.blocks.append(block)
        self._texts = []

    def add_text(self, text: str) -> None:
        self._texts.append(text)

    def sign_block(self, signature: str) -> None:
        self.blocks[-1]["signature"] = signature

    def end_block(self) -> None:
        block, text = self.blocks[-1], "".join(self._texts)
        if block["type"] == TOOL_USE:
            # If the text is cut off, the stop reason says so: it is not tool_use.
            block["input"] = parsed_object(text) or {}
        else:
            block[block["type"]] = text
