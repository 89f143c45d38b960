"""Declares how model families write an answer around values: tool calls, reasoning, headers; the inverse of their
parsers.

Each tool parser has a CallForm, and the tests compare it with the parser. What a form cannot write (a name with a blank
in XML) is CannotEnforce. Knows no families, no requests and no library.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from ..types import Json
from . import formats
from .schema import Schema


class CannotEnforce(Exception):
    """The family cannot write such a call, or not in a way that a grammar can describe."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that may be called."""

    name: str
    """The name of the function."""
    parameters: Schema
    """The schema of the object with its arguments."""
    ignored: set[str]
    """The keywords of that schema that are not imposed."""


CallWriter = Callable[[Tool], Json]
"""A call as a tag (formats.tag)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """The form of a model's calls: one after another, with fixed texts around and between them."""

    one: CallWriter
    """Writes one call."""
    before: str = ""
    """The text before all calls."""
    between: str = ""
    """The text between two calls."""
    after: str = ""
    """The text behind all calls."""
    trigger: str = ""
    """The text that begins a call which the model makes by itself, a prefix of `before` or of every call; "" if a call
    cannot be told from text."""
    alone: bool = False
    """Whether a message holds one call only."""
    single: bool = False
    """Whether an answer has one call where the client does not say that several are wanted."""
    forced: str = ""
    """The text before `before` where no other text may stand between the reasoning and a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningForm:
    """The form of a model's reasoning."""

    start: str
    """The text before the reasoning."""
    end: str
    """The text behind it."""
    opened: Callable[[str], bool]
    """Tells whether a prompt with this end leaves reasoning open."""
    after: str = ""
    """How the next message begins in a format of messages, where an answer or a call needs one of its own; empty where
    they follow the reasoning as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputForm:
    """The form of a model's whole answer; text.parsers.output_form() puts the parts together."""

    tool_parser: str | None = None
    """The name of its tool parser, for notices; None: there is none."""
    unparsed: str = ""
    """Why there is none although the model has one."""
    calls: CallForm | None = None
    """How it writes calls; None: there is no parser, or no grammar for its format."""
    reasoning: ReasoningForm | None = None
    """How it writes reasoning; None: there is no parser, or no grammar for its format."""
    answer_header: str = ""
    """What the model writes before the content of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarContext:
    """The model and the prompt that a grammar is for."""

    form: OutputForm
    """The form of the model's answers."""
    prompt_tail: str
    """The end of the prompt, with its markup."""
    tools: tuple[Json, ...]
    """The tools that may be called."""
    parallel: bool | None = None
    """Whether an answer may have several calls; None: where the model's form has several."""
    template_opens_reasoning: bool = False
    """Whether a prompt that does not end inside reasoning asks for none."""


def in_json(
    name_key: str = "name", arguments_key: str = "arguments", around: tuple[str, str] = ("", ""), style: str = "json"
) -> CallWriter:
    """Returns the writer of calls that are JSON objects.

    Args:
        name_key: The key of the function's name.
        arguments_key: The key of its arguments.
        around: What stands before and after the object.
        style: The notation of the arguments.
    """

    def write(tool: Tool) -> Json:
        head = f'{around[0]}{{"{name_key}": {json.dumps(tool.name, ensure_ascii=False)}, "{arguments_key}": '
        return formats.tag(head, formats.json_value(tool.parameters, style), "}" + around[1])

    return write
