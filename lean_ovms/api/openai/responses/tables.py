"""The tables of the store, as SQL for SQLite and PostgreSQL: responses, conversations, and the items that they share.

An item is written once; responses and conversations reference their items by number (`place`), so a long conversation
costs one small row for each item and turn. Deleting or expiring an early response breaks nothing: an item is deleted
with its last reference. Tables with bodies have rowids: without them, SQLite gives every row of more than 1,000 bytes
an overflow page. All functions run inside the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from ....errors import StoreFailure
from ....types import Json
from ....util import chunked_json
from .connection import DatabaseConnection, Rows
from .output_items import is_made_here

VERSION = 2

ROW_BYTES = 150
"""Approximate size of a row without its bodies, index entries included: in a chain of 400 responses (2026-11)."""

_SCHEMA = """
CREATE TABLE response (
    id TEXT PRIMARY KEY, created {real} NOT NULL, live {integer} NOT NULL, body {blob} NOT NULL, events {blob}
);
CREATE INDEX response_created ON response (created);
CREATE TABLE conversation (
    id TEXT PRIMARY KEY, created {real} NOT NULL, used {real} NOT NULL, metadata {blob} NOT NULL
) {compact};
CREATE INDEX conversation_used ON conversation (used);
CREATE TABLE item (number {number}, id TEXT NOT NULL, body {blob} NOT NULL);
CREATE INDEX item_id ON item (id);
CREATE TABLE place (
    owner TEXT NOT NULL, position {integer} NOT NULL, item {integer} NOT NULL, output {integer} NOT NULL,
    PRIMARY KEY (owner, position)
) {compact};
CREATE INDEX place_item ON place (item);
CREATE TABLE run (response TEXT PRIMARY KEY, seen {real} NOT NULL, cancelled {integer} NOT NULL) {compact};
CREATE TABLE kept (bytes {integer} NOT NULL)
"""
"""run: the running responses, the time of their server's last heartbeat, whether they must stop."""


@dataclass(slots=True)
class StoredItem:
    """An item, and its number once it is stored. Numbers are never reused."""

    item: Json
    number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """The limits of the store. since: oldest creation time. max_count: of responses, and of conversations."""

    since: float
    max_count: int
    max_bytes: int


def prepare(connection: DatabaseConnection) -> None:
    """Creates the tables of a new database. Raises StoreFailure for a database with other tables."""
    version = connection.version()
    if version not in (0, VERSION):
        age = "a newer" if version > VERSION else "an older"
        raise StoreFailure(f"the response store was written by {age} version")
    if version == VERSION:
        return
    for statement in _SCHEMA.split(";"):
        connection.execute(statement.format(**connection.types))
    connection.execute("INSERT INTO kept VALUES (0)")
    connection.set_version(VERSION)


def _add_bytes(connection: DatabaseConnection, size: int) -> None:
    """Add size, which may be negative, to the stored total of bytes."""
    if size:
        connection.execute("UPDATE kept SET bytes = bytes + ?", (size,))


# --- items ---


def items_of(connection: DatabaseConnection, owner: str) -> list[StoredItem]:
    """The items of a response (input, then output) or of a conversation, in order."""
    rows = connection.execute(
        "SELECT number, body FROM place JOIN item ON number = item WHERE owner = ? ORDER BY position", (owner,)
    )
    return [StoredItem(chunked_json.loads(body), number) for number, body in rows]


