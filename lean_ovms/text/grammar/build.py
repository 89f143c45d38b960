"""From the structured output that a client asks for (types.OutputConstraint) to one grammar for the whole answer.

An answer is, in this order: reasoning, if the model has a reasoning parser; then calls, or content in the requested
format, or either. The result is a structural tag, XGrammar's JSON notation, for engine.protocol.Submit.constraint.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from ...errors import BadRequest, GrammarInvalid, GrammarTooComplex
from ...types import Json, OutputConstraint
from . import lark, tool_choice
from .ebnf import Ebnf, literal, optional, until
from .json_schema import WIDE, JsonValues
from .output_form import OutputForm
from .regex import NotSupported, pattern
from .sentencepiece import rewrite_grammar, to_token_text
from .tool_calls import CannotEnforce

MAX_DEPTH = 32
BLANKS = "[ \\n]{0,4}"
"""What models put between their reasoning and a call. Before content it would be part of the content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarContext:
    """The model and the prompt that a grammar is for. prompt_tail: the end of the prompt, with its markup.

    sentencepiece: grammars are matched against token text with "▁" for spaces (sentencepiece.py).
    template_opens_reasoning: a prompt that does not end inside reasoning asks for none.
    """

    form: OutputForm
    prompt_tail: str
    tools: tuple[Json, ...]
    sentencepiece: bool = False
    template_opens_reasoning: bool = False


@dataclass(slots=True)
class Constraint:
    """tag: the structural tag to submit; "" for none. notices: what is not enforced, for the client."""

    tag: str = ""
    notices: list[str] = field(default_factory=list)


def build(constraint: OutputConstraint, context: GrammarContext) -> Constraint:
    """The grammar. Raises GrammarInvalid and GrammarTooComplex for the format; for tools there is a notice instead."""
    try:
        return _Builder(constraint, context).build()
    except RecursionError:
        message = "The schema leads round in a circle or is nested too deep"
        raise GrammarTooComplex(message, param=constraint.param) from None
    except BadRequest as error:
        error.param = error.param or constraint.param
        raise


def size(constraint: OutputConstraint, offered: Sequence[Json]) -> int:
    """Bytes of the schemas that `build` would read."""
    used = offered if constraint.tool_calls or constraint.format is not None else None
    return len(orjson.dumps([constraint.format, used]))


def relax(
    constraint: OutputConstraint, context: GrammarContext, error: BadRequest
) -> tuple[OutputConstraint, GrammarContext, str]:
    """A weaker constraint to try after an error, and a notice for the client. Raises the error if there is none.

    An invalid format is not enforced, as in OVMS; one that is too large to compile is an error.
    """
    if constraint.format is not None:
        if constraint.strict or isinstance(error, GrammarTooComplex):
            raise error
        return replace(constraint, format=None), context, f"{constraint.param} was not imposed: {error.message}"
    if any(tool["function"].get("parameters") != tool_choice.ANY_OBJECT for tool in context.tools):
        loose = tuple(
            {**tool, "function": {**tool["function"], "parameters": tool_choice.ANY_OBJECT}} for tool in context.tools
        )
        return constraint, replace(context, tools=loose), f"the schemas of the tools are not imposed: {error.message}"
    if constraint.tool_calls == "required":
        raise error
    return replace(constraint, tool_calls=""), context, f"tool calls are not held to their schemas: {error.message}"


