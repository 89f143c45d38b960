"""Dialogs with tools: single and parallel calls, results put into words, several rounds, and tools that do not fit."""

from __future__ import annotations

import json
import string
from typing import Any

from tools.demo_model.data import data_of
from tools.demo_model.dialog import Dialog, Exchange, ask_to, capital, vary
from tools.demo_model.drills import add, count, spell
from tools.demo_model.facts import ask_capital, ask_colour, ask_unknown
from tools.demo_model.meeting import naming
from tools.demo_model.smalltalk import greet, introduce, plain_system, small_talk
from tools.demo_model.tasks import repeat
from tools.demo_model.tool_families import FAMILIES
from tools.demo_model.tool_requests import Asked, ask_tool, natural
from tools.demo_model.words import NAMES, NOUNS, PARAMS, Rng, decimal, invented, number, proper, value

CONDITIONS, ERRANDS, ERRAND_ENDS = data_of("tool_dialogs").values()

NO_TOOL = "Sorry, I have no tool for that."


def others(r: Rng, taken: list[dict[str, Any]], most: int = 2) -> list[dict[str, Any]]:
    """Returns the tools of a dialog in random order, together with up to `most` that it does not need."""
    tools = list({tool["function"]["name"]: tool for tool in taken}.values())
    if most and r.random() < 0.1:
        most = r.choice((3, 4, 5))
    for _ in range(most if most > 2 else r.choice((0, 0, 1, 1, 2, 2)) if most else 0):
        extra = ask_tool(r).tool
        if extra["function"]["name"] not in {tool["function"]["name"] for tool in tools} and len(tools) <= most:
            tools.append(extra)
    r.shuffle(tools)
    return tools


def calling(calls: list[dict[str, Any]], thinking: bool) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": call} for call in calls],
    }
    if thinking:
        message["reasoning_content"] = "I need a tool: " + ", ".join(call["name"] for call in calls) + "."
    return message


def result(r: Rng) -> tuple[str, str]:
    """Returns the result of a tool, and the same in words."""
    kind = r.random()
    if kind < 0.65:
        data: dict[str, Any] = {}
        for _ in range(r.choice((1, 1, 2, 2, 3))):
            known = [*PARAMS, "temperature", "condition", "status", "result", "price", "time"]
            key = r.choice(known) if r.random() < 0.8 else invented(r)
            draw = r.choice((number, decimal, value, lambda r: r.choice(CONDITIONS), lambda r: r.random() < 0.5))
            data[key] = draw(r)
        spoken_data = {key: ("yes" if v else "no") if isinstance(v, bool) else v for key, v in data.items()}
        return json.dumps(data, ensure_ascii=False), " ".join(f"The {key} is {v}." for key, v in spoken_data.items())
    if kind < 0.72:
        reason = value(r)
        return json.dumps({"error": reason}, ensure_ascii=False), f"Sorry, the tool failed: {reason}"
    plain = r.choice(
        (value, value, lambda r: f"{r.choice(CONDITIONS)}, {number(r)} degrees", lambda r: str(number(r)))
    )(r)
    return plain, f"The result is: {plain}"


def add_round(r: Rng, dialog: Dialog, asked: list[Asked], sentence: str, thinking: bool, answered: bool) -> None:
    dialog.messages.append({"role": "user", "content": sentence})
    dialog.messages.append(calling([a.call for a in asked], thinking))
    if not answered:
        return
    pairs = [result(r) for _ in asked]
    dialog.messages += [{"role": "tool", "content": content} for content, _ in pairs]
    answer: dict[str, Any] = {"role": "assistant", "content": " ".join(words for _, words in pairs)}
    if thinking:
        answer["reasoning_content"] = "The tool has answered. I tell the user."
    dialog.messages.append(answer)


def add_rounds(r: Rng, dialog: Dialog, rounds: list[Asked], thinking: bool, last: float) -> None:
    """Adds a round for each call; that of the last one has an answer with a probability of `last`."""
    declared = [tool["function"] for tool in dialog.tools]
    for i, asked in enumerate(rounds):
        if asked.tool["function"] in declared:  # of two tools with the same name, only the last is declared
            sentence = vary(r, asked.sentence, keep_case=True)
            answered = i < len(rounds) - 1 or (bool(last) and r.random() < last)
            add_round(r, dialog, [asked], sentence, thinking, answered)


def start(r: Rng) -> Dialog:
    kind = r.random()
    if kind < 0.05:
        return Dialog([{"role": "system", "content": naming(r, proper(r, NAMES))}])
    return Dialog([{"role": "system", "content": plain_system(r)}] if kind < 0.22 else [])


def errand(r: Rng) -> str:
    """Returns an order that no program can carry out."""
    ends = r.choice(ERRAND_ENDS).format(x=invented(r).capitalize(), m=r.choice(NOUNS), i=number(r))
    which = r.choice(("the", "my", "a", "the", "our", "this", "some"))
    text = f"{r.choice(ERRANDS)} {which} {r.choice(NOUNS) if r.random() < 0.7 else invented(r)}{ends}"
    return ask_to(r, text) if r.random() < 0.4 else capital(text) + "."


def refuse(r: Rng) -> Exchange:
    """Asks for something that no program can do, without any tools."""
    return Exchange(vary(r, errand(r), keep_case=True), "Sorry, I cannot do that.", "I am a model. I cannot do that.")


