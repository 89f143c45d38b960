"""The output items of MCP tools: calls that this server makes, and requests to approve a call."""

from __future__ import annotations

from ...types import Json
from .output_items import FunctionCall, ResponseEventWriter, delta_head
from .tool_forms import APPROVAL_REQUEST, CALL, ToolOrigin


def called(origin: ToolOrigin, arguments: str) -> Json:
    """Returns the members of an item that describe a call: server, tool and arguments."""
    return {"server_label": origin.namespace, "name": origin.name, "arguments": arguments}


class McpCall(FunctionCall):
    """An item of a call of an MCP server's tool, which is closed when it has its result."""

    prefix = "mcp"
    kind = CALL
    head = delta_head("response.mcp_call_arguments.delta")

    def __init__(
        self, writer: ResponseEventWriter, index: int, call_id: str, origin: ToolOrigin, approval: str | None = None
    ) -> None:
        """Begins the item of a call.

        Args:
            writer: Writes the events.
            index: The index of the item in the output.
            call_id: The id of the call.
            origin: The server and the tool.
            approval: The id of the request for approval that was granted; None if the call needs no approval.
        """
        self.output: str | None = None
        self.error: Json | None = None
        self._approval = approval
        super().__init__(writer, index, call_id, origin)
        self._writer.add("response.mcp_call.in_progress", self._where)

    def item(self, status: str) -> Json:
        result = {"approval_request_id": self._approval, "output": self.output, "error": self.error}
        return {"id": self.id, "type": self.kind, "status": status, **called(self.origin, self.text), **result}

    def end_arguments(self) -> None:
        """Writes the event with the complete arguments."""
        self._writer.add("response.mcp_call_arguments.done", {**self._where, "arguments": self.text})

    def _end(self, item: Json) -> None:
        word = "completed" if item["status"] == "completed" else "failed"
        self._writer.add(f"response.mcp_call.{word}", self._where)


class ApprovalRequest(FunctionCall):
    """An item that asks the client to approve a call. It has no deltas."""

    prefix = "mcpr"
    kind = APPROVAL_REQUEST
    head = b""

    def item(self, status: str) -> Json:
        return {"id": self.id, "type": self.kind, **called(self.origin, self.text)}

    def _end(self, item: Json) -> None:
        """Writes no event, since the API has none for the content of this item."""
