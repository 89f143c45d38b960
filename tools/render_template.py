"""Render a chat template as the server would, or show what the server detects in it.

    python tools/render_template.py --template chat_template.jinja < conversation.json
    python tools/render_template.py --template chat_template.jinja --detect

The conversation is {"messages": [...], "tools": [...], "chat_template_kwargs": {...}, "add_generation_prompt": bool,
"bos_token": text, "eos_token": text}; all but messages may be missing. --detect prints {"tool_parser",
"reasoning_parser", "content_format", ...} and reads nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lean_ovms.api.generation.messages import read_messages
from lean_ovms.api.generation.tools import read_tools
from lean_ovms.composition import compose
from lean_ovms.errors import RequestError
from lean_ovms.text import parsers
from lean_ovms.text.template.chat_template import ChatTemplate
from lean_ovms.types import ChatPrompt


def detected(template: ChatTemplate) -> dict[str, Any]:
    """What the server concludes from a template."""
    tool, reasoning = parsers.detect(template.source)
    return {"tool_parser": tool, "reasoning_parser": reasoning, **asdict(template.capabilities)}


def prompt_of(case: dict[str, Any]) -> ChatPrompt:
    """The conversation, read as a request would be."""
    tools, _ = read_tools(case.get("tools"), None)
    add = case.get("add_generation_prompt")
    return ChatPrompt(
        messages=read_messages(case.get("messages"), compose()),
        tools=tools,
        template_kwargs=case.get("chat_template_kwargs") or {},
        add_generation_prompt=True if add is None else bool(add),
    )


def main() -> int:
    """The exit status: 1 when the template refuses the conversation."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--template", type=Path, required=True)
    options.add_argument("--detect", action="store_true", help="print what is detected, read nothing")
    given = options.parse_args()
    case = {} if given.detect else json.load(sys.stdin)
    special = {name: case[name] for name in ("bos_token", "eos_token") if case.get(name)}
    template = ChatTemplate(given.template.read_text("utf-8"), special_tokens=special)
    if given.detect:
        print(json.dumps(detected(template), ensure_ascii=False, default=sorted))
        return 0
    try:
        rendered = template.render(prompt_of(case))
    except RequestError as error:
        print(error.message, file=sys.stderr)
        return 1
    print(json.dumps({"prompt": rendered, **detected(template)}, ensure_ascii=False, default=sorted))
    return 0


if __name__ == "__main__":
    sys.exit(main())
