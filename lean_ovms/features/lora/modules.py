"""Parses --lora_modules, the list of adapters with their names and paths.

It is used when options are checked, so it does not read files, which `files` does.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from ...errors import StartError

MOST_NAME, MOST_PATH = 256, 4096
"""Characters of an adapter's name, and of its path."""
OPTION = "--lora_modules: "
"""The beginning of the errors of `invalid`, which name the option."""


@dataclass(frozen=True, slots=True)
class LoraModule:
    """An adapter with its name and its path. Raises StartError for a name or a path that is not allowed."""

    name: str
    """The adapter's name, which requests use as the name of a model."""
    path: str
    """The path of the adapter's directory or file."""
    alpha: float | None = None
    """The factor of its weights; None for that of its files, or else 1."""
    scale: float = 1.0
    """A further factor, by which llama.cpp scales an adapter."""

    def __post_init__(self) -> None:
        if problem := wrong_name(self.name) or wrong_path(self.path):
            raise invalid(problem)


def wrong_name(name: str) -> str:
    """Returns why an adapter cannot have a name, or "" if it can. Names are used in URLs, logs, headers and metrics."""
    if not 0 < len(name) <= MOST_NAME:
        return f"the name of an adapter must have 1 to {MOST_NAME} characters, not {len(name)}"
    if not name.isprintable() or name != name.strip():
        return f"the name of an adapter must not contain control characters, or blanks at its ends: {name!r}"
    if not {"", ".", ".."}.isdisjoint(name.split("/")):
        return f"the name of an adapter must not have an empty part, a . or a .. between slashes: {name!r}"
    return ""


def wrong_path(path: str) -> str:
    """Returns why an adapter cannot have a path, or "" if it can."""
    if len(path) > MOST_PATH or not path.isprintable():
        return f"a path must have at most {MOST_PATH} characters, and no control characters"
    return ""


def parse(text: str) -> list[LoraModule]:
    """Parses name=path[,alpha], separated by blanks, or vLLM's JSON objects. Raises StartError."""
    text = text.strip()
    modules = _parse_json(text) if text.startswith(("{", "[")) else [_parse_pair(part) for part in text.split()]
    names = [module.name for module in modules]
    for name in names:
        if names.count(name) > 1:
            raise invalid(f"the name {name!r} is used twice")
    return modules


def dumps(module: LoraModule) -> str:
    """Writes a module as a text that `parse` reads."""
    return json.dumps({"name": module.name, "path": module.path, "alpha": module.alpha, "scale": module.scale})


def invalid(problem: str) -> StartError:
    """Returns the error for an adapter that cannot be served."""
    return StartError(f"{OPTION}{problem}")


def _parse_pair(part: str) -> LoraModule:
    name, equals, rest = part.partition("=")
    if not (name and equals and rest):
        raise invalid(f"{part!r} is not of the form name=path[,alpha]")
    path, comma, number = rest.rpartition(",")
    if comma and (alpha := _number(number)) is not None:
        return LoraModule(name, path, alpha)
    return LoraModule(name, rest)


def _parse_json(text: str) -> list[LoraModule]:
    decoder, found = json.JSONDecoder(), list[Any]()
    try:
        while text:
            value, end = decoder.raw_decode(text)
            found += value if isinstance(value, list) else [value]
            text = text[end:].strip()
    except (ValueError, RecursionError):
        raise invalid("not valid JSON") from None
    return [_from_object(value) for value in found]


def _from_object(value: Any) -> LoraModule:
    """Reads a module from an object {"name": str, "path": str, "alpha": number?}. Raises StartError."""
    fields = value if isinstance(value, dict) else {}
    name, path, alpha = fields.get("name"), fields.get("path"), fields.get("alpha")
    number, scale = None if alpha is None else _number(alpha), _number(fields.get("scale", 1.0))
    if not (isinstance(name, str) and name and isinstance(path, str) and path) or (
        scale is None or (alpha is not None and number is None)
    ):
        raise invalid(
            "each adapter must be an object with the strings name and path, and optionally the numbers alpha and scale"
        )
    return LoraModule(str(name), str(path), number, scale)


def _number(value: Any) -> float | None:
    try:
        number = float("true" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
