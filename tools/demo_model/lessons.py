"""Lessons: dialogs of one kind that are mixed in during some of the training steps, because chance brings too few of
them.

`corpus.lexicon` does not collect the words of this module, so adding a lesson does not change the other dialogs.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tools.demo_model import drills, filler, forms, tasks
from tools.demo_model.corpus import draw
from tools.demo_model.data import data_of
from tools.demo_model.dialog import Dialog, ask_to, capital, vary
from tools.demo_model.facts import SORRY, ask_unknown
from tools.demo_model.forms import Written
from tools.demo_model.heldout import held_out
from tools.demo_model.tool_dialogs import ERRANDS, NO_TOOL, add_round, crowded, fits, others, parallel, single, start
from tools.demo_model.tool_requests import Asked, declare, style, unusual
from tools.demo_model.words import NOUNS, THINGS, VERBS, Rng, invented, number, value, word

# {v} is a verb, {n} a noun, {x} a text, {i} a number
(FORMS,) = data_of("lessons").values()

GAPS = ("\n", "\n\n", " ")


def lists(r: Rng) -> Dialog:
    """Draws long lists of words to spell and of sums, which give the most practice per token."""
    dialog = Dialog()
    for _ in range(r.choice((1, 1, 2))):
        dialog.say(r.choice((drills.spell_list, drills.spell_list, drills.add_list))(r), thinking=False)
    return dialog


def tools(r: Rng) -> Dialog:
    """Draws a dialog with tools, mostly with many others around the right one."""
    make = r.choice((crowded, crowded, single, parallel))
    return make(r, r.random() < 0.2)


def errands(r: Rng) -> Dialog:
    """Draws orders that sound as if no program could carry them out, with exactly the tool for it, or without one."""
    dialog, thinking = start(r), r.random() < 0.2
    verb = r.choice(ERRANDS) if r.random() < 0.6 else r.choice(VERBS) if r.random() < 0.5 else invented(r)
    noun = r.choice(r.choice((NOUNS, THINGS))) if r.random() < 0.7 else invented(r)
    form = r.choice(FORMS)
    values = {"x": word(r) if r.random() < 0.7 else value(r), "i": number(r)}
    used = [key for key in values if f"{{{key}}}" in form]
    names = {key: unusual(r) for key in used} | ({} if r.random() < 0.8 else {"z": unusual(r)})
    if len(set(names.values())) < len(names):
        return errands(r)
    properties = {name: {"type": "integer" if key == "i" else "string"} for key, name in names.items()}
    name = style(r, [verb, noun]) if r.random() < 0.85 else verb
    tool = declare(r, name, f"{verb.capitalize()} {r.choice(('a', 'the'))} {noun}.", properties)
    order = form.format(v=verb, n=noun, **values)
    order = ask_to(r, order[:-1], values_last=True) if r.random() < 0.35 else capital(order)
    asked = Asked(tool, order, {"name": name, "arguments": {names[key]: values[key] for key in used}})
    sentence = vary(r, order, keep_case=True)
    if r.random() < 0.7:
        dialog.tools = others(r, [tool])
        add_round(r, dialog, [asked], sentence, thinking, answered=r.random() < 0.2)
        return dialog
    dialog.tools = [tool for tool in others(r, [tool], most=3) if tool["function"]["name"] != name]
    if not dialog.tools or fits(asked, dialog.tools):
        return errands(r)
    dialog.messages += [{"role": "user", "content": sentence}, {"role": "assistant", "content": NO_TOOL}]
    if thinking:
        dialog.messages[-1]["reasoning_content"] = "None of my tools can do that."
    return dialog


def json(r: Rng) -> Dialog:
    dialog = Dialog()
    for _ in range(r.choice((1, 2, 3))):
        dialog.say(tasks.json_object(r), thinking=False)
    return dialog


def schema(r: Rng) -> Written:
    """Draws an answer that the engine's mask forces into JSON, whatever the question is."""
    return forms.schema(r, lambda r: draw(r.getrandbits(60))[0])


def short_lists(r: Rng) -> Written:
    """Draws an answer like that of `schema`, but nearly all its lists have one item.

    A list can end in many ways but continue in one, so ending must become much more likely.
    """
    return forms.schema(r, lambda r: draw(r.getrandbits(60))[0], forms.FEW)


def texts(r: Rng) -> Dialog | Written:
    """Puts a part of a long text, as an agent sends it, in front of any other dialog.

    The model does not see what is beyond its attention window, so a few hundred tokens stand for a hundred thousand.
    """
    text = filler.passages(r, r.randint(60, 500))
    kind = r.random()
    if kind < 0.15:
        question = text if kind < 0.05 else f"{text}{r.choice(GAPS)}{ask_unknown(r).user}"
        return Dialog([{"role": "user", "content": question}, {"role": "assistant", "content": SORRY}])
    drawn = schema(r) if kind < 0.25 else draw(r.getrandbits(60))[0]
    messages = (drawn.dialog if isinstance(drawn, Written) else drawn).messages
    if kind < 0.6:
        first = next(m for m in messages if m["role"] == "user")
        first["content"] = text + r.choice(GAPS) + first["content"]
    elif messages[0]["role"] == "system":
        messages[0]["content"] = f"{text}\n{messages[0]['content']}"
    else:
        messages.insert(0, {"role": "system", "content": text})
    return drawn


ALL: tuple[Callable[[Rng], Dialog | Written], ...] = (texts, lists, tools, errands, json, schema, short_lists)
LESSONS = {draw.__name__: draw for draw in ALL}


def lesson(name: str, seed: int) -> Dialog | Written:
    """Draws a dialog of one lesson. It never contains a question of the evaluation."""
    r = random.Random(seed)
    while True:
        drawn = LESSONS[name](r)
        messages = (drawn.dialog if isinstance(drawn, Written) else drawn).messages
        if messages and not any(m["role"] == "user" and held_out(m["content"]) for m in messages):
            return drawn
