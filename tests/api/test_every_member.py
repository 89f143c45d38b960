"""Every member of a full body, at any depth, with values that it cannot have: a 2xx, or a 4xx that names a field of it.

tests/fuzz/test_hostile_bodies.py replaces whole fields; of a field that is an object, such as `thinking`, it hardly
ever has all but one member right. The engine has every capability, and checks the parameters that it gets.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from tests.api.conftest import MakeApp, post, whole
from tests.fakes import say
from tests.fuzz.test_hostile_bodies import answered

Path = tuple[Any, ...]
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    0.5,
    1e308,
    2**31,
    2**40,
    2**64 - 1,
    -(2**63),
    "",
    "x",
    [],
    {},
    [None],
    [{}],
)
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
FUNCTION = {"name": "f", "description": "d", "strict": False, "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
FLAT = {"type": "function", **FUNCTION}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
HI = {"role": "user", "content": "hi"}
TEXT = {"type": "text", "text": "a"}
WRITTEN = ("<think>", "r", "</think>", "a", '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>')
BODIES: list[tuple[str, Any]] = [
    ("/v1/chat/completions", {
        "messages": [
            {"role": "system", "content": [TEXT], "name": "n"}, HI,
            {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": [TEXT]},
            {"role": "assistant", "refusal": "no", "function_call": {"name": "g", "arguments": "{}"}},
            {"role": "function", "name": "g", "content": "y"},
            {"role": "assistant", "tool_calls": [{"id": "d", "type": "custom", "custom": {"name": "z", "input": "i"}}]},
        ],
        "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}, "logit_bias": {"1": 2},
        "reasoning": {"effort": "low", "max_tokens": 5}, "thinking": {"type": "enabled", "budget_tokens": 5},
        "repetition_detection": {"max_pattern_size": 3, "min_pattern_size": 1, "min_count": 2}, "stop": ["q"],
        "documents": [{"title": "a", "text": "b"}], "media_io_kwargs": {"video": {"num_frames": 2, "fps": 1.0}},
        "stream": True, "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 2, "n": 2,
    }),
    ("/v1/chat/completions", {
        "messages": [HI], "tools": [TOOL],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}},
    }),
    ("/v1/chat/completions", {
        "messages": [HI],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}},
    }),
    ("/v1/messages", {
        "max_tokens": 5, "system": [TEXT], "stop_sequences": ["q"],
        "messages": [
            {"role": "user", "content": [
                {"type": "document", "title": "t", "citations": {"enabled": True},
                    "source": {"type": "content", "content": [TEXT]}},
                {"type": "search_result", "title": "t", "source": "s", "content": [TEXT]},
            ]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"}, TEXT,
                {"type": "server_tool_use", "id": "s", "name": "w", "input": {}},
                {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"url": "u"}]},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}},
            ]},
            {"role": "user", "content": [{
                "type": "tool_result", "tool_use_id": "c", "is_error": True,
                "content": [TEXT, {"type": "tool_reference", "tool_name": "g"}],
            }]},
        ],
        "tools": [{"name": "f", "input_schema": SCHEMA}, {"name": "g", "input_schema": {}, "defer_loading": True}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 5, "display": "omitted"},
        "output_config": {"effort": "low"}, "context_management": {"edits": [{"type": "x"}]},
    }),
    ("/v2/chat", {
        "messages": [
            {"role": "user", "content": [TEXT, {"type": "document", "document": {"id": "1", "data": {"a": 1}}}]},
            {"role": "assistant", "tool_plan": "p", "tool_calls": [CALL], "content": [TEXT]},
            {"role": "tool", "tool_call_id": "c", "content": [TEXT]},
        ],
        "tools": [TOOL], "documents": ["a", {"id": "x", "data": {"t": "u"}}], "stop_sequences": ["q"],
        "thinking": {"type": "enabled", "token_budget": 5}, "logprobs": True, "stream": True,
    }),
    ("/v1/responses", {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}], "encrypted_content": "e"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
            {"type": "local_shell_call", "call_id": "l", "action": {"type": "exec", "command": ["a"]}},
            {"type": "mcp_call", "server_label": "s", "name": "n", "arguments": "{}", "output": "o"},
            {"type": "tool_search_output", "call_id": "t", "tools": [FLAT]},
            {"type": "compaction", "encrypted_content": "x"},
        ],
        "tools": [
            FLAT, {"type": "namespace", "name": "n", "tools": [FLAT]}, {"type": "tool_search", "execution": "client"},
            {"type": "custom", "name": "z", "format": {"type": "grammar", "syntax": "regex", "definition": "a"}},
        ],
        "tool_choice": {"type": "function", "name": "f"}, "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"verbosity": "low", "format": {"type": "text"}}, "metadata": {"a": "b"}, "max_tool_calls": 5,
        "include": ["reasoning.encrypted_content"], "stream": True, "stream_options": {"include_obfuscation": True},
    }),
    ("/api/chat", {
        "messages": [
            HI, {"role": "assistant", "thinking": "t", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
            {"role": "tool", "tool_name": "f", "content": "1"},
        ],
        "tools": [TOOL], "think": True, "keep_alive": "5m", "logprobs": True, "top_logprobs": 2,
        "options": {"temperature": 1, "top_k": 5, "num_predict": 5, "stop": ["x"], "repeat_last_n": 64, "mirostat": 1},
    }),
    ("/completion", {
        "prompt": ["a", [65], {"prompt_string": "x"}], "json_schema": SCHEMA, "logit_bias": [[1, 2], ["a", False]],
        "n_probs": 2, "samplers": ["top_k"], "response_fields": ["content"], "n_predict": 5,
    }),
    ("/inference/v1/generate", {
        "token_ids": [65],
        "sampling_params": {"seed": 1, "max_tokens": 5, "logprobs": 1, "structured_outputs": {"json": SCHEMA}},
    }),
]  # fmt: skip
"""Full bodies, by path."""


def members(value: Any, at: Path = ()) -> Iterator[Path]:
    """Yields the path of each member of a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in inner:
        yield (*at, name)
        yield from members(one, (*at, name))


