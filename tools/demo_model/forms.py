"""Answers under a JSON schema that only the engine's mask knows: short values; strings, lists and numbers that end.

The prompt seldom describes the answer. Keys, brackets and the first token are forced by the mask and have low weights.
The model learns the values and the tokens that end them. A value is what the prompt says for its key, else a sample,
else the words of the key itself. The mask may split a key into other tokens than the tokenizer does, so some of the
keys are written letter by letter.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from tools.demo_model.data import data_of
from tools.demo_model.dialog import Dialog, capital, vary
from tools.demo_model.tool_dialogs import others, start
from tools.demo_model.tool_requests import ask_tool
from tools.demo_model.words import (
    ADJECTIVES,
    CITIES,
    NAMES,
    NOUNS,
    PARAMS,
    THINGS,
    Rng,
    camel,
    decimal,
    each,
    invented,
    number,
    phrase,
    proper,
    value,
    word,
)

SAMPLES, ROUGH, EXTRACT, FACTS, MENTIONS = data_of("forms").values()

SOME, FEW = (1, 1, 1, 1, 2, 2, 3), (1,) * 11 + (2,)
LEARNED, FRAME, SEEN, HINT, NEVER = 1.0, 0.3, 0.1, 0.02, 0.0
ENDINGS = each("name id count type list date url code size level state total price note text value info")


@dataclass(slots=True)
class Written:
    """A dialog, and its last answer in parts: text, weight, and whether the part is tokenized letter by letter."""

    dialog: Dialog
    parts: list[tuple[str, float, bool]] = field(default_factory=list)


class Pen:
    """Writes a value as json.dumps does. Adjacent punctuation is joined, so that it has the tokenizer's tokens."""

    def __init__(self, r: Rng, first: float) -> None:
        self.parts: list[tuple[str, float, bool]] = []
        self._r = r
        self._held, self._weight = "", first

    def mark(self, text: str, weight: float = SEEN) -> None:
        if self.parts:  # the beginning of the answer keeps its low weight, because the mask forces it
            self._weight = max(self._weight, weight)
        self._held += text

    def text(self, text: str, weight: float, split: bool = False) -> None:
        self.flush()
        if text:
            self.parts.append((text, weight, split))

    def flush(self) -> None:
        if self._held:
            self.parts.append((self._held, self._weight, self._r.random() < 0.25))
        self._held, self._weight = "", 0.0


def key_of(r: Rng) -> str:
    """Returns the name of a field: one to three words in snake case or camel case."""
    kind = r.random()
    if kind < 0.18:
        return r.choice(list(SAMPLES))
    if kind < 0.45:
        return r.choice(PARAMS)
    words = [r.choice(r.choice((PARAMS, THINGS, NOUNS, ADJECTIVES)))] if kind < 0.85 else [invented(r)]
    if r.random() < 0.6:
        words.append(r.choice(ENDINGS) if r.random() < 0.5 else r.choice(r.choice((PARAMS, THINGS, NOUNS))))
    if r.random() < 0.1:
        words.insert(0, r.choice(("is", "has", "the", "max", "min", "total", "new", "main")))
    return camel(words) if r.random() < 0.15 else "_".join(words)


def spoken(key: str) -> str:
    return "".join(f" {c.lower()}" if c.isupper() else c for c in key).replace("_", " ").strip()


