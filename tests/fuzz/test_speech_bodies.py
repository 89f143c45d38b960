"""Bodies that no library would write, for audio/speech: each has one outcome, a 200 or a 4xx."""

from __future__ import annotations

import asyncio

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lean_ovms.api.app import App
from lean_ovms.features.voice import api as audio_speech
from lean_ovms.server.run import close
from lean_ovms.types import Request
from tests.features.voice.fakes import fake_voice
from tests.fuzz import examples
from tests.fuzz.test_hostile_bodies import VALUES, _object

RIGHT = {"model": '"v"', "input": '"The first sentence is here. The second one is there!"'}


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    pairs = {name: value for name, value in RIGHT.items() if draw(st.integers(0, 9))}
    fields = [*(row.name for row in audio_speech.FIELDS), "unknown"]
    pairs |= {name: draw(VALUES) for name in draw(st.lists(st.sampled_from(fields), max_size=3))}
    return _object(list(pairs.items())).encode("utf-8", "surrogatepass")


async def all_answered(data: list[bytes]) -> None:
    model, _ = await fake_voice()
    app = App(model.config, [model])
    for one in data:
        headers = {"content-type": "application/json"}
        response = await app.handle(Request("POST", "/v1/audio/speech", headers=headers, body=one))
        assert response.status == 200 or 400 <= response.status < 500, (one, response.body)
        if response.status != 200:
            assert isinstance(response.body, bytes)
            assert orjson.loads(response.body)["error"]["message"]
        await response.aclose()
    await asyncio.wait_for(model.in_flight.drained(), 300)
    await close(app)


@pytest.mark.slow
@examples(4)
@given(st.lists(bodies(), min_size=20, max_size=20))
def test_every_body_has_one_outcome(data: list[bytes]) -> None:
    asyncio.run(all_answered(data))
