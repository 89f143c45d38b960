"""Builds a structural tag for the whole answer from the constraint that a client asks for (types.OutputConstraint).

An answer begins with reasoning, if the model has a reasoning parser. Then follow tool calls, or content in the
requested format, or either of them. The tag (formats.py) is sent to the engine, whose grammar library compiles it with
its schemas.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from ...errors import BadRequest, GrammarInvalid, GrammarRefused, GrammarTooComplex, SchemaInvalid
from ...grammar import formats
from ...grammar.call_syntax import CallForm, CannotEnforce, GrammarContext, OutputForm, Tool
from ...types import Json, OutputConstraint
from . import limits, schemas, validity
from .limits import GrammarBounds
from .schemas import ANY_OBJECT

MAX_DEPTH = 32
BLANKS = formats.regex("[ \\n]{0,4}")
"""The blanks that models write between their reasoning and a call. Before content they would be a part of it."""
MAX_CALLS = 32
"""The most calls in one answer, since a small model may not stop by itself."""
NOTHING: Mapping[str, str] = {}
OTHER_TEXT = formats.sequence(formats.regex("[^< \\n]"), formats.ANY_TEXT)
"""Text after required calls, which ends the answer (chat.tools.LimitedCalls)."""


@dataclass(slots=True)
class Constraint:
    """The constraint of an answer in the form that the engine takes."""

    tag: str = ""
    """The structural tag for the engine; "" if nothing is constrained."""
    notices: list[str] = field(default_factory=list)
    """Notices for the client about parts that are not enforced."""


def build(constraint: OutputConstraint, context: GrammarContext) -> Constraint:
    """Builds the structural tag of a constraint.

    Raises GrammarRefused for the format. For the schemas of tools there are notices instead.
    """
    try:
        return _Builder(constraint, context).build()
    except RecursionError:
        message = "The schema is recursive or nested too deeply"
        raise GrammarTooComplex(message, param=constraint.param) from None
    except BadRequest as error:
        error.param = error.param or constraint.param
        raise


def size(constraint: OutputConstraint, offered: Sequence[Json]) -> int:
    """Returns the size of the schemas that `build` would read, in bytes."""
    used = offered if constraint.tool_calls or constraint.format is not None else None
    return len(orjson.dumps([constraint.format, used]))


def subject(constraint: OutputConstraint) -> str:
    """Returns a phrase for notices that names the source of a constraint's schemas."""
    if constraint.format is None:
        return "the tools"
    return f"{constraint.param} and the tools" if constraint.tool_calls else constraint.param


def relax(
    constraint: OutputConstraint,
    context: GrammarContext,
    error: BadRequest,
    bounds: GrammarBounds,
    at_fault: Mapping[str, str] = NOTHING,
) -> tuple[OutputConstraint, GrammarContext, list[str]]:
    """Returns a weaker constraint to try after an error, its context, and notices for the client.

    Tools whose schemas are beyond the limits, or cannot be compiled, lose these, and the others keep theirs. An invalid
    format is not enforced, as in OVMS. A format that is too large to compile is an error.

    Args:
        constraint: The constraint that could not be built or compiled.
        context: The model and the prompt that it was built for.
        error: The error.
        bounds: The limits of a grammar.
        at_fault: The expressions of the structural tag that the grammar library refuses, as JSON, with the reasons.

    Raises:
        BadRequest: There is no weaker constraint; it is the given error.
    """
    if isinstance(error, SchemaInvalid):
        raise error
    if found := _beyond(constraint, context, bounds) or dict(_refused(at_fault, context)):
        notices = [
            f"the schema of the tool {context.tools[number]['function']['name']} is not enforced: {why}"
            for number, why in sorted(found.items())
        ]
        return constraint, _loosened(context, found), notices
    if constraint.format is not None:
        if constraint.strict or isinstance(error, GrammarTooComplex):
            raise error
        return replace(constraint, format=None), context, [f"{constraint.param} was not enforced: {error.message}"]
    if any(_has_schema(tool) for tool in context.tools):
        loosened = _loosened(context, range(len(context.tools)))
        return constraint, loosened, [f"the schemas of the tools are not enforced: {error.message}"]
    if constraint.tool_calls == "required":
        raise error
    return replace(constraint, tool_calls=""), context, [f"the schemas of tool calls are not enforced: {error.message}"]