class Form:
    """Writes one answer, and draws its structure on the way. Some values may be known from the prompt."""

    def __init__(self, r: Rng, known: dict[str, object], items: tuple[int, ...]) -> None:
        self._r, self._known, self._items, self.pen = r, known, items, Pen(r, HINT)
        self.schema: dict[str, object] = {}

    def whole(self) -> None:
        kind = self._r.random()
        if kind < 0.05:
            self._list("items", 0)
        else:
            self.schema = self.object(0)
        self.pen.flush()

    def object(self, depth: int) -> dict[str, object]:
        r, shown = self._r, {}
        keys = list(
            dict.fromkeys(
                [
                    *(self._known if not depth else ()),
                    *(key_of(r) for _ in range(r.choice((1, 1, 2, 2, 3, 3, 4, 5, 6) if not depth else (1, 2, 2, 3)))),
                ]
            )
        )
        if self._known and not depth:
            keys = keys[: max(len(self._known), r.choice((1, 2, 3, 4)))]
            r.shuffle(keys)
        for i, key in enumerate(keys):
            self.pen.mark(', "' if i else '{"')
            split = r.random() < 0.35
            self.pen.text(key, SEEN, split)
            self.pen.mark('": ', FRAME)  # one space, though the mask allows other white space
            shown[key] = self._value(key, depth, split)
        self.pen.mark("}")
        return {"type": "object", "properties": shown, "required": keys}

    def _value(self, key: str, depth: int, split: bool) -> dict[str, object]:
        r = self._r
        if key in self._known and not depth:
            return self._given(self._known[key])
        kind = r.random()
        if depth < 2 and kind < 0.12:
            return self.object(depth + 1)
        if depth < 2 and kind < 0.34:
            return self._list(key, depth)
        if kind < 0.52:
            self._number(r.random() < 0.35)
            return {"type": "number"}
        if kind < 0.59:
            self.pen.text(r.choice(("true", "false")), SEEN)
            return {"type": "boolean"}
        if kind < 0.63:
            self.pen.text("null", SEEN)
            return {"type": "null"}
        if kind < 0.68:
            options = [word(r) for _ in range(3)]
            self._string(r.choice(options), SEEN)
            return {"enum": options}
        self._free(key, split)
        return {"type": "string"}

    def _given(self, known: object) -> dict[str, object]:
        if isinstance(known, str):
            self._string(known, LEARNED)
            return {"type": "string"}
        if isinstance(known, list):
            for i, item in enumerate(known):
                self.pen.mark(", " if i else "[", LEARNED)
                self._string(item, LEARNED)
            self.pen.mark("]", LEARNED)
            return {"type": "array", "items": {"type": "string"}}
        self.pen.text(json.dumps(known), LEARNED)
        self.pen.mark("", LEARNED)
        return {"type": "number"}

    def _string(self, text: str, weight: float, split: bool = False) -> None:
        self.pen.mark('"')
        self.pen.text(text.replace('"', "").replace("\\", ""), weight, split)
        self.pen.mark('"', LEARNED if weight == LEARNED or self._r.random() < 0.5 else weight)

    def _free(self, key: str, split: bool) -> None:
        """Writes a string that the prompt does not give."""
        if key in SAMPLES and self._r.random() < 0.8:
            self._string(SAMPLES[key], LEARNED)
        elif self._r.random() < 0.25:  # the model learns only to end it, whatever it has begun to write
            self._ended(phrase(self._r, 1, 4))
        else:
            self._string(spoken(key), LEARNED, split)

    def _ended(self, text: str) -> None:
        """Writes a string of which only the end is learned."""
        self.pen.mark('"')
        self.pen.text(text, SEEN)
        self.pen.mark('"', LEARNED)

    def _number(self, fraction: bool) -> None:
        r = self._r
        if r.random() < 0.6:
            self.pen.text("1.5" if fraction else "1", LEARNED)
        else:
            digits = r.choice((1, 1, 2, 2, 2, 2, 3, 4))
            whole = r.randint(10 ** (digits - 1), 10**digits - 1)
            self.pen.text(f"{whole}.{r.randint(1, 9)}" if fraction else str(whole), SEEN)
        self.pen.mark("", LEARNED)

    def _list(self, key: str, depth: int) -> dict[str, object]:
        r = self._r
        inner = ("string", "string", "string", "number", "object", "object", "array")
        kind = r.choice(inner if depth < 2 else ("string", "string", "number"))
        items: dict[str, object] = {"type": kind}
        for i in range(r.choice(self._items)):
            self.pen.mark(", " if i else "[", LEARNED if i else SEEN)
            if kind == "object":
                items = self.object(depth + 1)
            elif kind == "array":
                items = self._list(key, depth + 1)
            elif kind == "number":
                self.pen.text(str(i + 1), LEARNED)
                self.pen.mark("", LEARNED)
            elif r.random() < 0.8:
                self._string(spoken(key), LEARNED)
            else:
                self._ended(phrase(r, 1, 3))
        self.pen.mark("]", LEARNED)
        return {"type": "array", "items": items}


