"""Small exercises on words and numbers: repeat, spell, count, add, JSON."""

from __future__ import annotations

import json

from .dialog import Exchange, ask_for, ask_to, vary
from .words import NAMES, NOUNS, PARAMS, VERBS, Rng, invented, number, phrase, proper, value, word

# fmt: off
REPEAT_WAYS = (
    "Repeat after me: {}", "Repeat this: {}", "Repeat: {}", "Say this: {}", "Say: {}", "Echo: {}", "Please repeat: {}",
    "Write exactly this: {}", 'Repeat "{}".', 'Say "{}".', 'Can you repeat "{}"?', 'Write "{}".', "Repeat the words {}",
    'Please say "{}" for me.', "Copy this text: {}", 'Echo the text "{}".', "Repeat the following: {}", "Say {}",
    "Write down: {}",
)
SPELL_WAYS = (
    "Spell {}.", "Spell the word {}.", "How do you spell {}?", "Please spell {}.", "Can you spell {}?",
    "Spell it for me: {}",
    "Give me the letters of {}.", "What are the letters of {}?", 'Spell "{}".', "Spell {} letter by letter.",
    "Which letters are in {}?",
)
COUNT_WAYS = (
    "Count from {a} to {b}.", "Please count from {a} to {b}.", "Can you count from {a} to {b}?",
    "Count up from {a} to {b}.",
    "Count {a} to {b}.", "Give me the numbers from {a} to {b}.", "List the numbers from {a} to {b}.",
    "Start at {a} and count to {b}.",
    "What are the numbers from {a} to {b}?", "Write the numbers {a} to {b}.", "Show the numbers between {a} and {b}.",
)
COUNT_TO_WAYS = ("Count to {b}.", "Can you count to {b}?", "Please count to {b}.", "Count up to {b}.",
    "Show me how you count to {b}.")
ADD_WAYS = (
    "What is {a} + {b}?", "{a} + {b}", "{a} + {b} =", "{a} + {b} = ?", "What is {a} plus {b}?",
    "How much is {a} plus {b}?", "Add {a} and {b}.",
    "Compute {a} + {b}.", "Calculate {a} + {b}.", "What is the sum of {a} and {b}?", "How much is {a} + {b}?",
    "{a} plus {b}?",
    "Can you add {a} and {b}?", "What do you get for {a} plus {b}?", "Solve {a} + {b}.",
    "If I add {a} and {b}, what do I get?",
    "I have {a} {n}s and get {b} more. How many do I have?", "What does {a} plus {b} make?",
    "Tell me the sum of {a} and {b}.",
)
JSON_WAYS = (
    "Give me JSON with {}.", "Write a JSON object with {}.", "Answer as JSON: {}", "Return JSON: {}",
    "Make a JSON object: {}",
    "Give me a JSON object with {}.", "Create JSON with {}.", "Put this in JSON: {}", "As JSON: {}",
    "Reply in JSON with {}.",
    "Convert to JSON: {}", "Turn this into JSON: {}", "Write this as JSON: {}", "I need JSON with {}.",
    "Respond with JSON only: {}",
    "Generate a JSON object with {}.", "Output JSON with {}.", "Please answer in JSON: {}",
    "Extract JSON from this: {}", "{} Answer in JSON.",
)
JSON_EXAMPLES = (
    "Give me some JSON.", "Write an example of JSON.", "Show me a JSON object.", "Give me a JSON example.",
    "Write some JSON.", "Answer in JSON.", "Give me any JSON.", "Reply with JSON.",
    "Give me a valid JSON object.", "I want to see JSON.", "Can you write JSON?", "Output JSON.",
    "Produce a small JSON object.", "Respond in JSON.", "Return a JSON object.", "Return JSON only.",
)
JSON_LISTS = (
    "Give me a JSON list of {}.", "Write a JSON array with {}.", "As a JSON list: {}", "Put this in a JSON array: {}",
    "Make a JSON list with {}.", "Return a JSON array of {}.", "JSON list: {}",
    "Turn {} into a JSON list.", "I need a JSON array with {}.", "Convert to a JSON list: {}",
)
JSON_KEYS = (
    "Give me JSON with the keys {k} and the values {v}.", "JSON with keys {k}: {v}",
    "Write JSON with the keys {k}. The values are {v}.", "Make JSON. Keys: {k}. Values: {v}.",
    "Return a JSON object with the fields {k}, values {v}.",
)
HELD_OUT_SUMS = frozenset({(2, 6), (3, 4), (4, 9), (5, 3), (6, 7), (7, 2), (8, 5), (9, 4), (1, 8), (9, 6), (4, 4),
    (10, 3), (6, 10), (12, 5)})
HELD_OUT_COUNTS = frozenset({(2, 7), (3, 9), (4, 8), (5, 11), (6, 12), (7, 10), (8, 14), (1, 9), (9, 13), (3, 6),
    (11, 16), (2, 12)})
# fmt: on


def repeat(r: Rng) -> Exchange:
    text = value(r) if r.random() < 0.5 else phrase(r, 1, 6)
    if r.random() < 0.35:
        way = r.choice(
            (
                'repeat "{}"',
                'say "{}"',
                'write "{}"',
                'echo "{}"',
                "repeat this: {}",
                "say this: {}",
                "write this: {}",
                "repeat the words {}",
                "repeat after me: {}",
                "copy this: {}",
                "repeat {}",
                "say {}",
            )
        )
        way = vary(
            r,
            ask_to(r, way, values_last=True).rstrip(".?") + ("" if way.endswith(": {}") else r.choice((".", "?", ""))),
            keep_case=True,
        )
    else:
        way = vary(r, r.choice(REPEAT_WAYS), keep_case=True)
    return Exchange(way.format(text), text, f"The user wants to hear this: {text}")


