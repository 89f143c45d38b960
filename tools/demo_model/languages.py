"""The same small conversation in German and in Spanish. An entry has several ways to say something, and the answer."""

from __future__ import annotations

from tools.demo_model.data import data_of
from tools.demo_model.dialog import Exchange
from tools.demo_model.drills import HELD_OUT_COUNTS
from tools.demo_model.facts import CAPITALS
from tools.demo_model.words import CITIES, NAMES, Rng, invented, proper, value

# MEMORY: what is told, the answer, what is asked, the answer
(
    GERMAN, SPANISH, MEMORY, CITY_NAMES, CAPITAL_WAYS, REPEAT_WAYS, PREFIXES, SUFFIXES, COUNTS, OWN_NAME,
    LANDS, CAPITAL_ANSWER, THOUGHT
) = data_of("languages").values()  # fmt: skip

Entry = tuple[tuple[str, ...], str]

TABLES = {"de": GERMAN, "es": SPANISH}


def vary_foreign(r: Rng, text: str, language: str) -> str:
    if r.random() < 0.15:
        text = r.choice(PREFIXES[language]) + text
    if r.random() < 0.15 and text.endswith((".", "?", "!")):
        text = text[:-1] + r.choice(SUFFIXES[language]) + text[-1]
    if r.random() < 0.15 and text.endswith((".", "?", "!")):
        text = text[:-1] + r.choice(("", "", "!"))
    if r.random() < 0.1:
        text = text[0].lower() + text[1:]
    return text.replace("¿", "").replace("¡", "") if r.random() < 0.1 else text


def talk(r: Rng, language: str, named: bool = False) -> Exchange:
    """Draws an exchange in a language.

    Args:
        r: The source of randomness.
        language: "de" or "es".
        named: Whether the system prompt gave the model a name. Then no exchange is drawn in which it says its own.
    """
    kind = r.random()
    thought = THOUGHT[language]
    if kind < 0.72:
        table = TABLES[language]
        ways, answer = r.choice(table[:1] + table[2:] if named else table)
        text = r.choice(ways).format(x=invented(r).capitalize(), y=invented(r))
        return Exchange(vary_foreign(r, text, language), answer, thought)
    if kind < 0.76:
        return count(r, language)
    if kind < 0.85:
        land, local = r.choice(list(LANDS[language].items()))
        city = CITY_NAMES[language].get(CAPITALS[land], CAPITALS[land])
        answer = CAPITAL_ANSWER[language].format(local, city)
        return Exchange(vary_foreign(r, r.choice(CAPITAL_WAYS[language]).format(local), language), answer, thought)
    text = value(r)
    return Exchange(r.choice(REPEAT_WAYS[language]).format(text), text, thought)


def count(r: Rng, language: str) -> Exchange:
    way = r.choice(COUNTS[language])
    low = r.randint(2, 12) if "{a}" in way else 1
    high = low + r.randint(2, 9)
    if (low, high) in HELD_OUT_COUNTS:
        return count(r, language)
    answer = ", ".join(str(i) for i in range(low, high + 1)) + "."
    return Exchange(vary_foreign(r, way.format(a=low, b=high), language), answer, THOUGHT[language])


def own_name(r: Rng, name: str, language: str) -> Exchange:
    ways, answer = OWN_NAME[language]
    return Exchange(r.choice(ways), answer.format(name), THOUGHT[language])


def tell_and_ask(r: Rng, language: str) -> tuple[Exchange, Exchange]:
    row = r.choice((0, 0, 1))
    tells, acknowledgement, asks, answer = MEMORY[language][row]
    name = proper(r, CITIES if row else NAMES)
    first = Exchange(r.choice(tells).format(v=name), acknowledgement.format(v=name), THOUGHT[language])
    return first, Exchange(vary_foreign(r, r.choice(asks), language), answer.format(v=name), THOUGHT[language])