def _beyond(constraint: OutputConstraint, context: GrammarContext, bounds: GrammarBounds) -> dict[int, str]:
    """Returns the numbers of the tools whose schemas are beyond a limit by themselves, each with the reason.

    If all schemas together are too large, these are the largest ones, without which the rest is small enough.
    """
    schemas = {number: tool for number, tool in enumerate(context.tools) if _has_schema(tool)}
    found: dict[int, str] = {}
    if (left := size(constraint, context.tools)) > bounds.bytes:
        sizes = {number: len(orjson.dumps(tool["function"].get("parameters"))) for number, tool in schemas.items()}
        for number in sorted(sizes, key=lambda number: -sizes[number]):
            if left <= bounds.bytes:
                break
            left -= sizes[number]
            found[number] = f"The schemas have more than {bounds.bytes} bytes"
        return found
    alone = OutputConstraint(tool_calls="required")
    for number, tool in schemas.items():
        try:
            if tag := build(alone, replace(context, tools=(tool,))).tag:
                limits.check(tag, bounds)
        except BadRequest as error:
            found[number] = error.message
    return found


def _refused(at_fault: Mapping[str, str], context: GrammarContext) -> Iterator[tuple[int, str]]:
    """Yields the numbers of the tools whose calls have an expression at fault, each with the reason."""
    alone = OutputConstraint(tool_calls="required")
    for number, tool in enumerate(context.tools if at_fault else ()):
        tag = build(alone, replace(context, tools=(tool,))).tag if _has_schema(tool) else ""
        reasons = [at_fault[text] for text in limits.expressions(orjson.loads(tag or "[]")) if text in at_fault]
        if reasons:
            yield number, reasons[0]


def _has_schema(tool: Json) -> bool:
    return bool(tool["function"].get("parameters") != ANY_OBJECT)


def _loosened(context: GrammarContext, numbers: Collection[int]) -> GrammarContext:
    """Returns a context in which the arguments of these tools may be any object."""
    tools = [
        {**tool, "function": {**tool["function"], "parameters": ANY_OBJECT}} if number in numbers else tool
        for number, tool in enumerate(context.tools)
    ]
    return replace(context, tools=tuple(tools))


