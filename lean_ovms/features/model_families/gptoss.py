"""gpt-oss: messages in the harmony format. One class reads both their tool calls and their reasoning.

<|channel|>analysis<|message|>reasoning<|end|><|start|>assistant<|channel|>final<|message|>answer<|return|>
<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>
The recipient may also stand in <|start|>assistant to=functions.NAME<|channel|>…. A message in the channel commentary
without a recipient is part of the answer. Pieces of the answer are joined with a space, as OVMS does.

Models misspell this. So a tool of the request may be addressed without `functions.`. A message in a channel of another
name, or in none, is part of the answer. A message to any other recipient is read as its channel says.
"""

from __future__ import annotations

import re

from ...grammar.call_syntax import CallForm, ReasoningForm
from .base import ModelFamily, Syntax
from .call_forms import arguments_after
from .scanner import Sink, Steps, Tags

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
_HEADER = Tags([START, CHANNEL, MESSAGE, CONSTRAIN, *ENDS])
_BODY = Tags([START, CHANNEL, *ENDS])
_TO, _FUNCTIONS = "to=", "functions."
_RECIPIENT = re.compile(r"to=([\w.\-]+)(?![^\s<])")
_CHANNEL = re.compile(r"[A-Za-z_\-]{0,24}")
_ANALYSIS = "anal"
"""The beginning of the name of the reasoning channel, including its misspellings."""


class Harmony(Syntax):
    """Reads messages of the harmony format as the parser of tool calls, of reasoning, or of both.

    Messages of a kind that it is not the parser for stay in the text as they were written.
    """

    tags = (START, CHANNEL)
    noise = (MESSAGE, CONSTRAIN, *ENDS)
    at_start = True
    start_tag = "<|channel|>analysis<|message|>"
    answer_header = "<|channel|>final<|message|>"

    def prepare(self) -> None:
        self._emitted: set[str] = set()

    def read(self, tag: str) -> Steps[bool]:
        role = ""
        if tag == START:
            role, end = yield from self.scanner.head(_HEADER)
            if not role.startswith("assistant"):
                return False
            if end == MESSAGE:
                return (yield from self._addressed(role.removeprefix("assistant"), ""))
            if end != CHANNEL:
                return False
        return (yield from self._message(role.removeprefix("assistant")))

    def start(self) -> Steps[bool]:
        """Reads the rest of a header, since the text begins inside one if the prompt ends with <|start|>assistant."""
        if not (yield from self.scanner.literal(_TO)):
            return False
        role, end = yield from self.scanner.head(_HEADER)
        return end == CHANNEL and (yield from self._message(_TO + role))

    def resume(self) -> Steps[None]:
        yield from self._body("analysis", self.out.reasoning)

    @classmethod
    def reasoning_form(cls) -> ReasoningForm:
        return ReasoningForm(start=cls.start_tag, end="<|end|>", after=START + "assistant", opened=cls.opened)

    def _message(self, role: str) -> Steps[bool]:
        """Reads a message from its channel on; `role` is the text between the author and the channel."""
        header, end = yield from self.scanner.head(_HEADER)
        while end == CHANNEL:  # the model begins the header anew
            header, end = yield from self.scanner.head(_HEADER)
        if end == CONSTRAIN:
            kind, end = yield from self.scanner.head(_HEADER)
            header += " " + kind
        return end == MESSAGE and (yield from self._addressed(role, header))

    def _addressed(self, role: str, header: str) -> Steps[bool]:
        """Reads the text of a message to the recipient that its role or its header names."""
        to = recipient(header) or recipient(role)
        channel, *kinds = _RECIPIENT.sub(" ", header).split() or [""]
        known = _CHANNEL.fullmatch(channel) is not None and not _RECIPIENT.sub(" ", role).strip()
        name = to.removeprefix(_FUNCTIONS)
        if name != to or name in self.out.parameters:
            if self.tools and known:
                yield from self._call(name)
                return True
            if name != to:
                return False
        reasons = channel.lower().startswith(_ANALYSIS)
        if not known or len(kinds) > 1 or (reasons and not self.thinking):
            return False
        self.scanner.forget()
        if reasons:
            yield from self._body("analysis", self.out.reasoning)
        else:
            yield from self._body("final", self.out.text)
        return True

    def _call(self, name: str) -> Steps[None]:
        self.out.call(name)
        end = yield from self.scanner.until(_BODY, self.out.arguments)
        if end:
            self.out.end_call()
        self._back(end)

    def _body(self, kind: str, sink: Sink) -> Steps[None]:
        """Passes on a message's text, after a space if there was a message of the same kind before."""

        def emit(piece: str) -> None:
            if kind in self._emitted:
                sink(" ")
                self._emitted.discard(kind)
            sink(piece)
            emitted.append(True)

        emitted: list[bool] = []
        end = yield from self.scanner.until(_BODY, emit)
        if emitted:
            self._emitted.add(kind)
        self._back(end)
        self.out.pause()

    def _back(self, end: str) -> None:
        if end in (START, CHANNEL):  # the next message begins although this one has not ended
            self.scanner.pos -= len(end)


def recipient(header: str) -> str:
    """Returns the recipient that a header names, or ""."""
    found = _RECIPIENT.search(header)
    return found.group(1) if found else ""


GPTOSS = ModelFamily(
    tools=Harmony,
    thinking=Harmony,
    form=CallForm(
        one=arguments_after("<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>"),
        trigger="<|channel|>commentary to=functions.",
        alone=True,
    ),
)