class _Builder:
    def __init__(self, constraint: OutputConstraint, context: GrammarContext) -> None:
        self.constraint = constraint
        self.context = context
        self.ebnf = Ebnf()
        self.notices: list[str] = []

    def build(self) -> Constraint:
        calls = self._calls()
        if calls is None and self.constraint.format is None:
            return Constraint("", self.notices)
        before = self._reasoning()
        if before and calls is not None and not self._header:
            calls = self.ebnf.rule("calls_after", f"{BLANKS} {calls}")
        formatted = self.constraint.format is not None and self.constraint.tool_calls != "required"
        content = self._content() if formatted else None
        if content is not None and not isinstance(content, str):
            return Constraint(_tag(self._assemble(before, calls, content)), self.notices)
        answer = self.ebnf.choice([part for part in (calls, content) if part is not None])
        return Constraint(_tag(self._grammar(self.ebnf, f"{before} {answer}".strip())), self.notices)

    # --- calls

    def _calls(self) -> str | None:
        constraint, context = self.constraint, self.context
        if not context.tools or (not constraint.tool_calls and constraint.format is None):
            return None
        try:
            if constraint.tool_calls == "schema" and constraint.format is None:
                return tool_choice.optional_calls(self.ebnf, context.form, context.tools, self.notices)
            return tool_choice.calls(
                self.ebnf, context.form, context.tools, parallel=constraint.parallel, notices=self.notices
            )
        except CannotEnforce as error:
            if constraint.tool_calls:
                self.notices.append(f"tool calls are not enforced: {error}")
            else:
                self.notices.append(f"with {constraint.param} no tool can be called: {error}")
            return None

    # --- reasoning

    def _reasoning(self) -> str:
        """What may or must stand before the answer; "" if nothing."""
        form, tail = self.context.form.reasoning, self.context.prompt_tail
        if form is None or (not form.after and tail.rstrip().endswith(form.end)):
            return ""
        rest = self.ebnf.rule("thought", until(form.end))
        if form.after:
            rest += f" {literal(form.after)}"
        if form.opened(tail):
            return rest
        if self.context.template_opens_reasoning:
            return ""
        return self.ebnf.rule("reasoning", optional(f"{literal(form.start)} {rest}"))

    @property
    def _header(self) -> str:
        """What stands before content."""
        header = self.context.form.answer_header
        return literal(header) if header else ""

    # --- content

    def _content(self) -> str | Json:
        """An expression, or a format for XGrammar to compile."""
        form = self.constraint.format
        if form is not None and form.get("type") == "json_schema":
            return self.ebnf.rule("content", f"{self._header} {self._json(form, self.ebnf)}".strip())
        found: Json = self._translate(form)
        return found

    def _json(self, form: Json, ebnf: Ebnf) -> str:
        schema = form.get("json_schema")
        if not isinstance(schema, (dict, bool)):
            raise GrammarInvalid("json_schema is not an object")
        values = JsonValues(ebnf, schema, WIDE)
        expression = values.value(schema)
        if values.ignored:
            ignored = ", ".join(sorted(values.ignored))
            self.notices.append(f"not imposed in the schema of {self.constraint.param}: {ignored}")
        return expression

    def _translate(self, form: Any, depth: int = 0) -> Any:
        """A format with the schemas in it replaced by grammars."""
        if depth > MAX_DEPTH:
            raise GrammarTooComplex("The format is nested too deep")
        if isinstance(form, list):
            return [self._translate(part, depth + 1) for part in form]
        if not isinstance(form, dict):
            return form
        if form.get("type") == "json_schema":
            ebnf = Ebnf()
            return self._grammar(ebnf, self._json(form, ebnf))
        if (own := self._as_grammar(form)) is not None:
            return own
        if self.context.sentencepiece:
            form = _in_token_text(form)
        nested = ("elements", "content", "tags")
        return {key: self._translate(part, depth + 1) if key in nested else part for key, part in form.items()}

    def _as_grammar(self, form: Json) -> Json | None:
        """A choice of texts, a regular expression or Lark's notation as a grammar that XGrammar compiles correctly."""
        ebnf = Ebnf()
        texts = _texts(form)
        if texts is not None:
            return self._grammar(ebnf, ebnf.words(texts))
        if form.get("type") == "regex" and isinstance(form.get("pattern"), str):
            try:
                return self._grammar(ebnf, pattern(form["pattern"], ebnf, plain=True))
            except NotSupported:
                return None  # XGrammar reports what is wrong, or supports more
        if form.get("type") == "grammar" and isinstance(form.get("grammar"), str) and lark.is_lark(form["grammar"]):
            try:
                return self._grammar(ebnf, lark.root(form["grammar"], ebnf))
            except NotSupported as error:
                raise GrammarInvalid(f"The grammar cannot be read: {error}") from None
        return None

    def _assemble(self, before: str, calls: str | None, content: Json) -> Json:
        if calls is not None:
            content = {"type": "or", "elements": [self._grammar(self.ebnf, calls), content]}
        start = f"{before} {self._header}".strip()
        if not start:
            return content
        return {"type": "sequence", "elements": [self._grammar(self.ebnf, start), content]}

    def _grammar(self, ebnf: Ebnf, root: str) -> Json:
        text = ebnf.text(root)
        return {"type": "grammar", "grammar": rewrite_grammar(text, ours=True) if self.context.sentencepiece else text}


def _texts(form: Json) -> list[str] | None:
    """The texts of a format that is a choice of constant strings."""
    parts = form.get("elements")
    if form.get("type") != "or" or not isinstance(parts, list) or not parts:
        return None
    texts = [part.get("value") if isinstance(part, dict) else None for part in parts]
    constant = all(isinstance(part, dict) and part.get("type") == "const_string" for part in parts)
    return [t for t in texts if isinstance(t, str) and t] if constant and all(texts) else None


def _in_token_text(form: Json) -> Json:
    """A client's format with its texts as they are in a SentencePiece model's tokens."""
    kind = form.get("type")
    changed = {key: to_token_text(form[key]) for key in ("value", "begin", "end") if isinstance(form.get(key), str)}
    if kind == "grammar" and isinstance(form.get("grammar"), str):
        changed["grammar"] = rewrite_grammar(form["grammar"], ours=False)
    return {**form, **changed}


def _tag(form: Json) -> str:
    return json.dumps({"type": "structural_tag", "format": form}, ensure_ascii=False)


__all__: Sequence[str] = ("Constraint", "GrammarContext", "build")
