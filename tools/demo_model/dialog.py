"""The parts of the corpus. An exchange is a question with its answer; a dialog is what the template renders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tools.demo_model.data import data_of
from tools.demo_model.words import Rng

# FOR_THING, FOR_DEED: frames around a thing ("the capital of Peru") or a deed ("spell window"). All topics share
# them, so that a wording that occurs in one topic is understood in the others.
OPENINGS, CLOSINGS, FOR_THING, FOR_DEED = data_of("dialog").values()


@dataclass(slots=True)
class Exchange:
    """A user turn and its answer. `thought` is the reasoning that a thinking model writes first."""

    user: str
    answer: str
    thought: str = ""


@dataclass(slots=True)
class Dialog:
    """Messages in OpenAI's form. The model is trained on every assistant turn."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)

    def say(self, exchange: Exchange, thinking: bool) -> None:
        self.messages.append({"role": "user", "content": exchange.user})
        answer = {"role": "assistant", "content": exchange.answer}
        if thinking and exchange.thought:
            answer["reasoning_content"] = exchange.thought
        self.messages.append(answer)


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def ask_for(r: Rng, thing: str) -> str:
    return capital(r.choice(FOR_THING).format(thing))


def ask_to(r: Rng, deed: str, values_last: bool = False) -> str:
    """Puts a deed into a random frame.

    Args:
        r: The source of randomness.
        deed: What is asked for, as an infinitive.
        values_last: Whether the deed ends with a value, which no words of the frame may follow.
    """
    frame = r.choice(FOR_DEED)
    while values_last and not frame.endswith(("{}.", "{}?")):
        frame = r.choice(FOR_DEED)
    return capital(frame.format(deed))


def vary(r: Rng, text: str, keep_case: bool = False) -> str:
    """Varies a request as people type it: polite words around it, no capital letter, no full stop.

    Args:
        r: The source of randomness.
        text: The request.
        keep_case: Whether its first letter stays as it is, because the request starts with a value.
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
