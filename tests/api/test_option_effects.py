"""The effects of single options for which there is no other test."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.config import DEMO_MODEL, Config
from lean_ovms.engine.loading import settings
from lean_ovms.errors import StartError, WrongOptions
from lean_ovms.models.text_model import TextModel
from lean_ovms.repository import model_dir
from lean_ovms.types import ChatPrompt, OutputParams, Request, SamplingParams
from lean_ovms.util.concurrency import TooSlowInline, inline_left_s
from tests.api.conftest import MakeApp, events, post, whole
from tests.fakes import FakeEngine, say

MESSAGE = {"role": "user", "content": "hi"}


async def loaded(**options: Any) -> TextModel:
    model = TextModel(Config(fake_engine=True, model_name="m", **options), FakeEngine(say("x")))  # type: ignore[arg-type]
    await model.load()
    return model


async def seen(model: TextModel) -> str:
    """Returns the prompt as the engine gets it."""
    await (await model.start(ChatPrompt(messages=[MESSAGE]), SamplingParams(), OutputParams())).aclose()
    [(prompt, _)] = model.engine.submitted  # type: ignore[attr-defined]
    return str(prompt)


@pytest.mark.parametrize(("form", "text"), [("string", "hi"), ("openai", "[{'type': 'text', 'text': 'hi'}]")])
async def test_content_reaches_the_template_in_the_form_asked_for(form: str, text: str) -> None:
    model = await loaded(chat_template="{{ messages[0].content }}", chat_template_content_format=form)
    assert await seen(model) == text


async def test_parsers_are_those_asked_for() -> None:
    model = await loaded(tool_parser="hermes3", reasoning_parser="none")
    assert model.parser_names == ("hermes3", None)
    model = await loaded(tool_parser="none", reasoning_parser="qwen3")
    assert model.parser_names == (None, "qwen3")


async def test_so_many_answers_and_prompts_and_no_more(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x", sequences=2), best_of_limit=2, max_prompts=2)
    for field, good, bad in [("n", 2, 3), ("prompt", ["a", "b"], ["a", "b", "c"])]:
        for value, status in [(good, 200), (bad, 400)]:
            response = await post(app, "/v1/completions", {"model": "m", "prompt": "x", "n": 2, field: value})
            assert response.status == status
            await response.aclose()


async def test_a_body_of_too_many_values_is_refused(make_app: MakeApp) -> None:
    body = {"model": "m", "prompt": "x", "metadata": {"a": [0] * 70_000}}
    for options, status in [({}, 200), ({"max_body_values": 65536}, 400)]:
        app, _ = await make_app(say("x"), **options)
        response = await post(app, "/v1/completions", body)
        assert response.status == status
        await response.aclose()
        app.services.offload.close()


async def test_a_template_that_takes_long_has_the_time_asked_for() -> None:
    class Long:
        def render(self, prompt: ChatPrompt, seconds: float) -> str:
            if inline_left_s.get() is not None:
                raise TooSlowInline
            return f"{seconds} s"

    model = await loaded(template_timeout_s=7.0)
    model.chat_format.template = Long()  # type: ignore[assignment]
    assert await seen(model) == "7.0 s"
    model.offload.close()


def read(path: Path, **options: str) -> model_dir.ModelDir:
    return model_dir.read(Config(model_path=str(path), **options))


def test_defaults_of_requests_come_from_the_file_asked_for(tmp_path: Path) -> None:
    for name in ("openvino_model.xml", "openvino_tokenizer.xml", "openvino_detokenizer.xml"):
        (tmp_path / name).touch()
    (tmp_path / "generation_config.json").write_text('{"top_k": 1}')
    (tmp_path / "other.json").write_text('{"top_k": 2}')
    assert read(tmp_path).generation_config == {"top_k": 1}
    assert read(tmp_path, generation_config_path="other.json").generation_config == {"top_k": 2}
    with pytest.raises(StartError, match="--generation_config_path: no such file"):
        read(tmp_path, generation_config_path="none.json")

    assert read(tmp_path, generation_config_path="none").generation_config == {}
    assert read(tmp_path, override_generation_config='{"top_p": 0.5}').generation_config == {"top_k": 1, "top_p": 0.5}
    assert read(tmp_path, generation_config_path="none", override_generation_config='{"a": 1}').generation_config == {
        "a": 1
    }


async def test_a_model_takes_request_defaults_from_the_options() -> None:
    options = {"override_generation_config": '{"temperature": 0.25}', "generation_config_path": "none"}
    model = TextModel(Config(**options), FakeEngine([]))  # type: ignore[arg-type]
    await model.load()
    assert model.directory.generation_config == {"temperature": 0.25}


async def test_template_variables_of_the_options_are_below_those_of_requests() -> None:
    options = {"chat_template": "{{ a }} {{ b }}", "default_chat_template_kwargs": '{"a": 1, "b": 2}'}
    model = await loaded(**options)
    prompt = ChatPrompt(messages=[MESSAGE], template_kwargs={"b": 3})
    assert await model.render(prompt) == "1 3"
    with pytest.raises(WrongOptions, match="--default_chat_template_kwargs must not set messages, tools"):
        await loaded(default_chat_template_kwargs='{"tools": 1, "messages": []}')


async def test_paths_are_served_with_and_without_the_root_path(make_app: MakeApp) -> None:
    app, _ = await make_app(root_path="/llm")
    for path, status in [("/v1/models", 200), ("/llm/v1/models", 200), ("/llmv1/models", 404), ("/x/v1/models", 404)]:
        assert (await app.handle(Request("GET", path))).status == status
    assert (await whole(await app.handle(Request("GET", "/llm/v1/models/m"))))["id"] == "m"
    forms = app.config.composition.error_forms.below(app.config.root_path)
    for root in ("", "/llm"):
        assert app.is_vital("GET", f"{root}/health")
        form = forms.of(Request("POST", f"{root}/v1/messages"))
        assert form is not None
        assert form.name == "AnthropicError"
    assert forms.of(Request("POST", "/x/v1/messages")) is None
    for wrong in ("llm", "/llm/"):
        with pytest.raises(StartError, match="--root_path must begin with a slash"):
            Config(root_path=wrong)


async def test_names_of_tokens_are_ids_in_every_response_if_asked_for(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"), return_tokens_as_token_ids=True)
    body = await whole(await post(app, "/v1/completions", {"model": "m", "prompt": "x", "logprobs": 0}))
    assert all(token.startswith("token_id:") for token in body["choices"][0]["logprobs"]["tokens"])


@pytest.mark.parametrize(
    ("path", "given"), [("/v1/chat/completions", {"messages": [MESSAGE]}), ("/v1/completions", {"prompt": "x"})]
)
async def test_every_stream_ends_with_token_counts_if_asked_for(
    make_app: MakeApp, path: str, given: dict[str, Any]
) -> None:
    app, _ = await make_app(say("x"), enable_force_include_usage=True)
    for options in ({}, {"stream_options": {"include_usage": False}}):
        *_, usage, last = await events(await post(app, path, {"model": "m", "stream": True, **given, **options}))
        assert (last, usage["choices"], usage["usage"]["completion_tokens"]) == ("[DONE]", [], 2)
    assert (await whole(await post(app, path, {"model": "m", **given})))["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_model_len": 131073}, "--max_model_len 131073 exceeds the model's context length of 131072 tokens"),
        ({"tool_parser": "hermes"}, "--tool_parser must be none or one of .*hermes3"),
        ({"reasoning_parser": "deep"}, "--reasoning_parser must be none or one of"),
        ({"chat_template": "{{"}, "--chat_template: "),
        ({"chat_template": "/no/such"}, "--chat_template is neither a readable file nor a template"),
    ],
)
async def test_what_needs_no_engine_is_checked_before_one_is_started(options: dict[str, Any], message: str) -> None:
    engine = FakeEngine([])
    with pytest.raises(WrongOptions, match=message):
        await TextModel(Config(**options), engine).load()  # type: ignore[arg-type]
    assert engine.state != "ready"


async def test_a_load_is_reported_from_its_begin_to_what_was_loaded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lean_ovms.models.lifecycle.PROGRESS_S", 0.01)

    class Slow(FakeEngine):
        async def start(self) -> Any:
            await asyncio.sleep(0.05)
            return await super().start()

    with caplog.at_level("INFO", "lean_ovms.models"):
        await TextModel(Config(), Slow([])).load()  # type: ignore[arg-type]
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == f"loading demo from {DEMO_MODEL} on CPU"
    assert any(re.fullmatch(r"demo is still loading after \d+ s", line) for line in lines)
    assert re.fullmatch(
        r"demo: text generation, context of \d+ tokens, weights in u8, KV cache for \d+ tokens, tool parser \w+, "
        r"reasoning parser \w+",
        lines[-1],
    )


# --- engine


def test_the_cache_has_its_percent_of_the_memory() -> None:
    config = {"model_path": str(DEMO_MODEL), "max_num_seqs": 4096}
    blocks = [settings.resolve(Config(**config, cache_memory_percent=n), 1 << 27).blocks for n in (10, 40)]
    assert blocks[1] == pytest.approx(4 * blocks[0], rel=0.01)


def test_the_distribution_over_devices_is_a_property() -> None:
    config = Config(model_path=str(DEMO_MODEL), model_distribution_policy="TENSOR_PARALLEL")
    assert settings.resolve(config, 1 << 30).properties["MODEL_DISTRIBUTION_POLICY"] == "TENSOR_PARALLEL"


# --- the process
