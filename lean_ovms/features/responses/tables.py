"""The tables of the store, in SQL for SQLite and PostgreSQL: entries, turns, and items.

An entry is a response or a conversation, and refers to its last turn. A turn refers to its parent, the turn before it.
The items of an entry are those of its last turn and of all turns before that, so each item is stored once, however many
responses continue it. A turn is deleted with its items when no entry and no later turn refers to it, so deleting an
early response breaks nothing. Items are numbered as they are written, which is their order. All functions run inside
the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...errors import NotFound, StoreFailure
from ...types import Json
from ...util import chunked_json
from .connection import Connection
from .items import is_usable

VERSION = 3

RESPONSE, CONVERSATION = "response", "conversation"
"""The kinds of entries."""

ROW_BYTES = 150
"""Approximate size of a row without its bodies, index entries included: in a chain of 400 responses (2026-11)."""

_SCHEMA = """
CREATE TABLE entry (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, used DOUBLE PRECISION NOT NULL, turn BIGINT, body BYTEA NOT NULL,
    events BYTEA
);
CREATE INDEX entry_used ON entry (kind, used);
CREATE INDEX entry_turn ON entry (turn);
CREATE TABLE turn (number {number}, parent BIGINT, bytes BIGINT NOT NULL);
CREATE INDEX turn_parent ON turn (parent);
CREATE TABLE item (
    number {number}, id TEXT NOT NULL, turn BIGINT NOT NULL, origin BIGINT NOT NULL, body BYTEA NOT NULL
);
CREATE INDEX item_id ON item (id);
CREATE INDEX item_turn ON item (turn);
CREATE TABLE run (
    response TEXT PRIMARY KEY, server TEXT NOT NULL, seen DOUBLE PRECISION NOT NULL, stop BIGINT NOT NULL
);
CREATE VIEW idle AS SELECT id, kind, used FROM entry WHERE NOT EXISTS (SELECT 1 FROM run WHERE response = entry.id);
CREATE TABLE kept (bytes BIGINT NOT NULL)
"""
"""used: the time of a response's creation, of a conversation's last use. run: the responses that servers generate; the
last two columns are 0 here: servers of an older version, which may share the store while they are replaced, read them.
"""

INPUT, OUTPUT, CUT = 0, 1, 2
"""The origins of items. Later turns do not get those that are cut off."""

_PATH = """
WITH RECURSIVE path (turn, parent) AS (
    SELECT number, parent FROM turn WHERE number = ?
    UNION ALL SELECT number, turn.parent FROM turn JOIN path ON number = path.parent
)
"""
_ON_PATH = "FROM item JOIN path ON item.turn = path.turn WHERE origin < CASE WHEN item.turn = ? THEN 1 ELSE 2 END"
"""A part of queries. Its values are the turn, and again the turn if its output is left out, or else 0."""
_USERS = "SELECT 1 FROM turn WHERE parent = ? UNION ALL SELECT 1 FROM entry WHERE turn = ?"
_OF_PAGE = "FROM item WHERE number IN (SELECT number FROM page)"


def prepare(db: Connection) -> None:
    """Creates the tables of a new database. Raises StoreFailure if the database has other tables."""
    version = db.version()
    if version not in (0, VERSION):
        age = "a newer" if version > VERSION else "an older"
        raise StoreFailure(f"the response store was written by {age} version")
    if version == VERSION:
        return
    for statement in _SCHEMA.split(";"):
        db.execute(statement.format(number=db.number))
    db.execute("INSERT INTO kept VALUES (0)")
    db.set_version(VERSION)


def not_found(what: str, name: str) -> NotFound:
    """Returns the error for an unknown id of a response, a conversation or an item."""
    return NotFound(f"{what.capitalize()} with id {name[:100]!r} not found.")


def _add_bytes(db: Connection, size: int) -> None:
    """Adds `size`, which may be negative, to the stored number of bytes of all objects."""
    db.execute("UPDATE kept SET bytes = bytes + ?", (size,))


# --- turns and their items ---


def add_turn(db: Connection, parent: int | None, items: Iterable[Json]) -> int:
    """Adds a turn with input items after the turn `parent`, and returns its number. Numbers are never reused."""
    [(turn,)] = db.execute("INSERT INTO turn (parent, bytes) VALUES (?, 0) RETURNING number", (parent,)).fetchall()
    _add_turn_bytes(db, turn, ROW_BYTES)
    add_items(db, turn, items, INPUT)
    return int(turn)


def add_items(db: Connection, turn: int, items: Iterable[Json], origin: int) -> None:
    """Appends items to a turn. Output items that later turns cannot use, such as cut calls, get the origin CUT."""
    size = 0
    for item in items:
        body = chunked_json.dumps(item)
        row = (item["id"], turn, CUT if origin == OUTPUT and not is_usable(item) else origin, body)
        db.execute("INSERT INTO item (id, turn, origin, body) VALUES (?, ?, ?, ?)", row)
        size += len(body) + ROW_BYTES
    _add_turn_bytes(db, turn, size)


def _add_turn_bytes(db: Connection, turn: int, size: int) -> None:
    db.execute("UPDATE turn SET bytes = bytes + ? WHERE number = ?", (size, turn))
    _add_bytes(db, size)


def has_turn(db: Connection, turn: int) -> bool:
    """Returns whether a turn is stored."""
    return db.one("SELECT 1 FROM turn WHERE number = ?", (turn,)) is not None


def drop_turn(db: Connection, turn: int | None) -> None:
    """Deletes a turn if nothing refers to it, then in the same way its parent, and so on."""
    while turn is not None and db.one(_USERS, (turn, turn)) is None:
        [(parent, size)] = db.execute("DELETE FROM turn WHERE number = ? RETURNING parent, bytes", (turn,)).fetchall()
        db.execute("DELETE FROM item WHERE turn = ?", (turn,))
        _add_bytes(db, -size)
        turn = parent


def items_of(db: Connection, turn: int | None) -> list[Json]:
    """Returns the items of a turn and of all turns before it, in their order."""
    rows = db.execute(f"{_PATH} SELECT body {_ON_PATH} ORDER BY number", (turn, 0))
    return [chunked_json.loads(body) for (body,) in rows]


def page_of(
    db: Connection, turn: int | None, *, after: str | None, limit: int, newest_first: bool, output: bool = True
) -> list[tuple[str, bytes]] | None:
    """Returns items of a turn and of all turns before it.

    Args:
        db: The database.
        turn: The number of the turn; None if there are no items.
        after: The id of the item after which the page begins; None if it begins with the first item.
        limit: The most items that are returned.
        newest_first: Whether the newest item comes first.
        output: Whether the output items of the last turn are included.

    Returns:
        The id and the JSON of each item; None if there is no item with the id `after`.
    """
    what, values = _ON_PATH, [turn, 0 if output else turn]
    order, beyond = ("DESC", "<") if newest_first else ("ASC", ">")
    if after is not None:
        query = f"{_PATH} SELECT number {what} AND id = ? ORDER BY number {order} LIMIT 1"
        number = db.one(query, (*values, after))
        if number is None:
            return None
        what += f" AND number {beyond} ?"
        values.append(number)
    # Finds the page without sorting bodies.
    page = f"{_PATH}, page AS (SELECT number {what} ORDER BY number {order} LIMIT ?)"
    rows = db.execute(f"{page} SELECT id, body {_OF_PAGE} ORDER BY number {order}", [*values, limit])
    return [(item_id, bytes(body)) for item_id, body in rows]


def item_of(db: Connection, turn: int | None, item_id: str) -> bytes:
    """Returns the JSON of the first item with this id in a turn and all turns before it. Raises NotFound."""
    body = db.one(f"{_PATH} SELECT body {_ON_PATH} AND id = ? ORDER BY number LIMIT 1", (turn, 0, item_id))
    if body is None:
        raise not_found("item", item_id)
    return bytes(body)


def find_item(db: Connection, item_id: str) -> Json | None:
    """Returns the newest of all items with this id, or None."""
    body = db.one("SELECT body FROM item WHERE id = ? ORDER BY number DESC LIMIT 1", (item_id,))
    return None if body is None else dict(chunked_json.loads(body))


def turn_without(db: Connection, turn: int | None, item_id: str) -> int:
    """Removes the items with an id from the turns up to `turn`, and returns the last turn of what remains.

    If only the last turn has such items, and only one entry or turn refers to it, they are deleted from it. Otherwise
    all items from the first such turn on are copied to a new turn, since others may refer to the old ones. Raises
    NotFound if there are no such items.
    """
    first = db.one(f"{_PATH} SELECT min(path.turn) {_ON_PATH} AND id = ?", (turn, 0, item_id))
    if first is None:
        raise not_found("item", item_id)
    if first == turn and len(db.execute(_USERS, (turn, turn)).fetchall()) == 1:
        delete = "DELETE FROM item WHERE turn = ? AND id = ? RETURNING length(body)"
        _add_turn_bytes(db, first, -sum(row[0] + ROW_BYTES for row in db.execute(delete, (turn, item_id)).fetchall()))
        return int(first)
    made = add_turn(db, db.one("SELECT parent FROM turn WHERE number = ?", (first,)), ())
    rest = f"{_ON_PATH} AND item.turn >= ? AND id != ?"
    values = (turn, 0, first, item_id)
    size = db.one(f"{_PATH} SELECT coalesce(sum(length(body) + {ROW_BYTES}), 0) {rest}", values)
    copied = f"{_PATH} SELECT id, {made}, origin, body {rest} ORDER BY number"
    db.execute(f"INSERT INTO item (id, turn, origin, body) {copied}", values)
    _add_turn_bytes(db, made, int(size))
    return made


# --- entries ---


def get(db: Connection, kind: str, name: str) -> tuple[Json, int | None]:
    """Returns the object of an entry and the number of its last turn. Raises NotFound."""
    body, turn = _row(db, "SELECT body, turn FROM entry WHERE id = ? AND kind = ?", kind, name)
    return chunked_json.loads(body), turn


def turn_of(db: Connection, kind: str, name: str) -> int | None:
    """Returns the number of an entry's last turn. Raises NotFound."""
    turn: int | None = _row(db, "SELECT turn FROM entry WHERE id = ? AND kind = ?", kind, name)[0]
    return turn


