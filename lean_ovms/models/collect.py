"""Completed choices: a unary response is a sink that collects."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..push_types import Sink
from ..types import Delta, Event, Reasoning, Text, TokenLogprob, ToolCallDelta, ToolCallStart
from .generation import DeltaStream


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
    finish: str = "stop"
    stop: str | int | None = None


async def collect(generation: DeltaStream, choices: int) -> list[CompletedChoice]:
    """The completed choices of a generation, which is pushed to its end. Raises RequestError."""
    collected = [CompletedChoice(finish="") for _ in range(choices)]
    texts: list[list[Event]] = [[] for _ in collected]

    def add(deltas: list[Delta]) -> None:
        for delta in deltas:
            choice = collected[delta.index]
            texts[delta.index] += delta.events
            choice.tokens += delta.tokens
            choice.logprobs += delta.logprobs
            choice.finish = delta.finish or choice.finish or "stop"
            choice.stop = delta.stop if delta.finish else choice.stop

    await generation.push_to(Sink(add))
    for choice, events in zip(collected, texts, strict=True):
        _fill(choice, events)
    return collected


def _fill(choice: CompletedChoice, events: list[Event]) -> None:
    choice.text = "".join(e.text for e in events if isinstance(e, Text))
    choice.reasoning = "".join(e.text for e in events if isinstance(e, Reasoning))
    choice.calls = [Call(e.id, e.name) for e in events if isinstance(e, ToolCallStart)]
    for index, call in enumerate(choice.calls):
        call.arguments = "".join(e.text for e in events if isinstance(e, ToolCallDelta) and e.index == index)
