"""Bodies that no library would write, for the endpoints of pooling models: each has one outcome, a 200 or a 4xx."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lean_ovms.api.app import App
from lean_ovms.features.cohere.api import embed
from lean_ovms.features.pooling.api import classify, embeddings, pooling, rerank, score
from lean_ovms.features.tei import api as tei_embed
from lean_ovms.server.run import close
from lean_ovms.types import Request
from tests.features.pooling.fakes import fake_model
from tests.fuzz import examples
from tests.fuzz.test_hostile_bodies import VALUES, _object

ENDPOINTS: dict[str, tuple[str, Any, dict[str, str]]] = {
    "/v1/embeddings": ("embeddings", embeddings, {"model": '"e"', "input": '["a",""]'}),
    "/v2/embed": ("embeddings", embed, {"model": '"e"', "texts": '["a","b"]'}),
    "/embed": ("embeddings", tei_embed, {"model": '"e"', "inputs": '["a","b"]'}),
    "/rerank": ("rerank", rerank, {"model": '"e"', "query": '"a"', "documents": '["a","b"]'}),
    "/v3/rerank": ("rerank", rerank, {"model": '"e"', "query": '"a"', "documents": '[{"text":"a"},{"text":"b"}]'}),
    "/score": ("embeddings", score, {"model": '"e"', "text_1": '"a"', "text_2": '["a","b"]'}),
    "/classify": ("classify", classify, {"model": '"e"', "input": '"a"'}),
    "/pooling": ("token_classify", pooling, {"model": '"e"', "input": "[[1,2],[3]]"}),
}


@st.composite
def bodies(draw: st.DrawFn, path: str) -> bytes:
    _, module, right = ENDPOINTS[path]
    fields = [*(row.name for row in module.FIELDS), "unknown", "stream"]
    pairs = {name: value for name, value in right.items() if draw(st.integers(0, 9))}
    pairs |= {name: draw(VALUES) for name in draw(st.lists(st.sampled_from(fields), max_size=3))}
    return _object(list(pairs.items())).encode("utf-8", "surrogatepass")


async def all_answered(path: str, data: list[bytes]) -> None:
    model, _ = await fake_model(ENDPOINTS[path][0])
    app = App(model.config, [model])
    for one in data:
        headers = {"content-type": "application/json"}
        response = await app.handle(Request("POST", path, headers=headers, body=one))
        assert isinstance(response.body, bytes)
        assert response.status == 200 or 400 <= response.status < 500, (one, response.body)
        if response.status != 200:
            error = orjson.loads(response.body)["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["message"]
        elif ("Content-Type", "application/json") in response.headers:
            orjson.loads(response.body)
    await close(app)


@pytest.mark.slow
@pytest.mark.parametrize("path", ENDPOINTS)
def test_every_body_has_one_outcome(path: str) -> None:
    @examples(20)
    @given(st.lists(bodies(path), min_size=4, max_size=4))
    def check(data: list[bytes]) -> None:
        asyncio.run(all_answered(path, data))

    check()
