"""Names and docstrings that a reader finds in one place and understands there."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.conventions.source import ROOT, Function, Source, parsed, source

FRAGMENTS = ("Of ", "As ", "It ", "Its ", "Also ")
"""Beginnings of docstrings that need the name above them to be read."""


OF_VLLM = ("PoolingParams", "SamplingParams")
"""Classes of a program that have vLLM's name, and become ours of the same name."""


def sources() -> Iterator[tuple[str, Source]]:
    """Yields all files, and their names."""
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), source(path)


def test_no_public_class_name_occurs_twice() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for file, code in sources():
        for line, name in code.classes:
            if not name.startswith("_"):
                places[name].append(f"{file}:{line}")
    twice = {name: found for name, found in places.items() if len(found) > 1 and name not in OF_VLLM}
    assert twice == {}


def test_docstrings_have_a_subject_or_a_verb() -> None:
    assert not [
        f"{file}:{line}: {text[:60]}"
        for file, code in sources()
        for line, text in code.strings
        if text.startswith(FRAGMENTS)
    ]


NOUNS = {"A", "All", "An", "Any", "Each", "Every", "How", "One", "The", "What", "Where", "Whether", "Whose", "Why"}
"""First words of a noun phrase, which tells what a function returns and not what it does."""


def test_docstrings_of_functions_begin_with_what_they_do() -> None:
    assert not [
        f"{file}:{function.lineno}: {function.name}: {text[:60]}"
        for file, code in sources()
        for function in code.functions
        if (text := ast.get_docstring(function) or "")
        and not any(ast.unparse(decorator).endswith(PROPERTIES) for decorator in function.decorator_list)
        and (text.split()[0] in NOUNS or re.fullmatch(r"Raises \w+((, | or | and )\w+)*\.", text))
    ]


PROPERTIES = ("property", "setter")
"""Ends of the decorators of what is read as an attribute, of which a docstring tells what it is."""
FEW = 2
"""Parameters that a sentence can tell; those of a function with more are told in a section of the docstring."""


def parameters(function: Function) -> list[str]:
    """Returns the names of a function's parameters, without the object or the class of a method."""
    found = function.args
    several = [one for one in (found.vararg, found.kwarg) if one is not None]
    names = [one.arg for one in (*found.posonlyargs, *found.args, *found.kwonlyargs, *several)]
    return [name for name in names if name not in ("self", "cls")]


def untold(function: Function) -> list[str]:
    """Returns the parameters that `Args:` lacks, if a docstring tells some, as "name: ...", of three or more."""
    names, text = parameters(function), ast.get_docstring(function) or ""
    told = re.search(rf"\b({'|'.join(names)})(, \w+)*: ", text) is not None
    if len(names) <= FEW or not told:
        return []
    section = re.search(r"^Args:\n((?: .*\n?|\n)*)", text, re.M)
    lines = set(re.findall(r"^ {4}\**(\w+): ", section[1], re.M)) if section is not None else set()
    return [name for name in names if name not in lines]


def test_docstrings_tell_several_parameters_in_a_section() -> None:
    assert not [
        f"{file}:{function.lineno}: {function.name} does not tell {', '.join(missing)}"
        for file, code in sources()
        for function in code.functions
        if (missing := untold(function))
    ]


SECTION = "Does it.\n\n    Args:\n        a: one.\n            More.\n        b: two.\n        **c: three.\n    "


@pytest.mark.parametrize(
    ("docstring", "missing"),
    [
        ("Does it.", []),
        ("Does it. a: one.", ["a", "b", "c"]),
        ("Does it. a, b: two.", ["a", "b", "c"]),
        (SECTION, []),
        (SECTION.replace("        b: two.\n", ""), ["b"]),
        (SECTION.replace("        b: two.\n", "") + "\n    Raises:\n        b: three.\n    ", ["b"]),
    ],
)
def test_that_rule_finds_a_parameter_without_a_line(docstring: str, missing: list[str]) -> None:
    [function] = parsed(f'def f(a, b, **c):\n    """{docstring}"""\n').functions
    assert untold(function) == missing
