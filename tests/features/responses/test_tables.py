"""The tables of the response store with any order of turns, deletions and limits: nothing dangles, and nothing is
lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lean_ovms.errors import NotFound
from lean_ovms.features.responses import tables
from lean_ovms.features.responses.connection import Connection
from lean_ovms.features.responses.postgres import Postgres, is_url
from lean_ovms.features.responses.sqlite import Sqlite
from lean_ovms.features.responses.tables import CONVERSATION, CUT, INPUT, OUTPUT, RESPONSE
from lean_ovms.types import Json

TABLES = ("item", "entry", "turn")

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("respond"), st.integers(-1, 30), st.integers(1, 3)),
        st.tuples(st.just("delete"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("chat"), st.integers(0, 2), st.integers(1, 3)),
        st.tuples(st.just("respond_in"), st.integers(0, 2), st.integers(1, 3)),
        st.tuples(st.just("take_out"), st.integers(0, 2), st.integers(0, 5)),
        st.tuples(st.just("leave"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("crowd"), st.integers(1, 8), st.just(0)),
    ),
    max_size=40,
)


class Book:
    """The tables, and what they should contain: the ids of each entry's items."""

    def __init__(self, db: Connection) -> None:
        self.db = db
        self.expected: dict[str, list[str]] = {}
        self.responses: list[str] = []
        self.items = 0

    def new_items(self, count: int) -> list[Json]:
        self.items += count
        return [{"id": f"msg_{self.items - i}", "type": "message"} for i in range(count)]

    def turn_of(self, name: str) -> int | None:
        row = self.db.execute("SELECT turn FROM entry WHERE id = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def add(self, before: str, count: int) -> int:
        """Adds a response that continues an entry. Returns its turn."""
        name, items = f"resp_{len(self.responses):03}", self.new_items(count + 1)
        turn = tables.add_turn(self.db, self.turn_of(before), items[:-1])
        tables.add_items(self.db, turn, items[-1:], OUTPUT)
        tables.put(self.db, RESPONSE, {"id": name}, used=len(self.responses), turn=turn)
        self.responses.append(name)
        self.expected[name] = [*self.expected.get(before, []), *(item["id"] for item in items)]
        return turn

    def respond(self, after: int, count: int) -> None:
        self.add(self.responses[after] if 0 <= after < len(self.responses) else "", count)

    def put_conversation(self, name: str, turn: int | None) -> None:
        tables.put(self.db, CONVERSATION, {"id": name}, used=0, turn=turn)

    def chat(self, which: int, count: int) -> None:
        name, items = f"conv_{which}", self.new_items(count)
        self.put_conversation(name, tables.add_turn(self.db, self.turn_of(name), items))
        self.expected.setdefault(name, []).extend(item["id"] for item in items)

    def respond_in(self, which: int, count: int) -> None:
        name = f"conv_{which}"
        self.put_conversation(name, self.add(name, count))
        self.expected[name] = list(self.expected[self.responses[-1]])

    def take_out(self, which: int, place: int) -> None:
        name = f"conv_{which}"
        items = self.expected.get(name, [])
        gone = items[place] if place < len(items) else "msg_no"
        old = self.turn_of(name)
        if gone == "msg_no":
            with pytest.raises(NotFound):
                tables.turn_without(self.db, old, gone)
            return
        self.put_conversation(name, tables.turn_without(self.db, old, gone))
        tables.drop_turn(self.db, old)
        items.remove(gone)

    def delete(self, which: int, _: int) -> None:
        name = self.responses[which] if which < len(self.responses) else "resp_no"
        assert tables.drop(self.db, RESPONSE, name) == (name in self.expected)
        self.expected.pop(name, None)

    def leave(self, which: int, _: int) -> None:
        name = f"conv_{which}"
        assert tables.drop(self.db, CONVERSATION, name) == (name in self.expected)
        self.expected.pop(name, None)

    def crowd(self, most: int, _: int) -> None:
        tables.drop_excess(self.db, "", max_count=most, max_bytes=1 << 30)
        for kind in ("resp_", "conv_"):  # all conversations were used at the same time, so the id decides
            mine = sorted(name for name in self.expected if name.startswith(kind))
            for name in mine[: max(0, len(mine) - most)]:
                del self.expected[name]

    def check(self) -> None:
        for name, items in self.expected.items():
            assert [item["id"] for item in tables.items_of(self.db, self.turn_of(name))] == items
        stored = {row[0] for row in self.db.execute("SELECT id FROM item")}
        entries = {row[0] for row in self.db.execute("SELECT id FROM entry")}
        assert entries == set(self.expected)
        assert stored >= {item for items in self.expected.values() for item in items}
        unneeded = "SELECT number FROM turn WHERE number NOT IN (SELECT turn FROM entry) AND number NOT IN "
        rows = self.db.execute(unneeded + "(SELECT parent FROM turn WHERE parent IS NOT NULL)").fetchall()
        assert rows == []
        assert self.db.execute("SELECT id FROM item WHERE turn NOT IN (SELECT number FROM turn)").fetchall() == []
        counted = self.db.execute("SELECT bytes FROM kept").fetchone()[0]
        sizes = "SELECT sum(length(body)) FROM {}"
        total = sum(int(self.db.execute(sizes.format(n)).fetchone()[0] or 0) for n in ("item", "entry"))
        count = sum(self.db.execute(f"SELECT count(*) FROM {n}").fetchone()[0] for n in TABLES)
        assert counted == total + tables.ROW_BYTES * count


@pytest.fixture
def db(kept_in: str) -> Iterator[Connection]:
    """A database with the tables, in a transaction."""
    made: Connection = Postgres(kept_in) if is_url(kept_in) else Sqlite(kept_in)
    made.begin(write=True)
    tables.prepare(made)
    yield made
    made.close()


def play(db: Connection, operations: list[tuple[str, int, int]]) -> None:
    book = Book(db)
    for name, *arguments in operations:
        getattr(book, name)(*arguments)
        book.check()


@pytest.mark.parametrize(
    "operations",
    [
        [("respond", -1, 1), ("respond", 0, 1), ("delete", 0, 0), ("delete", 1, 0)],
        [("chat", 0, 3), ("take_out", 0, 1)],
        [("chat", 0, 2), ("respond_in", 0, 2), ("take_out", 0, 3), ("take_out", 0, 0), ("delete", 0, 0)],
    ],
)
def test_items_go_with_the_last_that_needs_their_turn(db: Connection, operations: list[tuple[str, int, int]]) -> None:
    play(db, operations)


FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.slow
@FEW
@given(OPERATIONS)
def test_what_is_kept_is_what_somebody_needs(db: Connection, operations: list[tuple[str, int, int]]) -> None:
    db.execute("SAVEPOINT example")
    try:
        play(db, operations)
    finally:
        db.execute("ROLLBACK TO example")


@pytest.mark.slow
def test_a_long_conversation_costs_each_item_and_each_turn_once(db: Connection) -> None:
    turn = None
    for number in range(30):
        turn = tables.add_turn(db, turn, [{"id": f"msg_{number}", "content": "x" * 1000}])
    assert len(tables.items_of(db, turn)) == 30
    assert [db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in TABLES] == [30, 0, 30]


def test_a_call_that_was_cut_is_not_given_to_later_turns(db: Connection) -> None:
    call = {"id": "fc_1", "type": "function_call", "status": "incomplete"}
    turn = tables.add_turn(db, None, [{"id": "msg_1"}])
    tables.add_items(db, turn, [call], OUTPUT)
    later = tables.add_turn(db, turn, [])
    assert [item["id"] for item in tables.items_of(db, later)] == ["msg_1"]
    assert db.execute("SELECT origin FROM item ORDER BY number").fetchall() == [(INPUT,), (CUT,)]
