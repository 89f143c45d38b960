"""Lists in Anthropic's form, a page at a time: `before_id`, `after_id`, `limit`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from ...errors import BadRequest
from ...types import Json
from ..fields import Field, query_integer, read_parameters

DEFAULT_LIMIT, MAX_LIMIT = 20, 1000
PAGE = (
    Field("after_id", "string", "the id of an item: go on behind it"),
    Field("before_id", "string", "the id of an item: the page before it"),
    Field("limit", "uint", "most items of a page", low=1, high=MAX_LIMIT, default=DEFAULT_LIMIT),
)


def page(items: Sequence[Json], query: str) -> Json:
    """The page of a list that a request's query names. Raises BadRequest."""
    given = read_parameters(query)
    requested, ids = query_integer(given, "limit"), [item["id"] for item in items]
    limit = DEFAULT_LIMIT if requested is None else requested
    if not 1 <= limit <= MAX_LIMIT:
        raise BadRequest(f"limit must be from 1 to {MAX_LIMIT}", param="limit")
    for name in ("after_id", "before_id"):
        if name in given and given[name] not in ids:
            raise BadRequest(f"{name} is not an id in this list", param=name)
    if "before_id" in given:
        end = ids.index(given["before_id"])
        found, more = items[max(0, end - limit) : end], end > limit
    else:
        start = ids.index(given["after_id"]) + 1 if "after_id" in given else 0
        found, more = items[start : start + limit], start + limit < len(items)
    ends = {"first_id": found[0]["id"] if found else None, "last_id": found[-1]["id"] if found else None}
    return {"data": found, "has_more": more, **ends}


def written_time(seconds: float) -> str:
    """A time in seconds since 1970 as Anthropic writes it."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
