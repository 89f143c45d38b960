"""Reasoning between two tags, and the families that have only this."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from .base import ModelFamily, Syntax
from .scanner import Steps, Tags

if TYPE_CHECKING:
    from ...grammar.call_syntax import ReasoningForm


class ThinkTags(Syntax):
    """Reads reasoning between two tags. The text inside is passed on unchanged."""

    between_tags = True
    start_tag = "<think>"
    end_tag: ClassVar[str] = "</think>"
    starts: tuple[str, ...]
    breaks: tuple[str, ...] = ()
    """Further tags that end reasoning, and that are then read as markup themselves."""
    call_tag: ClassVar[str] = ""
    """A tag that ends reasoning if a call follows it. A forgotten end tag is dropped if it comes later."""
    further: ClassVar[tuple[str, ...]] = ()
    """Further tags after which `read` is called."""
    starts_open: ClassVar[bool] = False
    """Whether the start tag is optional, since every answer begins with reasoning unless the prompt has ended it."""
    next_header: ClassVar[str] = ""
    """The beginning of the next message, in a format that has messages."""
    _open = False

    ends: Tags

    def __init_subclass__(cls) -> None:
        cls.starts = (cls.start_tag,)
        cls.tags = (*cls.starts, *([cls.end_tag] if cls.call_tag else []), *cls.further)
        cls.ends = Tags([cls.end_tag, *cls.breaks, *filter(None, [cls.call_tag])])

    @classmethod
    def opened(cls, prompt_tail: str) -> bool:
        if cls.starts_open:
            return not prompt_tail.rstrip().endswith(cls.end_tag)
        return super().opened(prompt_tail)

    @classmethod
    def reasoning_form(cls) -> ReasoningForm:
        from ...grammar.call_syntax import ReasoningForm  # late, because only grammars need it

        return ReasoningForm(start=cls.start_tag, end=cls.end_tag, opened=cls.opened, after=cls.next_header)

    def read(self, tag: str) -> Steps[bool]:
        if tag == self.end_tag:
            was_open, self._open = self._open, False
            return was_open
        self.scanner.forget()
        yield from self._inside()
        return True

    def resume(self) -> Steps[None]:
        """Reads the rest of reasoning that the prompt has opened; a start tag that the model repeats is dropped."""
        self.scanner.record()
        yield from self.scanner.space()
        for start in self.starts:
            if (yield from self.scanner.literal(start)):
                self.scanner.forget()
                break
        else:
            self.scanner.unread()
        yield from self._inside()

    def _inside(self) -> Steps[None]:
        while True:
            tag = yield from self.scanner.until(self.ends, self.out.reasoning)
            if tag not in (*self.breaks, self.call_tag) or not tag:
                break
            self.scanner.pos -= len(tag)
            if tag in self.breaks:
                break
            self._open = yield from self._before_call()
            if self._open:
                break
            self.scanner.pos += len(tag)
            self.out.reasoning(tag)
        self.out.pause()

    def _before_call(self) -> Steps[bool]:
        """Returns whether a call comes next, without reading it."""
        reader = self.out.reader_of_calls(self.call_tag)
        if reader is None:
            return False
        self.scanner.record()
        yield from self.scanner.literal(self.call_tag)
        called = yield from reader.call_follows()
        self.scanner.unread()
        return called


DEEPSEEK_R1 = ModelFamily(thinking=ThinkTags.variant(starts_open=True))
# Qwen3 and the many models that think between <think> and </think>.
QWEN3 = ModelFamily(thinking=ThinkTags.variant(call_tag="<tool_call>"))
