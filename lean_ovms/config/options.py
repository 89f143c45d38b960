"""Declares options: their metadata, and the checks of their values."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar

from ..errors import StartError

TYPE_NAMES = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
"""The names of the types of options in error messages."""


GIVEN, PRESENT_DIRECTORY, MODEL = "given", "present directory", "model"
"""Kinds of paths: of a file or directory that must exist; of a directory that must exist for the server to start; and
of another model, which is a GGUF file or a directory."""
DIRECTORY, PRIVATE_DIRECTORY = "directory", "private directory"
"""Kinds of paths: a directory made before a model is loaded, and one made with access for the server's user only."""


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
    of_one: bool = False,
    private: bool = False,
    json_object: bool = False,
    tasks: tuple[str, ...] = (),
    not_of: str = "",
    path: str = "",
    common: bool = False,
) -> Any:
    """Declares one option, as a field of a class of options.

    Args:
        default: The value if the option is not set; its type is the option's.
        help: A phrase that says what the option does, for --help and the documentation.
        group: The group of --help, one of `config.GROUPS`.
        low: The lowest allowed number.
        high: The highest allowed number.
        choices: The allowed texts; empty if any text is allowed.
        env: A second environment variable, besides LEAN_OVMS_NAME.
        secret: Whether the value is never sent or logged, and the option has no flag.
        bare: The meaning of the flag without a value; None if it needs one.
        several: Whether the flag takes several values, which are joined by spaces.
        of_one: Whether no two models may have the same value, so that it cannot be set for all models of a server.
        private: Whether the value may hold a password; it is neither sent to the engine process nor in a Config's repr.
        json_object: Whether the value is empty or the JSON text of an object.
        tasks: The tasks whose models have the option; empty for all.
        not_of: The only task whose models lack the option; empty if all have it.
        path: The kind of path: GIVEN, PRESENT_DIRECTORY, MODEL, DIRECTORY or PRIVATE_DIRECTORY; empty if the value is
            not a path.
        common: Whether a first start may need it, so that --help without a topic lists it, after the core's options.

    Returns:
        The field of a dataclass, with the arguments as its metadata.
    """
    row = {"help": help, "group": group, "low": low, "high": high, "choices": choices, "env": env, "secret": secret,
           "private": private or secret, "json_object": json_object,
           "several": several, "of_one": of_one, "tasks": tasks, "not_of": not_of, "path": path, "common": common,
           "bare": "true" if isinstance(default, bool) else bare}  # fmt: skip
    return field(default=default, metadata=row, repr=not row["private"])


def from_json(value: Any, kind: type) -> Any:
    """Converts a JSON value to an option of this type; an object becomes JSON text. Raises ValueError."""
    if kind is str and isinstance(value, dict):
        return json.dumps(value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError(TYPE_NAMES[kind])
    return value


def check(name: str, value: Any, row: Any) -> None:
    """Raises StartError if an option may not have a value.

    Args:
        name: The name of the option.
        value: The value.
        row: The metadata of the option's field, with its limits and choices.

    Raises:
        StartError: The option may not have this value.
    """
    low, high, choices = row["low"], row["high"], row["choices"]
    if isinstance(value, float) and not math.isfinite(value):
        raise StartError(f"--{name} must be a finite number, not {value}")
    if low is not None and value < low:
        raise StartError(f"--{name} must be at least {low:g}, not {value:g}")
    if high is not None and value > high:
        raise StartError(f"--{name} must be at most {high:g}, not {value:g}")
    if isinstance(value, str) and not _is_text(value):
        raise StartError(f"--{name} must be valid UTF-8 text without NUL, not {value!a}")
    if row["json_object"]:
        read_object(name, value)
    if choices and value not in choices:
        raise StartError(f"--{name} must be one of: {', '.join(filter(None, choices))}, not {value!r}")


def read_object(name: str, value: str) -> dict[str, Any]:
    """Parses the value of an option that is a JSON object; returns {} for an empty value. Raises StartError."""
    try:
        found = json.loads(value) if value else {}
    except (ValueError, RecursionError) as error:
        raise StartError(f"--{name} is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise StartError(f"--{name} is not a JSON object")
    return found


def _is_text(value: str) -> bool:
    """Returns whether a text has neither a NUL nor an unpaired surrogate, which JSON and argv may contain."""
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Options:
    """Base of the classes whose fields are options: one class for each feature, and a few for the core.

    They lack the generated methods of dataclasses (init, repr and eq are False), which took 6 ms of each start to
    create.
    """

    in_engine: ClassVar[bool] = False
    """Whether these options are sent to the engine process."""
    beside: ClassVar[str] = ""
    """The name of another feature, without which a server has none of these options; empty for none."""

    def __init__(self, **values: Any) -> None:
        """Sets the given options, and all others to their defaults. Raises StartError for a wrong value."""
        for row in fields(self):
            value = values.pop(row.name, row.default)
            check(row.name, value, row.metadata)
            object.__setattr__(self, row.name, value)
        if values:
            raise TypeError(f"{type(self).__name__} has no option {', '.join(sorted(values))}")

    @classmethod
    @cache
    def defaults(cls) -> Options:
        """Returns the options of the class at their defaults, an object that all configs share."""
        return cls()

    def check(self, config: Any) -> None:
        """Checks the options of a feature together, and against others in its Config. Raises StartError."""
