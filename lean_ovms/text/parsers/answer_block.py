"""Reasoning between two tags, and then the answer between two others: the common part of the families that write so.

<think>
reasoning
</think>
<answer>
content
</answer>

A newline next to a tag, on the inner side, belongs to it. The tags around the answer are optional.
"""

from __future__ import annotations

from typing import ClassVar

from .base import Block
from .scanner import Steps, Tags


class AnswerBlock(Block):
    """Removes the tags around the answer as well: the first only where an answer begins, the last only after it."""

    answer_start: ClassVar[str]
    answer_end: ClassVar[str]
    at_start = True
    _answering = False

    def __init_subclass__(cls) -> None:
        cls.further = (cls.answer_start, "\n" + cls.answer_end, cls.answer_end)
        super().__init_subclass__()
        cls.ends = Tags(["\n" + cls.end_tag, *cls.ends.all])

    def read(self, tag: str) -> Steps[bool]:
        if tag.endswith(self.answer_end):
            was_answering, self._answering = self._answering, False
            return was_answering
        if tag == self.answer_start:
            return False
        return (yield from super().read(tag))

    def start(self) -> Steps[bool]:
        if self._answering or not (yield from self.scanner.literal(self.answer_start)):
            return False
        self._answering = True
        yield from self.scanner.literal("\n")
        return True

    def _inside(self) -> Steps[None]:
        yield from self.scanner.literal("\n")
        yield from super()._inside()
