"""Stores responses and conversations, and deletes old ones. Methods wait for the disk without blocking the event loop.

If the store is a file or a database (`--response_store`), which several servers may share, changes are durable when a
method returns; in memory they last as long as the process. A background response belongs to the server that generates
it, and is reported as failed once that server has stopped: each server holds a lock in the database, which ends with
its process.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import zlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from ...api.fields import Values
from ...api.stored_objects import Page, is_made_here
from ...config import Config
from ...errors import BadRequest, NotFound, StartError
from ...types import Json
from . import postgres, tables
from .connection import Connection, StoreTooSmall
from .database import Database
from .feature import ResponseOptions
from .items import REFERENCE, is_usable
from .postgres import Postgres
from .sqlite import Sqlite, set_aside_if_damaged
from .tables import CONVERSATION, OUTPUT, RESPONSE

P = ParamSpec("P")
T = TypeVar("T")

INTERRUPTED = {"code": "server_error", "message": "The server stopped before this response was finished."}

_EXPIRED = "SELECT kind, id FROM idle WHERE used < ?"


@dataclass(slots=True, kw_only=True)
class Context:
    """The input of a response, with the earlier turns that it continues."""

    history: list[Json] = field(default_factory=list)
    """The items of earlier turns."""
    input: list[Json] = field(default_factory=list)
    """This request's items, with references resolved."""
    turn: int | None = None
    """The number of the last stored turn of the history; None if there is no history."""
    conversation: str | None = None
    """The id of the conversation to which the finished turn is added; None if it belongs to no conversation."""

    @property
    def items(self) -> list[Json]:
        """All items, those of earlier turns first."""
        return [*self.history, *self.input]


Sync = Callable[Concatenate["Store", Connection, P], T]
Async = Callable[Concatenate["Store", P], Coroutine[Any, Any, T]]


