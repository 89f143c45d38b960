"""Reasoning between two tags: how it is read, and the families that have nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from .base import ModelFamily, Syntax
from .scanner import Steps, Tags

if TYPE_CHECKING:
    from ...grammar.call_syntax import ReasoningForm

_NAME = re.compile(r"[\w.\-]*")


class ThinkTags(Syntax):
    """Reasoning between two tags. Text inside passes as it is."""

    between_tags = True
    start_tag = "<think>"
    end_tag: ClassVar[str] = "</think>"
    starts: tuple[str, ...]
    breaks: tuple[str, ...] = ()
    """Markup that ends reasoning as well, and is read on."""
    call_tag: ClassVar[str] = ""
    """Markup that ends reasoning only where a tool syntax reads it and a call follows: the model forgot the end tag,
    which is dropped if it comes later."""
    further: ClassVar[tuple[str, ...]] = ()
    """More markup that `read` is called after."""
    starts_open: ClassVar[bool] = False
    """Whether the start tag is optional: every answer begins with reasoning unless the prompt has ended it."""
    next_header: ClassVar[str] = ""
    """The begin of the next message, in a format of messages."""
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
        from ...grammar.call_syntax import ReasoningForm  # late: for grammars alone

        return ReasoningForm(start=cls.start_tag, end=cls.end_tag, opened=cls.opened, after=cls.next_header)

    def read(self, tag: str) -> Steps[bool]:
        if tag == self.end_tag:
            was_open, self._open = self._open, False
            return was_open
        self.scanner.forget()
        yield from self._inside()
        return True

    def resume(self) -> Steps[None]:
        """Reads on inside reasoning that the prompt opened; a start tag that the model repeats is dropped."""
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
        """Tells whether a call comes next. Nothing is read."""
        if not self.out.reads_calls(self.call_tag):
            return False
        self.scanner.record()
        yield from self.scanner.literal(self.call_tag)
        called = (yield from self.scanner.space()) == "{" or (yield from self.scanner.literal("<function="))
        if not called and (yield from self.scanner.word(_NAME)):  # GLM's form
            yield from self.scanner.space()
            called = yield from self.scanner.literal("<arg_key>")
        self.scanner.unread()
        return called


class ThinkThenAnswer(ThinkTags):
    """Reasoning between two tags, and then the answer between two others, which are optional and removed as well.

    The first of them counts only where an answer begins, the last only after it. A newline next to a tag, on the inner
    side, belongs to it.
    """

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


class SpelledThinkTags(ThinkTags):
    """Reasoning whose tags have several spellings, of which one model uses one. Any end tag ends it."""

    spellings: Mapping[str, str]
    """The end tag of each start tag, the usual one first."""
    drops_ends: ClassVar[bool] = True
    """Whether an end tag is dropped where no reasoning is open."""

    def __init_subclass__(cls) -> None:
        cls.start_tag, cls.end_tag = next(iter(cls.spellings.items()))

    def prepare(self) -> None:
        self.tags = self.starts = tuple(self.spellings)
        ends = tuple(self.spellings.values())
        self.noise += ends if self.drops_ends else ()
        self.ends = Tags([*ends, *self.breaks])

    @classmethod
    def opened(cls, prompt_tail: str) -> bool:
        return prompt_tail.rstrip().endswith(tuple(cls.spellings))


class ThinkingAsContent(Syntax):
    """Reasoning with its tags as content: shows the start tag that stands at the end of the prompt."""

    start_tag = "<think>"

    def resume(self) -> Steps[None]:
        if (yield from self.scanner.peek()):
            self.out.text(self.start_tag)

    @classmethod
    def reasoning_form(cls) -> ReasoningForm:
        from ...grammar.call_syntax import ReasoningForm

        return ReasoningForm(start=cls.start_tag, end="</think>", opened=cls.opened)


FAMILIES = {
    "deepseek_r1": ModelFamily(thinking=ThinkTags.variant(starts_open=True)),
    # For clients of MiniMax M2 that want the thinking in the content.
    "minimax_m2_append_think": ModelFamily(
        thinking=ThinkingAsContent.variant(noise=("[e~[",), keep_special_tokens=True)
    ),
    # Qwen3 and the many models that think between <think> and </think>.
    "qwen3": ModelFamily(
        thinking=ThinkTags.variant(call_tag="<tool_call>"),
    ),
}
