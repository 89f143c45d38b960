"""The output item of a call of a custom tool: the model writes a function's arguments, the client gets their text."""

from __future__ import annotations

from ....types import Json
from ...fields import parsed
from .agent_tools import ToolOrigin
from .output_items import JsonDepth, ResponseEventWriter, item_id, named


class CustomCall:
    """A custom_tool_call. Its input is one delta: a text inside of JSON is known when the JSON is complete."""

    def __init__(self, writer: ResponseEventWriter, index: int, call_id: str, origin: ToolOrigin) -> None:
        self.id = item_id("ctc")
        self.complete = False
        self._writer = writer
        self._index = index
        self._call_id = call_id
        self._origin = origin
        self._texts: list[str] = []
        self._json = JsonDepth()
        writer.add("response.output_item.added", {"output_index": index, "item": self.item("in_progress")})

    def add(self, text: str) -> None:
        """Add text of the arguments."""
        self._texts.append(text)
        self.complete = self._json.feed(text)

    def close(self, status: str) -> Json:
        """Write the closing events; the final item."""
        item, where = self.item(status), {"item_id": self.id, "output_index": self._index}
        self._writer.add("response.custom_tool_call_input.delta", {**where, "delta": item["input"]})
        self._writer.add("response.custom_tool_call_input.done", {**where, "input": item["input"]})
        self._writer.add("response.output_item.done", {"output_index": self._index, "item": item})
        return item

    def item(self, status: str) -> Json:
        """The item with its input if that is complete."""
        return {
            "id": self.id,
            "type": "custom_tool_call",
            "status": status,
            "call_id": self._call_id,
            **named(self._origin),
            "input": _input("".join(self._texts)),
        }


def _input(arguments: str) -> str:
    """The text in {"input": text}; "" if the arguments are cut off, or are something else."""
    try:
        value = parsed(arguments) if arguments else {}
    except ValueError:
        return ""
    text = value.get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else ""
