"""Lines of a batch: whatever they are, they are requests or errors; and results as a crash may leave them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lean_ovms.config import Config
from lean_ovms.errors import BadRequest
from lean_ovms.features.batches import lines
from lean_ovms.features.batches.results import Results
from lean_ovms.features.batches.storage import Storage
from tests.features.batches.conftest import CHAT, line
from tests.fuzz import examples

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
CHANGED = st.dictionaries(st.sampled_from(sorted(line("a"))), JSON)


@given(st.binary(max_size=40) | st.builds(lambda changes: orjson.dumps(line("a") | changes), CHANGED))
@examples(20)
def test_a_line_is_a_request_or_a_bad_one(raw: bytes) -> None:
    with contextlib.suppress(BadRequest):
        found = lines.read_line(raw, (CHAT,))
        assert found.url == CHAT
        assert isinstance(orjson.loads(found.body)["model"], str)


def test_a_deep_line_is_an_error() -> None:
    with pytest.raises(BadRequest):
        lines.read_line(b"[" * 100000, (CHAT,))


async def _at_once(function: Callable[[], Any]) -> Any:
    return function()


async def test_results_that_were_cut_anywhere(tmp_path: Path) -> None:
    rows = [orjson.dumps(lines.row(str(number), {"status_code": 200})) + b"\n" for number in range(3)]
    whole = b"".join(rows)
    paths = [tmp_path / "output", tmp_path / "error"]
    for cut in range(0, len(whole) + 1, 29):
        paths[0].write_bytes(whole[:cut])
        storage = Storage(Config(files_path=str(tmp_path)))
        storage.used = cut
        results = Results(storage, paths, _at_once)
        there = whole[:cut].count(b"\n")
        assert results.done == {str(number) for number in range(there)}
        assert results.counts == [there, 0]
        for number in range(there, 3):
            results.put(orjson.loads(rows[number]), failed=False)
        await results.flush()
        assert paths[0].read_bytes() == whole
        assert storage.used == len(whole)
