"""The jinja2 environment for chat templates: that of transformers, in a sandbox with limits.

Templates come with models, and are written for Hugging Face transformers, whose options, globals and filters are
reproduced exactly (transformers.utils.chat_template_utils, 4.51 to 5.23). A template sees plain data, cannot change it,
cannot reach Python's internals (jinja2's immutable sandbox), and is stopped by limits.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes, pass_eval_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from ...util.concurrency import TooSlowInline, inline_left_s


class TemplateRaised(jinja2.TemplateError):
    """Raised if the template calls raise_exception; the message says what is wrong with the conversation."""


def render(template: jinja2.Template, variables: dict[str, Any], seconds: float) -> str:
    """Renders a template of a ChatEnvironment.

    Args:
        template: The template.
        variables: Its variables by name.
        seconds: The most CPU seconds that it may take.

    Raises:
        LimitExceeded: The template takes too long, or builds a value that is too large.
        Exception: Any other exception that the template raises.
    """
    env = template.environment
    assert isinstance(env, ChatEnvironment)
    env.budgets.now = TemplateBudget(seconds)
    pieces: list[str] = []
    size = 0
    for piece in template.generate(variables):
        size += len(piece)
        if size > MAX_CHARS:
            raise LimitExceeded(f"the prompt has more than {MAX_CHARS} characters")
        pieces.append(piece)
    return "".join(pieces)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The jinja2 environment of one model's templates. Each thread renders one template at a time."""

    intercepted_binops = frozenset(("*", "**", "%"))

    def __init__(self, directory: Path | None = None) -> None:
        """Creates the environment, in which templates of a directory, if one is given, can be included."""
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
            loader=None if directory is None else jinja2.FileSystemLoader(directory),
        )
        self.budgets = Budgets()
        self.filters.update(limited_filters(self.filters))
        self.filters.update({COUNTED: self.budgets.counted, MEASURED: checked_size})
        self.filters.update(tojson=_to_json, from_json=json.loads)
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        del self.globals["lipsum"]

    def compile(self, source: Any, *args: Any, **kwargs: Any) -> Any:
        """Compiles a template, also an included one, with limits added."""
        tree = self.parse(source) if isinstance(source, str) else source
        return super().compile(LimitsInserter().visit(tree), *args, **kwargs)

    def make_globals(self, d: Any) -> dict[str, Any]:
        """Returns the globals of a template in one dict, which is faster to search than jinja2's chain of dicts."""
        return {**self.globals, **(d or {})}

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as jinja2's
        __self.budgets.now.spend(CALL_STEPS)
        given = (*args, *kwargs.values())
        for value in given:
            checked_size(value)
        if isinstance(getattr(__obj, "__self__", None), str):
            check_method(__obj, given)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_binop(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            check_format(value.__self__)
        return wrapped


class _Generation(Extension):
    """The block {% generation %}, which marks the model's output for training. Here only its body is rendered."""

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
    """Serializes a value as JSON, as transformers' filter does; jinja2's own would escape HTML."""
    _check_widths(len(width) if isinstance(width, str) else width for width in (indent, *(separators or ())))
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


MAX_CHARS = 64 << 20
"""The most characters of a prompt and of any value: more than any context, and the default limit of a request body."""

MAX_STEPS = 5_000_000
"""The most steps of one rendering. A loop iteration is one step of 0.2 us, a macro call takes 6 us."""

CHECK_EVERY = 64
"""The number of steps between two readings of the clock, each of which takes 0.3 us."""

CALL_STEPS = 20

MAX_WIDTH = 10_000
"""The greatest number by which a value may be padded, repeated or rounded."""


class LimitExceeded(jinja2.TemplateError):
    """Raised if the template takes too long, or builds a value that is too large."""


class TemplateBudget:
    """The steps and the time that one rendering has left.

    jinja2's sandbox protects Python's internals, but permits `'x' * 10**9` and nested loops. Steps are loop iterations
    and calls; time is CPU time of the thread, checked between steps. A rendering on the event loop has the time that
    its request has left there (util/concurrency.py), and is repeated in a thread if that does not suffice. Values are
    measured where they can grow by more than their operands: in products, padding and joins, and when they are stored
    (for instance one that is doubled in a loop). A model's files are trusted like its weights, so the limits are for
    accidents, and for the arguments of clients. A single operation on a value within the limits is not interrupted.
    """

    __slots__ = ("_inline", "_next_check", "_seconds", "_until", "steps")

    def __init__(self, seconds: float) -> None:
        self.steps = MAX_STEPS
        left_s = inline_left_s.get()
        self._inline = left_s is not None and left_s < seconds
        self._seconds = seconds if left_s is None else min(left_s, seconds)
        self._until = time.thread_time() + self._seconds
        self._next_check = max(-1, MAX_STEPS - CHECK_EVERY)

    def spend(self, steps: int) -> None:
        """Counts steps of the rendering. Raises LimitExceeded or TooSlowInline."""
        self.steps -= steps
        if self.steps <= self._next_check:
            self._check_clock()

    def _check_clock(self) -> None:
        self._next_check = max(-1, self.steps - CHECK_EVERY)
        if self.steps < 0:
            raise LimitExceeded(f"it needs more than {MAX_STEPS} steps")
        if time.thread_time() > self._until:
            if self._inline:
                raise TooSlowInline
            raise LimitExceeded(f"it needs more than {self._seconds:g} s (--template_timeout_s)")


class Budgets(threading.local):
    """Holds the budget of the rendering in the current thread."""

    now = TemplateBudget(0.0)

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        budget = self.now
        for item in items:
            budget.spend(1)
            yield item


# --- in the template's tree ----------------------------------------------------------------------------------------

COUNTED, MEASURED = "counted loop", "measured value"
"""Filters under names that a template cannot use."""


class LimitsInserter(NodeTransformer):
    """Inserts the filter COUNTED around the iterable of every loop, and MEASURED around every value that is stored."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - jinja2 looks for this name
        node.iter = _filtered(node.iter, COUNTED)
        return self.generic_visit(node)

    def visit_Assign(self, node: nodes.Assign) -> nodes.Node:  # noqa: N802 - jinja2 looks for this name
        node.node = _filtered(node.node, MEASURED)
        return self.generic_visit(node)

    def visit_With(self, node: nodes.With) -> nodes.Node:  # noqa: N802 - jinja2 looks for this name
        node.values = [_filtered(value, MEASURED) for value in node.values]
        return self.generic_visit(node)


def _filtered(node: Any, name: str) -> nodes.Expr:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


# --- values --------------------------------------------------------------------------------------------------------


def checked_size(value: Any) -> Any:
    """Returns the value unchanged. Raises LimitExceeded if it is too large."""
    if isinstance(value, (str, list, tuple)):
        _check_size(len(value))
    return value


def check_binop(operator: str, left: Any, right: Any) -> None:
    """Raises LimitExceeded if the result of a product, a power or a %-format would be too large."""
    if operator == "%":
        check_format(left)
    elif operator == "**":
        if abs(left) > MAX_WIDTH or abs(right) > 64:
            raise LimitExceeded("it computes a power that is too large")
    elif isinstance(left, int) and isinstance(right, int):
        _check_size(left.bit_length() + right.bit_length())
    elif isinstance(left, int) or isinstance(right, int):
        count, value = (left, right) if isinstance(left, int) else (right, left)
        if isinstance(value, (str, list, tuple)):
            _check_size(count * len(value))


def check_method(method: Any, args: tuple[Any, ...]) -> None:
    """Raises LimitExceeded if a method of str would build a value that is too large."""
    text, name = method.__self__, method.__name__
    if name in ("center", "expandtabs", "ljust", "rjust", "zfill"):
        _check_widths(args)
    elif name == "replace" and len(args) > 1:
        _check_size(len(text) + text.count(args[0]) * len(args[1]))
    elif name == "join" and args and isinstance(args[0], (str, list, tuple, dict)):
        _check_size(_joined_size(text, args[0]))


_WIDE = re.compile(r"%[^a-zA-Z%]*(?:\*|\d{5})|\{[^{}]*\d{5}|\{[^{}]+\{")
"""Matches a format with a width of five digits or an argument for it: %99999d, %*d, {:99999}, {:{width}}."""


def check_format(template: Any) -> None:
    """Raises LimitExceeded if a %- or {}-format has a huge width."""
    if isinstance(template, str) and _WIDE.search(template):
        raise LimitExceeded("it uses a format that is too wide")


def limited_filters(filters: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Returns those of jinja2's filters that can make a short value huge, with a check of their arguments."""
    narrow = {
        name: _with_checked_widths(filters[name])
        for name in ("batch", "center", "indent", "round", "slice", "wordwrap")
    }
    format_, join, replace = filters["format"], filters["join"], filters["replace"]

    def do_format(value: Any, *args: Any, **kwargs: Any) -> Any:
        check_format(value)
        return format_(value, *args, **kwargs)

    @pass_eval_context
    def do_join(context: Any, value: Any, d: str = "", attribute: Any = None) -> Any:
        value = list(value)
        _check_size(_joined_size(d, value))
        return join(context, value, d, attribute)

    @pass_eval_context
    def do_replace(context: Any, s: Any, old: Any, new: Any, count: int | None = None) -> Any:
        _check_size(len(str(s)) + str(s).count(str(old)) * len(str(new)))
        return replace(context, s, old, new, count)

    return {**narrow, "format": do_format, "join": do_join, "replace": do_replace}


def _with_checked_widths(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)  # keeps jinja2's mark on the function, which says which arguments the filter takes
    def checked(*args: Any, **kwargs: Any) -> Any:
        given = (*args[1:], *kwargs.values())
        _check_widths(given)
        _check_size(math.prod(len(value) for value in given if isinstance(value, str)))  # a text is wrapped by another
        return function(*args, **kwargs)

    return checked


def _check_widths(numbers: Iterable[Any]) -> None:
    if any(isinstance(number, int) and abs(number) > MAX_WIDTH for number in numbers):
        raise LimitExceeded(f"it uses a width of more than {MAX_WIDTH}")


def _joined_size(glue: Any, items: Any) -> int:
    return len(str(glue)) * len(items) + sum(len(item) for item in items if isinstance(item, str))


def _check_size(size: int) -> None:
    if size > MAX_CHARS:
        raise LimitExceeded(f"it makes a value with more than {MAX_CHARS} characters or items")
