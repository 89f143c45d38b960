"""The command line tools for parsers and templates, as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "tests" / "data" / "chat_templates"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def run(tool: str, *flags: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / tool), *flags]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.slow
def test_recorded_output_is_parsed_line_by_line() -> None:
    chunks = ["<think>hm</th", "ink>ok <tool_", 'call>{"name": "f", "argu', 'ments": {"a": 1}}</tool_call>']
    cases: list[dict[str, Any]] = [
        {"chunks": chunks, "tools": [TOOL], "prompt_tail": None, "finish_reason": "stop"},
        {"chunks": ["plain"], "tools": None, "prompt_tail": "<think>\n", "finish_reason": "length"},
    ]
    flags = ("--tool_parser", "hermes3", "--reasoning_parser", "qwen3", "--jsonl")
    done = run("parse_output.py", *flags, given="\n".join(map(json.dumps, cases)))
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["content"].strip(), first["reasoning_content"], first["finish_reason"]) == ("ok", "hm", "tool_calls")
    assert first["tool_calls"] == [{"name": "f", "arguments": '{"a": 1}'}]
    joined = "".join(d["tool_calls"][0]["function"]["arguments"] for d in first["deltas"] if "tool_calls" in d)
    assert joined == '{"a": 1}'
    assert (second["content"], second["reasoning_content"], second["finish_reason"]) == ("", "plain", "length")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "tool", "reasoning"),
    [("qwen3", "hermes3", "qwen3"), ("gpt_oss", "gptoss", "gptoss"), ("mistral7b_v03", "mistral", None)],
)
def test_detection(family: str, tool: str, reasoning: str | None) -> None:
    done = run("render_template.py", "--template", str(TEMPLATES / f"chat_template_{family}.jinja"), "--detect")
    found = json.loads(done.stdout)
    assert (found["tool_parser"], found["reasoning_parser"]) == (tool, reasoning)


@pytest.mark.slow
def test_a_conversation_is_rendered_and_a_refusal_is_said() -> None:
    template = str(TEMPLATES / "chat_template_qwen3.jinja")
    done = run("render_template.py", "--template", template, given='{"messages": [{"role": "user", "content": "hi"}]}')
    assert json.loads(done.stdout)["prompt"] == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    refused = run("render_template.py", "--template", template, given='{"messages": []}')
    assert (refused.returncode, refused.stderr.strip()) == (1, "Messages array cannot be empty")
