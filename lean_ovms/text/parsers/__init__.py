"""The directory is the registry: a family is a file here that defines `class Tools` and/or `class Thinking`.

Beside Tools stands FORM, how the family writes calls: without one the model cannot be made to call.
make() builds the parser of one choice, names() lists what can be chosen, detect() chooses by the chat template.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import NamedTuple

from ...types import Json
from ..grammar.tool_calls import CallForm
from .base import Block, Combined, Parser, Syntax
from .detection import detect
from .plain import Plain

__all__ = ["Names", "Parser", "detect", "form", "load", "make", "names", "reasoning_names", "thinks", "tool_names"]


class Names(NamedTuple):
    """The parsers that exist, sorted."""

    tool: tuple[str, ...]
    reasoning: tuple[str, ...]


@cache
def names() -> Names:
    """The names of all tool parsers and of all reasoning parsers. Imports the families (a few ms, once)."""
    found = {info.name: importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)}
    return Names(*(tuple(sorted(n for n, m in found.items() if part in vars(m))) for part in ("Tools", "Thinking")))


def tool_names() -> list[str]:
    """The names of all tool parsers, sorted."""
    return list(names().tool)


def reasoning_names() -> list[str]:
    """The names of all reasoning parsers, sorted."""
    return list(names().reasoning)


def load(name: str) -> ModuleType:
    """The family of that name. Raises ValueError with the list of names."""
    if name not in {*names().tool, *names().reasoning}:
        raise ValueError(f"unknown parser {name!r}; known are {', '.join(sorted({*names().tool, *names().reasoning}))}")
    return importlib.import_module(f"{__name__}.{name}")


def form(name: str) -> CallForm | None:
    """How the family of that tool parser writes calls; None: it cannot be made to. Raises ValueError as `load`."""
    found: CallForm | None = getattr(load(name), "FORM", None)
    return found


def thinks(reasoning: str | None, prompt_tail: str) -> bool:
    """Whether a prompt with this end lets the model go on inside of a thought, for that reasoning parser."""
    if reasoning is None:
        return False
    syntax = load(reasoning).Thinking(Combined(), thinking=True)
    return isinstance(syntax, Block) and syntax.opened(prompt_tail)


def make(tool: str | None, reasoning: str | None, *, tools: Sequence[Json] = (), prompt_tail: str = "") -> Parser:
    """The parser of one choice.

    tool, reasoning: names, or None. tools: what the client offers, in OpenAI's nested form; without any, the tool
    parser does not run and its markup is text. prompt_tail: the end of the prompt as text with its special tokens
    (some hundred characters do); it tells whether reasoning is open already. Raises ValueError for an unknown name.
    """
    calls = _part(tool, "tool")
    thinks = _part(reasoning, "reasoning")
    if not tools:
        calls = None
    if calls is None and thinks is None:
        return Plain()
    parser = Combined(tools)
    syntaxes: list[Syntax] = []
    if calls is not None:
        syntaxes.append(calls(parser, tools=True, thinking=calls is thinks))
    if thinks is not None and thinks is not calls:
        syntaxes.append(thinks(parser, thinking=True))
    parser.begin(syntaxes, prompt_tail)
    return parser


def _part(name: str | None, part: str) -> type[Syntax] | None:
    if name is None:
        return None
    known: tuple[str, ...] = getattr(names(), part)
    if name not in known:
        raise ValueError(f"unknown {part} parser {name!r}; known are {', '.join(known)}")
    found: type[Syntax] = getattr(load(name), "Tools" if part == "tool" else "Thinking")
    return found
