"""Whole answers: the unary reply is nothing but the stream, read to its end."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..types import Event, Reasoning, Text, TokenLogprob, ToolCallDelta, ToolCallStart
from .generation import DeltaStream


@dataclass(slots=True)
class Call:
    """A tool call, whole."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class CompletedChoice:
    """One choice, whole: the fold of its deltas."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str = "stop"
    stop: str | int | None = None


async def collect(generation: DeltaStream, choices: int) -> list[CompletedChoice]:
    """The whole answers: the unary reply is nothing but the stream, read to its end."""
    answers = [CompletedChoice() for _ in range(choices)]
    texts: list[list[Event]] = [[] for _ in answers]
    async for deltas in generation:
        for delta in deltas:
            answer = answers[delta.index]
            texts[delta.index] += delta.events
            answer.tokens += delta.tokens
            answer.logprobs += delta.logprobs
            if delta.finish:
                answer.finish, answer.stop = delta.finish, delta.stop
    for answer, events in zip(answers, texts, strict=True):
        _fill(answer, events)
    return answers


def _fill(answer: CompletedChoice, events: list[Event]) -> None:
    answer.text = "".join(e.text for e in events if isinstance(e, Text))
    answer.reasoning = "".join(e.text for e in events if isinstance(e, Reasoning))
    answer.calls = [Call(e.id, e.name) for e in events if isinstance(e, ToolCallStart)]
    for index, call in enumerate(answer.calls):
        call.arguments = "".join(e.text for e in events if isinstance(e, ToolCallDelta) and e.index == index)
