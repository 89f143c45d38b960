"""The shapes of the corpus: an exchange is one question with its answer; a dialog is what the template renders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tools.demo_model.words import Rng


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


# fmt: off
OPENINGS = (
    "Please, ", "Hey, ", "Hi, ", "Hello, ", "OK, ", "Now ", "And ", "Well, ", "So, ", "Please ", "Hi! ", "Hello! ",
    "Good. ",
    "Quick question: ", "Tell me, ", "I have a question. ", "One more thing: ", "Can you help me? ", "Thanks! ",
    "Great. ",
    "I would like to know: ", "Let us try this: ", "Next: ", "Could you help? ", "Question: ",
)
CLOSINGS = (" Thanks!", " Please.", " Thank you.", " Thanks.", " please", " Can you do that?", " Thank you!",
    " Thanks a lot.")


# Frames for anything that is a thing ("the capital of Peru") or a deed ("spell window"). All topics share them, so that
# a wording met in one topic is understood in the others.
FOR_THING = (
    "What is {}?", "What's {}?", "Tell me {}.", "Do you know {}?", "I need {}.", "Please tell me {}.",
    "Can you tell me {}?", "Could you give me {}?", "I am looking for {}.", "May I ask for {}?", "{}, please.",
    "{}?", "Let me know {}.", "I would like to know {}.", "I want to know {}.", "Any idea what {} is?",
    "I wonder what {} is.", "Can you say what {} is?", "Do you know what {} is?", "Say what {} is.",
    "Please give me {}.",
    "Can you name {}?", "Would you tell me {}?", "Show me {}.", "And {}?", "What about {}?", "I forgot {}.",
    "Remind me what {} is.", "Find out {}.", "Tell me what {} is.", "I have to know {}.", "What exactly is {}?",
    "Give me {}.", "Help me find {}.", "What would be {}?", "Explain what {} is.", "Could you explain what {} is?",
    "I do not know {}.", "Name {}.", "You surely know {}.",
)
FOR_DEED = (
    "Please {}.", "Can you {}?", "Could you {}?", "I want you to {}.", "Would you {}?", "Now {}.", "Try to {}.",
    "Your task is to {}.", "Can you please {}?", "{} for me.", "Go ahead and {}.", "I would like you to {}.",
    "Are you able to {}?", "Show me that you can {}.", "It would be nice if you could {}.", "Let us {}.",
    "I need you to {}.", "Will you {}?", "Next, {}.", "You should {}.", "You must {}.", "Could you please {}?",
    "Would you please {}?", "May I ask you to {}?", "I ask you to {}.", "Do {}.", "First, {}.", "Then {}.",
    "Be so kind and {}.", "Would you mind helping me? Just {}.", "If you can, {}.", "Kindly {}.",
)
# fmt: on


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
