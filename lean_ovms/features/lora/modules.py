"""Parses --lora_modules, the list of adapters with their names and paths.

It is used when options are checked, so it does not read files, which `files` does.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
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
    applied: bool = False
    """Whether requests that name the model itself use it, as with llama-server's --lora."""
    load: int = 0
    """The number of the load for which the engine reads the files; 0 for none."""

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
    """Parses name=path[,alpha] and vLLM's JSON objects, separated by blanks. Raises StartError."""
    modules = list[LoraModule]()
    while text := text.strip():
        if text.startswith(("{", "[")):
            found, text = _parse_json(text)
            modules += found
        else:
            part, *rest = text.split(maxsplit=1)
            modules.append(_parse_pair(part))
            text = "".join(rest)
    names = [module.name for module in modules]
    for name in names:
        if names.count(name) > 1:
            raise invalid(f"the name {name!r} is used twice")
    return modules


def dumps(*modules: LoraModule) -> str:
    """Writes modules as a text that `parse` reads."""
    return " ".join(json.dumps(asdict(module)) for module in modules)


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


def _parse_json(text: str) -> tuple[list[LoraModule], str]:
    """Returns the modules of the JSON value with which a text begins, and the rest of the text. Raises StartError."""
    try:
        value, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        raise invalid("not valid JSON") from None
    return [_from_object(each) for each in (value if isinstance(value, list) else [value])], text[end:]


def _from_object(value: Any) -> LoraModule:
    """Reads a module from an object with the members of LoraModule, of which name and path are required. Raises
    StartError."""
    fields = value if isinstance(value, dict) else {}
    name, path, alpha = fields.get("name"), fields.get("path"), fields.get("alpha")
    number, scale = None if alpha is None else _number(alpha), _number(fields.get("scale", 1.0))
    applied, load = fields.get("applied", False), fields.get("load")
    named = isinstance(name, str) and name and isinstance(path, str) and path
    if not named or scale is None or (alpha is not None and number is None) or not isinstance(applied, bool):
        raise invalid(
            "each adapter must be an object with the strings name and path, and optionally the numbers alpha and scale "
            "and the boolean applied"
        )
    return LoraModule(str(name), str(path), number, scale, applied, load if isinstance(load, int) else 0)


def _number(value: Any) -> float | None:
    try:
        number = float("true" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
