"""The registry of parser families: what can be chosen as a parser, what a chat template shows, and what is made of it.

Features have the families, each a `ParserRow`. The module of a family is imported by the first model that needs it;
its row has what is known without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING

from ...composition import Composition, compose
from ...errors import StartError
from ...manifest import ParserRow, named
from ...types import Json
from .base import CombinedParser, ModelFamily, Parser, PlainText, Syntax

if TYPE_CHECKING:
    from ...grammar.call_syntax import OutputForm

GENERIC = "generic"
"""The tool parser of a chat model whose template shows none, where a feature has it."""


class ParserRegistry:
    """The parsers of a server."""

    def __init__(self, rows: Sequence[ParserRow]) -> None:
        """Raises StartError for two families with the same name."""
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

    @property
    def usual(self) -> str | None:
        """The tool parser of a chat model whose template shows none; None: there is none."""
        return GENERIC if GENERIC in self.rows else None

    @cached_property
    def rules(self) -> tuple[ParserRow, ...]:
        """The families that chat templates show, in the order in which they are tried."""
        return tuple(sorted((row for row in self.rows.values() if row.marks), key=lambda row: row.rank))

    def detect(self, template: str) -> tuple[str | None, str | None]:
        """Returns the (tool parser, reasoning parser) that a chat template shows; None where it shows none."""
        for row in self.rules:
            if any(all(mark in template for mark in group) for group in row.marks):
                thinks = not row.reasoner_marks or any(mark in template for mark in row.reasoner_marks)
                return row.name if row.tools else None, (row.reasoner or None) if thinks else None
        return None, None

    def load(self, name: str | None) -> ModelFamily:
        """Returns the family of that name, an empty one for None. Raises ValueError with the list of names."""
        found = self._families.get(name)
        if found is None:
            row = self.rows.get(name or "")
            if row is None:
                raise ValueError(f"unknown parser {name!r}; known are {', '.join(sorted(self.rows))}")
            found = self._families[name] = named(row.package, row.family)
        return found

    def output_form(self, tool: str | None, reasoning: str | None, prompt_tail: str = "") -> OutputForm:
        """Returns how a model with these parsers writes an answer.

        Args:
            tool: The name of its tool parser, or None.
            reasoning: The name of its reasoning parser, or None.
            prompt_tail: The end of the prompt, which shows how some families' checkpoints spell their tags.

        Raises:
            ValueError: A name is not known.
        """
        form = self._forms.get((tool, reasoning))
        if form is None:
            form = self._forms[tool, reasoning] = self._output_form(tool, reasoning)
        for name in dict.fromkeys((tool, reasoning)):
            adapted = self.load(name).adapted
            form = adapted(form, prompt_tail) if adapted else form
        return form

    def _output_form(self, tool: str | None, reasoning: str | None) -> OutputForm:
        from ...grammar.call_syntax import OutputForm  # late: for requests with tools or a grammar

        family, thinking = self.load(tool), self.load(reasoning).thinking
        headers = [part.answer_header for part in (thinking, family.tools) if part is not None]
        return OutputForm(
            tool_parser=tool,
            calls=family.form,
            reasoning=thinking.reasoning_form() if thinking is not None else None,
            answer_header=next(filter(None, headers), ""),
        )

    def opens_reasoning(self, reasoning: str | None, prompt_tail: str) -> bool:
        """Tells whether a prompt with this end leaves a block of reasoning open, for that reasoning parser."""
        thinking = self.load(reasoning).thinking
        return thinking is not None and thinking.between_tags and thinking.opened(prompt_tail)

    def make(
        self, tool: str | None, reasoning: str | None, *, tools: Sequence[Json] = (), prompt_tail: str = ""
    ) -> Parser:
        """Builds the parser of one choice.

        Args:
            tool: The name of the tool parser; None: calls are text.
            reasoning: The name of the reasoning parser; None: reasoning is text.
            tools: The tools that the client offers, in OpenAI's nested form; without any, the markup of calls is text.
            prompt_tail: The end of the prompt with its special tokens, by which it is seen whether reasoning is open
                already; a few hundred characters are enough.

        Raises:
            ValueError: There is no parser of such a name.
        """
        calls = self.load(tool).tools if tools else None
        thinking = self.load(reasoning).thinking
        if calls is None and thinking is None:
            return PlainText()
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
    """Returns the parsers of a server with these features, by default with all of them."""
    return ParserRegistry((composition or compose()).parsers)
