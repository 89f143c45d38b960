"""Further prompts of the evaluation, written when the generator was finished and training had begun.

The generator was improved with the other prompts in view, but not with these. A difference between the results shows
how far it was fitted to its evaluation. Only the lesson `lessons.errands` is newer (see tools/README.md).
"""

from __future__ import annotations

from tools.demo_model.data import data_of

# QUESTIONS: question, what the answer must contain
# FOREIGN: language, what is said, what the answer must contain
# PERSONAS: system prompt, question; the answer must contain the name
# MEMORIES: what is told, what is asked; the answer must contain the value
# UNNEEDED: Requests that none of the tools fits.
QUESTIONS, FOREIGN, PERSONAS, MEMORIES, TOOLS, UNNEEDED = data_of("heldout_fresh").values()
