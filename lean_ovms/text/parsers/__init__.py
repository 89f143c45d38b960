"""The registry of parser families: the names of families.json, each with the module here whose `FAMILIES` has it.

A family of a known shape is one row of json_families, xml_families, python_families or think_tags; any other has a file
of its own. A module is imported by the first model that needs it; families.json has what is known without it: what a
family reads, and by which marks its chat templates are recognised. make() builds the parser of one choice, names()
lists what can be chosen, detect() chooses by the chat template, and output_form() is what grammars need to know.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from ...types import Json
from .base import CombinedParser, Detection, ModelFamily, Parser, PlainText, Syntax

if TYPE_CHECKING:
    from ...grammar.call_syntax import OutputForm

__all__ = [
    "GENERIC",
    "Names",
    "Parser",
    "detect",
    "detections",
    "load",
    "make",
    "names",
    "opens_reasoning",
    "output_form",
]


GENERIC = "generic"
"""The tool parser of a chat model whose template shows none."""


class Names(NamedTuple):
    """The parsers that exist, sorted."""

    tool: tuple[str, ...]
    reasoning: tuple[str, ...]


class FamilyEntry(NamedTuple):
    """The properties of a family that are known without its module."""

    module: str
    """The module here that has it."""
    reads: frozenset[str]
    """What it reads: "tools", "reasoning" or both."""
    detection: Detection | None
    """The rule for its chat templates; None: it is chosen by option only."""


@cache
def index() -> dict[str, FamilyEntry]:
    """Returns every family by its name, in the order of families.json."""
    found = json.loads(files(__name__).joinpath("families.json").read_text("utf-8"))
    return {name: _entry(**row) for name, row in found.items()}


def _entry(module: str, reads: list[str], marks: list[list[str]] | None = None, **more: Any) -> FamilyEntry:
    more |= {"reasoning_marks": tuple(more.get("reasoning_marks", ()))} if marks else {}
    rule = Detection(marks=tuple(map(tuple, marks)), **more) if marks else None
    return FamilyEntry(module, frozenset(reads), rule)


@cache
def names() -> Names:
    """Returns the names of all tool parsers and of all reasoning parsers."""
    found = sorted(index().items())
    return Names(
        tool=tuple(name for name, entry in found if "tools" in entry.reads),
        reasoning=tuple(name for name, entry in found if "reasoning" in entry.reads),
    )


@cache
def detections() -> dict[str, Detection]:
    """Returns each family's rule for chat templates, in the order in which the rules are tried."""
    found = [(name, entry.detection) for name, entry in index().items() if entry.detection]
    return dict(sorted(found, key=lambda rule: rule[1].rank))


def detect(template_source: str) -> tuple[str | None, str | None]:
    """Returns the (tool parser, reasoning parser) that a chat template shows; None where it shows no sign of one."""
    for name, rule in detections().items():
        if rule.matches(template_source):
            return name if name in names().tool else None, rule.reasoning_of(template_source)
    return None, None


_NO_FAMILY = ModelFamily()


def load(name: str | None) -> ModelFamily:
    """Returns the family of that name, an empty one for None. Raises ValueError with the list of names."""
    if name is None:
        return _NO_FAMILY
    if name not in index():
        raise ValueError(f"unknown parser {name!r}; known are {', '.join(sorted(index()))}")
    family: ModelFamily = importlib.import_module(f"{__name__}.{index()[name].module}").FAMILIES[name]
    return family


def output_form(tool: str | None, reasoning: str | None, prompt_tail: str = "") -> OutputForm:
    """Returns how a model with these parsers writes an answer.

    Args:
        tool: The name of its tool parser, or None.
        reasoning: The name of its reasoning parser, or None.
        prompt_tail: The end of the prompt, which shows how some families' checkpoints spell their tags.

    Raises:
        ValueError: A name is not known.
    """
    form = _output_form(tool, reasoning)
    for name in dict.fromkeys((tool, reasoning)):
        adapted = load(name).adapted
        form = adapted(form, prompt_tail) if adapted else form
    return form


@cache
def _output_form(tool: str | None, reasoning: str | None) -> OutputForm:
    from ...grammar.call_syntax import OutputForm  # late: for requests with tools or a grammar

    family, thinking = load(tool), load(reasoning).thinking
    headers = [part.answer_header for part in (thinking, family.tools) if part is not None]
    return OutputForm(
        tool_parser=tool,
        calls=family.form,
        reasoning=thinking.reasoning_form() if thinking is not None else None,
        answer_header=next(filter(None, headers), ""),
    )


def opens_reasoning(reasoning: str | None, prompt_tail: str) -> bool:
    """Tells whether a prompt with this end leaves a block of reasoning open, for that reasoning parser."""
    thinking = load(reasoning).thinking
    return thinking is not None and thinking.between_tags and thinking.opened(prompt_tail)


def make(tool: str | None, reasoning: str | None, *, tools: Sequence[Json] = (), prompt_tail: str = "") -> Parser:
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
    calls = load(tool).tools if tools else None
    thinking = load(reasoning).thinking
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
