"""JSON values as some model families write arguments: Python's literals, and Gemma's notation."""

from __future__ import annotations

import json
import re
from typing import Any

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ValueNotation:
    """A notation of values: that of Python."""

    quote: str | None = None
    """What is around strings, where they are not written as in JSON."""

    @classmethod
    def key(cls, name: str) -> str:
        """Returns the name of a member."""
        return json.dumps(name, ensure_ascii=False)

    @classmethod
    def written(cls, value: Any) -> str:
        """Returns a value."""
        if isinstance(value, dict):
            return "{" + ", ".join(f"{cls.key(key)}: {cls.written(one)}" for key, one in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(map(cls.written, value)) + "]"
        if value is None or isinstance(value, bool):
            return str(value)
        return json.dumps(value, ensure_ascii=False)


class Gemma(ValueNotation):
    """Gemma's notation: strings in <|"|> without escapes, bare keys, no blanks."""

    quote = '<|"|>'

    @classmethod
    def key(cls, name: str) -> str:
        """Returns the name of a member."""
        return name if _IDENTIFIER.fullmatch(name) else f"{cls.quote}{name}{cls.quote}"

    @classmethod
    def written(cls, value: Any) -> str:
        """Returns a value."""
        if isinstance(value, dict):
            return "{" + ",".join(f"{cls.key(key)}:{cls.written(one)}" for key, one in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(cls.written, value)) + "]"
        return f"{cls.quote}{value}{cls.quote}" if isinstance(value, str) else json.dumps(value)


class FunctionGemma(Gemma):
    """Gemma's notation with strings in <escape>."""

    quote = "<escape>"


STYLES: dict[str, type[ValueNotation]] = {
    "python_arguments": ValueNotation,
    "gemma": Gemma,
    "functiongemma": FunctionGemma,
}
"""The notations by the values of `style` in formats.py."""


def text(style: str, value: Any) -> str:
    """Returns a value in a notation, or in JSON; the arguments of a Python call are an object."""
    if style not in STYLES:
        return json.dumps(value, ensure_ascii=False)
    values = STYLES[style]
    if style == "python_arguments":
        return ", ".join(f"{name}={values.written(one)}" for name, one in value.items())
    return values.written(value)


def quote(style: object) -> str | None:
    """Returns the quote of strings in a notation that has its own; None for others."""
    values = STYLES.get(style) if isinstance(style, str) else None
    return None if values is None else values.quote
