"""Calls written as invoke elements inside a block of calls: MiniMax M2, DeepSeek V3.2 and later."""

from __future__ import annotations

from typing import ClassVar

from .scanner import Steps
from .xml_calls import XmlCalls


class InvokeCalls(XmlCalls):
    """Any number of calls in a block, whose begin and end may both be missing.

    tags: the begins of a block, then `invoke`, then the block's end. invoke: a call's begin, up to its name, which may
    stand in either quotes, or in none.
    """

    invoke: ClassVar[str]
    _open = False

    def read(self, tag: str) -> Steps[bool]:
        if tag == self.tags[-1]:
            was_open, self._open = self._open, False
            return was_open
        if tag != self.invoke:
            yield from self.scanner.space()
            if not (yield from self.scanner.literal(self.invoke)):
                return False
        return (yield from self.call())

    def ended(self, tag: str) -> None:
        self._open = tag != self.tags[-1]

    def name(self, after: str) -> Steps[str]:
        quote = yield from self.scanner.peek()
        if quote in ('"', "'"):
            yield from self.scanner.literal(quote)
            after = quote + after
        return (yield from super().name(after))