def page_of(
    connection: DatabaseConnection,
    owner: str,
    *,
    after: str | None,
    limit: int,
    newest_first: bool,
    output: bool = True,
) -> list[tuple[str, bytes]] | None:
    """(id, JSON) of at most `limit` items of an owner, behind the item with the id `after`; None without that item.

    output: False leaves out what a response has generated.
    """
    what = "FROM place JOIN item ON number = item WHERE owner = ?" + ("" if output else " AND output = 0")
    order, beyond = ("DESC", "<") if newest_first else ("ASC", ">")
    values: tuple[Any, ...] = (owner,)
    if after is not None:
        found = connection.execute(
            f"SELECT position {what} AND id = ? ORDER BY position {order} LIMIT 1", (owner, after)
        ).fetchone()
        if found is None:
            return None
        what += f" AND position {beyond} ?"
        values = (owner, found[0])
    rows = connection.execute(f"SELECT id, body {what} ORDER BY position {order} LIMIT ?", (*values, limit))
    return [(item_id, bytes(body)) for item_id, body in rows]


def item_of(connection: DatabaseConnection, owner: str, item_id: str) -> bytes | None:
    """The JSON of an owner's first item with this id."""
    row = connection.execute(
        "SELECT body FROM place JOIN item ON number = item WHERE owner = ? AND id = ? ORDER BY position LIMIT 1",
        (owner, item_id),
    ).fetchone()
    return row and bytes(row[0])


def find_item(connection: DatabaseConnection, item_id: str, owner: str = "") -> StoredItem | None:
    """The newest item with this id: of this owner, or else of any, if the id is one that cannot be guessed.

    A client may name its items as it likes ("msg_1"), and must not get those that another client names so.
    """
    query = "SELECT number, body FROM item {} WHERE id = ? ORDER BY number DESC LIMIT 1"
    mine = query.format("JOIN place ON item = number AND owner = ?")
    row = connection.execute(mine, (owner, item_id)).fetchone()
    if row is None and is_made_here(item_id):
        row = connection.execute(query.format(""), (item_id,)).fetchone()
    return row and StoredItem(chunked_json.loads(row[1]), row[0])


def add_items(connection: DatabaseConnection, owner: str, entries: Iterable[StoredItem], output: bool = False) -> None:
    """Append items to those of owner; sets their numbers."""
    row = connection.execute("SELECT max(position) FROM place WHERE owner = ?", (owner,)).fetchone()
    first = 0 if row[0] is None else row[0] + 1
    size = 0
    for position, entry in enumerate(entries, first):
        size += _insert_item(connection, entry) + ROW_BYTES
        connection.execute("INSERT INTO place VALUES (?, ?, ?, ?)", (owner, position, entry.number, int(output)))
    _add_bytes(connection, size)


def _insert_item(connection: DatabaseConnection, entry: StoredItem) -> int:
    """Write an item unless it is stored already; returns the number of bytes added."""
    known = "SELECT 1 FROM item WHERE number = ? AND id = ?"
    if entry.number is not None and connection.execute(known, (entry.number, entry.item["id"])).fetchone():
        return 0
    # Its number may be stale: the item's last owner was deleted after the item was read, or the transaction failed.
    row = (entry.item["id"], chunked_json.dumps(entry.item))
    found = connection.execute("INSERT INTO item (id, body) VALUES (?, ?) RETURNING number", row).fetchall()
    entry.number = found[0][0]
    return len(row[1]) + ROW_BYTES


def drop_items(connection: DatabaseConnection, owner: str) -> None:
    """Remove all items of an owner, and delete those without another owner."""
    numbers = connection.execute("SELECT DISTINCT item FROM place WHERE owner = ?", (owner,)).fetchall()
    size = ROW_BYTES * connection.execute("DELETE FROM place WHERE owner = ?", (owner,)).rowcount
    size += sum(_drop_unused_item(connection, number) for (number,) in numbers)
    _add_bytes(connection, -size)


def _drop_unused_item(connection: DatabaseConnection, number: int) -> int:
    """Delete an item if it has no owner; returns the number of bytes freed."""
    delete = "DELETE FROM item WHERE number = ? AND NOT EXISTS (SELECT 1 FROM place WHERE item = ?)"
    return _sizes(connection.execute(f"{delete} RETURNING length(body)", (number, number)))


def _sizes(rows: Rows) -> int:
    """Total bytes of rows; each result row is the length of a body."""
    return sum(int(row[0]) + ROW_BYTES for row in rows.fetchall())


