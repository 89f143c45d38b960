"""The choices of a generation, collected from its deltas: for unary responses, and for callers that want them whole."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..types import Delta, Event, Reasoning, Text, TokenLogprob, ToolCallDelta, ToolCallStart, Usage
from ..types.push import Sink
from .generation import DeltaStream, Generation, GenerationGroup


@dataclass(slots=True)
class Call:
    """A complete tool call."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class CompletedChoice:
    """One complete choice: all its deltas, joined. finish: "" if there is none: a beam search has found fewer."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    audio: list[bytes] = field(default_factory=list)
    finish: str = "stop"
    stop: str | int | None = None


class Collector:
    """The choices of a generation so far."""

    def __init__(self, choices: int) -> None:
        self._choices = [CompletedChoice(finish="") for _ in range(choices)]
        self._events: list[list[Event]] = [[] for _ in self._choices]
        self._begun: set[int] = set()

    def add(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            choice = self._choices[delta.index]
            self._begun.add(delta.index)
            self._events[delta.index] += delta.events
            choice.tokens += delta.tokens
            choice.logprobs += delta.logprobs
            choice.audio += [delta.audio] * bool(delta.audio)
            choice.finish = delta.finish or choice.finish
            choice.stop = delta.stop if delta.finish else choice.stop

    def choices(self, *, ended: bool) -> list[CompletedChoice]:
        """Returns the choices, which later deltas are added to. ended: there is no further delta."""
        for index, (choice, events) in enumerate(zip(self._choices, self._events, strict=True)):
            _add(choice, events)
            events.clear()
            if ended and index in self._begun:
                choice.finish = choice.finish or "stop"
        return self._choices


async def collect(generation: DeltaStream, choices: int) -> list[CompletedChoice]:
    """The completed choices of a generation, which is pushed to its end. Raises RequestError."""
    collector = Collector(choices)
    await generation.push_to(Sink(collector.add))
    return collector.choices(ended=True)


async def collect_each(generations: list[Generation]) -> tuple[list[CompletedChoice], Usage]:
    """The only choice of each generation, at its end, and their tokens; all are closed. Raises RequestError."""
    group = GenerationGroup(generations, 1)
    try:
        return await collect(group, len(generations)), group.usage
    finally:
        await group.aclose()


def _add(choice: CompletedChoice, events: list[Event]) -> None:
    choice.text += "".join(e.text for e in events if isinstance(e, Text))
    choice.reasoning += "".join(e.text for e in events if isinstance(e, Reasoning))
    choice.calls += [Call(e.id, e.name) for e in events if isinstance(e, ToolCallStart)]
    for index, call in enumerate(choice.calls):
        call.arguments += "".join(e.text for e in events if isinstance(e, ToolCallDelta) and e.index == index)
