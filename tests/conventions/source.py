"""Extracts what the tests of conventions need of the package's files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import lean_ovms

ROOT = Path(lean_ovms.__file__).parent


Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source(NamedTuple):
    """The parts of a file that the tests of conventions look at."""

    classes: list[tuple[int, str]]
    """The line and the name of each class."""
    functions: list[Function]
    """The functions and methods."""
    described: list[tuple[int, str, str, list[str]]]
    """The classes with docstrings: line, name, docstring, and the names of fields and of the constructor's parameters.
    """
    has_docstring: bool
    """Whether the file begins with a docstring, which is then the first of `strings`."""
    strings: list[tuple[int, str]]
    """The line and text of each string that is a statement: docstrings, and those after constants and fields."""
    undescribed: list[tuple[int, str]]
    """The line and the name of each field of a record that has no line of its own, which says what the field is."""


IMPORT = re.compile(r"^ *((?:from [\w.]+ )?import (?:\([^)]*\)|[\w., *]+))(?:  #.*)?$", re.MULTILINE)
"""Matches an import statement, so that a whole file, which takes ten times as long, need not be parsed."""


def imports(text: str, package: tuple[str, ...]) -> Iterator[str]:
    """Yields the dotted name of every module that a file in `package` imports."""
    for statement in IMPORT.findall(text):
        node = ast.parse(statement).body[0]
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            name = ".".join((*base, *(node.module or "").split("."))).strip(".")
            yield from (f"{name}.{alias.name}" for alias in node.names)


@cache
def source(path: Path) -> Source:
    """Parses a file, once for all tests."""
    text = path.read_text("utf-8")
    tree, lines = ast.parse(text), text.splitlines()
    result = Source([], [], [], ast.get_docstring(tree) is not None, [], [])
    for node in statements(tree):
        if isinstance(node, ast.ClassDef):
            result.classes.append((node.lineno, node.name))
            if is_record(node):
                result.undescribed.extend(undescribed(node, lines))
            if text_of_class := ast.get_docstring(node):
                result.described.append((node.lineno, node.name, text_of_class, fields(node)))
        elif isinstance(node, Function):
            result.functions.append(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            result.strings.append((node.lineno, node.value.value))
    return result


def fields(node: ast.ClassDef) -> list[str]:
    """Returns the names of a class's annotated fields, and of its constructor's parameters and attributes."""
    found = [one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
    for method in (one for one in node.body if isinstance(one, Function) and one.name == "__init__"):
        found += [one.arg for one in (*method.args.args, *method.args.kwonlyargs)]
        places = [target for one in statements(method) for target in targets(one)]
        found += [place.attr for place in places if isinstance(place, ast.Attribute)]
    return found


def is_record(node: ast.ClassDef) -> bool:
    """Returns whether a class is a dataclass, a NamedTuple or a TypedDict."""
    marks = [*node.decorator_list, *node.bases]
    names = {ast.unparse(one.func if isinstance(one, ast.Call) else one).rpartition(".")[2] for one in marks}
    return not names.isdisjoint(("dataclass", "NamedTuple", "TypedDict"))


def undescribed(node: ast.ClassDef, lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yields the line and the name of each field that is not described by a string after it, by the text with which an
    option is declared, or, if it is private, by a comment in its line."""
    for one, following in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(one, ast.AnnAssign) or not isinstance(one.target, ast.Name) or one.target.id == "_":
            continue
        has_string = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        is_option = isinstance(one.value, ast.Call) and len(one.value.args) > 1
        has_comment = one.target.id.startswith("_") and "  # " in lines[(one.end_lineno or one.lineno) - 1]
        if not (has_string or is_option or has_comment or "ClassVar" in ast.unparse(one.annotation)):
            yield one.lineno, f"{node.name}.{one.target.id}"


def targets(node: ast.AST) -> list[ast.expr]:
    """Returns the targets of an assignment; [] for other statements."""
    if isinstance(node, ast.AnnAssign):
        return [node.target]
    each = node.targets if isinstance(node, ast.Assign) else []
    return [one for target in each for one in (target.elts if isinstance(target, ast.Tuple) else [target])]


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yields all statements below a node. Expressions are skipped, which take most of the time of ast.walk."""
    yield node
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        inner = getattr(node, name, None)
        for one in inner if isinstance(inner, list) else ():
            yield from statements(one)
