"""How conversations are written for a model, by its template and the options."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lean_ovms.config import Config
from lean_ovms.errors import StartError
from lean_ovms.models.chat_format import ChatFormat
from lean_ovms.repository.model_dir import ModelDir
from lean_ovms.types import OutputParams
from lean_ovms.types.engine import Vocabulary
from tests.fakes import INFO


def dialect(template: str, **options: str) -> ChatFormat:
    return ChatFormat(
        Config(chat_template=template, **options), ModelDir(), INFO, Vocabulary(pieces=[], special=frozenset())
    )


@pytest.mark.parametrize(
    ("template", "opens"),
    [
        ("<think></think>{% if enable_thinking %}assistant<think>\n{% endif %}", True),
        ("<think></think>{{ messages[0].content }}<think>", True),
        ("<think></think>{% if enable_thinking is false %}<think>\n\n</think>{% endif %}assistant", False),
        ("<think></think>{{ raise_exception('not this one') }}", False),
        ("{{ messages[0].content }}", False),
    ],
)
def test_it_is_known_who_begins_a_thought(template: str, opens: bool) -> None:
    assert dialect(template).setting(OutputParams(parse=True), "").template_opens_reasoning is opens


def test_a_parser_that_does_not_exist_stops_the_start() -> None:
    with pytest.raises(StartError, match="tool_parser"):
        dialect("{{ messages }}", tool_parser="nope")


@pytest.mark.parametrize(
    ("template", "of_tools", "configured", "parser"),
    [
        ("{{ messages }}", "", "", "generic"),
        ("{{ messages }}", "", "hermes3", "hermes3"),
        ("{{ messages }}", "", "none", None),
        ("{{ messages }}{{ tools }}", "", "", "generic"),
        ("{{ messages }}", "<tool_call></tool_call>{{ tools }}", "", "hermes3"),
        ("[TOOL_CALLS]", "{{ tools }}", "", "mistral"),
        ("[TOOL_CALLS]", "", "generic", "generic"),
        ("", "<tool_call></tool_call>{{ tools }}", "", "hermes3"),
        ("", "", "", None),
    ],
)
def test_which_tool_parser_a_model_has(template: str, of_tools: str, configured: str, parser: str | None) -> None:
    directory = ModelDir(fallback_template=template, tool_template=of_tools)
    nothing = Vocabulary(pieces=[], special=frozenset())
    found = ChatFormat(Config(tool_parser=configured), directory, replace(INFO, chat_template=""), nothing)
    assert found.answers.tool_parser == parser
