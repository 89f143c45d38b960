"""Names and docstrings that a reader finds in one place and understands there."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import lean_ovms

ROOT = Path(lean_ovms.__file__).parent

FRAGMENTS = ("Of ", "As ", "It ", "Its ", "Also ")
"""Beginnings of docstrings that need the name above them to be read."""


OF_VLLM = ("SamplingParams",)
"""Classes of a program that have vLLM's name, and become ours of the same name."""


@cache
def trees() -> list[tuple[str, ast.Module]]:
    return [(path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())) for path in sorted(ROOT.rglob("*.py"))]


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields line and text of every string that stands alone: docstrings, and those of constants and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def test_no_public_class_name_occurs_twice() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for name, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{name}:{node.lineno}")
    twice = {name: found for name, found in places.items() if len(found) > 1 and name not in OF_VLLM}
    assert twice == {}


def test_docstrings_have_a_subject_or_a_verb() -> None:
    assert not [
        f"{name}:{line}: {text[:60]}"
        for name, tree in trees()
        for line, text in docstrings(tree)
        if text.startswith(FRAGMENTS)
    ]
