"""Cohere's /v2/embed: all number types, truncation, prompts, errors."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from tests.api.conftest import MakePooling, ask, refused

PATH = "/v2/embed"


@pytest.mark.parametrize("path", ["/v2/embed", "/v3/v2/embed", "/v1/v2/embed"])
async def test_embeddings_by_type(make_pooling: MakePooling, path: str) -> None:
    app, _ = await make_pooling()
    body = await ask(app, path, texts=["a", "bc"], embedding_types=["float", "base64"], input_type="document")
    assert set(body) == {"id", "embeddings", "texts", "meta", "response_type"}
    assert body["texts"] == ["a", "bc"]
    assert body["response_type"] == "embeddings_by_type"
    assert body["meta"] == {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 7, "image_tokens": 0}}
    floats = np.array(body["embeddings"]["float"], np.float32)
    coded = np.array([np.frombuffer(base64.b64decode(text), "<f4") for text in body["embeddings"]["base64"]])
    assert (floats == coded).all()
    assert floats.shape == (2, 16)


@pytest.mark.parametrize("path", ["/v1/embed", "/v3/embed", "/v3/v1/embed"])
async def test_the_first_version_has_plain_floats_unless_asked(make_pooling: MakePooling, path: str) -> None:
    app, _ = await make_pooling()
    assert list((await ask(app, PATH, texts=["a"], embedding_types=None))["embeddings"]) == ["float"]
    plain = await ask(app, path, texts=["a", "b"])
    assert plain["response_type"] == "embeddings_floats"
    assert plain["meta"]["api_version"] == {"version": "1"}
    typed = await ask(app, path, texts=["a", "b"], embedding_types=["float"])
    assert typed["response_type"] == "embeddings_by_type"
    assert typed["embeddings"] == {"float": plain["embeddings"]}


async def test_whole_numbers_and_bits(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling()
    types = ["float", "int8", "uint8", "binary", "ubinary"]
    found = {n: v[0] for n, v in (await ask(app, PATH, texts=["ab"], embedding_types=types))["embeddings"].items()}
    vector = np.array(found["float"], np.float32)
    assert found["int8"] == np.rint(vector * 127).tolist()
    assert found["uint8"] == (np.rint(vector * 127) + 128).tolist()
    assert found["ubinary"] == [int("".join("1" if v >= 0 else "0" for v in part), 2) for part in vector.reshape(2, 8)]
    assert found["binary"] == [byte - 128 for byte in found["ubinary"]]


async def test_inputs_with_content(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling()
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = await ask(app, PATH, inputs=[{"content": parts}, {"content": "c"}])
    assert engine.asked[-1][0] == ["a\nb", "c"]
    assert body["texts"] == []
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    message, param = await refused(app, PATH, inputs=[{"content": [image]}])
    assert "text only" in message
    assert param == "inputs[0].content[0].image_url.url"


async def test_the_prompt_comes_before_each_text(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling()
    body = await ask(app, PATH, texts=["a"], input_type="query")
    assert engine.asked[-1][0] == ["query: a"]
    assert body["texts"] == ["a"]
    message, param = await refused(app, PATH, texts=["a"], input_type="clustering")
    assert message == "Unsupported input_type 'clustering'. Supported values: query, document"
    assert param == "input_type"


async def test_coheres_names_of_the_models_prompts(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling()
    engine.describe(prompts={"query": "query: ", "passage": "passage: "})
    for name, text in (("search_query", "query: a"), ("search_document", "passage: a"), ("passage", "passage: a")):
        await ask(app, PATH, texts=["a"], input_type=name)
        assert engine.asked[-1][0] == [text]
    await ask(app, "/v1/embeddings", input="a", input_type="document")
    assert engine.asked[-1][0] == ["passage: a"]
    engine.describe(prompts={"query": "query: ", "search_query": "find: "})
    # There is a prompt only for queries, as in arctic-embed.
    await ask(app, PATH, texts=["a"], input_type="search_document")
    assert engine.asked[-1][0] == ["a"]
    await ask(app, PATH, texts=["a"], input_type="search_query")
    assert engine.asked[-1][0] == ["find: a"]


@pytest.mark.parametrize(
    "name", ["search_document", "search_query", "classification", "clustering", "image", "query", "passage"]
)
async def test_a_model_without_prompts_accepts_the_names_of_clients(make_pooling: MakePooling, name: str) -> None:
    """The names are Cohere's, and those that Voyage's and NVIDIA's clients always send to /v1/embeddings."""
    app, engine = await make_pooling()
    engine.describe(prompts={})
    await ask(app, PATH, texts=["a"], input_type=name)
    assert engine.asked[-1][0] == ["a"]
    await ask(app, "/v1/embeddings", input="b", input_type=name)
    assert engine.asked[-1][0] == ["b"]
    assert (await refused(app, PATH, texts=["a"], input_type="poem"))[1] == "input_type"


