"""Items by the ten thousand become messages in the time that their length takes, not that of its square."""

from __future__ import annotations

import time

import pytest

from lean_ovms.features.responses.items import MAX_ITEMS, to_messages
from lean_ovms.types import Json

TEXT = "x" * 1000
SECONDS = 1.0
"""CPU time for all items: a tenth of it is needed. With a copy of all texts for each item it takes 18 s."""


def reasoning(text: str) -> Json:
    return {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": text}]}


@pytest.mark.parametrize("role", ["reasoning", "user", "assistant"])
def test_many_items_take_little_time(role: str) -> None:
    part = {"type": "output_text" if role == "assistant" else "input_text", "text": TEXT}
    said = {"type": "message", "id": "msg_1", "role": role, "content": [part]}
    items = [reasoning(TEXT) if role == "reasoning" else said] * (MAX_ITEMS - 1)
    items.append({"type": "compaction", "id": "cmp_1", "encrypted_content": "lean_ovms-summary-1:All."})
    start = time.process_time()
    to_messages(items[::-1] if role != "user" else items)
    assert time.process_time() - start < SECONDS


def test_reasoning_of_several_items_is_one_text() -> None:
    assert to_messages([reasoning(text) for text in "abc"])[0]["reasoning_content"] == "a\nb\nc"
