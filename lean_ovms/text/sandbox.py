"""jinja2 for chat templates: the environment they are written for, shut in and bounded.

Templates come with models and are written for Hugging Face transformers: its options, globals and filters are the
standard, byte for byte. A template sees plain data only, cannot change it, and cannot reach Python's internals.

It must not know messages.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


def environment(directory: Path | None) -> jinja2.Environment:
    """A new environment. directory: where a template's includes are looked for."""
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
        loader=None if directory is None else jinja2.FileSystemLoader(directory),
    )
    env.filters["tojson"] = _to_json
    env.filters["from_json"] = json.loads
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = _strftime_now
    return env


class _Generation(Extension):
    """{% generation %} marks what the model wrote, for training; here it only renders its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class RaisedByTemplate(jinja2.TemplateError):
    """The template called raise_exception: its own words for what is wrong with the conversation."""


def _raise_exception(message: Any) -> NoReturn:
    raise RaisedByTemplate(str(message))


def _strftime_now(format: str) -> str:  # noqa: A002 - templates may name the argument
    return datetime.now().strftime(format)


def _to_json(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Signature and result of transformers'; jinja2's own would escape HTML."""
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


MAX_PROMPT_CHARS = 64 << 20
"""Longer than any model's context, and than the largest request body by default."""


def render(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """The template's text. Raises what a template can raise, and TooLong."""
    pieces: list[str] = []
    size = 0
    for piece in template.generate(variables):
        size += len(piece)
        if size > MAX_PROMPT_CHARS:
            raise TooLong(f"the prompt is longer than {MAX_PROMPT_CHARS} characters")
        pieces.append(piece)
    return "".join(pieces)


class TooLong(jinja2.TemplateError):
    """The rendering is cut off."""
