"""Lists of items, a page at a time: `after`, `limit`, `order` (https://platform.openai.com/docs/api-reference).

Items are sent as they are stored: a page may have hundreds of megabytes, and reading or writing its JSON, or joining
its bytes, would block the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from ....errors import BadRequest
from ....types import Response
from ...fields import Field, query_choice, query_integer, read_parameters
from ...response import json_in_pieces

DEFAULT_LIMIT, MAX_LIMIT = 20, 100


PAGE = (
    Field("after", "string", "the id of an item: go on behind it"),
    Field("limit", "uint", "most items of a page", low=1, high=MAX_LIMIT, default=DEFAULT_LIMIT),
    Field("order", "string", "newest first, or oldest", default="desc", schema={"enum": ["asc", "desc"]}),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PageQuery:
    """Which items of a list. after: the id of the item before the first one."""

    after: str | None
    limit: int
    newest_first: bool

    @classmethod
    def of(cls, query: str, default: int = DEFAULT_LIMIT, most: int = MAX_LIMIT) -> PageQuery:
        """From a request's query. Raises BadRequest."""
        given = read_parameters(query)
        limit = query_integer(given, "limit")
        if limit is None:
            limit = default
        if not 1 <= limit <= most:
            raise BadRequest(f"limit must be from 1 to {most}", param="limit")
        order = query_choice(given, "order", ("asc", "desc"), "desc")
        return cls(given.get("after"), limit, order == "desc")


def page_response(items: Sequence[tuple[str, bytes]], has_more: bool) -> Response:
    """A list of items, each with its id and its JSON."""
    ends = {
        "first_id": items[0][0] if items else None,
        "last_id": items[-1][0] if items else None,
        "has_more": has_more,
    }
    pieces = [b'{"object":"list","data":[']
    for number, (_, body) in enumerate(items):
        pieces += [b",", body] if number else [body]
    pieces.append(b"]," + orjson.dumps(ends)[1:])
    return json_in_pieces(pieces)
