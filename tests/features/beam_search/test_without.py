"""A server without beam search warns that the fields for it were not read."""

from __future__ import annotations

import pytest

from tests.api.conftest import MakeApp, post, whole
from tests.fakes import say


@pytest.mark.parametrize(
    "asked",
    [{"best_of": 2}, {"n": 2, "use_beam_search": True}, {"best_of": 2, "length_penalty": 0.5, "early_stopping": True}],
)
async def test_fields_of_beam_search_are_not_read(make_app: MakeApp, asked: dict[str, object]) -> None:
    app, engine = await make_app(lambda _, sampling: say("x", sequences=sampling.n), without="beam_search")
    response = await post(app, "/v1/completions", {"model": "m", "prompt": "a", **asked})
    warned = [value for name, value in response.headers if name == "Warning"]
    assert len((await whole(response))["choices"]) == asked.get("n", 1)
    told = [name for name in asked if any(f"{name} is not supported and was ignored" in line for line in warned)]
    assert told == [name for name in asked if name != "n"]
    [(_, sampling)] = engine.submitted
    assert sampling.beams == 1
