"""Sentences in which a tool with invented names is asked for.

{t} is the tool's name, {v} its verb, {n} its noun, {x} a lone value, {c} are clauses; in a clause {p} is the parameter
and {v} its value. VERB_ONLY: only the verb of the tool's name is said, and the value.
"""

from tools.demo_model.data import data_of

CLAUSES, EXPLICIT, SPOKEN, LONE, VERB_ONLY, BARE = data_of("tool_sentences").values()