def single(r: Rng, thinking: bool) -> Dialog:
    """Draws one or two rounds of one call each, with or without the answer after the result."""
    dialog = start(r)
    rounds = [ask_tool(r) for _ in range(r.choice((1, 1, 1, 1, 2)))]
    dialog.tools = others(r, [a.tool for a in rounds])
    if r.random() < 0.1:
        dialog.say(greet(r), thinking)
    add_rounds(r, dialog, rounds, thinking, last=0.4)
    if dialog.messages and dialog.messages[-1].get("content") and r.random() < 0.3:
        dialog.say((small_talk if r.random() < 0.6 else greet)(r), thinking)
    return dialog


def crowded(r: Rng, thinking: bool) -> Dialog:
    """Draws several rounds with many tools, as practice in finding the right one."""
    dialog = start(r)
    rounds = [ask_tool(r) for _ in range(r.choice((1, 2, 2, 3)))]
    dialog.tools = others(r, [a.tool for a in rounds], most=r.choice((3, 3, 4, 5)))
    add_rounds(r, dialog, rounds, thinking, last=0.0)
    return dialog


def parallel(r: Rng, thinking: bool) -> Dialog:
    """Draws two calls, sometimes three, that one sentence asks for."""
    dialog = start(r)
    if r.random() < 0.55:  # the same tool twice
        family = r.choice(FAMILIES[:2] + FAMILIES)
        simple = [p for p in family.phrasings if p.count("{") == 1 or r.random() < 0.3]
        phrasing = r.choice(simple or family.phrasings[:1])
        first = natural(r, family, phrasing)
        used = {field for _, field, _, _ in string.Formatter().parse(phrasing) if field}
        names = dict(zip([key for key in family.slots if key in used], first.call["arguments"], strict=True))
        asked = [first]
        for _ in range(r.choice((1, 1, 1, 1, 2))):
            drawn = {key: family.slots[key].draw(r) for key in names}
            call = {"name": first.call["name"], "arguments": {names[k]: v for k, v in drawn.items()}}
            asked.append(Asked(first.tool, phrasing.format(**drawn), call))
        if len(names) == 1 and r.random() < 0.6:
            key = next(iter(names))
            drawn_values = [str(next(iter(a.call["arguments"].values()))) for a in asked]
            again = " and in " if " in {" in phrasing else " and "
            joined = r.choice((" and ", " and ", again, " and also ", " as well as ", ", and ")).join(drawn_values)
            sentence = phrasing.format(**{key: ("both " if r.random() < 0.1 else "") + joined})
        else:
            sentence = join_sentences(r, asked)
    else:
        asked = [ask_tool(r) for _ in range(2)]
        if asked[0].call["name"] == asked[1].call["name"]:
            return parallel(r, thinking)
        sentence = join_sentences(r, asked)
    dialog.tools = others(r, [a.tool for a in asked], most=2 if r.random() < 0.3 else 0)
    add_round(r, dialog, asked, vary(r, sentence, keep_case=True), thinking, answered=r.random() < 0.3)
    return dialog


def join_sentences(r: Rng, asked: list[Asked]) -> str:
    parts = [a.sentence for a in asked]
    if r.random() < 0.4 or not all(p.endswith((".", "?")) for p in parts):
        return " ".join(p if p[-1] in ".?!" else p + "." for p in parts)
    glue = r.choice((" And ", " Also, ", " Then ", " and ", " and ", " and then ", ", then ", " After that: "))
    lowered = [p[0].lower() + p[1:] if glue[1].islower() or "," in glue else p for p in parts[1:]]
    head = parts[0][:-1] if glue[1].islower() or glue[0] == "," else parts[0]
    return head + glue + glue.join(p if i == len(lowered) - 1 else p[:-1] for i, p in enumerate(lowered))


def fits(wanted: Asked, tools: list[dict[str, Any]]) -> bool:
    """Returns whether one of the tools might be meant: a word of the names or the request is the same, or the family
    is."""
    names = [tool["function"]["name"] for tool in tools]
    have = {word for name in names for word in name.replace("_", " ").lower().split()}
    if have & set(wanted.call["name"].replace("_", " ").lower().split()):
        return True
    if any(word in wanted.sentence.lower() for word in have):
        return True
    family = next((f for f in FAMILIES if wanted.call["name"] in f.names), None)
    return family is not None and any(name in family.names for name in names)


def unneeded(r: Rng, thinking: bool) -> Dialog:
    """Draws a request that needs none of the tools, or one that is not there."""
    dialog = start(r)
    dialog.tools = others(r, [ask_tool(r).tool])
    if r.random() < 0.42:
        wanted = ask_tool(r)
        if not fits(wanted, dialog.tools):
            sentence = errand(r) if r.random() < 0.4 else wanted.sentence
            dialog.messages.append({"role": "user", "content": vary(r, sentence, keep_case=True)})
            dialog.messages.append({"role": "assistant", "content": NO_TOOL})
            if thinking:
                dialog.messages[-1]["reasoning_content"] = "None of my tools can do that."
            return dialog
    easy = greet, greet, introduce, small_talk, small_talk, ask_capital, ask_colour
    ask = r.choice((*easy, count, repeat, spell, add, ask_unknown, ask_unknown))
    if ask is add and any(p in str(dialog.tools) for p in ("add", "sum", "calc", "plus", "comput", "evaluate")):
        ask = greet
    exchange = ask(r)
    dialog.say(exchange, thinking)
    return dialog
