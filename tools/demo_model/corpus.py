"""Draws dialogs on all topics, and turns them into token ids with a weight for each.

A dialog depends only on its seed, and nothing is stored.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import random
import re
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from tools.demo_model import drills, languages, meeting, smalltalk, tasks, tool_dialogs, tool_requests, words
from tools.demo_model.dialog import Dialog, Exchange
from tools.demo_model.facts import ask_capital, ask_colour, ask_unknown
from tools.demo_model.forms import Written
from tools.demo_model.heldout import held_out
from tools.demo_model.server_facts import ask_server
from tools.demo_model.words import NAMES, Rng, each, proper

TEMPLATE_FILE = Path(__file__).with_name("chat_template.jinja")
PROMPT_WEIGHT = 0.1
# topic -> share of the dialogs
MIX = {"tool": 0.26, "parallel": 0.11, "unneeded": 0.08, "chat": 0.25}
MIX |= {"drill": 0.07, "memory": 0.07, "persona": 0.08, "foreign": 0.08}
# exchange -> weight among the exchanges of a chat
CHAT: tuple[tuple[Any, float], ...] = (
    (smalltalk.greet, 5), (smalltalk.small_talk, 6), (smalltalk.introduce, 6), (ask_server, 10),
    (tasks.repeat, 5), (drills.spell, 8), (drills.count, 5), (drills.add, 8), (tasks.json_object, 6),
    (ask_capital, 4), (ask_colour, 4), (ask_unknown, 5), (tool_dialogs.refuse, 1),
)  # fmt: skip


def lexicon() -> list[str]:
    """Returns the words of all sentences of the generator, each once, in a fixed order."""
    names = "dialog drills facts languages meeting server_facts smalltalk tasks tool_dialogs tool_families"
    names += " tool_requests words"
    found: set[str] = set()

    def collect(value: object) -> None:
        if isinstance(value, str):
            found.update(word for word in re.findall(r"[^\W\d_]+", value) if len(word) > 1)
        elif isinstance(value, dict):
            collect(list(value.items()))
        elif isinstance(value, (list, tuple)):
            for item in value:
                collect(item)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            collect([getattr(value, f.name) for f in dataclasses.fields(value)])

    for module in each(names):
        for name, value in vars(importlib.import_module(f"tools.demo_model.{module}")).items():
            if name.isupper():
                collect(value)
    return sorted(found)


words.LEXICON[:] = lexicon()


def template() -> jinja2.Template:
    """Returns the chat template, in the same jinja2 environment that transformers and the server use."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda x, indent=None: json.dumps(x, ensure_ascii=False, indent=indent)

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(TEMPLATE_FILE.read_text(encoding="utf-8"))


def ask_chat(r: Rng, named: bool = False) -> Exchange:
    """Draws an exchange of the topic chat.

    Args:
        r: The source of randomness.
        named: Whether the system prompt gave the model a name. Then no exchange is drawn in which it says its own.
    """
    asks, weights = zip(*CHAT, strict=True)
    ask = r.choices(asks, weights)[0]
    while named and ask in (smalltalk.small_talk, smalltalk.introduce):
        ask = r.choices(asks, weights)[0]
    exchange: Exchange = ask(r)
    return exchange


def system(r: Rng, share: float = 0.2) -> list[dict[str, Any]]:
    return [{"role": "system", "content": smalltalk.plain_system(r)}] if r.random() < share else []


def chat(r: Rng, thinking: bool) -> Dialog:
    dialog = Dialog(system(r))
    for _ in range(r.choice((1, 1, 2, 3)) if r.random() < 0.97 else r.randint(5, 10)):
        dialog.say(ask_chat(r), thinking)
    return dialog


def drill(r: Rng, thinking: bool) -> Dialog:
    """Draws a dialog of several exercises in spelling, sums and counting."""
    dialog = Dialog(system(r, 0.1))
    for _ in range(r.choice((1, 2, 3, 4))):
        dialog.say(r.choices((drills.spell, drills.add, drills.count), (4, 4, 1))[0](r), thinking)
    return dialog


def memory(r: Rng, thinking: bool) -> Dialog:
    """Draws a dialog in which the user tells a fact and asks for it later, sometimes after something else."""
    dialog = Dialog(system(r))
    if r.random() < 0.2:
        dialog.say(smalltalk.greet(r), thinking)
    if r.random() < 0.3:  # two facts; either may be asked for
        rows = r.sample(range(5), 2)
        (first, ask_first), (second, ask_second) = (smalltalk.tell_and_ask(r, row) for row in rows)
        dialog.say(first, thinking)
        dialog.say(second, thinking)
        for ask in r.choice(((ask_first,), (ask_second,), (ask_first, ask_second), (ask_second, ask_first))):
            dialog.say(ask, thinking)
        return dialog
    tell, ask = smalltalk.tell_and_ask(r)
    dialog.say(tell, thinking)
    if r.random() < 0.45:
        dialog.say(ask_chat(r), thinking)
    dialog.say(ask, thinking)
    return dialog


