"""Questions of POST …/decisions: their prompts, and their answers from the probabilities of letters.

Each question is a multiple-choice question whose options have the letters A, B, C, ….
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import orjson

from ...api import schemas
from ...errors import BadRequest
from ...types import Json
from ..responses.items import read_items, to_parts
from .label_probabilities import LabelChances

LETTERS = string.ascii_uppercase
REPLY = "Answer with the letter of one option only."
MAX_TEXT = 1 << 20
"""Characters of an instruction, a value or a description."""

_PARTS = schemas.array(schemas.object_of({"type": schemas.const("input_text"), "text": schemas.STRING}), 1)
_HEAD: Json = {"instructions": schemas.any_of(schemas.SOME_TEXT, _PARTS)}


def _listed(name: str, kind: Json) -> Json:
    """Returns the schema of a question's options."""
    options = schemas.array(schemas.object_of({name: kind}, description=schemas.STRING), 2)
    return options | {"maxItems": len(LETTERS)}


QUESTION = schemas.any_of(
    schemas.object_of({"type": schemas.const("predicate"), **_HEAD}, name=schemas.STRING),
    schemas.object_of(
        {
            "type": schemas.const("choice"),
            **_HEAD,
            "choices": _listed("value", schemas.any_of(schemas.STRING, {"type": "boolean"})),
        },
        name=schemas.STRING,
    ),
    schemas.object_of(
        {"type": schemas.const("score"), **_HEAD, "levels": _listed("label", schemas.STRING)}, name=schemas.STRING
    ),
)


@dataclass(frozen=True, slots=True)
class Question:
    """A question about the input."""

    kind: str
    """"predicate", "choice" or "score"."""
    name: str | None
    """The name of its answer; None if it has no name."""
    parts: list[Json]
    """The content parts of its instructions."""
    values: list[Any]
    """The value of each option in an answer."""
    options: list[str]
    """The text of each option for the model."""

    @property
    def labels(self) -> Sequence[str]:
        """The letter of each option."""
        return LETTERS[: len(self.options)]

    def prompt(self, parts: list[Json]) -> str | list[Json]:
        """Returns a message's content: the input, first so that all questions share a prefix, and the question."""
        options = [f"{letter}: {option}" for letter, option in zip(self.labels, self.options, strict=True)]
        end = "\n".join(["", *options, REPLY])
        return as_content([*parts, _text("\n\nQuestion: "), *self.parts, _text(end)])

    def answer(self, letters: LabelChances) -> Json:
        """Returns the answer that the probabilities of the letters give."""
        shares = letters.shares
        found: Json = {"type": self.kind, "name": self.name}
        if self.kind == "predicate":
            return found | {"probability": shares[0]}
        if self.kind == "choice":
            found |= {"choice": self.values[letters.best]}
            listed = [{"value": value, "probability": p} for value, p in zip(self.values, shares, strict=True)]
        else:
            found |= {"score": letters.mean}
            labels = enumerate(zip(self.values, shares, strict=True))
            listed = [{"value": place, "label": label, "probability": p} for place, (label, p) in labels]
        return found | {"probabilities": listed, "confidence": letters.chances[letters.best]}


def read_input(value: Any) -> list[Json]:
    """Returns the input as the parts of a chat message. Raises BadRequest."""
    if isinstance(value, str) and value:
        return [_text(value)]
    if not isinstance(value, list) or not value:
        raise BadRequest("input must be a non-empty string or a non-empty array of items", param="input")
    plain = [
        {**item, "content": _without_json(item["content"], f"input[{place}].content")}
        if isinstance(item, dict) and isinstance(item.get("content"), list)
        else item
        for place, item in enumerate(value)
    ]
    items = read_items(plain, "input")
    if len(items) == 1 and items[0].get("role") == "user":
        return to_parts(items[0]["content"])
    return joined([part for item in items for part in _said(item)])


def read_questions(value: list[Any], most: int) -> list[Question]:
    """Reads the questions of a request. Raises BadRequest."""
    if not 1 <= len(value) <= most:
        raise BadRequest(f"questions must have 1 to {most} entries", param="questions")
    return [_question(one, f"questions[{place}]") for place, one in enumerate(value)]


