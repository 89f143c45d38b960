"""More prompts for the evaluation, written when the generator was finished and training had begun.

The other prompts were known while the generator was improved. These were not, so they say how much of the result is
only that the generator came closer to its evaluation. One lesson is younger (`lessons.errands`, see tools/README.md).
"""

from __future__ import annotations

from tools.demo_model.data import data_of

# QUESTIONS: question, what the answer must contain
# FOREIGN: language, what is said, what the answer must contain
# PERSONAS: system prompt, question; the answer must contain the name
# MEMORIES: what is told, what is asked; the answer must contain the value
# UNNEEDED: Requests that none of the tools fits.
QUESTIONS, FOREIGN, PERSONAS, MEMORIES, TOOLS, UNNEEDED = data_of("heldout_fresh").values()
