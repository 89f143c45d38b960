"""The shapes of the corpus: an exchange is one question with its answer; a dialog is what the template renders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tools.demo_model.data import data_of
from tools.demo_model.words import Rng

# FOR_THING, FOR_DEED: frames for anything that is a thing ("the capital of Peru") or a deed ("spell window"). All
# topics share them, so that a wording met in one topic is understood in the others.
OPENINGS, CLOSINGS, FOR_THING, FOR_DEED = data_of("dialog").values()


@dataclass(slots=True)
class Exchange:
    """One user turn and the answer to it. `thought` is what a thinking model would write first."""

    user: str
    answer: str
    thought: str = ""


@dataclass(slots=True)
class Dialog:
    """Messages in the OpenAI shape. Every assistant turn is trained on."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)

    def say(self, exchange: Exchange, thinking: bool) -> None:
        self.messages.append({"role": "user", "content": exchange.user})
        answer = {"role": "assistant", "content": exchange.answer}
        if thinking and exchange.thought:
            answer["reasoning_content"] = exchange.thought
        self.messages.append(answer)


def ask_for(r: Rng, thing: str) -> str:
    text = r.choice(FOR_THING).format(thing)
    return text[0].upper() + text[1:]


def ask_to(r: Rng, deed: str, values_last: bool = False) -> str:
    """`values_last`: the deed ends with a value that must not run into words of the frame."""
    frame = r.choice(FOR_DEED)
    while values_last and not frame.endswith(("{}.", "{}?")):
        frame = r.choice(FOR_DEED)
    text = frame.format(deed)
    return text[0].upper() + text[1:]


def vary(r: Rng, text: str, keep_case: bool = False) -> str:
    """The same request as other people type it: politeness around it, no capital, no full stop.

    `keep_case` protects a request that starts with a value.
    """
    kind = r.random()
    if kind < 0.25:
        opening = r.choice(OPENINGS)
        if not keep_case and not opening.endswith((". ", "! ", "? ")):
            text = text[0].lower() + text[1:] if not text.startswith("I ") else text
        text = opening + text
    elif kind < 0.35 and not keep_case:
        text = text[0].lower() + text[1:]
    kind = r.random()
    if kind < 0.08 and text.endswith((".", "?", "!")):
        text += r.choice(CLOSINGS)
    elif kind < 0.22 and text.endswith((".", "?")):
        text = text[:-1]
    elif kind < 0.25 and text.endswith("."):
        text = text[:-1] + "!"
    return text
