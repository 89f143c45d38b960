"""Requests recorded from coding agents, sent to a scripted engine that plays a session.

The files were recorded from the agents (docs/agents.md has their settings) with a server of this project. They contain
whole sessions, in which the agent executed the script's calls. Long texts are cut, most tools left out, and ids
replaced. If an agent changes its requests, it must be recorded again; the tests do not need the agents.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest

from lean_ovms.types import Request, Response, SamplingParams
from tests.api.conftest import MakeApp, parts, warnings_of
from tests.fakes import Script, say

HERE = Path(__file__).parent
TEMPLATE = (
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments }}{% endfor %}{% endfor %}"
)
CALL = '<tool_call>{"name": "%s", "arguments": {"a": %d}}</tool_call>'
LAST = "The file has two words."
SESSIONS = {
    "claude_code": ["<think>First.</think>I look." + CALL % ("Bash", 1), CALL % ("Read", 2) + CALL % ("Bash", 3),
                    "", CALL % ("Write", 4), LAST],
    "claude_code_tool_search": ["<think>First.</think>I look." + CALL % ("Bash", 1),
                                CALL % ("Read", 2) + CALL % ("Bash", 3), "", CALL % ("ToolSearch", 4),
                                CALL % ("WebFetch", 5), CALL % ("Write", 6), LAST],
    "codex": ["I look." + CALL % ("exec_command", 1), CALL % ("multi_agent_v1__close_agent", 2),
              CALL % ("exec_command", 3), LAST],
    "opencode": ["I look." + CALL % ("bash", 1), CALL % ("write", 2), LAST],
    "qwen_code": ["I look." + CALL % ("run_shell_command", 1), CALL % ("write_file", 2), LAST],
    "continue": ["I look." + CALL % ("Bash", 1), CALL % ("Write", 2), LAST],
    "cline": ["I look." + CALL % ("run_commands", 1), CALL % ("editor", 2), LAST],
    "aider": [LAST],
    "aider_anthropic": [LAST],
}  # fmt: skip
"""The answer to a prompt by its number of tool results."""
CALLS = {
    "claude_code": [["Bash"], ["Read", "Bash"], ["Write"], []],
    "claude_code_tool_search": [["Bash"], ["Read", "Bash"], ["ToolSearch"], ["WebFetch"], ["Write"], []],
    "codex": [["exec_command"], ["multi_agent_v1/close_agent"], ["exec_command"], []],
    "opencode": [["bash"], ["write"], []],
    "qwen_code": [["run_shell_command"], ["write_file"], []],
    "continue": [["Bash"], ["Write"], []],
    "cline": [["run_commands"], ["editor"], []],
    "aider": [[]],
    "aider_anthropic": [[]],
}
"""The calls that the agent parses from each answer. A namespace comes first."""
LEFT_OUT = {"codex": "tools of type web_search are not supported"}
"""The only Warning header of each answer."""


def recorded(agent: str) -> list[dict[str, Any]]:
    requests: list[dict[str, Any]] = orjson.loads((HERE / f"{agent}.json").read_bytes())["requests"]
    return requests


async def replay(app: Any, recording: dict[str, Any]) -> Response:
    body = b"" if recording["body"] is None else orjson.dumps(recording["body"])
    request = Request(recording["method"], recording["path"], recording["query"], recording["headers"], body)
    response: Response = await app.handle(request)
    return response


async def read(path: str, response: Response) -> tuple[str, list[str]]:
    """Returns the text and the calls of a complete stream, and checks that it ends as its API requires."""
    data = b"".join([part async for part in parts(response)])
    blocks = [b for b in data.decode().split("\n\n") if "data: " in b]
    events = [orjson.loads(b.split("data: ", 1)[1]) for b in blocks if not b.endswith("[DONE]")]
    if path == "/v1/messages":
        assert events[-1]["type"] == "message_stop"
        starts = [e["content_block"] for e in events if e["type"] == "content_block_start"]
        texts = [e["delta"].get("text", "") for e in events if e["type"] == "content_block_delta"]
        return "".join(texts), [block["name"] for block in starts if block["type"] == "tool_use"]
    if path == "/v1/responses":
        assert events[-1]["type"] == "response.completed"
        output = events[-1]["response"]["output"]
        texts = [part["text"] for item in output if item["type"] == "message" for part in item["content"]]
        calls = [item for item in output if item["type"] == "function_call"]
        return "".join(texts), ["/".join(filter(None, [c.get("namespace"), c["name"]])) for c in calls]
    assert data.endswith(b"data: [DONE]\n\n")
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    calls = [call["function"]["name"] for d in deltas for call in d.get("tool_calls", []) if "id" in call]
    return "".join(d.get("content") or "" for d in deltas), calls


@pytest.mark.parametrize("agent", SESSIONS)
async def test_a_session_is_served(make_app: MakeApp, agent: str) -> None:
    answers = SESSIONS[agent]

    def script(prompt: str, sampling: SamplingParams) -> Script:
        if agent == "opencode" and not prompt.startswith("["):
            return say("A title")
        text = answers[prompt.count("<|tool|>")]
        return say(*(text[i : i + 7] for i in range(0, len(text), 7)))

    app, engine = await make_app(script, tool_parser="hermes3", reasoning_parser="qwen3", chat_template=TEMPLATE)
    found, texts = [], []
    for recording in recorded(agent):
        response = await replay(app, recording)
        assert response.status == 200, response.body
        warned = warnings_of(response)
        assert [LEFT_OUT.get(agent, "") in value for value in warned] == [True] * (agent in LEFT_OUT)
        if recording["body"] is None:
            await response.aclose()
            continue
        text, calls = await read(recording["path"], response)
        if text != "A title":
            found.append(calls)
            texts.append(text)
    assert found == CALLS[agent]
    assert texts[-1] == LAST
    if len(found) > 1:
        assert engine.submitted[-1][0].count("<|tool|>") == sum(map(len, found))


@pytest.mark.parametrize("agent", ["claude_code", "claude_code_tool_search"])
async def test_each_prompt_of_claude_code_goes_on_from_the_one_before(make_app: MakeApp, agent: str) -> None:
    """So the prefix cache has it. Neither a line that changes with each request nor the tools that Claude Code finds
    with its tool search are at the beginning."""
    app, engine = await make_app(say("x"), chat_template=TEMPLATE)
    turns = [recording for recording in recorded(agent) if recording["body"]]
    for recording in turns:
        assert "x-anthropic-billing-header" in recording["body"]["system"][0]["text"]
        await (await replay(app, recording)).aclose()
    prompts = [prompt for prompt, _ in engine.submitted]
    assert len(prompts) == len(turns)
    assert not any("billing" in prompt for prompt in prompts)
    for earlier, later in pairwise(prompts):
        assert later.startswith(earlier)


FOUND = ["NotebookEdit", "WebFetch"]


async def test_what_claude_code_has_found_and_thought_is_in_the_prompt(make_app: MakeApp) -> None:
    """Its tools are described where it found them, and its thoughts come back though it asked to omit them."""
    app, engine = await make_app(say("x"), chat_template=TEMPLATE)
    for recording in recorded("claude_code_tool_search"):
        await (await replay(app, recording)).aclose()
    before, after = engine.submitted[2][0], engine.submitted[3][0]
    assert before.startswith("[Bash][Read][ToolSearch][Write]<|system|>")
    assert not any(name in before for name in FOUND)
    found = after.removeprefix(before)
    assert re.findall('{"type":"function","function":{"name":"([A-Za-z]+)","description":"', found) == FOUND
    assert "<|assistant|>(First.)I look." in after
