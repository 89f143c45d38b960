"""The ledger of tools/soak.py: right answers pass, everything else is a violation, and nothing counts twice."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest

cases = importlib.import_module("tools.soaking.cases")
client = importlib.import_module("tools.soaking.client")
ledger = importlib.import_module("tools.soaking.ledger")

CASE = next(case for case in cases.CASES if case.name == "hello")
PATIENT = client.Manner()


def chunk(**choice: Any) -> bytes:
    told = {"index": 0, "delta": {}, "finish_reason": None, **choice}
    return b"data: " + json.dumps({"choices": [told]}).encode() + b"\n\n"


TEXT = [
    chunk(delta={"role": "assistant", "content": None}),
    chunk(delta={"content": "Hi "}),
    chunk(delta={"content": "you"}),
]
END = [chunk(finish_reason="stop"), b"data: [DONE]\n\n"]
ERROR = b'data: {"error": {"message": "gone", "code": "engine_restarted"}}\n\n'


@pytest.fixture
def books() -> Any:
    found = ledger.Ledger()
    found.expected["hello"] = cases.Said({0: cases.Choice(text="Hi you", finish="stop")}, done=True)
    return found


def told(
    books: Any, body: bytes, *, status: int = 200, whole: bool = True, manner: Any = PATIENT, **headers: str
) -> str:
    entry = books.begin(CASE, True, "demo", manner)
    seen = client.Seen(status=status, headers=headers, body=body, whole=whole)
    seen.ended = seen.began + 1
    books.close(entry, seen)
    line = {"request_id": entry.request_id, "status": status if whole else 499, "bytes": len(body)}
    books.heard(line)
    outcome: str = entry.outcome
    return outcome


def test_the_right_text_and_a_part_of_it_by_who_left_are_right(books: Any) -> None:
    assert told(books, b"".join(TEXT + END)) == "answered"
    leaves = client.Manner("leaves", leaves_after=10)
    assert told(books, b"".join(TEXT[:2]) + b"data: {half", whole=False, manner=leaves) == "left during the answer"
    refusal = b'{"error": {"message": "full", "code": "queue_full"}}'
    assert told(books, refusal, status=429, **{"retry-after": "1"}) == "refused: queue full"
    books.finish()
    assert books.violations == []


@pytest.mark.parametrize(
    ("body", "more"),
    [
        (b"".join([*TEXT, chunk(delta={"content": "!"}), *END]), {}),
        (b"".join([*TEXT[:2], *END]), {}),
        (b"".join(TEXT), {}),
        (b"".join(TEXT), {"whole": False}),
        (b"".join([*TEXT, ERROR, END[1]]), {}),
        (b"not JSON", {"status": 500}),
        (b'{"error": {"message": "full", "code": "queue_full"}}', {"status": 429}),
    ],
    ids=["more", "less", "no end", "cut", "error without a kill", "500", "no Retry-After"],
)
def test_anything_else_is_a_violation(books: Any, body: bytes, more: dict[str, Any]) -> None:
    assert told(books, body, **more) == "VIOLATION"
    assert len(books.violations) == 1


def test_an_error_in_a_stream_is_right_when_the_engine_was_killed(books: Any) -> None:
    entry = books.begin(CASE, True, "demo", PATIENT)
    seen = client.Seen(status=200, body=b"".join([*TEXT, ERROR, END[1]]), whole=True)
    books.disturbed("kill")
    seen.ended = seen.began + 60
    books.close(entry, seen)
    assert entry.outcome == "failed with the engine"


def test_each_request_has_one_line_in_the_log_and_that_says_the_same(books: Any) -> None:
    body = b"".join(TEXT + END)
    told(books, body)
    books.heard({"request_id": "soak-1", "status": 200, "bytes": len(body)})
    assert "a second access line" in books.violations.pop()
    entry = books.begin(CASE, True, "demo", PATIENT)
    seen = client.Seen(status=200, body=body, whole=True)
    books.heard({"request_id": entry.request_id, "status": 200, "bytes": 1})
    books.close(entry, seen)
    assert "the log says" in books.violations.pop()
    books.begin(CASE, True, "demo", PATIENT)
    books.finish()
    assert "no outcome" in books.violations.pop()
