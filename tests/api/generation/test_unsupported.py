"""Fields without an effect are named in a Warning header, rejected if their type is wrong, and never ignored
silently."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from lean_ovms.api.app import App
from lean_ovms.api.generation import common_fields
from lean_ovms.api.generation.common_fields import ACCEPTED, UNSUPPORTED
from lean_ovms.composition import compose
from lean_ovms.features.chat import request as chat_request
from lean_ovms.features.completions import request as completion_request
from lean_ovms.features.responses import fields as responses
from lean_ovms.models.text_model import TextModel
from lean_ovms.text.template import chat_template
from lean_ovms.types import Response
from tests.api.conftest import MakeApp, post, warnings_of, whole
from tests.fakes import say

NEEDS = chat_request.ALL_FIELDS.needs
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"model": "m", "prompt": "hi"},
    "/v1/responses": {"model": "m", "input": "hi"},
}
CHAT = "/v1/chat/completions"
SPOKEN = (CHAT, "/v1/responses")
ASKED: dict[str, Any] = {
    "store": True,
    "metadata": {"a": "b"},
    "service_tier": "flex",
    "prediction": {"type": "content", "content": "x"},
    "logit_bias": {"5": 10},
    "modalities": ["text", "audio"],
    "audio": {"voice": "v", "format": "wav"},
    "chunk_frames": 4,
    "functions": [{"name": "f"}],
    "function_call": "auto",
    "web_search_options": {},
    "moderation": {"model": "m"},
    "personality": "friendly",
    "echo": True,
    "prompt_logprobs": 0,
    "logits_processors": ["a.b"],
    "prompt_embeds": "AAAA",
    "bad_words": ["x"],
    "allowed_token_ids": [1],
    "logprob_token_ids": [1],
    "early_stopping": True,
    "timings": True,
    "timings_per_token": True,
    "return_progress": True,
    "thinking_token_budget": 0,
    "mm_processor_kwargs": {"a": 1},
    "late_chunking_params": {"chunk_size": 5},
    "late_chunking": True,
    "media_io_kwargs": {"a": 1},
    "return_prompt_text": True,
    "kv_transfer_params": {"a": 1},
    "vllm_xargs": {"a": 1},
    "detokenize": False,
    "spaces_between_special_tokens": False,
    "enable_response_messages": True,
    "return_token_offsets": True,
    "return_weight_versions": True,
    "routed_experts_prompt_start": 3,
    "watermarking": True,
    "ec_transfer_params": {"a": 1},
    "return_mm_kwargs": True,
    "lora_alphas": {"a": 0.5},
    "lora": [{"id": 0, "scale": 0.5}],
    "n_cmpl": 2,
    "reasoning_control": True,
    "reasoning_budget_message": "x",
    "verbose": True,
}
IDLE: dict[str, Any] = {
    "store": False,
    "metadata": {},
    "service_tier": "auto",
    **dict.fromkeys(sorted(ACCEPTED.names), "x"),
    "logit_bias": {},
    "modalities": ["text"],
    "audio": None,
    "web_search_options": None,
    "echo": False,
    "bad_words": [],
    "early_stopping": False,
    "return_prompt_text": False,
    "vllm_xargs": {},
    "detokenize": True,
    "spaces_between_special_tokens": True,
    "enable_response_messages": False,
    "lora": [],
}
ELSEWHERE = {
    "store",
    "metadata",
    "service_tier",
    "modalities",
    "audio",
    "echo",
    "functions",
    "function_call",
    "media_io_kwargs",
    "prompt_logprobs",
    "timings",
    "timings_per_token",
    "return_progress",
}
"""Fields that only some endpoints support."""
each_path = pytest.mark.parametrize("path", BODIES)


@pytest.fixture
async def app(make_app: MakeApp) -> App:
    made, _ = await make_app(lambda _, sampling: say("x", sequences=sampling.n))
    return made


async def send(app: App, path: str, fields: dict[str, Any]) -> Response:
    return await post(app, path, BODIES[path] | fields)


def test_every_field_is_tried() -> None:
    assert set(ASKED) == UNSUPPORTED.names | set(NEEDS)
    assert not compose().harmless & UNSUPPORTED.names
    for rows in (chat_request.ALL_FIELDS, completion_request.ALL_FIELDS, responses.ALL_FIELDS):
        assert not (UNSUPPORTED.names - ELSEWHERE) & rows.names
        assert not set(NEEDS) - ELSEWHERE - rows.names


@each_path
async def test_what_cannot_be_honoured_is_accepted_but_not_silently(app: App, path: str) -> None:
    honoured = {"echo"} if path == "/v1/completions" else set()
    honoured |= {"timings", "timings_per_token"}
    honoured |= {"store", "metadata", "service_tier"} if path == "/v1/responses" else set()
    honoured |= {"functions", "function_call", "media_io_kwargs"} if path == CHAT else set()
    honoured |= {"n_cmpl"} if path != "/v1/responses" else set()
    for name, value in ASKED.items():
        response = await send(app, path, {name: value})
        if (path == "/v1/responses" and name in responses.REFUSED) or (path in SPOKEN and name == "modalities"):
            assert response.status == 400, name
            continue
        expected = [] if name in honoured else [f"{name} is not supported and was ignored"]
        if path in SPOKEN and name == "audio":
            expected = ["audio has no effect without modalities ['text', 'audio']"]
        assert (response.status, warnings_of(response)) == (200, expected), name
        await response.aclose()


@each_path
async def test_a_reasoning_budget_needs_a_reasoning_parser(make_app: MakeApp, path: str) -> None:
    app, engine = await make_app(lambda *_: say("x"), capable=True)
    response = await send(app, path, {"thinking_token_budget": 5})
    assert warnings_of(response) == ["the limit of reasoning has no effect: the model has no reasoning parser"]
    assert engine.submitted[0][1].thinking_token_budget is None


async def test_a_default_reasoning_budget_without_a_reasoning_parser_is_reported_once(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    app, engine = await make_app(lambda *_: say("x"), capable=True)
    model = cast(TextModel, app.registry.models["m"])
    model.directory = replace(model.directory, generation_config={"thinking_token_budget": 7})
    model._prepare(model.info)
    said = "thinking_token_budget of generation_config: the limit of reasoning has no effect"
    for fields in ({}, {"thinking_token_budget": 5}):
        response = await send(app, "/v1/chat/completions", fields)
        assert len(warnings_of(response)) == len(fields)
    assert [asked.thinking_token_budget for _, asked in engine.submitted] == [None, None]
    assert caplog.text.count(said) == 1


@each_path
async def test_a_reasoning_budget_takes_the_tags_of_the_parser(make_app: MakeApp, path: str) -> None:
    app, engine = await make_app(lambda *_: say("x"), capable=True, reasoning_parser="mistral")
    await send(app, path, {"thinking_token_budget": 5})
    asked = engine.submitted[0][1]
    assert (asked.thinking_tags, asked.thinking_open) == (("[THINK]", "[/THINK]"), False)


WRONG_VALUES: list[tuple[dict[str, Any], str | None]] = [
    ({"logit_bias": {"x": 1}}, "logit_bias: 'x' is not a token id"),
    ({"logit_bias": {"-1": 1}}, "logit_bias: '-1' is not a token id"),
    ({"logit_bias": {"9" * 5000: 1}}, f"logit_bias: '{'9' * 40}' is not a token id"),
    ({"logit_bias": {"1": 101}}, "logit_bias[1] is not a number in [-100, 100]"),
    ({"logit_bias": {"1": True}}, "logit_bias[1] is not a number in [-100, 100]"),
    ({"logit_bias": {"1": "5"}}, "logit_bias[1] is not a number in [-100, 100]"),
    ({"logit_bias": {"257": 1}}, "logit_bias: 257 is not a token id in [0, 257)"),
    ({"allowed_token_ids": []}, "allowed_token_ids must not be empty"),
    ({"allowed_token_ids": [257]}, "allowed_token_ids: 257 is not a token id in [0, 257)"),
    ({"bad_words": [""]}, "bad_words must contain strings of 1 to 256 characters"),
    ({"bad_words": ["x"] * 257}, "bad_words must have no more than 256 strings"),
    ({"logprob_token_ids": [1] * 129}, "logprob_token_ids must have no more than 128 token ids"),
    ({"early_stopping": 1}, 'early_stopping must be true, false or "never"'),
    ({"thinking_token_budget": -2}, "thinking_token_budget out of range [-1, 2147483647]"),
    ({"repetition_detection": {"max": 1}}, None),
    ({"repetition_detection": {"max_pattern_size": 2, "min_count": 1}}, None),
    ({"repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 2}}, None),
    ({"repetition_detection": {"max_pattern_size": 513, "min_count": 2}}, None),
    ({"repetition_detection": {"max_pattern_size": "2", "min_count": 2}}, None),
    ({"repetition_detection": {"max_pattern_size": 2, "min_pattern_size": "", "min_count": 2}}, None),
    ({"modalities": ["text", 5]}, "modalities array must contain strings"),
    ({"audio": {"format": "aac"}}, "audio.format must be one of: wav, "),
    ({"audio": {"format": 5}}, "audio.format must be one of: wav, "),
    ({"chunk_frames": "4"}, "chunk_frames must be a positive integer"),
    ({"chunk_frames": -1}, "chunk_frames must be a positive integer"),
    ({"chunk_frames": 0}, "chunk_frames must be >= 1"),
]


@each_path
async def test_a_wrong_value_is_a_400(make_app: MakeApp, path: str) -> None:
    app, engine = await make_app(capable=True)
    for fields, message in WRONG_VALUES:
        response = await send(app, path, fields)
        error = (await whole(response))["error"]
        assert (response.status, error["param"].split(".")[0]) == (400, next(iter(fields)))
        assert message is None or error["message"].startswith(message)
    assert engine.submitted == []


@each_path
@pytest.mark.parametrize(("sent", "repetition"), [({"max_pattern_size": 4, "min_count": 3}, (1, 4, 3)), ({}, None)])
async def test_repetition_detection_needs_no_capability(
    make_app: MakeApp, path: str, sent: dict[str, Any], repetition: tuple[int, ...] | None
) -> None:
    app, engine = await make_app(lambda *_: [[(0, "xx", "repetition")]])
    response = await send(app, path, {"repetition_detection": sent})
    assert warnings_of(response) == []
    assert engine.submitted[0][1].repetition == repetition
    if path != "/v1/responses":
        [choice] = (await whole(response))["choices"]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "repetition_detected")


@each_path
async def test_what_requests_nothing_gets_no_warning(app: App, path: str) -> None:
    response = await send(app, path, IDLE)
    assert response.status == 200
    assert warnings_of(response) == []


@pytest.mark.parametrize(
    ("path", "name", "near"),
    [
        (CHAT, "max_token", "max_tokens"),
        (CHAT, "maxTokens", "max_tokens"),
        (CHAT, "temprature", "temperature"),
        (CHAT, "stops", "stop"),
        (CHAT, "max_output_tokens", "max_completion_tokens"),
        ("/v1/completions", "max_completion_tokens", "max_tokens"),
        ("/v1/responses", "max_tokens", "max_output_tokens"),
    ],
)
async def test_a_name_near_a_known_one_gets_a_warning(app: App, path: str, name: str, near: str) -> None:
    response = await send(app, path, {name: 5})
    assert response.status == 200
    assert warnings_of(response) == [f"{name} is not a field of this endpoint and was ignored; did you mean {near}?"]


@each_path
async def test_names_that_are_near_to_none_or_change_no_answer_are_ignored(app: App, path: str) -> None:
    harmless = dict.fromkeys(compose().harmless, "x")
    response = await send(app, path, harmless | {"zzz": 1, "": 1, "max_token": None, "x" * 60_000: 1})
    assert response.status == 200
    assert warnings_of(response) == []


async def test_a_name_is_no_way_into_a_header(app: App) -> None:
    response = await send(app, CHAT, {"top_p\r\nX: y": 1, 'top_k"': 1, "tóp_p": 1})
    lines = warnings_of(response)
    assert [line.rpartition(" ")[2] for line in lines] == ["top_p?", "top_k?", "top_p?"]
    assert all(line.isascii() and line.isprintable() and '"' not in line for line in lines)


async def test_many_unknown_names_cost_little(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    monkeypatch.setattr(common_fields, "similar", lambda name, known: compared.append(name) or "")
    assert (await send(app, CHAT, {f"max_token{i}": i for i in range(1000)})).status == 200
    assert len(compared) == common_fields.MAX_UNKNOWN


@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/tokenize"])
async def test_a_template_is_not_taken_from_a_request(app: App, path: str) -> None:
    body = BODIES.get(path, BODIES[CHAT])
    response = await post(app, path, {**body, "chat_template": "{{ 1 }}"})
    assert response.status == 400
    error = (await whole(response))["error"]
    assert error["param"] == "chat_template"
    assert "--chat_template" in error["message"]
    assert (await post(app, path, {**body, "chat_template": ""})).status == 200


NESTED = "{% for a in b %}" * 40 + "{% endfor %}" * 40
"""More nested blocks than Python's compiler allows."""


