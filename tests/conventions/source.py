"""What the conventions need of the package's files, each of which is parsed once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import lean_ovms

ROOT = Path(lean_ovms.__file__).parent


class Source(NamedTuple):
    """strings: those that stand alone: docstrings, and those of constants and fields. Numbers are those of lines."""

    imports: list[ast.Import | ast.ImportFrom]
    classes: list[tuple[int, str]]
    strings: list[tuple[int, str]]


@cache
def source(path: Path) -> Source:
    return parsed(path.read_text("utf-8"))


def parsed(text: str) -> Source:
    result = Source([], [], [])
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            result.imports.append(node)
        elif isinstance(node, ast.ClassDef):
            result.classes.append((node.lineno, node.name))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            result.strings.append((node.lineno, node.value.value))
    return result


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Every statement; what is in expressions is not read, which takes most of the time of ast.walk."""
    yield node
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        inner = getattr(node, name, None)
        for one in inner if isinstance(inner, list) else ():
            yield from statements(one)
