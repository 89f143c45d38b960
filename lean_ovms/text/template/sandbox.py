"""jinja2 for chat templates: the environment of transformers, in a sandbox with limits.

Templates come with models and are written for Hugging Face transformers: its options, globals and filters are the
standard, byte for byte (transformers.utils.chat_template_utils, 4.51 to 5.23). A template sees plain data, cannot
change it, cannot reach Python's internals (jinja2's immutable sandbox), and is stopped by the limits of limits.py.

Knows no messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from . import limits


class TemplateRaised(jinja2.TemplateError):
    """The template called raise_exception: its message says what is wrong with the conversation."""


def render(template: jinja2.Template, variables: dict[str, Any], seconds: float) -> str:
    """Render a template of a ChatEnvironment. seconds: as for limits.Budget. Raises any exception."""
    env = template.environment
    assert isinstance(env, ChatEnvironment)
    env.budgets.now = limits.TemplateBudget(seconds)
    pieces: list[str] = []
    size = 0
    for piece in template.generate(variables):
        size += len(piece)
        if size > limits.MAX_CHARS:
            raise limits.LimitExceeded(f"the prompt is longer than {limits.MAX_CHARS} characters")
        pieces.append(piece)
    return "".join(pieces)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The environment of one model's templates; one rendering at a time in each thread. directory: of includes."""

    intercepted_binops = frozenset(("*", "**", "%"))

    def __init__(self, directory: Path | None = None) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
            loader=None if directory is None else jinja2.FileSystemLoader(directory),
        )
        self.budgets = limits.Budgets()
        self.filters.update(limits.limited_filters(self.filters))
        self.filters.update({limits.COUNTED: self.budgets.counted, limits.MEASURED: limits.checked_size})
        self.filters.update(tojson=_to_json, from_json=json.loads)
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        del self.globals["lipsum"]

    def compile(self, source: Any, *args: Any, **kwargs: Any) -> Any:
        """Compile with limits; all templates are compiled here, included ones too."""
        tree = self.parse(source) if isinstance(source, str) else source
        return super().compile(limits.LimitsInserter().visit(tree), *args, **kwargs)

    def make_globals(self, d: Any) -> dict[str, Any]:
        """Returns the globals of a template in one dict; every rendering walks the chain that jinja2 makes."""
        return {**self.globals, **(d or {})}

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as jinja2's
        __self.budgets.now.spend(limits.CALL_STEPS)
        for value in args:
            limits.checked_size(value)
        if isinstance(getattr(__obj, "__self__", None), str):
            limits.check_method(__obj, args)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        limits.check_binop(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            limits.check_format(value.__self__)
        return wrapped


class _Generation(Extension):
    """{% generation %} marks the model's output for training; here it only renders its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: Any) -> NoReturn:
    raise TemplateRaised(str(message))


def _strftime_now(format: str) -> str:  # noqa: A002 - templates may name the argument
    return datetime.now().strftime(format)


def _to_json(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Writes JSON with the signature and result of transformers' filter; jinja2's own would escape HTML."""
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
