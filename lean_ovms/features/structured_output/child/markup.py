"""Finds the markup of a structural tag: the texts in it that a model may write with special tokens.

A client's format (a pattern, a schema, a grammar) contains no markup, since an answer does not show special tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ....grammar import formats
from ....grammar.notations import quote

_LITERALS = ("value", "begin", "end", "separator", "triggers")


@dataclass(frozen=True, slots=True)
class Markup:
    """The literal texts of a structural tag."""

    literals: frozenset[str]
    """All literal texts of the format."""
    value_ends: frozenset[str]
    """The literal texts that end a value of free text."""


def markup(tag: Any) -> Markup:
    """Returns the markup of a structural tag, which may be invalid."""
    literals: set[str] = set()
    ends: set[str] = set()
    todo = [tag]
    while todo:
        one = todo.pop()
        if isinstance(one, list):
            todo += one
        elif isinstance(one, dict):
            todo += [part for key, part in one.items() if key != "json_schema"]
            literals.update(text for key in _LITERALS for text in _texts(one.get(key)))
            ends.update(_texts(one.get("end")) if _is_value(one.get("content")) else ())
            ends.update(_texts(quote(one.get("style"))))
    return Markup(frozenset(literals | ends), frozenset(ends))


def _is_value(form: Any) -> bool:
    return isinstance(form, dict) and form.items() >= formats.ANY_VALUE.items()


def _texts(value: Any) -> Iterator[str]:
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, str) and one:
            yield one
