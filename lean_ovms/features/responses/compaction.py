"""Compacted conversations, in which a summary replaces everything except the user's messages.

https://platform.openai.com/docs/api-reference/responses/compact. A compaction item of OpenAI has encrypted content; one
of this server has a mark, by which it is recognized, and the text of the summary.
"""

from __future__ import annotations

from ...api.stored_objects import item_id
from ...errors import BadRequest
from ...types import Json

KIND = "compaction"
MARK = "lean_ovms-summary-1:"
"""The prefix of `encrypted_content` in this server's items."""

HEAD = "Summary of the conversation so far:\n"
ASK = (
    "Write a summary of this conversation up to here. Another assistant will continue it and will see nothing of it "
    "but the user's messages and your summary. State what the user wants, what was decided and done, the facts, names, "
    "numbers and results of tools that are still needed, and what is left to do. Write only the summary."
)

_LASTING = ("user", "system", "developer")


def role_of(item: Json) -> str:
    """Returns the role of a message, or "" for any other item: some of these have a role as well, but no content."""
    return str(item["role"]) if item["type"] == "message" else ""


def item(summary: str) -> Json:
    """Returns a new compaction item with a summary."""
    return {"id": item_id("cmp"), "type": KIND, "encrypted_content": MARK + summary}


def read(given: Json, param: str) -> Json:
    """Reads a compaction item of a request, whichever server made it. Raises BadRequest if it has no content."""
    content, known = given.get("encrypted_content"), given.get("id")
    if not isinstance(content, str):
        raise BadRequest("compaction requires a valid encrypted_content field", param=f"{param}.encrypted_content")
    made = {"id": item_id("cmp"), "type": KIND, "encrypted_content": content}
    return made | {"id": known} if isinstance(known, str) and known else made


def is_own(item: Json) -> bool:
    """Returns whether a compaction item was made by a server of this kind, so that its summary can be read."""
    return str(item["encrypted_content"]).startswith(MARK)


def text(item: Json) -> str:
    """Returns the text that the model is shown for a compaction item: a heading and the summary."""
    return HEAD + str(item["encrypted_content"]).removeprefix(MARK)


def current(items: list[Json]) -> list[Json]:
    """Drops the items that the last summary replaces: those before it, except the user's messages and instructions."""
    last = max((place for place, one in enumerate(items) if one["type"] == KIND and is_own(one)), default=-1)
    if last < 0:
        return items
    return [one for one in items[:last] if role_of(one) in _LASTING] + items[last:]


def asking(items: list[Json]) -> list[Json]:
    """Returns the items with a request for a summary at the end, in the user's last message or a new one."""
    part = {"type": "input_text", "text": ASK}
    if items and role_of(items[-1]) == "user":
        return [*items[:-1], {**items[-1], "content": [*items[-1]["content"], part]}]
    message = {"id": item_id("msg"), "type": "message", "role": "user", "status": "completed", "content": [part]}
    return [*items, message]


def kept(items: list[Json], most: int) -> list[Json]:
    """Returns the user's last messages, as many as have at most `most` characters of text in all."""
    found: list[Json] = []
    for one in reversed(items):
        if role_of(one) == "user":
            most -= sum(len(part.get("text", "")) for part in one["content"])
            if most < 0:
                break
            found.append(one)
    return found[::-1]
