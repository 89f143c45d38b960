"""More prompts for the evaluation, written when the generator was finished and training had begun.

The other prompts were known while the generator was improved. These were not, so they say how much of the result is
only that the generator came closer to its evaluation. One lesson is younger (`lessons.errands`, see tools/README.md).
"""

from __future__ import annotations

from tools.demo_model.data import data_of
from tools.demo_model.heldout_tools import Row

lists = data_of("heldout_fresh")

# question, what the answer must contain
QUESTIONS: tuple[tuple[str, str], ...] = lists["QUESTIONS"]
# language, what is said, what the answer must contain
FOREIGN: tuple[tuple[str, str, str], ...] = lists["FOREIGN"]
# system prompt, question; the answer must contain the name
PERSONAS: tuple[tuple[str, str, str], ...] = lists["PERSONAS"]
# what is told, what is asked; the answer must contain the value
MEMORIES: tuple[tuple[str, str, str], ...] = lists["MEMORIES"]
TOOLS: tuple[Row, ...] = lists["TOOLS"]
# Requests that none of the tools fits.
UNNEEDED: tuple[str, ...] = lists["UNNEEDED"]
