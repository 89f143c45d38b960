"""The words and wordings of the evaluation. A test checks that none of them occurs in the generator's lists.

The tools are written by hand, as people would declare them and ask for them.
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

# The tools, declared by hand. A row has the tool's name, description and parameters, the request, and the arguments of
# the call.
# SINGLE: a parameter is its JSON type, or a list of allowed values
# PARALLEL: requests for two calls; the tools are those of the rows named by their index in SINGLE
# RESULTS: index into SINGLE, what the tool returned, what the answer in words must contain
# UNNEEDED: requests that need none of the tools given; what an acceptable answer contains ("" for anything in words)
SINGLE, PARALLEL, RESULTS, UNNEEDED = data_of("heldout_tools").values()
Row = tuple[str, str, dict[str, Any], str, dict[str, Any]]

# FRESH: Further prompts, written when the generator was finished and training had begun. The generator was improved
# with the other prompts in view, but not with these: a difference between the results shows how far it was fitted to
# its evaluation. Only the lesson `lessons.errands` is newer (see tools/README.md).
# FRESH_PERSONAS: system prompt, question; the answer must contain the name
# FRESH_MEMORIES: what is told, what is asked; the answer must contain the value
FRESH, FRESH_FOREIGN, FRESH_PERSONAS, FRESH_MEMORIES, FRESH_TOOLS, FRESH_UNNEEDED = data_of("heldout_fresh").values()


def plain_words(text: str) -> str:
    """Returns the words of a text in lower case, to compare wordings."""
    return " " + " ".join(re.findall(r"[^\W_]+|[/_-]", text.lower())) + " "


# Questions whose whole wording is held out. (Of other questions, the names, words and numbers are.)
asked = (*(row[0] for row in SERVER), *(row[1] for row in FOREIGN), *(row[0] for row in JSON_REQUESTS))
WORDINGS = frozenset(map(plain_words, (*GREETINGS, *ABOUT, *RUNTIME, *UNKNOWN, *asked)))


def held_out(text: str) -> bool:
    """Returns whether a user's turn contains a question of the evaluation, also with polite words around it."""
    words = plain_words(text)
    return any(wording in words for wording in WORDINGS)
