"""The formats of keep_alive."""

from __future__ import annotations

from typing import Any

import pytest

from lean_ovms.api.generation.common_fields import KEEP_ALIVE, MAX_KEEP_S
from lean_ovms.errors import BadRequest
from tests.api.conftest import MakeApp, post
from tests.fakes import say


def seconds(value: Any) -> float:
    assert KEEP_ALIVE.read is not None
    found: float = KEEP_ALIVE.read(value)
    return found


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0.0), (-1, -1.0), (2.5, 2.5), ("0", 0.0), ("10", 10.0), ("-1", -1.0), ("5m", 300.0), ("1h30m", 5400.0),
        ("-1m", -60.0), ("1.5s", 1.5), ("300ms", 0.3), ("24h", 86400.0), (" 5m ", 300.0), (1e300, MAX_KEEP_S),
    ],
)  # fmt: skip
def test_numbers_and_durations(value: Any, expected: float) -> None:
    assert seconds(value) == pytest.approx(expected)


@pytest.mark.parametrize("value", ["", "m", "5 m", "5x", "1h-5m", "nan", "inf", True, [], {}, "5" * 65, "-", "--1"])
def test_what_is_no_duration_is_refused(value: Any) -> None:
    with pytest.raises(BadRequest, match="keep_alive must be a number of seconds, or a duration") as error:
        seconds(value)
    assert error.value.param == "keep_alive"


async def test_a_wrong_one_is_a_400_and_null_is_none(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"))
    for value, status in ((None, 200), ("soon", 400)):
        response = await post(app, "/v1/completions", {"prompt": "a", "keep_alive": value})
        await response.aclose()
        assert response.status == status