class _Builder:
    def __init__(self, constraint: OutputConstraint, context: GrammarContext) -> None:
        self.constraint = constraint
        self.context = context
        self.notices: list[str] = []

    def build(self) -> Constraint:
        calls = self._calls()
        if calls is None and self.constraint.format is None:
            return Constraint("", self.notices)
        reasoning = self._reasoning()
        header = formats.text(self.context.form.answer_header)
        if calls is not None and reasoning and not self.context.form.answer_header:
            calls = formats.sequence(BLANKS, calls)
        content = None
        if self.constraint.format is not None and self.constraint.tool_calls != "required":
            content = formats.sequence(header, self._content(self.constraint.format))
        whole = formats.sequence(*reasoning, formats.either(calls, content))
        tag = json.dumps({"type": "structural_tag", "format": whole}, ensure_ascii=False)
        return Constraint(tag, self.notices)

    # --- reasoning

    def _reasoning(self) -> list[Json]:
        """Returns the formats of the reasoning and other text that may or must precede the answer."""
        form, tail = self.context.form.reasoning, self.context.prompt_tail
        if form is None or (not form.after and tail.rstrip().endswith(form.end)):
            return []
        after = formats.text(form.after)
        if form.opened(tail):
            return [formats.sequence(formats.until(form.end), after)]
        if self.context.template_opens_reasoning:
            return []
        return [formats.optional(formats.sequence(formats.tag(form.start, formats.ANY_TEXT, form.end), after))]

    # --- calls

    def _calls(self) -> Json | None:
        constraint, context = self.constraint, self.context
        if not context.tools or (not constraint.tool_calls and constraint.format is None):
            return None
        for function in (tool["function"] for tool in context.tools if constraint.checked):
            if function.get("strict") is True:
                what = f"the parameters of the tool {function['name'][:80]}"
                _check(function.get("parameters", True), what, "tools")
        try:
            form = _call_form(context.form)
            if constraint.tool_calls == "schema" and constraint.format is None:
                return self._optional_calls(form)
            calls, before = self._list(form, self._several(form)), form.forced + form.before
            return formats.tag(before, calls, form.after) if before or form.after else calls
        except CannotEnforce as error:
            if constraint.tool_calls:
                self.notices.append(f"tool calls are not enforced: {error}")
            else:
                self.notices.append(f"no tool can be called with {constraint.param}: {error}")
            return None

    def _optional_calls(self, form: CallForm) -> Json:
        """Returns a format of any text in which each trigger begins valid tool calls."""
        if not form.trigger:
            parser = self.context.form.tool_parser
            raise CannotEnforce(
                f"with the tool parser {parser}, the beginning of a call cannot be distinguished from text"
            )
        tags = [formats.tag(form.before, self._list(form, True), form.after)] if form.before else self._ones(form)
        ends = {"stop_after_first": True} if form.single and not self._several(form) else {}
        return {"type": "triggered_tags", "triggers": [form.trigger], "tags": tags, **ends}

    def _several(self, form: CallForm) -> bool:
        parallel = self.context.parallel
        return not form.single if parallel is None else parallel

    def _list(self, form: CallForm, several: bool) -> Json:
        ones = self._ones(form)
        if not several or form.alone:
            return formats.either(*ones)
        more = {"separator": form.between, "at_least_one": True, "most": MAX_CALLS}
        calls: Json = {"type": "tags_with_separator", "tags": ones, **more}
        if form.after or not form.between.isspace():
            return calls
        # Where nothing but another call may follow, a model that was not trained on these calls repeats the first.
        return formats.sequence(calls, formats.optional(formats.text(form.between)), formats.optional(OTHER_TEXT))

    def _ones(self, form: CallForm) -> list[Json]:
        return [self._one(form, tool["function"]) for tool in self.context.tools]

    def _one(self, form: CallForm, function: Json) -> Json:
        """Returns the format of a call of one tool; arguments may be any object if its schema cannot be enforced."""
        name = function["name"]
        try:
            tool = _tool(name, function.get("parameters"))
            call = form.one(tool)
        except (GrammarRefused, RecursionError) as error:
            reason = getattr(error, "message", "its references are circular")
            self.notices.append(f"the schema of the tool {name} is not enforced: {reason}")
            return form.one(_tool(name, ANY_OBJECT))
        if tool.ignored:
            self.notices.append(f"not enforced in the schema of the tool {name}: {', '.join(sorted(tool.ignored))}")
        return call

    # --- content

    def _content(self, form: Any, depth: int = 0) -> Any:
        """Returns a client's format, with its schemas prepared for a grammar library."""
        if depth > MAX_DEPTH:
            raise GrammarTooComplex("The format is nested too deeply")
        if not isinstance(form, dict):
            raise GrammarInvalid("a part of the format is not an object")
        done = {key: self._inside(part, depth + 1) if key in limits.NESTED else part for key, part in form.items()}
        if form.get("type") == "json_schema":
            if not isinstance(form.get("json_schema"), dict | bool):
                raise GrammarInvalid("json_schema is not an object")
            if not isinstance(form.get("style", ""), str):
                raise GrammarInvalid("style of a JSON schema is not a string")
            if self.constraint.checked:
                _check(form["json_schema"], f"the schema of {self.constraint.param}", self.constraint.param)
            done["json_schema"], ignored = schemas.closed(form["json_schema"])
            if ignored:
                self.notices.append(f"not enforced in the schema of {self.constraint.param}: {', '.join(ignored)}")
        return done

    def _inside(self, forms: Any, depth: int) -> Any:
        if not isinstance(forms, list):
            return self._content(forms, depth)
        return [self._content(one, depth + 1) for one in forms]


def _check(found: Any, what: str, param: str) -> None:
    """Raises SchemaInvalid, with the path of the mistake, for a wrong schema; GrammarTooComplex for a large one."""
    try:
        validity.check(found)
    except SchemaInvalid as error:
        raise SchemaInvalid(f"{what} is invalid: {error.message}", param=param) from None


def _call_form(form: OutputForm) -> CallForm:
    """Returns the syntax of the model's tool calls. Raises CannotEnforce if it is not known."""
    if form.tool_parser is None:
        raise CannotEnforce(form.unparsed or "the model has no tool parser")
    if form.calls is None:
        raise CannotEnforce(f"the tool parser {form.tool_parser} has no grammar")
    return form.calls


def _tool(name: str, parameters: Any) -> Tool:
    """Returns a tool with the schema of its arguments, prepared for a grammar library.

    Without parameters the arguments are an empty object, and parameters without a type describe an object. Raises
    GrammarRefused.
    """
    if parameters in (None, {}, True):
        return Tool(name, {"type": "object", "properties": {}, "additionalProperties": False}, set())
    if isinstance(parameters, dict) and not {"type", "$ref", "anyOf", "oneOf", "allOf"} & set(parameters):
        parameters = {"type": "object", **parameters}
    schema, ignored = schemas.closed(parameters)
    return Tool(name, schema, set(ignored))
