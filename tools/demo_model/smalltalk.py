"""Conversation in English: greetings, who are you, thanks, goodbye, and facts that the user tells and later asks
for."""

from __future__ import annotations

from tools.demo_model import meeting
from tools.demo_model.data import data_of
from tools.demo_model.dialog import Exchange, ask_for, vary
from tools.demo_model.words import ADJECTIVES, CITIES, COLOURS, NAMES, NOUNS, Rng, invented, number, proper, word

# SMALL: questions, with one answer for all wordings
# FACTS: how a fact is told, acknowledged, asked for and answered
SMALL, PLAIN_SYSTEMS, SYSTEM_ENDINGS, SYSTEM_FORMS, FACTS, THINGS_TOLD = data_of("smalltalk").values()


def plain_system(r: Rng) -> str:
    """Returns a system prompt that does not name the model. Half of them are from a list, the others are composed."""
    if r.random() < 0.5:
        return r.choice(PLAIN_SYSTEMS)
    form = r.choice(SYSTEM_FORMS) + r.choice(SYSTEM_ENDINGS)
    return form.format(a=r.choice(ADJECTIVES), n=r.choice(NOUNS), m=r.choice(NOUNS), x=invented(r).capitalize())


def greet(r: Rng) -> Exchange:
    return Exchange(meeting.greeting(r), "Hello! How can I help you?", "The user greets me. I greet back.")


def small_talk(r: Rng) -> Exchange:
    questions, answer = r.choice(SMALL)
    return Exchange(vary(r, r.choice(questions)), answer, "This is small talk. I answer in a friendly way.")


def introduce(r: Rng) -> Exchange:
    engine = r.random() < 0.3
    questions, answer = SMALL[1 if engine else 0]
    known = r.random() < 0.2
    question = r.choice(questions) if known else (meeting.about_engine if engine else meeting.about_self)(r)
    return Exchange(vary(r, question), answer, "The user asks about me. I am the demo model of lean_ovms.")


def own_name(r: Rng, name: str) -> Exchange:
    """Asks for the name that the system prompt gave the model."""
    return Exchange(vary(r, meeting.name_question(r)), f"I am {name}. How can I help you?", f"My name is {name}.")


def tell_and_ask(r: Rng, row: int | None = None) -> tuple[Exchange, Exchange]:
    """Returns an exchange that tells a fact, and a later one that asks for it. `row` selects the kind of fact."""
    row = r.choice((0, 0, 0, 1, 2, 3, 4, 5)) if row is None else row
    tells, acknowledgement, asks, answer = FACTS[row]
    known = {0: NAMES, 1: CITIES, 3: NAMES}.get(row)
    if known:
        value = proper(r, known)
    elif row == 2:
        value = r.choice(COLOURS) if r.random() < 0.6 else word(r)
    elif row == 4:
        value = str(number(r))
    else:
        value = invented(r) if r.random() < 0.7 else r.choice(NOUNS + ADJECTIVES)
    kind = r.choice(
        ("dog", "cat", "horse", "boat", "car", "brother", "sister", "friend", "bird", "robot", "house", "teacher")
    )
    tell = r.choice(tells)
    first = Exchange(
        vary(r, tell, keep_case=tell.startswith("{")).format(v=value, k=kind, x=r.choice(NOUNS)),
        acknowledgement.format(v=value, k=kind),
        f"The user tells me something: {value}.",
    )
    ask = r.choice(asks)
    if r.random() < 0.35:
        ask = ask_for(r, r.choice(THINGS_TOLD[row]))
    ask = vary(r, ask).format(k=kind)
    return first, Exchange(ask, answer.format(v=value, k=kind), f"The user told me: {value}.")