def _question(given: Any, param: str) -> Question:
    if not isinstance(given, dict):
        raise BadRequest(f"{param} is not an object", param=param)
    kind, name = given.get("type"), given.get("name")
    if name is not None and not isinstance(name, str):
        raise BadRequest(f"{param}.name is not a string", param=f"{param}.name")
    parts = _instructions(given.get("instructions"), f"{param}.instructions")
    if kind == "predicate":
        return Question(kind, name, parts, [True, False], ["true", "false"])
    if kind == "choice":
        values = _options(given.get("choices"), "value", f"{param}.choices")
        shown = [orjson.dumps(value).decode() for value, _ in values]
    elif kind == "score":
        values = _options(given.get("levels"), "label", f"{param}.levels")
        shown = [str(value) for value, _ in values]
    else:
        raise BadRequest(f"{param}.type must be one of: predicate, choice, score", param=f"{param}.type")
    options = [f"{text} - {more}" if more else text for text, (_, more) in zip(shown, values, strict=True)]
    return Question(kind, name, parts, [value for value, _ in values], options)


def _instructions(value: Any, param: str) -> list[Json]:
    if isinstance(value, str) and value:
        return [_text(_short(value, param))]
    if not isinstance(value, list) or not value:
        raise BadRequest(f"{param} must be a non-empty string or a non-empty array of parts", param=param)
    [item] = read_items([{"role": "user", "content": _without_json(value, param)}], param)
    return to_parts(item["content"])


def _options(value: Any, name: str, param: str) -> list[tuple[Any, str]]:
    """Reads options, and returns the value and the description of each. Raises BadRequest."""
    if not isinstance(value, list) or not 2 <= len(value) <= len(LETTERS):
        raise BadRequest(f"{param} must be an array of 2 to {len(LETTERS)} objects", param=param)
    found: list[tuple[Any, str]] = []
    for place, one in enumerate(value):
        given = one if isinstance(one, dict) else {}
        label, more = given.get(name), given.get("description") or ""
        if not isinstance(label, str | bool) or (isinstance(label, bool) and name != "value"):
            raise BadRequest(
                f"{param}[{place}].{name} is missing or has a wrong type", param=f"{param}[{place}].{name}"
            )
        if not isinstance(more, str):
            raise BadRequest(f"{param}[{place}].description is not a string", param=f"{param}[{place}].description")
        found.append((label if isinstance(label, bool) else _short(label, param), _short(more, param)))
    if len({(type(label), label) for label, _ in found}) < len(found):
        raise BadRequest(f"{param}: two options must not have the same {name}", param=param)
    return found


def _without_json(parts: list[Any], param: str) -> list[Any]:
    """Replaces JSON parts by text parts."""
    found = []
    for place, part in enumerate(parts):
        if isinstance(part, dict) and part.get("type") == "input_json":
            if not isinstance(part.get("data"), dict | list):
                raise BadRequest(f"{param}[{place}].data is not an object or an array", param=f"{param}[{place}].data")
            part = {"type": "input_text", "text": orjson.dumps(part["data"]).decode()}
        found.append(part)
    return found


def _said(item: Json) -> list[Json]:
    """Converts an item of a conversation to text parts, so that the model judges it instead of continuing it."""
    kind = item["type"]
    if kind in ("function_call", "custom_tool_call"):
        return [_text(f"call of {item['name']}:\n{item.get('arguments', item.get('input'))}\n\n")]
    if kind in ("function_call_output", "custom_tool_call_output"):
        return [_text("output of the call:\n"), *to_parts(item["output"]), _text("\n\n")]
    if kind == "message":
        return [_text(f"{item['role']}:\n"), *to_parts(item["content"]), _text("\n\n")]
    raise BadRequest(f"input item type {kind!r} is not supported for decisions", param="input")


def as_content(parts: list[Json]) -> str | list[Json]:
    """Returns the content of a message with these parts: a text if all of them are texts."""
    content = joined(parts)
    return content[0]["text"] if len(content) == 1 else content


def joined(parts: list[Json]) -> list[Json]:
    """Joins adjacent text parts."""
    found: list[Json] = []
    for are_texts, run in groupby(parts, key=lambda part: part["type"] == "text"):
        neighbours = list(run)
        found += [_text("".join(part["text"] for part in neighbours))] if are_texts else neighbours
    return found


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _short(text: str, param: str) -> str:
    if len(text) > MAX_TEXT:
        raise BadRequest(f"{param} has more than {MAX_TEXT} characters", param=param, code="string_above_max_length")
    return text
