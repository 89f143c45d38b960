"""What is kept, as SQL: responses, conversations, and the items that they share.

An item is written once; responses and conversations name the items of their context by number (`place`), so a long
conversation costs one row of two integers for each item and turn, and nothing breaks when an early response is deleted
or has aged: an item goes when nobody names it any more. Tables with bodies have rowids: without, SQLite gives every row
of more than 1,000 bytes a page of its own beside it. All functions run inside somebody's transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import orjson

from ....errors import StoreFailure
from ....types import Json

VERSION = 1

_SCHEMA = """
CREATE TABLE response (
    id TEXT PRIMARY KEY, created REAL NOT NULL, live INTEGER NOT NULL, body BLOB NOT NULL, events BLOB
);
CREATE INDEX response_created ON response (created);
CREATE TABLE conversation (
    id TEXT PRIMARY KEY, created REAL NOT NULL, used REAL NOT NULL, metadata BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX conversation_used ON conversation (used);
CREATE TABLE item (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, body BLOB NOT NULL);
CREATE INDEX item_id ON item (id);
CREATE TABLE place (
    owner TEXT NOT NULL, position INTEGER NOT NULL, item INTEGER NOT NULL, output INTEGER NOT NULL,
    PRIMARY KEY (owner, position)
) WITHOUT ROWID;
CREATE INDEX place_item ON place (item);
"""


@dataclass(slots=True)
class Entry:
    """An item, and its number once it is kept. Numbers are never used again."""

    item: Json
    number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much is kept. created before `since` is too old; most: responses, and conversations; size in bytes."""

    since: float
    most: int
    most_bytes: int


def prepare(connection: sqlite3.Connection) -> None:
    """Make the tables of a new file. Raises StoreFailure for a file that is something else."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == VERSION:
        return
    if version or connection.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise StoreFailure("the file holds something else, or comes from another version")
    for statement in _SCHEMA.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {VERSION}")


# --- items ---


def items_of(connection: sqlite3.Connection, owner: str) -> list[Entry]:
    """The items of a response (input, then output) or of a conversation, in their order."""
    return [entry for entry, _ in _placed(connection, owner)]


def input_of(connection: sqlite3.Connection, owner: str) -> list[Entry]:
    """What a response answers: the items of earlier turns and its own input."""
    return [entry for entry, output in _placed(connection, owner) if not output]


def _placed(connection: sqlite3.Connection, owner: str) -> list[tuple[Entry, bool]]:
    rows = connection.execute(
        "SELECT number, body, output FROM place JOIN item ON number = item WHERE owner = ? ORDER BY position", (owner,)
    )
    return [(Entry(orjson.loads(body), number), bool(output)) for number, body, output in rows]


def find_item(connection: sqlite3.Connection, item_id: str) -> Entry | None:
    """The newest item of that id."""
    row = connection.execute(
        "SELECT number, body FROM item WHERE id = ? ORDER BY number DESC LIMIT 1", (item_id,)
    ).fetchone()
    return row and Entry(orjson.loads(row[1]), row[0])


def add_items(connection: sqlite3.Connection, owner: str, entries: Iterable[Entry], output: bool = False) -> None:
    """Put items behind those that owner has; they get their numbers here."""
    row = connection.execute("SELECT max(position) FROM place WHERE owner = ?", (owner,)).fetchone()
    first = 0 if row[0] is None else row[0] + 1
    for position, entry in enumerate(entries, first):
        _keep(connection, entry)
        connection.execute("INSERT INTO place VALUES (?, ?, ?, ?)", (owner, position, entry.number, output))


def _keep(connection: sqlite3.Connection, entry: Entry) -> None:
    known = "SELECT 1 FROM item WHERE number = ?"
    if entry.number is not None and connection.execute(known, (entry.number,)).fetchone():
        return
    # A number that is not there any more: the item's last owner has gone since it was read.
    row = (entry.number, entry.item["id"], orjson.dumps(entry.item))
    entry.number = connection.execute("INSERT INTO item VALUES (?, ?, ?)", row).lastrowid


def drop_items(connection: sqlite3.Connection, owner: str) -> None:
    """Let go of all items of an owner, and forget those that nobody else has."""
    numbers = connection.execute("SELECT DISTINCT item FROM place WHERE owner = ?", (owner,)).fetchall()
    connection.execute("DELETE FROM place WHERE owner = ?", (owner,))
    connection.executemany(_FORGET_ITEM, numbers)


_FORGET_ITEM = "DELETE FROM item WHERE number = ?1 AND NOT EXISTS (SELECT 1 FROM place WHERE item = ?1)"


def drop_item(connection: sqlite3.Connection, owner: str, item_id: str) -> bool:
    """Let go of the items of that id; whether there were any."""
    rows = connection.execute(
        "SELECT position, number FROM place JOIN item ON number = item WHERE owner = ? AND id = ?", (owner, item_id)
    ).fetchall()
    for position, number in rows:
        connection.execute("DELETE FROM place WHERE owner = ? AND position = ?", (owner, position))
        connection.execute(_FORGET_ITEM, (number,))
    return bool(rows)


# --- responses ---


def put_response(connection: sqlite3.Connection, body: Json, live: bool, events: bytes | None = None) -> None:
    """Keep a response object, new or changed. live: it is still being made."""
    row = (body["id"], float(body["created_at"]), live, orjson.dumps(body), events)
    connection.execute("INSERT OR REPLACE INTO response VALUES (?, ?, ?, ?, ?)", row)


def get_response(connection: sqlite3.Connection, response_id: str) -> tuple[Json, bool] | None:
    """(the response object, whether it was still being made when it was written)."""
    row = connection.execute("SELECT body, live FROM response WHERE id = ?", (response_id,)).fetchone()
    return row and (orjson.loads(row[0]), bool(row[1]))


def get_events(connection: sqlite3.Connection, response_id: str) -> bytes | None:
    """The stream of a response, if it was kept."""
    row = connection.execute("SELECT events FROM response WHERE id = ?", (response_id,)).fetchone()
    return None if row is None else row[0]


def live_responses(connection: sqlite3.Connection) -> list[Json]:
    """Those that were being made when they were written."""
    return [orjson.loads(row[0]) for row in connection.execute("SELECT body FROM response WHERE live")]


def drop_response(connection: sqlite3.Connection, response_id: str) -> bool:
    """Forget a response; whether there was one."""
    found = connection.execute("DELETE FROM response WHERE id = ?", (response_id,)).rowcount > 0
    if found:
        drop_items(connection, response_id)
    return found


# --- conversations ---


def put_conversation(connection: sqlite3.Connection, body: Json, used: float) -> None:
    """Keep a conversation object, new or changed."""
    row = (body["id"], float(body["created_at"]), used, orjson.dumps(body["metadata"]))
    connection.execute("INSERT OR REPLACE INTO conversation VALUES (?, ?, ?, ?)", row)


def get_conversation(connection: sqlite3.Connection, conversation_id: str) -> Json | None:
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


def touch_conversation(connection: sqlite3.Connection, conversation_id: str, used: float) -> bool:
    """Note that a conversation is in use; whether there is one."""
    row = (used, conversation_id)
    return connection.execute("UPDATE conversation SET used = ? WHERE id = ?", row).rowcount > 0


def drop_conversation(connection: sqlite3.Connection, conversation_id: str) -> bool:
    """Forget a conversation; its responses stay. Whether there was one."""
    found = connection.execute("DELETE FROM conversation WHERE id = ?", (conversation_id,)).rowcount > 0
    if found:
        drop_items(connection, conversation_id)
    return found


# --- bounds ---


def drop_old(connection: sqlite3.Connection, bounds: Bounds) -> None:
    """Forget what is too old. Cheap when there is nothing."""
    for row in connection.execute("SELECT id FROM response WHERE created < ? AND NOT live", (bounds.since,)).fetchall():
        drop_response(connection, row[0])
    for row in connection.execute("SELECT id FROM conversation WHERE used < ?", (bounds.since,)).fetchall():
        drop_conversation(connection, row[0])


def drop_excess(connection: sqlite3.Connection, bounds: Bounds, spare: str) -> None:
    """Forget the oldest of what is too much; never the one that was just written (spare), nor live ones."""
    for kind in _KINDS:
        excess = connection.execute(kind.count).fetchone()[0] - bounds.most
        for row in connection.execute(kind.oldest, (spare, max(excess, 0))).fetchall():
            kind.drop(connection, row[0])
    while _bytes_used(connection) > bounds.most_bytes and _drop_one(connection, spare):
        pass


def _drop_one(connection: sqlite3.Connection, spare: str) -> bool:
    """Forget the oldest response, or if there is none the conversation that was not used for longest."""
    for kind in _KINDS:
        for row in connection.execute(kind.oldest, (spare, 1)).fetchall():
            return kind.drop(connection, row[0])
    return False


@dataclass(frozen=True, slots=True)
class _Kind:
    """How to count, find and forget what is bounded."""

    count: str
    oldest: str
    drop: Callable[[sqlite3.Connection, str], bool]


_KINDS = (
    _Kind(
        "SELECT count(*) FROM response",
        "SELECT id FROM response WHERE id != ? AND NOT live ORDER BY created LIMIT ?",
        drop_response,
    ),
    _Kind(
        "SELECT count(*) FROM conversation",
        "SELECT id FROM conversation WHERE id != ? ORDER BY used LIMIT ?",
        drop_conversation,
    ),
)


def _bytes_used(connection: sqlite3.Connection) -> int:
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int(pages - free) * int(size)
