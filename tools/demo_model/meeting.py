"""First sentences of conversations: greetings, "what are you?", "what do you run on?", and system prompts that name the
model.

Sentences are composed of parts, so that no single wording is so frequent that the model only knows this one.
"""

from __future__ import annotations

from tools.demo_model.data import data_of
from tools.demo_model.dialog import ask_for, ask_to, capital
from tools.demo_model.words import ADJECTIVES, NOUNS, Rng, invented

(
    HELLOS, WHOM, PLEASED, GREET_DEEDS, KINDS, WHICH, ARE_YOU, NOT_THEM, WHO, SELF_DEEDS, SELF_THINGS, RUNS, ENGINES,
    RUN_WHOLE, RUN_DEEDS, ROLES, NAMED, NAMED_ENDS, NAME_ASKS, NAME_DEEDS, NAME_THINGS
) = data_of("meeting").values()  # fmt: skip

TIMES = ("day", "morning", "evening", "afternoon", "week", "start", "Monday", "Friday", "summer", "weekend")

ASKS = ("which", "what", "what kind of", "which kind of", "what type of")


def article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeioAEIOL' else 'a'} {noun}"


def greeting(r: Rng) -> str:
    """Returns a greeting of up to three parts."""
    if r.random() < 0.06:
        return ask_to(r, r.choice(GREET_DEEDS)) if r.random() < 0.6 else capital(r.choice(GREET_DEEDS))
    text = r.choice(HELLOS)
    if r.random() < 0.3:
        text += r.choice((" ", " ", ", ")) + r.choice(WHOM)
    if r.random() < 0.45:
        pleased = r.choice(PLEASED).format(a=r.choice(ADJECTIVES), t=r.choice(TIMES))
        text += (
            r.choice((", ", ", ", " and ")) + pleased if r.random() < 0.6 else r.choice("!.") + " " + capital(pleased)
        )
    elif r.random() < 0.08:
        text += r.choice(("! ", ", ")) + r.choice(HELLOS[:12])
    text += r.choice(("", "", "!", ".", "!", "!!", " :)", "?")) if r.random() < 0.85 else ""
    return text.lower() if r.random() < 0.15 else text


def about_self(r: Rng) -> str:
    kind = r.random()
    if kind < 0.3:
        return r.choice(WHO)
    if kind < 0.55:
        return capital(r.choice(WHICH).format(w=r.choice(ASKS), k=r.choice(KINDS)))
    if kind < 0.68:
        return r.choice(ARE_YOU).format(k=r.choice(NOT_THEM) if r.random() < 0.5 else article(r.choice(KINDS)))
    if kind < 0.9:
        deed = r.choice(SELF_DEEDS)
        return ask_to(r, deed) if r.random() < 0.7 else capital(deed) + "."
    return ask_for(r, r.choice(SELF_THINGS))


def about_engine(r: Rng) -> str:
    kind = r.random()
    if kind < 0.35:
        return r.choice(RUN_WHOLE)
    if kind < 0.8:
        words = {"e": r.choice(ENGINES), "u": r.choice(("use", "run on", "run with", "need"))}
        return r.choice(RUNS).format(g=r.choice(("using", "running on", "based on", "built on")), **words)
    if kind < 0.9:
        return ask_to(r, r.choice(RUN_DEEDS))
    return ask_for(r, r.choice(("your engine", "your runtime", "the software that runs you", "the engine behind you")))


def naming(r: Rng, name: str) -> str:
    """Returns a system prompt that names the model."""
    role = r.choice(ROLES)
    if r.random() < 0.3:
        role = f"{r.choice(ADJECTIVES)} {role}"
    roles = (
        article(role) if r.random() < 0.7 else r.choice((f"the {role} of {invented(r).capitalize()}", f"our {role}"))
    )
    text = r.choice(NAMED).format(n=name, q=role, r=roles) + r.choice(NAMED_ENDS) + r.choice(NAMED_ENDS[:12])
    return text.format(x=invented(r).capitalize(), m=r.choice(NOUNS), a=r.choice(ADJECTIVES), q=r.choice(ROLES))


def name_question(r: Rng) -> str:
    kind = r.random()
    if kind < 0.55:
        return r.choice(NAME_ASKS)
    if kind < 0.85:
        deed = r.choice(NAME_DEEDS)
        return ask_to(r, deed) if r.random() < 0.7 else capital(deed) + "."
    return ask_for(r, r.choice(NAME_THINGS))