def with_member(body: Any, at: Path, value: Any) -> bytes:
    """Returns a copy of a body in which the member at a path is replaced."""
    found = inner = copy.deepcopy(body)
    for name in at[:-1]:
        inner = inner[name]
    inner[at[-1]] = value
    return orjson.dumps(found)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_any_value_of_any_member_is_answered(make_app: MakeApp, path: str, body: Any) -> None:
    app, engine = await make_app(
        lambda _, sampling: say(*WRITTEN, sequences=sampling.n),
        capable=True, tool_parser="hermes3", reasoning_parser="qwen3",
    )  # fmt: skip
    body = {"model": "m", **body}
    await answered(app, path, orjson.dumps(body))
    assert engine.submitted, "the body itself is accepted"
    for at in members(body):
        for value in VALUES:
            try:
                status, answer = await answered(app, path, with_member(body, at, value))
                param = status == 400 and orjson.loads(answer)["error"]
                if isinstance(param, dict) and (param := param.get("param")):
                    assert re.split(r"[.\[]", param)[0] in body
            except AssertionError as error:
                raise AssertionError((at, value)) from error


LIMITS: list[tuple[str, Any, str]] = [
    ("/v1/chat/completions", {"messages": [HI], "n_cmpl": 100}, "n_cmpl"),
    ("/v1/chat/completions", {"messages": [HI], "n": 100}, "n"),
    ("/v1/chat/completions", {"messages": [HI], "n_predict": 100}, "n_predict"),
    ("/v1/chat/completions", {"messages": [HI], "reasoning": {"max_tokens": 2**40}}, "reasoning.max_tokens"),
    ("/v1/chat/completions", {"messages": [HI], "thinking": {"type": "enabled", "budget_tokens": 2**40}},
        "thinking.budget_tokens"),
    ("/v1/completions", {"prompt": "x", "n_predict": 100}, "n_predict"),
    ("/completion", {"prompt": "x", "n_predict": 100}, "n_predict"),
    ("/completion", {"prompt": "x", "max_tokens": 100}, "max_tokens"),
    ("/completion", {"prompt": "x", "n_cmpl": 100}, "n_cmpl"),
    ("/completion", {"prompt": ["x"] * 90, "n_cmpl": 20}, "n_cmpl"),
    ("/completion", {"prompt": "x", "n_probs": 100}, "n_probs"),
    ("/inference/v1/generate", {"token_ids": [65], "sampling_params": {"n": 100}}, "sampling_params.n"),
    ("/inference/v1/generate", {"token_ids": [65], "sampling_params": {}, "model": "other"}, "model"),
    ("/v1/messages", {"messages": [HI], "max_tokens": 5, "output_format": {"type": "x"}}, "output_format"),
    ("/api/chat", {"messages": [HI], "options": {"num_predict": 100}}, "num_predict"),
    ("/api/generate", {"prompt": "x", "options": {"num_predict": 100}}, "num_predict"),
]  # fmt: skip


async def test_a_limit_of_the_server_is_an_error_of_the_clients_own_field(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"), max_tokens_limit=50, reasoning_parser="qwen3")
    for path, fields, name in LIMITS:
        error = (await whole(await post(app, path, {"model": "m", **fields})))["error"]
        if isinstance(error, dict) and "param" in error:
            assert error["param"] == name, (path, fields)
        message = error if isinstance(error, str) else error["message"]
        assert name == "model" or name in message or "sequences" in message, (path, fields, message)
    assert engine.submitted == []
