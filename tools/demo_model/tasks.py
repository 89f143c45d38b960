"""Small exercises: repeat a text, write JSON."""

from __future__ import annotations

import json

from tools.demo_model.data import data_of
from tools.demo_model.dialog import Exchange, ask_to, vary
from tools.demo_model.words import NAMES, PARAMS, Rng, invented, number, phrase, proper, value, word

# Words of lists in lower case do not get into the lexicon (corpus.lexicon).
REPEAT_WAYS, JSON_WAYS, JSON_EXAMPLES, JSON_LISTS, JSON_KEYS, repeat_deeds, json_deeds = data_of("tasks").values()


def repeat(r: Rng) -> Exchange:
    text = value(r) if r.random() < 0.5 else phrase(r, 1, 6)
    if r.random() < 0.35:
        deed = r.choice(repeat_deeds)
        way = ask_to(r, deed, values_last=True).rstrip(".?")
        way = vary(r, way + ("" if deed.endswith(": {}") else r.choice((".", "?", ""))), keep_case=True)
    else:
        way = vary(r, r.choice(REPEAT_WAYS), keep_case=True)
    return Exchange(way.format(text), text, f"The user wants to hear this: {text}")


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
        question = vary(r, ask_to(r, r.choice(json_deeds).format(listed)))
    keys = " and ".join(fields)
    return Exchange(question, json.dumps(fields, ensure_ascii=False), f"The user wants JSON with the keys {keys}.")