def _row(db: Connection, query: str, kind: str, name: str) -> Any:
    row = db.execute(query, (name, kind)).fetchone()
    if row is None:
        raise not_found(kind, name)
    return row


def put(db: Connection, kind: str, body: Json, *, used: float, turn: int | None, events: bytes | None = None) -> None:
    """Stores a new or changed object. If its turn changes, the old turn is not deleted."""
    data = chunked_json.dumps(body)
    _add_bytes(db, len(data) + len(events or b"") + ROW_BYTES - _delete_row(db, kind, body["id"])[0])
    db.execute("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?)", (body["id"], kind, used, turn, data, events))


def drop(db: Connection, kind: str, name: str) -> bool:
    """Deletes an entry, and returns whether it existed."""
    size, turn = _delete_row(db, kind, name)
    if size:
        _add_bytes(db, -size)
        db.execute("DELETE FROM run WHERE response = ?", (name,))
        drop_turn(db, turn)
    return size > 0


def _delete_row(db: Connection, kind: str, name: str) -> tuple[int, int | None]:
    """Deletes the row of an entry. Returns its bytes and its turn, or (0, None) if it does not exist."""
    delete = "DELETE FROM entry WHERE id = ? AND kind = ? RETURNING length(body) + coalesce(length(events), 0), turn"
    rows = db.execute(delete, (name, kind)).fetchall()
    return (int(rows[0][0]) + ROW_BYTES, rows[0][1]) if rows else (0, None)


