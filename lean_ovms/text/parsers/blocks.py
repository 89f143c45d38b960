"""Reasoning whose tags have several spellings, of which one model uses one: the common part of those families."""

from __future__ import annotations

from .base import Block, CombinedParser
from .scanner import Steps, Tags


class SpelledBlock(Block):
    """Reasoning between one of the pairs of tags. Any end ends it, and so does a tag of `calls`, which is read on."""

    def __init__(self, out: CombinedParser, *, tools: bool = False, thinking: bool = False) -> None:
        super().__init__(out, tools=tools, thinking=thinking)
        pairs = self.pairs()
        self.tags = tuple(pairs)
        self.noise = (*self.noise, *self.loose_ends())
        self._calls = self.calls()
        self._ends = Tags([*pairs.values(), *self._calls])
        self._starts = Tags(pairs)

    def pairs(self) -> dict[str, str]:
        """Each start tag with its end tag."""
        raise NotImplementedError

    def loose_ends(self) -> tuple[str, ...]:
        """The end tags that are dropped where no reasoning is open."""
        return tuple(self.pairs().values())

    def calls(self) -> tuple[str, ...]:
        """The tags of calls that end reasoning."""
        return ()

    def read(self, tag: str) -> Steps[bool]:
        self.scanner.forget()
        yield from self._inside()
        return True

    def resume(self) -> Steps[None]:
        """Read on inside reasoning that the prompt opened; a start tag that the model repeats is dropped."""
        self.scanner.record()
        yield from self.scanner.space()
        for start in self._starts.all:
            if (yield from self.scanner.literal(start)):
                self.scanner.forget()
                break
        else:
            self.scanner.unread()
        yield from self._inside()

    def _inside(self) -> Steps[None]:
        tag = yield from self.scanner.until(self._ends, self.out.reasoning)
        if tag in self._calls:
            self.scanner.pos -= len(tag)
        self.out.pause()
