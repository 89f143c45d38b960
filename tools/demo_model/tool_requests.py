"""Requests that a tool answers: the declared tool, the user's sentence and the call.

`natural` draws from the families of familiar tools; `generic` invents tools, parameters and values.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any

from tools.demo_model.data import data_of
from tools.demo_model.dialog import ask_to, capital
from tools.demo_model.tool_families import FAMILIES, Family, Slot
from tools.demo_model.words import (
    PARAMS,
    THINGS,
    VERBS,
    Rng,
    camel,
    decimal,
    invented,
    number,
    phrase,
    snake,
    value,
    word,
)

TIMELESS, ENDINGS, deeds = data_of("tool_requests").values()
# Sentences that ask for a tool with an invented name: {t} is the tool's name, {v} its verb, {n} its noun, {x} a single
# value, and {c} are clauses. In a clause, {p} is the parameter and {v} its value. VERB_ONLY has sentences with only the
# verb of the name and the value.
CLAUSES, EXPLICIT, SPOKEN, LONE, VERB_ONLY, BARE = data_of("tool_sentences").values()


@dataclass(slots=True)
class Asked:
    """A declared tool, the sentence that asks for it, and the call that answers the sentence."""

    tool: dict[str, Any]
    sentence: str
    call: dict[str, Any]


def declare(r: Rng, name: str, description: str, parameters: dict[str, dict[str, Any]]) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name, "parameters": {"type": "object", "properties": parameters}}
    if r.random() < 0.75:
        function["description"] = description
    return {"type": "function", "function": function}


def schema(slot: Slot) -> dict[str, Any]:
    return {"type": slot.kind, "enum": list(slot.options)} if slot.options else {"type": slot.kind}


def style(r: Rng, parts: list[str]) -> str:
    kind = r.random()
    return snake(parts) if kind < 0.65 else camel(parts) if kind < 0.9 else parts[-1]


def renamed(r: Rng, noun: str) -> str:
    """Returns another name for a familiar tool, so that the model reads names from the list of tools."""
    kind = r.random()
    if kind < 0.4:
        return style(r, [r.choice(VERBS), noun])
    if kind < 0.7:
        return style(r, [noun, r.choice((r.choice(VERBS), r.choice(THINGS), "info", "lookup", "service", "tool"))])
    return style(r, [invented(r) if r.random() < 0.5 else r.choice(THINGS), noun] if kind < 0.9 else [invented(r)])


def unusual(r: Rng) -> str:
    """Returns an unexpected name of a parameter: one to three words, many of them invented."""
    parts = [invented(r) if r.random() < 0.4 else r.choice(PARAMS) for _ in range(r.choice((1, 1, 2, 2, 3)))]
    return style(r, parts) if len(parts) > 1 else parts[0]


def natural(r: Rng, family: Family | None = None, phrasing: str | None = None) -> Asked:
    """Draws a tool of a family and one of the family's sentences, sometimes with unexpected names."""
    family = family or r.choice(FAMILIES if r.random() < 0.75 else FAMILIES[:4])
    phrasing = phrasing or r.choice(family.phrasings)
    used = [field for _, field, _, _ in string.Formatter().parse(phrasing) if field]
    slots = {key: slot for key, slot in family.slots.items() if key in used or r.random() < 0.5}
    names: dict[str, str] = {}
    for key, slot in slots.items():
        name = r.choice(slot.names)
        if len(used) == 1 and len(slots) == 1 and r.random() < 0.35:
            name = unusual(r)
        while name in names.values():
            name = r.choice(PARAMS)
        names[key] = name
    values = {key: slots[key].draw(r) for key in used}
    phrasing = reworded(r, phrasing, family, slots)
    tool_name = r.choice(family.names) if r.random() < 0.65 else renamed(r, family.names[0].split("_")[-1])
    tool = declare(r, tool_name, r.choice(family.descriptions), {names[k]: schema(s) for k, s in slots.items()})
    return Asked(
        tool,
        phrasing.format(**values),
        {"name": tool_name, "arguments": {names[k]: values[k] for k in slots if k in values}},
    )


