"""text-embeddings-inference's /embed returns only a list of vectors."""

from __future__ import annotations

from typing import Any

import pytest

from lean_ovms.api.app import App
from tests.api.conftest import MakePooling, ask, get, post, whole

PATH = "/embed"


async def refused(app: App, path: str, **body: Any) -> str:
    """Returns the message of an error in this API's form, and checks its status and its type."""
    response = await post(app, path, {"model": "e", **body})
    error = await whole(response)
    assert (response.status, error["error_type"]) == (400, "Validation")
    assert set(error) == {"error", "error_type"}
    message: str = error["error"]
    return message


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
    ("fields", "message"),
    [
        ({}, "inputs field is required"),
        ({"inputs": []}, "inputs array should not be empty"),
        ({"inputs": [[]]}, "inputs[0]: inner arrays in inputs should not be empty"),
        ({"inputs": "x" * 600}, "inputs: Input length 602 longer than allowed 512"),
        ({"inputs": "a", "truncate": "yes"}, "truncate accepts values true or false"),
        ({"inputs": "a", "truncation_direction": "up"}, "truncation_direction should be"),
        ({"inputs": "a", "prompt_name": "poem"}, "Unsupported prompt_name 'poem'"),
    ],
)
@pytest.mark.parametrize("path", [PATH, "/embed_all"])
async def test_refusals(make_pooling: MakePooling, path: str, fields: dict[str, Any], message: str) -> None:
    app, _ = await make_pooling()
    assert message in await refused(app, path, **fields)


async def test_errors_of_other_paths_keep_openais_form(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling()
    assert "message" in (await whole(await post(app, "/embeddings", {})))["error"]
    missing = await post(app, PATH, {"model": "unknown", "inputs": "a"})
    assert (missing.status, (await whole(missing))["error_type"]) == (404, "Validation")


@pytest.mark.parametrize(("normalize", "wanted"), [(None, False), (True, True)])
async def test_vectors_of_all_tokens_are_those_of_pooling(
    make_pooling: MakePooling, normalize: bool | None, wanted: bool
) -> None:
    app, engine = await make_pooling()
    body = await ask(app, "/embed_all", inputs=["a", "bc"], normalize=normalize)
    assert engine.asked[-1][1].normalize is wanted
    same = await ask(app, "/pooling", input=["a", "bc"], task="token_embed", normalize=wanted)
    assert body == [one["data"] for one in same["data"]]
    assert [len(rows) for rows in body] == [3, 4]


async def test_sparse_vectors_have_the_indices_of_their_numbers(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling(pooling="SPLADE")
    dense = [one["data"] for one in (await ask(app, "/pooling", input=["a", "bc"]))["data"]]
    wanted = [[{"index": at, "value": one} for at, one in enumerate(row) if one > 0] for row in dense]
    assert await ask(app, "/embed_sparse", inputs=["a", "bc"]) == wanted
    assert await ask(app, "/", inputs=["a", "bc"]) == wanted
    assert 0 < len(wanted[0]) < len(dense[0])
    assert (await whole(await get(app, "/info")))["model_type"] == {"embedding": {"pooling": "splade"}}
    assert "for sparse embeddings, not for embeddings; use it at" in await refused(app, PATH, inputs="a")
    app, _ = await make_pooling()
    assert "not for sparse embeddings" in await refused(app, "/embed_sparse", inputs="a")


async def test_a_model_of_vectors_for_each_token_has_them_by_its_own_rules(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling(pooling="ALL")
    await ask(app, "/embed_all", inputs="a")
    assert engine.asked[-1][1].normalize is None


@pytest.mark.parametrize(
    ("task", "options", "kind"),
    [
        ("embeddings", {"pooling": "LAST"}, {"embedding": {"pooling": "last_token"}}),
        ("embeddings", {"pooling": "CLS"}, {"embedding": {"pooling": "cls"}}),
        ("rerank", {}, {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}),
        (
            "classify",
            {},
            {
                "classifier": {
                    "id2label": {"0": "negative", "1": "neutral", "2": "positive"},
                    "label2id": {"negative": 0, "neutral": 1, "positive": 2},
                }
            },
        ),
    ],
)
async def test_info_has_the_task_and_the_limits(
    make_pooling: MakePooling, task: str, options: dict[str, Any], kind: Any
) -> None:
    app, _ = await make_pooling(task, max_pooling_inputs=7, truncate=task == "embeddings", **options)
    info = await whole(await get(app, "/info"))
    assert info["model_type"] == kind
    assert (info["max_input_length"], info["max_client_batch_size"]) == (512, 7)
    assert (info["model_id"], info["auto_truncate"]) == ("e", task == "embeddings")


async def test_ids_become_texts(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling()
    ids = [257, *b"abc", 256]
    assert await ask(app, "/decode", ids=ids) == ["abc"]
    assert await ask(app, "/decode", ids=[ids, [], [100.0]]) == ["abc", "", "d"]
    kept = await ask(app, "/decode", ids=ids, skip_special_tokens=False)
    assert kept != ["abc"]
    assert "abc" in kept[0]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (None, "ids field is required"),
        ([], "ids array should not be empty"),
        ([1, "a"], "ids[1] is not a token id"),
        ([[1], [-1]], "ids[1][0] is not a token id"),
        ([[1], 1], "ids[0] is not a token id"),
        ([[1]] * 3, "ids has 3 elements"),
        ([[1], [10**6]], "Token id 1000000 is out of vocabulary"),
    ],
)
async def test_other_ids_are_refused(make_pooling: MakePooling, ids: Any, message: str) -> None:
    app, _ = await make_pooling(max_pooling_inputs=2)
    assert message in await refused(app, "/decode", ids=ids)


@pytest.mark.parametrize(
    ("task", "body", "path"),
    [
        ("embeddings", {"inputs": "a"}, "/embed"),
        ("embeddings", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}, "/similarity"),
        ("embeddings", {"query": "a", "texts": ["b"]}, "/rerank"),
        ("rerank", {"query": "a", "texts": ["b"]}, "/rerank"),
        ("rerank", {"inputs": "a"}, "/predict"),
        ("classify", {"inputs": "a"}, "/predict"),
    ],
)
@pytest.mark.parametrize("model", [None, "e"])
async def test_the_root_forwards_to_the_endpoint_that_fits(
    make_pooling: MakePooling, task: str, body: dict[str, Any], path: str, model: str | None
) -> None:
    app, _ = await make_pooling(task)
    found = await post(app, "/", body | {"model": model})
    same = await post(app, path, body)
    assert (found.status, await whole(found)) == (200, await whole(same))


async def test_the_root_knows_no_unknown_model(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling()
    assert (await post(app, "/", {"model": "other", "inputs": "a"})).status == 404
    refusal = await post(app, "/", {"model": 1, "inputs": "a"})
    assert (refusal.status, (await whole(refusal))["error"]["param"]) == (400, "model")