def drop_excess(db: Connection, spare: str, *, max_count: int, max_bytes: int) -> bool:
    """Deletes the oldest responses, then the least recently used conversations, until no limit is exceeded.

    Returns whether that succeeded.

    Args:
        db: The database.
        spare: The id of an object that was just written; neither it nor running responses are deleted.
        max_count: The most responses, and also the most conversations.
        max_bytes: The most bytes of all objects.
    """
    for kind in (RESPONSE, CONVERSATION):
        count = db.one("SELECT count(*) FROM entry WHERE kind = ?", (kind,))
        _drop_oldest(db, kind, spare, max(count - max_count, 0))
    while db.one("SELECT bytes FROM kept") > max_bytes:
        if not any(_drop_oldest(db, kind, spare, 1) for kind in (RESPONSE, CONVERSATION)):
            return False
    return True


def has_history(db: Connection, name: str) -> bool:
    """Returns whether the last turn of an entry has a turn before it."""
    query = "SELECT parent FROM turn JOIN entry ON turn.number = entry.turn WHERE entry.id = ?"
    return db.one(query, (name,)) is not None


def _drop_oldest(db: Connection, kind: str, spare: str, count: int) -> bool:
    query = "SELECT id FROM idle WHERE kind = ? AND id != ? ORDER BY used, id LIMIT ?"
    rows: list[Any] = db.execute(query, (kind, spare, count)).fetchall()
    for (name,) in rows:
        drop(db, kind, name)
    return bool(rows)
