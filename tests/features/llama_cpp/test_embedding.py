"""/embedding returns llama.cpp's list of vectors."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import MakePooling, ask, refused

PATHS = ["/embedding", "/embeddings"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["content", "input"])
async def test_it_is_the_vector_of_v1_embeddings(make_pooling: MakePooling, path: str, name: str) -> None:
    app, _ = await make_pooling()
    data = (await ask(app, "/v1/embeddings", input=["one", "two"]))["data"]
    both = await ask(app, path, **{name: ["one", "two"]})
    assert both == [{"index": one["index"], "embedding": [one["embedding"]]} for one in data]
    parts = {"content": [{"type": "text", "text": "o"}, {"type": "text", "text": "ne"}]}
    for given in ("one", {"prompt_string": "one"}, ["one"], parts, [parts]):
        assert await ask(app, path, **{name: given}) == both[:1]


async def test_ids_and_texts_in_one(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling()
    await ask(app, "/embedding", content=["a", 98])
    [ids] = engine.asked[-1][0]
    assert ids[-1] == 98
    assert 97 in ids


@pytest.mark.parametrize(("value", "wanted"), [(2, True), (-1, False), (0, False), (None, None)])
async def test_the_norm(make_pooling: MakePooling, value: Any, wanted: bool | None) -> None:
    app, engine = await make_pooling()
    await ask(app, "/embedding", content="a", embd_normalize=value)
    assert engine.asked[-1][1].normalize is wanted


async def test_other_norms(make_pooling: MakePooling) -> None:
    """https://github.com/ggml-org/llama.cpp/blob/master/common/common.cpp (common_embd_normalize)"""
    app, _ = await make_pooling()

    async def vector(norm: int) -> list[float]:
        [found] = await ask(app, "/embedding", content="abc", embd_normalize=norm)
        [values] = found["embedding"]
        return list(values)

    plain = await vector(-1)
    largest = max(map(abs, plain))
    assert await vector(0) == pytest.approx([value / largest * 32760 for value in plain])
    for norm in (1, 2, 3, 7):
        size = sum(abs(value) ** norm for value in plain) ** (1 / norm)
        assert await vector(norm) == pytest.approx([value / size for value in plain])
    assert max(map(abs, await vector(4294967295))) == pytest.approx(1)


WRONG: list[tuple[Any, str]] = [
    ({}, "input"),
    ({"content": []}, "content"),
    ({"content": ""}, "content"),
    ({"content": ["a", None]}, "content[1]"),
    ({"content": ["a", {"content": [{"type": "image_url"}]}]}, "content[1].content[0]"),
    ({"content": {"content": []}}, "content"),
    ({"content": "a", "embd_normalize": -2}, "embd_normalize"),
    ({"content": "a", "embd_normalize": 1.5}, "embd_normalize"),
]


async def test_a_wrong_body(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling()
    for fields, param in WRONG:
        assert (await refused(app, "/embedding", **fields))[1] == param
