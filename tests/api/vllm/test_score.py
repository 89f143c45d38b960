"""/score: names and forms of the two sides."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import MakePooling, ask, refused

NAMES = [("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2")]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize("names", NAMES)
async def test_every_pair_of_names(make_pooling: MakePooling, path: str, names: tuple[str, str]) -> None:
    app, _ = await make_pooling("rerank")
    body = await ask(app, path, **{names[0]: "abc", names[1]: ["xyz", "abc"]})
    assert body["object"] == "list"
    assert body["id"].startswith("score-")
    assert [item["index"] for item in body["data"]] == [0, 1]
    assert {item["object"] for item in body["data"]} == {"score"}
    assert [item["score"] for item in body["data"]] == pytest.approx([0.002472623, 0.9975274])
    assert body["usage"]["prompt_tokens"] == 18
    assert body["usage"]["completion_tokens"] == 0


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


async def test_an_embedding_model_scores_by_the_angle(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling()
    body = await ask(app, "/score", text_1=["abc", "x"], text_2=["cab", "y"])
    assert body["data"][0]["score"] == pytest.approx(1)
    assert body["data"][1]["score"] < 0.99
    assert [inputs for inputs, _ in engine.asked] == [["abc", "x"], ["cab", "y"]]


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "Input lengths must be either 1:1, 1:N or N:N", "text_1"),
        ({"text_1": ["a", "b"], "text_2": ["c"]}, "Input lengths must be either 1:1, 1:N or N:N", "text_1"),
        ({"text_1": [], "text_2": ["c"]}, "At least one text element must be given", "text_1"),
        ({"text_1": "a", "text_2": []}, "At least one text_pair element must be given", "text_2"),
        ({"text_1": "a", "text_2": ["c"] * 5}, "text_2 has 5 elements; the maximum allowed count is 4", "text_2"),
        ({"text_1": 5, "text_2": "a"}, "text_1 is neither a string nor an object with content", "text_1"),
        ({"text_1": "a", "text_2": [5]}, "text_2[0] is neither a string nor an object with content", "text_2[0]"),
    ],
)
async def test_wrong_sides(make_pooling: MakePooling, fields: dict[str, Any], message: str, param: str) -> None:
    app, engine = await make_pooling("rerank", max_pooling_inputs=4)
    assert await refused(app, "/score", **fields) == (message, param)
    assert engine.asked == []


@pytest.mark.parametrize("fields", [{}, {"queries": "a"}, {"documents": "a"}, {"text_1": "a", "data_2": "b"}])
async def test_two_sides_are_needed(make_pooling: MakePooling, fields: dict[str, Any]) -> None:
    app, _ = await make_pooling("rerank")
    message, param = await refused(app, "/score", **fields)
    assert "text_1 and text_2" in message
    assert param == next(iter(fields), "queries")
