"""Conversations that chat templates reject or shorten continue in every API, with all their texts in the prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from lean_ovms.types import Json
from tests.api.conftest import MakeApp, post, whole
from tests.fakes import say
from tests.text.template.template_cases import TEMPLATES

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
OLLAMA, COHERE, LLAMA_CPP = "/api/chat", "/v2/chat", "/apply-template"
CODEX = Path(__file__).parent / "agents" / "codex.json"
STRICT_TEMPLATES = ("qwen36", "gpt_oss", "mistral7b_v03", "phi4_mini", "qwen3", "gemma")
"""Templates for chats. The other APIs make a chat of their bodies, so the first three will do for these."""


def strict_templates(path: str) -> tuple[str, ...]:
    return STRICT_TEMPLATES if path == CHAT else STRICT_TEMPLATES[:3]


PARAMETERS: Json = {"type": "object", "properties": {"a": {"type": "integer"}}}
CALL = '<tool_call>{"name": "look_up", "arguments": {"a": 7}}</tool_call>'


def template(name: str) -> dict[str, Any]:
    return {"chat_template": str(TEMPLATES[name]), "tool_parser": "hermes3"}


async def prompt_of(make_app: MakeApp, name: str, path: str, body: Json) -> str:
    """Returns the prompt for a request to a model with this template."""
    app, engine = await make_app(lambda *_: say("x"), **template(name))
    response = await post(app, path, {"model": "m", **body})
    assert response.status == 200, response.body
    if path == LLAMA_CPP:
        return str((await whole(response))["prompt"])
    await response.aclose()
    return str(engine.submitted[0][0])


def message(role: str, content: Any) -> Json:
    return {"role": role, "content": content}


TALK = [message("system", "SYS1"), message("developer", "DEV1"), message("user", "USER1"),
        message("assistant", "SAID1"), message("system", "LATE1"), message("user", "USER2")]  # fmt: skip
WITHOUT_DEVELOPER = [one for one in TALK if one["role"] != "developer"]
SEVERAL: dict[str, Json] = {
    CHAT: {"messages": TALK},
    RESPONSES: {"instructions": "INS1", "input": TALK},
    MESSAGES: {"system": "SYS0", "messages": WITHOUT_DEVELOPER, "max_tokens": 5},
    OLLAMA: {"messages": TALK, "stream": False},
    COHERE: {"messages": TALK},
    LLAMA_CPP: {"messages": TALK},
}


@pytest.mark.parametrize("path", list(SEVERAL))
@pytest.mark.slow
async def test_all_texts_of_system_and_developer_are_in_the_prompt(make_app: MakeApp, path: str) -> None:
    sent = orjson.dumps(SEVERAL[path]).decode()
    words = [word for word in ("INS1", "SYS0", "SYS1", "DEV1", "USER1", "SAID1", "LATE1", "USER2") if word in sent]
    for name in strict_templates(path):
        prompt = await prompt_of(make_app, name, path, SEVERAL[path])
        assert [word for word in words if word not in prompt] == [], (name, prompt)


async def test_what_codex_sends_first_is_whole(make_app: MakeApp) -> None:
    body = orjson.loads(CODEX.read_bytes())["requests"][0]["body"]
    texts = [part["text"] for item in body["input"] for part in item.get("content", ())]
    for name in STRICT_TEMPLATES:
        prompt = await prompt_of(make_app, name, RESPONSES, {**body, "model": "m", "stream": False, "tools": []})
        assert [text[:40] for text in texts if text.strip() not in prompt] == [], name


def chat_turn(answer: Json) -> Json:
    said = answer["choices"][0]["message"]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "FOUND"} for call in said["tool_calls"]]
    return {"messages": [message("user", "A"), said, *results]}


def cohere_turn(answer: Json) -> Json:
    said = answer["message"]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "FOUND"} for call in said["tool_calls"]]
    return {"messages": [message("user", "A"), {"role": "assistant", **said}, *results]}


def ollama_turn(answer: Json) -> Json:
    result = {"role": "tool", "tool_name": "look_up", "content": "FOUND"}
    return {"messages": [message("user", "A"), answer["message"], result]}


def messages_turn(answer: Json) -> Json:
    used = [block for block in answer["content"] if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": block["id"], "content": "FOUND"} for block in used]
    talk = [message("user", "A"), message("assistant", answer["content"])]
    return {"messages": [*talk, message("user", [*results, {"type": "text", "text": "GO ON"}])]}


def responses_turn(answer: Json) -> Json:
    called = [item for item in answer["output"] if item["type"] == "function_call"]
    items = [{"type": "function_call_output", "call_id": item["call_id"], "output": "FOUND"} for item in called]
    return {"input": items, "previous_response_id": answer["id"]}


FUNCTION: Json = {"name": "look_up", "parameters": PARAMETERS}
NESTED: Json = {"tools": [{"type": "function", "function": FUNCTION}]}
ASK: Json = {"messages": [message("user", "A")]}
LOOPS: dict[str, tuple[Json, Any]] = {
    CHAT: (NESTED | ASK, chat_turn),
    RESPONSES: ({"tools": [{"type": "function", **FUNCTION}], "input": "A"}, responses_turn),
    MESSAGES: ({"tools": [{"name": "look_up", "input_schema": PARAMETERS}], "max_tokens": 99} | ASK, messages_turn),
    OLLAMA: (NESTED | ASK | {"stream": False}, ollama_turn),
    COHERE: (NESTED | ASK, cohere_turn),
}


@pytest.mark.parametrize("path", list(LOOPS))
async def test_a_loop_of_tools_gets_to_its_second_turn(make_app: MakeApp, path: str) -> None:
    """The tools have no description, and the ids are the server's own. The first template shows no tools."""
    body, following = LOOPS[path]
    for name in ("", "mistral7b_v03", "gpt_oss", "onyx"):
        app, engine = await make_app(lambda *_: say(CALL), **(template(name) if name else {}))
        first = await whole(await post(app, path, {"model": "m", **body}))
        response = await post(app, path, {"model": "m", **body, **following(first)})
        assert response.status == 200, (name, response.body)
        await response.aclose()
        prompt = engine.submitted[1][0]
        assert all(word in prompt for word in ("look_up", "7", "FOUND")), name
        assert ("GO ON" in prompt) == (path == MESSAGES)
        if not name:
            without = {field: value for field, value in body.items() if field != "tools"}
            await (await post(app, path, {"model": "m", **without, **following(first)})).aclose()
            for shown, offered in ((prompt, True), (engine.submitted[2][0], False)):
                assert '<tool_call>\n{"name": "look_up", "arguments": {"a": 7}}\n</tool_call>' in shown
                assert '<tool_response name="look_up">\nFOUND\n</tool_response>' in shown
                assert ("# Tools" in shown) is offered


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [message("user", None), message("assistant", []), message("user", "B")]}),
        (RESPONSES, {"input": [message("assistant", None), message("assistant", []), message("user", "B")]}),
        (MESSAGES, {"messages": [message("user", None), message("assistant", []), message("user", "B")],
                    "max_tokens": 5}),
        (OLLAMA, {"messages": [message("user", None), message("assistant", None), message("user", "B")],
                  "stream": False}),
        (COHERE, {"messages": [message("user", None), message("assistant", []), message("user", "B")]}),
        (LLAMA_CPP, {"messages": [message("system", None), message("assistant", []), message("user", "B")]}),
    ],
)  # fmt: skip
async def test_nothing_said_is_an_empty_text(make_app: MakeApp, path: str, body: Json) -> None:
    for name in strict_templates(path):
        prompt = await prompt_of(make_app, name, path, body)
        assert "B" in prompt
        assert "None" not in prompt


