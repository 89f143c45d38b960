"""Connections to MCP servers: one for each server that a response uses, which ends with the response.

So no client sees what another one has left in a session, and a server that was started by its command ends with the
response. Each connection has an asyncio task, since the package mcp must open and close it in the same one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from ...api.fields import parsed_object
from ...api.services import Service
from ...config import Config
from ...errors import RequestError, TooManyRequests, Unavailable
from ...observability.records import current_client
from ...types import Json
from ...util.concurrency import MAX_WAIT_S, Budget, InFlight, Lease, share
from ..responses.tool_forms import MAX_LISTED, ToolOrigin, error_text
from .feature import McpOptions
from .request import McpTool, execution_error

if TYPE_CHECKING:
    from mcp import Client

logger = logging.getLogger("lean_ovms.tools")
T = TypeVar("T")
CLOSE_S = 10.0
"""The most seconds for the end of a session; the package mcp gives a process 7 of these until it is killed."""
BUSY_RETRY_S = 5
"""Seconds until a response that found no slot for its tools may be tried again."""


class ToolFailed(Exception):
    """Raised if a call, or listing the tools, failed."""

    def __init__(self, error: Json) -> None:
        """Keeps the error in the form that it has in an item of a response."""
        super().__init__(error_text(error))
        self.error = error


class ListingFailed(RequestError):
    """The error 424 of a tool server that did not list its tools, or answer another request."""

    status = 424
    kind = "external_connector_error"
    code = "mcp_list_tools_failed"


class ToolServers(Service):
    """The connections of all responses of a server."""

    def __init__(self, config: Config) -> None:
        options = config.of(McpOptions)
        self.timeout_s = options.tool_timeout_s
        self.max_output = options.max_tool_output
        self.most = options.max_tool_sessions
        self.slots = Budget(self.most)
        self.connections: set[_Connection] = set()

    async def close(self) -> None:
        """Ends all connections. Idempotent."""
        for connection in self.connections:
            connection.close()
        await asyncio.gather(*(connection.wait_closed() for connection in self.connections))


class ToolSessions:
    """The connections of one response, each of which is opened by its first use. It must be closed in any case.

    They share a slot of the server, which is taken before the first connection, and released after the last one has
    ended.
    """

    def __init__(self, servers: ToolServers, tools: list[McpTool]) -> None:
        self._servers = servers
        self._tools = {tool.label: tool for tool in tools}
        self._client = current_client()
        self._connections: dict[str, _Connection] = {}
        self._running = InFlight()
        self._slot: asyncio.Task[Lease] | None = None
        self._closed = False

    async def list_tools(self, label: str) -> list[Json]:
        """Returns the tools of a server that a request allows. Raises ListingFailed, TooManyRequests, Unavailable."""
        await self._take_slot()
        try:
            found = await self._ask(label, list_tools)
        except ToolFailed as failed:
            text = f"Error retrieving tool list from MCP server {label!r}: {failed}"
            raise ListingFailed(text, param="tools") from None
        return [tool for tool in found if self._tools[label].is_allowed(tool)]

    async def call(self, tool: ToolOrigin, arguments: str) -> str:
        """Calls a tool, and returns its output as text. Raises ToolFailed."""
        assert tool.namespace is not None
        values = parsed_object(arguments)
        if values is None:
            raise ToolFailed(execution_error("The arguments are not a JSON object."))
        try:
            await self._take_slot()
        except RequestError as busy:  # the model can answer without the result
            raise ToolFailed({"type": "http_error", "code": busy.status, "message": busy.message}) from None
        result = await self._ask(tool.namespace, lambda client: client.call_tool(tool.name, values))
        text = "\n".join(map(text_of, result.content))
        if not text and result.structured_content is not None:
            text = json.dumps(result.structured_content, ensure_ascii=False)
        text = shortened(text, self._servers.max_output)
        if result.is_error:
            raise ToolFailed(execution_error(text))
        return text

    async def _take_slot(self) -> None:
        """Waits until the response has a slot. Raises TooManyRequests if the client has its share, or Unavailable.

        This time does not count towards the time limit of a tool server.
        """
        slots, most = self._servers.slots, self._servers.most
        if self._slot is None:
            self._slot = asyncio.ensure_future(slots.acquire(1, self._client))
        slot = self._slot
        await asyncio.wait({slot}, timeout=MAX_WAIT_S)
        if slot.done() and not slot.cancelled():
            return
        if slots.at_share(self._client):
            text = (
                f"{share(most)} responses of this client are already using tool servers, which is its share of {most}"
            )
            raise TooManyRequests(text, code="too_many_tool_sessions", retry_after_s=BUSY_RETRY_S)
        text = f"{most} responses are already using tool servers, this server's limit"
        raise Unavailable(text, code="too_many_tool_sessions", retry_after_s=BUSY_RETRY_S)

    async def ask(self, label: str, ask: Callable[[Client], Awaitable[T]]) -> T:
        """Sends a request to a server, and returns its answer. Raises ToolFailed, TooManyRequests and Unavailable."""
        await self._take_slot()
        return await self._ask(label, ask)

    async def _ask(self, label: str, ask: Callable[[Client], Awaitable[T]]) -> T:
        connection = self._connections.get(label)
        if connection is None:
            connection = self._connections[label] = _Connection(self._tools[label], self._servers, self._running)

        async def run() -> T:
            return await ask(await asyncio.shield(connection.client))

        try:
            return await asyncio.wait_for(run(), self._servers.timeout_s)
        except asyncio.TimeoutError:
            message = f"no answer within {self._servers.timeout_s:g} s"
            raise ToolFailed({"type": "http_error", "code": 504, "message": message}) from None
        except Exception as error:
            code = getattr(error, "code", None)
            if connection.client.done() and not connection.client.exception() and isinstance(code, int):
                message = shortened(str(error), self._servers.max_output)
                raise ToolFailed({"type": "mcp_protocol_error", "code": code, "message": message}) from None
            connection.log(error)
            raise ToolFailed({"type": "http_error", "code": 502, "message": "the tool server cannot be used"}) from None

    def close(self) -> None:
        """Closes the connections, and releases the slot. Idempotent."""
        for connection in self._connections.values():
            connection.close()
        slot = self._slot
        if self._closed or slot is None:
            return
        self._closed = True
        if not slot.cancel() and not slot.cancelled():  # the slot was taken already
            self._running.on_none = slot.result().release
            with self._running:  # calls `on_none` even if there is no connection
                pass


class _Connection:
    """One connection to a tool server, with the task that keeps it open."""

    def __init__(self, tool: McpTool, servers: ToolServers, running: InFlight) -> None:
        """Begins to connect.

        Args:
            tool: The tool of the request, which names the server.
            servers: All connections of this process, with the time limit of a call.
            running: The counter of connections, which includes this one until it has ended.
        """
        loop = asyncio.get_running_loop()
        self.client: asyncio.Future[Client] = loop.create_future()
        """The client of the connection, once that is open."""
        # Retrieves an error that nobody may ask for.
        self.client.add_done_callback(lambda client: client.cancelled() or client.exception())
        self._unused = asyncio.Event()
        self._tool = tool
        self._task = loop.create_task(self._run(servers.timeout_s))
        servers.connections.add(self)
        self._task.add_done_callback(lambda _: servers.connections.discard(self))
        running.add()
        self._task.add_done_callback(lambda _: running.remove())

    async def _run(self, timeout_s: float) -> None:
        try:
            async with contextlib.AsyncExitStack() as stack:
                self.client.set_result(await stack.enter_async_context(_connected(self._tool, timeout_s)))
                await self._unused.wait()
        except Exception as error:
            if not self.client.done():
                self.client.set_exception(error)
            else:
                self.log(error)
        finally:
            if not self.client.done():
                self.client.set_exception(ConnectionError("the connection was closed before it was open"))

    def log(self, error: BaseException) -> None:
        """Logs why a call or the connection failed, without the URL, which may contain a token."""
        while isinstance(inner := getattr(error, "exceptions", (None,))[0], BaseException):  # unwraps an ExceptionGroup
            error = inner
        url, text = self._tool.server.url, repr(error)
        logger.warning("tool server %s: %s", self._tool.label, text.replace(url, "its URL") if url else text)

    def close(self) -> None:
        """Closes the connection, and cancels it if it is not open yet or not closed in time. Idempotent."""
        if not self._unused.is_set():
            self._unused.set()
            late = asyncio.get_running_loop().call_later(CLOSE_S if self.client.done() else 0.0, self._task.cancel)
            self._task.add_done_callback(lambda _: late.cancel())

    async def wait_closed(self) -> None:
        """Waits until the connection has ended."""
        await asyncio.wait({self._task})


@contextlib.asynccontextmanager
async def _connected(tool: McpTool, timeout_s: float) -> AsyncGenerator[Client, None]:
    http, mcp, streamable_http_client = imported()
    async with contextlib.AsyncExitStack() as stack:
        if tool.server.url:
            # A session's event stream may be silent; calls have a timeout of their own.
            timeout = http.Timeout(timeout_s, read=None)
            client = await stack.enter_async_context(http.AsyncClient(headers=tool.headers, timeout=timeout))
            transport = streamable_http_client(tool.server.url, http_client=client)
        else:
            transport = mcp.StdioServerParameters(command=tool.server.command[0], args=list(tool.server.command[1:]))
        yield await stack.enter_async_context(mcp.Client(transport))


def imported() -> tuple[Any, Any, Any]:
    """Imports and returns the parts of the package mcp, which takes 0.6 s and 50 MB (2026-11)."""
    import httpx2
    import mcp
    from mcp.client.streamable_http import streamable_http_client

    return httpx2, mcp, streamable_http_client


async def all_pages(ask: Callable[..., Awaitable[Any]], name: str) -> list[Any]:
    """Returns a list that a server sends in pages, at most MAX_LISTED members of it.

    Args:
        ask: Asks for a page by its cursor.
        name: The member of a page with its part of the list.
    """
    found: list[Any] = []
    cursor: str | None = None
    while len(found) < MAX_LISTED:
        page = await ask(cursor=cursor)
        found += getattr(page, name)
        cursor = page.next_cursor
        if not cursor:
            break
    return found[:MAX_LISTED]


async def list_tools(client: Client) -> list[Json]:
    """Returns the tools of a server. Raises an error, also if they cannot be written as JSON again."""
    found = [_tool(tool) for tool in await all_pages(client.list_tools, "tools")]
    orjson.dumps(found)  # fails for numbers of more than 64 bits
    return found


def _tool(tool: Any) -> Json:
    notes = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else None
    shown = {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
    return {**shown, "annotations": notes}


def shortened(text: str, most: int) -> str:
    """Returns a text, cut off after `most` characters."""
    return text if len(text) <= most else f"{text[:most]}\n[{len(text) - most} characters left out]"


def text_of(block: Any) -> str:
    """Converts a block of a tool's result to text."""
    if block.type == "text":
        return str(block.text)
    text = getattr(getattr(block, "resource", None), "text", None)
    return str(text) if text is not None else f"[content of type {block.type}, which was left out]"
