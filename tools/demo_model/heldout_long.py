"""Held-out long prompts, as coding agents send them: instructions, documents and tools, then a short question.

The documents are this repository's own documentation and sources, which are not used for training.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.demo_model.cases import declared
from tools.demo_model.data import data_of

ROOT = Path(__file__).resolve().parents[2]
REMINDER = "<reminder>\nThe list of tasks is empty. Do not mention this to the user.\n</reminder>\n"
lists = data_of("heldout_long")


def document(tokens: int, count: Callable[[str], int]) -> str:
    """Returns about this many tokens of the repository's text."""
    text = ""
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("lean_ovms/api/**/*.py"))):
        text += f"\n## {path.relative_to(ROOT)}\n\n{path.read_text(encoding='utf-8')}"
        if (length := count(text)) >= tokens:
            return text[: len(text) * tokens // length]
    return text


def conversations(
    tokens: int, count: Callable[[str], int], with_tools: bool
) -> list[tuple[list[dict[str, str]], list[dict[str, Any]]]]:
    """Returns messages and tools for each question, after a system prompt of about this many tokens."""
    system = lists["INSTRUCTIONS"] + document(tokens, count)
    rows = lists["TOOLS"] if with_tools else ()
    tools = [declared(name, about, dict.fromkeys(parameters, "string")) for name, about, parameters in rows]
    asked = [(REMINDER if i % 2 else "") + question for i, question in enumerate(lists["QUESTIONS"])]
    return [([{"role": "system", "content": system}, {"role": "user", "content": text}], tools) for text in asked]
