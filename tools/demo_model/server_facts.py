"""Questions about the server. A row has what people ask about, how they say it, and what the model answers.

The answers are facts about lean_ovms. When an endpoint or a flag changes, they must be changed and the model trained
again.
"""

from __future__ import annotations

from dataclasses import dataclass

from tools.demo_model.data import data_of
from tools.demo_model.dialog import Exchange, ask_for, ask_to, capital, vary
from tools.demo_model.words import Rng, each

lists = data_of("server_facts")


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact about the server. `things` fit "the endpoint for ..." or "the flag for ..."; `deeds` fit "How do I
    ...?"."""

    things: tuple[str, ...]
    deeds: tuple[str, ...]
    answer: str


ENDPOINTS, FLAGS, HOW_OTHERS = (tuple(Fact(*row) for row in lists[name]) for name in each("ENDPOINTS FLAGS HOW_OTHERS"))
ENDPOINT_WORDS, FLAG_WORDS = lists["ENDPOINT_WORDS"], lists["FLAG_WORDS"]
WHICH_FOR, WHICH_TO, HOW_TO, WHERE_TO = (lists[name] for name in each("WHICH_FOR WHICH_TO HOW_TO WHERE_TO"))
# OTHERS: complete questions, with their answer
OTHERS, FLAG_HELP, PATH_HELP = (lists[name] for name in each("OTHERS FLAG_HELP PATH_HELP"))


def ask_fact(r: Rng, fact: Fact, words: tuple[str, ...], extra: tuple[str, ...]) -> str:
    """Returns one of many ways to ask for an endpoint or a flag."""
    word = r.choice(words)
    article = "an" if word[0] in "aeio" else "a"
    kind = r.random()
    if kind < 0.40:
        return capital(r.choice(WHICH_FOR).format(w=word, a=article, x=r.choice(fact.things)))
    if kind < 0.55:
        return ask_for(r, f"the {word} for {r.choice(fact.things)}")
    if kind < 0.75:
        return r.choice(WHICH_TO).format(w=word, a=article, d=r.choice(fact.deeds))
    return r.choice(extra).format(d=r.choice(fact.deeds))


def ask_server(r: Rng) -> Exchange:
    kind = r.random()
    if kind < 0.34:
        fact = r.choice(ENDPOINTS)
        question, answer = ask_fact(r, fact, ENDPOINT_WORDS, HOW_TO + WHERE_TO), fact.answer
    elif kind < 0.55:
        fact = r.choice(FLAGS)
        question, answer = ask_fact(r, fact, FLAG_WORDS, HOW_TO), fact.answer
    elif kind < 0.72:
        fact = r.choice((HOW_OTHERS[0], *HOW_OTHERS))
        question, answer = r.choice(HOW_TO).format(d=r.choice(fact.deeds)), fact.answer
        if fact.things and r.random() < 0.4:
            if r.random() < 0.3:
                question = ask_to(r, f"load {r.choice(fact.things)}")
            else:
                question = r.choice(lists["wishes"]).format(r.choice(fact.things))
    else:
        questions, answer = r.choice(OTHERS)
        flag, path = r.choice(list(FLAG_HELP)), r.choice(list(PATH_HELP))
        question = r.choice(questions).replace("{flag}", flag).replace("{path}", path)
        answer = answer.replace("{flag_help}", FLAG_HELP[flag]).replace("{path_help}", PATH_HELP[path])
        if answer in PATH_HELP.values() or answer in FLAG_HELP.values():
            name = flag if answer in FLAG_HELP.values() else path
            if r.random() < 0.4:
                question = r.choice(lists["purposes"]).format(name)
    return Exchange(vary(r, question), answer, "The user asks about the server. I know this.")
