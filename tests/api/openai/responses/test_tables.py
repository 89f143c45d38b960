"""The tables of the response store under any order of turns, deletions and bounds: nothing dangles, nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lean_ovms.api.openai.responses import tables
from lean_ovms.api.openai.responses.connection import DatabaseConnection, Sqlite
from lean_ovms.api.openai.responses.postgres import Postgres, is_url
from lean_ovms.api.openai.responses.tables import StoredItem, StoreLimits

TABLES = ("item", "response", "place")

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("turn"), st.integers(-1, 30), st.integers(1, 3)),
        st.tuples(st.just("delete"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("chat"), st.integers(0, 2), st.integers(1, 3)),
        st.tuples(st.just("leave"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("age"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("crowd"), st.integers(1, 8), st.just(0)),
    ),
    max_size=40,
)


class Book:
    """The tables, and beside them what should be in them: owner to item ids."""

    def __init__(self, connection: DatabaseConnection) -> None:
        self.connection = connection
        self.expected: dict[str, list[str]] = {}
        self.made: list[str] = []
        self.items = 0

    def new_items(self, count: int) -> list[StoredItem]:
        self.items += count
        return [StoredItem({"id": f"msg_{self.items - i}"}) for i in range(count)]

    def turn(self, after: int, count: int) -> None:
        previous = self.made[after] if 0 <= after < len(self.made) else ""
        before = tables.items_of(self.connection, previous) if previous in self.expected else []
        name = f"resp_{len(self.made)}"
        entries = [*before, *self.new_items(count)]
        tables.add_items(self.connection, name, entries)
        tables.put_response(self.connection, {"id": name, "created_at": len(self.made)}, live=False)
        said = self.new_items(1)
        tables.add_items(self.connection, name, said, output=True)
        self.made.append(name)
        self.expected[name] = [entry.item["id"] for entry in (*entries, *said)]

    def chat(self, which: int, count: int) -> None:
        name = f"conv_{which}"
        if name not in self.expected:
            tables.put_conversation(self.connection, {"id": name, "created_at": 0, "metadata": {}}, used=0)
        entries = self.new_items(count)
        tables.add_items(self.connection, name, entries)
        self.expected.setdefault(name, []).extend(entry.item["id"] for entry in entries)

    def delete(self, which: int, _: int) -> None:
        name = self.made[which] if which < len(self.made) else "resp_no"
        assert tables.drop_response(self.connection, name) == (name in self.expected)
        self.expected.pop(name, None)

    def leave(self, which: int, _: int) -> None:
        name = f"conv_{which}"
        assert tables.drop_conversation(self.connection, name) == (name in self.expected)
        self.expected.pop(name, None)

    def age(self, since: int, _: int) -> None:
        tables.drop_old(self.connection, StoreLimits(since=since, max_count=99, max_bytes=1 << 30))
        young = {f"resp_{number}" for number in range(since, len(self.made))}
        young |= {f"conv_{which}" for which in range(3) if since <= 0}
        self.expected = {name: items for name, items in self.expected.items() if name in young}

    def crowd(self, most: int, _: int) -> None:
        tables.drop_excess(self.connection, StoreLimits(since=0, max_count=most, max_bytes=1 << 30), spare="")
        for kind in ("resp_", "conv_"):
            mine = [name for name in self.expected if name.startswith(kind)]
            if kind == "conv_":
                mine.sort()  # all were used at the same time: the id decides
            for name in mine[: max(0, len(mine) - most)]:
                del self.expected[name]

    def check(self) -> None:
        for name, items in self.expected.items():
            assert [entry.item["id"] for entry in tables.items_of(self.connection, name)] == items
        owners = {row[0] for row in self.connection.execute("SELECT owner FROM place")}
        assert owners == set(self.expected)
        kept = [row[0] for row in self.connection.execute("SELECT id FROM item")]
        assert len(set(kept)) == len(kept)
        assert set(kept) == {item for items in self.expected.values() for item in items}, "no more and no less"
        counted = self.connection.execute("SELECT bytes FROM kept").fetchone()[0]
        sizes = "SELECT sum(length(body)) FROM {}"
        total = sum(int(self.connection.execute(sizes.format(n)).fetchone()[0] or 0) for n in ("item", "response"))
        rows = sum(self.connection.execute(f"SELECT count(*) FROM {n}").fetchone()[0] for n in TABLES)
        assert counted == total + tables.ROW_BYTES * rows


@pytest.fixture
def connection(kept_in: str) -> Iterator[DatabaseConnection]:
    """With the tables, in a transaction."""
    made: DatabaseConnection = Postgres(kept_in) if is_url(kept_in) else Sqlite(kept_in)
    made.begin(write=True)
    tables.prepare(made)
    yield made
    made.close()


FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.slow
@FEW
@given(OPERATIONS)
def test_what_is_kept_is_what_somebody_owns(
    connection: DatabaseConnection, operations: list[tuple[str, int, int]]
) -> None:
    connection.execute("SAVEPOINT example")
    book = Book(connection)
    try:
        for name, *arguments in operations:
            getattr(book, name)(*arguments)
            book.check()
    finally:
        connection.execute("ROLLBACK TO example")


@pytest.mark.slow
def test_a_long_conversation_costs_each_item_once(connection: DatabaseConnection) -> None:
    before: list[StoredItem] = []
    for turn in range(30):
        own: list[Any] = [StoredItem({"id": f"msg_{turn}", "content": "x" * 1000})]
        tables.add_items(connection, f"resp_{turn}", [*before, *own])
        before = tables.items_of(connection, f"resp_{turn}")
    assert len(before) == 30
    assert connection.execute("SELECT count(*) FROM item").fetchone()[0] == 30
