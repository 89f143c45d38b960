from tools.demo_model.data import data_of

lists = data_of("tool_sentences")
"""Sentences in which a tool with invented names is asked for.

{t} is the tool's name, {v} its verb, {n} its noun, {x} a lone value, {c} are clauses; in a clause {p} is the parameter
and {v} its value.
"""

CLAUSES: tuple[str, ...] = lists["CLAUSES"]
EXPLICIT: tuple[str, ...] = lists["EXPLICIT"]
SPOKEN: tuple[str, ...] = lists["SPOKEN"]
LONE: tuple[str, ...] = lists["LONE"]
# Only the verb of the tool's name is said, and the value.
VERB_ONLY: tuple[str, ...] = lists["VERB_ONLY"]
BARE: tuple[str, ...] = lists["BARE"]
