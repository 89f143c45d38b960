"""Lists of items, a page at a time: `after`, `limit`, `order` (https://platform.openai.com/docs/api-reference)."""

from __future__ import annotations

from urllib.parse import parse_qs

from ....errors import BadRequest
from ....types import Json
from ...fields import Field

DEFAULT_LIMIT, MAX_LIMIT = 20, 100


PAGE = (
    Field(name="after", kind="string", help="the id of an item: go on behind it"),
    Field(name="limit", kind="uint", low=1, high=MAX_LIMIT, default=DEFAULT_LIMIT, help="most items of a page"),
    Field(
        name="order", kind="string", default="desc", help="newest first, or oldest", schema={"enum": ["asc", "desc"]}
    ),
)


def parameters(query: str) -> dict[str, str]:
    """A query's parameters; of repeated ones the last."""
    return {name: values[-1] for name, values in parse_qs(query).items()}


def whole_number(given: dict[str, str], name: str) -> int | None:
    """A parameter that is 0 or more. Raises BadRequest."""
    text = given.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise BadRequest(f"{name} is not an unsigned integer", param=name)
    return int(text)


def flag(given: dict[str, str], name: str) -> bool:
    """A parameter that is true or false. Raises BadRequest."""
    text = given.get(name, "false").lower()
    if text not in ("true", "false", "1", "0"):
        raise BadRequest(f"{name} accepts values true or false", param=name)
    return text in ("true", "1")


def page(items: list[Json], query: str) -> Json:
    """One page of items, which are given oldest first. Raises BadRequest."""
    given = parameters(query)
    limit = whole_number(given, "limit")
    if limit is None:
        limit = DEFAULT_LIMIT
    if not 1 <= limit <= MAX_LIMIT:
        raise BadRequest(f"limit must be from 1 to {MAX_LIMIT}", param="limit")
    order = given.get("order", "desc")
    if order not in ("asc", "desc"):
        raise BadRequest("order must be asc or desc", param="order")
    ordered = items if order == "asc" else items[::-1]
    start = _after(ordered, given.get("after"))
    found = ordered[start : start + limit]
    return {
        "object": "list",
        "data": found,
        "first_id": found[0]["id"] if found else None,
        "last_id": found[-1]["id"] if found else None,
        "has_more": start + limit < len(ordered),
    }


def _after(items: list[Json], item_id: str | None) -> int:
    if item_id is None:
        return 0
    for place, item in enumerate(items):
        if item["id"] == item_id:
            return place + 1
    raise BadRequest("after is not the id of an item in this list", param="after")
