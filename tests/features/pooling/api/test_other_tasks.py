"""Models of different tasks in one server: each endpoint rejects the others by name. Tokenizing with pooling models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.models.model import Model
from lean_ovms.models.text_model import TextModel
from lean_ovms.server.run import close
from tests.api.conftest import MakePooling, ask, get, post, refused, warnings_of, whole
from tests.fakes import FakeEngine, say
from tests.features.pooling.fakes import BOS, EOS, fake_model

POOLING = [
    ("/v1/embeddings", {"input": "a"}),
    ("/v2/embed", {"texts": ["a"]}),
    ("/rerank", {"query": "a", "documents": ["b"]}),
    ("/score", {"text_1": "a", "text_2": "b"}),
    ("/classify", {"input": "a"}),
    ("/pooling", {"input": "a"}),
]


async def two_models() -> App:
    text = TextModel(Config(fake_engine=True, model_name="chat"), FakeEngine(say("hello")))  # type: ignore[arg-type]
    embed, _ = await fake_model()
    await text.load()
    return App(text.config, [text, embed])


async def test_a_pooling_that_is_assumed_is_told_with_every_answer() -> None:
    text = "the model's files do not say how vectors are pooled; the server assumes CLS, which may be wrong (--pooling)"
    for assumed in (True, False):
        model, engine = await fake_model()
        engine.describe(pooling="CLS", pooling_assumed=assumed)
        await model.load()
        app = App(model.config, [model])
        for path, body in (
            *(case for case in POOLING if case[0] != "/classify"),
            ("/v1/embeddings", {"input": "a", "encoding_format": "bytes"}),
            ("/v1/embed", {"texts": ["a"]}),
            ("/embed", {"inputs": "a"}),
            ("/api/embed", {"input": "a"}),
            ("/api/embeddings", {"prompt": "a"}),
            ("/embedding", {"content": "a"}),
        ):
            response = await post(app, path, {"model": "e", **body})
            assert response.status == 200
            warnings = warnings_of(response)
            assert any(text in value for value in warnings) is assumed, path
        await close(app)


async def test_a_prompt_that_is_assumed_is_told_unless_there_is_a_template() -> None:
    for template, told in (("", True), ("{{ messages[0].content }}", False)):
        model, engine = await fake_model("rerank", chat_template=template)
        engine.describe(prompt_assumed=True)
        await model.load()
        app = App(model.config, [model])
        response = await post(app, "/rerank", {"model": "e", "query": "a", "documents": ["b"]})
        assert any("pairs are scored with Qwen3-Reranker's prompt" in value for _, value in response.headers) is told
        await close(app)


async def test_which_model_is_the_default() -> None:
    app = await two_models()
    for path, model, body, message in (
        ("/v3/chat/completions", "e", {"messages": [{"role": "user", "content": "hi"}]},
         "The model 'e' is for embeddings, not for text generation; "
         "use it at /v1/embeddings, /v2/embed, /pooling, /rerank and /score"),
        ("/v1/embeddings", "chat", {"input": "a"}, "The model 'chat' is for text generation, not "),
    ):  # fmt: skip
        text, param = await refused(app, path, **{"model": model, **body})
        assert (text.startswith(message), param) == (True, "model")
    assert (await whole(await post(app, "/tokenize", {"prompt": "a"})))["max_model_len"] == 1000
    assert (await whole(await post(app, "/v1/embeddings", {"input": "a"})))["model"] == "e"
    other, _ = await fake_model(model_name="f")
    app.registry.install(other)
    response = await post(app, "/v1/embeddings", {"input": "a"})
    assert (await whole(response))["error"]["message"] == "model field is missing in JSON body"
    await close(app)


async def test_tokens_of_an_embedding_model(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling()
    path = "/v3/tokenize"
    assert await ask(app, path, text="ab") == {"tokens": [BOS, 97, 98, EOS]}
    assert await ask(app, path, text="ab", add_special_tokens=False) == {"tokens": [97, 98]}
    assert await ask(app, path, text=["abcdef", "a"], max_length=4) == {
        "tokens": [[BOS, 97, 98, EOS], [BOS, 97, EOS]]
    }  # fmt: skip
    assert await ask(app, path, text="abcdef", max_length=2) == {"tokens": [BOS, 97]}
    assert await ask(app, path, prompt="a", return_token_strs=True) == {
        "count": 3, "max_model_len": 512, "tokens": [BOS, 97, EOS], "token_strs": ["<bos>", "a", "<eos>"]
    }  # fmt: skip
    assert (await ask(app, path, messages=[{"role": "user", "content": "a"}]))["count"] == 4
    assert (await refused(app, path, text=[1]))[1] == "text"


async def test_tokens_of_a_reranker_have_no_special_ones_for_ovms(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling("rerank")
    assert await ask(app, "/v3/tokenize", text="ab", add_special_tokens=True) == {"tokens": [97, 98]}
    assert (await ask(app, "/tokenize", prompt="ab"))["tokens"] == [BOS, 97, 98, EOS]


async def test_tokens_back_to_text(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling()
    assert (await ask(app, "/detokenize", tokens=[BOS, 97, EOS]))["prompt"] == "<bos>a<eos>"
    assert (await ask(app, "/detokenize", tokens=[BOS, 97, EOS], skip_special_tokens=True))["prompt"] == "a"
    assert (await refused(app, "/detokenize", tokens=[10**6]))[1] == "tokens"


async def test_the_list_of_models_says_what_they_compute(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling()
    [model] = (await whole(await get(app, "/v1/models")))["data"]
    assert model["max_model_len"] == 512
    assert model["pooling"] == {
        "kind": "embed",
        "dimensions": 16,
        "pooling": {"type": "MEAN", "source": "the fake engine", "assumed": False},
        "normalize": True,
        "matryoshka": False,
        "prompts": ["document", "query"],
    }
    app, _ = await make_pooling("classify")
    assert (await whole(await get(app, "/v1/models/e")))["pooling"] == {
        "kind": "classify",
        "dimensions": 3,
        "activation": "softmax",
        "labels": ["negative", "neutral", "positive"],
    }


BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x", "store": False},
    **dict(POOLING),
}


@pytest.mark.parametrize(
    "task", ["embeddings", "rerank", "rerank of two", "classify", "token_classify", "text", "vision"]
)
async def test_the_endpoints_that_are_named_take_the_model_and_no_others_do(task: str) -> None:
    engine = FakeEngine(say("hello"))
    model: Model
    if task in ("text", "vision"):
        engine.info = replace(engine.info, vision=task == "vision", image_tokens=["<image>"])
        model = TextModel(Config(fake_engine=True, model_name="e"), engine)  # type: ignore[arg-type]
        await model.load()
    else:
        model, pooling = await fake_model(task.split()[0])
        if task == "rerank of two":
            pooling.describe(outputs=2)
            model._prepare(pooling.info)
    app = App(model.config, [model])
    named = {name.rstrip(",") for name in model.served_under.split() if name.startswith("/")}
    assert named <= BODIES.keys()
    for path, body in BODIES.items():
        response = await post(app, path, {"model": "e", **body})
        answer = await whole(response)
        assert (response.status == 200) is (path in named), (path, answer)
    await close(app)