@pytest.mark.parametrize(
    "path", [CHAT, RESPONSES, OLLAMA, COHERE, LLAMA_CPP, "/tokenize", "/v1/chat/completions/batch"]
)
async def test_an_unknown_role_is_refused_with_those_that_are_known(make_app: MakeApp, path: str) -> None:
    talk: list[Any] = [message("robot", "x")]
    body: Json = {"input": talk} if path == RESPONSES else {"messages": [talk] if path.endswith("batch") else talk}
    for options in ({}, template("qwen3")):
        app, _ = await make_app(lambda *_: say("x"), **options)
        response = await post(
            app, path, {"model": "m", "stream": False, **body} if path == OLLAMA else {"model": "m", **body}
        )
        assert response.status == 400
        text = bytes(response.body).decode()
        assert "must be one of: system, developer, user, assistant, tool, not 'robot'" in text


ARGUMENTS: Json = {"text": 'Zürich "1"\n', "list": [1, {"b": None}]}
LOOK: Json = {"description": "Looks up", "parameters": PARAMETERS | {"required": ["a"], "additionalProperties": False}}
CALLED = [{"id": f"call_{n}abcdefg", "type": "function", "function": {"name": name, "arguments": ARGUMENTS}}
          for n, name in enumerate(("look_up", "other"))]  # fmt: skip


