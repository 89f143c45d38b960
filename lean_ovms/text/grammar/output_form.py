"""How a model writes a whole answer, as far as a grammar must know it: its tool calls, its reasoning, its headers.

Each part is declared by the parser of the model's family; text.parsers.output_form() puts them together. Knows no
families and no requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .tool_calls import CallForm


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningForm:
    """start, end: around the reasoning. opened: whether a prompt with this end leaves reasoning open.

    after: how the next message begins in a format of messages, where an answer or a call needs one of its own; "" where
    they follow the reasoning as they are.
    """

    start: str
    end: str
    opened: Callable[[str], bool]
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputForm:
    """tool_parser: its name, for notices; unparsed: why there is none although the model has one.

    calls, reasoning: None if there is no parser, or no grammar for its format.
    answer_header: what the model writes before the content of an answer.
    """

    tool_parser: str | None = None
    unparsed: str = ""
    calls: CallForm | None = None
    reasoning: ReasoningForm | None = None
    answer_header: str = ""
