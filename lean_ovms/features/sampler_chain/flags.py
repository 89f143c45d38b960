"""Translates llama.cpp's flags for the order of its samplers."""

from __future__ import annotations

import json

from ...api.fields import read_one
from ...errors import BadRequest
from .fields import FIELDS, SAMPLERS


def samplers(text: str) -> str:
    """Translates the names of samplers, separated by semicolons. Raises ValueError for an unknown one."""
    return _checked(text.split(";"), "names", ";".join(SAMPLERS))


def letters(text: str) -> str:
    """Translates the letters of samplers. Raises ValueError for an unknown one."""
    return _checked(text, "letters", "".join(SAMPLERS.values()))


def _checked(value: str | list[str], what: str, known: str) -> str:
    """Returns the default of a model as JSON.

    Args:
        value: The letters or the names.
        what: What the value has, for an error.
        known: A value with all samplers.

    Raises:
        ValueError: A sampler is unknown.
    """
    try:
        names = read_one(FIELDS.named("samplers"), value)
    except BadRequest as error:
        raise ValueError(error.message) from None
    if not SAMPLERS.keys() >= {*names}:
        raise ValueError(f"{what} out of {known}")
    return json.dumps({"samplers": names})