async def test_a_template_of_a_trusted_request_is_used(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"), trust_request_chat_template=True, default_chat_template_kwargs='{"z": "!"}')
    for template in ("{{ messages[0].content }}{{ z }}", "<{{ messages[0].content }}>"):
        assert (await post(app, CHAT, {**BODIES[CHAT], "chat_template": template})).status == 200
    tokens = await whole(await post(app, "/tokenize", {**BODIES[CHAT], "chat_template": "abc"}))
    assert [prompt for prompt, _ in engine.submitted] == ["hi!", "<hi>"]
    assert tokens["count"] == 3


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% if %}", "the chat template is invalid"),
        (NESTED, "the chat template is invalid: SyntaxError: too many statically nested blocks"),
        ("{% include 'config.json' %}", "the chat template failed"),
        ("{{ messages.__class__.__mro__ }}", "the chat template failed: access to attribute '__class__'"),
        ("{% for a in range(10**9) %}{% endfor %}", "the chat template failed"),
        ("x" * (chat_template.MAX_REQUEST_TEMPLATE + 1), "chat_template is longer than"),
        ("", ""),
    ],
)
async def test_a_bad_template_of_a_trusted_request_is_its_fault(make_app: MakeApp, template: str, words: str) -> None:
    app, _ = await make_app(say("x"), trust_request_chat_template=True)
    response = await post(app, CHAT, {**BODIES[CHAT], "chat_template": template})
    assert response.status == (400 if words else 200)
    if words:
        assert (await whole(response))["error"]["message"].startswith(words)


async def test_earlier_messages_that_would_be_lost_are_refused(app: App) -> None:
    response = await send(app, "/v1/responses", {"previous_input_messages": [{"role": "user", "content": "x"}]})
    assert (await whole(response))["error"]["param"] == "previous_input_messages"
    assert (await send(app, "/v1/responses", {"previous_input_messages": []})).status == 200
    assert response.status == 400
