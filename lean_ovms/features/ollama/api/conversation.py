"""Converts Ollama's messages, which have images, thinking and calls without ids, to the form of OpenAI's.

https://docs.ollama.com/api/chat. The values in a message are checked together with those of OpenAI's messages.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

from ....errors import BadRequest
from ....types import Json
from ..fields import read_images

DATA_URL = "data:image/*;base64,"


def to_messages(value: list[Any]) -> list[Json]:
    """Returns the messages in OpenAI's form. Raises BadRequest."""
    ids = CallIds()
    return [_message(message, f"messages[{place}]", ids) for place, message in enumerate(value)]


def user_message(text: str, images: list[str] | None) -> Json:
    """Returns a message of the user."""
    return {"role": "user", "content": _content(text, images or [])}


class CallIds:
    """Creates ids for calls without one. A result belongs to the first unanswered call of the same name before it."""

    def __init__(self) -> None:
        self._made = 0
        self._open: deque[tuple[int, str]] = deque()
        self._of_name: defaultdict[str, deque[tuple[int, str]]] = defaultdict(deque)
        self._answered: set[int] = set()

    def of_call(self, call: Json) -> Json:
        """Returns a call with an id."""
        function = call.get("function")
        self._made += 1
        number = call.get("id") or f"call_{self._made}"
        name = function.get("name", "") if isinstance(function, dict) else ""
        for calls in (self._open, self._of_name[str(name)]):
            calls.append((self._made, number))
        return {"id": number, "type": "function", **{name: value for name, value in call.items() if value is not None}}

    def of_result(self, name: str) -> str:
        """Returns the id of the call to which a result without an id belongs."""
        found = (name and self._first(self._of_name[str(name)])) or self._first(self._open) or (0, "")
        self._answered.add(found[0])
        return found[1]

    def _first(self, calls: deque[tuple[int, str]]) -> tuple[int, str] | None:
        """Returns the first of these calls that has no result, and removes those before it."""
        while calls and calls[0][0] in self._answered:
            calls.popleft()
        return calls[0] if calls else None


def _message(value: Any, param: str, ids: CallIds) -> Json:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise BadRequest("each message must be an object with a role", param=param)
    content = value.get("content") or ""
    if not isinstance(content, str):
        raise BadRequest("content must be a string", param=f"{param}.content")
    images = value.get("images") or []
    if not isinstance(images, list):
        raise BadRequest("images must be an array", param=f"{param}.images")
    found: Json = {"role": value["role"].lower(), "content": _content(content, read_images(images))}
    if value.get("thinking"):
        found["reasoning_content"] = value["thinking"]
    if calls := value.get("tool_calls"):
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise BadRequest("tool_calls must be an array of objects", param=f"{param}.tool_calls")
        found["tool_calls"] = [ids.of_call(call) for call in calls]
    if found["role"] == "tool":
        name = value.get("tool_name") or value.get("name") or ""
        found["tool_call_id"] = value.get("tool_call_id") or ids.of_result(name)
        found |= {"name": name} if name else {}
    return found


def _content(text: str, images: list[str]) -> str | list[Json]:
    """Returns the text, or parts with the images before it, which is where Ollama places them."""
    if not images:
        return text
    urls = [image if image[:5].lower() == "data:" else DATA_URL + image for image in images]
    parts: list[Json] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [*parts, {"type": "text", "text": text}] if text else parts
