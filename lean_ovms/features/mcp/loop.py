"""Responses with MCP tools: makes the model's calls, and generates again with their results until there are no calls.

`McpTools` is what the feature responses uses for tools that the server runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ...api.services import Services
from ...api.stored_objects import item_id
from ...config import Config
from ...errors import WrongOptions, install_command
from ...models.generation import DeltaStream, total_usage
from ...types import Delta, Json, Timings, Usage
from ...types.push import Sink
from ..responses.agent_tools import refuse_clashes
from ..responses.events import Events
from ..responses.items import is_usable
from ..responses.output_items import McpCall
from ..responses.request import ResponsesRequest
from ..responses.store import Context
from ..responses.tool_forms import LISTING, function_name
from .feature import McpOptions
from .request import OF_CLIENT, McpTool, Offered, after_first, approved, execution_error, read_mcp_tool
from .servers import tool_servers
from .sessions import ToolFailed, ToolServers, ToolSessions, imported

BEYOND = "The limit of calls in one response is reached. Answer without further calls."


async def offer_tools(
    parsed: ResponsesRequest, items: Sequence[Json], sessions: ToolSessions
) -> tuple[ResponsesRequest, Offered, list[Json]]:
    """Adds the tools of its MCP servers to a request.

    Returns the request, the offered tools, and the lists of tools that are new in the conversation. Raises
    RequestError.
    """
    tools = parsed.tools
    listings = {item["server_label"]: item for item in items if item["type"] == LISTING}
    missing = [tool.label for tool in tools.mcp if tool.label not in listings]
    new = [
        {"id": item_id("mcpl"), "type": LISTING, "server_label": label, "tools": found, "error": None}
        for label, found in zip(missing, await asyncio.gather(*map(sessions.list_tools, missing)), strict=True)
    ]
    offered = Offered.of(_tools_of(parsed), listings | {item["server_label"]: item for item in new})
    functions = [*tools.functions, *offered.functions]
    refuse_clashes(functions, offered.origins)
    parsed = replace(
        parsed,
        generation=parsed.offering(functions, offered.choice(tools.choice)),
        response=partial(parsed.response, origins=tools.origins | offered.origins),
    )
    return parsed, offered, new


def sessions_of(parsed: ResponsesRequest, services: Services) -> ToolSessions:
    """Makes the connections of a response, which are opened later."""
    return ToolSessions(services.get(ToolServers), _tools_of(parsed))


def _tools_of(parsed: ResponsesRequest) -> list[McpTool]:
    return [tool for tool in parsed.tools.mcp if isinstance(tool, McpTool)]


class ToolLoop:
    """The generations of one response with the calls between them, as one DeltaStream."""

    events: Events
    """The events of the response. They must be set before the stream is read."""

    def __init__(
        self,
        parsed: ResponsesRequest,
        offered: Offered,
        listings: list[Json],
        context: Context,
        services: Services,
        sessions: ToolSessions,
    ) -> None:
        """Keeps the request, and prepares the calls that the client has approved.

        Args:
            parsed: The request, with the functions of its tools among its own.
            offered: The tools of the servers, as functions for the model.
            listings: The lists of tools that are new in the conversation, as items of the response.
            context: The items of the conversation so far, and those of this request.
            services: The options and the state of the server.
            sessions: The connections to the tool servers.

        Raises:
            RequestError: An approval does not answer a request, or its tool is not offered.
        """
        self.parsed = parsed
        """The request, with its tools."""
        self.warnings: list[str] = []
        """The warnings of the first generation."""
        self._items = context.items
        self._approved = approved(self._items, context.input, offered)
        self._offered = offered
        self._services = services
        self._sessions = sessions
        self._listings = listings
        most, wanted = services.config.of(McpOptions).max_tool_calls, parsed.values["max_tool_calls"]
        self._calls_left = most if wanted is None else min(most, wanted)
        self._most_tokens = parsed.generation.sampling.max_tokens
        self._finished: list[Usage] = []  # the usage of the generations before the current one
        self._generation: DeltaStream | None = None
        self._timings = Timings(0, 0, 0.0, 0, 0.0)  # of the generation that ended last
        self._work: asyncio.Future[None] | None = None
        self._closed = False

    @classmethod
    async def start(cls, parsed: ResponsesRequest, context: Context, services: Services) -> ToolLoop:
        """Lists the tools and starts the first generation, unless that waits for a call. Raises RequestError."""
        sessions = sessions_of(parsed, services)
        try:
            parsed, offered, listings = await offer_tools(parsed, context.items, sessions)
            loop = cls(parsed, offered, listings, context, services, sessions)
            if not loop._approved:
                await loop._start([])
            return loop
        except BaseException:
            sessions.close()
            raise

    @property
    def usage(self) -> Usage:
        """The token counts so far, summed over all generations."""
        return total_usage([*self._finished, *([self._generation.usage] if self._generation else [])])

    @property
    def timings(self) -> Timings:
        """The timings of the last generation; zeros before the first one, while a call that was approved is made."""
        return self._timings if self._generation is None else self._generation.timings

    async def push_to(self, sink: Sink[list[Delta]]) -> None:
        self._work = asyncio.ensure_future(self._run(sink))
        try:
            await self._work
        except asyncio.CancelledError:
            if not self._closed:
                raise
        finally:
            self._sessions.close()

    def finish(self, reason: str) -> None:
        if self._generation is not None:
            self._generation.finish(reason)

    async def aclose(self) -> None:
        """Cancels the running generation and calls. Idempotent."""
        self._closed = True
        self._sessions.close()
        if self._work is not None:
            self._work.cancel()
        if self._generation is not None:
            await self._generation.aclose()

    async def _run(self, sink: Sink[list[Delta]]) -> None:
        events = self.events
        await sink.send([])  # sends the events of a response in progress
        for listing in self._listings:
            events.add_listing(listing)
        for item in self._approved:
            name = function_name(item["name"], item["server_label"])
            events.start_call(self._offered.origins[name], item["arguments"], item["id"])
        exceeded = await self._make_calls(sink)
        while True:
            if self._generation is None:
                await self._start(events.output)
            assert self._generation is not None
            await self._generation.push_to(sink)
            if not events.calls or events.cut_off:
                return
            if exceeded:  # the model was told this instead
                await self._make_calls(sink)
                return
            exceeded = await self._make_calls(sink)
            if any(item["type"] in OF_CLIENT for item in events.output):
                return
            left = None if self._most_tokens is None else self._most_tokens - self.usage.completion_tokens
            if left is not None and left <= 0:
                events.cut_off = "length"
                return
            await self._generation.aclose()
            self._finished.append(self._generation.usage)
            self._timings = self._generation.timings
            self._generation = None
            self._offer_again(left, exceeded)

    def _offer_again(self, max_tokens: int | None, exceeded: bool) -> None:
        """Prepares the request of the next generation.

        `max_tokens` are the remaining tokens, or None without a limit. If `exceeded`, no more calls are allowed.
        """
        self.events.end_generation()
        tools, offered = self.parsed.tools, self._offered
        functions = tools.functions if exceeded else [*tools.functions, *offered.functions]
        choice = None if exceeded else after_first(offered.choice(tools.choice))
        generation = self.parsed.offering(functions, choice)
        least = max(0, generation.sampling.min_tokens - self.usage.completion_tokens)
        sampling = replace(generation.sampling, max_tokens=max_tokens, min_tokens=least)
        output = replace(generation.output, min_tokens=least)
        self.parsed = replace(self.parsed, generation=replace(generation, sampling=sampling, output=output))

    async def _start(self, output: list[Json]) -> None:
        generation = await self.parsed.start([*self._items, *filter(is_usable, output)], self._services)
        self.warnings = generation.warnings
        self._generation = self.parsed.generation.deltas(generation)

    async def _make_calls(self, sink: Sink[list[Delta]]) -> bool:
        """Makes the calls of the last generation concurrently. Returns whether there are more of them than allowed."""
        calls = self.events.calls
        made, beyond = calls[: self._calls_left], calls[self._calls_left :]
        self._calls_left -= len(made)
        for call in beyond:
            self.events.end_call(call, None, execution_error(BEYOND))
        await sink.send([])
        tasks = [asyncio.ensure_future(self._make_call(call, sink)) for call in made]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return bool(beyond)

    async def _make_call(self, call: McpCall, sink: Sink[list[Delta]]) -> None:
        output, error = None, None
        try:
            output = await self._sessions.call(call.origin, call.text)
        except ToolFailed as failed:
            error = failed.error
        self.events.end_call(call, output, error)
        await sink.send([])


class McpTools:
    """Runs the tools of MCP servers for responses."""

    def __init__(self, config: Config) -> None:
        """Keeps the servers of the options."""
        self._servers = tool_servers(config.of(McpOptions).tool_server)

    def read(self, tool: Json, param: str) -> McpTool:
        """Reads a tool of type mcp in a request. Raises BadRequest."""
        return read_mcp_tool(tool, param, self._servers)

    async def start(self, parsed: ResponsesRequest, context: Context, services: Services) -> ToolLoop:
        """Starts a response with tools of MCP servers. Raises RequestError."""
        return await ToolLoop.start(parsed, context, services)

    async def with_tools(self, parsed: ResponsesRequest, context: Context, services: Services) -> ResponsesRequest:
        """Returns the request with the functions that its MCP servers offer. Raises RequestError."""
        sessions = sessions_of(parsed, services)
        try:
            parsed, _, _ = await offer_tools(parsed, context.items, sessions)
        finally:
            sessions.close()
        return parsed


async def prepare(_: Services) -> None:
    """Imports the package, so that the server does not start without it. Raises WrongOptions."""
    try:
        await asyncio.to_thread(imported)
    except ImportError:
        raise WrongOptions(f"--tool_server needs the package mcp: {install_command('mcp')}") from None
