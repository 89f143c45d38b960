"""A fixed set of facts (capitals, colours of things, some opposites), and questions whose answer the model
cannot know."""

from __future__ import annotations

from tools.demo_model.data import data_of
from tools.demo_model.dialog import Exchange, ask_for, capital, vary
from tools.demo_model.words import NOUNS, Rng, invented, phrase

# Words of lists in lower case do not get into the lexicon (corpus.lexicon).
(
    CAPITALS, COLOUR_OF, CAPITAL_WAYS, COLOUR_WAYS, OPPOSITE_WAYS, UNKNOWN_WAYS, OPPOSITES, capital_things,
    unknown_things
) = data_of("facts").values()  # fmt: skip
OPPOSITES |= {b: a for a, b in OPPOSITES.items()}
SORRY = "Sorry, I do not know that."


def ask_capital(r: Rng) -> Exchange:
    land, city = r.choice(list(CAPITALS.items()))
    answer = f"The capital of {land} is {city}."
    thing = r.choice(capital_things).format(land)
    question = ask_for(r, thing) if r.random() < 0.5 else r.choice(CAPITAL_WAYS).format(land)
    return Exchange(vary(r, question), answer, f"The user asks for the capital of {land}. It is {city}.")


def ask_colour(r: Rng) -> Exchange:
    if r.random() < 0.4:
        word, other = r.choice(list(OPPOSITES.items()))
        question = vary(
            r, ask_for(r, f"the opposite of {word}") if r.random() < 0.5 else r.choice(OPPOSITE_WAYS).format(word)
        )
        return Exchange(
            question, f"The opposite of {word} is {other}.", f"The user asks for the opposite of {word}. It is {other}."
        )
    thing, colour = r.choice(list(COLOUR_OF.items()))
    which = f"the {thing}"
    answer = f"The color of {which} is {colour}."
    question = (
        ask_for(r, f"the {r.choice(('color', 'colour'))} of {which}")
        if r.random() < 0.5
        else capital(r.choice(COLOUR_WAYS).format(which))
    )
    return Exchange(vary(r, question), answer, f"The user asks for the color of {which}. It is {colour}.")


def ask_unknown(r: Rng) -> Exchange:
    question = r.choice(UNKNOWN_WAYS).format(
        n=r.choice(NOUNS),
        m=r.choice(NOUNS),
        a=r.choice(("big", "old", "heavy", "loud", "red", "expensive", "strange", "famous")),
        v=r.choice(("need", "make", "like", "hate", "move", "follow", "stop", "eat")),
        p=invented(r).capitalize(),
        x=invented(r) if r.random() < 0.5 else phrase(r, 1, 2),
        d=r.randint(0, 9),
    )
    if r.random() < 0.3:
        n, m, x = r.choice(NOUNS), r.choice(NOUNS), invented(r)
        question = ask_for(r, r.choice(unknown_things).format(n=n, m=m, x=x))
    return Exchange(vary(r, question), SORRY, "The user asks for something that I do not know.")
