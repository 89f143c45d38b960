"""text-embeddings-inference's /embed returns only a list of vectors."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import MakePooling, ask, refused

PATH = "/embed"


@pytest.mark.parametrize("inputs", ["a", ["a", "bc"], [1, 2, 3], [[1, 2], [3]]])
async def test_the_vectors_are_those_of_embeddings(make_pooling: MakePooling, inputs: Any) -> None:
    app, _ = await make_pooling()
    body = await ask(app, PATH, inputs=inputs)
    same = await ask(app, "/v1/embeddings", input=inputs, encoding_format="float")
    assert body == [one["embedding"] for one in same["data"]]


async def test_options_reach_the_engine(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling()
    await ask(app, PATH, inputs="a", normalize=False, truncate=True, truncation_direction="Left", prompt_name="query")
    texts, params = engine.asked[-1]
    assert texts == ["query: a"]
    assert (params.normalize, params.truncate, params.truncation_side) == (False, -1, "left")
    await ask(app, PATH, inputs="a", truncate=None, truncation_direction=None, prompt_name=None)
    assert (engine.asked[-1][1].truncate, engine.asked[-1][1].truncation_side) == (None, "right")


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({}, "inputs field is required", "inputs"),
        ({"inputs": []}, "inputs array should not be empty", "inputs"),
        ({"inputs": [[]]}, "inner arrays in inputs should not be empty", "inputs[0]"),
        ({"inputs": "x" * 600}, "Input length 602 longer than allowed 512", "inputs"),
        ({"inputs": "a", "truncate": "yes"}, "truncate accepts values true or false", "truncate"),
        ({"inputs": "a", "truncation_direction": "up"}, "truncation_direction should be", "truncation_direction"),
        ({"inputs": "a", "prompt_name": "poem"}, "Unsupported prompt_name 'poem'", "prompt_name"),
    ],
)
async def test_refusals(make_pooling: MakePooling, fields: dict[str, Any], message: str, param: str) -> None:
    app, _ = await make_pooling()
    text, wrong = await refused(app, PATH, **fields)
    assert message in text
    assert wrong == param
