"""The templates that llama.cpp knows by name write the prompts that llama-server writes."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from lean_ovms.cli.arguments import parse
from lean_ovms.features.llama_cpp.templates import TEMPLATES
from lean_ovms.text.template.chat_template import ChatTemplate
from lean_ovms.types import ChatPrompt, Json
from tests.api.conftest import MakeApp, post, whole

WRITTEN: dict[str, str] = orjson.loads((Path(__file__).parents[2] / "data/llama_cpp_templates.json").read_bytes())
"""What /apply-template of llama-server (2026-10) answered for CONVERSATION, with each --chat-template."""
CONVERSATION: list[Json] = [
    {"role": role, "content": content}
    for role, content in (
        ("system", "You are a helpful assistant"),
        ("user", "Hello"),
        ("assistant", "Hi there"),
        ("user", "Who are you"),
        ("assistant", "   I am an assistant   "),
        ("user", "Another question"),
    )
]
WITH_A_CALL: list[Json] = [
    {"role": "system", "content": "first"},
    {"role": "user", "content": "second"},
    {"role": "assistant", "content": "third", "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "fourth", "arguments": '{"fifth": 1}'}}]},
    {"role": "tool", "tool_call_id": "c", "content": "sixth"},
    {"role": "assistant", "content": "seventh"},
    {"role": "user", "content": "eighth"},
]  # fmt: skip


@pytest.mark.slow
def test_each_template_writes_what_llama_cpp_writes() -> None:
    for name, template in TEMPLATES.items():
        found = ChatTemplate(template).render(ChatPrompt(messages=CONVERSATION))
        if name == "monarch":  # whose first text is the token that llama.cpp's tokenizer puts before the prompt
            found = found.removeprefix("<s>")
        assert found == WRITTEN[name], name
    assert TEMPLATES.keys() == WRITTEN.keys()


@pytest.mark.slow
async def test_a_conversation_with_calls_is_whole_in_every_template(make_app: MakeApp) -> None:
    for name, template in TEMPLATES.items():
        app, _ = await make_app(chat_template=template)
        prompt = (await whole(await post(app, "/apply-template", {"messages": WITH_A_CALL})))["prompt"]
        places = [
            prompt.find(content) for content in ("first", "second", "third", "fourth", "fifth", "sixth", "eighth")
        ]
        assert min(places) >= 0, (name, prompt)
        assert places == sorted(places), (name, prompt)


def test_an_option_names_a_template_a_file_or_the_template(tmp_path: Path) -> None:
    file = tmp_path / "chatml"
    file.write_text("{{ messages }}")
    for given, wanted in (("chatml", TEMPLATES["chatml"]), (str(file), str(file)), ("{{ 1 }}", "{{ 1 }}")):
        for flag in ("--chat-template", "--chat_template"):
            assert parse([flag, given], {}).chat_template == wanted
