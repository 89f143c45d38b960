"""Names and docstrings that a reader finds in one place and understands there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.conventions.source import ROOT, Source, source

FRAGMENTS = ("Of ", "As ", "It ", "Its ", "Also ")
"""Beginnings of docstrings that need the name above them to be read."""


OF_VLLM = ("SamplingParams",)
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
