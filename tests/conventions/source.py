"""What the conventions need of the package's files, each of which is parsed once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import lean_ovms

ROOT = Path(lean_ovms.__file__).parent


Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source(NamedTuple):
    """The parts of a file."""

    imports: list[ast.Import | ast.ImportFrom]
    """The imports."""
    classes: list[tuple[int, str]]
    """The lines and the names of the classes."""
    functions: list[Function]
    """The functions and the methods."""
    strings: list[tuple[int, str]]
    """The lines and the texts of strings that stand alone: docstrings, and those of constants and fields."""


@cache
def source(path: Path) -> Source:
    return parsed(path.read_text("utf-8"))


def parsed(text: str) -> Source:
    result = Source([], [], [], [])
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            result.imports.append(node)
        elif isinstance(node, ast.ClassDef):
            result.classes.append((node.lineno, node.name))
        elif isinstance(node, Function):
            result.functions.append(node)
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
