"""The interface to the feature that runs tools of MCP servers between the generations of a response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ...api.services import Services
from ...config import Config
from ...manifest import SERVER_TOOLS
from ...models.generation import DeltaStream
from ...types import Json
from .tool_forms import ServerTool

if TYPE_CHECKING:
    from .events import Events
    from .request import ResponsesRequest
    from .store import Context


class ToolStream(DeltaStream, Protocol):
    """One stream of all generations of a response, which calls tools between them."""

    parsed: ResponsesRequest
    """The request, with the tools of its MCP servers."""
    warnings: list[str]
    """The warnings of the first generation."""
    events: Events
    """The events of the response. They must be set before the stream is read."""


class ServerTools(Protocol):
    """Runs the tools of MCP servers; it is made of a Config by the feature that provides SERVER_TOOLS."""

    def read(self, tool: Json, param: str) -> ServerTool:
        """Reads a tool of type mcp at the path `param` of a request. Raises BadRequest if it cannot be used."""

    async def start(self, parsed: ResponsesRequest, context: Context, services: Services) -> ToolStream:
        """Starts a response that has tools of MCP servers. Raises RequestError."""

    async def with_tools(self, parsed: ResponsesRequest, context: Context, services: Services) -> ResponsesRequest:
        """Returns the request with the functions that its MCP servers offer. Raises RequestError."""


def server_tools(config: Config) -> ServerTools | None:
    """Returns the object that runs tools of MCP servers, or None if this server runs no tools."""
    make = config.composition.part(SERVER_TOOLS)
    found: ServerTools | None = None if make is None else make(config)
    return found
