"""What a generation says as the events of a response stream: a pure function of its deltas, with a little memory.

Knows no engine, no request, no clock but the body's own, no transport. Items come one after the other for each choice;
an item's output_index is its place in the order in which items begin, and its place in the final `output`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ....errors import RequestError
from ....types import Delta, Event, Json, Reasoning, Text, TokenLogprob, ToolCallStart, Usage
from .output_items import EventWriter, FunctionCall, Item, Message, ReasoningItem
from .response import Body


class _Choice:
    """One answer on its way: its open item, and what is known of it."""

    __slots__ = ("logprobs", "open", "place", "spoke")

    def __init__(self) -> None:
        self.open: Item | None = None
        self.place = 0
        self.spoke = False  # a message or a call has begun
        self.logprobs: list[TokenLogprob] = []


class Events:
    """The stream of one response, as frames. Order: begin, deltas…, conclude, end. `output` is right at any time."""

    def __init__(self, body: Body, *, queued: bool = False, obfuscate: bool = False, silent: bool = False) -> None:
        self.body = body
        self.status = "queued" if queued else "in_progress"
        self._tape = EventWriter(obfuscate=obfuscate, silent=silent)
        self._started = False
        self._choices: dict[int, _Choice] = {}
        self._output: list[Json | None] = []
        self._reasons: set[str] = set()
        self._final: Json | None = None

    @property
    def count(self) -> int:
        """Frames so far."""
        return self._tape.count

    @property
    def output(self) -> list[Json]:
        """The items so far, each as far as it has come."""
        found = list(self._output)
        for choice in self._choices.values():
            if choice.open is not None:
                found[choice.place] = choice.open.item("in_progress")
        return [item for item in found if item is not None]

    def response(self) -> Json:
        """The response object at this moment."""
        return self._final or self.body.running(self.status, self.output)

    def begin(self) -> list[bytes]:
        """The response exists: it was accepted."""
        self._tape.add("response.created", {"response": self.response()})
        if self.status == "queued":
            self._tape.add("response.queued", {"response": self.response()})
        return self._tape.take()

    def deltas(self, deltas: Iterable[Delta]) -> list[bytes]:
        """What is new."""
        self._start()
        for delta in deltas:
            self._delta(delta)
        return self._tape.take()

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self.status = "in_progress"
            self._tape.add("response.in_progress", {"response": self.response()})

    def _delta(self, delta: Delta) -> None:
        choice = self._choices.get(delta.index)
        if choice is None:
            choice = self._choices[delta.index] = _Choice()
        choice.logprobs += delta.logprobs
        if self.body.ids:
            self.body.ids.add(delta)
        for said in delta.events:
            self._say(choice, said)
        if delta.events:
            choice.logprobs = []  # of text they went out with it; those of anything else have no place to go
        if delta.finish is not None:
            self._finish(choice, delta.finish)

    def _say(self, choice: _Choice, said: Event) -> None:
        if isinstance(said, Text):
            self._message(choice).add(said.text, choice.logprobs)
            choice.logprobs = []
        elif isinstance(said, Reasoning):
            self._thought(choice).add(said.text)
        elif isinstance(said, ToolCallStart):
            self._close(choice, "completed")
            choice.spoke = True
            self._open(choice, FunctionCall(self._tape, len(self._output), said.id, said.name))
        elif isinstance(choice.open, FunctionCall):
            choice.open.add(said.text)
            if choice.open.complete:
                self._close(choice, "completed")

    def _message(self, choice: _Choice) -> Message:
        if isinstance(choice.open, Message):
            return choice.open
        self._close(choice, "completed")
        choice.spoke = True
        message = Message(self._tape, len(self._output), named_by_id=self.body.named_by_id)
        self._open(choice, message)
        return message

    def _thought(self, choice: _Choice) -> ReasoningItem:
        if isinstance(choice.open, ReasoningItem):
            return choice.open
        self._close(choice, "completed")
        thought = ReasoningItem(self._tape, len(self._output))
        self._open(choice, thought)
        return thought

    def _open(self, choice: _Choice, item: Item) -> None:
        choice.open, choice.place = item, len(self._output)
        self._output.append(None)

    def _close(self, choice: _Choice, status: str) -> None:
        if choice.open is not None:
            self._output[choice.place] = choice.open.close(status)
            choice.open = None

    def _finish(self, choice: _Choice, reason: str) -> None:
        """The end of one choice. One that said nothing for the user to read says the empty text, once, for all to see;
        one that was cut while it was thinking does not."""
        self._reasons.add(reason)
        whole = reason != "length"
        if not choice.spoke and (whole or choice.open is None):
            self._message(choice)
        if isinstance(choice.open, Message):
            choice.open.also(choice.logprobs)
        self._close(choice, "completed" if whole else "incomplete")

    def finish_early(self, usage: Usage, error: RequestError | None = None, *, cancelled: bool = False) -> Json:
        """Settle the final response object, and close what is open. The next `end` tells it to the client."""
        self._start()
        for choice in self._choices.values():
            self._close(choice, "incomplete")
        if error is not None:
            self.status = "failed"
        elif cancelled:
            self.status = "cancelled"
        else:
            self.status = "incomplete" if "length" in self._reasons else "completed"
        self._final = self.body.final(self.status, self.output, usage, error)
        return self._final

    def end(self) -> list[bytes]:
        """The last frames. A cancelled response ends as an incomplete one: OpenAI has no event of its own for it."""
        word = "incomplete" if self.status == "cancelled" else self.status
        self._tape.add(f"response.{word}", {"response": self.response()})
        return self._tape.take()
