"""/api/chat with a scripted engine: objects, lines for every cut of the text, options, tools, thinking, errors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lean_ovms.errors import EngineFailure, too_long
from lean_ovms.features.ollama.api.conversation import to_messages
from lean_ovms.types import Json, Request
from lean_ovms.types.engine import EngineRequest
from tests.api.conftest import MakeApp, parts, post, warnings_of, whole
from tests.fakes import Script, say

PATH = "/api/chat"
HI = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
PARSING = {"tool_parser": "hermes3", "reasoning_parser": "qwen3"}
SAID = (
    '<think>hm, "so"</think>\n\nWell. <tool_call>\n{"name": "f", "arguments": {"x": [1, {"y": "é"}]}}\n</tool_call>\n'
    '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>\nSo, good.'
)


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [HI], **fields}


async def lines(response: Any) -> list[Any]:
    """Returns the objects of a stream."""
    assert response.status == 200
    assert dict(response.headers)["Content-Type"] == "application/x-ndjson"
    data = b"".join([part async for part in parts(response)])
    assert data.endswith(b"\n")
    return [orjson.loads(text) for text in data[:-1].split(b"\n")]


def folded(told: list[Any]) -> Any:
    """Combines the objects of a stream to the unary object."""
    found = dict(told[-1])
    message: dict[str, Any] = {"role": "assistant", "content": "".join(one["message"]["content"] for one in told)}
    if thinking := "".join(one["message"].get("thinking", "") for one in told):
        message["thinking"] = thinking
    if calls := [call for one in told for call in one["message"].get("tool_calls", ())]:
        message["tool_calls"] = calls
    found["message"] = message
    if logprobs := [one for part in told for one in part.get("logprobs", ())]:
        found["logprobs"] = logprobs
    return found


def without_times(body: Any) -> Any:
    calls = [call["function"] for call in body["message"].get("tool_calls", ())]
    body = {name: value for name, value in body.items() if name != "created_at" and not name.endswith("_duration")}
    return body | {"message": body["message"] | ({"tool_calls": calls} if calls else {})}


async def error(response: Any) -> tuple[int, str]:
    body = await whole(response)
    assert list(body) == ["error"]
    return response.status, body["error"]


async def test_a_message(make_app: MakeApp) -> None:
    app, engine = await make_app(say("Hel", "lo"))
    body = await whole(await post(app, PATH, ask(model="M:latest", stream=False)))
    assert body.pop("created_at").endswith("Z")
    times = {name: body.pop(name) for name in list(body) if name.endswith("_duration")}
    assert all(type(ns) is int and ns > 0 for ns in times.values())
    assert times["total_duration"] >= times["load_duration"]
    assert body == {
        "model": "M:latest",
        "message": {"role": "assistant", "content": "Hello"},
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": 8,
        "eval_count": 6,
    }
    assert engine.submitted[0][0] == "user:hi;"


def cuts() -> Iterator[Script]:
    yield say(*SAID)
    for size in (3, 13, 40, 1000):
        yield say(*(SAID[start : start + size] for start in range(0, len(SAID), size)))


@pytest.mark.parametrize("script", [*cuts()])
async def test_a_stream_is_the_message_in_any_cut(make_app: MakeApp, script: Script) -> None:
    app, _ = await make_app(lambda *_: list(script), **PARSING)
    fields = ask(tools=[TOOL], logprobs=True)
    told = await lines(await post(app, PATH, fields))
    assert [one["done"] for one in told] == [False] * (len(told) - 1) + [True]
    assert told[-1]["message"] == {"role": "assistant", "content": ""}
    body = await whole(await post(app, PATH, fields | {"stream": False}))
    assert without_times(folded(told)) == without_times(body)
    message = body["message"]
    assert (message["content"], message["thinking"]) == ("Well. \nSo, good.", 'hm, "so"')
    assert [call["function"] for call in message["tool_calls"]] == [
        {"index": 0, "name": "f", "arguments": {"x": [1, {"y": "é"}]}},
        {"index": 1, "name": "g", "arguments": {}},
    ]
    streamed = [call for one in told for call in one["message"].get("tool_calls", ())]
    for calls in (streamed, message["tool_calls"]):
        assert [call["index"] for call in calls] == [0, 1], "where LiteLLM keeps the calls of a stream apart"
    again = await post(app, PATH, ask(messages=[HI, body["message"], {"role": "tool", "content": "x"}], tools=[TOOL]))
    assert (await lines(again))[-1]["done"], "the message is what the next request has of it"
    assert body["done_reason"] == "stop"
    assert len(body["logprobs"]) == body["eval_count"]


@pytest.mark.parametrize("arguments", ['{"x": 1', ""])
async def test_a_call_that_is_cut_is_text(make_app: MakeApp, arguments: str) -> None:
    cut = '<tool_call>\n{"name": "f", "arguments": ' + arguments
    app, _ = await make_app(lambda *_: say(cut, reason="length"), **PARSING)
    told = await lines(await post(app, PATH, ask(tools=[TOOL])))
    body = await whole(await post(app, PATH, ask(tools=[TOOL], stream=False)))
    assert without_times(folded(told)) == without_times(body)
    assert "tool_calls" not in body["message"]
    assert arguments in body["message"]["content"]
    assert body["done_reason"] == "length"


async def test_log_probabilities(make_app: MakeApp) -> None:
    app, engine = await make_app(say("a"), capable=True)
    body = await whole(await post(app, PATH, ask(logprobs=True, top_logprobs=2, stream=False)))
    first = body["logprobs"][0]
    assert (first["token"], first["logprob"], first["bytes"]) == ("a", -0.5, [97])
    assert [set(other) for other in first["top_logprobs"]] == [{"token", "logprob", "bytes"}] * 2
    await whole(await post(app, PATH, ask(top_logprobs=2, stream=False)))
    assert [sampling.top_logprobs for _, sampling in engine.submitted] == [2, 0]
    assert await error(await post(app, PATH, ask(top_logprobs=21))) == (400, "top_logprobs out of range [0, 20]")


async def test_options(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: say("ab stop c"))
    options = {
        "temperature": 0.5, "top_k": 5, "top_p": 0.5, "min_p": 0.1, "seed": 7, "num_predict": 9, "stop": [" stop"],
        "repeat_penalty": 1.5, "presence_penalty": 0.25, "frequency_penalty": 0.75, "num_gpu": 1, "num_ctx": 1000,
    }  # fmt: skip
    response = await post(app, PATH, ask(options=options, stream=False))
    assert "Warning" not in dict(response.headers)
    assert (await whole(response))["message"]["content"] == "ab"
    sampling = engine.submitted[0][1]
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 5, 0.5, 0.1)
    assert (sampling.seeds, sampling.max_tokens, sampling.repetition_penalty) == ((7,), 9, 1.5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.25, 0.75)
    await whole(await post(app, PATH, ask(options=options | {"repeat_last_n": 0}, stream=False)))
    _, sampling = engine.submitted.pop()
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1, 0, 0)
    for most in (-1, -2, 0, None):  # no limit
        await whole(await post(app, PATH, ask(options={"num_predict": most, "seed": -1, "top_k": 0}, stream=False)))
    others = [sampling for _, sampling in engine.submitted[1:]]
    assert {(sampling.max_tokens, sampling.top_k) for sampling in others} == {(None, 0)}
    assert len({sampling.seeds for sampling in others}) == 4
    cut = {"num_predict": 1.7, "top_k": 1.9, "seed": 7.5, "repeat_last_n": 64.0, "num_ctx": 1e2, "mirostat": 0.5}
    await whole(await post(app, PATH, ask(options=cut, stream=False)))
    sampling = engine.submitted[-1][1]
    assert (sampling.max_tokens, sampling.top_k, sampling.seeds) == (1, 1, (7,)), "as in Ollama"
    await whole(await post(app, PATH, ask(options={"seed": -2}, stream=False)))
    assert engine.submitted[-1][1].seeds == (2**32 - 2,)


async def test_options_without_an_effect_are_warned_of(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"))
    response = await post(app, PATH, ask(options={"tfs_z": 1, "num_ctx": 8, "tempratur": 1}, stream=False))
    warned = warnings_of(response)
    assert warned == [
        f"options.{text}"
        for text in (
            "tfs_z has no effect",
            "tempratur has no effect",
            "num_ctx has no effect: the context length is 1000 tokens",
        )
    ]
    for path, body in ((PATH, ask(formt="json", stream=False)), ("/api/generate", {"prompt": "x", "formt": "json"})):
        response = await post(app, path, body)
        warned = warnings_of(response)
        assert warned == ["formt is not a field of this endpoint and was ignored; did you mean format?"]


REFUSED: list[tuple[Any, str]] = [
    ({"options": {"temperature": 3}}, "temperature out of range(0.0, 2.0)"),
    ({"options": {"stop": [1]}}, "stop array contains non string element"),
    ({"format": "yaml"}, 'format must be "json" or a JSON schema'),
    ({"think": "much"}, "think must be true, false or one of: high, medium, low, max"),
    ({"think": True}, '"m" does not support thinking'),
    ({"think": "low"}, '"m" does not support thinking'),
    ({"tools": [TOOL]}, '"m" does not support tools'),
    ({"messages": ["hi"]}, "messages[0]: each message must be an object with a role"),
    ({"messages": [{"role": "user", "content": [1]}]}, "messages[0].content: content must be a string"),
    ({"messages": [HI | {"images": "x"}]}, "messages[0].images: images must be an array"),
    ({"messages": [HI | {"tool_calls": [1]}]}, "messages[0].tool_calls: tool_calls must be an array of objects"),
    ({"keep_alive": "soon"}, 'keep_alive must be a number of seconds, or a duration such as "5m"'),
]


async def test_refusals_have_ollamas_form(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"), tool_parser="none", api_key="secret")
    key = {"authorization": "Bearer secret"}
    for fields, message in REFUSED:
        assert await error(await post(app, PATH, ask(**fields), **key)) == (400, message)
    status, message = await error(await post(app, PATH, ask(messages=[HI, HI | {"images": ["aGk="]}]), **key))
    assert (status, message.partition("support")[0]) == (400, "messages[1].images: This servable ")
    status, message = await error(await post(app, PATH, ask()))
    assert (status, "key" in message) == (401, True)
    assert (await error(await post(app, PATH, b"{", **key)))[0] == 400
    sent = {"content-type": "text/plain", **key}
    assert (await app.handle(Request("POST", PATH, headers=sent, body=orjson.dumps(ask())))).status == 415
    for name in ("nope", "nope:latest", "m:8b", "org/m"):
        refusal = await error(await post(app, PATH, ask(model=name), **key))
        assert refusal == (404, f"model '{name}' not found; served models: m")
    assert engine.submitted == []


@pytest.mark.parametrize(
    ("served", "asked"),
    [
        ("m:latest", "m"),
        ("Qwen3:8b", "qwen3:8B"),
        ("org/M", "org/m:latest"),
        ("org/m", "hf.co/org/m"),
        ("a", ""),
        ("host:5000/m", "host:5000/m"),
    ],
)
async def test_names_with_and_without_a_tag(make_app: MakeApp, served: str, asked: str) -> None:
    app, _ = await make_app(say("x"), model_name=served)
    body = await whole(await post(app, PATH, ask(model=asked, stream=False)))
    assert body["model"] == (asked or served)


async def test_errors_of_the_engine_before_and_in_a_stream(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: [*say("x", reason=None), EngineFailure("it broke")])  # type: ignore[arg-type]
    told = await lines(await post(app, PATH, ask()))
    assert told[0]["message"]["content"] == "x"
    assert told[-1] == {"error": "it broke"}
    assert await error(await post(app, PATH, ask(stream=False))) == (500, "it broke")
    engine.refusal = EngineFailure("no more")
    assert await error(await post(app, PATH, ask())) == (500, "no more")


async def test_a_body_as_curl_sends_it(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("x"))
    form = {"content-type": "application/x-www-form-urlencoded"}
    body = orjson.dumps(ask(stream=False))
    assert (await whole(await app.handle(Request("POST", PATH, headers=form, body=body))))["done"]
    elsewhere = await app.handle(Request("POST", "/v1/chat/completions", headers=form, body=body))
    assert elsewhere.status == 415


THOUGHTS: list[tuple[Any, str]] = [
    (None, "-"), (True, "True-"), (False, "False-"), ("high", "True-high"), ("max", "True-max"),
]  # fmt: skip


async def test_think_and_format_reach_the_template_and_the_grammar(make_app: MakeApp) -> None:
    template = "{{ messages[-1].content }}{{ enable_thinking }}-{{ reasoning_effort }}{{ add_generation_prompt }}"
    app, engine = await make_app(lambda *_: say("{}"), **PARSING, chat_template=template)
    for think, variables in THOUGHTS:
        await whole(await post(app, PATH, ask(think=think, stream=False)))
        assert engine.submitted[-1][0] == f"hi{variables}True"
    last = {"role": "assistant", "content": "Well"}  # which is continued
    await whole(await post(app, PATH, ask(messages=[HI, last], stream=False)))
    assert engine.submitted[-1][0] == "Well"
    engine.constraints.clear()
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    for form in ("json", schema, "", None):
        await whole(await post(app, PATH, ask(format=form, stream=False)))
    free, shaped, *none = engine.constraints
    assert free
    assert "age" in shaped
    assert none == ["", ""]


async def test_a_conversation_in_ollamas_words(make_app: MakeApp) -> None:
    template = (
        "{% for m in messages %}"
        "{{ m.role }}:{{ m.content }}|{{ m.reasoning_content }}|{{ m.name }}|{{ m.tool_call_id }}"
        "{% for c in m.tool_calls %}<{{ c.id }} {{ c.function.name }} {{ c.function.arguments }}>{% endfor %};"
        "{% endfor %}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
    )
    app, engine = await make_app(say("x"), chat_template=template, **PARSING)
    named = ((None, "f"), ("own", "g"))
    calls = [{"id": given, "function": {"name": name, "arguments": {"x": 1}}} for given, name in named]
    talk = [
        {"role": "User", "content": "hi"},
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": calls},
        {"role": "tool", "content": "2", "tool_name": "g"},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "3", "tool_call_id": "other"},
    ]
    await whole(await post(app, PATH, ask(messages=talk, tools=[TOOL], stream=False)))
    assert engine.submitted[0][0] == (
        'user:hi|||;assistant:|hm||<call_1 f {"x": 1}><own g {"x": 1}>;tool:2||g|own;tool:1|||call_1;tool:3|||other;f'
    )


async def test_an_image_reaches_its_model(make_app: MakeApp, png: str) -> None:
    app, engine = await make_app(lambda *_: say("x"))
    model = app.registry.models["m"]
    engine.info = model._info = replace(engine.info, vision=True)
    for url in (png, f"data:image/png;base64,{png}", f"DATA:image/png;base64,{png}"):
        body = await whole(await post(app, PATH, ask(messages=[HI | {"images": [url]}], stream=False)))
        assert body.get("done"), body
    assert [prompt for prompt, _ in engine.submitted] == ["user:<ov_genai_image_0>\nhi;"] * 3
    assert [(image.width, image.height) for [image] in engine.images] == [(4, 2)] * 3


async def test_old_messages_are_left_out_of_a_conversation_that_is_too_long(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: say("x"))
    submit = engine.submit

    async def limited(request: EngineRequest) -> Any:
        if len(request.prompt) >= engine.info.context_length:
            raise too_long("too long", engine.info.context_length)
        return await submit(request)

    engine.submit = limited  # type: ignore[method-assign]
    system = {"role": "system", "content": "be brief"}
    roles = ("user", "assistant", "tool", "assistant", "user")
    talk = [system, *({"role": roles[i % 5], "content": f"{i:03}" + "x" * 97} for i in range(19))]
    talk.append({"role": "user", "content": "so?"})
    response = await post(app, PATH, ask(messages=talk, options={"num_predict": 100}, stream=False))
    assert (await whole(response))["message"]["content"] == "x"
    prompt = engine.submitted[0][0]
    # With 012 as well, and 100 tokens to generate, it would not fit.
    assert prompt.startswith("system:be brief;user:014x")
    assert 'lean_ovms "14 messages were left out' in dict(response.headers)["Warning"]
    status, message = await error(await post(app, PATH, ask(messages=talk, truncate=False)))
    assert (status, "maximum context length" in message) == (400, True)
    for alone in ([system], []):
        talk = [*alone, {"role": "user", "content": "x" * 2000}]
        assert (await post(app, PATH, ask(messages=talk))).status == 400
    assert len(engine.submitted) == 1
    # Leaves no room for an answer of 125 tokens.
    full = [{"role": "user", "content": character * 960} for character in "ab"]
    assert (await whole(await post(app, PATH, ask(messages=full, stream=False))))["message"]["content"] == "x"
    assert engine.submitted[1][0] == f"user:{'b' * 960};"


# --- the conversation as the engine's


MANY = 20_000
SECONDS = 2.0
"""CPU time for MANY calls and results, ten times of what is needed. With a search in a list they would take 9 s."""


def calls(*names: str) -> Json:
    return {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": {}}} for name in names]}


def result(name: str) -> Json:
    return {"role": "tool", "tool_name": name, "content": "x"}


CALLS = st.lists(st.sampled_from("fg"), min_size=1, max_size=3).map(tuple)
RESULTS = st.sampled_from(["f", "g", "h", ""])


@given(st.lists(CALLS | RESULTS))
@pytest.mark.slow
def test_a_result_answers_the_first_call_of_its_name(steps: list[tuple[str, ...] | str]) -> None:
    waiting: list[tuple[str, str]] = []
    expected, made = [], 0
    for step in steps:
        if isinstance(step, tuple):
            waiting += [(f"call_{made + place}", name) for place, name in enumerate(step, 1)]
            made += len(step)
        else:
            fitting = [call for call in waiting if call[1] == step] or waiting
            expected.append(fitting[0][0] if fitting else "")
            waiting = [call for call in waiting if call not in fitting[:1]]
    messages = to_messages([calls(*step) if isinstance(step, tuple) else result(step) for step in steps])
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == expected


@pytest.mark.slow
def test_many_results_of_another_name_take_little_time() -> None:
    messages = [calls(*"f" * MANY), *[result("g")] * MANY]
    start = time.process_time()
    assert to_messages(messages)[-1]["tool_call_id"] == f"call_{MANY}"
    assert time.process_time() - start < SECONDS
