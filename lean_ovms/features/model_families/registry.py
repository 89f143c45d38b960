"""The registry of families, which detects a model's family by its chat template and makes parsers.

Each family has a `ParserRow`, in this feature or in another one. The module of a family is imported for the first model
that needs it; its row has what is known without the module.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from ...composition import Composition, compose
from ...config import Config
from ...errors import StartError
from ...manifest import ParserRow, named
from ...models.chat_format import AnswerFormat
from ...types import Json, OutputParams
from .base import CombinedParser, ModelFamily, Syntax
from .feature import NONE, ParserOptions

if TYPE_CHECKING:
    from ...grammar.call_syntax import OutputForm

GENERIC = "generic"
"""The tool parser of a chat model whose template shows none."""


class ParserRegistry:
    """The parsers of a server."""

    def __init__(self, rows: Sequence[ParserRow]) -> None:
        """Keeps the rows of the families. Raises StartError for two families with the same name."""
        self.rows = {row.name: row for row in rows}
        if len(self.rows) < len(rows):
            twice = next(row.name for row in rows if self.rows[row.name] is not row)
            raise StartError(f"the parser {twice} is declared twice")
        self._families: dict[str | None, ModelFamily] = {None: ModelFamily()}
        self._forms: dict[tuple[str | None, str | None], OutputForm] = {}

    @cached_property
    def tool_names(self) -> tuple[str, ...]:
        """The names of the tool parsers, sorted."""
        return tuple(sorted(row.name for row in self.rows.values() if row.tools))

    @cached_property
    def reasoning_names(self) -> tuple[str, ...]:
        """The names of the reasoning parsers, sorted."""
        return tuple(sorted(row.name for row in self.rows.values() if row.reasoning))

    @cached_property
    def rules(self) -> tuple[ParserRow, ...]:
        """The families that can be detected by chat templates, in the order in which they are tried."""
        return tuple(sorted((row for row in self.rows.values() if row.marks), key=lambda row: row.rank))

    def detect(self, template: str) -> tuple[str | None, str | None]:
        """Returns the names of the tool parser and the reasoning parser that fit a chat template, each or None."""
        for row in self.rules:
            if any(all(mark in template for mark in group) for group in row.marks):
                thinks = not row.reasoner_marks or any(mark in template for mark in row.reasoner_marks)
                return row.name if row.tools else None, (row.reasoner or None) if thinks else None
        return None, None

    def load(self, name: str | None) -> ModelFamily:
        """Imports and returns the named family, or an empty one for None. Raises ValueError with the list of names."""
        found = self._families.get(name)
        if found is None:
            row = self.rows.get(name or "")
            if row is None:
                raise ValueError(f"unknown parser {name!r}; the parsers are {', '.join(sorted(self.rows))}")
            found = self._families[name] = named(row.package, row.family)
        return found

    def output_form(self, tool: str | None, reasoning: str | None, prompt_tail: str = "") -> OutputForm:
        """Returns the form of answers of a model with these parsers, for grammars.

        Args:
            tool: The name of its tool parser, or None.
            reasoning: The name of its reasoning parser, or None.
            prompt_tail: The end of the prompt, which shows how some families' checkpoints spell their tags.

        Raises:
            ValueError: A name is unknown.
        """
        form = self._forms.get((tool, reasoning))
        if form is None:
            form = self._forms[tool, reasoning] = self._output_form(tool, reasoning)
        for name in dict.fromkeys((tool, reasoning)):
            adapted = self.load(name).adapted
            form = adapted(form, prompt_tail) if adapted else form
        return form

    def _output_form(self, tool: str | None, reasoning: str | None) -> OutputForm:
        from ...grammar.call_syntax import OutputForm  # late, because only requests with tools or a grammar need it

        family, thinking = self.load(tool), self.load(reasoning).thinking
        headers = [part.answer_header for part in (thinking, family.tools) if part is not None]
        return OutputForm(
            tool_parser=tool,
            calls=family.form,
            reasoning=thinking.reasoning_form() if thinking is not None else None,
            answer_header=next(filter(None, headers), ""),
        )

    def opens_reasoning(self, reasoning: str | None, prompt_tail: str) -> bool:
        """Returns whether a prompt with this end leaves reasoning open, for a reasoning parser."""
        thinking = self.load(reasoning).thinking
        return thinking is not None and thinking.between_tags and thinking.opened(prompt_tail)

    def make(
        self, tool: str | None, reasoning: str | None, *, tools: Sequence[Json] = (), prompt_tail: str = ""
    ) -> CombinedParser:
        """Makes the parser of one choice.

        Args:
            tool: The name of the tool parser; None if calls are text.
            reasoning: The name of the reasoning parser; None if reasoning is text.
            tools: The tools that the client offers, in OpenAI's nested form. Without any, markup of calls is text.
            prompt_tail: The end of the prompt with its special tokens, which shows whether reasoning is open already. A
                few hundred characters are enough.

        Raises:
            ValueError: A name is unknown.
        """
        calls = self.load(tool).tools if tools else None
        thinking = self.load(reasoning).thinking
        parser = CombinedParser(tools, prompt_tail)
        syntaxes: list[Syntax] = []
        if calls is not None:
            syntaxes.append(calls(parser, tools=True, thinking=calls is thinking))
        if thinking is not None and thinking is not calls:
            syntaxes.append(thinking(parser, thinking=True))
        parser.configure(syntaxes)
        return parser


@cache
def registry(composition: Composition | None = None) -> ParserRegistry:
    """Returns the parsers of a server with these features, or with all features if `composition` is None."""
    return ParserRegistry((composition or compose()).parsers)


class FamilyAnswers(AnswerFormat):
    """The form and the parsing of answers of a model whose family is set by options or shown by its chat templates."""

    def __init__(self, config: Config, template: str, tool_template: str) -> None:
        """Chooses the parsers of a model.

        Args:
            config: The options of the model.
            template: The source of its chat template; "" if there is no chat.
            tool_template: The source of the template for requests with tools, if it is a different one.
        """
        self._parsers = registry(config.composition)
        tool, reasoning = self._parsers.detect(template)
        if tool_template:
            of_tools = self._parsers.detect(tool_template)
            tool, reasoning = of_tools[0] or tool, reasoning or of_tools[1]
        if template:
            tool = tool or GENERIC
        options = config.of(ParserOptions)
        self.tool_parser = _named(options.tool_parser or tool)
        self.reasoning_parser = _named(options.reasoning_parser or reasoning)
        self.unread = " (--tool_parser none)" if options.tool_parser else ""
        self.holds_calls = self.tool_parser == GENERIC

    def form(self, prompt_tail: str = "") -> OutputForm:
        return self._parsers.output_form(self.tool_parser, self.reasoning_parser, prompt_tail)

    def write_calls(self, calls: list[tuple[str, Any]]) -> str:
        from .call_text import WrittenCall, calls_text  # late, because most chats have no calls

        form = self._parsers.output_form(self.tool_parser or GENERIC, None)
        return calls_text(form.calls, [WrittenCall(*call) for call in calls])

    def opens_reasoning(self, prompt_tail: str) -> bool:
        return self._parsers.opens_reasoning(self.reasoning_parser, prompt_tail)

    def parser(self, output: OutputParams, prompt_tail: str) -> tuple[CombinedParser | None, tuple[str, ...]]:
        make = self._parsers.make
        tool = self.tool_parser if output.tools and output.parse_calls else None
        reasoning = self.reasoning_parser if output.parse_reasoning or tool == self.reasoning_parser else None
        parser = make(tool, reasoning, tools=output.tools, prompt_tail=prompt_tail) if tool or reasoning else None
        shown = [] if parser is None else [parser]
        if self.reasoning_parser and not reasoning:  # reasoning tags are text then
            shown.append(make(None, self.reasoning_parser, prompt_tail=prompt_tail))
        return parser, tuple(tag for one in shown for tag in one.tags)


def _named(parser: str | None) -> str | None:
    return None if parser == NONE else parser