def told(r: Rng) -> dict[str, object]:
    """Draws one to four values by key, which the prompt will give."""
    known: dict[str, object] = {}
    for _ in range(r.choice((1, 2, 2, 3, 4))):
        key, kind = key_of(r), r.random()
        if key in ("name", "first_name"):
            known[key] = proper(r, NAMES)
        elif key in ("city", "country"):
            known[key] = proper(r, CITIES)
        elif kind < 0.25:
            known[key] = number(r) if r.random() < 0.8 else decimal(r)
        elif kind < 0.35:
            known[key] = [word(r) for _ in range(r.choice((2, 2, 3)))]
        else:
            known[key] = (value if r.random() < 0.3 else word)(r)
    return known


def listed(r: Rng, known: dict[str, object]) -> str:
    facts = []
    for key, given in known.items():
        said = ", ".join(given[:-1]) + " and " + given[-1] if isinstance(given, list) else str(given)
        facts.append(r.choice(FACTS).format(k=key if r.random() < 0.5 else spoken(key), v=said))
    text = r.choice((", ", ". ", ", ", "; ")).join(facts)
    return text if len(facts) < 2 or r.random() < 0.5 else " and ".join((", ".join(facts[:-1]), facts[-1]))


def schema(r: Rng, chat: Callable[[Rng], Dialog], items: tuple[int, ...] = SOME) -> Written:
    """Draws an answer under a schema.

    Args:
        r: The source of randomness.
        chat: Draws a dialog whose last question may be answered under the schema.
        items: The possible numbers of items in a list, drawn evenly.
    """
    if r.random() < 0.15:
        return forced_call(r, chat)
    known = told(r) if r.random() < 0.45 else {}
    form = Form(r, known, items)
    form.whole()
    if known:
        dialog = start(r) if r.random() < 0.3 else Dialog()
        text = listed(r, known)
        dialog.messages.append({"role": "user", "content": r.choice(EXTRACT).format(capital(text))})
    elif r.random() < 0.5:
        dialog = start(r) if r.random() < 0.3 else Dialog()
        thing = r.choice((f"a {word(r)}", f"the {word(r)} {word(r)}", f"a {r.choice(THINGS)}", phrase(r, 1, 6)))
        dialog.messages.append({"role": "user", "content": vary(r, r.choice(ROUGH).format(thing))})
    else:
        dialog = asked(chat(r))
    if form.schema and r.random() < 0.2:
        mention(r, dialog, form.schema)
    return Written(dialog, form.pen.parts)


def asked(dialog: Dialog) -> Dialog:
    """Removes what follows a dialog's last question."""
    while dialog.messages and dialog.messages[-1]["role"] != "user":
        dialog.messages.pop()
    return dialog


def mention(r: Rng, dialog: Dialog, schema: dict[str, object]) -> None:
    keys = ", ".join(schema["required"])  # type: ignore[arg-type]
    text = r.choice(MENTIONS).format(s=json.dumps(schema), k=keys)
    last = dialog.messages[-1]
    if r.random() < 0.5:
        last["content"] = f"{last['content']}{r.choice((' ', chr(10)))}{text}"
    elif dialog.messages[0]["role"] == "system":
        dialog.messages[0]["content"] += " " + text
    else:
        dialog.messages.insert(0, {"role": "system", "content": text})


def forced_call(r: Rng, chat: Callable[[Rng], Dialog]) -> Written:
    """Draws a tool call that `tool_choice` forces, though the question does not ask for it."""
    dialog = asked(chat(r))
    tool = ask_tool(r).tool
    dialog.tools = others(r, [tool])
    form = Form(r, {}, SOME)
    name, slots = tool["function"]["name"], tool["function"]["parameters"]["properties"]
    parts: list[tuple[str, float, bool]] = [("<tool_call>\n", NEVER, False), ('{"name": "', NEVER, False)]
    parts += [(name, NEVER, False), ('", "arguments": ', NEVER, False)]
    pen = form.pen = Pen(r, NEVER)
    for i, (key, slot) in enumerate(slots.items()):
        pen.mark(', "' if i else '{"')
        pen.text(key, SEEN, r.random() < 0.2)
        pen.mark('": ')
        if "enum" in slot:
            form._string(str(r.choice(slot["enum"])), SEEN)
        elif slot["type"] in ("integer", "number"):
            form._number(False)
        elif slot["type"] == "boolean":
            pen.text("true", SEEN)
        else:
            form._free(key, False)
    pen.mark("}}" if slots else "{}}")
    pen.flush()
    return Written(dialog, [*parts, *pen.parts, ("\n</tool_call>", LEARNED, False)])
