"""Sentences that ask for a tool with an invented name.

{t} is the tool's name, {v} its verb, {n} its noun, {x} a single value, and {c} are clauses. In a clause, {p} is the
parameter and {v} its value. VERB_ONLY has sentences with only the verb of the name and the value.
"""

from tools.demo_model.data import data_of

CLAUSES, EXPLICIT, SPOKEN, LONE, VERB_ONLY, BARE = data_of("tool_sentences").values()
