"""Held-out long prompts, as coding agents send them: instructions, documents and tools, then a short question.

The text is this repository's own documentation and sources, which training never sees.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.demo_model.checks import Check, says

ROOT = Path(__file__).resolve().parents[2]
ANY: Check = bool
INSTRUCTIONS = """You are an interactive command line tool that helps users with software engineering tasks.
Use the instructions below and the tools available to you to assist the user.

IMPORTANT: Never generate or guess URLs. Keep your answers short.

# Environment
Working directory: /home/user/project
Platform: linux

# Project
"""
REMINDER = "<reminder>\nThe list of tasks is empty. Do not mention this to the user.\n</reminder>\n"
# question, what a right answer says (where the model can know)
QUESTIONS: tuple[tuple[str, Check], ...] = (
    ("Hello!", says("hello|hi")),
    ("Who are you?", says("demo model")),
    ("What is the capital of France?", says("paris")),
    ("Thank you!", says("welcome")),
    ("What can you do?", says("chat|tools")),
    ("Repeat after me: good morning", says("good morning")),
    ("Fix the failing test in utils.py.", ANY),
    ("Explain what this project does.", ANY),
    ("Write a function that reverses a list.", ANY),
    ("Refactor the parser so that it is easier to read.", ANY),
    ("Why does the build fail?", ANY),
    ("Summarize the conversation so far.", ANY),
    ("List all files in the current folder.", ANY),
    ("hi", says("hello|hi")),
    ("Which endpoint serves embeddings?", ANY),
    ("Please write a title for this conversation, at most five words.", ANY),
    ("Guten Tag!", ANY),
    ("Add a README section about installation.", ANY),
    ("What is 3 + 4?", says("7")),
    ("Run the tests.", ANY),
)


def tool(name: str, description: str, *parameters: str) -> dict[str, Any]:
    properties = {parameter: {"type": "string"} for parameter in parameters}
    function = {
        "name": name,
        "description": description,
        "parameters": {"type": "object", "properties": properties, "required": list(parameters)},
    }
    return {"type": "function", "function": function}


TOOLS = (
    tool("Bash", "Executes a given bash command and returns its output.", "command", "description"),
    tool("Read", "Reads a file from the local file system.", "file_path"),
    tool("Edit", "Performs exact string replacements in files.", "file_path", "old_string", "new_string"),
    tool("Grep", "Searches the contents of files with a regular expression.", "pattern", "path"),
    tool("TodoWrite", "Creates and manages a list of tasks for the session.", "todos"),
)


def document(tokens: int, count: Callable[[str], int]) -> str:
    """About as many tokens of the repository's own text."""
    text = ""
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("lean_ovms/api/**/*.py"))):
        text += f"\n## {path.relative_to(ROOT)}\n\n{path.read_text(encoding='utf-8')}"
        if (length := count(text)) >= tokens:
            return text[: len(text) * tokens // length]
    return text


def conversations(
    tokens: int, count: Callable[[str], int], with_tools: bool
) -> list[tuple[list[dict[str, str]], list[dict[str, Any]], Check]]:
    """(messages, tools, check) of each question, after a system prompt of about so many tokens."""
    system = INSTRUCTIONS + document(tokens, count)
    tools = list(TOOLS) if with_tools else []
    return [
        (
            [
                {"role": "system", "content": system},
                {"role": "user", "content": (REMINDER if i % 2 else "") + question},
            ],
            tools,
            check,
        )
        for i, (question, check) in enumerate(QUESTIONS)
    ]
