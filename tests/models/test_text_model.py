"""A text model: how it handles prompts, what it submits to the engine, and which model serves its requests."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.config import Config
from lean_ovms.errors import BadRequest, ModelNotFound, StartError, Unavailable
from lean_ovms.models.chat_format import ChatFormat
from lean_ovms.models.generation import collect
from lean_ovms.models.model import Model
from lean_ovms.models.text_model import MAX_OTHER_CHARS, TextModel
from lean_ovms.observability.records import RequestRecord, current_record
from lean_ovms.repository.model_dir import ModelDir
from lean_ovms.types import ChatPrompt, Image, OutputParams, SamplingParams, TextPrompt, TokenPrompt
from lean_ovms.types.engine import ModelInfo, Vocabulary
from tests.fakes import INFO, FakeEngine, say

HELLO = ChatPrompt([{"role": "user", "content": "hi"}])
PIXEL = Image(1, 1, b"\0\0\0")
SCHEMA = {"type": "json_schema", "json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}


async def loaded(script: Any = None, engine: FakeEngine | None = None, **options: Any) -> tuple[TextModel, FakeEngine]:
    engine = engine or FakeEngine(say("a", "b") if script is None else script)
    model = TextModel(Config(fake_engine=True, model_name="m", **options), engine)  # type: ignore[arg-type]
    await model.load()
    return model, engine


async def start(model: TextModel, prompt: Any = HELLO, *, constraint: Any = None, **options: Any) -> Any:
    return await model.start(prompt, SamplingParams(max_tokens=5), OutputParams(constraint=constraint), **options)


# --- prompts


async def test_a_chat_is_rendered_and_ids_go_as_they_are() -> None:
    model, engine = await loaded()
    for prompt in (HELLO, TextPrompt("text"), TokenPrompt([1, 2])):
        await (await start(model, prompt)).aclose()
    assert [prompt for prompt, _ in engine.submitted] == ["user:hi;", "text", [1, 2]]
    assert await model.render(HELLO) == "user:hi;"


@pytest.mark.parametrize("adapters", [False, True])
async def test_files_that_were_replaced_are_served_once_an_engine_that_died_has_read_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, adapters: bool
) -> None:
    template = exported(tmp_path, "old:{{ messages[0].content }}")
    engine = FakeEngine(say("a"))
    engine.info = replace(INFO, capabilities=(*INFO.capabilities, *["adapters"] * adapters))
    config = Config(model_path=str(tmp_path), model_name="m", lora_modules=f"x={tmp_path}" if adapters else "")
    model = TextModel(config, engine)  # type: ignore[arg-type]
    model.adapters.check = model.adapters.load = _done  # type: ignore[method-assign]
    await model.load()
    assert await model.render(HELLO) == "old:hi"
    template.write_text("new:{{ messages[0].content }}")
    assert await model.render(HELLO) == "old:hi"
    before = model.chat_format
    await engine.on_restart()
    for each in model.with_adapters:
        assert await each._render(HELLO) == "new:hi"
    assert "have changed; serving the new ones" in caplog.text
    caplog.clear()
    before = model.chat_format
    await engine.on_restart()
    assert model.chat_format is before
    engine.info = replace(engine.info, context_length=7)
    await engine.on_restart()
    assert model._max_prompt_chars == 7 * engine.vocabulary.longest
    engine.info = replace(engine.info, vision=True)
    await engine.on_restart()
    assert model.endpoints == ("/v1/chat/completions",)
    engine.info = replace(engine.info, vision=False)
    await engine.on_restart()
    assert model.endpoints == TextModel.endpoints
    assert not caplog.text
    template.unlink()
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(StartError, match="tokenizer_config"):
        await engine.on_restart()


@pytest.mark.parametrize("error", [StartError, RuntimeError])
async def test_files_that_cannot_be_served_after_a_restart_are_read_anew_by_the_next_one(
    tmp_path: Path, error: type[Exception]
) -> None:
    template = exported(tmp_path, "old:{{ messages[0].content }}")
    engine = FakeEngine(say("a"))
    model = TextModel(Config(model_path=str(tmp_path), model_name="m"), engine)  # type: ignore[arg-type]
    await model.load()
    template.write_text("new:{{ messages[0].content }}")
    prepare = model._prepare

    def refuse(info: ModelInfo) -> None:
        raise error("refused")

    model._prepare = refuse  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(error, match="refused"):
            await engine.on_restart()
    model._prepare = prepare  # type: ignore[method-assign]
    await engine.on_restart()
    assert await model.render(HELLO) == "new:hi"


async def test_a_template_that_was_mended_serves_chats_again(tmp_path: Path) -> None:
    template = exported(tmp_path, "{% if %}")
    engine = FakeEngine(say("a"))
    model = TextModel(Config(model_path=str(tmp_path), model_name="m"), engine)  # type: ignore[arg-type]
    await model.load()
    assert model.endpoints == ("/v1/completions",)
    template.write_text("{{ messages[0].content }}")
    await engine.on_restart()
    assert (model.endpoints, model.routed_as) == (TextModel.endpoints, TextModel.routed_as)
    assert await model.render(HELLO) == "hi"


def exported(directory: Path, text: str) -> Path:
    """Writes the files of an export with this chat template. Returns the path of the template."""
    for name in ("openvino_model.xml", "openvino_model.bin", "openvino_tokenizer.xml", "openvino_detokenizer.xml"):
        (directory / name).touch()
    template = directory / "chat_template.jinja"
    template.write_text(text)
    return template


async def _done() -> None:
    """Does nothing."""


async def test_a_prompt_too_long_for_the_context_is_refused_before_the_engine_sees_it() -> None:
    model, engine = await loaded()
    limit = INFO.context_length * engine.vocabulary.longest
    text, more = "x" * (limit + 1), "x" * (MAX_OTHER_CHARS + 1)
    user = {"role": "user", "content": "hi"}
    call = {"type": "function", "function": {"name": "f", "arguments": more}}
    for prompt in (
        TextPrompt(text),
        ChatPrompt([{"role": "user", "content": text}]),
        ChatPrompt([user], tools=[{"type": "function", "function": {"name": "f", "description": more}}]),
        ChatPrompt([user, {"role": "assistant", "content": None, "tool_calls": [call]}]),
        ChatPrompt([user], template_kwargs={"documents": [{"text": more}]}),
    ):
        with pytest.raises(BadRequest, match="exceeds model max length") as caught:
            await start(model, prompt)
        assert caught.value.code == "context_length_exceeded"
    assert engine.submitted == []
    # The template does not print its variables, so they need not fit.
    await (await start(model, ChatPrompt([user], template_kwargs={"unused": text}))).aclose()


@pytest.mark.parametrize(("side", "asked"), [("left", -1), ("right", 9)])
async def test_a_truncated_prompt_keeps_one_of_its_ends(side: str, asked: int) -> None:
    model, engine = await loaded()
    limit = INFO.context_length * engine.vocabulary.longest
    prompt = TextPrompt("start" + "x" * limit + "end")
    await (await start(model, prompt, truncate=asked, truncation_side=side)).aclose()
    [(sent, _)] = engine.submitted
    assert sent == (prompt.text[-limit:] if side == "left" else prompt.text[:limit])
    assert engine.truncated[0][1] == side


async def test_tokens_are_counted_also_those_of_images() -> None:
    model, engine = await loaded()
    assert await model.count(HELLO) == len("user:hi;")
    assert engine.submitted == []
    with_image = HELLO.with_media(HELLO.messages, (PIXEL,))
    assert await model.count(with_image) == len("user:hi;")
    assert engine.images == [(PIXEL,)]
    assert not engine.mail.busy  # the request that counted tokens is closed


async def test_tokens_are_encoded_decoded_and_shown() -> None:
    model, _ = await loaded()
    assert await model.encode(["ab", ""], False) == [[97, 98], []]
    assert await model.decode([97, 98], True) == "ab"
    assert model.token_strings([97, 0xC3]) == ["a", "�"]
    with pytest.raises(BadRequest, match="the texts to tokenize have more than"):
        await model.encode(["x" * ((1 << 20) + 1)], False)


# --- structured output


# --- one request, one record


async def test_a_closed_generation_is_in_its_requests_record_once() -> None:
    model, _ = await loaded()
    record = RequestRecord("id", "POST", "/", "", 0.0)
    token = current_record.set(record)
    try:
        generation = await start(model, TextPrompt("abc"))
    finally:
        current_record.reset(token)
    await collect(generation, 1)
    await generation.aclose()
    await generation.aclose()
    [found] = record.generations
    assert (found.prompt_tokens, found.finish_reasons, found.error) == (3, ("stop",), "")
    assert found.ttft_s is not None
    assert found.ttft_s <= found.seconds


async def test_the_prompt_of_a_generation_is_decoded_by_the_tokenizer_that_encoded_it() -> None:
    model, engine = await loaded()
    generation = await start(model, TextPrompt("abc"), echo=True)
    other, replacement = await loaded()
    draining = asyncio.create_task(model.drain(other))
    await asyncio.sleep(0)
    replacement.state = "restarting"  # would reject requests
    assert engine.state == "ready"
    assert await generation.prompt_text(skip_special_tokens=True) == "abc"
    await generation.aclose()
    await draining


# --- load and replacement


async def test_nothing_is_served_before_it_is_loaded_and_the_reason_is_given_if_that_failed() -> None:
    class Broken(FakeEngine):
        async def start(self) -> ModelInfo:
            raise StartError("no /srv/m", reason="Its files are missing.")

    model = TextModel(Config(fake_engine=True, model_name="m"), Broken([]))  # type: ignore[arg-type]
    assert (model.state, model.ready, model.listed) == ("loading", False, False)
    with pytest.raises(Unavailable, match="the model is loading"):
        await model.render(HELLO)
    with pytest.raises(Unavailable):
        _ = model.chat_format
    with pytest.raises(StartError):
        await model.load()
    assert model.state == "failed"
    with pytest.raises(Unavailable, match=r"could not be loaded\. Its files are missing\."):
        await start(model)


async def test_requests_for_a_replaced_model_are_served_by_the_last_of_its_successors() -> None:
    models = [(await loaded())[0] for _ in range(3)]
    for old, new in itertools.pairwise(models):
        await old.drain(new)
    assert [model.engine.state for model in models] == ["stopped", "stopped", "ready"]
    first, last = models[0], models[-1]
    assert first.serving() is first.require_ready() is last
    await (await start(first)).aclose()
    assert len(last.engine.submitted) == 1  # type: ignore[attr-defined]
    assert await first.encode(["a"], False) == [[97]]
    assert await first.decode([97], True) == "a"
    assert await first.count(HELLO) == len("user:hi;")
    assert first.token_strings([97]) == ["a"]


async def test_a_model_without_a_successor_refuses_new_requests_and_ends_the_running_ones() -> None:
    model, engine = await loaded()
    generation = await start(model)
    draining = asyncio.create_task(model.drain())
    await asyncio.sleep(0)
    with pytest.raises(ModelNotFound, match="no longer served"):
        await start(model)
    [choice] = await collect(generation, 1)
    assert choice.text == "ab"
    assert engine.state == "ready"
    await generation.aclose()
    await draining
    assert engine.state == "stopped"


async def test_a_request_that_has_begun_is_served_whole_by_the_model_that_it_resolved() -> None:
    """The model is replaced while the prompt is counted: its engine is neither stopped nor exchanged for another
    one."""

    class Slow(FakeEngine):
        entered, go = asyncio.Event(), asyncio.Event()

        async def encode(self, texts: list[str], add_special_tokens: bool, client: str = "") -> list[list[int]]:
            self.entered.set()
            await self.go.wait()
            assert self.state == "ready"
            return [[7]]

    engine = Slow([])
    model, _ = await loaded(engine=engine)
    successor, _ = await loaded()
    counting = asyncio.create_task(model.count(HELLO))
    await engine.entered.wait()
    draining = asyncio.create_task(model.drain(successor))
    await asyncio.sleep(0)
    engine.go.set()
    assert await counting == 1
    await draining
    assert engine.state == "stopped"


async def test_a_successor_of_another_task_is_a_clear_refusal() -> None:
    class Embedding(Model):
        task, endpoints = "embeddings", ("/v1/embeddings",)

    model, _ = await loaded()
    other = Embedding(Config(fake_engine=True, model_name="m"), FakeEngine([]))  # type: ignore[arg-type]
    await other.load()
    await model.drain(other)
    with pytest.raises(BadRequest, match="is for embeddings, not for text generation; use it at /v1/embeddings"):
        await start(model)


def dialect(template: str, **options: str) -> ChatFormat:
    return ChatFormat(
        Config(chat_template=template, **options), ModelDir(), INFO, Vocabulary(pieces=[], special=frozenset())
    )


@pytest.mark.parametrize(
    ("template", "opens"),
    [
        ("<think></think>{% if enable_thinking %}assistant<think>\n{% endif %}", True),
        ("<think></think>{{ messages[0].content }}<think>", True),
        ("<think></think>{% if enable_thinking is false %}<think>\n\n</think>{% endif %}assistant", False),
        ("<think></think>{{ raise_exception('not this one') }}", False),
        ("{{ messages[0].content }}", False),
    ],
)
def test_it_is_known_who_begins_a_thought(template: str, opens: bool) -> None:
    assert dialect(template).setting(OutputParams(parse=True), "").template_opens_reasoning is opens


def test_a_parser_that_does_not_exist_stops_the_start() -> None:
    with pytest.raises(StartError, match="tool_parser"):
        dialect("{{ messages }}", tool_parser="nope")


@pytest.mark.parametrize(
    ("template", "of_tools", "configured", "parser"),
    [
        ("{{ messages }}", "", "", "generic"),
        ("{{ messages }}", "", "hermes3", "hermes3"),
        ("{{ messages }}", "", "none", None),
        ("{{ messages }}{{ tools }}", "", "", "generic"),
        ("{{ messages }}", "<tool_call></tool_call>{{ tools }}", "", "hermes3"),
        ("[TOOL_CALLS]", "{{ tools }}", "", "mistral"),
        ("[TOOL_CALLS]", "", "generic", "generic"),
        ("", "<tool_call></tool_call>{{ tools }}", "", "hermes3"),
        ("", "", "", None),
    ],
)
def test_which_tool_parser_a_model_has(template: str, of_tools: str, configured: str, parser: str | None) -> None:
    directory = ModelDir(fallback_template=template, tool_template=of_tools)
    nothing = Vocabulary(pieces=[], special=frozenset())
    found = ChatFormat(Config(tool_parser=configured), directory, replace(INFO, chat_template=""), nothing)
    assert found.answers.tool_parser == parser