def reworded(r: Rng, phrasing: str, family: Family, slots: dict[str, Slot]) -> str:
    """Rewords a request: an order becomes a polite question; a word of time that no parameter takes is added to a
    question."""
    if phrasing.split()[0] in deeds and phrasing.endswith(".") and phrasing.count(".") == 1 and r.random() < 0.35:
        return ask_to(r, phrasing[0].lower() + phrasing[1:-1], values_last=phrasing.endswith("}."))
    if family.names[0] in TIMELESS and phrasing[-1] in ".?" and r.random() < 0.3:
        endings = (
            ENDINGS
            if "d" in slots
            else (*ENDINGS, " today", " this morning", " tonight", " this week", " this evening")
        )
        return phrasing[:-1] + r.choice(endings) + phrasing[-1]
    return phrasing


def any_slot(r: Rng) -> Slot:
    """Draws a parameter of any type, with values of this type."""
    kind = r.random()
    if kind < 0.55:
        return Slot((), "string", value)
    if kind < 0.75:
        return Slot((), "integer", number)
    if kind < 0.82:
        return Slot((), "number", decimal)
    if kind < 0.90:
        return Slot((), "boolean", lambda r: r.random() < 0.5)
    options = tuple(dict.fromkeys(word(r) for _ in range(r.randint(2, 4))))
    return Slot((), "string", lambda r: r.choice(options), options)


def clause(r: Rng, parts: list[str], name: str, chosen: Any) -> str:
    shown = ("true" if chosen else "false") if isinstance(chosen, bool) else str(chosen)
    spoken = " ".join(parts)
    if isinstance(chosen, bool) and r.random() < 0.3:
        if r.random() < 0.5:
            return f"{'' if chosen else r.choice(('no ', 'not '))}{spoken}"
        return f"{spoken} {'yes' if chosen else 'no'}"
    return r.choice(CLAUSES).format(p=name if r.random() < 0.4 else spoken, v=shown)


def generic(r: Rng) -> Asked:
    """Draws an invented tool: its name consists of a verb and a noun, its parameters are random."""
    verb = r.choice(VERBS) if r.random() < 0.8 else invented(r)
    thing = r.choice(THINGS) if r.random() < 0.65 else invented(r)
    tool_name = style(r, [verb, thing] + ([r.choice(PARAMS)] if r.random() < 0.15 else []))
    named = tool_name != thing
    parts: dict[str, list[str]] = {}
    for _ in range(r.choice((0, 1, 1, 1, 2, 2, 2, 3))):
        pieces = [r.choice(PARAMS) if r.random() < 0.7 else invented(r) for _ in range(r.choice((1, 1, 1, 2)))]
        parts[snake(pieces) if r.random() < 0.7 else camel(pieces)] = pieces
    slots = {name: any_slot(r) for name in parts}
    tool = declare(
        r,
        tool_name,
        f"{verb.capitalize()} {r.choice(('a', 'the'))} {thing}." if r.random() < 0.9 else phrase(r, 1, 5),
        {name: schema(slot) for name, slot in slots.items()},
    )
    used = [name for name in slots if r.random() < 0.85]
    if slots and not used:
        used = [r.choice(list(slots))]
    arguments = {name: slots[name].draw(r) for name in used}
    if not used:
        sentence = r.choice(BARE).format(t=tool_name, v=verb, n=thing)
    elif len(used) == 1 and r.random() < 0.6 and not isinstance(arguments[used[0]], bool) and named:
        forms = VERB_ONLY if tool_name != verb and r.random() < 0.2 else LONE
        sentence = r.choice(forms).format(v=verb, n=thing, x=arguments[used[0]])
    else:
        clauses = [clause(r, parts[name], name, arguments[name]) for name in used]
        if r.random() < 0.2:
            clauses.reverse()
        listed = ", ".join(clauses) if r.random() < 0.5 else " and ".join(clauses)
        explicit = r.random() < 0.5 or not named
        sentence = r.choice(EXPLICIT if explicit else SPOKEN).format(t=tool_name, v=verb, n=thing, c=listed)
        if not explicit and r.random() < 0.3:
            article, link = r.choice(("the", "a", "my", "this")), r.choice(("with", "for", "with", "by", "using"))
            sentence = ask_to(r, f"{verb} {article} {thing} {link} {listed}", values_last=True)
    if sentence[0].islower() and r.random() < 0.7 and not sentence.startswith(tool_name):
        sentence = capital(sentence)
    return Asked(tool, sentence, {"name": tool_name, "arguments": arguments})


def ask_tool(r: Rng) -> Asked:
    return natural(r) if r.random() < 0.55 else generic(r)
