"""Makes examples of the types that official SDKs declare (TypedDicts and pydantic models), with all members and with
only the required ones."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any, ForwardRef

import typing_extensions as extensions

STRIPPED = {typing.Required, typing.NotRequired, extensions.Required, extensions.NotRequired, typing.Annotated}
UNIONS = (typing.Union, types.UnionType)
OPTIONAL = (typing.NotRequired, extensions.NotRequired)
DEPTH = 12


def members(union: Any) -> list[Any]:
    """Returns the types of a union, also of nested ones; for another type, only the type itself."""
    union = _plain(union)
    if typing.get_origin(union) in UNIONS:
        return [one for part in typing.get_args(union) for one in members(part)]
    return [] if union is type(None) else [union]


def examples(kind: Any, values: dict[str, Any], name: str = "", depth: int = 0) -> Iterator[Any]:
    """Yields examples of a type. If a member has several types, there is an example with each.

    Args:
        kind: The type.
        values: Values for members by name, if an example of their type is not valid; None leaves them out.
        name: The name of the member that has this type.
        depth: The number of types that contain this one.
    """
    if name in values:
        yield from () if values[name] is None else [values[name]]
        return
    kind = _plain(kind)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if depth > DEPTH:
        return
    if origin in UNIONS:
        for one in members(kind):
            yield from examples(one, values, "", depth + 1)
    elif origin is typing.Literal:
        yield inner[0]
    elif (fields := _fields(kind)) is not None:
        yield from _objects(fields, values, depth)
    elif origin is not None and issubclass(origin, dict | typing.Mapping):
        yield {"k": next(examples(inner[1], values, "", depth + 1), "x")} if inner else {}
    elif (origin is not None and issubclass(origin, typing.Iterable)) or "SequenceNotStr" in str(kind):
        yield from ([one] for one in examples(inner[0], values, "", depth + 1))
    else:
        yield {bool: True, int: 1, float: 1.0, str: "x", bytes: "eA=="}.get(kind, {} if kind is not Any else "x")


def _objects(fields: dict[str, tuple[Any, bool]], values: dict[str, Any], depth: int) -> Iterator[dict[str, Any]]:
    found = {name: list(examples(kind, values, name, depth + 1)) for name, (kind, _) in fields.items()}
    found = {name: each for name, each in found.items() if each}
    first = {name: each[0] for name, each in found.items()}
    yield {name: value for name, value in first.items() if fields[name][1]}
    if depth < 2 or any(not required for _, required in fields.values()):
        yield first
    for name, each in found.items():
        yield from ({**first, name: value} for value in each[1:])


def _fields(kind: Any) -> dict[str, tuple[Any, bool]] | None:
    """Returns the type of each member of an object, and whether it is required; None if the type is not an object."""
    if typing.is_typeddict(kind) or extensions.is_typeddict(kind):
        marked = [
            (name, hint, typing.get_origin(hint))
            for name, hint in extensions.get_type_hints(kind, include_extras=True).items()
        ]
        required = (typing.Required, extensions.Required)
        return {
            name: (hint, origin in required or (kind.__total__ and origin not in OPTIONAL))
            for name, hint, origin in marked
        }
    if isinstance(kind, type) and hasattr(kind, "model_fields"):
        rows = kind.model_fields
        shown = {
            name: row.is_required() or typing.get_origin(row.annotation) is typing.Literal for name, row in rows.items()
        }
        return {name: (row.annotation, shown[name]) for name, row in rows.items()}
    return None


def _plain(kind: Any) -> Any:
    while typing.get_origin(kind) in STRIPPED:
        kind = typing.get_args(kind)[0]
    if isinstance(kind, ForwardRef):
        raise TypeError(f"{kind} is not resolved")
    if type(kind).__name__ == "TypeAliasType":
        return _plain(kind.__value__)
    return kind
