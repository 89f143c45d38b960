"""The fields of a dataclass that are not at their defaults: what crosses the pipe to the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from itertools import compress
from operator import attrgetter, ne
from typing import Any


def changed_fields(kind: type) -> Callable[[Any], dict[str, Any]]:
    """Returns a function that has, of an instance of this dataclass, the values that differ from those of kind().

    By iterators that run in C: a tenth of a loop over forty fields, of which five differ in most requests.
    """
    names = tuple(field.name for field in fields(kind))
    values_of = attrgetter(*names)
    defaults = values_of(kind())

    def changed(instance: Any) -> dict[str, Any]:
        values = values_of(instance)
        return dict(compress(zip(names, values), map(ne, values, defaults)))  # noqa: B905 - as long by their making

    return changed