def spell(r: Rng) -> Exchange:
    kind = r.random()
    text = (
        invented(r)
        if kind < 0.35
        else invented(r)[: r.randint(1, 4)]
        if kind < 0.5
        else r.choice(r.choice((NOUNS, VERBS, PARAMS)))
        if kind < 0.85
        else r.choice(NAMES)
    )
    answer = "-".join(text)
    way = r.choice(SPELL_WAYS)
    if r.random() < 0.4:
        way = ask_to(
            r,
            r.choice(
                (
                    "spell {}",
                    "spell the word {}",
                    'spell "{}"',
                    "give me the letters of {}",
                    "list the letters of {}",
                    "spell {} letter by letter",
                )
            ),
        )
    elif r.random() < 0.2:
        way = ask_for(r, r.choice(("the spelling of {}", "the letters of {}", "the letters in {}")))
    return Exchange(vary(r, way, keep_case=True).format(text), answer, f"The user wants the letters of {text}.")


def count(r: Rng) -> Exchange:
    low = 1 if r.random() < 0.3 else r.randint(1, 20)
    high = min(low + r.randint(2, 9), 30)
    if (low, high) in HELD_OUT_COUNTS:
        return count(r)
    ways = COUNT_TO_WAYS if low == 1 and r.random() < 0.4 else COUNT_WAYS
    answer = ", ".join(str(i) for i in range(low, high + 1)) + "."
    question = r.choice(ways)
    if r.random() < 0.4:
        question = ask_to(
            r,
            r.choice(
                (
                    "count from {a} to {b}",
                    "count from {a} to {b}",
                    "count up from {a} to {b}",
                    "list the numbers from {a} to {b}",
                    "write the numbers from {a} to {b}",
                    "start with {a} and count to {b}",
                    "say the numbers {a} to {b}",
                )
            ),
        )
    elif r.random() < 0.2:
        question = ask_for(r, "the numbers from {a} to {b}")
    return Exchange(
        vary(r, question.format(a=low, b=high)), answer, f"The user wants the numbers from {low} to {high}."
    )


def add(r: Rng) -> Exchange:
    a, b = (r.randint(0, 10), r.randint(0, 10)) if r.random() < 0.65 else (r.randint(0, 30), r.randint(0, 30))
    if (a, b) in HELD_OUT_SUMS:
        return add(r)
    question = r.choice(ADD_WAYS).format(a=a, b=b, n=r.choice(NOUNS))
    if r.random() < 0.35:
        thing = r.choice(
            (
                "{a} + {b}",
                "{a} plus {b}",
                "the sum of {a} and {b}",
                "{a}+{b}",
                "{a} and {b} together",
                "the result of {a} + {b}",
            )
        ).format(a=a, b=b)
        question = (
            ask_for(r, thing)
            if r.random() < 0.6
            else ask_to(
                r, r.choice((f"add {a} and {b}", f"compute {a} + {b}", f"calculate {a} plus {b}", f"add {b} to {a}"))
            )
        )
    question = vary(r, question.replace(" + ", "+") if r.random() < 0.1 else question, keep_case=True)
    return Exchange(question, f"{a} + {b} = {a + b}.", f"The user wants a sum. {a} + {b} = {a + b}.")


def json_example(r: Rng) -> Exchange:
    example = json.dumps({"name": "demo", "number": 1})
    return Exchange(vary(r, r.choice(JSON_EXAMPLES)), example, "The user wants any JSON.")


def json_list(r: Rng) -> Exchange:
    items: list[object] = [number(r) if r.random() < 0.2 else word(r) for _ in range(r.randint(2, 4))]
    listed = ", ".join(map(str, items[:-1])) + r.choice((", ", " and ")) + str(items[-1])
    return Exchange(
        vary(r, r.choice(JSON_LISTS).format(listed)),
        json.dumps(items, ensure_ascii=False),
        "The user wants a JSON list.",
    )


def json_object(r: Rng) -> Exchange:
    if r.random() < 0.22:
        return (json_example if r.random() < 0.4 else json_list)(r)
    fields: dict[str, object] = {}
    for _ in range(r.choice((1, 2, 2, 2, 3, 3))):
        key = r.choice([*PARAMS, "age", "name", "name", "age", "city", "job"]) if r.random() < 0.7 else invented(r)
        kind = r.random()
        fields[key] = (
            number(r) if kind < 0.4 or key == "age" else proper(r, NAMES) if key == "name" or kind < 0.6 else word(r)
        )
    if r.random() < 0.15 and len(fields) > 1:
        named, given = (" and ".join(str(x) for x in part) for part in (fields.keys(), fields.values()))
        return Exchange(
            vary(r, r.choice(JSON_KEYS).format(k=named, v=given)),
            json.dumps(fields, ensure_ascii=False),
            f"The user wants JSON with the keys {named}.",
        )
    parts = [
        r.choice(("{k} {v}", "{k} {v}", "{k} = {v}", "{k}: {v}", "{k} is {v}")).format(k=k, v=v)
        for k, v in fields.items()
    ]
    listed = ", ".join(parts) if r.random() < 0.5 or len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    question = r.choice(JSON_WAYS).format(listed)
    question = f"{listed}. Answer in JSON." if question.startswith(listed) else vary(r, question)
    if r.random() < 0.25:
        question = vary(
            r,
            ask_to(
                r,
                r.choice(
                    (
                        "give me JSON with {}",
                        "write JSON with {}",
                        "make a JSON object with {}",
                        "return JSON with {}",
                        "answer in JSON with {}",
                        "put {} in JSON",
                    )
                ).format(listed),
            ),
        )
    keys = " and ".join(fields)
    return Exchange(question, json.dumps(fields, ensure_ascii=False), f"The user wants JSON with the keys {keys}.")
