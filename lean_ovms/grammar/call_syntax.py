"""Declares how model families write tool calls, reasoning and headers, which is the inverse of their parsers.

Each tool parser has a CallForm, which the tests compare with the parser. A form raises CannotEnforce for what it cannot
write, such as a name with a blank in XML. This module knows no specific family and no grammar library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..types import Json
from .schema import Schema


class CannotEnforce(Exception):
    """Raised if a family cannot write a call, or not in a form that a grammar can describe."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that may be called."""

    name: str
    """The name of the function."""
    parameters: Schema
    """The JSON Schema of the arguments, an object."""
    ignored: set[str]
    """The keywords of that schema that a grammar does not enforce."""


CallWriter = Callable[[Tool], Json]
"""A function that returns the format of a call of a tool, a tag (formats.tag)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """The form of a model's tool calls: one after another, with fixed texts around and between them."""

    one: CallWriter
    """Returns the format of one call."""
    before: str = ""
    """The text before all calls."""
    between: str = ""
    """The text between two calls."""
    after: str = ""
    """The text after all calls."""
    trigger: str = ""
    """The text by which a call that the model decides to make is recognized, a prefix of `before` or of every call; ""
    if calls cannot be distinguished from text."""
    alone: bool = False
    """Whether a message with a call contains nothing else."""
    single: bool = False
    """Whether an answer has one call unless the client asks for several."""
    forced: str = ""
    """The text inserted before `before` if no other text may be between the reasoning and a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningForm:
    """The form of a model's reasoning."""

    start: str
    """The text before the reasoning."""
    end: str
    """The text after the reasoning."""
    opened: Callable[[str], bool]
    """Returns whether a prompt with this end leaves the reasoning open."""
    after: str = ""
    """The beginning of the next message, if an answer or call after the reasoning needs a new one; empty if not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputForm:
    """The form of a model's whole answer."""

    tool_parser: str | None = None
    """The name of the tool parser, for warnings; None for none."""
    unparsed: str = ""
    """The reason why there is no tool parser although the model could make calls."""
    calls: CallForm | None = None
    """The form of tool calls; None if there is no parser, or no grammar for its format."""
    reasoning: ReasoningForm | None = None
    """The form of the reasoning; None if there is no parser, or no grammar for its format."""
    answer_header: str = ""
    """The text that the model writes before the content of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarContext:
    """The dependencies of a grammar: the model's form of answers, the prompt and the tools."""

    form: OutputForm
    """The form of the model's answers."""
    prompt_tail: str
    """The end of the prompt, including markup."""
    tools: tuple[Json, ...]
    """The tools that may be called."""
    parallel: bool | None = None
    """Whether an answer may have several calls; None for the default of the model's form."""
    template_opens_reasoning: bool = False
    """Whether the template opens the reasoning in the prompt, so that any other prompt asks for none."""
