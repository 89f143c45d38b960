"""Reads import_rules.txt, which says which folder may import what. tests/conventions/test_layout.py checks the package
against it."""

from __future__ import annotations

import re
from pathlib import Path


def _read(text: str) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Parses the rules.

    Names of the first section are abbreviations; they are replaced by the words of their row.

    Returns:
        The sections ALLOWED and FOREIGN: a set of words for each name.
    """
    sections = []
    for section in text.split("\n\n"):
        joined = section.replace("\n    ", " ")
        rows = re.findall(r"^(\w[\w.]*):(.*)$", joined, re.M)
        sections.append({name: set(words.split()) for name, words in rows})
    several, allowed, foreign = sections
    for words in (*several.values(), *allowed.values()):  # an abbreviation may contain one from a row above it
        for name in words & several.keys():
            words.remove(name)
            words |= several[name]
    return allowed, foreign


ALLOWED, FOREIGN = _read(Path(__file__).with_suffix(".txt").read_text("utf-8"))
"""The rules. ALLOWED: what a module or folder may import, in addition to its own folder; the longest matching name
applies. FOREIGN: which modules may import each third-party package."""
DOORS = {"__init__", "asgi", "embed", "ray_serve"}
"""The modules with the public names of features. Of the core's modules, only these may import a feature."""
EVERYTHING = {"features", "server", "cli", "__main__"}


def rule_of(module: str) -> str:
    """Returns the longest name in ALLOWED or EVERYTHING that is `module` or a folder above it."""
    parts = module.split(".")
    names = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    found = [name for name in names if name in ALLOWED or name in EVERYTHING]
    return found[0] if found else parts[0]
