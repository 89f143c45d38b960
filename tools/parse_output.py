"""Run a tool and a reasoning parser on recorded model output.

    python tools/parse_output.py --tool_parser hermes3 --reasoning_parser qwen3 < case.json

reads one JSON object, {"chunks": [text, ...], "tools": [...] or null, "prompt_tail": text or null, "finish_reason":
"stop" or "length"}, and prints {"content", "reasoning_content", "tool_calls", "finish_reason", "deltas"}; the deltas
are those that chat/completions would stream, one list entry each. With --jsonl: one object per line, in and out.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lean_ovms.api.generation.tools import read_tools
from lean_ovms.features.chat.api import delta_json
from lean_ovms.text import parsers
from lean_ovms.types import Event, Reasoning, Text, ToolCallDelta, ToolCallStart


def parse(case: dict[str, Any], tool: str | None, reasoning: str | None) -> dict[str, Any]:
    """One case to its answer."""
    tools, _ = read_tools(case.get("tools"), None)
    parser = parsers.make(tool, reasoning, tools=tools, prompt_tail=case.get("prompt_tail") or "")
    said = [event for chunk in case["chunks"] for event in parser.feed(chunk)] + parser.finish()
    calls = [{"name": e.name, "arguments": _arguments(said, e.index)} for e in said if isinstance(e, ToolCallStart)]
    reason = case.get("finish_reason") or "stop"
    return {
        "content": "".join(e.text for e in said if isinstance(e, Text)),
        "reasoning_content": "".join(e.text for e in said if isinstance(e, Reasoning)),
        "tool_calls": calls,
        "finish_reason": "tool_calls" if calls and reason == "stop" else reason,
        "deltas": [json.loads(delta_json(event)) for event in said],
    }


def _arguments(said: list[Event], index: int) -> str:
    return "".join(e.text for e in said if isinstance(e, ToolCallDelta) and e.index == index)


def main() -> None:
    """Read standard input, write standard output."""
    names = parsers.names()
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tool_parser", choices=(*names.tool, "none"), default="none")
    options.add_argument("--reasoning_parser", choices=(*names.reasoning, "none"), default="none")
    options.add_argument("--jsonl", action="store_true", help="one object per line")
    given = options.parse_args()
    chosen = [None if name == "none" else name for name in (given.tool_parser, given.reasoning_parser)]
    cases = (line for line in sys.stdin if line.strip()) if given.jsonl else [sys.stdin.read()]
    for case in cases:
        print(json.dumps(parse(json.loads(case), *chosen), ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
