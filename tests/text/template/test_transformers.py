"""Rendering equals that of Hugging Face transformers, as recorded, and as installed if it is."""

from __future__ import annotations

import json

import pytest

from lean_ovms.errors import BadRequest
from lean_ovms.text.template import sandbox
from lean_ovms.types import ChatPrompt
from tests.cases import few_fast
from tests.text.template.template_cases import (
    CASES,
    STRING_ARGUMENTS,
    TEMPLATES,
    VECTORS,
    Case,
    ChatTemplate,
    FixedDate,
    cases_for,
    compiled,
    with_string_arguments,
)

RECORDED = json.loads(VECTORS.read_text())


@pytest.fixture(autouse=True)
def fixed_date(monkeypatch):
    monkeypatch.setattr(sandbox, "datetime", FixedDate)


def ours(template: ChatTemplate, case: Case) -> str | None:
    prompt = ChatPrompt(
        messages=case.messages,
        tools=case.tools or [],
        template_kwargs=case.kwargs,
        add_generation_prompt=case.add_generation_prompt,
        continue_final_message=case.continue_final_message,
    )
    try:
        return template.render(prompt)
    except BadRequest:
        return None


LOST_CALLS = {"gpt_oss": "two calls", "phi4_mini": "text and a call"}
"""Conversations in which transformers loses a call."""


def texts(case: Case) -> list[str]:
    """Returns the texts that a prompt must contain: all but reasoning, which templates drop in earlier turns."""
    found = []
    for message in case.messages:
        content = message.get("content") or ""
        parts = [content] if isinstance(content, str) else [part["text"] for part in content]
        found += [part.rpartition("</think>")[2].strip() for part in parts]
    return found


def check(family: str, name: str, case: Case, rendered: str | None) -> None:
    """Checks that the text is what transformers renders, or contains all that it loses or rejects."""
    recorded = RECORDED[family][name]
    whole = recorded is not None and LOST_CALLS.get(family) != name
    if whole and all(text in recorded for text in texts(case)):
        assert rendered == recorded, name
    else:
        assert rendered is not None, name
        assert all(text in rendered for text in texts(case)), name


@pytest.mark.slow
@pytest.mark.parametrize("family", TEMPLATES)
def test_renders_what_transformers_recorded(family):
    assert list(RECORDED[family]) == list(cases_for(family))
    for name, case in cases_for(family).items():
        check(family, name, case, ours(compiled(family), case))


@pytest.mark.parametrize("family", few_fast(TEMPLATES))
def test_arguments_in_the_other_form_render_the_same(family):
    """OpenAI's clients send JSON text; users of transformers pass what the template needs."""
    needs_text = family in STRING_ARGUMENTS
    for name, case in (CASES if needs_text else cases_for(family)).items():
        check(family, name, case, ours(compiled(family), case if needs_text else with_string_arguments(case)))


@pytest.mark.slow
def test_the_installed_transformers_renders_the_same(monkeypatch):
    pytest.importorskip("transformers")
    from tests.text.template import record_templates

    monkeypatch.setattr(record_templates.chat_template_utils, "datetime", FixedDate)
    assert record_templates.render_all() == RECORDED