def as_text(calls: list[Json]) -> list[Json]:
    """Returns the calls with their arguments as a text."""
    return [{**call, "function": {**call["function"], "arguments": orjson.dumps(ARGUMENTS).decode()}} for call in calls]


def of_chat() -> Json:
    results = [{"role": "tool", "tool_call_id": call["id"], "content": f"R{n}"} for n, call in enumerate(CALLED)]
    said = message("assistant", "I look.") | {"tool_calls": as_text(CALLED)}
    tools = [{"type": "function", "function": {"name": name, **LOOK}} for name in ("look_up", "other")]
    return {"tools": tools, "messages": [message("system", "S"), message("user", "Ü"), said, *results]}


def of_responses() -> Json:
    calls = [{"type": "function_call", "call_id": call["id"], **call["function"]} for call in as_text(CALLED)]
    results = [{"type": "function_call_output", "call_id": call["id"], "output": f"R{n}"}
               for n, call in enumerate(CALLED)]  # fmt: skip
    tools = [{"type": "function", "name": name, "strict": False, **LOOK} for name in ("look_up", "other")]
    return {
        "tools": tools,
        "instructions": "S",
        "input": [message("user", "Ü"), message("assistant", "I look."), *calls, *results],
    }


def of_messages() -> Json:
    used = [{"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": ARGUMENTS}
            for call in CALLED]  # fmt: skip
    results = [{"type": "tool_result", "tool_use_id": call["id"], "content": f"R{n}"} for n, call in enumerate(CALLED)]
    talk = [message("user", "Ü"), message("assistant", [{"type": "text", "text": "I look."}, *used])]
    tools = [{"name": name, "description": LOOK["description"], "input_schema": LOOK["parameters"]}
             for name in ("look_up", "other")]  # fmt: skip
    return {"max_tokens": 5, "tools": tools, "system": "S", "messages": [*talk, message("user", results)]}


def of_ollama() -> Json:
    chat = of_chat()
    said = message("assistant", "I look.") | {"tool_calls": [{"function": call["function"]} for call in CALLED]}
    results = [{"role": "tool", "tool_name": call["function"]["name"], "content": f"R{n}"}
               for n, call in enumerate(CALLED)]  # fmt: skip
    return {"stream": False, "tools": chat["tools"], "messages": [*chat["messages"][:2], said, *results]}


SAME = {CHAT: of_chat, RESPONSES: of_responses, MESSAGES: of_messages, OLLAMA: of_ollama, COHERE: of_chat,
        LLAMA_CPP: of_chat}  # fmt: skip


@pytest.mark.slow
async def test_a_conversation_with_tools_is_one_prompt_in_every_api(make_app: MakeApp) -> None:
    """Blanks in JSON may differ: templates that take arguments as a text show it as the client sent it. Ollama's
    messages have no ids, which Mistral's template shows."""
    for name in STRICT_TEMPLATES:
        prompts = {
            path: (await prompt_of(make_app, name, path, body())).replace(": ", ":").replace(", ", ",")
            for path, body in SAME.items()
            if (name, path) != ("mistral7b_v03", OLLAMA)
        }
        assert dict.fromkeys(prompts, prompts[CHAT]) == prompts, name
