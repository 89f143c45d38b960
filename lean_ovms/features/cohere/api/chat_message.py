"""Cohere's message object, and the events of its stream.

https://docs.cohere.com/v2/docs/streaming. The events are message-start, then for each block content-start,
content-delta… and content-end, or tool-call-start and so on, and at last message-end. An error is in the delta of
message-end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ....api import sse
from ....api.response import new_id
from ....errors import RequestError
from ....models.generation import CompletedChoice
from ....types import Delta, Event, Json, Reasoning, Text, TokenLogprob, ToolCallStart, Usage

TEXT, THINKING, CALL = "text", "thinking", "tool_calls"


@dataclass(frozen=True, slots=True)
class MessageEnd:
    """Builds the parts of a message that describe its end."""

    stops: tuple[str, ...]
    """The request's stop sequences."""
    id: str = field(default_factory=lambda: new_id("chat"))
    """The id of the message."""

    def reason(self, finish: str, stop: str | int | None, *, called: bool) -> str:
        """Returns Cohere's finish_reason.

        Args:
            finish: The engine's reason for the end of the text.
            stop: The stop string or the token id that ended the text, or None.
            called: Whether the message has tool calls, all of which are complete.
        """
        if finish == "length":
            return "MAX_TOKENS"
        if called:
            return "TOOL_CALL"
        return "STOP_SEQUENCE" if isinstance(stop, str) and stop in self.stops else "COMPLETE"


def counts(usage: Usage) -> Json:
    """Returns the usage object."""
    tokens = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
    known = {} if usage.cached_tokens is None else {"cached_tokens": usage.cached_tokens}
    return {"billed_units": tokens, "tokens": tokens, **known}


def whole(end: MessageEnd, choice: CompletedChoice, usage: Usage, *, logprobs: bool) -> Json:
    """Returns the response object of a complete message."""
    content = [{"type": THINKING, THINKING: choice.reasoning}] if choice.reasoning else []
    if choice.text or not choice.calls:
        content.append({"type": TEXT, TEXT: choice.text})
    message: Json = {"role": "assistant", "content": content}
    if choice.calls:
        message[CALL] = [_call(call.id, call.name, call.arguments) for call in choice.calls]
    return {
        "id": end.id,
        "finish_reason": end.reason(choice.finish, choice.stop, called=bool(choice.calls) and not choice.broken_call),
        "message": message,
        "usage": counts(usage),
        **({"logprobs": [_logprobs([token]) for token in choice.logprobs]} if logprobs else {}),
    }


def _call(call_id: str, name: str, arguments: str) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _logprobs(tokens: Iterable[TokenLogprob]) -> Json:
    known = list(tokens)
    found = [token.logprob for token in known]
    shown: Json = {"text": "".join(token.token for token in known), "token_ids": [token.id for token in known]}
    return shown if None in found else shown | {"logprobs": found}


class CohereMessageRenderer:
    """Renders deltas as the events of a stream."""

    def __init__(self, end: MessageEnd, *, logprobs: bool) -> None:
        self._end = end
        self._logprobs = logprobs
        self._index = -1
        self._open = ""
        self._called = False
        self._finish = "stop"
        self._stop: str | int | None = None
        self._tokens: list[TokenLogprob] = []  # those that no event has had yet
        self._new: list[bytes] = []

    def start(self) -> bytes:
        """Returns the event message-start, which is sent when the request is accepted."""
        message = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
        self._add("message-start", {"id": self._end.id, "delta": {"message": message}})
        return self._take()

    def deltas(self, deltas: list[Delta]) -> bytes:
        for delta in deltas:
            self._tokens += delta.logprobs if self._logprobs else ()
            for event in delta.events:
                self._event(event)
            if delta.finish:
                self._finish, self._stop = delta.finish, delta.stop
                self._called = self._called and not delta.broken_call
        return self._take()

    def end(self, usage: Usage) -> bytes:
        if self._tokens:
            self._begin_content(self._open or TEXT)
            self._extend("")
        self._close()
        reason = self._end.reason(self._finish, self._stop, called=self._called)
        self._add("message-end", {"id": self._end.id, "delta": {"finish_reason": reason, "usage": counts(usage)}})
        return self._take()

    def failed(self, error: RequestError) -> bytes:
        self._close()
        self._add("message-end", {"id": self._end.id, "delta": {"error": error.message, "finish_reason": "ERROR"}})
        return self._take()

    def _event(self, event: Event) -> None:
        if isinstance(event, Text | Reasoning):
            self._begin_content(TEXT if isinstance(event, Text) else THINKING)
        if isinstance(event, ToolCallStart):
            self._called = True
            self._begin(CALL, "tool-call-start", {CALL: _call(event.id, event.name, "")})
        elif event.text:
            self._extend(event.text)

    def _begin_content(self, kind: str) -> None:
        if self._open != kind:
            self._begin(kind, "content-start", {"content": {"type": kind, kind: ""}})

    def _begin(self, kind: str, name: str, message: Json) -> None:
        self._close()
        self._open, self._index = kind, self._index + 1
        self._grow(name, message)

    def _extend(self, text: str) -> None:
        """Adds text to the open block, with the log probabilities of all tokens that no event has had yet."""
        tokens, self._tokens = self._tokens, []
        known = {"logprobs": _logprobs(tokens)} if tokens else {}
        if self._open == CALL:
            self._grow("tool-call-delta", {CALL: {"function": {"arguments": text}}}, **known)
        else:
            self._grow("content-delta", {"content": {self._open: text}}, **known)

    def _grow(self, name: str, message: Json, **more: Json) -> None:
        self._add(name, {"index": self._index, "delta": {"message": message}, **more})

    def _close(self) -> None:
        if self._open:
            self._add("tool-call-end" if self._open == CALL else "content-end", {"index": self._index})
        self._open = ""

    def _add(self, name: str, payload: Json) -> None:
        self._new.append(sse.event({"type": name, **payload}, name))

    def _take(self) -> bytes:
        new, self._new = self._new, []
        return b"".join(new)
