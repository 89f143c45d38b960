"""Checks of answers. A check is a function that takes an answer's text and returns whether the answer is acceptable."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tools.demo_model.data import data_of
from tools.demo_model.words import each

Check = Callable[[str], bool]
CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
(LANGUAGE_WORDS,) = data_of("checks").values()


def says(*needed: str) -> Check:
    """Accepts answers that contain all of these texts, in upper or lower case. `a|b` accepts either."""
    return lambda answer: all(any(option in answer.lower() for option in need.lower().split("|")) for need in needed)


def exactly(text: str) -> Check:
    """Accepts the text itself, with or without a final full stop or quotes around it."""
    return lambda answer: bare(answer) == bare(text)


def bare(text: str) -> str:
    return text.strip().rstrip(".").strip('"').rstrip(".")


def spells(word: str) -> Check:
    """Accepts all letters of a word in order, separated from each other."""
    return lambda answer: re.findall(r"\w+", answer) == list(word)


def counts(low: int, high: int) -> Check:
    return lambda answer: [int(n) for n in re.findall(r"\d+", answer)] == list(range(low, high + 1))


def sums_to(total: int) -> Check:
    return lambda answer: re.findall(r"\d+", answer)[-1:] == [str(total)]


def speaks(language: str, *needed: str) -> Check:
    """Accepts answers that contain the needed texts, and more words of this language than of the other two."""

    def check(answer: str) -> bool:
        found = {
            name: sum(word in each(words) for word in re.findall(r"\w+", answer.lower()))
            for name, words in LANGUAGE_WORDS.items()
        }
        return found[language] > max(n for name, n in found.items() if name != language) and says(*needed)(answer)

    return check


def is_json(expected: Any = None) -> Check:
    """Accepts JSON without any other text. If a value is expected, the answer must be equal to it."""

    def check(answer: str) -> bool:
        try:
            value = json.loads(answer)
        except ValueError:
            return False
        return isinstance(value, (dict, list)) and (expected is None or value == expected)

    return check


def calls_of(answer: str) -> list[dict[str, Any]] | None:
    """Returns the tool calls of an answer that consists only of calls; None for any other answer."""
    found = CALL.findall(answer)
    if not found or CALL.sub("", answer).strip():
        return None
    try:
        return [json.loads(call) for call in found]
    except ValueError:
        return None


def calls(*expected: tuple[str, dict[str, Any]]) -> Check:
    """Accepts exactly these calls with exactly these arguments, in any order of the arguments."""
    return lambda answer: calls_of(answer) == [{"name": name, "arguments": arguments} for name, arguments in expected]


def plain(check: Check) -> Check:
    """Accepts answers that pass a check and contain no tool calls."""
    return lambda answer: "<tool_call>" not in answer and check(answer)


def split_thought(answer: str) -> tuple[str, str] | None:
    """Splits an answer whose <think> was opened by the prompt into thought and answer. None if it is not well
    formed."""
    thought, mark, rest = answer.partition("</think>")
    if not mark or not thought.strip() or not rest.strip() or "think>" in rest:
        return None
    return thought.strip(), rest.strip()


def thinks(check: Check) -> Check:
    """Accepts a thought of at least two words, closed once, followed by an answer that passes a check."""

    def both(answer: str) -> bool:
        parts = split_thought(answer)
        return parts is not None and len(parts[0].split()) >= 2 and check(parts[1])

    return both
