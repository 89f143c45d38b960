"""/pooling: vectors, vectors of tokens, classes, classes of tokens."""

from __future__ import annotations

import numpy as np
import pytest

from tests.api.conftest import MakePooling, ask, post, refused, whole


async def test_the_task_of_the_model_is_the_default(make_pooling: MakePooling) -> None:
    for task, shape in (("embeddings", (16,)), ("classify", (3,)), ("rerank", (1,)), ("token_classify", (5, 3))):
        app, _ = await make_pooling(task)
        body = await ask(app, "/pooling", input="abc")
        assert body["id"].startswith("pooling-")
        [item] = body["data"]
        assert (item["index"], item["object"]) == (0, "pooling")
        assert np.array(item["data"]).shape == shape
        assert body["usage"]["prompt_tokens"] == 5


async def test_a_model_without_vectors_of_tokens(make_pooling: MakePooling) -> None:
    """The texts and images of CLIP have a single vector each."""
    app, engine = await make_pooling()
    engine.describe(has_token_vectors=False)
    message, param = await refused(app, "/pooling", input="a", task="token_embed")
    assert (message, param) == ("Unsupported task: 'token_embed' Supported tasks: ('embed')", "task")
    tei = await whole(await post(app, "/embed_all", {"inputs": "a"}))
    assert "This model has no vectors of tokens" in tei["error"]
    assert engine.asked == []


async def test_messages_are_named_by_their_place(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling()
    right, wrong = [{"role": "user", "content": "x"}], [{"role": "user", "content": 5}]
    for name in ("input", "messages"):
        for value, place in (
            (wrong, "[0].content"),
            ([right, wrong], "[1][0].content"),
            ([right, 5], "[1]"),
            ([right, [5]], "[1][0]"),
            ([*right, 5], "[1]"),
        ):
            for path in ("/pooling", "/v1/embeddings"):
                assert (await refused(app, path, **{name: value}))[1] == name + place, value


async def test_a_vector_for_each_token(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling()
    one = np.array((await ask(app, "/pooling", input="abc", task="embed"))["data"][0]["data"])
    rows = np.array((await ask(app, "/pooling", input="abc", task="token_embed"))["data"][0]["data"])
    assert rows.shape == (5, 16)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1)
    raw = await ask(app, "/pooling", input=["abc", "d"], task="token_embed", use_activation=False)
    first, second = (np.array(item["data"]) for item in raw["data"])
    assert (first.shape, second.shape) == ((5, 16), (3, 16))
    mean = first.mean(axis=0)
    assert mean / np.linalg.norm(mean) == pytest.approx(one, abs=1e-5)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("classify", "Unsupported task: 'classify' Supported tasks: ('embed', 'token_embed')"),
        ("token_classify", "Unsupported task: 'token_classify' Supported tasks: ('embed', 'token_embed')"),
        ("plugin", "No IOProcessor plugin installed."),
        ("score", "`score` task was removed; use `classify` instead."),
        ("encode", "`encode` task was removed; use `token_embed` or `token_classify` instead."),
    ],
)
async def test_other_tasks(make_pooling: MakePooling, task: str, message: str) -> None:
    app, engine = await make_pooling()
    assert await refused(app, "/pooling", input="a", task=task) == (message, "task")
    assert (await refused(app, "/pooling", input="a", dimensions=4))[1] == "dimensions"
    assert engine.asked == []
