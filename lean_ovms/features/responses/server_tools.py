"""The seam of tools that the server runs between the generations of a response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ...api.services import Services
from ...config import Config
from ...errors import BadRequest
from ...manifest import SERVER_TOOLS
from ...models.generation import DeltaStream
from ...types import Json
from .tool_forms import KIND, ServerTool

if TYPE_CHECKING:
    from .events import Events
    from .request import ResponsesRequest
    from .store import Context


class ToolStream(DeltaStream, Protocol):
    """All generations of one response, with the calls between them, as one stream."""

    parsed: ResponsesRequest
    """The request, with the tools of its servers."""
    warnings: list[str]
    """The warnings of the first generation."""
    events: Events
    """The events of the response; they are set before the stream is pushed."""


class ServerTools(Protocol):
    """The part at the seam SERVER_TOOLS, made of a Config."""

    def read(self, tool: Json, param: str) -> ServerTool:
        """Reads a tool of a request.

        Args:
            tool: The tool.
            param: The name of its field, for errors.

        Raises:
            BadRequest: It cannot be used.
        """

    async def start(self, parsed: ResponsesRequest, context: Context, services: Services) -> ToolStream:
        """Starts a response that has such tools. Raises RequestError."""

    async def with_tools(self, parsed: ResponsesRequest, context: Context, services: Services) -> ResponsesRequest:
        """Returns the request with what its servers offer the model. Raises RequestError."""


def read_server_tool(config: Config, tool: Json, param: str) -> ServerTool:
    """Reads a tool of a request that this server is to run.

    Args:
        config: The options.
        tool: The tool.
        param: Its place in the body.

    Raises:
        BadRequest: It is wrong, or this server runs no tools.
    """
    tools = server_tools(config)
    if tools is None:
        raise BadRequest(f"tools of type {KIND} are not run by this server", param=f"{param}.type")
    return tools.read(tool, param)


def server_tools(config: Config) -> ServerTools | None:
    """Returns what runs the tools of requests; None: this server runs none."""
    make = config.composition.part(SERVER_TOOLS)
    found: ServerTools | None = None if make is None else make(config)
    return found