def drop_item(connection: DatabaseConnection, owner: str, item_id: str) -> bool:
    """Remove the items with this id from owner; whether there were any."""
    rows = connection.execute(
        "SELECT position, number FROM place JOIN item ON number = item WHERE owner = ? AND id = ?", (owner, item_id)
    ).fetchall()
    size = 0
    for position, number in rows:
        connection.execute("DELETE FROM place WHERE owner = ? AND position = ?", (owner, position))
        size += ROW_BYTES + _drop_unused_item(connection, number)
    _add_bytes(connection, -size)
    return bool(rows)


# --- responses ---


def put_response(connection: DatabaseConnection, body: Json, live: bool, events: bytes | None = None) -> None:
    """Store a response object, new or changed. live: it is still running, and gets a row in `run`."""
    data = chunked_json.dumps(body)
    old = "SELECT length(body) + coalesce(length(events), 0) FROM response WHERE id = ?"
    size = len(data) + len(events or b"") + ROW_BYTES - _sizes(connection.execute(old, (body["id"],)))
    connection.execute(
        "INSERT INTO response VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
        " created = excluded.created, live = excluded.live, body = excluded.body, events = excluded.events",
        (body["id"], float(body["created_at"]), int(live), data, events),
    )
    _add_bytes(connection, size)
    if live:
        connection.execute("INSERT INTO run VALUES (?, ?, 0)", (body["id"], connection.now()))
    else:
        connection.execute("DELETE FROM run WHERE response = ?", (body["id"],))


def get_response(connection: DatabaseConnection, response_id: str) -> tuple[Json, bool] | None:
    """(the response object, whether the response was still running when it was written)."""
    row = connection.execute("SELECT body, live FROM response WHERE id = ?", (response_id,)).fetchone()
    return row and (chunked_json.loads(row[0]), bool(row[1]))


def has_response(connection: DatabaseConnection, response_id: str) -> bool:
    """Whether there is such a response."""
    return connection.execute("SELECT 1 FROM response WHERE id = ?", (response_id,)).fetchone() is not None


def get_events(connection: DatabaseConnection, response_id: str) -> bytes | None:
    """The stream of a response, if it was stored."""
    row = connection.execute("SELECT events FROM response WHERE id = ?", (response_id,)).fetchone()
    return None if row is None else row[0]


def drop_response(connection: DatabaseConnection, response_id: str) -> bool:
    """Delete a response; whether it existed."""
    delete = "DELETE FROM response WHERE id = ? RETURNING length(body) + coalesce(length(events), 0)"
    size = _sizes(connection.execute(delete, (response_id,)))
    if size:
        _add_bytes(connection, -size)
        connection.execute("DELETE FROM run WHERE response = ?", (response_id,))
        drop_items(connection, response_id)
    return size > 0


# --- running responses ---


def touch_run(connection: DatabaseConnection, response_id: str) -> None:
    """Write the heartbeat of a running response."""
    connection.execute("UPDATE run SET seen = ? WHERE response = ?", (connection.now(), response_id))


def request_stop(connection: DatabaseConnection, response_id: str) -> None:
    """Ask the server of a running response to stop it."""
    connection.execute("UPDATE run SET cancelled = 1 WHERE response = ?", (response_id,))


def stop_requested(connection: DatabaseConnection, response_id: str) -> bool | None:
    """Whether a running response must stop; None if it has finished or was deleted."""
    row = connection.execute("SELECT cancelled FROM run WHERE response = ?", (response_id,)).fetchone()
    return None if row is None else bool(row[0])


def stale_runs(connection: DatabaseConnection, timeout_s: float) -> list[Json]:
    """The running responses without a heartbeat for timeout_s."""
    if connection.execute("SELECT 1 FROM run LIMIT 1").fetchone() is None:
        return []
    rows = connection.execute(
        "SELECT body FROM run JOIN response ON id = response WHERE seen < ?", (connection.now() - timeout_s,)
    )
    return [orjson.loads(row[0]) for row in rows]


