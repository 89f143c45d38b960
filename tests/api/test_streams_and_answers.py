"""A stream says the same as the unary answer, in every API that generates text: what it says, and why it ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import product
from typing import Any

import orjson
import pytest

from lean_ovms.types import Json
from tests.api.conftest import MakeApp, events, parts, post, whole
from tests.fakes import say

FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}
TOOL = {"type": "function", "function": FUNCTION}
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
TOLD = {"messages": [{"role": "user", "content": "hi"}]}
SCRIPTS: dict[str, tuple[str, ...]] = {
    "text": ("  Hel", "lo", " wörld 😀"),
    "nothing": ("",),
    "reasoning": ("<think>", "a\n", "</think>", "\n\n", "so"),
    "reasoning only": ("<think>", "abc"),
    "text before reasoning": ("lead ", "<think>", "a", "</think>", " b"),
    "reasoning twice": ("<think>", "a", "</think>", "b", "<think>", "c", "</think>", "d"),
    "a call": ("Sure. ", CALL),
    "two calls": (CALL, "\n", CALL),
    "text after a call": (CALL, "\nDone now."),
    "a call in reasoning": ("<think>", "hm ", CALL),
    "a cut call": ('<tool_call>\n{"name": "f", "arguments": {"x": 1',),
    "no call": ('<tool_call>\n{"nam": "f"}\n</tool_call> rest',),
    "a stop string": ("abQcd", "ef"),
    "a stop string in a call": ('<tool_call>\n{"name": "f", "arguments": {"x": "aQb"}}\n</tool_call>',),
}
Summary = Callable[[Json | list[Json]], Any]
"""Returns what the objects of an answer say, of which a unary one has one."""


def _joined(pieces: Any) -> str:
    return "".join(piece or "" for piece in pieces)


def _chat(found: list[Json]) -> Any:
    choices: defaultdict[int, Any] = defaultdict(lambda: ["", "", [], [], [], None])
    for one in found:
        for choice in one["choices"]:
            said, state = choice.get("delta", choice.get("message")), choices[choice["index"]]
            state[0] += said.get("content") or ""
            state[1] += said.get("reasoning_content") or ""
            for call in said.get("tool_calls") or ():
                if "id" in call:
                    state[2].append([call["function"]["name"], ""])
                state[2][-1][1] += call["function"].get("arguments", "")
            state[3] += [token["token"] for token in (choice["logprobs"] or {}).get("content", ())]
            state[4] += choice["token_ids"]
            state[5] = choice["finish_reason"] or state[5]
    return [choices[index] for index in sorted(choices)], found[-1]["usage"]


def _completion(found: list[Json]) -> Any:
    choices: defaultdict[int, Any] = defaultdict(lambda: ["", [], [], None])
    for one in found:
        for choice in one["choices"]:
            state, logprobs = choices[choice["index"]], choice["logprobs"] or {}
            state[0] += choice["text"]
            state[1] += zip(logprobs.get("tokens", ()), logprobs.get("text_offset", ()), strict=True)
            state[2] += choice["token_ids"]
            state[3] = choice["finish_reason"] or state[3]
    return [choices[index] for index in sorted(choices)], found[-1]["usage"]


def _response(found: list[Json]) -> Any:
    last = found[-1].get("response", found[-1])
    items = [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in last["output"]]
    if len(found) > 1:
        assert [one["sequence_number"] for one in found] == list(range(len(found)))
        done = [one["item"] for one in found if one["type"] == "response.output_item.done"]
        assert done == last["output"]
        deltas = [one["delta"] for one in found if one["type"] == "response.output_text.delta"]
        texts = [part["text"] for item in last["output"] if item["type"] == "message" for part in item["content"]]
        assert _joined(deltas) == _joined(texts)
    return items, last["status"], last["incomplete_details"], last["usage"]


def _message(found: list[Json]) -> Any:
    if found[0]["type"] == "message":
        blocks = [{k: v for k, v in block.items() if k != "id"} for block in found[0]["content"]]
        return blocks, found[0]["stop_reason"], found[0]["stop_sequence"], found[0]["usage"]
    blocks, written = [], [""]
    for one in found:
        if one["type"] == "content_block_start":
            blocks.append({k: v for k, v in one["content_block"].items() if k != "id"})
            written = [""]
        elif one["type"] == "content_block_delta":
            delta, block = one["delta"], blocks[one["index"]]
            for name in block.keys() & delta.keys() - {"type"}:
                block[name] += delta[name]
            written.append(delta.get("partial_json", ""))
        elif one["type"] == "content_block_stop" and "input" in blocks[-1]:
            text = _joined(written)
            blocks[-1]["input"] = orjson.loads(text) if text.endswith("}") else {}
    end = next(one for one in found if one["type"] == "message_delta")
    return blocks, end["delta"]["stop_reason"], end["delta"]["stop_sequence"], end["usage"]


def _cohere(found: list[Json]) -> Any:
    texts, calls, tokens = {"thinking": "", "text": ""}, list[list[str]](), list[int]()
    for one in found:
        message = (one.get("delta") or {}).get("message", one.get("message", {}))
        content = message.get("content", ())
        for part in [content] if isinstance(content, dict) else content:
            for name in texts.keys() & part:
                texts[name] += part[name]
        called = message.get("tool_calls", ())
        for call in [called] if isinstance(called, dict) else called:
            if "id" in call:
                calls.append([call["function"]["name"], ""])
            calls[-1][1] += call["function"]["arguments"]
        items = one.get("logprobs", [])
        tokens += [token for item in (items if isinstance(items, list) else [items]) for token in item["token_ids"]]
    end = found[-1].get("delta", found[-1])
    return texts, calls, tokens, end["finish_reason"], end["usage"]


def _ollama(found: list[Json]) -> Any:
    said = [one.get("message") or {"content": one["response"], "thinking": one.get("thinking")} for one in found]
    calls = [call["function"] for one in said for call in one.get("tool_calls", ())]
    tokens = [token["token"] for one in found for token in one.get("logprobs", ())]
    texts = [_joined(one.get(name) for one in said) for name in ("content", "thinking")]
    return texts, calls, tokens, *(found[-1].get(name) for name in ("done_reason", "eval_count", "context"))


def _llama_cpp(found: list[Json]) -> Any:
    tokens = [token["token"] for one in found for token in one.get("completion_probabilities", ())]
    ids = [token for one in found for token in one["tokens"]]
    last = [found[-1][name] for name in ("stop_type", "stopping_word", "tokens_predicted", "has_new_line")]
    return _joined(one["content"] for one in found), tokens, ids, last


def _generate(found: list[Json]) -> Any:
    choices = [choice for one in found for choice in one["choices"]]
    tokens = [token["token_id"] for one in choices for token in (one["logprobs"] or {}).get("content", ())]
    ids = [token for one in choices for token in one["token_ids"]]
    return _joined(one["text"] for one in choices), tokens, ids, choices[-1]["finish_reason"], found[-1]["usage"]


USAGE = {"stream_options": {"include_usage": True}}
STOPS, IDS = {"stop": ["Q"], "include_stop_str_in_output": False}, {"return_token_ids": True}
APIS: list[tuple[str, Json, Json, Json, Summary]] = [
    ("/v1/chat/completions", TOLD | {"tools": [TOOL], **STOPS, **IDS}, {"logprobs": True}, USAGE, _chat),
    ("/v1/chat/completions", TOLD | {"n": 2, **STOPS, **IDS}, {"logprobs": True, "top_logprobs": 2}, USAGE, _chat),
    ("/v1/completions", {"prompt": "hi", "max_tokens": 900, "n": 2, **STOPS, **IDS}, {"logprobs": 2}, USAGE,
        _completion),
    ("/v1/responses", {"input": "hi", "tools": [{"type": "function", **FUNCTION}], **STOPS}, {"top_logprobs": 2}, {},
        _response),
    ("/v1/messages", TOLD | {"max_tokens": 900, "tools": [{"name": "f", "input_schema": {}}], "stop_sequences": ["Q"]},
        {}, {}, _message),
    ("/v2/chat", TOLD | {"tools": [TOOL], "stop_sequences": ["Q"]}, {"logprobs": True}, {}, _cohere),
    ("/api/chat", TOLD | {"tools": [TOOL], "options": {"stop": ["Q"]}}, {"logprobs": True}, {}, _ollama),
    ("/api/generate", {"prompt": "hi", "options": {"stop": ["Q"]}}, {"logprobs": True}, {}, _ollama),
    ("/completion", {"prompt": "hi", "stop": ["Q"], "return_tokens": True}, {"n_probs": 2}, {}, _llama_cpp),
    ("/inference/v1/generate", {"token_ids": [104], "output_mode": "text", "sampling_params": STOPS}, {}, USAGE,
        _generate),
]  # fmt: skip
"""Each API's path, body, fields for log probabilities, and fields of a stream, and the summary of its objects."""


@pytest.mark.slow
@pytest.mark.parametrize(("path", "body", "logprobs", "streamed", "summary"), APIS)
async def test_a_stream_says_what_the_unary_answer_says(
    make_app: MakeApp, path: str, body: Json, logprobs: Json, streamed: Json, summary: Summary
) -> None:
    for (name, script), more, reason in product(SCRIPTS.items(), ({}, logprobs), ("stop", "length")):
        app, _ = await make_app(
            lambda _, sampling, script=script, reason=reason: say(*script, reason=reason, sequences=sampling.n),
            capable=True, tool_parser="hermes3", reasoning_parser="qwen3",
        )  # fmt: skip
        asked = {"model": "m", **body, **more}
        answer = await whole(await post(app, path, asked | {"stream": False}))
        response = await post(app, path, asked | streamed | {"stream": True})
        if path.startswith("/api/"):
            told = [orjson.loads(line) for line in b"".join([part async for part in parts(response)]).splitlines()]
        else:
            told = [event for event in await events(response) if event != "[DONE]"]
        assert summary(told) == summary([answer]), (name, more, reason)
