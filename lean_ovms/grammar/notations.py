"""The notations other than JSON in which model families write arguments: Python's literals, and Gemma's notation."""

from __future__ import annotations

import json
import re
from typing import Any

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ValueNotation:
    """The notation of values in Python, and the base class of other notations."""

    quote: str | None = None
    """The text around strings; None if they are written as in JSON."""

    @classmethod
    def key(cls, name: str) -> str:
        """Returns the name of a member in this notation."""
        return json.dumps(name, ensure_ascii=False)

    @classmethod
    def written(cls, value: Any) -> str:
        """Returns a value in this notation."""
        if isinstance(value, dict):
            return "{" + ", ".join(f"{cls.key(key)}: {cls.written(one)}" for key, one in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(map(cls.written, value)) + "]"
        if value is None or isinstance(value, bool):
            return str(value)
        return json.dumps(value, ensure_ascii=False)


class Gemma(ValueNotation):
    """Gemma's notation: strings between <|"|> without escapes, bare keys, no blanks."""

    quote = '<|"|>'

    @classmethod
    def key(cls, name: str) -> str:
        """Returns the name of a member in this notation."""
        return name if _IDENTIFIER.fullmatch(name) else f"{cls.quote}{name}{cls.quote}"

    @classmethod
    def written(cls, value: Any) -> str:
        """Returns a value in this notation."""
        if isinstance(value, dict):
            return "{" + ",".join(f"{cls.key(key)}:{cls.written(one)}" for key, one in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(cls.written, value)) + "]"
        return f"{cls.quote}{value}{cls.quote}" if isinstance(value, str) else json.dumps(value)


class FunctionGemma(Gemma):
    """Gemma's notation with strings between <escape>."""

    quote = "<escape>"


STYLES: dict[str, type[ValueNotation]] = {
    "python_arguments": ValueNotation,
    "gemma": Gemma,
    "functiongemma": FunctionGemma,
}
"""The notations by the value of `style` (formats.py)."""


def quote(style: object) -> str | None:
    """Returns the text around strings in the notation of a style; None if it has no special one."""
    values = STYLES.get(style) if isinstance(style, str) else None
    return None if values is None else values.quote
