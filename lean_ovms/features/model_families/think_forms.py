"""Reasoning with more than two tags, as several families have it: tags around the answer, or several spellings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from .scanner import Steps, Tags
from .think_tags import ThinkTags


class ThinkThenAnswer(ThinkTags):
    """Reads reasoning between two tags, and then the answer, with the optional tags around it removed.

    The tag before the answer counts only at the beginning of an answer, and the tag after it only once the answer has
    begun. A newline next to a tag, on the inner side, belongs to the tag.
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
    """Reads reasoning whose tags have several spellings, one of which a model uses. Any end tag ends it."""

    spellings: Mapping[str, str]
    """The end tag of each start tag, the usual one first."""
    drops_ends: ClassVar[bool] = True
    """Whether an end tag is dropped if no reasoning is open."""

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
