"""/api/generate with a scripted engine: prompts with and without the chat template, context, suffix, errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lean_ovms.models.text_model import TextModel
from tests.api.conftest import CODER, MakeApp, post, teach, whole
from tests.fakes import EOS, encode, say
from tests.features.ollama.test_chat import PARSING, error, lines

PATH = "/api/generate"


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "hi", **fields}


async def test_a_text_whole_and_streamed(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: say("Hel", "lo"))
    body = await whole(await post(app, PATH, ask(stream=False, system="be brief")))
    assert (body["response"], body["done"], body["done_reason"]) == ("Hello", True, "stop")
    assert (body["prompt_eval_count"], body["eval_count"]) == (24, 6)
    assert body["context"] == [*encode("system:be brief;user:hi;Hello"), EOS]
    told = await lines(await post(app, PATH, ask(system="be brief")))
    assert [one["response"] for one in told] == ["Hel", "lo", ""]
    assert [one["done"] for one in told] == [False, False, True]
    assert told[-1].keys() == body.keys()
    assert told[-1]["context"] == body["context"]
    assert engine.submitted[0][0] == "system:be brief;user:hi;"


async def test_a_context_goes_before_the_prompt(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: say("So"))
    first = await whole(await post(app, PATH, ask(stream=False)))
    second = await whole(await post(app, PATH, ask(prompt="and", context=first["context"], stream=False)))
    assert engine.submitted[1][0] == "user:hi;So<eos>user:and;"
    assert second["context"][-3:] == [*encode("So"), EOS]
    assert await error(await post(app, PATH, ask(context=["x"]))) == (400, "context[0] is not a token id")
    status, message = await error(await post(app, PATH, ask(context=[65, 10**6])))
    assert (status, message.partition(" in ")[0]) == (400, "context: 1000000 is not a token id")


async def test_a_raw_prompt(make_app: MakeApp) -> None:
    template = "{{ messages[-1].content }}{{ enable_thinking }}"
    app, engine = await make_app(lambda *_: say("<think>a</think>b"), **PARSING, chat_template=template)
    body = await whole(await post(app, PATH, ask(raw=True, stream=False)))
    assert engine.submitted[0][0] == "hi"
    assert body["response"] == "<think>a</think>b"
    assert "context" not in body
    body = await whole(await post(app, PATH, ask(think=True, logprobs=True, stream=False)))
    assert (body["thinking"], body["response"]) == ("a", "b")
    assert len(body["logprobs"]) == body["eval_count"]
    assert engine.submitted[1][0] == "hiTrue"
    refusal = await error(await post(app, PATH, ask(template="{{ .Prompt }}")))
    assert refusal == (400, "template is not supported; the model's chat template is used")
    for more in ({"system": "x"}, {"context": [1]}):
        refusal = await error(await post(app, PATH, ask(raw=True, **more)))
        assert refusal == (400, "raw mode does not support template, system, or context")


async def test_a_model_without_a_chat_template_continues_the_prompt(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, engine = await make_app(lambda *_: say("x"))
    template = app.registry.get("m", TextModel).chat_format.template
    monkeypatch.setattr(type(template), "problem", "there is none")
    assert (await whole(await post(app, PATH, ask(stream=False))))["response"] == "x"
    assert engine.submitted[0][0] == "hi"


async def test_a_suffix(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    app, engine = await make_app(lambda *_: say("x"))
    refusal = await error(await post(app, PATH, ask(suffix="end")))
    assert refusal == (400, 'suffix: "m" does not support insert')
    app, engine = await make_app(lambda *_: say("x"))
    teach(engine, CODER, monkeypatch)
    assert (await whole(await post(app, PATH, ask(suffix="end", stream=False))))["response"] == "x"
    [(prompt, sampling)] = engine.submitted
    assert prompt == "<|fim_prefix|>hi<|fim_suffix|>end<|fim_middle|>"
    assert set(sampling.stop_token_ids) >= {4, 5}


async def test_images(make_app: MakeApp, png: str) -> None:
    app, engine = await make_app(lambda *_: say("x"))
    model = app.registry.models["m"]
    refusal = await error(await post(app, PATH, ask(images=[png])))
    assert (refusal[0], refusal[1].partition(":")[0]) == (400, "images")
    engine.info = model._info = replace(engine.info, vision=True)
    await whole(await post(app, PATH, ask(images=[png], stream=False)))
    assert engine.submitted[0][0] == "user:<ov_genai_image_0>\nhi;"
    refusal = await error(await post(app, PATH, ask(images=[png], context=[65])))
    assert refusal == (400, "images cannot be combined with raw, context or suffix")
    assert await error(await post(app, PATH, ask(images=[1]))) == (400, "images must be an array of strings in base64")


@pytest.mark.parametrize("prompt", ["", "hi"])
async def test_a_context_has_token_ids_also_where_it_is_not_used(make_app: MakeApp, prompt: str) -> None:
    app, _ = await make_app(lambda *_: say("x"))
    response = await post(app, PATH, ask(prompt=prompt, context=[1, 2**32], stream=False))
    assert response.status == 400
    assert "context[1] is not a token id" in (await whole(response))["error"]
