"""Input items of tools that OpenAI or another provider runs: how they are stored, and how the model is shown them.

A conversation that began at another provider can go on here. A call is shown to the model as a call of a tool of that
name, whoever ran it. https://platform.openai.com/docs/api-reference/responses/create lists the items.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...api.stored_objects import item_id
from ...errors import BadRequest
from ...types import Json
from ..chat.foreign import NO_RESULT, as_text, unshown_line
from . import compaction
from .tool_forms import SEARCH_OUTPUT, function_name

CALL_ENDS, OUTPUT_ENDS = "_call", "_call_output"
"""How the types of calls, and of their results, end."""
CALLS, OUTPUTS = ("program",), ("program_output", SEARCH_OUTPUT)
"""Further types of calls and of their results, whose names have other endings."""
UNSHOWN = ("additional_tools", "configuration_update")
"""The types of items without any content for the model."""
RESULTS = ("results", "outputs", "output", "result", "tools", "error")
"""The members of items that have the result of a call."""
OF_ITEM = frozenset((
    "id", "type", "status", "call_id", "role", "container_id", "environment", "execution", "created_by",
    "pending_safety_checks", "acknowledged_safety_checks", "max_output_length", "svg_usage", "name", "namespace",
))  # fmt: skip
"""Members that are no arguments of a call."""
BINARY = {"image_generation_call": "result"}
"""The members that have a picture in base64, which are not kept."""


def is_call(kind: str) -> bool:
    """Returns whether items of this type are calls of another provider's tools."""
    return kind in CALLS or kind.endswith(CALL_ENDS)


def is_output(kind: str) -> bool:
    """Returns whether items of this type are results of calls of another provider's tools."""
    return kind in OUTPUTS or kind.endswith(OUTPUT_ENDS)


def reader(kind: str) -> Callable[[Json, str], Json] | None:
    """Returns the function that reads items of a type, or None if no other provider has the type."""
    return _read if is_call(kind) or is_output(kind) or kind in UNSHOWN else None


def _read(given: Json, param: str) -> Json:
    """Returns an item in its stored form: as it was given, with an id and without pictures. Raises BadRequest."""
    for name in ("id", "call_id"):
        if not isinstance(given.get(name, ""), str):
            raise BadRequest(f"{given['type']}.{name} is not a string", param=f"{param}.{name}")
    kept = {name: value for name, value in given.items() if name != BINARY.get(given["type"])}
    return {"status": "completed", **kept, "id": given.get("id") or item_id("item")}


def call_id(item: Json) -> str:
    """Returns the id that a call and its result share."""
    return str(item.get("call_id") or item["id"])


def tool(item: Json) -> str:
    """Returns the name of the tool that a call item calls."""
    return str(item.get("name") or item["type"].removesuffix(CALL_ENDS))


def given(item: Json) -> Any:
    """Returns the arguments of a call item by their names, or its only argument if that is an object."""
    found = {name: value for name, value in item.items() if name not in OF_ITEM and name not in RESULTS}
    only = next(iter(found.values())) if len(found) == 1 else None
    return only if isinstance(only, dict) else found


def result(item: Json) -> str | None:
    """Returns the text that the model is shown for the result that an item contains, or None if it has no result."""
    found = {name: item[name] for name in RESULTS if item.get(name) is not None}
    if item["type"] == SEARCH_OUTPUT and isinstance(found.get("tools"), list):
        found["tools"] = [one for each in found["tools"] for one in _functions(each)]
    if found:
        return as_text(next(iter(found.values())) if len(found) == 1 else found)
    return "The picture is not part of the conversation." if item["type"] in BINARY else None


def _functions(found: Any) -> list[Any]:
    """Returns the functions of a tool that a search has found, by the names that the model calls them."""
    inner, space = (found.get("tools"), found.get("name")) if isinstance(found, dict) else (None, None)
    if not isinstance(inner, list) or not isinstance(space, str):
        return [found]
    named = [one for one in inner if isinstance(one, dict) and isinstance(one.get("name"), str)]
    return [{**one, "name": function_name(one["name"], space)} for one in named]


def output(item: Json) -> str | list[Json]:
    """Returns a result item as the content of a tool message: a text, or a list with a screenshot as an image part."""
    value = item.get("output")
    if isinstance(value, dict) and isinstance(value.get("image_url"), str):
        return [{"type": "image_url", "image_url": {"url": value["image_url"]}}]
    return result(item) or NO_RESULT


def unshown(items: list[Json], param: str) -> list[str]:
    """Returns a list with a warning for items in the field `param` that the model is not shown, or []."""
    found = [(place, one["type"]) for place, one in enumerate(items) if is_unshown(one)]
    return unshown_line([f"{param}[{place}]" for place, _ in found], [kind for _, kind in found])


def is_unshown(item: Json) -> bool:
    """Returns whether an item cannot be shown to a model: it has no text, or another server has encrypted it."""
    return item["type"] in UNSHOWN or (item["type"] == compaction.KIND and not compaction.is_own(item))
