"""What an option is: its metadata, and the checks of its value."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields
from typing import Any

from ..errors import StartError

TYPE_NAMES = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
"""The types of options, for messages."""


def option(
    default: Any,
    help: str,  # noqa: A002 - argparse's word
    *,
    group: str,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    env: str | None = None,
    secret: bool = False,
    bare: str | None = None,
    several: bool = False,
    private: bool = False,
    json_object: bool = False,
) -> Any:
    """Declares one option. low, high: inclusive bounds. env: a second environment variable. secret: never sent or
    logged. private: the value may hold a password; it is neither sent to the engine child nor in a Config's repr.

    json_object: the value is empty or the JSON text of an object. bare: meaning of the flag without a value. several:
    the flag takes several values, which are joined by spaces.
    """
    row = {"help": help, "group": group, "low": low, "high": high, "choices": choices, "env": env, "secret": secret,
           "private": private or secret, "json_object": json_object,
           "several": several, "bare": "true" if isinstance(default, bool) else bare}  # fmt: skip
    return field(default=default, metadata=row, repr=not row["private"])


def from_json(value: Any, kind: type) -> Any:
    """Returns a JSON value as an option of this type, an object as JSON text. Raises ValueError for another type."""
    if kind is str and isinstance(value, dict):
        return json.dumps(value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError(TYPE_NAMES[kind])
    return value


def check(name: str, value: Any, row: Any) -> None:
    """Checks an option's value. row: the metadata of the option. Raises StartError for a value that it may not have."""
    low, high, choices = row["low"], row["high"], row["choices"]
    if isinstance(value, float) and not math.isfinite(value):
        raise StartError(f"--{name} must be a finite number, not {value}")
    if low is not None and value < low:
        raise StartError(f"--{name} must be at least {low:g}, not {value:g}")
    if high is not None and value > high:
        raise StartError(f"--{name} must be at most {high:g}, not {value:g}")
    if isinstance(value, str) and not _is_text(value):
        raise StartError(f"--{name} must be text that UTF-8 can encode, without NUL, not {value!a}")
    if row["json_object"]:
        read_object(name, value)
    if choices and value not in choices:
        raise StartError(f"--{name} must be one of {', '.join(filter(None, choices))}, not {value!r}")


def read_object(name: str, value: str) -> dict[str, Any]:
    """Returns the object that is the value of a JSON option; {} for an empty one. Raises StartError."""
    try:
        found = json.loads(value) if value else {}
    except (ValueError, RecursionError) as error:
        raise StartError(f"--{name} is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise StartError(f"--{name} is not a JSON object")
    return found


def _is_text(value: str) -> bool:
    """Returns whether there is no NUL and no lone surrogate: JSON may have one, and undecodable bytes of argv become
    some."""
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of the classes whose fields are options: checks each value.

    Those with the options of one group have no methods of a dataclass (init, repr and eq are False): Config has them,
    and to make them for each group took 6 ms of every start.
    """

    def __post_init__(self) -> None:
        """Raises StartError."""
        for row in fields(self):
            check(row.name, getattr(self, row.name), row.metadata)
