"""Stored responses and conversations, and their retention. Methods wait for the disk without blocking the event loop.

When a method returns, its changes are durable if the store is a file or a database (`--response_store`), which several
servers may share; in memory they last as long as the process. A background response belongs to the server that
generates it: that server writes a heartbeat every few seconds and polls for stop requests. Without a heartbeat for
LEASE_S, any other server marks the response as failed. Knows no HTTP and no generation.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from ....config import Config
from ....errors import BadRequest, NotFound
from ....types import Json
from . import tables
from .connection import DatabaseConnection
from .database import Database
from .items import REFERENCE, is_usable
from .pages import PageQuery
from .store_file import set_aside_if_damaged
from .tables import StoredItem

logger = logging.getLogger("lean_ovms.responses")

INTERRUPTED = {"code": "server_error", "message": "The server stopped before this response was finished."}

Page = tuple[list[tuple[str, bytes]], bool]
"""(id and JSON of each item, whether there are more)."""

LEASE_S = 15.0
"""Without a heartbeat for this time, the responses of a server count as failed."""

MAX_CLOCK_STEP_S = 1.0
"""By more than that a clock was set, not adjusted slowly."""


@dataclass(slots=True, kw_only=True)
class Context:
    """The input of a response. history: earlier turns. input: this request's items, references resolved.

    conversation: the conversation to which the finished turn is added.
    """

    history: list[StoredItem] = field(default_factory=list)
    input: list[StoredItem] = field(default_factory=list)
    conversation: str | None = None

    @property
    def items(self) -> list[Json]:
        """All items, in order."""
        return [entry.item for entry in (*self.history, *self.input)]


class Store:
    """Responses and conversations."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._max_age_s = config.response_store_max_age_s
        self._max_count = config.response_store_max_count
        self._max_bytes = config.response_store_max_mb << 20
        self._db = Database(config.response_store, self._prepare, self._cleanup, self._cleanup_due)
        self._path, self._strict = config.response_store, config.response_store_strict
        self.running: set[str] = set()  # ids of the background responses of this server
        self._connected = 0.0  # time.monotonic()
        self._clock_ahead = 0.0  # of the database, before time.monotonic()

    async def open(self) -> None:
        """Open the database now, not at the first use. Raises StartError."""
        if self._path and "://" not in self._path:
            await asyncio.to_thread(set_aside_if_damaged, self._path, tables.VERSION, strict=self._strict)
        await self._db.open()

    async def close(self) -> None:
        """Close the database. Idempotent."""
        await self._db.close()

    def _bounds(self) -> tables.StoreLimits:
        since = self._clock() - self._max_age_s if self._max_age_s else float("-inf")
        return tables.StoreLimits(since=since, max_count=self._max_count, max_bytes=self._max_bytes)

    def _prepare(self, connection: DatabaseConnection) -> None:
        """Set up a new connection. While there was none, heartbeats failed, so LEASE_S starts again here."""
        self._connected, self._clock_ahead = time.monotonic(), connection.now() - time.monotonic()
        tables.prepare(connection)

    def _cleanup(self, connection: DatabaseConnection) -> None:
        tables.drop_old(connection, self._bounds())
        for body in self._stale(connection):
            tables.put_response(connection, interrupted(body), live=False)

    def _cleanup_due(self, connection: DatabaseConnection) -> bool:
        return tables.any_old(connection, self._bounds()) or bool(self._stale(connection))

    def _stale(self, connection: DatabaseConnection) -> list[Json]:
        """Unfinished responses whose server has stopped. When the clock was set, or the machine slept, every heartbeat
        looks old, so LEASE_S starts again then too.
        """
        if time.monotonic() < self._connected + LEASE_S:
            return []
        found = [body for body in tables.stale_runs(connection, LEASE_S) if body["id"] not in self.running]
        if found and abs((ahead := connection.now() - time.monotonic()) - self._clock_ahead) > MAX_CLOCK_STEP_S:
            self._connected, self._clock_ahead = time.monotonic(), ahead
            return []
        return found

    # --- before a generation ---

    async def context(self, previous: str | None, conversation: str | None, items: list[Json]) -> Context:
        """The input of a response. Raises BadRequest and NotFound for unknown ids."""
        if previous is None and conversation is None and not any(item["type"] == REFERENCE for item in items):
            return Context(input=[StoredItem(item) for item in items])
        return await self._db.run(
            lambda c: self._context(c, previous, conversation, items), write=conversation is not None
        )

    def _context(
        self, connection: DatabaseConnection, previous: str | None, conversation: str | None, items: list[Json]
    ) -> Context:
        context = Context(conversation=conversation)
        if previous is not None:
            context.history = _turns_through(connection, previous)
        if conversation is not None:
            _require(tables.touch_conversation(connection, conversation, self._clock()), "Conversation", conversation)
            context.history = tables.items_of(connection, conversation)
        context.input = [_resolve(connection, item, conversation or previous or "") for item in items]
        return context

    # --- responses ---

    async def start(self, body: Json, context: Context) -> None:
        """Store a response that has just started, so that it survives a crash of the process."""

        def work(connection: DatabaseConnection) -> None:
            self._write(connection, body, context, live=True)
            tables.drop_excess(connection, self._bounds(), spare=body["id"])

        await self._db.run(work)
        self.running.add(body["id"])

    async def poll_stops(self, heartbeat: bool) -> list[str]:
        """The running responses of this server that must stop: cancelled, deleted or failed elsewhere.

        heartbeat: also renew the lease of the running responses.
        """
        mine = list(self.running)

        def work(connection: DatabaseConnection) -> list[str]:
            if heartbeat:
                for response_id in mine:
                    tables.touch_run(connection, response_id)
            return [response_id for response_id in mine if tables.stop_requested(connection, response_id) is not False]

        return await self._db.run(work, write=heartbeat)

    async def request_stop(self, response_id: str) -> None:
        """Ask the server that generates a response to stop it."""
        await self._db.run(lambda c: tables.request_stop(c, response_id))

    async def finish(self, body: Json, context: Context, *, started: bool = False, frames: bytes = b"") -> None:
        """Store a finished response. started: `start` has stored its input. frames: its stream, if that is stored.

        A response that was deleted meanwhile stays deleted; one that was marked as failed stays failed. Safe to retry.
        """

        def work(connection: DatabaseConnection) -> None:
            if started:
                events = zlib.compress(frames, 1) if frames else None
                if tables.stop_requested(connection, body["id"]) is None:
                    return
                tables.put_response(connection, body, live=False, events=events)
            else:
                self._write(connection, body, context, live=False)
            self._add_output(connection, body, context)
            tables.drop_excess(connection, self._bounds(), spare=body["id"])

        await self._db.run(work)
        self.running.discard(body["id"])

    @staticmethod
    def _write(connection: DatabaseConnection, body: Json, context: Context, live: bool) -> None:
        tables.add_items(connection, body["id"], [*context.history, *context.input])
        tables.put_response(connection, body, live)

    def _add_output(self, connection: DatabaseConnection, body: Json, context: Context) -> None:
        output = [StoredItem(item) for item in body["output"]]
        tables.add_items(connection, body["id"], output, output=True)
        conversation_id = context.conversation
        if conversation_id is None or body["status"] not in ("completed", "incomplete"):
            return
        if tables.touch_conversation(connection, conversation_id, self._clock()):  # False: it was deleted meanwhile
            tables.add_items(connection, conversation_id, [*context.input, *_usable(output)])

    async def get(self, response_id: str) -> tuple[Json, bool]:
        """(the response object, whether the response was still running when it was written). Raises NotFound."""
        found = await self._db.run(lambda c: tables.get_response(c, response_id), write=False)
        if found is None:
            raise not_found("Response", response_id)
        return found

    async def frames(self, response_id: str) -> bytes | None:
        """The whole stream of a response, if it was stored."""

        def work(connection: DatabaseConnection) -> bytes | None:
            events = tables.get_events(connection, response_id)
            return None if events is None else zlib.decompress(events)

        return await self._db.run(work, write=False)

    async def input_items(self, response_id: str, query: PageQuery) -> Page:
        """Input items of a response, earlier turns included. Raises NotFound, and BadRequest for `after`."""

        def work(connection: DatabaseConnection) -> Page:
            _require(tables.has_response(connection, response_id), "Response", response_id)
            return _page(connection, response_id, query, output=False)

        return await self._db.run(work, write=False)

    async def delete(self, response_id: str) -> None:
        """Delete a response. Raises NotFound."""
        _require(
            await self._db.run(lambda c: tables.drop_response(c, response_id), deletes=True), "Response", response_id
        )

    # --- conversations ---

    async def create_conversation(self, body: Json, items: list[Json]) -> None:
        """Store a new conversation."""

        def work(connection: DatabaseConnection) -> None:
            tables.put_conversation(connection, body, self._clock())
            tables.add_items(connection, body["id"], [_resolve(connection, item) for item in items])
            tables.drop_excess(connection, self._bounds(), spare=body["id"])

        await self._db.run(work)

    async def conversation(self, conversation_id: str, metadata: Json | None = None) -> Json:
        """The conversation object; metadata, if given, replaces its metadata first. Raises NotFound."""

        def work(connection: DatabaseConnection) -> Json:
            body = tables.get_conversation(connection, conversation_id)
            if body is None:
                raise not_found("Conversation", conversation_id)
            if metadata is not None:
                body["metadata"] = metadata
                tables.put_conversation(connection, body, self._clock())
            return body

        return await self._db.run(work, write=metadata is not None)

    async def delete_conversation(self, conversation_id: str) -> None:
        """Delete a conversation, but not its responses. Raises NotFound."""
        found = await self._db.run(lambda c: tables.drop_conversation(c, conversation_id), deletes=True)
        _require(found, "Conversation", conversation_id)

    async def conversation_items(self, conversation_id: str, query: PageQuery) -> Page:
        """Items of a conversation. Raises NotFound, and BadRequest for `after`."""

        def work(connection: DatabaseConnection) -> Page:
            _require(tables.get_conversation(connection, conversation_id), "Conversation", conversation_id)
            return _page(connection, conversation_id, query)

        return await self._db.run(work, write=False)

    async def add_conversation_items(self, conversation_id: str, items: list[Json]) -> list[tuple[str, bytes]]:
        """Append items to a conversation; returns them as stored, in order. Raises NotFound."""

        def work(connection: DatabaseConnection) -> list[tuple[str, bytes]]:
            found = tables.touch_conversation(connection, conversation_id, self._clock())
            _require(found, "Conversation", conversation_id)
            tables.add_items(
                connection, conversation_id, [_resolve(connection, item, conversation_id) for item in items]
            )
            tables.drop_excess(connection, self._bounds(), spare=conversation_id)
            added = tables.page_of(connection, conversation_id, after=None, limit=len(items), newest_first=True)
            return added[::-1] if added else []

        return await self._db.run(work)

    async def conversation_item(self, conversation_id: str, item_id: str) -> bytes:
        """The JSON of one item of a conversation. Raises NotFound."""

        def work(connection: DatabaseConnection) -> bytes:
            _require(tables.get_conversation(connection, conversation_id), "Conversation", conversation_id)
            item = tables.item_of(connection, conversation_id, item_id)
            if item is None:
                raise not_found("Item", item_id)
            return item

        return await self._db.run(work, write=False)

    async def delete_conversation_item(self, conversation_id: str, item_id: str) -> Json:
        """Remove one item from a conversation; returns the conversation object. Raises NotFound."""

        def work(connection: DatabaseConnection) -> Json:
            body = tables.get_conversation(connection, conversation_id)
            if body is None:
                raise not_found("Conversation", conversation_id)
            _require(tables.drop_item(connection, conversation_id, item_id), "Item", item_id)
            return body

        return await self._db.run(work, deletes=True)


