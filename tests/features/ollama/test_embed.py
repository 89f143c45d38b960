"""/api/embed and /api/embeddings with the fake embeddings model."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import MakePooling, post, whole
from tests.features.ollama.test_chat import error


async def test_vectors_of_length_one_and_as_the_model_computes_in_the_older_form(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling()
    body = await whole(await post(app, "/api/embed", {"model": "e:latest", "input": ["a", "bc"]}))
    assert (body["model"], len(body["embeddings"]), body["prompt_eval_count"]) == ("e:latest", 2, 7)
    assert body["total_duration"] >= body["load_duration"] > 0
    one = await whole(await post(app, "/api/embed", {"input": "a"}))
    assert (one["model"], one["embeddings"]) == ("e", body["embeddings"][:1])
    assert [(params.normalize, params.truncate) for _, params in engine.asked] == [(True, -1)] * 2
    body = await whole(await post(app, "/api/embeddings", {"model": "e", "prompt": "a"}))
    assert list(body) == ["embedding"]
    assert all(type(number) is float for number in body["embedding"])
    assert engine.asked[-1][1].normalize is None


@pytest.mark.parametrize("given", [{}, {"input": ""}, {"input": []}, {"input": None}])
async def test_without_a_text_the_model_is_loaded(make_pooling: MakePooling, given: Any) -> None:
    app, engine = await make_pooling()
    assert await whole(await post(app, "/api/embed", {"model": "e", **given})) == {"model": "e", "embeddings": []}
    assert await whole(await post(app, "/api/embeddings", {"model": "e"})) == {"embedding": []}
    assert engine.asked == []


async def test_fewer_dimensions(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling()
    for size in (0, engine.task.info.dimensions):
        body = await whole(await post(app, "/api/embed", {"model": "e", "input": "a", "dimensions": size}))
        assert len(body["embeddings"][0]) == engine.task.info.dimensions
    status, message = await error(await post(app, "/api/embed", {"model": "e", "input": "a", "dimensions": 1}))
    assert (status, "Matryoshka" in message) == (400, True)


async def test_wrong_inputs_are_refused_and_long_texts_cut_unless_refused(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling()
    for given in (5, {"a": 1}, ["a", 1], [["a"]]):
        refusal = await error(await post(app, "/api/embed", {"model": "e", "input": given}))
        assert refusal == (400, "input must be a string or an array of strings")
    app, engine = await make_pooling(max_pooling_inputs=1)
    status, message = await error(await post(app, "/api/embed", {"model": "e", "input": ["a", "b"]}))
    assert (status, message.partition(" ")[0], engine.asked) == (400, "input", [])
    text = "a" * 2 * engine.task.info.window
    body = await whole(await post(app, "/api/embed", {"model": "e", "input": text}))
    assert body["prompt_eval_count"] == engine.task.info.window
    assert (await error(await post(app, "/api/embed", {"model": "e", "input": text, "truncate": False})))[0] == 400


async def test_models_of_another_task(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling()
    status, message = await error(await post(app, "/api/chat", {"model": "e", "messages": []}))
    assert (status, "is for embeddings, not for text generation" in message) == (400, True)
    status, _ = await error(await post(app, "/api/embed", {"model": "nope", "input": "a"}))
    assert status == 404
    app, _ = await make_pooling("rerank")
    status, message = await error(await post(app, "/api/embed", {"model": "e", "input": "a"}))
    assert (status, "is for rerank, not for embeddings" in message) == (400, True)
