"""The words and wordings of the evaluation. None of them may occur in the generator's lists; a test compares them.

Tool rows are written by hand: tools as people would declare them, asked for as people would ask.
"""

from __future__ import annotations

import re
from typing import Any

from tools.demo_model.data import data_of

lists = data_of("heldout")

NAMES: tuple[str, ...] = lists["NAMES"]
CITIES: tuple[str, ...] = lists["CITIES"]

WORDS: tuple[str, ...] = lists["WORDS"]
SENTENCES: tuple[str, ...] = lists["SENTENCES"]
GREETINGS: tuple[str, ...] = lists["GREETINGS"]
ABOUT: tuple[str, ...] = lists["ABOUT"]
RUNTIME: tuple[str, ...] = lists["RUNTIME"]
# question, what the answer must contain
SERVER: tuple[tuple[str, str], ...] = lists["SERVER"]
PERSONAS: tuple[str, ...] = lists["PERSONAS"]
PERSONA_QUESTIONS: tuple[str, ...] = lists["PERSONA_QUESTIONS"]
# what is told, what comes between, what is asked
MEMORIES: tuple[tuple[str, Any, str], ...] = lists["MEMORIES"]
CITY_MEMORIES: tuple[tuple[str, Any, str], ...] = lists["CITY_MEMORIES"]
REPEATS: tuple[str, ...] = lists["REPEATS"]
SPELLS: tuple[str, ...] = lists["SPELLS"]
COUNTS: tuple[str, ...] = lists["COUNTS"]
SUMS: tuple[str, ...] = lists["SUMS"]
CAPITAL_WAYS: tuple[str, ...] = lists["CAPITAL_WAYS"]
COLOUR_WAYS = ("Which color is the {}?", "Can you tell me the color of the {}?", "The {} has which color?")
UNKNOWN: tuple[str, ...] = lists["UNKNOWN"]
# language, what is said, what the answer must contain
FOREIGN: tuple[tuple[str, str, str], ...] = lists["FOREIGN"]
FOREIGN_MEMORIES: tuple[tuple[str, str, str], ...] = lists["FOREIGN_MEMORIES"]
JSON_REQUESTS: tuple[tuple[str, Any], ...] = lists["JSON_REQUESTS"]
# schemas as pydantic writes them, each with a question that may say nothing of it
FORMS: tuple[tuple[dict[str, Any], str], ...] = data_of("heldout_forms")["FORMS"]


def plain_words(text: str) -> str:
    """The words of a text, lower case, for comparing wordings."""
    return " " + " ".join(re.findall(r"[^\W_]+|[/_-]", text.lower())) + " "


# Whole questions, whose wording is what is held out. (Elsewhere the names, words and numbers in the question are.)
WORDINGS = frozenset(
    plain_words(text)
    for text in (
        *GREETINGS,
        *ABOUT,
        *RUNTIME,
        *UNKNOWN,
        *(row[0] for row in SERVER),
        *(row[1] for row in FOREIGN),
        *(row[0] for row in JSON_REQUESTS),
    )
)


def held_out(text: str) -> bool:
    """Whether a user's turn contains one of the evaluation's questions, politeness around it or not."""
    words = plain_words(text)
    return any(wording in words for wording in WORDINGS)
