"""Lists of items, a page at a time: `after`, `limit`, `order` (https://platform.openai.com/docs/api-reference).

Items are sent as they are stored: a page may have hundreds of megabytes, and reading or writing its JSON, or joining
its bytes, would block the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from ...types import Response
from ..fields import Field, FieldSet
from ..response import json_in_pieces

Page = tuple[list[tuple[str, bytes]], bool]
"""Items, each with its id and its JSON, and whether there are more."""


def page_fields(default: int, most: int) -> tuple[Field, ...]:
    """The fields of a query that names a page. default, most: the number of its items."""
    return (
        Field("after", "string", "the id of an item: go on behind it"),
        Field("limit", "uint", "most items of a page", low=1, high=most, default=default,
            outside=f"limit must be from 1 to {most}"),
        Field("order", "string", "newest first, or oldest", default="desc", choices=("asc", "desc"),
            outside="order must be one of asc, desc"),
    )  # fmt: skip


PAGE = FieldSet(page_fields(20, 100))


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
