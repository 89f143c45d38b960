"""Take the notations of reasoning out of the text of earlier answers, for templates that refuse them there.

Clients send back what another server, or this one without its parsers, has left in the content. A template that shows
such a text is given it as it is. Knows no templates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...types import Json


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """The tags around reasoning in the text of an answer."""

    start: str
    """The tag before the reasoning."""
    end: str
    """The tag behind it."""


HARMONY = ReasoningMarks("<|channel|>analysis<|message|>", "<|end|>")
"""gpt-oss: every text has a channel, so that the tags of the answer go as well."""
NOTATIONS = (
    HARMONY,
    ReasoningMarks("<think>", "</think>"),
    ReasoningMarks("[THINK]", "[/THINK]"),
    ReasoningMarks("<seed:think>", "</seed:think>"),
    ReasoningMarks("<mm:think>", "</mm:think>"),
    ReasoningMarks("<longcat_think>", "</longcat_think>"),
    ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningMarks("<|channel>thought\n", "<channel|>"),
)
_HEADER = re.compile(r"<\|channel\|>(?P<channel>\w+)(?P<more>[^<>]*)(?:<\|constrain\|>[^<>]*)?<\|message\|>")
_BETWEEN = re.compile(r"(?:<\|(?:end|return|call)\|>\s*)?(?:<\|start\|>[^<>]*)?$")


def taken_apart(message: Json, notations: tuple[ReasoningMarks, ...]) -> Json:
    """Returns an assistant's message, its reasoning in `reasoning_content` and its content without these tags."""
    content, thought = message.get("content"), message.get("reasoning_content")
    reasoning: list[str] = []
    if isinstance(thought, str):
        inner, rest = _taken(thought, notations)
        reasoning += [*inner, rest]
    if isinstance(content, str):
        found, content = _taken(content, notations)
        reasoning += found
    elif isinstance(content, list):
        parts = []
        for part in content:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                found, text = _taken(part["text"], notations)
                reasoning += found
                part = {**part, "text": text}
            parts.append(part)
        content = parts
    kept = {**message, "content": content} if "content" in message else message
    thought = "\n\n".join(filter(None, reasoning))
    return {**kept, "reasoning_content": thought} if thought else kept


def _taken(text: str, notations: tuple[ReasoningMarks, ...]) -> tuple[list[str], str]:
    """Returns the reasoning in a text, and the text without it."""
    reasoning: list[str] = []
    for notation in notations:
        found, text = _split(text, notation)
        reasoning += [found] if found else []
    return reasoning, text


def _split(text: str, notation: ReasoningMarks) -> tuple[str, str]:
    """Returns (reasoning, answer). A start without an end opens the rest, an end without a start closes the beginning,
    as templates write the start into the prompt."""
    if notation is HARMONY:
        return _channels(text)
    if notation.start not in text and notation.end not in text:
        return "", text
    before, _, after = text.partition(notation.start) if notation.start in text else ("", "", text)
    thought, _, answer = after.partition(notation.end)
    more, rest = _split(answer, notation) if notation.start in answer else ("", answer.replace(notation.end, ""))
    return "\n\n".join(filter(None, (thought.strip(), more))), (before + rest).strip()


def _channels(text: str) -> tuple[str, str]:
    """Returns (the texts of analysis, those of all other channels); calls keep the name of their function."""
    headers = list(_HEADER.finditer(text))
    if not headers:
        return "", text
    thoughts, answers = [], [_BETWEEN.sub("", text[: headers[0].start()]).strip()]
    for place, header in enumerate(headers):
        end = headers[place + 1].start() if place + 1 < len(headers) else len(text)
        body = _BETWEEN.sub("", text[header.end() : end]).strip()
        if header["channel"] == "analysis":
            thoughts.append(body)
        else:
            answers.append(" ".join(filter(None, (header["more"].strip(), body))))
    return "\n\n".join(filter(None, thoughts)), "\n\n".join(filter(None, answers))
