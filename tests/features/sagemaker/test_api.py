"""POST /invocations chooses the endpoint for a body by the model and the fields."""

from __future__ import annotations

from typing import Any

import pytest

from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.errors import BadRequest
from lean_ovms.features.sagemaker.api import endpoint
from lean_ovms.models.model import make_model
from lean_ovms.types import Request
from tests.api.conftest import MakeApp, MakePooling, events, get, post, whole
from tests.fakes import say

USER = {"role": "user", "content": "hi"}


async def test_a_body_gets_the_answer_of_its_endpoint(make_app: MakeApp) -> None:
    app, engine = await make_app(say("Hel", "lo"))
    chat = await whole(await post(app, "/invocations", {"messages": [USER]}))
    assert chat["choices"][0]["message"]["content"] == "Hello"
    text = await whole(await post(app, "/invocations", {"prompt": "ab"}))
    assert (text["object"], text["choices"][0]["text"]) == ("text_completion", "Hello")
    assert [prompt for prompt, _ in engine.submitted] == ["user:hi;", "ab"]
    stream = await events(await post(app, "/invocations", {"messages": [USER], "stream": True}))
    assert stream[-1] == "[DONE]"
    several = await whole(await post(app, "/invocations", {"messages": [[USER], [USER]]}))
    assert len(several["choices"]) == 2


async def test_an_endpoint_of_a_feature_that_the_server_lacks_is_unknown(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"), without="vllm_extras")
    response = await post(app, "/invocations", {"messages": [[USER], [USER]]})
    assert (response.status, (await whole(response))["error"]["code"]) == (404, "not_found")


async def test_the_header_of_sagemaker_names_the_model(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"))
    header = {"x-amzn-sagemaker-adapter-identifier": "nope"}
    response = await post(app, "/invocations", {"prompt": "ab", "model": "m"}, **header)
    assert (response.status, (await whole(response))["error"]["param"]) == (404, "model")


async def test_errors_are_those_of_the_endpoint(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"), api_key="secret")
    assert (await post(app, "/invocations", {"prompt": "ab"})).status == 401
    key = {"authorization": "Bearer secret"}
    response = await post(app, "/invocations", {"prompt": "ab", "n": 0}, **key)
    assert (response.status, (await whole(response))["error"]["param"]) == (400, "n")
    response = await post(app, "/invocations", {"text": "ab"}, **key)
    error = (await whole(response))["error"]
    assert (response.status, error["code"]) == (400, "no_endpoint")
    assert "messages; prompt; query and items; input" in error["message"]
    assert (await post(app, "/invocations", b"[", **key)).status == 400
    form = Request("POST", "/invocations", headers={"content-type": "multipart/form-data; boundary=x", **key})
    form.body = b"--x--"
    response = await app.handle(form)  # a form is for transcriptions
    assert (response.status, (await whole(response))["error"]["code"]) == (404, "wrong_task")
    form.headers["x-amzn-sagemaker-adapter-identifier"] = "m"
    response = await app.handle(form)
    assert (response.status, (await whole(response))["error"]["param"]) == (400, "model")


async def test_a_model_with_vectors_of_tokens(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling(pooling="ALL")
    body = await whole(await post(app, "/invocations", {"input": "a"}))
    assert [len(entry["data"]) for entry in body["data"]] == [3]


@pytest.mark.parametrize(
    ("task", "body", "path"),
    [
        ("embeddings", {"input": "a"}, "/v1/embeddings"),
        ("embeddings", {"messages": [USER]}, "/v1/embeddings"),
        ("embeddings", {"texts": ["a"]}, "/v2/embed"),
        ("embeddings", {"input": "a", "task": "token_embed"}, "/pooling"),
        ("embeddings", {"query": "a", "documents": ["b"]}, "/rerank"),
        ("rerank", {"query": "a", "texts": ["b"]}, "/rerank"),
        ("rerank", {"queries": "a", "documents": ["b"]}, "/score"),
        ("rerank", {"text_1": "a", "text_2": "b"}, "/score"),
        ("classify", {"input": "a"}, "/classify"),
        ("token_classify", {"input": "a"}, "/pooling"),
    ],
)
async def test_models_that_pool(make_pooling: MakePooling, task: str, body: dict[str, Any], path: str) -> None:
    app, _ = await make_pooling(task)
    assert endpoint(body, app.services) == path
    response = await post(app, "/invocations", body)
    assert response.status == 200, response.body


async def test_vectors_of_texts_are_embeddings_where_the_server_lacks_coheres_api(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling(without="cohere")
    assert endpoint({"texts": ["a"]}, app.services) == "/v1/embeddings"


@pytest.mark.parametrize(
    ("task", "body", "found"),
    [
        ("image_generation", {"prompt": "a cat"}, "/v1/images/generations"),
        ("text2speech", {"input": "hello"}, "/v1/audio/speech"),
        ("speech2text", {"input": "hello"}, "no JSON objects at this path"),  # but forms
        ("rerank", {"input": "a"}, "query and documents"),
    ],
)
async def test_models_of_other_tasks(task: str, body: dict[str, Any], found: str) -> None:
    app = App(Config(fake_engine=True), [make_model(Config(fake_engine=True, model_name="e", task=task))])
    if found.startswith("/"):
        assert endpoint(body, app.services) == found
    else:
        with pytest.raises(BadRequest, match=found):
            endpoint(body, app.services)
    await app.close()


async def test_without_any_model_the_members_decide(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"))
    empty = App(app.config)
    assert endpoint({"prompt": "a"}, empty) == "/v1/completions"
    response = await post(empty, "/invocations", {"prompt": "a"})
    assert response.status in (400, 404, 503)
    await empty.close()


async def test_load_counts_what_is_not_finished(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"))
    assert await whole(await get(app, "/load")) == {"server_load": 0}
    response = await post(app, "/v1/completions", {"prompt": ["a", "b"], "stream": True})
    assert await whole(await get(app, "/load")) == {"server_load": 2}
    await events(response)
    assert await whole(await get(app, "/load")) == {"server_load": 0}
