"""Turns the deltas of a generation into the events of a response stream.

The items of a choice follow each other. output_index numbers the items of all choices in the order in which they start,
which is their order in `output`. This module knows no engine, no request and no transport.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...errors import RequestError
from ...types import Delta, Event, Json, Reasoning, Text, TokenLogprob, ToolCallStart, Usage
from ..chat.chunks import prompt_progress, with_timings
from .output_items import (
    ApprovalRequest,
    CustomCall,
    Frame,
    FunctionCall,
    McpCall,
    MessageItem,
    OutputItem,
    ReasoningItem,
    ResponseEventWriter,
    SearchCall,
    pieces_of,
)
from .response import ResponseObject
from .tool_forms import ToolOrigin

if TYPE_CHECKING:
    from ..chat.request import AudioPieces


def of_text(text: str, tokens: list[TokenLogprob]) -> tuple[list[TokenLogprob], list[TokenLogprob]]:
    """Returns the tokens of a message's new text, and those after them, whose text is still to come.

    Tokens before the text are left out, such as those of the end of the reasoning, or of markup that is never shown. If
    a parser has changed the text, so that it is not part of the tokens' text, all tokens are returned for it.
    """
    start = b"".join(token.bytes for token in tokens).find(text.encode())
    if start < 0:
        return tokens, []
    end, place = start + len(text.encode()), 0
    first = last = 0
    for number, token in enumerate(tokens, 1):
        if place >= end:
            break
        place += len(token.bytes)
        if place <= start:
            first = number
        last = number
    return tokens[first:last], tokens[last:]


@dataclass(slots=True)
class _Choice:
    """The state of one choice of a response."""

    open: OutputItem | None = None
    """The item that grows; None if none is open."""
    output_index: int = 0
    """The index of the open item in the output."""
    has_output: bool = False
    """Whether a message or a call has started."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """The log probabilities of tokens that have not been assigned to an item yet."""


class Events:
    """The event stream of one response, as frames.

    A caller calls `start`, `deltas` any number of times, `finalize` and `end`. `output` is valid at any time.
    """

    def __init__(
        self,
        body: ResponseObject,
        *,
        queued: bool = False,
        obfuscate: bool = False,
        silent: bool = False,
        audio: AudioPieces | None = None,
    ) -> None:
        """Begins a response.

        Args:
            body: Makes the response object.
            queued: Whether the response is queued before it starts, as a background response is.
            obfuscate: Whether deltas are padded with random text that hides their lengths.
            silent: Whether frames are only counted, since nobody reads them.
            audio: Makes pieces of the audio of a spoken answer; None if the answer is not spoken.
        """
        self.body = body
        self._audio = audio
        self.status = "queued" if queued else "in_progress"
        self._writer = ResponseEventWriter(obfuscate=obfuscate, silent=silent)
        self._in_progress = False
        self._choices: dict[int, _Choice] = {}
        self._output: list[Json | None] = []
        self.cut_off = ""
        """Why it is incomplete: "length", or "stop" if it ended inside of a call; "" if it is complete."""
        self.calls: list[McpCall] = []
        """The calls of MCP tools that have no result yet."""
        self._final: Json | None = None

    @property
    def count(self) -> int:
        """The number of frames so far."""
        return self._writer.count

    @property
    def output(self) -> list[Json]:
        """The output items so far, each with its content so far."""
        found = list(self._output)
        for choice in self._choices.values():
            if choice.open is not None:
                found[choice.output_index] = choice.open.item("in_progress")
        return [item for item in found if item is not None]

    def response(self) -> Json:
        """Returns the current response object."""
        return self._final or self.body.running(self.status, self.output)

    def start(self) -> list[Frame]:
        """Returns the frames of the first events, with which a response begins."""
        self._writer.add("response.created", {"response": self.response()})
        if self.status == "queued":
            self._writer.add("response.queued", {"response": self.response()})
        return self._writer.take_frames()

    def deltas(self, deltas: Iterable[Delta]) -> list[Frame]:
        """Adds deltas of the generation, and returns the frames of their events."""
        self._set_in_progress()
        for delta in deltas:
            if delta.progress is not None:
                progress = {"prompt_progress": prompt_progress(delta.progress)}
                self._writer.add("response.in_progress", {"response": self.response(), **progress})
            else:
                self._delta(delta)
        frames = self._writer.take_frames()
        if frames and self.body.timed_events and self.body.times and self._choices:
            *before, last = pieces_of(frames[-1:])
            last = with_timings(last, self.body.times())
            frames[-1] = [*before, last] if before else last
        return frames

    def _set_in_progress(self) -> None:
        if not self._in_progress:
            self._in_progress = True
            self.status = "in_progress"
            self._writer.add("response.in_progress", {"response": self.response()})

    def _delta(self, delta: Delta) -> None:
        choice = self._choices.get(delta.index)
        if choice is None:
            choice = self._choices[delta.index] = _Choice()
        choice.logprobs += delta.logprobs
        if self.body.ids:
            self.body.ids.add(delta)
        for event in delta.events:
            self._add(choice, event)
        if delta.events and not isinstance(delta.events[-1], Text):
            choice.logprobs = list(delta.logprobs)  # items other than messages have no field for earlier ones
        if self._audio is not None:
            self._speak(self._audio, delta)
        if delta.finish is not None:
            self._finish(choice, delta.finish)

    def _add(self, choice: _Choice, event: Event) -> None:
        if isinstance(event, Text):
            shown, choice.logprobs = of_text(event.text, choice.logprobs)
            self._message(choice).add(event.text, shown)
        elif isinstance(event, Reasoning):
            self._reasoning(choice).add(event.text)
        elif isinstance(event, ToolCallStart):
            choice.has_output = True
            origin = self.body.origins.get(event.name) or ToolOrigin(event.name)
            choice.open = _call_type(origin)(self._writer, self._next_index(choice), event.id, origin)
        elif isinstance(choice.open, FunctionCall):
            choice.open.add(event.text)
            if choice.open.complete:
                self._close(choice, "completed")

    def _speak(self, audio: AudioPieces, delta: Delta) -> None:
        rest = [audio.rest()] if delta.finish is not None else []
        for piece in filter(None, (*audio.add(delta.audio), *rest)):
            self._writer.add("response.audio.delta", {"delta": piece})
        if delta.finish is not None:
            self._writer.add("response.audio.done", {})

    def _message(self, choice: _Choice) -> MessageItem:
        if isinstance(choice.open, MessageItem):
            return choice.open
        choice.has_output = True
        index = self._next_index(choice)
        choice.open = message = MessageItem(self._writer, index, named_by_id=self.body.named_by_id)
        return message

    def _reasoning(self, choice: _Choice) -> ReasoningItem:
        if isinstance(choice.open, ReasoningItem):
            return choice.open
        choice.open = reasoning = ReasoningItem(self._writer, self._next_index(choice), self.body.seal)
        return reasoning

    def _next_index(self, choice: _Choice) -> int:
        """Closes the open item of a choice, and returns the index in the output for its next item."""
        self._close(choice, "completed")
        choice.output_index = len(self._output)
        self._output.append(None)
        return choice.output_index

    def _close(self, choice: _Choice, status: str) -> None:
        if isinstance(choice.open, McpCall) and status == "completed":
            self._await_result(choice.open)
        elif choice.open is not None:
            self._output[choice.output_index] = choice.open.close(status)
        choice.open = None

    # --- MCP tools

    def add_listing(self, item: Json) -> None:
        """Adds an item that lists the tools of an MCP server."""
        where = {"output_index": len(self._output), "item_id": item["id"]}
        self._writer.add(
            "response.output_item.added", {"output_index": len(self._output), "item": item | {"tools": []}}
        )
        for word in ("in_progress", "completed"):
            self._writer.add(f"response.mcp_list_tools.{word}", where)
        self._writer.add("response.output_item.done", {"output_index": len(self._output), "item": item})
        self._output.append(item)

    def start_call(self, origin: ToolOrigin, arguments: str, approval: str) -> None:
        """Adds a call of an MCP tool that the client has approved, and whose result is still to come."""
        self._output.append(None)
        call = McpCall(self._writer, len(self._output) - 1, "", origin, approval)
        call.add(arguments)
        self._await_result(call)

    def _await_result(self, call: McpCall) -> None:
        call.end_arguments()
        self._output[call.index] = call.item("in_progress")
        self.calls.append(call)

    def end_call(self, call: McpCall, output: str | None, error: Json | None) -> None:
        """Adds the result or the error of a call of an MCP tool, and closes the call."""
        self.calls.remove(call)
        call.output, call.error = output, error
        self._output[call.index] = call.close("completed" if error is None else "failed")

    def end_generation(self) -> None:
        """Prepares for another generation that continues the same response, after calls of MCP tools."""
        self._choices.clear()

    def _finish(self, choice: _Choice, reason: str) -> None:
        """Ends a choice. Without a message or a call it gets an empty message, unless its reasoning was cut off."""
        # The model was cut off inside a call; complete calls are closed.
        in_call = isinstance(choice.open, FunctionCall)
        complete = reason != "length" and not in_call
        self.cut_off = self.cut_off or ("" if complete else reason)
        if not choice.has_output and (complete or choice.open is None):
            self._message(choice)
        self._close(choice, "completed" if complete else "incomplete")

    def finalize(self, usage: Usage, error: RequestError | None = None, *, cancelled: bool = False) -> Json:
        """Closes all open items, and returns the final response object, which `end` sends."""
        self._set_in_progress()
        for choice in self._choices.values():
            self._close(choice, "incomplete")
        for call in self.calls:
            self._output[call.index] = call.close("incomplete")
        if error is not None:
            self.status = "failed"
        elif cancelled:
            self.status = "cancelled"
        else:
            self.status = "incomplete" if self.cut_off else "completed"
        self._final = self.body.final(self.status, self.output, usage, error, self.cut_off)
        return self._final

    def end(self) -> list[Frame]:
        """Returns the last frames. A cancelled response ends as an incomplete one, since OpenAI has no event for it."""
        word = "incomplete" if self.status == "cancelled" else self.status
        final = self.response()
        times = {"timings": final["timings"]} if "timings" in final else {}  # where llama.cpp has them
        self._writer.add(f"response.{word}", {"response": final, **times})
        return self._writer.take_frames()


def _call_type(origin: ToolOrigin) -> type[FunctionCall]:
    if origin.mcp:
        return ApprovalRequest if origin.approval else McpCall
    if origin.search:
        return SearchCall
    return CustomCall if origin.custom else FunctionCall
