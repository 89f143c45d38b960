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
from . import tool_choice
from .ebnf import Ebnf, literal, optional, until
from .json_schema import WIDE, Values
from .output_form import OutputForm
from .regex import NotSupported, pattern
from .sentencepiece import rewritten, said
from .tool_calls import CannotForce

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
    """What to submit ("" is nothing), and what the client should know was not imposed."""

    tag: str = ""
    notices: list[str] = field(default_factory=list)


def build(guide: OutputConstraint, context: GrammarContext) -> Constraint:
    """The grammar. Raises GrammarInvalid and GrammarTooComplex for the format; tools end in notices."""
    try:
        return _Builder(guide, context).build()
    except RecursionError:
        raise GrammarTooComplex("The schema leads round in a circle or is nested too deep", param=guide.param) from None
    except BadRequest as error:
        error.param = error.param or guide.param
        raise


def size(guide: OutputConstraint, offered: Sequence[Json]) -> int:
    """Bytes of the schemas that `build` would read."""
    return len(orjson.dumps([guide.format, offered if guide.calls or guide.format is not None else None]))


def relaxed(
    guide: OutputConstraint, context: GrammarContext, error: BadRequest
) -> tuple[OutputConstraint, GrammarContext, str]:
    """What to try instead, and what the client should know then. Raises the error if it is not to be dropped.

    A format that is wrong is not imposed, as OVMS does; one that is too much to compile is an error.
    """
    if guide.format is not None:
        if guide.strict or isinstance(error, GrammarTooComplex):
            raise error
        return replace(guide, format=None), context, f"{guide.param} was not imposed: {error.message}"
    if any(tool["function"].get("parameters") != tool_choice.ANY_OBJECT for tool in context.tools):
        loose = tuple(
            {**tool, "function": {**tool["function"], "parameters": tool_choice.ANY_OBJECT}} for tool in context.tools
        )
        return guide, replace(context, tools=loose), f"the schemas of the tools are not imposed: {error.message}"
    if guide.calls == "required":
        raise error
    return replace(guide, calls=""), context, f"tool calls are not held to their schemas: {error.message}"


class _Builder:
    def __init__(self, guide: OutputConstraint, context: GrammarContext) -> None:
        self.guide = guide
        self.context = context
        self.ebnf = Ebnf()
        self.notices: list[str] = []

    def build(self) -> Constraint:
        calls = self._calls()
        if calls is None and self.guide.format is None:
            return Constraint("", self.notices)
        before = self._reasoning()
        if before and calls is not None and not self._header:
            calls = self.ebnf.rule("calls_after", f"{BLANKS} {calls}")
        content = self._content() if self.guide.format is not None and self.guide.calls != "required" else None
        if content is not None and not isinstance(content, str):
            return Constraint(_tag(self._around(before, calls, content)), self.notices)
        answer = self.ebnf.choice([part for part in (calls, content) if part is not None])
        return Constraint(_tag(self._grammar(self.ebnf, f"{before} {answer}".strip())), self.notices)

    # --- calls

    def _calls(self) -> str | None:
        guide, context = self.guide, self.context
        if not context.tools or (not guide.calls and guide.format is None):
            return None
        try:
            if guide.calls == "shaped" and guide.format is None:
                return tool_choice.optional_calls(self.ebnf, context.form, context.tools, self.notices)
            return tool_choice.calls(
                self.ebnf, context.form, context.tools, parallel=guide.parallel, notices=self.notices
            )
        except CannotForce as error:
            if guide.calls:
                self.notices.append(f"tool calls are not enforced: {error}")
            else:
                self.notices.append(f"with {guide.param} no tool can be called: {error}")
            return None

    # --- reasoning

    def _reasoning(self) -> str:
        """What may or must come before the answer; "" if nothing."""
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
        """An expression, or a format that is XGrammar's to compile."""
        form = self.guide.format
        if form is not None and form.get("type") == "json_schema":
            return self.ebnf.rule("content", f"{self._header} {self._json(form, self.ebnf)}".strip())
        found: Json = self._translated(form)
        return found

    def _json(self, form: Json, ebnf: Ebnf) -> str:
        schema = form.get("json_schema")
        if not isinstance(schema, (dict, bool)):
            raise GrammarInvalid("json_schema is not an object")
        values = Values(ebnf, schema, WIDE)
        expression = values.value(schema)
        if values.ignored:
            self.notices.append(f"not imposed in the schema of {self.guide.param}: {', '.join(sorted(values.ignored))}")
        return expression

    def _translated(self, form: Any, depth: int = 0) -> Any:
        """A format with our grammars in place of the schemas in it."""
        if depth > MAX_DEPTH:
            raise GrammarTooComplex("The format is nested too deep")
        if isinstance(form, list):
            return [self._translated(part, depth + 1) for part in form]
        if not isinstance(form, dict):
            return form
        if form.get("type") == "json_schema":
            ebnf = Ebnf()
            return self._grammar(ebnf, self._json(form, ebnf))
        if (own := self._own(form)) is not None:
            return own
        if self.context.sentencepiece:
            form = _in_token_text(form)
        nested = ("elements", "content", "tags")
        return {key: self._translated(part, depth + 1) if key in nested else part for key, part in form.items()}

    def _own(self, form: Json) -> Json | None:
        """A choice of texts or a regular expression as a grammar of ours, which XGrammar compiles soundly."""
        ebnf = Ebnf()
        texts = _texts(form)
        if texts is not None:
            return self._grammar(ebnf, ebnf.words(texts))
        if form.get("type") == "regex" and isinstance(form.get("pattern"), str):
            try:
                return self._grammar(ebnf, pattern(form["pattern"], ebnf, plain=True))
            except NotSupported:
                return None  # the engine says what is wrong, or can do more
        return None

    def _around(self, before: str, calls: str | None, content: Json) -> Json:
        if calls is not None:
            content = {"type": "or", "elements": [self._grammar(self.ebnf, calls), content]}
        start = f"{before} {self._header}".strip()
        if not start:
            return content
        return {"type": "sequence", "elements": [self._grammar(self.ebnf, start), content]}

    def _grammar(self, ebnf: Ebnf, root: str) -> Json:
        text = ebnf.text(root)
        return {"type": "grammar", "grammar": rewritten(text, ours=True) if self.context.sentencepiece else text}


def _texts(form: Json) -> list[str] | None:
    """The texts of a format that is a choice of constant strings."""
    parts = form.get("elements")
    if form.get("type") != "or" or not isinstance(parts, list) or not parts:
        return None
    texts = [part.get("value") if isinstance(part, dict) else None for part in parts]
    constant = all(isinstance(part, dict) and part.get("type") == "const_string" for part in parts)
    return [t for t in texts if isinstance(t, str) and t] if constant and all(texts) else None


def _in_token_text(form: Json) -> Json:
    """A client's format with its own texts as a SentencePiece model's tokens say them."""
    kind = form.get("type")
    changed = {key: said(form[key]) for key in ("value", "begin", "end") if isinstance(form.get(key), str)}
    if kind == "grammar" and isinstance(form.get("grammar"), str):
        changed["grammar"] = rewritten(form["grammar"], ours=False)
    return {**form, **changed}


def _tag(form: Json) -> str:
    return json.dumps({"type": "structural_tag", "format": form}, ensure_ascii=False)


__all__: Sequence[str] = ("Constraint", "GrammarContext", "build")
