"""Translates the fields by which other servers' clients control reasoning in OpenAI's chat.

`reasoning` is that of OpenRouter and of Ollama's chat completions, `thinking` that of DeepSeek, GLM and Kimi,
`enable_thinking` that of Qwen's, and `think` that of Ollama's own API. If a body also has this server's field for the
same setting, that one counts; a value that does not count although it differs is named in a warning.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, NamedTuple

from ...api.fields import Field, FieldSet, read
from ...api.generation.common_fields import ReadableBody
from ...api.generation.sampling import SAMPLING
from ...api.schemas import BOOLEAN, NULL, STRING, any_of
from ...errors import BadRequest
from ...types import Json

KINDS = ("enabled", "disabled", "adaptive", "auto")
EFFORT, BUDGET, SHOWN, KWARGS = "reasoning_effort", "thinking_token_budget", "include_reasoning", "chat_template_kwargs"
SWITCH = "enable_thinking"


def _think(value: Any) -> bool | str:
    if not isinstance(value, bool | str):
        raise BadRequest("think must be true, false or the name of an effort", param="think")
    return value


def _member(value: Json, field: str, name: str, kind: type) -> Any:
    """Returns a member of a field's object; None if it is missing or null. Raises BadRequest if its type is wrong."""
    found = value.get(name)
    if kind is int and isinstance(found, float) and found.is_integer():
        found = int(found)  # 5.0 is a whole number in JSON
    if found is not None and type(found) is not kind:
        raise BadRequest(f"{field}.{name} has a wrong type", param=f"{field}.{name}")
    return found


def _reasoning(value: Json) -> Json:
    rows = (("effort", str), ("enabled", bool), ("max_tokens", int), ("exclude", bool))
    return {name: _member(value, "reasoning", name, kind) for name, kind in rows}


def _thinking(value: Json) -> Json:
    if value.get("type") not in KINDS:
        raise BadRequest(f"thinking.type must be one of: {', '.join(KINDS)}", param="thinking.type")
    return {"type": value["type"], "budget_tokens": _member(value, "thinking", "budget_tokens", int)}


_BUDGET = SAMPLING.named(BUDGET)
_TOKENS = any_of({"type": "integer", "minimum": _BUDGET.low, "maximum": _BUDGET.high}, NULL)
FIELDS = FieldSet((
    Field("reasoning", "object",
        "(OpenRouter, Ollama) effort is reasoning_effort, max_tokens is thinking_token_budget; enabled: false turns "
        "reasoning off, and exclude: true leaves it out of the answer", read=_reasoning,
        schema={"properties": {"effort": any_of(STRING, NULL), "enabled": any_of(BOOLEAN, NULL),
            "max_tokens": _TOKENS, "exclude": any_of(BOOLEAN, NULL)}}),
    Field("thinking", "object",
        "(DeepSeek, GLM, Kimi) type disabled turns reasoning off, enabled turns it on", read=_thinking,
        schema={"properties": {"type": {"enum": list(KINDS)}, "budget_tokens": _TOKENS},
            "required": ["type"]}),
    Field("enable_thinking", "bool", "(Qwen) sets enable_thinking for the chat template"),
    Field("think", "any", "(Ollama) true or false sets enable_thinking, and a level is reasoning_effort", read=_think,
        schema=any_of(BOOLEAN, STRING)),
))  # fmt: skip


def rewrite(given: ReadableBody, names: Collection[str]) -> ReadableBody:
    """Converts the fields in a body to those of this server. Raises BadRequest for a wrong value."""
    values = read(FIELDS, given.body)
    body: Json = {name: value for name, value in given.body.items() if name not in FIELDS.places}
    if EFFORT not in names:
        unused = [name for name in FIELDS.places if values[name] is not None]
        idle = [f"{name} has no effect: this endpoint uses no chat template" for name in unused]
        return replace(given, body=body, notices=(*given.notices, *idle))
    reasoning, thinking, think = values["reasoning"] or {}, values["thinking"] or {}, values["think"]
    kwargs, kind = body.get(KWARGS), thinking.get("type")
    notices: list[str] = []
    effort = _chosen(
        (EFFORT, body.get(EFFORT)),
        ("reasoning.effort", reasoning.get("effort")),
        ("think", think if isinstance(think, str) else None),
        notices=notices,
    )
    budget = _chosen(
        (BUDGET, body.get(BUDGET)),
        ("reasoning.max_tokens", reasoning.get("max_tokens")),
        ("thinking.budget_tokens", thinking.get("budget_tokens")),
        notices=notices,
    )
    shown = _chosen(
        (SHOWN, body.get(SHOWN)),
        ("reasoning.exclude", False if reasoning.get("exclude") else None),
        notices=notices,
    )
    switch = _chosen(
        (f"{KWARGS}.{SWITCH}", kwargs.get(SWITCH) if isinstance(kwargs, dict) else None),
        (SWITCH, values[SWITCH]),
        ("think", think if isinstance(think, bool) else None),
        ("thinking.type", None if kind not in ("enabled", "disabled") else kind == "enabled"),
        ("reasoning.enabled", reasoning.get("enabled")),
        notices=notices,
    )
    if effort and switch and isinstance(effort.value, str) and (effort.value != "none") != switch.value:
        notices.append(f"{effort.name} does not turn reasoning on or off: {switch.name} has precedence")
    found = [(name, one) for name, one in ((EFFORT, effort), (BUDGET, budget), (SHOWN, shown)) if one]
    body |= {name: one.value for name, one in found}
    if switch and (kwargs is None or isinstance(kwargs, dict)):
        body[KWARGS] = {**(kwargs or {}), SWITCH: switch.value}
    sent_as = (*given.sent_as, *((name, one.name) for name, one in found if one.name != name))
    return replace(given, body=body, notices=(*given.notices, *notices), sent_as=sent_as)


class _Choice(NamedTuple):
    """A value of a setting that has several names."""

    name: str
    """The name under which it is in the body."""
    value: Any
    """The value; None if it is not given."""


def _chosen(*rows: tuple[str, Any], notices: list[str]) -> _Choice | None:
    """Returns the first value that is given, or None; adds a warning for each other value that differs from it."""
    found = [_Choice(*row) for row in rows if row[1] is not None]
    if not found:
        return None
    first, *others = found
    notices += [f"{one.name} has no effect: {first.name} has precedence" for one in others if one.value != first.value]
    return first
