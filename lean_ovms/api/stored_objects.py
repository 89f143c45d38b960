"""Objects that the server stores for its clients (https://platform.openai.com/docs/api-reference).

They have ids that only clients who were told them know, `metadata`, and lists that are sent in pages.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

import orjson

from ..errors import BadRequest
from ..types import Json, Response
from .fields import Field, FieldSet
from .response import json_in_pieces

_MADE_HERE = re.compile(r"[a-z]+_[0-9a-f]{48}")


def item_id(prefix: str) -> str:
    """Returns a new id: the prefix and 192 random bits."""
    return f"{prefix}_{secrets.token_hex(24)}"


def is_made_here(given: str) -> bool:
    """Returns whether an id has the form of those that item_id makes, which only clients know that were told it."""
    return _MADE_HERE.fullmatch(given) is not None


# --- metadata: the field with which clients name what they store

MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512


def _metadata(value: Json) -> Json:
    if len(value) > MAX_METADATA:
        raise BadRequest(f"metadata must have no more than {MAX_METADATA} entries", param="metadata")
    for key, text in value.items():
        if len(key) > MAX_METADATA_KEY:
            raise BadRequest(
                f"each key of metadata must have no more than {MAX_METADATA_KEY} characters", param="metadata"
            )
        if not isinstance(text, str) or len(text) > MAX_METADATA_VALUE:
            raise BadRequest(
                f"each value of metadata must be a string of no more than {MAX_METADATA_VALUE} characters",
                param="metadata",
            )
    return value


METADATA = Field("metadata", "object",
    "up to 16 named strings, which are stored and returned unchanged", read=_metadata,
    schema={"maxProperties": MAX_METADATA, "propertyNames": {"maxLength": MAX_METADATA_KEY},
        "additionalProperties": {"type": "string", "maxLength": MAX_METADATA_VALUE}})  # fmt: skip


# --- pages: `after`, `limit`, `order`. Items are sent as they are stored: a page may have hundreds of megabytes, and
# reading or writing its JSON, or joining its bytes, would block the event loop.

Page = tuple[list[tuple[str, bytes]], bool]
"""The items of a page, each with its id and its JSON, and whether more items follow."""


def page_fields(default: int, most: int) -> tuple[Field, ...]:
    """Returns the query fields for paging through a list with `default` items in a page, or at most `most`."""
    return (
        Field("after", "string", "id of the item after which the page begins"),
        Field("limit", "uint", "maximum number of items in a page", low=1, high=most, default=default,
            outside=f"limit must be from 1 to {most}"),
        Field("order", "string",
            "desc for the newest items first, asc for the oldest", default="desc", choices=("asc", "desc"),
            outside="order must be one of: asc, desc"),
    )  # fmt: skip


PAGE = FieldSet(page_fields(20, 100))


def page_response(items: Sequence[tuple[str, bytes]], has_more: bool) -> Response:
    """Returns a page of items, each given as its id and its JSON, in OpenAI's list form."""
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
