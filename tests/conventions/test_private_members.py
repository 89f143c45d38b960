"""Only the class of an object writes its private members, so that no part changes unnoticed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.conventions.source import ROOT

OF_PACKAGES = {"_info"}
"""Members of other packages' objects that have no public name: soundfile's header of a stream."""

PRIVATE = re.compile(r"_[a-z]\w*")
MAY_WRITE = re.compile(r"^(?!.*lambda)[ \w.,*]*(?<!\bself)(?<!\bcls)\._[a-z]\w*[^=\n(]*=(?!=)", re.M)
"""Matches a line that may write a private member of another object. Only files with such lines are parsed, to save
time."""


def written(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yields the name of each private attribute that is assigned to, and whether the object is self."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and PRIVATE.fullmatch(node.attr):
            yield node.attr, isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


@pytest.mark.slow
def test_no_private_member_is_written_from_another_file() -> None:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text("utf-8")
        names = list(written(ast.parse(text))) if MAY_WRITE.search(text) else []
        own = {name for name, of_self in names if of_self}
        others = {name for name, of_self in names if not of_self} - own - OF_PACKAGES
        found += [f"{path.relative_to(ROOT)}: {name}" for name in sorted(others)]
    assert found == []
