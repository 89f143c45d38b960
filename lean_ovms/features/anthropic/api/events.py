"""The message object, and the events of its stream.

https://docs.anthropic.com/en/docs/build-with-claude/streaming. The events are message_start, then for each block
content_block_start, deltas and content_block_stop, with a ping after the first start, and at last message_delta and
message_stop. A stream that fails ends with an error event instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

from ....api.response import new_id
from ....api.sse import event
from ....errors import RequestError
from ....types import Delta, Json, Timings, Usage
from ...chat.chunks import prompt_progress, timings, with_timings
from ..errors import anthropic_error
from .blocks import TEXT, THINKING, TOOL_USE, Blocks, Content

PING = b'event: ping\ndata: {"type": "ping"}\n\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageObject:
    """Builds the message object of one request."""

    model: str
    """The name of the model."""
    stops: tuple[str, ...]
    """The request's stop sequences."""
    times: Callable[[], Timings] | None = None
    """Returns the timings so far; None if the complete message has none."""
    timed_events: bool = False
    """Whether the events of text have timings as well."""
    id: str = field(default_factory=lambda: new_id("msg").replace("-", "_"))
    """The id of the message."""

    def opening(self, usage: Usage) -> Json:
        """Returns the object with which a stream begins, without content."""
        return self._object([], None, None, usage)

    def full(self, content: Content, usage: Usage) -> Json:
        """Returns the complete object."""
        return self._object(content.blocks, *self.ending(content), usage) | self.timings()

    def timings(self) -> Json:
        """Returns llama.cpp's member `timings` if the request asks for it, else {}."""
        return {"timings": timings(self.times())} if self.times else {}

    def ending(self, blocks: Blocks) -> tuple[str, str | None]:
        """Returns the values of stop_reason and stop_sequence."""
        if blocks.finish == "length":
            return "max_tokens", None
        if isinstance(blocks.stop, str) and blocks.stop in self.stops:
            return "stop_sequence", blocks.stop
        return ("tool_use" if blocks.has_calls and not blocks.broken_call else "end_turn"), None

    def _object(self, content: list[Json], reason: str | None, stop: str | None, usage: Usage) -> Json:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": counts(usage),
        }


def counts(usage: Usage) -> Json:
    """Returns the usage object, whose input_tokens do not include those that came from the prefix cache."""
    cached = usage.cached_tokens or 0
    body: Json = {
        "input_tokens": usage.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
    }
    if usage.reasoning_tokens:
        body["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    return body


def _event(kind: str, payload: Json) -> bytes:
    return event({"type": kind, **payload}, kind)


_DELTAS = {
    TEXT: ("text_delta", "text"),
    THINKING: ("thinking_delta", "thinking"),
    TOOL_USE: ("input_json_delta", "partial_json"),
}


class MessageRenderer(Blocks):
    """Renders deltas as the events of a message stream. The constant parts of a block's deltas are joined only once."""

    def __init__(self, message: MessageObject, request_id: str, *, omit_thinking: bool) -> None:
        super().__init__(omit_thinking=omit_thinking)
        self._message = message
        self._request_id = request_id
        self._new: list[bytes] = []
        self._head = b""

    def begin_block(self, block: Json) -> None:
        kind, name = _DELTAS[block["type"]]
        self._head = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":' % self.index
        self._head += b'{"type":"%b","%b":' % (kind.encode(), name.encode())
        self._new.append(_event("content_block_start", {"index": self.index, "content_block": block}))
        if self.index == 0:
            self._new.append(PING)

    def add_text(self, text: str) -> None:
        self._new.append(self._head + orjson.dumps(text) + b"}}\n\n")

    def sign_block(self, signature: str) -> None:
        delta = {"type": "signature_delta", "signature": signature}
        self._new.append(_event("content_block_delta", {"index": self.index, "delta": delta}))

    def end_block(self) -> None:
        self._new.append(_event("content_block_stop", {"index": self.index}))

    def _take(self) -> bytes:
        """Returns the bytes of the events since the last call."""
        new, self._new = self._new, []
        return b"".join(new)

    def start(self, usage: Usage) -> bytes:
        """Returns the event message_start, which is sent when the request is accepted."""
        return _event("message_start", {"message": self._message.opening(usage)})

    def deltas(self, deltas: list[Delta]) -> bytes:
        # Progress is sent in pings, which clients skip unless they look for it.
        shown = [{"prompt_progress": prompt_progress(delta.progress)} for delta in deltas if delta.progress is not None]
        before = b"".join([_event("ping", progress) for progress in shown])
        self.feed(deltas)
        new = self._take()
        if new and self._message.timed_events and self._message.times:
            new = with_timings(new, self._message.times())
        return before + new

    def end(self, usage: Usage) -> bytes:
        self.close()
        reason, stop = self._message.ending(self)
        delta = {"stop_reason": reason, "stop_sequence": stop}
        last = _event("message_delta", {"delta": delta, "usage": counts(usage), **self._message.timings()})
        return self._take() + last + _event("message_stop", {})

    def failed(self, error: RequestError) -> bytes:
        return _event("error", anthropic_error(error, self._request_id))