def persona(r: Rng, thinking: bool) -> Dialog:
    name = proper(r, NAMES)
    dialog = Dialog([{"role": "system", "content": meeting.naming(r, name)}])
    language = r.choice(("en", "en", "en", "en", "de", "es"))
    if r.random() < 0.1:
        dialog.tools = tool_dialogs.others(r, [tool_requests.ask_tool(r).tool])
    if r.random() < 0.35:
        dialog.say(smalltalk.greet(r) if language == "en" else languages.talk(r, language, named=True), thinking)
    dialog.say(smalltalk.own_name(r, name) if language == "en" else languages.own_name(r, name, language), thinking)
    if r.random() < 0.3:
        dialog.say(ask_chat(r, named=True), thinking)
        if r.random() < 0.5 and language == "en":
            dialog.say(smalltalk.own_name(r, name), thinking)
    return dialog


def foreign(r: Rng, thinking: bool) -> Dialog:
    language = r.choice(("de", "es"))
    dialog = Dialog(system(r))
    if r.random() < 0.35:
        tell, ask = languages.tell_and_ask(r, language)
        dialog.say(tell, thinking)
        if r.random() < 0.3:
            dialog.say(languages.talk(r, language), thinking)
        dialog.say(ask, thinking)
        return dialog
    for _ in range(r.choice((1, 2, 2))):
        dialog.say(languages.talk(r, language), thinking)
    return dialog


TOPICS: dict[str, Any] = {each.__name__: each for each in (chat, drill, memory, persona, foreign)}
TOPICS |= {"tool": tool_dialogs.single, "parallel": tool_dialogs.parallel, "unneeded": tool_dialogs.unneeded}


def draw(seed: int) -> tuple[Dialog, bool]:
    """Draws a dialog, and whether it has reasoning. It never contains a question of the evaluation."""
    r = random.Random(seed)
    topic = r.choices(list(MIX), list(MIX.values()))[0]
    thinking = r.random() < 0.2
    dialog = TOPICS[topic](r, thinking)
    while any(m["role"] == "user" and held_out(m["content"]) for m in dialog.messages):
        dialog = TOPICS[topic](r, thinking)
    return dialog, thinking


class Renderer:
    """Turns dialogs into token ids with weights."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._template = template()
        self._tokenizer = tokenizer
        ids = [tokenizer.token_to_id(token) for token in ("<|im_start|>", "<|im_end|>", "<think>", "assistant")]
        self._start, self._end, self._think, self._assistant = ids

    def text(self, dialog: Dialog) -> str:
        return self._template.render(messages=dialog.messages, tools=dialog.tools or None, add_generation_prompt=False)

    def examples(self, dialogs: list[Dialog]) -> list[tuple[list[int], list[float]]]:
        encodings = self._tokenizer.encode_batch([self.text(d) for d in dialogs], add_special_tokens=False)
        return [(e.ids, self._weights(e.ids)) for e in encodings]

    def written(self, written: Written) -> tuple[list[int], list[float]]:
        """Returns the ids and weights of a dialog whose answer is in parts; parts may be tokenized letter by letter."""
        dialog = written.dialog
        prompt = self._template.render(
            messages=dialog.messages, tools=dialog.tools or None, add_generation_prompt=True, enable_thinking=False
        )
        ids = self.ids(prompt)
        weights = self._weights(ids)
        for text, weight, split in (*written.parts, ("<|im_end|>", 1.0, False)):
            pieces = [i for letter in text for i in self.ids(letter)] if split else self.ids(text)
            ids += pieces
            weights += [weight] * len(pieces)
        return ids, weights

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _weights(self, ids: list[int]) -> list[float]:
        """Returns the weights: 1 from the first token of an answer to its end of turn, PROMPT_WEIGHT elsewhere.

        The tokens that frame a turn weigh nothing, because the template writes them. Neither do `<think>` and the
        newline after it, because the prompt opens the block. A model trained to write it would also do so when not
        asked to think.
        """
        weights = [PROMPT_WEIGHT] * len(ids)
        answering = False
        i = 0
        while i < len(ids):
            if ids[i] == self._start:
                answering = i + 1 < len(ids) and ids[i + 1] == self._assistant
                framed = 5 if answering and i + 3 < len(ids) and ids[i + 3] == self._think else 3
                weights[i : i + framed] = [0.0] * len(weights[i : i + framed])
                i += framed
                continue
            if answering:
                weights[i] = 1.0
            if ids[i] == self._end:
                answering = False
            i += 1
        return weights
