"""From the tools of a request and its tool_choice to the part of a grammar that makes the model call them.

How a family writes a call is its CallForm; build writes what comes before calls (reasoning). A schema that cannot be
enforced becomes "any object", so that one bad tool does not disable the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import GrammarInvalid, GrammarTooComplex
from ...types import Json
from .ebnf import Ebnf, dispatch, literal, repeat, without_prefix
from .output_form import OutputForm
from .tool_calls import CallForm, CannotEnforce, Tool

MAX_CALLS = 32
"""Most calls in one answer: a small model may not stop by itself."""
ANY_OBJECT = {"type": "object", "additionalProperties": True}


def _call_form(form: OutputForm) -> CallForm:
    """How the model writes calls. Raises CannotEnforce."""
    if form.tool_parser is None:
        raise CannotEnforce(form.unparsed or "the model has no tool parser")
    if form.calls is None:
        raise CannotEnforce(f"the tool parser {form.tool_parser} has no grammar")
    return form.calls


def calls(ebnf: Ebnf, form: OutputForm, tools: Sequence[Json], *, parallel: bool, notices: list[str]) -> str:
    """An expression for at least one call, and several if parallel and the family can.

    notices gets a line for everything that is not enforced. Raises CannotEnforce and GrammarTooComplex.
    """
    kind = _call_form(form)
    return ebnf.rule(
        "calls", _whole(ebnf, kind, kind.forced + kind.before, _ones(ebnf, kind, tools, notices), parallel)
    )


def optional_calls(ebnf: Ebnf, form: OutputForm, tools: Sequence[Json], notices: list[str]) -> str:
    """An expression for any text in which each trigger begins a valid call. Raises as `calls`."""
    kind = _call_form(form)
    if not kind.trigger:
        raise CannotEnforce(f"with the tool parser {form.tool_parser} the beginning of a call cannot be told from text")
    ones = _ones(ebnf, kind, tools, notices)
    if kind.before:
        rest = _whole(ebnf, kind, kind.before.removeprefix(kind.trigger), ones, True)
    else:
        rest = ebnf.choice([without_prefix(one, kind.trigger) for one in ones])
    return ebnf.rule("answer", dispatch(kind.trigger, ebnf.rule("call", rest)))


def _whole(ebnf: Ebnf, kind: CallForm, before: str, ones: list[str], parallel: bool) -> str:
    one = ebnf.rule("call", ebnf.choice(ones))
    between = f"{literal(kind.between)} " if kind.between else ""
    more = "" if kind.alone or not parallel else repeat(f"{between}{one}", 0, MAX_CALLS - 1)
    parts = [literal(before) if before else "", one, more, literal(kind.after) if kind.after else ""]
    return " ".join(part for part in parts if part)


def _ones(ebnf: Ebnf, kind: CallForm, tools: Sequence[Json], notices: list[str]) -> list[str]:
    return [_one(ebnf, kind, tool, notices) for tool in tools]


def _one(ebnf: Ebnf, kind: CallForm, tool: Json, notices: list[str]) -> str:
    function = tool["function"]
    name, parameters = function["name"], function.get("parameters")
    try:
        asked = Tool(name, parameters, set())
        expression = kind.one(ebnf, asked)
    except (GrammarInvalid, GrammarTooComplex, RecursionError) as error:
        reason = getattr(error, "message", "references lead round in a circle")
        notices.append(f"the schema of the tool {name} is not imposed: {reason}")
        return kind.one(ebnf, Tool(name, ANY_OBJECT, set()))
    if asked.ignored:
        notices.append(f"not imposed in the schema of the tool {name}: {', '.join(sorted(asked.ignored))}")
    return expression
