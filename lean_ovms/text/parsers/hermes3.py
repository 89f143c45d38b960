"""Hermes, Qwen2.5, Qwen3: <tool_call>{"name": …, "arguments": {…}}</tool_call>, repeated.

Beyond the plain form it takes several objects, or a list of them, between one pair of tags, and a missing end tag.
"""

from __future__ import annotations

from ..scanner import Steps
from .json_calls import JsonCalls


class Tools(JsonCalls):
    """Calls between <tool_call> and </tool_call>."""

    tags = ("<tool_call>", "</tool_call>")
    open = False

    def read(self, tag: str) -> Steps[bool]:
        if tag == "</tool_call>":
            was_open, self.open = self.open, False
            return was_open
        called = False
        while True:
            mark = yield from self.scanner.space()
            if mark and mark in "[],":
                self.scanner.pos += 1
            elif mark != "{":
                break
            elif (yield from self.call()):
                called = self.open = True
                self.scanner.record()
            else:
                return False
        if called and (yield from self.scanner.literal("</tool_call>")):
            self.open = False
        return called