def _transaction(*, write: bool = True, deletes: bool = False) -> Callable[[Sync[P, T]], Async[P, T]]:
    """Decorates a method that takes a connection: it becomes a coroutine in a transaction (Database.run)."""

    def decorate(method: Sync[P, T]) -> Async[P, T]:
        async def run(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return await self._db.run(lambda db: method(self, db, *args, **kwargs), write=write, deletes=deletes)

        run.__doc__ = method.__doc__
        return run

    return decorate


class Store:
    """The store of responses and conversations."""

    def __init__(
        self, config: Config, clock: Callable[[], float] = time.time, running: Callable[[], float] = time.monotonic
    ) -> None:
        """Creates the store, which is opened later.

        Args:
            config: The options.
            clock: Returns the time of day in seconds, which may jump.
            running: Returns the seconds since some moment, without jumps.
        """
        self._clock, self._running = clock, running
        self._created = clock() - running()
        self._options = config.of(ResponseOptions)
        self._path = self._options.response_store
        self._server = str(secrets.randbelow(1 << 31))
        kind = Postgres if postgres.is_url(self._path) else Sqlite
        self._db = Database(kind, self._path, self._prepare, self._upkeep)

    async def open(self) -> None:
        """Opens the database before its first use. Raises StartError if that fails."""
        shown = self._path
        if postgres.is_url(self._path):
            postgres.check(self._path)
            shown = postgres.without_credentials(self._path)
        elif "://" in self._path:
            scheme = self._path.split("://")[0]
            raise StartError(f"--response_store must be a file or postgresql://..., not {scheme}://...")
        elif self._path:
            strict = self._options.response_store_strict
            await asyncio.to_thread(set_aside_if_damaged, self._path, tables.VERSION, strict=strict)
        await self._db.open(shown)
        await self._interrupt_lost()

    async def close(self) -> None:
        """Closes the database. Idempotent."""
        await self._db.close()

    def _prepare(self, db: Connection) -> None:
        """Sets up a new connection: makes the tables, and takes this server's lock."""
        tables.prepare(db)
        db.hold(self._server)

    def _upkeep(self, db: Connection) -> list[Callable[[], object]]:
        """Returns the functions that delete the expired responses and conversations."""
        max_age_s = self._options.response_store_max_age_s
        if not max_age_s:
            return []
        # If the clock is set forward while the server runs, nothing becomes older by that until the next start.
        now = min(self._clock(), self._created + self._running())
        rows = db.execute(_EXPIRED, (now - max_age_s,)).fetchall()
        return [partial(tables.drop, db, kind, name) for kind, name in rows]

    @_transaction()
    def _interrupt_lost(self, db: Connection) -> None:
        """Marks background responses as failed if the server that generated them has stopped."""
        for response_id, server in db.execute("SELECT response, server FROM run").fetchall():
            if not db.holds(server):
                body, turn = tables.get(db, RESPONSE, response_id)
                _put_response(db, _interrupted(body), turn)
                db.execute("DELETE FROM run WHERE response = ?", (response_id,))

    def _drop_excess(self, db: Connection, spare: str, *, limited: bool = True) -> None:
        """Deletes the oldest objects until no limit is exceeded.

        Args:
            db: The database.
            spare: The id of an object that was just written, which is not deleted.
            limited: Whether this object is an error if it is larger than the store may be, and has earlier turns. A
                single request is smaller than the limit of a body, but a conversation may grow without end.

        Raises:
            StoreTooSmall: The object is too large.
        """
        most, count = self._options.response_store_max_mb, self._options.response_store_max_count
        fits = tables.drop_excess(db, spare, max_count=count, max_bytes=most << 20)
        if limited and not fits and tables.has_history(db, spare):
            raise StoreTooSmall(f"the conversation is larger than the response store, which may have {most} MB")

    # --- before a generation ---

    async def context(self, previous: str | None, conversation: str | None, items: list[Json]) -> Context:
        """Returns the input of a response with its earlier turns. Raises BadRequest and NotFound for unknown ids."""
        if conversation is not None:
            return await self._db.run(lambda db: _context(db, self._touch(db, conversation), items, conversation))
        if previous is None and not any(item["type"] == REFERENCE for item in items):
            return Context(input=items)
        return await self._db.run(lambda db: _context(db, _finished_turn(db, previous), items), write=False)

    # --- responses ---

    @_transaction()
    def start(self, db: Connection, body: Json, context: Context, frames: Sequence[bytes]) -> None:
        """Stores a background response that has just started, with the first events of its stream if it has one."""
        _put_response(db, body, _add_turn(db, context), frames)
        db.execute("INSERT INTO run VALUES (?, ?, 0, 0)", (body["id"], self._server))
        self._drop_excess(db, body["id"])

    @_transaction()
    def finish(self, db: Connection, body: Json, context: Context) -> None:
        """Stores a finished response that was not stored when it started."""
        self._finish(db, body, context, _add_turn(db, context))
        self._drop_excess(db, body["id"])

    @_transaction()
    def finish_started(self, db: Connection, body: Json, context: Context, frames: Sequence[bytes]) -> None:
        """Stores the end of a response that `start` has stored, and its stream. It may be called again after a failure.

        A response that was deleted meanwhile stays deleted; one that was marked as failed stays failed.
        """
        if db.execute("DELETE FROM run WHERE response = ?", (body["id"],)).rowcount:
            turn = db.one("SELECT turn FROM entry WHERE id = ?", (body["id"],))
            self._finish(db, body, context, turn, frames)
            self._drop_excess(db, body["id"], limited=False)

    def _finish(self, db: Connection, body: Json, context: Context, turn: int, frames: Sequence[bytes] = ()) -> None:
        tables.add_items(db, turn, body["output"], OUTPUT)
        _put_response(db, body, turn, frames)
        if context.conversation is not None and body["status"] in ("completed", "incomplete"):
            self._add_to_conversation(db, body, context, turn)

    def _add_to_conversation(self, db: Connection, body: Json, context: Context, turn: int) -> None:
        """Makes a turn the last of its conversation. If another was added meanwhile, a copy is added after that."""
        assert context.conversation is not None
        try:
            last = self._touch(db, context.conversation)
        except NotFound:  # the response was deleted meanwhile
            return
        if last != context.turn:
            turn = tables.add_turn(db, last, [*context.input, *filter(is_usable, body["output"])])
        _set_turn(db, context.conversation, turn)

    @_transaction(write=False)
    def get(self, db: Connection, response_id: str) -> tuple[Json, bool]:
        """Returns the response object, and whether a server is still generating it. Raises NotFound."""
        body, _ = tables.get(db, RESPONSE, response_id)
        server = _server_of(db, response_id)
        if server is None:
            return body, False
        running = db.holds(server)
        return ({**body, "status": "in_progress"} if running else _interrupted(body)), running

    @_transaction(write=False)
    def frames(self, db: Connection, response_id: str) -> bytes | None:
        """Returns the whole event stream of a response, or None if it has no stream or was not finished."""
        if _server_of(db, response_id) is not None:
            return None
        events = db.one("SELECT events FROM entry WHERE id = ?", (response_id,))
        return None if events is None else zlib.decompress(events)

    # --- responses and conversations ---

    @_transaction(write=False)
    def items(self, db: Connection, kind: str, name: str, query: Values) -> Page:
        """Returns a page of the items of a conversation, or of a response's input and its earlier turns.

        Args:
            db: The database.
            kind: CONVERSATION or RESPONSE.
            name: The id of the conversation or the response.
            query: The values of the query's fields: order ("asc" or "desc"), after (the id of the last item of the page
                before, or None) and limit.

        Returns:
            The id and the JSON of each item, and whether there are more of them.

        Raises:
            NotFound: There is no such conversation or response.
            BadRequest: After is not the id of an item in this list.
        """
        turn, output = tables.turn_of(db, kind, name), kind == CONVERSATION
        limit, newest_first = query["limit"], query["order"] == "desc"
        found = tables.page_of(
            db, turn, after=query["after"], limit=limit + 1, newest_first=newest_first, output=output
        )
        if found is None:
            raise BadRequest("after is not the id of an item in this list", param="after")
        return found[:limit], len(found) > limit

    @_transaction(deletes=True)
    def delete(self, db: Connection, kind: str, name: str) -> None:
        """Deletes a response, or a conversation but not its responses. Raises NotFound."""
        if not tables.drop(db, kind, name):
            raise tables.not_found(kind, name)

    # --- conversations ---

    @_transaction()
    def create_conversation(self, db: Connection, body: Json, items: list[Json]) -> None:
        """Stores a new conversation."""
        turn = tables.add_turn(db, None, _resolved(db, items, [])) if items else None
        tables.put(db, CONVERSATION, body, used=self._clock(), turn=turn)
        self._drop_excess(db, body["id"])

    @_transaction(write=False)
    def conversation(self, db: Connection, conversation_id: str) -> Json:
        """Returns the conversation object. Raises NotFound."""
        return tables.get(db, CONVERSATION, conversation_id)[0]

    @_transaction()
    def set_metadata(self, db: Connection, conversation_id: str, metadata: Json) -> Json:
        """Replaces the metadata of a conversation, and returns the conversation object. Raises NotFound."""
        body, turn = tables.get(db, CONVERSATION, conversation_id)
        body["metadata"] = metadata
        tables.put(db, CONVERSATION, body, used=self._clock(), turn=turn)
        return body

    @_transaction()
    def add_conversation_items(
        self, db: Connection, conversation_id: str, items: list[Json]
    ) -> list[tuple[str, bytes]]:
        """Appends items to a conversation, and returns the id and the JSON of each. Raises NotFound."""
        last = self._touch(db, conversation_id)
        history = tables.items_of(db, last) if any(item["type"] == REFERENCE for item in items) else []
        turn = tables.add_turn(db, last, _resolved(db, items, history))
        _set_turn(db, conversation_id, turn)
        self._drop_excess(db, conversation_id)
        added = tables.page_of(db, turn, after=None, limit=len(items), newest_first=True)
        return added[::-1] if added else []

    @_transaction(write=False)
    def conversation_item(self, db: Connection, conversation_id: str, item_id: str) -> bytes:
        """Returns the JSON of one item of a conversation. Raises NotFound."""
        return tables.item_of(db, tables.turn_of(db, CONVERSATION, conversation_id), item_id)

    @_transaction(deletes=True)
    def delete_conversation_item(self, db: Connection, conversation_id: str, item_id: str) -> Json:
        """Removes one item from a conversation, and returns the conversation object. Raises NotFound."""
        body, old = tables.get(db, CONVERSATION, conversation_id)
        _set_turn(db, conversation_id, tables.turn_without(db, old, item_id))
        tables.drop_turn(db, old)
        return body

    def _touch(self, db: Connection, conversation_id: str) -> int | None:
        """Sets a conversation's last use to now, and returns the number of its last turn. Raises NotFound."""
        turn = tables.turn_of(db, CONVERSATION, conversation_id)
        db.execute("UPDATE entry SET used = ? WHERE id = ?", (self._clock(), conversation_id))
        return turn


def _set_turn(db: Connection, conversation_id: str, turn: int) -> None:
    db.execute("UPDATE entry SET turn = ? WHERE id = ?", (turn, conversation_id))


def _server_of(db: Connection, response_id: str) -> str | None:
    """Returns the id of the server that generates a response, or None if the response is finished."""
    server: str | None = db.one("SELECT server FROM run WHERE response = ?", (response_id,))
    return server


def _put_response(db: Connection, body: Json, turn: int | None, frames: Sequence[bytes] = ()) -> None:
    packer = zlib.compressobj(1)
    events = b"".join([*map(packer.compress, frames), packer.flush()]) if frames else None
    tables.put(db, RESPONSE, body, used=float(body["created_at"]), turn=turn, events=events)


def _interrupted(body: Json) -> Json:
    """Returns a response object, whose server has stopped, with the status failed."""
    return body | {"status": "failed", "error": INTERRUPTED, "incomplete_details": None, "usage": None}


def _add_turn(db: Connection, context: Context) -> int:
    """Adds the turn of a response, and returns its number. It contains a history that was deleted meanwhile."""
    if context.turn is None or tables.has_turn(db, context.turn):
        return tables.add_turn(db, context.turn, context.input)
    return tables.add_turn(db, None, context.items)


def _context(db: Connection, turn: int | None, items: list[Json], conversation: str | None = None) -> Context:
    history = tables.items_of(db, turn)
    return Context(history=history, input=_resolved(db, items, history), turn=turn, conversation=conversation)


def _finished_turn(db: Connection, previous: str | None) -> int | None:
    """Returns the turn of the response with the id `previous`, or None without an id.

    Raises BadRequest if the response is unknown, not finished or failed, so that it cannot be continued.
    """
    if previous is None:
        return None
    try:
        body, turn = tables.get(db, RESPONSE, previous)
    except NotFound:
        text = f"Previous response with id {previous[:100]!r} not found."
        raise BadRequest(text, param="previous_response_id", code="previous_response_not_found") from None
    server = _server_of(db, previous)
    if server is not None and db.holds(server):
        raise BadRequest(f"Response {previous!r} is not finished yet.", param="previous_response_id")
    if server is not None or body["status"] == "failed":
        raise BadRequest(f"Response {previous!r} failed and cannot be continued.", param="previous_response_id")
    return turn


def _resolved(db: Connection, items: list[Json], history: list[Json]) -> list[Json]:
    """Replaces references by the stored items with their ids. Raises NotFound.

    An item is looked for in the history, and then among all items if this server made its id, which cannot be guessed.
    A client may choose ids such as "msg_1", by which it must not get items of other clients.
    """
    if not any(item["type"] == REFERENCE for item in items):
        return items
    known = {item["id"]: item for item in history}
    return [_stored_item(db, item["id"], known) if item["type"] == REFERENCE else item for item in items]


def _stored_item(db: Connection, item_id: str, known: dict[str, Json]) -> Json:
    found = known.get(item_id) or (tables.find_item(db, item_id) if is_made_here(item_id) else None)
    if found is None:
        raise NotFound(f"Item with id {item_id[:100]!r} not found: it was not stored, or has expired.")
    return found
