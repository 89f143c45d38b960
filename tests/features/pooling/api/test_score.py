"""/score: names and forms of the two sides."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from lean_ovms.engine.client.replies import OnPartial
from lean_ovms.features.pooling.api import scoring
from lean_ovms.features.pooling.child import fake_pooler
from tests.api.conftest import MakePooling, ask, refused
from tests.features.pooling.fakes import BOS, EOS

NAMES = [("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2")]


async def test_one_to_one_one_to_many_many_to_many(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling("rerank")
    part = {"content": [{"type": "text", "text": "p"}]}
    forms: list[tuple[Any, Any, list[Any]]] = [
        ("a", "b", [("a", "b")]),
        (["a"], "b", [("a", "b")]),
        ("a", ["b", "c"], [("a", "b"), ("a", "c")]),
        (["a", "d"], ["b", "c"], [("a", "b"), ("d", "c")]),
        (part, ["b", part], [("p", "b"), ("p", "p")]),
    ]
    for first, second, pairs in forms:
        await ask(app, "/score", text_1=first, text_2=second)
        assert engine.asked[-1][0] == pairs
    for names in NAMES:
        body = await ask(app, "/v1/score", **{names[0]: "abc", names[1]: ["xyz", "abc"]})
        assert body["id"].startswith("score-")
        assert [(item["index"], item["object"]) for item in body["data"]] == [(0, "score"), (1, "score")]
        assert [item["score"] for item in body["data"]] == pytest.approx([0.002472623, 0.9975274])
        assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (18, 0)
    for fields in ({}, {"queries": "a"}, {"documents": "a"}, {"text_1": "a", "data_2": "b"}):
        message, param = await refused(app, "/score", **fields)
        assert "text_1 and text_2" in message
        assert param == next(iter(fields), "queries")


def vectors_of(text: str, *, normalize: bool = True) -> Any:
    """Returns what the fake model computes for each token of a text."""
    rows = fake_pooler._TABLE[[BOS, *text.encode(), EOS]].astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) if normalize else rows


def late_interaction(query: str, document: str, *, normalize: bool = True) -> float:
    """Returns ColBERT's score, by the formula of the paper."""
    left, right = (vectors_of(text, normalize=normalize) for text in (query, document))
    return sum(max(float(a @ b) for b in right) for a in left)


async def test_a_model_of_token_vectors_scores_by_late_interaction(
    make_pooling: MakePooling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "NUMBERS_AT_ONCE", 10 * 16)
    app, _ = await make_pooling(pooling="ALL")
    queries, documents = ["abc", "xy", "q"], ["cab", "yz", "abc" * 20]
    one = await ask(app, "/score", queries="abc", documents=documents)
    assert [item["score"] for item in one["data"]] == pytest.approx([late_interaction("abc", d) for d in documents])
    assert one["usage"]["prompt_tokens"] == 5 + 5 + 4 + 62
    several = await ask(app, "/score", queries=queries, documents=documents, use_activation=False)
    expected = [late_interaction(*pair, normalize=False) for pair in zip(queries, documents, strict=True)]
    assert [item["score"] for item in several["data"]] == pytest.approx(expected)
    ranked = await ask(app, "/rerank", query="abc", documents=documents)
    assert [item["index"] for item in ranked["results"]] == np.argsort(
        [-late_interaction("abc", d) for d in documents]
    ).tolist()
    message, _ = await refused(app, "/v1/embeddings", input="a")
    assert message == (
        "The model 'e' is for embeddings of tokens, not for embeddings; use it at /pooling, /rerank and /score"
    )
    assert [len(item["data"]) for item in (await ask(app, "/pooling", input=["a", "abc"]))["data"]] == [3, 5]
    assert (await refused(app, "/pooling", input="a", task="embed"))[1] == "task"


async def test_late_interaction_names_the_text_at_fault(
    make_pooling: MakePooling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal texts are computed once, and the others in groups, but errors have the index in the request."""
    monkeypatch.setattr(scoring, "NUMBERS_AT_ONCE", 10 * 16)
    for options in ({"pooling": "ALL"}, {}):
        app, _ = await make_pooling(max_model_len=16, **options)
        for side, param in (("documents", "documents[4]"), ("queries", "queries[4]")):
            texts = {"documents": ["a"] * 5, "queries": ["b"] * 5}
            texts[side] = ["c", "c", "ddd", "eee", "x" * 20]
            message, found = await refused(app, "/score", **texts)
            assert "Input length 22 longer than allowed 16. " in message
            assert found == param


async def test_a_side_that_is_refused_ends_the_other(
    make_pooling: MakePooling, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, engine = await make_pooling(max_model_len=16)
    call, ended = engine.call, asyncio.Event()

    async def never_documents(make: Any, on_partial: OnPartial = None) -> Any:
        if "a" not in make.keywords["inputs"]:
            return await call(make, on_partial)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(engine, "call", never_documents)
    assert (await refused(app, "/rerank", query="x" * 20, documents=["a"]))[1] == "query"
    await asyncio.wait_for(ended.wait(), 10)


async def test_the_tokens_of_all_documents_are_limited_together(
    make_pooling: MakePooling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "NUMBERS_AT_ONCE", 320 * 16)
    app, _ = await make_pooling(pooling="ALL", max_pooling_tokens=400)
    documents = [f"{n:03}" for n in range(80)]
    message, param = await refused(app, "/score", queries="abc", documents=documents)
    assert (message, param) == (
        "the inputs together have more than 400 tokens, this server's limit (--max_pooling_tokens)",
        "documents",
    )


WRONG_SIDES: list[tuple[Any, ...]] = [
    ({"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "Input lengths must be either 1:1, 1:N or N:N", "text_1"),
    ({"text_1": ["a", "b"], "text_2": ["c"]}, "Input lengths must be either 1:1, 1:N or N:N", "text_1"),
    ({"text_1": [], "text_2": ["c"]}, "At least one text element must be given", "text_1"),
    ({"text_1": "a", "text_2": []}, "At least one text_pair element must be given", "text_2"),
    ({"text_1": "a", "text_2": ["c"] * 5}, "text_2 has 5 elements; the maximum allowed count is 4", "text_2"),
    ({"queries": "a", "documents": "b", "text_1": "c"},
     "queries and documents cannot be used together with text_1: exactly two sides are compared", "text_1"),
    ({"text_1": "a", "text_2": "b", "queries": "c"},
     "text_1 and text_2 cannot be used together with queries: exactly two sides are compared", "queries"),
    ({"queries": "a", "documents": "b", "items": "c"},
     "queries and documents cannot be used together with items: exactly two sides are compared", "items"),
    ({"text_1": 5, "text_2": "a"}, "text_1 is neither a string nor an object with content", "text_1"),
    ({"text_1": "a", "text_2": [5]}, "text_2[0] is neither a string nor an object with content", "text_2[0]"),
]  # fmt: skip


async def test_wrong_sides(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling("rerank", max_pooling_inputs=4)
    for fields, message, param in WRONG_SIDES:
        assert await refused(app, "/score", **fields) == (message, param), fields
        assert engine.asked == [], fields
