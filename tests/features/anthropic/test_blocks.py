"""Properties of the stream: it does not depend on how text is cut, adds up to the unary message, and has one final
event."""

from __future__ import annotations

import random
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from lean_ovms.features.anthropic.api.blocks import Content
from lean_ovms.features.anthropic.api.events import MessageObject, MessageRenderer
from lean_ovms.types import Delta, Event, Reasoning, Response, Text, ToolCallDelta, ToolCallStart, Usage
from lean_ovms.types.push import Sink
from tests.features.anthropic.conftest import stream

if TYPE_CHECKING:
    from anthropic.types import Message

USAGE = Usage(10, 5, 2, 4)

EVENTS: list[Event] = [
    Reasoning("Let me think: "),
    Reasoning('"quotes" and ünïcode'),
    Text("First, "),
    Text("a look.\n"),
    ToolCallStart(0, "call_a", "f"),
    ToolCallDelta(0, '{"city": "Os'),
    ToolCallDelta(0, 'lo", "n": [1, 2]}'),
    Reasoning("again"),
    ToolCallStart(1, "call_b", "g"),
    ToolCallDelta(1, "{}"),
    Text("done"),
]


def pieces(events: list[Event], rng: random.Random) -> list[Delta]:
    """Returns the events with their texts cut anywhere, in deltas with any number of events."""
    small: list[Event] = []
    for event in events:
        if isinstance(event, ToolCallStart):
            small.append(event)
            continue
        rest = event.text
        while rest:
            size = rng.randint(1, len(rest))
            part, rest = rest[:size], rest[size:]
            small.append(ToolCallDelta(event.index, part) if isinstance(event, ToolCallDelta) else type(event)(part))
    deltas = []
    while small:
        size = rng.randint(0, 3)
        deltas.append(Delta(0, events=small[:size]))
        small = small[size:]
    return [*deltas, Delta(0, finish="stop")]


def unary(deltas: list[Delta], message: MessageObject) -> dict[str, Any]:
    content = Content()
    content.feed(deltas)
    content.close()
    return message.full(content, USAGE)


@cache
def event_type() -> Any:
    """Returns the adapter that parses an event with the client's types."""
    from anthropic.types import RawMessageStreamEvent
    from pydantic import TypeAdapter

    return TypeAdapter(RawMessageStreamEvent)


async def accumulated(data: bytes) -> tuple[Message, list[str]]:
    """Returns the message that Anthropic's client builds from a stream, and the types of the events."""

    class Body:
        async def push_to(self, sink: Sink[bytes]) -> None:
            sink.push(data)

        async def aclose(self) -> None:
            pass

    from anthropic.lib.streaming._messages import accumulate_event

    found = await stream(Response(200, body=Body()))
    snapshot, buffers = None, {}
    for name, payload in found:
        if name != "ping":
            event = event_type().validate_python(payload)
            snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    assert snapshot is not None
    return snapshot, [name for name, _ in found]


@pytest.mark.slow  # importing the client takes seconds
@pytest.mark.parametrize("seed", range(8))
async def test_any_cut_gives_the_same_message(seed: int) -> None:
    from anthropic.types import Message

    rng = random.Random(seed)
    events = EVENTS[rng.randint(0, 4) : len(EVENTS) - rng.randint(0, 3)]
    message = MessageObject(model="m", stops=())
    expected = unary([Delta(0, events=events), Delta(0, finish="stop")], message)
    deltas = pieces(events, rng)
    assert unary(deltas, message) == expected
    renderer = MessageRenderer(message, "r", omit_thinking=False)
    data = renderer.start(USAGE) + b"".join(renderer.deltas([delta]) for delta in deltas) + renderer.end(USAGE)
    folded, names = await accumulated(data)
    assert (
        folded.to_dict(exclude_unset=False)["content"]
        == Message.model_validate(expected).to_dict(exclude_unset=False)["content"]
    )
    assert (folded.stop_reason, folded.usage.input_tokens, folded.usage.output_tokens) == ("tool_use", 6, 5)
    assert folded.usage.cache_read_input_tokens == 4
    assert names.count("message_stop") == names.count("message_start") == names.count("message_delta") == 1
    assert names[-1] == "message_stop"
    assert names.count("content_block_start") == names.count("content_block_stop") == len(expected["content"])
    assert names.count("ping") == 1


@pytest.mark.slow
async def test_an_answer_without_anything() -> None:
    message = MessageObject(model="m", stops=())
    assert unary([Delta(0, finish="stop")], message)["content"] == []
    renderer = MessageRenderer(message, "r", omit_thinking=False)
    folded, names = await accumulated(renderer.start(USAGE) + renderer.end(USAGE))
    assert folded.content == []
    assert names == ["message_start", "message_delta", "message_stop"]