async def test_truncation(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling(max_model_len=8)
    long = "123456789"
    both = {name: (await ask(app, PATH, texts=[long], truncate=name))["embeddings"] for name in ("START", "END")}
    assert both["END"] == (await ask(app, PATH, texts=["123456"]))["embeddings"] != both["START"]
    assert both["END"] == (await ask(app, PATH, texts=[long]))["embeddings"]
    message, param = await refused(app, PATH, texts=[long], truncate="NONE")
    assert "longer than allowed 8" in message
    assert param == "texts"
    cut = await ask(app, PATH, texts=[long], max_tokens=5)
    assert cut["meta"]["billed_units"]["input_tokens"] == 5
    assert "more than max_tokens 4" in (await refused(app, PATH, texts=["123"], max_tokens=4, truncate="NONE"))[0]
    assert await ask(app, PATH, texts=["123"], max_tokens=5, truncate="NONE")
    assert await ask(app, PATH, texts=["123"], max_tokens=1000)


async def test_dimensions(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling(matryoshka=True)
    body = await ask(app, PATH, texts=["a"], output_dimension=8, embedding_types=["float", "binary"])
    assert len(body["embeddings"]["float"][0]) == 8
    message, param = await refused(app, PATH, texts=["a"], output_dimension=4, embedding_types=["binary"])
    assert message == "Embedding dimension must be a multiple of 8 for binary embedding types, but got 4."
    assert param == "embedding_types"
    assert (await refused(app, PATH, texts=["a"], output_dimension=17))[1] == "output_dimension"


WRONG_FIELDS: list[tuple[Any, ...]] = [
    ({}, "texts"),
    ({"texts": []}, "texts"),
    ({"texts": ["a"], "inputs": [{"content": "b"}]}, "texts"),
    ({"images": ["data:"]}, "images[0]"),
    ({"texts": "a"}, "texts"),
    ({"texts": ["a", 5]}, "texts[1]"),
    ({"texts": ["a"] * 5}, "texts"),
    ({"inputs": [5]}, "inputs[0]"),
    ({"inputs": [{"content": []}]}, "inputs[0]"),
    ({"inputs": [{"content": [5]}]}, "inputs[0].content[0]"),
    ({"texts": ["a"], "embedding_types": []}, "embedding_types"),
    ({"texts": ["a"], "embedding_types": ["int4"]}, "embedding_types"),
    ({"texts": ["a"], "embedding_types": [[]]}, "embedding_types"),
    ({"texts": ["a"], "truncate": "MIDDLE"}, "truncate"),
    ({"texts": ["a"], "max_tokens": 0}, "max_tokens"),
]


async def test_the_field_with_an_input_that_is_too_long_is_named(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling(max_model_len=16)
    long = {"content": "x" * 20}
    assert (await refused(app, PATH, inputs=[{"content": "a"}, long], truncate="NONE"))[1] == "inputs[1]"
    assert (await refused(app, PATH, inputs=[long], truncate="NONE"))[1] == "inputs"
    message, param = await refused(app, PATH, inputs=[{"content": "abcdef"}], truncate="NONE", max_tokens=4)
    assert (message, param) == ("inputs[0] has 8 tokens, more than max_tokens 4", "inputs[0]")


async def test_a_prompt_is_left_out_of_the_vector_if_the_model_does(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling()
    engine.describe(pools_prompts=False)
    await ask(app, PATH, texts=["a"], input_type="query")
    assert engine.asked[-1][1].unpooled == "query: "


async def test_whole_numbers_are_of_vectors_of_length_1(make_pooling: MakePooling) -> None:
    found = []
    for normalize in ("true", "false"):
        app, _ = await make_pooling(normalize=normalize)
        found.append((await ask(app, PATH, texts=["ab"], embedding_types=["int8", "uint8"]))["embeddings"])
    assert found[0] == found[1]


async def test_wrong_fields_are_named(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling(max_pooling_inputs=4)
    for fields, param in WRONG_FIELDS:
        assert (await refused(app, PATH, **fields))[1] == param, fields
        assert engine.asked == [], fields
