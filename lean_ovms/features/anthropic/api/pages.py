"""Pages of lists in Anthropic's form, by `before_id`, `after_id` and `limit`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from ....api.fields import Field, FieldSet
from ....api.queries import read_query
from ....errors import BadRequest
from ....types import Json

DEFAULT_LIMIT, MAX_LIMIT = 20, 1000
PAGE = FieldSet((
    Field("after_id", "string", "id of the item after which the page begins"),
    Field("before_id", "string", "id of the item before which the page ends"),
    Field("limit", "uint", "maximum number of items in a page", low=1, high=MAX_LIMIT, default=DEFAULT_LIMIT,
        outside=f"limit must be from 1 to {MAX_LIMIT}"),
))  # fmt: skip


def page(items: Sequence[Json], query: str) -> Json:
    """Returns the page of a list that a request's query string asks for. Raises BadRequest."""
    given, ids = read_query(PAGE, query), [item["id"] for item in items]
    limit, after, before = given["limit"], given["after_id"], given["before_id"]
    for name in ("after_id", "before_id"):
        if given[name] is not None and given[name] not in ids:
            raise BadRequest(f"{name} is not an id in this list", param=name)
    if before is not None:
        end = ids.index(before)
        found, more = items[max(0, end - limit) : end], end > limit
    else:
        start = 0 if after is None else ids.index(after) + 1
        found, more = items[start : start + limit], start + limit < len(items)
    ends = {"first_id": found[0]["id"] if found else None, "last_id": found[-1]["id"] if found else None}
    return {"data": found, "has_more": more, **ends}


def written_time(seconds: float) -> str:
    """Formats a time, in seconds since 1970, as Anthropic's API does."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
