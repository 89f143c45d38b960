"""gpt-oss: messages of the harmony format, of which one class reads calls and reasoning.

<|channel|>analysis<|message|>reasoning<|end|><|start|>assistant<|channel|>final<|message|>answer<|return|>
<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>
The recipient may also stand in <|start|>assistant to=functions.NAME<|channel|>…. commentary without one is answer.
Pieces of the answer are joined with a space, as OVMS does.
"""

from __future__ import annotations

import re

from ...grammar.frames import CallForm, ReasoningForm, arguments_after
from .base import Syntax
from .family import Detection, ModelFamily
from .scanner import Sink, Steps, Tags

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
_HEADER = Tags([START, CHANNEL, MESSAGE, CONSTRAIN, *ENDS])
_BODY = Tags([START, CHANNEL, *ENDS])
_FUNCTIONS = "to=functions."
_RECIPIENT = re.compile(r"to=functions\.([\w.\-]+)(?![^\s<])")
_CHANNELS = ("analysis", "commentary", "final")


class Harmony(Syntax):
    """Reads messages. Those it does not play the part for stay as they were written."""

    tags = (START, CHANNEL)
    noise = (MESSAGE, CONSTRAIN, *ENDS)
    keep_special_tokens = True
    at_start = True
    start_tag = "<|channel|>analysis<|message|>"
    answer_header = "<|channel|>final<|message|>"

    def prepare(self) -> None:
        self._emitted: set[str] = set()

    def read(self, tag: str) -> Steps[bool]:
        role = ""
        if tag == START:
            role, end = yield from self.scanner.head(_HEADER)
            if end != CHANNEL or not role.startswith("assistant"):
                return False
        return (yield from self._message(role))

    def start(self) -> Steps[bool]:
        """A prompt that ends with <|start|>assistant lets the text begin inside the header."""
        if not (yield from self.scanner.literal(_FUNCTIONS)):
            return False
        role, end = yield from self.scanner.head(_HEADER)
        return end == CHANNEL and (yield from self._message(_FUNCTIONS + role))

    def resume(self) -> Steps[None]:
        yield from self._body("analysis", self.out.reasoning)

    @classmethod
    def reasoning_form(cls) -> ReasoningForm:
        return ReasoningForm(start=cls.start_tag, end="<|end|>", after=START + "assistant", opened=cls.opened)

    def _message(self, role: str) -> Steps[bool]:
        """Reads a message from its channel on. role: what stood before the channel."""
        header, end = yield from self.scanner.head(_HEADER)
        if end == CONSTRAIN:
            kind, end = yield from self.scanner.head(_HEADER)
            header += " " + kind
        if end != MESSAGE:
            return False
        channel, *kinds = header.split() or [""]
        if channel not in _CHANNELS:
            return False
        name = recipient(header) or recipient(role)
        if name and self.tools and channel != "final":
            yield from self._call(name)
            return True
        if len(kinds) > 1 or "to=" in header or "to=" in role:
            return False
        if channel == "analysis" and not self.thinking:
            return False
        self.scanner.forget()
        if channel == "analysis":
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
        """Pass on a message's text; a second one of a kind is set off by a space."""

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
        if end in (START, CHANNEL):  # the next message begins without an end of this one
            self.scanner.pos -= len(end)


def recipient(header: str) -> str:
    """Returns the function that a header addresses, or ""."""
    found = _RECIPIENT.search(header)
    return found.group(1) if found else ""


FAMILIES = {
    "gptoss": ModelFamily(
        tools=Harmony,
        thinking=Harmony,
        form=CallForm(
            one=arguments_after("<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>"),
            trigger="<|channel|>commentary to=functions.",
            alone=True,
        ),
        detection=Detection(rank=10, marks=(("<|channel|>",),), reasoning="gptoss"),
    )
}
