"""Sentences in which a tool with invented names is asked for.

{t} is the tool's name, {v} its verb, {n} its noun, {x} a lone value, {c} are clauses; in a clause {p} is the parameter
and {v} its value.
"""

# fmt: off
CLAUSES = (
    "{p} {v}", "{p} {v}", "{p} = {v}", "{p}: {v}", 'the {p} "{v}"', "{p} set to {v}", "the {p} {v}", '{p} "{v}"',
    "{p} is {v}", "{p} of {v}", "a {p} of {v}", "{v} as {p}", "{v} as the {p}", "{p} equal to {v}",
    "the {p} being {v}",
)
EXPLICIT = (
    "Call {t} with {c}.", "Use {t} with {c}.", "Run {t}: {c}", "Use the tool {t} with {c}.",
    "Please call {t} with {c}.", "Invoke {t} with {c}.", "{t} with {c}", "Call the function {t} with {c}.",
    "With {c}, call {t}.", "I want you to use {t} with {c}.", "Execute {t}, {c}.", "Take {c} and call {t}.",
)
SPOKEN = (
    "{v} the {n} with {c}.", "{v} a {n} with {c}.", "Please {v} the {n}, {c}.", "Can you {v} the {n} with {c}?",
    "I want to {v} the {n} with {c}.", "{v} {n}: {c}", "With {c}, {v} the {n}.", "I need to {v} a {n}, {c}.",
    "Could you {v} my {n} with {c}?", "Let us {v} the {n} with {c}.", "{v} the {n}, {c}.", "{v} {n} with {c}",
    "{v} a {n}, {c}, please.", "{v} the {n} using {c}.", "Please {v} a {n} with {c}.", "{v} my {n} for {c}.",
    "Now {v} the {n} with {c}.",
)
LONE = (
    "{v} the {n} {x}.", "{v} {n} {x}", "{v} {x} as {n}.", "Please {v} the {n} {x}.", "Can you {v} {n} {x}?",
    '{v} the {n} "{x}".', "I want to {v} the {n} {x}.", "{x} is the {n} to {v}.", "{v} this {n}: {x}",
    "For {x}, {v} the {n}.", "My {n} is {x}, {v} it.", "Could you {v} {x} in the {n}?",
    "I would like to {v} {n} {x}.", "{n} {x}: {v} it.", "{v} the {n} to {x}.", "{v} the {n} of {x}.",
    "{v} the {n} for {x}.", "{v} a {n} for {x}.", "{v} a {n} of {x}.", "{v} {n} for {x}.",
    "Please {v} a {n} for {x}.", "Can you {v} the {n} of {x}?", "Could you {v} a {n} for {x}?",
    "What is the {n} for {x}?", "What is the {n} of {x}?", "Which {n} has {x}?", "Give me the {n} of {x}.",
    "I need the {n} for {x}.", "I need a {n} for {x}.", "Show me the {n} of {x}.", "{n} for {x}, please.",
    "How is the {n} of {x}?", "What {n} does {x} have?", "Is there a {n} for {x}?", "Tell me the {n} for {x}.",
    "{v} the {n} in {x}.", "What is the {n} in {x} now?", "Make the {n} {x}.", "Now {v} the {n} {x}.",
)
# Only the verb of the tool's name is said, and the value.
VERB_ONLY = (
    "{v} {x}.",
    "{v} the {x}.",
    "Please {v} {x}.",
    "Please {v} the {x}.",
    "Can you {v} {x}?",
    "Could you {v} the {x}?",
    "I want to {v} {x}.",
    "I want you to {v} the {x}.",
    '{v} "{x}".',
    "{v} {x} now.",
    "You should {v} {x}.",
    "{v} my {x}, please.",
)
BARE = (
    "Call {t}.", "Use {t}.", "Please run {t}.", "Run the tool {t}.", "{v} the {n}.", "Please {v} the {n}.",
    "Can you {v} the {n}?", "I want to {v} the {n}.", "Could you {v} my {n}?", "Let us {v} the {n} now.",
)
# fmt: on