def interrupted(body: Json) -> Json:
    """The failed response object of a response whose server has stopped."""
    return {**body, "status": "failed", "error": INTERRUPTED, "incomplete_details": None, "usage": None}


def not_found(what: str, name: str) -> NotFound:
    """The error for an unknown id."""
    return NotFound(f"{what} with id {name[:100]!r} not found.")


def _require(found: object, what: str, name: str) -> None:
    if not found:
        raise not_found(what, name)


def _page(connection: DatabaseConnection, owner: str, query: PageQuery, *, output: bool = True) -> Page:
    """Raises BadRequest."""
    found = tables.page_of(
        connection, owner, after=query.after, limit=query.limit + 1, newest_first=query.newest_first, output=output
    )
    if found is None:
        raise BadRequest("after is not the id of an item in this list", param="after")
    return found[: query.limit], len(found) > query.limit


def _turns_through(connection: DatabaseConnection, previous: str) -> list[StoredItem]:
    """All items up to the end of a response. Raises BadRequest."""
    found = tables.get_response(connection, previous)
    if found is None:
        raise BadRequest(
            f"Previous response with id {previous[:100]!r} not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    if found[1]:
        raise BadRequest(f"Response {previous!r} is not finished yet.", param="previous_response_id")
    if found[0]["status"] == "failed":
        raise BadRequest(f"Response {previous!r} failed and cannot be continued.", param="previous_response_id")
    return _usable(tables.items_of(connection, previous))


def _usable(output: list[StoredItem]) -> list[StoredItem]:
    """The items that a next turn can use: without truncated calls, whose arguments are incomplete."""
    return [entry for entry in output if is_usable(entry.item)]


def _resolve(connection: DatabaseConnection, item: Json, before: str = "") -> StoredItem:
    """The item itself, or the stored item of a reference. before: what it follows. Raises NotFound."""
    if item["type"] != REFERENCE:
        return StoredItem(item)
    entry = tables.find_item(connection, item["id"], before)
    if entry is None:
        raise NotFound(f"Item with id {item['id'][:100]!r} not found: it was not stored, or has expired.")
    return entry
