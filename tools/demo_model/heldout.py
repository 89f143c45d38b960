"""The words and wordings of the evaluation. None of them may occur in the generator's lists; a test compares them.

Tool rows are written by hand: tools as people would declare them, asked for as people would ask.
"""

from __future__ import annotations

import re
from typing import Any

from tools.demo_model.data import data_of

# SERVER: question, what the answer must contain
# MEMORIES: what is told, what comes between, what is asked
# FOREIGN: language, what is said, what the answer must contain
(
    NAMES, CITIES, WORDS, SENTENCES, GREETINGS, ABOUT, RUNTIME, SERVER, PERSONAS, PERSONA_QUESTIONS, MEMORIES,
    CITY_MEMORIES, REPEATS, SPELLS, COUNTS, SUMS, CAPITAL_WAYS, UNKNOWN, FOREIGN, FOREIGN_MEMORIES, JSON_REQUESTS
) = data_of("heldout").values()  # fmt: skip


COLOUR_WAYS = ("Which color is the {}?", "Can you tell me the color of the {}?", "The {} has which color?")
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