# --- conversations ---


def put_conversation(connection: DatabaseConnection, body: Json, used: float) -> None:
    """Store a conversation object, new or changed."""
    row = (body["id"], float(body["created_at"]), used, orjson.dumps(body["metadata"]))
    connection.execute(
        "INSERT INTO conversation VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
        " created = excluded.created, used = excluded.used, metadata = excluded.metadata",
        row,
    )


def get_conversation(connection: DatabaseConnection, conversation_id: str) -> Json | None:
    """The conversation object."""
    row = connection.execute("SELECT created, metadata FROM conversation WHERE id = ?", (conversation_id,)).fetchone()
    if row is None:
        return None
    return {
        "id": conversation_id,
        "object": "conversation",
        "created_at": int(row[0]),
        "metadata": orjson.loads(row[1]),
    }


def touch_conversation(connection: DatabaseConnection, conversation_id: str, used: float) -> bool:
    """Set the time of last use of a conversation; whether it exists."""
    row = (used, conversation_id)
    return connection.execute("UPDATE conversation SET used = ? WHERE id = ?", row).rowcount > 0


def drop_conversation(connection: DatabaseConnection, conversation_id: str) -> bool:
    """Delete a conversation, but not its responses; whether it existed."""
    found = connection.execute("DELETE FROM conversation WHERE id = ?", (conversation_id,)).rowcount > 0
    if found:
        drop_items(connection, conversation_id)
    return found


# --- bounds ---


def any_old(connection: DatabaseConnection, bounds: StoreLimits) -> bool:
    """Whether anything has expired."""
    return any(connection.execute(f"{kind.old} LIMIT 1", (bounds.since,)).fetchone() for kind in _KINDS)


def drop_old(connection: DatabaseConnection, bounds: StoreLimits) -> None:
    """Delete what has expired. Cheap if nothing has."""
    for kind in _KINDS:
        for row in connection.execute(kind.old, (bounds.since,)).fetchall():
            kind.drop(connection, row[0])


def drop_excess(connection: DatabaseConnection, bounds: StoreLimits, spare: str) -> None:
    """Delete the oldest beyond the limits; never `spare` (just written), nor running responses."""
    for kind in _KINDS:
        excess = connection.execute(kind.count).fetchone()[0] - bounds.max_count
        for row in connection.execute(kind.oldest, (spare, max(excess, 0))).fetchall():
            kind.drop(connection, row[0])
    while _bytes_used(connection) > bounds.max_bytes and _drop_one(connection, spare):
        pass


def _drop_one(connection: DatabaseConnection, spare: str) -> bool:
    """Delete the oldest response; if there is none, the least recently used conversation."""
    for kind in _KINDS:
        for row in connection.execute(kind.oldest, (spare, 1)).fetchall():
            return kind.drop(connection, row[0])
    return False


@dataclass(frozen=True, slots=True)
class _Kind:
    """SQL to count, find and delete one kind of stored object. old: the expired ones."""

    old: str
    count: str
    oldest: str
    drop: Callable[[DatabaseConnection, str], bool]


_KINDS = (
    _Kind(
        "SELECT id FROM response WHERE created < ? AND live = 0",
        "SELECT count(*) FROM response",
        "SELECT id FROM response WHERE id != ? AND live = 0 ORDER BY created, id LIMIT ?",
        drop_response,
    ),
    _Kind(
        "SELECT id FROM conversation WHERE used < ?",
        "SELECT count(*) FROM conversation",
        "SELECT id FROM conversation WHERE id != ? ORDER BY used, id LIMIT ?",
        drop_conversation,
    ),
)


def _bytes_used(connection: DatabaseConnection) -> int:
    return int(connection.execute("SELECT bytes FROM kept").fetchone()[0])
